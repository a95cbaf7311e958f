"""How many samples each source gives to a block: exact shares in every block, no accumulated rounding, random access.

Without weights an epoch is every sample of every source, each source spread evenly over the blocks.  With weights a block is a goal,
in rows (samples) or tokens that reach a row, and each source gives samples until its share of the goal is reached.  Goals are counted
from the start of the run and rounded once: after every block each source is within one sample of its share.  Dropped samples do not
count: shares are shares of what is delivered.

The first epoch takes the first part of each source's order, which after a change of mixture is what was left of its pass; each later
epoch takes a whole pass.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import ceil, floor
from typing import NamedTuple, Protocol

import numpy as np

from penstock.errors import PlanError
from penstock.plan.order import SourceOrder
from penstock.plan.settings import PlanSettings
from penstock.types import Ints

_FIRST_BLOCK = 1024  # samples; where blocks grow, the first epoch begins with this size
_MOST_SAMPLES = 1 << 40  # in an epoch; more is a mistake in a weight
_TOKENS_PER_SAMPLE = 512  # makes a goal of tokens from a block's number of samples
_CHUNK = 1 << 16  # samples whose contributions are learned at once

# How much each of these samples of a source adds to its share: tokens that reach a row, or 1 if any does.
Contribution = Callable[[int, Ints], Ints]


class Shares(NamedTuple):
    """Places start..stop that each source gives to one block, counted from the start of its order."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]


class Mix(Protocol):
    """How an epoch takes samples from its sources."""

    def has(self, epoch: int, block: int) -> bool:
        """Whether an epoch has a block of this number."""

    def shares(self, epoch: int, block: int) -> Shares | None:
        """Return what block `block` of `epoch` holds; None past the epoch's end."""


