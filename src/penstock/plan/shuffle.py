"""The order in which one source gives its samples: shards permuted, then the samples of a window of shards permuted together.

Random access: place k of an epoch → sample id in O(log shards), with O(shards) memory.  A source counts its own epochs: place
k ≥ len(source) lies in a later one.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from penstock.plan.permutation import Permutation, derive
from penstock.plan.settings import PlanSettings
from penstock.types import Ints


class SourceOrder:
    """The endless sequence of one source's sample ids, epoch after epoch."""

    def __init__(
        self, name: str, shard_sizes: Ints, settings: PlanSettings, *, first_epoch: int = 0
    ) -> None:
        """first_epoch: the one with which places begin."""
        self.name = name
        self._first_epoch = first_epoch
        self.shard_sizes = np.ascontiguousarray(shard_sizes, np.int64)
        self.num_samples = int(self.shard_sizes.sum())
        self._shard_starts = np.concatenate(([0], np.cumsum(self.shard_sizes)))
        self._seed = settings.seed
        self._shuffle = settings.shuffle
        self._borders = settings.window_borders(
            self.shard_sizes.size
        )  # windows, in the shard order
        self._epoch_layout = lru_cache(maxsize=4)(
            self._make_epoch_layout
        )  # an epoch's end and the next one's start
        self.window_borders = lru_cache(maxsize=4)(self._make_borders)
        self._window_permutation = lru_cache(maxsize=4)(self._make_window_permutation)

    def samples(self, start: int, stop: int) -> Ints:
        """Return the sample ids at places start..stop, counted over all epochs of this source."""
        assert start == stop or self.num_samples, "places of an empty source"
        if self.num_samples == 1:  # the most repeated kind of source has only one order
            return np.zeros(stop - start, np.int64)
        parts = [self._epoch_samples(*part) for part in self._epochs(start, stop)]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def pass_borders(self, start: int, stop: int) -> Ints:
        """Return the places after `start` and before `stop` at which a new pass over the source begins."""
        first = (start // max(self.num_samples, 1) + 1) * self.num_samples
        return np.arange(first, stop, max(self.num_samples, 1), dtype=np.int64)

    def shards(self, start: int, stop: int) -> Ints:
        """Return the shards whose lengths are needed for places start..stop, in the order in which they are first needed."""
        found = [np.empty(0, np.int64)]
        for epoch, first, last in self._epochs(start, stop):
            order, ends = self._epoch_layout(epoch)
            borders = np.arange(self.shard_sizes.size + 1)
            if (
                self._shuffle
            ):  # a window's samples are mixed, so any of its places may need any of its shards
                borders = self._borders
            low, high = (
                int(np.searchsorted(ends[borders[1:] - 1], x, side="right"))
                for x in (first, last - 1)
            )
            found.append(order[borders[low] : borders[high + 1]])
        shards = np.concatenate(found)
        return shards[np.sort(np.unique(shards, return_index=True)[1])]

    def _epochs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (epoch, first, last) for the part of places start..stop that lies in each epoch."""
        while start < stop:
            epoch, first = divmod(start, self.num_samples)
            last = min(first + stop - start, self.num_samples)
            yield epoch, first, last
            start += last - first

    def _make_borders(self, epoch: int) -> Ints:
        """Return the places inside an epoch at which windows begin; the last entry is the epoch's length."""
        _, ends = self._epoch_layout(epoch)
        return np.concatenate(([0], ends))[self._borders]

    def _epoch_samples(self, epoch: int, start: int, stop: int) -> Ints:
        if not self._shuffle:
            return np.arange(start, stop, dtype=np.int64)
        order, ends = self._epoch_layout(epoch)
        borders = self.window_borders(epoch)
        places = np.arange(start, stop, dtype=np.int64)
        low, high = np.searchsorted(borders, (start, stop - 1), side="right").tolist()
        for window in range(low - 1, high):
            first = int(borders[window])
            end = int(borders[window + 1])
            mine = places[max(first - start, 0) : end - start]
            mine[:] = self._window_permutation(epoch, window, end - first)[mine - first] + first
        turn = np.searchsorted(
            ends, places, side="right"
        )  # position of the shard in the epoch's order
        shard = order[turn]
        return places - (ends[turn] - self.shard_sizes[shard]) + self._shard_starts[shard]

    def _make_epoch_layout(self, epoch: int) -> tuple[Ints, Ints]:
        """Return (shard order, place at which each of these shards ends)."""
        order = np.arange(self.shard_sizes.size, dtype=np.int64)
        if self._shuffle:
            seed = derive(self._seed, "shuffle", self.name, self._first_epoch + epoch, "shards")
            order = Permutation(order.size, seed).index(order)
        return order, np.cumsum(self.shard_sizes[order])

    def _make_window_permutation(self, epoch: int, window: int, size: int) -> Permutation:
        seed = derive(self._seed, "shuffle", self.name, self._first_epoch + epoch, "window", window)
        return Permutation(size, seed)
