"""How many samples does each source give to a block?  Exact shares in every block, nothing lost in rounding, random access.

By rows: an epoch takes a fixed number of samples from each source (its target); after t of T samples a source has given its
target × t / T, rounded, and what rounding left over is carried into the next block.  By tokens: a block is a goal of tokens, and a source
gives samples until its share of that goal is reached; the sample that crosses the line is carried over in the same way.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

import numpy as np

from penstock.errors import PlanError
from penstock.plan.shuffle import SourceOrder
from penstock.types import Ints

_FIRST_BLOCK = 1024  # samples; the first epoch's blocks grow from here, so that the first batch needs little
_MOST_SAMPLES = 1 << 40  # of an epoch; beyond it a weight is a slip of the pen
_TOKENS_PER_SAMPLE = 512  # turns a block's number of samples into a goal of tokens when mixing by tokens


@dataclass(frozen=True, slots=True)
class Shares:
    """Places start..stop that each source gives to one block, counted over all of that source's epochs."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]


class Targets:
    """Samples that each source gives to an epoch: all of them, or in proportion to weights until the first or last one is through."""

    def __init__(self, num_samples: list[int], weights: list[Fraction] | None, stop: str) -> None:
        self._shares = [Fraction(n) for n in num_samples]
        if weights is not None:
            passes = [Fraction(n) / w for n, w in zip(num_samples, weights, strict=True)]
            unit = min(passes) if stop == "first" else max(passes)
            self._shares = [unit * w for w in weights]
        total = sum(self._shares)
        if total > _MOST_SAMPLES:
            raise PlanError(
                f"an epoch would take {float(total):.3g} samples until every source has been through; "
                f"raise the smallest weight, or choose stop='first'"
            )

    def before(self, epoch: int) -> list[int]:
        """Samples given before an epoch.  Rounded once, over all epochs: a share of 0.4 samples is given in the long run, too."""
        return [_round(share * epoch) for share in self._shares]

    def of(self, epoch: int) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.before(epoch), self.before(epoch + 1), strict=True))


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


class RowMix:
    """Shares by rows: block b of an epoch has a known number of samples."""

    def __init__(self, targets: Targets, *, block: int, ramp: bool) -> None:
        self._targets = targets
        self._block = block
        self._ramp = ramp
        self._given = lru_cache(maxsize=4)(self._make_given)

    def shares(self, epoch: int, block: int) -> Shares | None:
        """What block `block` of `epoch` is made of; None past the epoch's end."""
        given = self._given(self._targets.of(epoch), self._ramp and epoch == 0)
        if block >= len(given) - 1:
            return None
        done = self._targets.before(epoch)
        return Shares(
            tuple(d + g for d, g in zip(done, given[block], strict=True)),
            tuple(d + g for d, g in zip(done, given[block + 1], strict=True)),
        )

    def _make_given(self, targets: tuple[int, ...], ramp: bool) -> list[tuple[int, ...]]:
        """Samples given by each source before each block border."""
        total = sum(targets)
        borders = block_borders(total, self._block, ramp=ramp)
        if len(targets) == 1:
            return [(border,) for border in borders]
        given = [tuple(0 for _ in targets)]
        for border in borders[1:]:
            given.append(_largest_remainder(given[-1], targets, border, total))
        return given


