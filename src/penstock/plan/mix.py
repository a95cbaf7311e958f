"""How many samples each source gives to a block: exact shares in every block, no accumulated rounding, random access.

Without weights an epoch is every sample of every source, each source spread evenly over the blocks.  With weights a block is a goal,
in rows (samples) or tokens that reach a row, and each source gives samples until its share of the goal is reached.  Goals are counted
from the start of the run and rounded once: after every block each source is within one sample of its share.  Dropped samples do not
count: shares are shares of what is delivered.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from penstock.errors import PlanError
from penstock.plan.settings import PlanSettings
from penstock.plan.shuffle import SourceOrder
from penstock.types import Ints

_FIRST_BLOCK = 1024  # samples; where blocks grow, the first epoch begins with this size
_MOST_SAMPLES = 1 << 40  # in an epoch; more is a mistake in a weight
_TOKENS_PER_SAMPLE = (
    512  # turns a block's number of samples into a goal of tokens when mixing by tokens
)
_CHUNK = 1 << 16  # samples whose contributions are learned at once


class Shares(NamedTuple):
    """Places start..stop that each source gives to one block, counted over all of that source's epochs."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]


class Concatenation:
    """Without weights, an epoch is every sample of every source once.  Needs no lengths."""

    def __init__(self, clocks: "Sequence[Clock]", settings: PlanSettings) -> None:
        # of the first and of later epochs, which differ after a change of mixture
        self._sizes = [clock.num_first for clock in clocks], [clock.num_samples for clock in clocks]
        firsts = _FIRST_BLOCK if settings.is_local else settings.block, settings.block
        self._borders = [
            self._block_borders(sum(sizes), settings.block, first)
            for sizes, first in zip(self._sizes, firsts, strict=True)
        ]

    def shares(self, epoch: int, block: int) -> Shares | None:
        """Return what block `block` of `epoch` holds; None past the epoch's end."""
        borders = self._borders[epoch > 0]
        if block >= len(borders) - 1:
            return None
        return Shares(self._places(epoch, borders[block]), self._places(epoch, borders[block + 1]))

    def _places(self, epoch: int, border: int) -> tuple[int, ...]:
        sizes = self._sizes[epoch > 0]
        total = self._borders[epoch > 0][-1]
        starts = [
            first + (epoch - 1) * n if epoch else 0 for first, n in zip(*self._sizes, strict=True)
        ]
        return tuple(
            start + (2 * n * border + total) // (2 * total)
            for start, n in zip(starts, sizes, strict=True)
        )

    @staticmethod
    def _block_borders(total: int, block: int, first: int) -> list[int]:
        """Return where blocks begin.  They double from `first` to `block`; a last one of less than half its neighbour joins it."""
        borders = [0]
        size = min(first, block)
        while borders[-1] < total:
            borders.append(min(borders[-1] + size, total))
            size = min(size * 2, block)
        if len(borders) > 2 and 2 * (borders[-1] - borders[-2]) < borders[-2] - borders[-3]:
            del borders[-2]
        return borders


class WeightedMix:
    """With weights, block b of an epoch has a known goal, and what samples contribute is learned as far as needed."""

    def __init__(self, clocks: "Sequence[Clock]", settings: PlanSettings) -> None:
        weights = settings.exact_weights() or []
        if len(weights) != len(clocks):
            raise PlanError(
                f"{len(weights)} weights for {len(clocks)} sources, expected one for each"
            )
        for clock in clocks:
            if not clock.num_samples:
                raise PlanError(
                    f"source {clock.name!r} has a weight but no samples; leave it out of the mixture"
                )
        self._parts = [
            (clock, weight / sum(weights)) for clock, weight in zip(clocks, weights, strict=True)
        ]
        unit = _TOKENS_PER_SAMPLE if settings.mix_by == "tokens" else 1
        self._block = settings.block * unit
        self._first = min(_FIRST_BLOCK, settings.block) * unit if settings.is_local else self._block
        self._ends_with_all = settings.stopping_strategy == "all_exhausted"
        self._ends: dict[
            bool, Fraction
        ] = {}  # the goal of the first and of later epochs, once known
        passes = [clock.num_samples / weight for clock, weight in self._parts]
        if (samples := max(passes) if self._ends_with_all else min(passes)) > _MOST_SAMPLES:
            raise PlanError(
                f"an epoch would take {float(samples):.3g} samples until every source is used up; "
                f"raise the smallest weight, or choose stopping_strategy='first_exhausted'"
            )

    def shares(self, epoch: int, block: int) -> Shares | None:
        """Return what block `block` of `epoch` holds; None past the epoch's end."""
        start = (
            self._epoch_goal(is_first=True) + (epoch - 1) * self._epoch_goal()
            if epoch
            else Fraction(0)
        )
        low = self._goal(epoch, block)
        high = self._goal(epoch, block + 1)
        reach = high + Fraction(
            high - low, 2
        )  # a rest of less than half a block joins it: small blocks pack badly
        end = self._end_up_to(reach, is_first=epoch == 0)
        if (
            end is not None
            and block
            and end < low + Fraction(low - self._goal(epoch, block - 1), 2)
        ):
            return None
        return Shares(
            self._places(start + low),
            self._places(start + (high if end is None or end == reach else end)),
        )

    def _goal(self, epoch: int, block: int) -> Fraction:
        """Return the goal before block `block`, counted from the epoch's start: sizes double until they reach the full block."""
        goal = 0
        size = self._first if epoch == 0 else self._block
        while block and size < self._block:
            goal = goal + size
            size = min(2 * size, self._block)
            block = block - 1
        return Fraction(goal + block * self._block)

    def _places(self, goal: Fraction) -> tuple[int, ...]:
        return tuple(clock.place(goal * weight) for clock, weight in self._parts)

    def _end_up_to(self, goal: Fraction, *, is_first: bool) -> Fraction | None:
        """Return the goal of an epoch if it is at most `goal`: what the first (or last) source can give, over its weight."""
        if is_first not in self._ends:
            totals = [
                (c.total_if_at_most(goal * weight, is_first=is_first), weight)
                for c, weight in self._parts
            ]
            ends = [total / weight for total, weight in totals if total is not None]
            if ends and not self._ends_with_all:
                self._ends[is_first] = min(ends)
            elif len(ends) == len(self._parts):
                self._ends[is_first] = max(ends)
        end = self._ends.get(is_first)
        return end if end is not None and end <= goal else None

    def _epoch_goal(self, *, is_first: bool = False) -> Fraction:
        goal = Fraction(self._block)
        while (end := self._end_up_to(goal, is_first=is_first)) is None:
            goal *= 2
        return end


