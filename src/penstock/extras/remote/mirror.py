"""Which shards a run needs when, so that the mirror of a cache in a bucket fetches them in time and removes what is needed last.

The plan knows every future block, and so every future read.  Threads fetch the shards of the coming blocks, as far as the mirror's byte
budget reaches.  A shard is removed only for one that is needed earlier, and never while it is open, so the mirror does not thrash as long
as it holds what two blocks need.  Whether it does is decided from the sizes of shards, before the first batch.

With weights, or after a change of mixture, what a later block holds may depend on loss masks, which are in the shards.  Then later
blocks are predicted from lengths alone, and corrected whenever a block begins.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from penstock.cache import Fetch
from penstock.cache.cache import explained
from penstock.errors import PenstockError, PlanError
from penstock.extras.remote.requests import guard_against_fork
from penstock.plan.mix import Shares
from penstock.plan.plan import Plan, Position
from penstock.plan.segments import Blocks
from penstock.plan.settings import PlanSettings
from penstock.store.shards import shard_name
from penstock.types import Ints
from penstock.words import size as in_words

_THREADS = 4
_PART_OF_MIRROR = 16  # that shards for blocks after the next one may take from shards that are kept
_JOIN_SECONDS = 5.0  # one that waits for the network longer ends by itself
# blocks looked ahead; with weights, each costs the lengths of its samples
_HORIZON = 1 << 16
_WEIGHTED_HORIZON = 256
_TOKENS_PER_SAMPLE = 512  # of a block, when mixing by tokens
_PART_OF_BLOCK = 8
_TWO_BLOCKS = 2.5  # a rest of less than half a block joins the last one
_WINDOWS = [1 << power for power in range(10, -1, -1)]  # what shuffle_window="auto" may become

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
    """Return settings under which the mirror holds what is read at once: shuffle_window="auto" becomes a window that fits; refuse others.

    "auto" depends on `mirror_bytes` as it is given and on sizes, never on the free disk of this machine or on ranks: all of them choose
    the same.
    """
    stores_there = [store for store in stores if is_mirrored(store)]
    for store in stores_there if mirror_bytes is not None else ():
        store.cache.mirror_bytes = mirror_bytes
    rows = settings.block // _PART_OF_BLOCK
    is_given = all(store.cache.mirror_bytes is not None for store in stores_there)
    if (
        settings.shuffle_window == "auto"
        and settings.shuffle
        and is_given
        and _too_small(settings, stores, rows)
    ):
        windows = (replace(settings, shuffle_window=window) for window in _WINDOWS)
        settings = next(
            (each for each in windows if not _too_small(each, stores, rows)),
            replace(settings, shuffle_window=1),
        )
        _log.info(
            "shuffle_window: auto is %d shards, which fit into the mirror", settings.shuffle_window
        )
    check_window(settings, stores, rows_per_step)
    return settings


def saved_window(state: Any, stores: Sequence[Any]) -> int | str | None:
    """Return the window with which a saved run began, if its stores are in a bucket: the run keeps it, whatever mirror is here."""
    settings = state.get("settings") if isinstance(state, dict) else None
    window = settings.get("shuffle_window", "auto") if isinstance(settings, dict) else None
    is_window = window == "auto" or type(window) is int
    return window if is_window and any(map(is_mirrored, stores)) else None


def check_window(settings: PlanSettings, stores: Sequence[Any], rows_per_step: int) -> None:
    """Refuse a window that the mirror cannot hold."""
    if found := _too_small(settings, stores, max(settings.block // _PART_OF_BLOCK, rows_per_step)):
        raise PlanError(found)


def _too_small(settings: PlanSettings, stores: Sequence[Any], rows_at_once: int) -> str:
    """Return why a mirror is too small for what is read at once, or ""."""
    for where in dict.fromkeys(store.cache.where for store in stores if is_mirrored(store)):
        here = [
            number
            for number, store in enumerate(stores)
            if is_mirrored(store) and store.cache.where == where
        ]
        need = sum(_bytes_at_once(number, stores, settings, rows_at_once) for number in here)
        budget = stores[here[0]].cache.budget
        if need > budget:
            return (
                f"{where}: up to {in_words(need)} of shards are needed at once with "
                f"shuffle_window={settings.shuffle_window!r}, and the mirror may "
                f"hold {in_words(budget)}; set mirror_bytes={need} or more"
                + (
                    ", or a smaller shuffle_window="
                    if settings.shuffle and settings.shuffle_window != 1
                    else ""
                )
            )
    return ""


def _bytes_at_once(
    number: int, stores: Sequence[Any], settings: PlanSettings, rows_at_once: int
) -> int:
    """Return the bytes of the shards that two blocks, and the steps around them, need of a store: the largest shards, in as many windows
    as may be touched.

    All but the first and the last window that a run of samples touches lie wholly in it.  So if k windows of the shards that give least
    give more than the run takes, it touches fewer than k + 2.  A run may begin in one epoch and end in the next, whose windows may hold
    the same shards: k is taken in two halves.
    """
    store = stores[number]
    sizes = np.sort([entry.num_bytes for entry in store.manifest.shards])[::-1]
    if not sizes.size:
        return 0
    borders = settings.window_borders(sizes.size) if settings.shuffle else np.arange(sizes.size + 1)
    window = int(borders[1])
    has_rest = borders.size > 2 and np.diff(borders).min() < np.diff(borders).max()
    gains, most, taken = _gains(number, stores, settings)
    samples_per_token = max(1, store.counts.samples) / max(1, store.counts.tokens)
    per_row = (
        max(1.0, settings.max_length * samples_per_token) if settings.packing != "none" else 1.0
    )
    taken *= _TWO_BLOCKS * settings.block + rows_at_once * per_row
    least = np.concatenate(([0], np.cumsum(np.sort(gains))))  # what so many shards give at least
    halves = np.arange(borders.size)
    lows, highs = (
        np.minimum(each * window, sizes.size) for each in (halves // 2, (halves + 1) // 2)
    )
    inside = int(np.searchsorted(least[lows] + least[highs], taken + 2 * most, side="right")) - 1
    return int(sizes[: (inside + 2 + has_rest) * int(np.diff(borders).max())].sum())


def _gains(number: int, stores: Sequence[Any], settings: PlanSettings) -> tuple[Ints, int, float]:
    """Return what each shard adds at least to the share of its source, the most that a sample adds, and the source's share of a block.

    Without weights every sample adds 1.  With weights those that are dropped add nothing, and of those that are cut it is not known.
    """
    store = stores[number]
    if (weights := settings.exact_weights()) is None:
        return store.shard_sizes, 1, len(store) / max(1, sum(map(len, stores)))
    by_tokens = settings.mix_by == "tokens"
    is_stream = settings.method.cuts
    lengths = np.asarray(store.lengths)
    is_sure = (lengths > 0) if is_stream else (lengths > 0) & (lengths <= settings.capacity)
    gains = np.concatenate(
        ([0], np.cumsum(np.where(is_sure, lengths, 0) if by_tokens else is_sure, dtype=np.int64))
    )
    most = int(lengths.max(initial=1)) if by_tokens else 1
    share = float(weights[number] / sum(weights)) * (_TOKENS_PER_SAMPLE if by_tokens else 1)
    return np.diff(gains[store.shard_starts]), most, share


# Time


class Future:
    """The blocks from a position on, each with the shards that it needs, found as far as they are asked for."""

    def __init__(self, plan: Plan, stores: Sequence[Any], start: Position) -> None:
        self._blocks = (
            plan.predicted().blocks
        )  # its caches are not those of the reader, and it reads no shard
        self._has_changes = plan.has_changes
        self._is_exact = plan.settings.weights is None and not plan.has_changes
        # by source: places that the prediction is behind
        self._exact = plan.blocks
        self._ahead = list[int]()
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
        if (
            pairs := self._pairs(at)
        ) is None:  # the epoch has ended; one without a block ends the future
            self._next = Position(epoch=at.epoch + 1) if at.block else None
        else:
            self._append(at, pairs)

    def _pairs(self, at: Position) -> list[tuple[int, int]] | None:
        if self._has_changes:
            return self._blocks.shards(at.epoch, at.block)
        segment = self._blocks.segment_of(at.epoch, at.block)
        shares = segment.shares(at.epoch, at.block)
        if shares is None:
            return None
        ahead = self._ahead or [0] * len(segment.orders)
        pairs = []
        for source, (order, start, stop, more) in enumerate(
            zip(segment.orders, *shares, ahead, strict=True)
        ):
            shards = order.shards(start + more, stop + more).tolist()
            pairs += [(source, shard) for shard in shards]
        return pairs

    @staticmethod
    def _shares(blocks: Blocks, epoch: int, number: int) -> Shares | None:
        return blocks.segment_of(epoch, number).shares(epoch, number)

    def _append(self, at: Position, pairs: Sequence[tuple[int, int]]) -> None:
        uses = tuple(dict.fromkeys(self._of[pair] for pair in pairs if pair in self._of))
        for use in uses:
            self._uses.setdefault(use, []).append(len(self.blocks))
        self.blocks.append((at, uses))
        self._next = Position(epoch=at.epoch, block=at.block + 1)

    def next_use(self, use: Use) -> float:
        """Return in how many blocks from now on a shard is needed; infinity where none within the horizon needs it."""
        if use not in self.files:
            return inf
        while True:
            found = self._uses.setdefault(use, [])
            while found and found[0] < self.now:
                found.pop(0)
            if found:
                return max(0, found[0] - self.latest)
            if self.block(len(self.blocks)) is None:
                return inf

    def look_up(self, position: Position) -> Any:
        """Return what the block of a position really needs, for `move_to`; None where the prediction is exact.  May read shards."""
        if self._is_exact:
            return None
        pairs = self._exact.shards(position.epoch, position.block)
        return pairs, self._shares(self._exact, position.epoch, position.block)

    def move_to(self, position: Position, found: Any = None) -> None:
        """Say that the block of a position is read, too.  A run goes forward.  found: what `look_up` returned."""
        number = self.latest
        here = (position.epoch, position.block)
        while (block := self.block(number)) is not None and (
            block[0].epoch,
            block[0].block,
        ) != here:
            number += 1
        self.latest = len(self.blocks) if block is None else number
        if found is None or found[0] is None:
            return
        pairs, shares = found
        guess = None if self._has_changes else self._shares(self._blocks, *here)
        ahead = [] if guess is None else np.subtract(shares.stops, guess.stops).tolist()
        if (
            block is None
            or ahead != self._ahead
            or {self._of.get(pair) for pair in pairs} - {None} != set(block[1])
        ):
            del self.blocks[self.latest :]  # those after it are predicted again
            self._uses = {
                use: [n for n in numbers if n < self.latest] for use, numbers in self._uses.items()
            }
            self._ahead = ahead
            self._append(position, pairs)

    def needed(self) -> set[Use]:
        """Return what the blocks that are being read need."""
        return {use for _, uses in self.blocks[self.now : self.latest + 1] for use in uses}


def open_mirror(
    plan: Plan, stores: Sequence[Any], start: Position, end: int | None
) -> "Mirror | None":
    """Return what fetches ahead for a loop from `start` to epoch `end`; None where no store is in a bucket."""
    for store in filter(is_mirrored, stores):
        with explained("read", store.cache.where):
            guard_against_fork(
                store.cache.where
            )  # now, and not when the first shard is missing: a lock may be held
        return Mirror(plan, stores, start, end)
    return None


class Mirror:
    """Fetches the shards of coming blocks in threads, while a Loader reads the present one."""

    def __init__(self, plan: Plan, stores: Sequence[Any], start: Position, end: int | None) -> None:
        """end: the epoch before which the loop ends; what later ones need is not fetched, but decides what is removed first."""
        self._stores = stores
        self._end = end
        self._future = Future(plan, stores, start)
        self._caches = {store.cache.where: store.cache for store in stores if is_mirrored(store)}
        self._changed = threading.Condition(
            next(iter(self._caches.values())).room
        )  # a cache asks `_next_use` in it
        self._busy: set[Use] = set()
        self._place = (0, 0)  # block and shard in it that is looked at next
        self._threads: list[threading.Thread] = []
        self._is_over = False
        self._failed_at = -1
        self._plans = {where: partial(self._next_use, where) for where in self._caches}
        for where, cache in self._caches.items():
            cache.shared.plans.append(self._plans[where])

    def _next_use(self, where: str, name: str) -> float:
        with self._changed:
            return self._future.next_use((where, name))

    def begin_block(self, position: Position) -> None:
        """Say that the reader has come to a block, and needs those before it until `release`."""
        found = self._future.look_up(position)
        with self._changed:
            self._future.move_to(position, found)

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
                store.close_shards(
                    keep=lambda key, where=store.cache.where: (where, shard_name(key)) in needed
                )
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._run, daemon=True, name="penstock-mirror")
                for _ in range(_THREADS)
            ]
            for thread in self._threads:
                thread.start()

    def __enter__(self) -> "Mirror":
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for where, cache in self._caches.items():
            cache.shared.plans.remove(self._plans[where])

    def _run(self) -> None:
        use: Use | None = ("", "")
        while use is not None:
            try:
                if (use := self._wait_for_task()) is not None:
                    cache, file = self._future.files[use]
                    cache.fetch(file, has_room=True)
            except (
                PenstockError
            ) as error:  # the reader fetches what it needs, and raises what it meets
                with self._changed:
                    if self._failed_at != self._future.now:
                        _log.warning("shards are not fetched ahead until the next block: %s", error)
                    self._failed_at = self._future.now
            finally:
                with self._changed:
                    self._busy -= {use}

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
        if self._failed_at == self._future.now:
            return None
        while (block := self._future.block(number)) is not None:
            position, uses = block
            if self._end is not None and position.epoch >= self._end:
                return None
            for place in range(first, len(uses)):
                cache, file = self._future.files[uses[place]]
                if uses[place] not in self._busy and not cache.has_copy(file):
                    may_remove = (
                        number <= self._future.now + 1
                        or self._num_ahead(number) <= cache.budget // _PART_OF_MIRROR
                    )
                    has_room = cache.make_room(
                        file.name,
                        file.size or 0,
                        before=float(number - self._future.latest) if may_remove else inf,
                    )
                    self._place = (number, place + has_room)
                    if not has_room:
                        return None
                    self._busy.add(uses[place])
                    return uses[place]
            number = number + 1
            first = 0
            self._place = (number, first)
        return None

    def _num_ahead(self, number: int) -> int:
        """Bytes of the shards that blocks after the present one need, up to block `number`."""
        blocks = self._future.blocks[self._future.now + 1 : number + 1]
        return sum(
            self._future.files[use][1].size or 0
            for use in {use for _, uses in blocks for use in uses}
        )
