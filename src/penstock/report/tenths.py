"""How mixed an epoch is: the share of each source, and of each fifth of each source, in every tenth of an epoch.

A file that holds several datasets one after the other becomes an unintended curriculum unless it is shuffled well.
The plan's own rows are counted: the numbers are those of what a trainer gets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.plan.plan import Plan
from penstock.plan.rows import Rows
from penstock.types import Ints

TENTHS = 10
FIFTHS = 5
_SIGMAS = 5.0  # standard deviations; chance passes them in one of 1.7 million cells

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """Shares of one source in each tenth of an epoch."""

    name: str
    share: float  # of the epoch
    tenths: tuple[float, ...]  # (10,) share of the source in each tenth
    fifth_shares: tuple[
        float, ...
    ]  # (5,) of the source's part of the epoch, the share of each fifth of its rows
    fifths: tuple[tuple[float, ...], ...]  # (5, 10) the same in each tenth


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How mixed an epoch is.  Counts samples, where samples are cut their pieces, and in a mixture by tokens tokens."""

    unit: str  # "samples" or "tokens"
    sources: tuple[MixedSource, ...]
    is_even: bool  # every tenth is like the whole epoch, within sampling error
    largest_difference: float  # between a share in a tenth and in the epoch
    where: str  # of the largest difference, in words


class MixingCounter:
    """Counts the rows of one epoch, which are given in order."""

    def __init__(self, plan: Plan, epoch: int, names: Sequence[str] | None = None) -> None:
        """`names`: what the sources are called, where the plan's own names are not what people know."""
        self._settings = plan.settings
        self._sources = plan.sources
        self._names = list(names or (source.name for source in plan.sources))
        self._num_samples = np.array(
            [max(source.num_samples, 1) for source in plan.sources], np.int64
        )
        self._num_rows = plan.num_rows(epoch)
        self._row = 0
        self._sums = np.zeros(
            (3, TENTHS, len(self._names), FIFTHS), np.int64
        )  # pieces, tokens, squares of tokens

    def add(self, rows: Rows) -> None:
        """Count the epoch's next rows."""
        spans = rows.spans
        shape = self._sums.shape[1:]
        tenth = (self._row + np.arange(rows.num_rows)) * TENTHS // max(self._num_rows, 1)
        fifth = spans["sample"] * FIFTHS // self._num_samples[spans["source"]]
        cell = (
            np.repeat(tenth, np.diff(rows.starts)) * shape[1] + spans["source"]
        ) * FIFTHS + fifth
        sizes = (spans["stop"] - spans["start"]).astype(np.float64)
        for sums, weights in zip(self._sums, (None, sizes, sizes * sizes), strict=True):
            sums += (
                np.bincount(cell, weights=weights, minlength=sums.size)
                .astype(np.int64)
                .reshape(shape)
            )
        self._row += rows.num_rows

    def result(self, *, samples_out: int) -> Mixing:
        """`samples_out`: samples that the rows hold; pieces of one sample are not drawn one by one.

        The last axis of the arrays here is 6 long: the source as a part of the tenth, then its fifths as parts of the source.
        """
        by_tokens = self._settings.mix_by == "tokens"
        pieces, tokens, _ = self._sums
        counts = tokens if by_tokens else pieces
        of_source = counts.sum(axis=2, keepdims=True)  # (10, sources, 1)
        part = np.concatenate((of_source, counts), axis=2)  # (10, sources, 6)
        whole = _joined(of_source.sum(axis=1, keepdims=True), of_source)
        once = min(samples_out / max(pieces.sum(), 1), 1.0)
        drawn = [
            _drawn(self._sums.sum(axis=axes, keepdims=True), by_tokens) for axes in ((2, 3), 3)
        ]
        number = np.maximum(_joined(*drawn) * once, 1.0)
        shares = _shares(part, whole)
        share = _shares(part.sum(axis=0), whole.sum(axis=0))
        differences = np.where(whole > 0, np.abs(shares - share), 0.0)
        # one standard deviation of the share in each tenth, if its samples are drawn at random; half a sample is rounding
        error = np.sqrt(share * (1 - share) * (1 / number + self._few_shards())) + 0.5 / number
        by_cell = differences.transpose(1, 2, 0)
        source, cell, tenth = map(int, np.unravel_index(np.argmax(by_cell), by_cell.shape))
        largest = by_cell[source, cell, tenth].item()
        whose = f"source {self._names[source]!r}"
        here = shares[tenth, source, cell]
        mean = share[source, cell]
        name = f"fifth {cell} of {whose}" if cell else whose
        return Mixing(
            unit="tokens" if by_tokens else "samples",
            sources=tuple(
                MixedSource(
                    name=name,
                    share=share[s, 0].item(),
                    tenths=tuple(shares[:, s, 0].tolist()),
                    fifth_shares=tuple(share[s, 1:].tolist()),
                    fifths=tuple(map(tuple, shares[:, s, 1:].T.tolist())),
                )
                for s, name in enumerate(self._names)
            ),
            is_even=bool((differences <= _SIGMAS * error).all()),
            largest_difference=largest,
            where=f"{name} is {here:.1%} of tenth {tenth + 1} and {mean:.1%} of the epoch"
            if largest
            else "",
        )

    def _few_shards(self) -> Floats:
        """Of fifths: one over the shards of a window, if windows are drawn from more shards; only of "auto" windows."""
        few = np.zeros((len(self._names), 1 + FIFTHS))
        for s, source in enumerate(self._sources):
            borders = self._settings.window_borders(len(source.shard_sizes))
            if self._settings.shuffle_window == "auto" and borders.size > 2:
                few[s, 1:] = 1 / int(np.diff(borders).min())
        return few


def _drawn(sums: Ints, by_tokens: bool) -> Floats:
    """How many samples drawn at random would vary as much as a tenth does: fewer where some hold most of the tokens."""
    pieces, tokens, squares = sums
    drawn = tokens.astype(np.float64) ** 2 / np.maximum(squares, 1) if by_tokens else pieces
    return np.asarray(drawn, np.float64)


def _joined(of_all: npt.NDArray[Any], of_source: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(10, 1, 1) and (10, sources, 1) → (10, sources, 6)."""
    of_all = np.broadcast_to(of_all, of_source.shape)
    return np.concatenate((of_all, np.repeat(of_source, FIFTHS, axis=2)), axis=2)


def _shares(part: Ints, whole: Ints) -> Floats:
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)