def _largest_remainder(given: tuple[int, ...], targets: tuple[int, ...], border: int, total: int) -> tuple[int, ...]:
    """`given`, brought up to `border` samples in all: whole shares first, then one each to the largest remainders."""
    owed = [
        target * border - g * total for target, g in zip(targets, given, strict=True)
    ]  # in units of 1/total samples
    extra = [max(0, o // total) for o in owed]
    seats = border - sum(given) - sum(extra)
    by_remainder = sorted(range(len(targets)), key=lambda s: (extra[s] * total - owed[s], s))
    while seats < 0:  # whole shares beyond the border, possible when blocks are smaller than the number of sources
        for s in reversed(by_remainder):
            if extra[s] and seats < 0:
                extra[s] -= 1
                seats += 1
    while seats > 0:
        for s in by_remainder:
            if (
                seats and given[s] + extra[s] < targets[s]
            ):  # never past the target: at the end all targets are met exactly
                extra[s] += 1
                seats -= 1
    return tuple(g + e for g, e in zip(given, extra, strict=True))


class TokenMix:
    """Shares by tokens: block b of an epoch has a known goal of tokens, and lengths are learned as far as needed."""

    def __init__(
        self, clocks: "list[TokenClock]", weights: list[Fraction], *, block: int, ramp: bool, stop: str
    ) -> None:
        total = sum(weights, Fraction(0))
        self._clocks = clocks
        self._weights = [w / total for w in weights]
        self._block = block * _TOKENS_PER_SAMPLE
        self._first = _FIRST_BLOCK * _TOKENS_PER_SAMPLE if ramp else self._block
        self._stop = stop
        self._end: Fraction | None = None  # tokens of an epoch, once known

    def shares(self, epoch: int, block: int) -> Shares | None:
        start = epoch * self._epoch_tokens() if epoch else Fraction(0)
        low, high = self._goal(epoch, block), self._goal(epoch, block + 1)
        end = self._end_up_to(high)
        if end is not None and low >= end:
            return None
        high = high if end is None else min(high, end)
        return Shares(self._places(start + low), self._places(start + high))

    def _goal(self, epoch: int, block: int) -> Fraction:
        """Tokens wanted before block `block`, counted from the epoch's start: the sizes double until they reach the full block."""
        goal, size = 0, self._first if epoch == 0 else self._block
        while block and size < self._block:
            goal, size, block = goal + size, min(2 * size, self._block), block - 1
        return Fraction(goal + block * self._block)

    def _places(self, goal: Fraction) -> tuple[int, ...]:
        return tuple(clock.place(goal * w) for clock, w in zip(self._clocks, self._weights, strict=True))

    def _end_up_to(self, goal: Fraction) -> Fraction | None:
        """Tokens of an epoch if they are at most `goal`: the first (or last) source's tokens over its weight."""
        if self._end is None:
            passes = [clock.total_if_at_most(goal * w) for clock, w in zip(self._clocks, self._weights, strict=True)]
            ends = [tokens / w for tokens, w in zip(passes, self._weights, strict=True) if tokens is not None]
            if self._stop == "first" and ends:
                self._end = min(ends)
            elif self._stop == "all" and len(ends) == len(self._clocks):
                self._end = max(ends)
        return self._end if self._end is not None and self._end <= goal else None

    def _epoch_tokens(self) -> Fraction:
        goal = Fraction(self._block)
        while self._end_up_to(goal) is None:
            goal *= 2
        assert self._end is not None
        return self._end


class TokenClock:
    """How many samples of one source make a given number of tokens?  Learns lengths window by window, as far as asked."""

    def __init__(self, order: SourceOrder, lengths: Callable[[Ints], Ints]) -> None:
        """`lengths` gives the tokens that a sample will contribute, after overlong samples were dropped or cut."""
        self._order = order
        self._lengths = lengths
        self._total: int | None = (
            None  # tokens of one epoch of the source, once it was walked; the order does not change the sum
        )
        self._window_ends = lru_cache(maxsize=None)(self._new_window_ends)
        self._running = lru_cache(maxsize=4)(self._make_running)

    def place(self, tokens: Fraction) -> int:
        """The smallest number of samples with at least `tokens` tokens, and the empty samples right after them."""
        epoch = 0
        if (total := self.total_if_at_most(tokens)) is not None:
            epoch, tokens = divmod(tokens, total)
        base = epoch * self._order.num_samples
        if tokens <= 0:
            return base
        window = self._window_with(epoch, tokens)
        first, before = self._window_end(epoch, window - 1) if window else (0, 0)
        running = self._running(epoch, window)
        reached = int(np.searchsorted(running, ceil(tokens - before), side="left"))
        count = int(np.searchsorted(running, running[reached], side="right"))
        while first + count == self._window_end(epoch, window)[0] < self._order.num_samples:
            window, first = window + 1, first + count  # empty samples may open the next window
            count = int(np.searchsorted(self._running(epoch, window), 0, side="right"))
        return base + first + count

    def total_if_at_most(self, tokens: Fraction) -> int | None:
        """The tokens of one epoch of this source if they are at most `tokens`; else None, without reading on."""
        if self._total is None:
            num_windows = self._order.window_borders(0).size - 1
            if num_windows and self._window_with(0, Fraction(floor(tokens) + 1)) < num_windows:
                return None
            self._total = self._window_end(0, num_windows - 1)[1] if num_windows else 0
            if not self._total:
                raise PlanError(
                    f"source {self._order.name!r}: all {self._order.num_samples} samples are empty or dropped, "
                    f"so it cannot give a share of tokens; take it out of the mix or look at its drop counts"
                )
        return self._total if self._total <= tokens else None

    def _window_with(self, epoch: int, tokens: Fraction) -> int:
        """The first window of an epoch at whose end there are at least `tokens` tokens; the number of windows if there is none."""
        num_windows = self._order.window_borders(epoch).size - 1
        ends = self._window_ends(epoch)
        while len(ends) < num_windows and (not ends or ends[len(ends) - 1][1] < tokens):
            self._window_end(epoch, len(ends))
        return bisect_left(range(len(ends)), ceil(tokens), key=lambda window: ends[window][1])

    def _window_end(self, epoch: int, window: int) -> tuple[int, int]:
        """(place, tokens) at the end of a window, counted from the start of the source's epoch."""
        ends = self._window_ends(epoch)
        for number in range(min(len(ends), window), window + 1):
            if number not in ends:
                running = self._running(epoch, number)
                place, tokens = ends[number - 1] if number else (0, 0)
                # Kept by number, not appended: a thread that reads ahead and one that asks for the length write the same.
                ends[number] = (place + running.size, tokens + (int(running[-1]) if running.size else 0))
        return ends[window]

    def _new_window_ends(self, epoch: int) -> dict[int, tuple[int, int]]:
        return {}

    def _make_running(self, epoch: int, window: int) -> Ints:
        """Running sum of tokens over the samples of a window, in order."""
        borders = self._order.window_borders(epoch) + epoch * self._order.num_samples
        return np.cumsum(self._lengths(self._order.samples(int(borders[window]), int(borders[window + 1]))))


def _round(value: Fraction) -> int:
    """Half up: `round` would take halves to the even neighbour, and equal weights could get unequal targets."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)
