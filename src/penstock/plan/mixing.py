"""How mixed is an epoch?  The share of each source, and of each fifth of each source, in every tenth of an epoch.

A file that holds several data sets one after the other is trained as a curriculum that nobody asked for unless it is shuffled well.
The plan's own rows are counted here: the numbers are those of what a trainer gets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.plan.block import Rows
from penstock.plan.plan import Plan
from penstock.types import Ints

TENTHS, FIFTHS = 10, 5
_SIGMAS = 5.0  # standard deviations; chance passes them in one of 1.7 million cells

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """Shares of one source in each tenth of an epoch."""

    name: str
    share: float  # of the epoch
    tenths: tuple[float, ...]  # (10,) share of the source in each tenth
    fifth_shares: tuple[float, ...]  # (5,) of the source's part of the epoch, the share of each fifth of its rows
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
        self._plan = plan
        self._names = list(names or (source.name for source in plan.sources))
        self._num_samples = np.array([max(source.num_samples, 1) for source in plan.sources], np.int64)
        self._num_rows, self._row = plan.num_rows(epoch), 0
        shape = (TENTHS, len(self._names), FIFTHS)
        self._pieces, self._tokens, self._squares = (np.zeros(shape, np.int64) for _ in range(3))

    def add(self, rows: Rows) -> None:
        """Count the epoch's next rows."""
        spans, shape = rows.spans, self._pieces.shape
        tenth = (self._row + np.arange(rows.num_rows)) * TENTHS // max(self._num_rows, 1)
        fifth = spans["sample"] * FIFTHS // self._num_samples[spans["source"]]
        cell = (np.repeat(tenth, np.diff(rows.starts)) * shape[1] + spans["source"]) * FIFTHS + fifth
        sizes = (spans["stop"] - spans["start"]).astype(np.float64)
        self._pieces += np.bincount(cell, minlength=self._pieces.size).reshape(shape)
        for sums, weights in ((self._tokens, sizes), (self._squares, sizes * sizes)):
            sums += np.bincount(cell, weights=weights, minlength=sums.size).astype(np.int64).reshape(shape)
        self._row += rows.num_rows

    def result(self, *, samples_out: int) -> Mixing:
        """`samples_out`: samples that the rows hold; pieces of one sample are not drawn one by one."""
        by_tokens = self._plan.settings.mix_by == "tokens"
        counts = self._tokens if by_tokens else self._pieces
        of_tenth, of_source = counts.sum(axis=(1, 2)), counts.sum(axis=2)  # (10,), (10, sources)
        sources = tuple(
            MixedSource(
                name=name,
                share=_share(of_source[:, s].sum(), counts.sum()),
                tenths=tuple(map(_share, of_source[:, s], of_tenth)),
                fifth_shares=tuple(_share(counts[:, s, f].sum(), of_source[:, s].sum()) for f in range(FIFTHS)),
                fifths=tuple(tuple(map(_share, counts[:, s, f], of_source[:, s])) for f in range(FIFTHS)),
            )
            for s, name in enumerate(self._names)
        )
        is_even, difference, where = self._compare(counts, by_tokens, samples_out)
        return Mixing(
            unit="tokens" if by_tokens else "samples",
            sources=sources,
            is_even=is_even,
            largest_difference=difference,
            where=where,
        )

    def _compare(self, counts: Ints, by_tokens: bool, samples_out: int) -> tuple[bool, float, str]:
        """(every tenth is like the whole within sampling error, the largest difference of a share, where it is)."""
        is_even, largest, where = True, 0.0, ""
        of_source = counts.sum(axis=2)
        for s, name in enumerate(self._names):
            of_all = self._drawn(slice(None), by_tokens, samples_out)
            parts = [_Cell(f"source {name!r}", of_source[:, s], of_source.sum(axis=1), of_all, 0.0)]
            drawn, few = self._drawn(s, by_tokens, samples_out), self._few(s)
            parts += [
                _Cell(f"fifth {fifth + 1} of source {name!r}", counts[:, s, fifth], of_source[:, s], drawn, few)
                for fifth in range(FIFTHS)
            ]
            for cell in parts:
                differences = cell.differences()
                is_even &= bool((differences <= _SIGMAS * cell.sampling_error()).all())
                if (most := float(differences.max())) > largest:
                    largest, where = most, cell.words(int(differences.argmax()))
        return is_even, largest, where

    def _drawn(self, source: int | slice, by_tokens: bool, samples_out: int) -> Floats:
        """How many samples drawn at random would vary as much as a tenth does: fewer where some hold most of the tokens."""
        tokens, squares, pieces = (
            sums[:, source].reshape(TENTHS, -1).sum(axis=1) for sums in (self._tokens, self._squares, self._pieces)
        )
        drawn = tokens.astype(np.float64) ** 2 / np.maximum(squares, 1) if by_tokens else pieces.astype(np.float64)
        return np.asarray(np.maximum(drawn * min(samples_out / max(self._pieces.sum(), 1), 1.0), 1.0), np.float64)

    def _few(self, source: int) -> float:
        """One over the shards of a window, where they are drawn from more; only of windows that nobody asked for."""
        borders = self._plan.settings.window_borders(len(self._plan.sources[source].shard_sizes))
        return 1 / int(np.diff(borders).min()) if self._plan.settings.window == "auto" and borders.size > 2 else 0.0


@dataclass(frozen=True, slots=True)
class _Cell:
    """A part of a whole, tenth by tenth."""

    name: str
    part: Ints  # (10,)
    whole: Ints  # (10,)
    drawn: Floats  # (10,) samples
    few: float

    @property
    def share(self) -> float:
        return _share(self.part.sum(), self.whole.sum())

    def differences(self) -> Floats:
        """How far the share in each tenth is from the share in the epoch; 0 for an empty tenth."""
        shares = self.part / np.maximum(self.whole, 1)
        return np.asarray(np.where(self.whole > 0, np.abs(shares - self.share), 0.0), np.float64)

    def sampling_error(self) -> Floats:
        """One standard deviation of the share in each tenth, if its samples are drawn at random; half a sample is rounding."""
        variance = self.share * (1 - self.share) * (1 / self.drawn + self.few)
        return np.asarray(np.sqrt(variance) + 0.5 / self.drawn, np.float64)

    def words(self, tenth: int) -> str:
        here = _share(self.part[tenth], self.whole[tenth])
        return f"{self.name} is {here:.1%} of tenth {tenth + 1} and {self.share:.1%} of the epoch"


def _share(part: int, whole: int) -> float:
    return int(part) / int(whole) if whole else 0.0
