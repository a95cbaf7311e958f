"""In which order does one source give its samples?  Shards permuted, then the samples of a window of shards permuted together.

Random access: place k of an epoch → sample id in O(log shards), with O(shards) memory.  A source counts its own epochs: place
k ≥ len(source) lies in a later one.
"""

from functools import lru_cache

import numpy as np

from penstock.plan.permute import Permutation
from penstock.plan.seeds import derive
from penstock.types import Ints


class SourceOrder:
    """The endless sequence of one source's sample ids, epoch after epoch."""

    def __init__(self, name: str, shard_sizes: Ints, *, seed: int, shuffle: bool, borders: Ints) -> None:
        """`borders`: places in the shard order at which a window begins, and its length (`PlanSettings.window_borders`)."""
        self.name = name
        self.shard_sizes = np.ascontiguousarray(shard_sizes, np.int64)
        self.num_samples = int(self.shard_sizes.sum())
        self._shard_starts = np.concatenate(([0], np.cumsum(self.shard_sizes)))
        self._seed = seed
        self._shuffle = shuffle
        self._borders = borders
        self._epoch_layout = lru_cache(maxsize=4)(self._make_epoch_layout)  # an epoch's end and the next one's start
        self.window_borders = lru_cache(maxsize=4)(self._make_borders)
        self._window_permutation = lru_cache(maxsize=4)(self._make_window_permutation)

    def samples(self, start: int, stop: int) -> Ints:
        """Sample ids at places start..stop, counted over all epochs of this source."""
        assert start == stop or self.num_samples, "places of an empty source"
        if self.num_samples == 1:  # the most repeated kind of source has but one order
            return np.zeros(stop - start, np.int64)
        out = np.empty(stop - start, np.int64)
        place = start
        while place < stop:
            epoch, first = divmod(place, self.num_samples)
            count = min(stop - place, self.num_samples - first)
            out[place - start : place - start + count] = self._epoch_samples(epoch, first, first + count)
            place += count
        return out

    def shards(self, start: int, stop: int) -> Ints:
        """Shards whose lengths are needed for places start..stop, in the order in which they are first needed."""
        found: list[Ints] = []
        place = start
        while place < stop:
            epoch, first = divmod(place, self.num_samples)
            last = min(first + stop - place, self.num_samples)
            (order, ends), borders = self._epoch_layout(epoch), self._borders
            if self._shuffle:  # a window's samples are mixed, so any of its places may touch any of its shards
                low, high = (int(np.searchsorted(ends[borders[1:] - 1], x, side="right")) for x in (first, last - 1))
                found.append(order[borders[low] : borders[high + 1]])
            else:
                low, high = (int(np.searchsorted(ends, x, side="right")) for x in (first, last - 1))
                found.append(order[low : high + 1])
            place += last - first
        shards = np.concatenate(found) if found else np.empty(0, np.int64)
        return shards[np.sort(np.unique(shards, return_index=True)[1])]

    def _make_borders(self, epoch: int) -> Ints:
        """Places, inside an epoch, at which a window begins; the last entry is the epoch's length."""
        _, ends = self._epoch_layout(epoch)
        return np.concatenate(([0], ends))[self._borders]

    def _epoch_samples(self, epoch: int, start: int, stop: int) -> Ints:
        if not self._shuffle:
            return np.arange(start, stop, dtype=np.int64)
        order, ends = self._epoch_layout(epoch)
        window_ends = ends[self._borders[1:] - 1]
        out = np.empty(stop - start, np.int64)
        place = start
        while place < stop:
            window = int(np.searchsorted(window_ends, place, side="right"))
            window_start = int(window_ends[window - 1]) if window else 0
            last = min(stop, int(window_ends[window]))
            permutation = self._window_permutation(epoch, window, int(window_ends[window]) - window_start)
            within = permutation[np.arange(place - window_start, last - window_start, dtype=np.int64)] + window_start
            turn = np.searchsorted(ends, within, side="right")  # which shard of the epoch's order
            shard = order[turn]
            out[place - start : last - start] = (
                within - (ends[turn] - self.shard_sizes[shard]) + self._shard_starts[shard]
            )
            place = last
        return out

    def _make_epoch_layout(self, epoch: int) -> tuple[Ints, Ints]:
        """(shard order, running end place after each of them)."""
        num_shards = self.shard_sizes.size
        order = np.arange(num_shards, dtype=np.int64)
        if self._shuffle:
            order = Permutation(num_shards, derive(self._seed, "shuffle", self.name, epoch, "shards")).index(order)
        return order, np.cumsum(self.shard_sizes[order])

    def _make_window_permutation(self, epoch: int, window: int, size: int) -> Permutation:
        return Permutation(size, derive(self._seed, "shuffle", self.name, epoch, "window", window))
