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
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from penstock.cache import Fetch
from penstock.cache.cache import explained
from penstock.errors import PenstockError, PlanError
from penstock.extras.remote.requests import guard_against_fork
from penstock.extras.remote.settings import MirrorSettings
from penstock.plan.mix import Shares
from penstock.plan.plan import Plan, Position
from penstock.plan.segments import Blocks
from penstock.plan.settings import PlanSettings
from penstock.settings import taken
from penstock.store.shards import shard_name
from penstock.store.supply import Following, Supply
from penstock.words import size as in_words

_THREADS = 4
# What shards for blocks after the next one may take from shards that are kept: this part of the mirror; in a small mirror
# a larger part, but no more shards than are fetched at once.
_PART_OF_MIRROR = 16
_PART_OF_SMALL_MIRROR = 3
_JOIN_SECONDS = 5.0  # one that waits for the network longer ends by itself
# blocks looked ahead; with weights, each costs the lengths of its samples
_HORIZON = 1 << 16
_WEIGHTED_HORIZON = 256
_PART_OF_BLOCK = 8
_TWO_BLOCKS = 2
_WINDOWS_IN_USE = 3  # the one that is left, the present one, and the one that is fetched
_WINDOWS = [1 << power for power in range(10, -1, -1)]  # what shuffle_window="auto" may become

_log = logging.getLogger("penstock")

Use = tuple[str, str]  # the URL of a cache, and the name of a shard in it


def is_mirrored(store: Any) -> bool:
    """Whether the shards of a complete store are in a bucket."""
    return bool(store.manifest) and store.cache.is_remote


class Traffic:
    """What was asked of buckets since this was made, by this process."""

    def __init__(self, stores: Sequence[Any]) -> None:
        self._caches = {id(store.cache): store.cache for store in stores if is_mirrored(store)}
        self._start = self._sums()

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


