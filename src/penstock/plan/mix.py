"""How many samples does each source give to a block?  Exact shares in every block, nothing lost in rounding, random access.

Without weights an epoch is every sample of every source, each source spread evenly over the blocks.  With weights a block is a goal,
in rows (samples) or tokens that reach a row, and each source gives samples until its share of the goal is reached.  Goals are counted
from the start of the run and rounded once: after every block each source is within one sample of its share, and rounding never adds up.
Samples that are dropped count for nothing: shares are shares of what is delivered.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import ceil, floor

import numpy as np

from penstock.errors import PlanError
from penstock.plan.shuffle import SourceOrder
from penstock.types import Ints

_FIRST_BLOCK = 1024  # samples; where blocks grow, the first epoch's begin with this
_MOST_SAMPLES = 1 << 40  # of an epoch; an epoch of more is a mistake in a weight
_TOKENS_PER_SAMPLE = 512  # turns a block's number of samples into a goal of tokens when mixing by tokens
_CHUNK = 1 << 16  # samples whose contributions are learned at once


@dataclass(frozen=True, slots=True)
class Shares:
    """Places start..stop that each source gives to one block, counted over all of that source's epochs."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]


class Concatenation:
    """No weights: an epoch is every sample of every source once.  Looks at no lengths."""

    def __init__(self, num_samples: list[int], *, block: int, ramp: bool) -> None:
        self._num_samples = num_samples
        self._block = block
        self._ramp = ramp
        self._borders = lru_cache(maxsize=2)(self._make_borders)

    def shares(self, epoch: int, block: int) -> Shares | None:
        """What block `block` of `epoch` is made of; None past the epoch's end."""
        borders = self._borders(self._ramp and epoch == 0)
        if block >= len(borders) - 1:
            return None
        return Shares(self._places(epoch, borders[block]), self._places(epoch, borders[block + 1]))

    def _places(self, epoch: int, border: int) -> tuple[int, ...]:
        total = sum(self._num_samples)
        return tuple(epoch * n + (2 * n * border + total) // (2 * total) for n in self._num_samples)

    def _make_borders(self, ramp: bool) -> list[int]:
        return block_borders(sum(self._num_samples), self._block, ramp=ramp)


def block_borders(total: int, block: int, *, ramp: bool) -> list[int]:
    """0 = t0 < t1 < … = total.  A last block of less than half its neighbour joins it: small blocks pack badly."""
    borders = [0]
    size = min(_FIRST_BLOCK, block) if ramp else block
    while borders[-1] < total:
        borders.append(min(borders[-1] + size, total))
        size = min(size * 2, block)
    if len(borders) > 2 and 2 * (borders[-1] - borders[-2]) < borders[-2] - borders[-3]:
        del borders[-2]
    return borders


class WeightedMix:
    """Weights: block b of an epoch has a known goal, and what samples contribute is learned as far as needed."""

    def __init__(
        self, clocks: "list[Clock]", weights: list[Fraction], *, by_tokens: bool, block: int, ramp: bool, stop: str
    ) -> None:
        total, unit = sum(weights, Fraction(0)), _TOKENS_PER_SAMPLE if by_tokens else 1
        self._clocks = clocks
        self._weights = [w / total for w in weights]
        self._block = block * unit
        self._first = min(_FIRST_BLOCK, block) * unit if ramp else self._block
        self._stop = stop
        self._end: Fraction | None = None  # the goal of an epoch, once known
        self._refuse_absurd()

    def _refuse_absurd(self) -> None:
        passes = [clock.num_samples / w for clock, w in zip(self._clocks, self._weights, strict=True)]
        if (samples := min(passes) if self._stop == "first" else max(passes)) > _MOST_SAMPLES:
            raise PlanError(
                f"an epoch would take {float(samples):.3g} samples until every source has been through; "
                f"raise the smallest weight, or choose stop='first'"
            )

    def shares(self, epoch: int, block: int) -> Shares | None:
        """What block `block` of `epoch` is made of; None past the epoch's end."""
        start = epoch * self._epoch_goal() if epoch else Fraction(0)
        low, high = self._goal(epoch, block), self._goal(epoch, block + 1)
        reach = high + Fraction(high - low, 2)  # a rest of less than half a block joins it: small blocks pack badly
        end = self._end_up_to(reach)
        if end is not None and block and end < low + Fraction(low - self._goal(epoch, block - 1), 2):
            return None
        return Shares(self._places(start + low), self._places(start + (high if end is None or end == reach else end)))

    def _goal(self, epoch: int, block: int) -> Fraction:
        """What is wanted before block `block`, counted from the epoch's start: sizes double until they reach the full block."""
        goal, size = 0, self._first if epoch == 0 else self._block
        while block and size < self._block:
            goal, size, block = goal + size, min(2 * size, self._block), block - 1
        return Fraction(goal + block * self._block)

    def _places(self, goal: Fraction) -> tuple[int, ...]:
        return tuple(clock.place(goal * w) for clock, w in zip(self._clocks, self._weights, strict=True))

    def _end_up_to(self, goal: Fraction) -> Fraction | None:
        """The goal of an epoch if it is at most `goal`: what the first (or last) source has to give, over its weight."""
        if self._end is None:
            passes = [clock.total_if_at_most(goal * w) for clock, w in zip(self._clocks, self._weights, strict=True)]
            ends = [total / w for total, w in zip(passes, self._weights, strict=True) if total is not None]
            if self._stop == "first" and ends:
                self._end = min(ends)
            elif self._stop == "all" and len(ends) == len(self._clocks):
                self._end = max(ends)
        return self._end if self._end is not None and self._end <= goal else None

    def _epoch_goal(self) -> Fraction:
        goal = Fraction(self._block)
        while self._end_up_to(goal) is None:
            goal *= 2
        assert self._end is not None
        return self._end


class Clock:
    """How many samples of one source contribute a given amount?  Learns contributions chunk by chunk, as far as asked.

    A contribution is the tokens of a sample that reach a row, or 1 for a sample that reaches one at all.
    """

    def __init__(self, order: SourceOrder, contribution: Callable[[Ints], Ints]) -> None:
        self._order = order
        self._contribution = contribution
        self._total: int | None = (
            None  # of one epoch of the source, once it was walked; the order does not change the sum
        )
        self._chunk_ends = lru_cache(maxsize=None)(self._new_chunk_ends)
        self._borders = lru_cache(maxsize=4)(self._make_borders)
        self._running = lru_cache(maxsize=4)(self._make_running)

    @property
    def num_samples(self) -> int:
        return self._order.num_samples

    def place(self, amount: Fraction) -> int:
        """The smallest number of samples that contribute at least `amount`, and the dropped samples right after them."""
        epoch = 0
        if (total := self.total_if_at_most(amount)) is not None:
            epoch, amount = divmod(amount, total)
        base = epoch * self.num_samples
        if amount <= 0:
            return base
        borders, chunk = self._borders(epoch), self._chunk_with(epoch, amount)
        running = self._running(epoch, chunk)
        before = self._chunk_end(epoch, chunk - 1) if chunk else 0
        reached = int(np.searchsorted(running, ceil(amount - before), side="left"))
        count = int(np.searchsorted(running, running[reached], side="right"))
        while borders[chunk] + count == borders[chunk + 1] < self.num_samples:
            chunk += 1  # dropped samples may open the next chunk
            count = int(np.searchsorted(self._running(epoch, chunk), 0, side="right"))
        return base + int(borders[chunk]) + count

    def total_if_at_most(self, amount: Fraction) -> int | None:
        """The contribution of one epoch of this source if it is at most `amount`; else None, without reading on."""
        if self._total is None:
            num_chunks = self._borders(0).size - 1
            if num_chunks and self._chunk_with(0, Fraction(floor(amount) + 1)) < num_chunks:
                return None
            total = self._chunk_end(0, num_chunks - 1) if num_chunks else 0
            if not total:
                raise PlanError(
                    f"source {self._order.name!r}: all {self.num_samples:,} samples are empty or dropped, so it cannot give its "
                    f"share; leave it out of the mixture, or raise max_length or set overflow if they are too long"
                )
            self._total = total
        return self._total if self._total <= amount else None

    def _chunk_with(self, epoch: int, amount: Fraction) -> int:
        """The first chunk of an epoch at whose end at least `amount` is contributed; the number of chunks if there is none."""
        num_chunks = self._borders(epoch).size - 1
        ends = self._chunk_ends(epoch)
        while len(ends) < num_chunks and (not ends or ends[len(ends) - 1] < amount):
            self._chunk_end(epoch, len(ends))
        return bisect_left(range(len(ends)), ceil(amount), key=lambda chunk: ends[chunk])

    def _chunk_end(self, epoch: int, chunk: int) -> int:
        """What is contributed up to the end of a chunk, counted from the start of the source's epoch."""
        ends = self._chunk_ends(epoch)
        for number in range(min(len(ends), chunk), chunk + 1):
            if number not in ends:
                running = self._running(epoch, number)
                # Kept by number, not appended: a thread that reads ahead and one that asks for the length write the same.
                ends[number] = (ends[number - 1] if number else 0) + (int(running[-1]) if running.size else 0)
        return ends[chunk]

    def _new_chunk_ends(self, epoch: int) -> dict[int, int]:
        return {}

    def _make_borders(self, epoch: int) -> Ints:
        """Places at which a chunk begins.  A chunk lies in one window, so that it needs no other window's shards."""
        windows = self._order.window_borders(epoch).tolist()
        starts = [np.arange(low, high, _CHUNK) for low, high in pairwise(windows)]
        return np.concatenate([*starts, [self.num_samples]]).astype(np.int64)

    def _make_running(self, epoch: int, chunk: int) -> Ints:
        """Running sum of contributions over the samples of a chunk, in order."""
        borders = self._borders(epoch) + epoch * self.num_samples
        return np.cumsum(self._contribution(self._order.samples(int(borders[chunk]), int(borders[chunk + 1]))))