class Clock:
    """Finds how many samples of one source contribute a given amount; learns contributions chunk by chunk, as far as needed."""

    def __init__(self, order: SourceOrder, contribution: Callable[[Ints], Ints]) -> None:
        self.name = order.name
        self.num_samples = order.num_samples
        self.num_first = order.num_samples
        self._order = order
        self._contribution = contribution
        self._total: int | None = (
            None  # of one epoch of the source, once known; the order does not change the sum
        )
        # epoch → chunk → contributed up to its end
        self._chunk_ends: defaultdict[int, dict[int, int]] = defaultdict(lambda: {-1: 0})
        self._borders = lru_cache(maxsize=4)(self._make_borders)
        self._running = lru_cache(maxsize=4)(self._make_running)

    def place(self, amount: Fraction) -> int:
        """Return the smallest number of samples that contribute at least `amount`, plus the dropped samples right after them."""
        epoch = 0
        if (total := self.total_if_at_most(amount, is_first=True)) is not None:
            epoch, amount = divmod(amount, total)
        base = epoch * self.num_samples
        if amount <= 0:
            return base
        borders = self._borders(epoch)
        chunk = self._chunk_with(epoch, amount)
        running = self._running(epoch, chunk)
        reached = int(
            np.searchsorted(running, ceil(amount - self._chunk_ends[epoch][chunk - 1]), side="left")
        )
        count = int(np.searchsorted(running, running[reached], side="right"))
        while borders[chunk] + count == borders[chunk + 1] < self.num_samples:
            chunk += 1  # dropped samples may open the next chunk
            count = int(np.searchsorted(self._running(epoch, chunk), 0, side="right"))
        return base + int(borders[chunk]) + count

    def total_if_at_most(self, amount: Fraction, *, is_first: bool) -> int | None:
        """Return the contribution of one epoch of this source if it is at most `amount`; else None, without reading on."""
        total = self.sum_if_at_most(amount)
        if total == 0:
            raise PlanError(
                f"source {self.name!r}: all {self.num_samples:,} samples are empty or dropped, so it cannot fill its share; "
                f"leave it out of the mixture, or raise max_length or set on_overlong if they are too long"
            )
        return total

    def sum_if_at_most(self, amount: Fraction) -> int | None:
        """As total_if_at_most, but 0 is a result."""
        if self._total is None:
            num_chunks = self._borders(0).size - 1
            if self._chunk_with(0, Fraction(floor(amount) + 1)) < num_chunks:
                return None
            self._total = self._chunk_ends[0][num_chunks - 1]
        return self._total if self._total <= amount else None

    def _chunk_with(self, epoch: int, amount: Fraction) -> int:
        """Return the first chunk of an epoch at whose end at least `amount` is contributed; the number of chunks if there is none."""
        num_chunks = self._borders(epoch).size - 1
        ends = self._chunk_ends[epoch]
        last = len(ends) - 2
        while last < num_chunks - 1 and ends[last] < amount:
            last += 1
            # by number, not appended: the thread that reads ahead and one that needs the length write the same
            ends[last] = ends[last - 1] + int(self._running(epoch, last)[-1])
        return bisect_left(range(last + 1), ceil(amount), key=lambda chunk: ends[chunk])

    def _make_borders(self, epoch: int) -> Ints:
        """Return where chunks begin.  A chunk lies in one window, so that it needs the shards of that window only."""
        windows = self._order.window_borders(epoch).tolist()
        starts = [np.arange(low, high, _CHUNK) for low, high in pairwise(windows)]
        return np.concatenate([*starts, [self.num_samples]]).astype(np.int64)

    def _make_running(self, epoch: int, chunk: int) -> Ints:
        """Return the running sum of contributions over the samples of a chunk."""
        borders = self._borders(epoch) + epoch * self.num_samples
        return np.cumsum(
            self._contribution(self._order.samples(int(borders[chunk]), int(borders[chunk + 1])))
        )