class MirrorSupply:
    """Fetches the shards of stores in buckets before they are read."""

    fork_safe = False  # this process has made requests, so a forked one could make none

    def __init__(self, stores: Sequence[Any], mirror_bytes: int | None) -> None:
        self._stores = stores
        self._mirrored = [store for store in stores if is_mirrored(store)]
        if mirror_bytes is not None:
            for store in self._mirrored:
                store.cache.mirror_bytes = mirror_bytes
        self._traffic = Traffic(stores)

    def check(
        self, order: PlanSettings, *, rows_per_step: int, saved: int | str | None = None
    ) -> PlanSettings:
        """Return settings under which the mirror holds what is read at once; refuse others.

        shuffle_window="auto" becomes a window that fits.

        "auto" depends on `mirror_bytes` as it is given and on sizes, never on the free disk of this machine or on ranks: all of them
        choose the same.  A run that resumes keeps the window that it began with.
        """
        if saved is not None:
            order = replace(order, shuffle_window=saved)
        elif order.shuffle_window == "auto" and order.shuffle and self._is_given:
            order = self._fit(order)
        self._refuse_small(order)
        return order

    @property
    def _is_given(self) -> bool:
        return all(store.cache.mirror_bytes is not None for store in self._mirrored)

    def _fit(self, order: PlanSettings) -> PlanSettings:
        """Return the order with the largest window that fits."""
        if not self._too_small(order):
            return order
        windows = [replace(order, shuffle_window=window) for window in _WINDOWS]
        fitting = next((each for each in windows if not self._too_small(each)), windows[-1])
        _log.info(
            "shuffle_window: auto is %d shards, which fit into the mirror", fitting.shuffle_window
        )
        return fitting

    def _too_small(self, order: PlanSettings) -> list[tuple[str, int]]:
        """Return the caches whose mirror is too small for what is read at once, with the bytes that it needs."""
        needed: dict[str, int] = {}
        budgets: dict[str, int] = {}
        for store in self._mirrored:
            where = store.cache.where
            needed[where] = needed.get(where, 0) + bytes_in_use(store, order)
            budgets[where] = store.cache.budget
        return [(where, need) for where, need in needed.items() if need > budgets[where]]

    def _refuse_small(self, order: PlanSettings) -> None:
        for where, need in self._too_small(order):
            budget = next(s.cache.budget for s in self._mirrored if s.cache.where == where)
            smaller = (
                ", or a smaller shuffle_window="
                if order.shuffle and order.shuffle_window != 1
                else ""
            )
            raise PlanError(
                f"{where}: up to {in_words(need)} of shards are needed at once with "
                f"shuffle_window={order.shuffle_window!r}, and the mirror may "
                f"hold {in_words(budget)}; set mirror_bytes={need} or more{smaller}"
            )

    def steps_at_once(self, order: PlanSettings, rows_per_step: int) -> int | None:
        """A small part of a block."""
        return max(1, order.block // _PART_OF_BLOCK // rows_per_step)

    def ahead(
        self, plan: Plan, start: Position, end: int | None
    ) -> AbstractContextManager[Following]:
        for store in self._mirrored:
            with explained("read", store.cache.where):
                # now, and not when the first shard is missing: a lock may be held
                guard_against_fork(store.cache.where)
        return Mirror(plan, self._stores, start, end)

    def traffic(self) -> Mapping[str, float]:
        return self._traffic.as_dict()


class MirrorPlugin:
    """Gives a mirror to stores in buckets."""

    def open(self, stores: Sequence[Any], settings: Mapping[str, Any]) -> Supply | None:
        if not any(map(is_mirrored, stores)):
            return None
        own = MirrorSettings(**taken({**settings}, MirrorSettings))
        return MirrorSupply(stores, own.mirror_bytes)


MIRROR = MirrorPlugin()


def bytes_in_use(store: Any, order: PlanSettings) -> int:
    """Return an upper bound of the bytes of shards that a loop needs at once.

    A loop needs the shards of three windows and those of two blocks, whichever are more.  Any shards may be among them, so the
    largest are counted.
    """
    largest_first = sorted((entry.num_bytes for entry in store.manifest.shards), reverse=True)
    num_shards = len(largest_first)
    if not num_shards:
        return 0
    shards_per_window = 1
    if order.shuffle:
        shards_per_window = int(np.diff(order.window_borders(num_shards)).max())
    shards_in_windows = _WINDOWS_IN_USE * shards_per_window
    samples_per_shard = max(1, len(store) // num_shards)
    full_shards = -(-_TWO_BLOCKS * order.block // samples_per_shard)  # rounded up
    shards_in_blocks = full_shards + 2  # the blocks may begin and end inside a shard
    return sum(largest_first[: max(shards_in_windows, shards_in_blocks)])


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

    def begin(self, position: Position) -> None:
        """Say that the reader has come to a block, and needs those before it until `chunk_made`."""
        found = self._future.look_up(position)
        with self._changed:
            self._future.move_to(position, found)

    def chunk_made(self) -> None:
        """Close what only the blocks before the last one needed, and fetch for the blocks after it.  Fetches begin with the first call:
        the first batch does not share the network."""
        if self._threads and self._future.now == self._future.latest:
            return  # an earlier chunk of this block has done it
        with self._changed:
            self._future.now = self._future.latest
            self._place = (self._future.now, 0)
            needed = self._future.needed()
        for store in self._stores:
            if is_mirrored(store):
                store.close_shards(
                    keep=lambda key, where=store.cache.where: (where, shard_name(key)) in needed
                )
        with self._changed:
            self._changed.notify_all()  # now there is room for what comes next
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
                    may_remove = number <= self._future.now + 1 or self._is_little(
                        number, cache.budget
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

    def _is_little(self, number: int, budget: int) -> bool:
        """Whether the shards for the blocks up to `number` may take room from others, before the reader comes near.

        Each takes the place of one that a later epoch would find here.  But a loop whose threads have only one or two to fetch
        waits for one round trip after the other.
        """
        blocks = self._future.blocks[self._future.now + 1 : number + 1]
        ahead = {use for _, uses in blocks for use in uses} - self._future.needed()
        num_bytes = sum(self._future.files[use][1].size or 0 for use in ahead)
        if num_bytes <= budget // _PART_OF_MIRROR:
            return True
        return len(ahead) <= _THREADS and num_bytes <= budget // _PART_OF_SMALL_MIRROR