class Concatenation:
    """Without weights, an epoch is every sample of every source once.  Needs no lengths."""

    def __init__(self, orders: Sequence[SourceOrder], settings: PlanSettings) -> None:
        first_block = _FIRST_BLOCK if settings.is_local else settings.block
        self._first_sizes = [order.num_first for order in orders]
        self._sizes = [order.num_samples for order in orders]
        self._first_borders = _block_borders(sum(self._first_sizes), settings.block, first_block)
        self._borders = _block_borders(sum(self._sizes), settings.block, settings.block)

    def shares(self, epoch: int, block: int) -> Shares | None:
        """Return what block `block` of `epoch` holds; None past the epoch's end."""
        borders = self._borders if epoch else self._first_borders
        if block >= len(borders) - 1:
            return None
        return Shares(self._places(epoch, borders[block]), self._places(epoch, borders[block + 1]))

    def has(self, epoch: int, block: int) -> bool:
        return block < len(self._borders if epoch else self._first_borders) - 1

    def _places(self, epoch: int, border: int) -> tuple[int, ...]:
        """Return the places of all sources before a border of blocks, each in proportion to its size, rounded."""
        sizes = self._sizes if epoch else self._first_sizes
        total = (self._borders if epoch else self._first_borders)[-1]
        places = []
        for first_size, size, part in zip(self._first_sizes, self._sizes, sizes, strict=True):
            start = first_size + (epoch - 1) * size if epoch else 0
            places.append(start + (2 * part * border + total) // (2 * total))
        return tuple(places)


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

    def __init__(
        self, orders: Sequence[SourceOrder], settings: PlanSettings, contribution: Contribution
    ) -> None:
        weights = settings.exact_weights() or []
        if len(weights) != len(orders):
            raise PlanError(
                f"{len(weights)} weights for {len(orders)} sources, expected one for each"
            )
        for order in orders:
            if not order.num_samples:
                raise PlanError(
                    f"source {order.name!r} has a weight but no samples; leave it out of the mixture"
                )
        self._weights = [weight / sum(weights) for weight in weights]
        self._clocks = [Clock(order, number, contribution) for number, order in enumerate(orders)]
        unit = _TOKENS_PER_SAMPLE if settings.mix_by == "tokens" else 1
        self._block = settings.block * unit
        self._first = min(_FIRST_BLOCK, settings.block) * unit if settings.is_local else self._block
        self._ends_with_all = settings.stopping_strategy == "all_exhausted"
        # The goal of the first epoch and of a later one, once known.
        self._ends: dict[bool, Fraction] = {}
        self._refuse_huge_epoch(orders)

    def _refuse_huge_epoch(self, orders: Sequence[SourceOrder]) -> None:
        passes = [
            order.num_samples / weight for order, weight in zip(orders, self._weights, strict=True)
        ]
        samples = max(passes) if self._ends_with_all else min(passes)
        if samples > _MOST_SAMPLES:
            raise PlanError(
                f"an epoch would take {float(samples):.3g} samples until every source is used up; "
                f"raise the smallest weight, or choose stopping_strategy='first_exhausted'"
            )

    def shares(self, epoch: int, block: int) -> Shares | None:
        """Return what block `block` of `epoch` holds; None past the epoch's end."""
        low = self._goal(epoch, block)
        high = self._goal(epoch, block + 1)
        # A rest of less than half a block joins the block before it: small blocks pack badly.
        reach = high + Fraction(high - low, 2)
        end = self._end_up_to(reach, is_first=epoch == 0)
        if end is not None and block:
            least = low + Fraction(low - self._goal(epoch, block - 1), 2)
            if end < least:
                return None
        is_last = end is not None and end < reach
        stop = end if end is not None and is_last else high
        start = self._start(epoch)
        return Shares(self._places(start + low), self._places(start + stop))

    def has(self, epoch: int, block: int) -> bool:
        return self.shares(epoch, block) is not None

    def _start(self, epoch: int) -> Fraction:
        """Return the goals of all epochs before this one together."""
        if not epoch:
            return Fraction(0)
        return self._epoch_goal(is_first=True) + (epoch - 1) * self._epoch_goal(is_first=False)

    def _goal(self, epoch: int, block: int) -> Fraction:
        """Return the goal before block `block`, counted from the epoch's start: sizes double until they reach the full block."""
        goal = 0
        size = self._first if epoch == 0 else self._block
        while block and size < self._block:
            goal += size
            size = min(2 * size, self._block)
            block -= 1
        return Fraction(goal + block * self._block)

    def _places(self, goal: Fraction) -> tuple[int, ...]:
        pairs = zip(self._clocks, self._weights, strict=True)
        return tuple(clock.place(goal * weight) for clock, weight in pairs)

    def _end_up_to(self, goal: Fraction, *, is_first: bool) -> Fraction | None:
        """Return the goal of an epoch if it is at most `goal`: what the first (or last) source can give, over its weight."""
        if is_first not in self._ends:
            ends = []
            for clock, weight in zip(self._clocks, self._weights, strict=True):
                total = clock.total_if_at_most(goal * weight, is_first=is_first)
                if total is not None:
                    ends.append(total / weight)
            if ends and not self._ends_with_all:
                self._ends[is_first] = min(ends)
            elif len(ends) == len(self._clocks):
                self._ends[is_first] = max(ends)
        end = self._ends.get(is_first)
        return end if end is not None and end <= goal else None

    def _epoch_goal(self, *, is_first: bool) -> Fraction:
        goal = Fraction(self._block)
        while True:
            end = self._end_up_to(goal, is_first=is_first)
            if end is not None:
                return end
            goal *= 2


class Clock:
    """Finds how many samples of one source contribute a given amount; learns contributions chunk by chunk, as far as needed.

    The order is read in parts: its first part is number 0, and the passes after it are 1, 2, ….
    Two threads may fill the tables at once: both write the same values under the same keys.
    """

    def __init__(self, order: SourceOrder, source: int, contribution: Contribution) -> None:
        self._order = order
        self._source = source
        self._contribution = contribution
        self._totals: dict[int, int] = {}  # of parts 0 and 1; all passes contribute the same
        # part → chunk → contributed from the start of the part to the end of the chunk
        self._chunk_ends: defaultdict[int, dict[int, int]] = defaultdict(lambda: {-1: 0})
        self._borders = lru_cache(maxsize=4)(self._make_borders)
        self._running = lru_cache(maxsize=4)(self._make_running)

    def place(self, amount: Fraction) -> int:
        """Return the smallest number of samples that contribute at least `amount`, plus the dropped samples right after them."""
        if amount <= 0:
            return 0
        part = 0
        first_total = self._sum_if_at_most(0, amount)
        if first_total is not None:
            part = 1
            amount -= first_total
            if amount:
                total = self._pass_total_if_at_most(amount)
                if total is not None:
                    passes, amount = divmod(amount, total)
                    part += passes
        return self._start(part) + self._place_in(part, amount)

    def total_if_at_most(self, amount: Fraction, *, is_first: bool) -> int | None:
        """Return what the first part, or each pass after it, contributes, if that is at most `amount`; else None, without reading on.

        A first part without any contribution counts with the pass after it.
        """
        if not is_first:
            return self._pass_total_if_at_most(amount)
        total = self._sum_if_at_most(0, amount)
        return self._pass_total_if_at_most(amount) if total == 0 else total

    def _place_in(self, part: int, amount: Fraction) -> int:
        """As `place`, inside a part that contributes more than `amount`."""
        if amount <= 0:
            return 0
        borders = self._borders(part)
        size = borders[-1]
        chunk = self._chunk_with(part, amount)
        running = self._running(part, chunk)
        missing = ceil(amount - self._chunk_ends[part][chunk - 1])
        reached = int(np.searchsorted(running, missing, side="left"))
        count = int(np.searchsorted(running, running[reached], side="right"))
        while borders[chunk] + count == borders[chunk + 1] < size:
            chunk += 1  # dropped samples may open the next chunk
            count = int(np.searchsorted(self._running(part, chunk), 0, side="right"))
        return int(borders[chunk]) + count

    def _pass_total_if_at_most(self, amount: Fraction) -> int | None:
        total = self._sum_if_at_most(0 if self._order.begins_with_pass else 1, amount)
        if total == 0:
            raise PlanError(
                f"source {self._order.name!r}: all {self._order.num_samples:,} samples are empty or dropped, so it cannot fill its share; "
                f"leave it out of the mixture, or raise max_length or set on_overlong if they are too long"
            )
        return total

    def _sum_if_at_most(self, part: int, amount: Fraction) -> int | None:
        """Return what a part contributes if it is at most `amount`; else None, without reading on."""
        if part not in self._totals:
            num_chunks = self._borders(part).size - 1
            if self._chunk_with(part, Fraction(floor(amount) + 1)) < num_chunks:
                return None
            self._totals[part] = self._chunk_ends[part][num_chunks - 1]
        total = self._totals[part]
        return total if total <= amount else None

    def _chunk_with(self, part: int, amount: Fraction) -> int:
        """Return the first chunk of a part at whose end at least `amount` is contributed; the number of chunks if there is none."""
        num_chunks = self._borders(part).size - 1
        ends = self._chunk_ends[part]
        last = len(ends) - 2
        while last < num_chunks - 1 and ends[last] < amount:
            last += 1
            ends[last] = ends[last - 1] + int(self._running(part, last)[-1])
        return bisect_left(range(last + 1), ceil(amount), key=lambda chunk: ends[chunk])

    def _start(self, part: int) -> int:
        """Return the place at which a part begins."""
        return self._order.num_first + (part - 1) * self._order.num_samples if part else 0

    def _make_borders(self, part: int) -> Ints:
        """Return where chunks begin.  A chunk lies in one window, so that it needs the shards of that window only."""
        windows = self._order.window_borders(part).tolist()
        starts = [np.arange(low, high, _CHUNK) for low, high in pairwise(windows)]
        return np.concatenate([*starts, windows[-1:]]).astype(np.int64)

    def _make_running(self, part: int, chunk: int) -> Ints:
        """Return the running sum of contributions over the samples of a chunk."""
        first, last = (self._borders(part)[chunk : chunk + 2] + self._start(part)).tolist()
        samples = self._order.samples(first, last)
        return np.cumsum(self._contribution(self._source, samples))
