"""Which shards a run needs when, so that the mirror of a cache in a bucket fetches them in time and removes what is needed last.

The plan knows every future block, and so every future read.  Threads fetch the shards of the coming blocks, as far as the mirror's byte
budget reaches.  A shard is removed only for one that is needed earlier, and never while it is open, so the mirror does not thrash as long
as it holds what one block needs.  Whether it does is decided from the sizes of shards, before the first batch.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Any

import numpy as np

from penstock.cache import Fetch
from penstock.errors import PenstockError, PlanError
from penstock.plan.plan import Plan, Position
from penstock.plan.settings import PlanSettings
from penstock.store.shards import shard_name
from penstock.words import size as in_words

_THREADS = 4
_PART_OF_MIRROR = 16  # that shards for blocks after the next one may take from shards that are kept
_JOIN_SECONDS = 5.0  # one that waits for the network longer ends by itself
_HORIZON, _WEIGHTED_HORIZON = 1 << 16, 256  # blocks looked ahead; with weights, each costs the lengths of its samples
_TOKENS_PER_SAMPLE = 512  # of a block, when mixing by tokens
_PART_OF_BLOCK = 8
_LAST_BLOCK = 1.5  # a rest of less than half a block joins the last one
_MARGIN = 2.0  # with weights, samples that are dropped do not count, so a block may take more of them
_WINDOWS = [1 << power for power in range(10, -1, -1)]  # what window="auto" may become

_log = logging.getLogger("penstock")

Use = tuple[str, str]  # the URL of a cache, and the name of a shard in it


def is_mirrored(store: Any) -> bool:
    """Whether the shards of a complete store are in a bucket."""
    return bool(store.manifest) and store.cache.is_remote


class Traffic:
    """What was asked of buckets since a Loader was made, by this process; false where no store is in one."""

    def __init__(self, stores: Sequence[Any]) -> None:
        self._caches = {id(store.cache): store.cache for store in stores if is_mirrored(store)}
        self._start = self._sums()

    def __bool__(self) -> bool:
        return bool(self._caches)

    def _sums(self) -> dict[str, float]:
        caches = self._caches.values()
        places = {cache.bucket.place for cache in caches}
        return {
            "bytes": sum(place.num_bytes for place in places),
            "requests": sum(place.num_requests for place in places),
            "stalls": sum(cache.stalls for cache in caches),
            "stall_seconds": sum(cache.stall_seconds for cache in caches),
        }

    def as_dict(self) -> dict[str, float]:
        return {name: value - self._start[name] for name, value in self._sums().items()}


# Sizes


def steps_at_once(settings: PlanSettings, rows_per_step: int) -> int:
    """Return how many steps may be made together: a small part of a block."""
    return max(1, settings.block // _PART_OF_BLOCK // rows_per_step)


def fit_window(
    settings: PlanSettings, stores: Sequence[Any], mirror_bytes: int | None, rows_per_step: int
) -> PlanSettings:
    """Return settings under which the mirror holds what is read at once: window="auto" becomes a window that fits; refuse others.

    "auto" depends on `mirror_bytes` as it is given and on sizes, never on the free disk of this machine or on ranks: all of them choose
    the same.
    """
    stores_there = [store for store in stores if is_mirrored(store)]
    for store in stores_there if mirror_bytes is not None else ():
        store.cache.mirror_bytes = mirror_bytes
    rows = settings.block // _PART_OF_BLOCK
    is_given = all(store.cache.mirror_bytes is not None for store in stores_there)
    if settings.window == "auto" and settings.shuffle and is_given and _too_small(settings, stores, rows):
        windows = (replace(settings, window=window) for window in _WINDOWS)
        settings = next((each for each in windows if not _too_small(each, stores, rows)), replace(settings, window=1))
        _log.info("window: auto is %d shards, which fit into the mirror", settings.window)
    check_window(settings, stores, rows_per_step)
    return settings


def saved_window(state: Any, stores: Sequence[Any]) -> int | str | None:
    """Return the window with which a saved run began, if its stores are in a bucket: the run keeps it, whatever mirror is here."""
    settings = state.get("settings") if isinstance(state, dict) else None
    window = settings.get("window", "auto") if isinstance(settings, dict) else None
    is_window = window == "auto" or type(window) is int
    return window if is_window and any(map(is_mirrored, stores)) else None


def check_window(settings: PlanSettings, stores: Sequence[Any], rows_per_step: int) -> None:
    """Refuse a window that the mirror cannot hold."""
    if found := _too_small(settings, stores, max(settings.block // _PART_OF_BLOCK, rows_per_step)):
        raise PlanError(found)


def _too_small(settings: PlanSettings, stores: Sequence[Any], rows_at_once: int) -> str:
    """Return why a mirror is too small for what is read at once, or ""."""
    for where in dict.fromkeys(store.cache.where for store in stores if is_mirrored(store)):
        here = [number for number, store in enumerate(stores) if is_mirrored(store) and store.cache.where == where]
        need = sum(_bytes_at_once(number, stores, settings, rows_at_once) for number in here)
        budget = stores[here[0]].cache.budget
        if need > budget:
            return (
                f"{where}: up to {in_words(need)} of shards are needed at once with window={settings.window!r}, and the mirror may "
                f"hold {in_words(budget)}; set mirror_bytes={need} or more"
                + (", or a smaller window=" if settings.shuffle and settings.window != 1 else "")
            )
    return ""


def _bytes_at_once(number: int, stores: Sequence[Any], settings: PlanSettings, rows_at_once: int) -> int:
    """Return the bytes of the shards that a block, and the steps around it, need of a store: the largest shards, in as many windows as
    a run of so many samples may touch."""
    store = stores[number]
    sizes = np.sort([entry.num_bytes for entry in store.manifest.shards])[::-1]
    if not sizes.size:
        return 0
    borders = settings.window_borders(sizes.size) if settings.shuffle else np.arange(sizes.size + 1)
    window = int(np.diff(borders).max())
    rows_per_window = max(1.0, float(np.diff(borders).min()) * len(store) / sizes.size)
    samples_per_token = max(1, store.counts.samples) / max(1, store.counts.tokens)
    weights = settings.exact_weights()
    if weights is None:
        share, block = len(store) / max(1, sum(map(len, stores))), settings.block * _LAST_BLOCK
    else:
        share, block = float(weights[number] / sum(weights)), settings.block * _LAST_BLOCK * _MARGIN
        block *= _TOKENS_PER_SAMPLE * samples_per_token if settings.mix_by == "tokens" else 1
    per_row = max(1.0, settings.max_length * samples_per_token) if settings.packing != "none" else 1.0
    samples = share * (block + rows_at_once * per_row)
    touched = min(len(borders) - 1, ceil(samples / rows_per_window) + 1)
    return int(sizes[: touched * window].sum())


# Time


class Future:
    """The blocks from a position on, each with the shards that it needs, found as far as they are asked for."""

    def __init__(self, plan: Plan, stores: Sequence[Any], start: Position) -> None:
        own = plan.changed()  # its caches are not those of the reader
        self._shards = own.blocks.shards
        self._limit = _HORIZON if plan.settings.weights is None else _WEIGHTED_HORIZON
        self._next: Position | None = start
        self.files: dict[Use, tuple[Any, Fetch]] = {}
        self._of: dict[tuple[int, int], Use] = {}
        for source, store in enumerate(stores):
            if is_mirrored(store):
                for shard, entry in enumerate(store.manifest.shards):
                    use = self._of[source, shard] = (store.cache.where, entry.file.name)
                    self.files[use] = (store.cache, entry.file)
        self.blocks: list[tuple[Position, tuple[Use, ...]]] = []
        self._uses: dict[Use, list[int]] = {}
        self.now = self.latest = 0  # the first and the last block that is being read

    def block(self, number: int) -> tuple[Position, tuple[Use, ...]] | None:
        """Return a block by its number from the start on; None past the horizon."""
        while len(self.blocks) <= number:
            if self._next is None or len(self.blocks) - self.now >= self._limit:
                return None
            self._extend(self._next)
        return self.blocks[number]

    def _extend(self, at: Position) -> None:
        pairs = self._shards(at.epoch, at.block)
        if pairs is None:  # the epoch has ended; one without a block ends the future
            self._next = Position(epoch=at.epoch + 1) if at.block else None
            return
        uses = tuple(dict.fromkeys(self._of[pair] for pair in pairs if pair in self._of))
        for use in uses:
            self._uses.setdefault(use, []).append(len(self.blocks))
        self.blocks.append((at, uses))
        self._next = Position(epoch=at.epoch, block=at.block + 1)

    def next_use(self, use: Use) -> float:
        """Return the number of the block that next needs a shard; infinity where none within the horizon does."""
        if use not in self.files:
            return inf
        while True:
            found = self._uses.setdefault(use, [])
            while found and found[0] < self.now:
                found.pop(0)
            if found:
                return found[0]
            if self.block(len(self.blocks)) is None:
                return inf

    def move_to(self, position: Position) -> None:
        """Say that the block of a position is read, too.  A run goes forward."""
        number = self.latest
        while (block := self.block(number)) is not None:
            if (block[0].epoch, block[0].block) == (position.epoch, position.block):
                self.latest = number
                return
            number += 1

    def needed(self) -> set[Use]:
        """Return what the blocks that are being read need."""
        return {use for _, uses in self.blocks[self.now : self.latest + 1] for use in uses}


def open_mirror(plan: Plan, stores: Sequence[Any], start: Position, end: int | None) -> "Mirror | None":
    """Return what fetches ahead for a loop from `start` to epoch `end`; None where no store is in a bucket."""
    return Mirror(plan, stores, start, end) if any(map(is_mirrored, stores)) else None


class Mirror:
    """Fetches the shards of coming blocks in threads, while a Loader reads the present one."""

    def __init__(self, plan: Plan, stores: Sequence[Any], start: Position, end: int | None) -> None:
        """end: the epoch before which the loop ends; what later ones need is not fetched, but decides what is removed first."""
        self._stores, self._end = stores, end
        self._future = Future(plan, stores, start)
        self._caches = {store.cache.where: store.cache for store in stores if is_mirrored(store)}
        self._changed = threading.Condition(next(iter(self._caches.values())).room)  # a cache asks `_next_use` in it
        self._busy: set[Use] = set()
        self._place = (0, 0)  # block and shard in it that is looked at next
        self._threads: list[threading.Thread] = []
        self._is_over = False
        for where, cache in self._caches.items():
            cache.next_use = lambda name, where=where: self._next_use((where, name))

    def _next_use(self, use: Use) -> float:
        with self._changed:
            return self._future.next_use(use)

    def begin_block(self, position: Position) -> None:
        """Say that the reader has come to a block, and needs those before it until `release`."""
        with self._changed:
            self._future.move_to(position)

    def release(self) -> None:
        """Close what only the blocks before the last one needed, and fetch for the blocks after it.  Fetches begin with the first call:
        the first batch does not share the network."""
        with self._changed:
            self._future.now = self._future.latest
            self._place = (self._future.now, 0)
            needed = self._future.needed()
            self._changed.notify_all()
        for store in self._stores:
            if is_mirrored(store):
                store.close_shards(keep=lambda key, where=store.cache.where: (where, shard_name(key)) in needed)
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._run, daemon=True, name="penstock-mirror") for _ in range(_THREADS)
            ]
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        for cache in self._caches.values():
            cache.next_use = None

    def _run(self) -> None:
        try:
            while (use := self._wait_for_task()) is not None:
                cache, file = self._future.files[use]
                try:
                    cache.fetch(file, has_room=True)
                finally:
                    with self._changed:
                        self._busy.discard(use)
        except PenstockError as error:  # the reader fetches what it needs, and raises what it meets
            _log.info("shards are no longer fetched ahead: %s", error)

    def _wait_for_task(self) -> Use | None:
        with self._changed:
            while not self._is_over:
                if (use := self._choose()) is not None:
                    return use
                self._changed.wait()
        return None

    def _choose(self) -> Use | None:
        """Return the next shard to fetch, for which there is room now; None until the reader comes to another block.

        Free room is filled with whatever comes next.  Beyond it, only for the next block, or as much as a small part of the mirror holds: a
        shard that is fetched early takes the place of one that a later epoch would find here.
        """
        number, first = self._place
        while (block := self._future.block(number)) is not None:
            position, uses = block
            if self._end is not None and position.epoch >= self._end:
                return None
            for place in range(first, len(uses)):
                cache, file = self._future.files[uses[place]]
                if uses[place] not in self._busy and not cache.has_copy(file.name):
                    may_remove = (
                        number <= self._future.now + 1 or self._num_ahead(number) <= cache.budget // _PART_OF_MIRROR
                    )
                    has_room = cache.make_room(file.name, file.size or 0, before=float(number) if may_remove else inf)
                    self._place = (number, place + has_room)
                    if not has_room:
                        return None
                    self._busy.add(uses[place])
                    return uses[place]
            number, first = number + 1, 0
            self._place = (number, first)
        return None

    def _num_ahead(self, number: int) -> int:
        """Bytes of the shards that blocks after the present one need, up to block `number`."""
        blocks = self._future.blocks[self._future.now + 1 : number + 1]
        return sum(self._future.files[use][1].size or 0 for use in {use for _, uses in blocks for use in uses})
