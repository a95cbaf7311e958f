"""What a run's losses say: curves by source, means by position, and the samples that stand out.

A loss is per target, in nats.  The *excess* of a sample is its loss less the mean loss of its source at that time: a sample that was
trained early has a high loss because the model was young, and an excess of 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cache import open_cache
from penstock.errors import PlanError
from penstock.extras.losses.files import LossRows, losses_folder, read_rows
from penstock.extras.losses.targets import BUCKETS
from penstock.types import Ints

_CURVE_BINS = 100  # of the curve that samples are compared with

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLoss:
    """The losses of one sample over the times it was trained."""

    source: str
    sample: int  # its row number in the source
    loss: float  # per target, when it was trained last
    first_loss: float  # when it was trained first
    excess: float  # over the mean of its source at the same steps, per target, over all times
    fall: float  # how much more it fell each time than its source did
    times: int  # that it was trained
    targets: int  # of one time
    steps: tuple[int, ...]  # in which it was trained


class SampleLosses(Sequence[SampleLoss]):
    """Samples in an order.  `skip_steps=samples.steps` leaves the steps out in which they were trained; `leave_out` takes them, too."""

    def __init__(self, samples: Sequence[SampleLoss]) -> None:
        self._samples = list(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, place: Any) -> Any:
        chosen = self._samples[place]
        return SampleLosses(chosen) if isinstance(place, slice) else chosen

    def __iter__(self) -> Iterator[SampleLoss]:
        return iter(self._samples)

    @property
    def steps(self) -> list[int]:
        """The steps in which any of them was trained."""
        return sorted({step for sample in self._samples for step in sample.steps})

    @property
    def by_source(self) -> dict[str, list[int]]:
        """The row numbers of the samples, by source."""
        found: dict[str, list[int]] = {}
        for sample in self._samples:
            found.setdefault(sample.source, []).append(sample.sample)
        return {source: sorted(rows) for source, rows in found.items()}

    def __repr__(self) -> str:
        return f"SampleLosses({len(self)} samples of {', '.join(self.by_source) or 'no source'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The mean loss of a source over steps."""

    source: str
    steps: Ints  # where each bin begins
    losses: Floats  # nan where nothing was trained
    targets: Ints


class RunLosses:
    """The losses of a run."""

    def __init__(self, pieces: LossRows, positions: LossRows, tokens: LossRows) -> None:
        self.names = pieces.names
        self._pieces = pieces.columns
        self._positions = positions
        self._tokens = tokens
        self._samples: _Samples | None = None  # added up at the first question about samples

    def __len__(self) -> int:
        """Pieces that were trained."""
        return int(self._pieces["step"].size)

    @property
    def steps(self) -> tuple[int, int]:
        """The first recorded step and the one after the last."""
        steps = self._pieces["step"]
        return (int(steps.min()), int(steps.max()) + 1) if steps.size else (0, 0)

    @property
    def num_missing(self) -> int:
        """Steps between the first and the last that have no loss: they were skipped, or not written."""
        first, last = self.steps
        return last - first - np.unique(self._pieces["step"]).size

    def totals(self) -> dict[str, tuple[float, int]]:
        """Return for each source the sum of its losses and its targets, over everything that was trained."""
        number = len(self.names)
        sums = np.bincount(self._pieces["source"], self._pieces["loss"], minlength=number)
        targets = np.bincount(self._pieces["source"], self._pieces["targets"], minlength=number)
        return {
            name: (float(total), int(count))
            for name, total, count in zip(self.names, sums, targets, strict=True)
        }

    def curves(self, bins: int = _CURVE_BINS) -> list[LossCurve]:
        """Return the mean loss of each source over at most `bins` groups of neighbouring steps."""
        starts, of_piece = self._bins(bins)
        curves = []
        for number, name in enumerate(self.names):
            own = self._pieces["source"] == number
            sums = np.bincount(of_piece[own], self._pieces["loss"][own], minlength=starts.size)
            counts = np.bincount(
                of_piece[own], self._pieces["targets"][own], minlength=starts.size
            ).astype(np.int64)
            means = np.divide(sums, counts, out=np.full(starts.size, np.nan), where=counts > 0)
            curves.append(LossCurve(source=name, steps=starts, losses=means, targets=counts))
        return curves

    def _bins(self, bins: int) -> tuple[Ints, Ints]:
        """Return where each bin of steps begins, and the bin of each piece."""
        first, last = self.steps
        width = max(-(-(last - first) // max(bins, 1)), 1)
        return np.arange(first, max(last, first), width), (self._pieces["step"] - first) // width

    def by_position(self) -> dict[str, list[tuple[int, float, int]]]:
        """Return for each source (first token of the bucket, mean loss, targets) of each position bucket with targets."""
        columns = self._positions.columns
        found: dict[str, list[tuple[int, float, int]]] = {}
        for number, name in enumerate(self._positions.names):
            own = columns["source"] == number
            buckets = columns["bucket"][own].astype(np.int64)
            sums = np.bincount(buckets, columns["loss"][own], minlength=len(BUCKETS))
            counts = np.bincount(buckets, columns["targets"][own], minlength=len(BUCKETS))
            found[name] = [
                (begin, float(total / count), int(count))
                for begin, total, count in zip(BUCKETS, sums, counts, strict=True)
                if count
            ]
        return found

    # Samples

    def highest(self, count: int, *, source: str | None = None) -> SampleLosses:
        """Return the samples with the highest excess: what the model cannot learn, or learns last."""
        return self._ranked(self._of_samples().excess, count, source)

    def fastest_falling(self, count: int, *, source: str | None = None) -> SampleLosses:
        """Return the samples whose loss falls faster than their source's from one time to the next: what is learned by heart."""
        samples = self._of_samples()
        falls = np.where(samples.times > 1, samples.fall, -np.inf)
        return self._ranked(falls, count, source)

    def of_sample(self, source: str, sample: int) -> SampleLoss | None:
        """Return the losses of one sample; None if it was not trained."""
        samples = self._of_samples()
        own = (samples.source == self._number(source)) & (samples.sample == sample)
        places = np.flatnonzero(own)
        return self._sample(int(places[0])) if places.size else None

    def tokens_of(self, source: str, sample: int) -> dict[int, float]:
        """Return the loss of each token of a sample by its place, the last time that they were kept; empty if they were not.

        They are kept for the pieces whose loss is highest above the mean, up to 64 on each rank.
        """
        if source not in self._tokens.names:
            return {}
        columns = self._tokens.columns
        number = self._tokens.names.index(source)
        own = np.flatnonzero((columns["source"] == number) & (columns["sample"] == sample))
        by_step = own[np.argsort(columns["step"][own], kind="stable")]
        places = columns["token"][by_step].tolist()
        losses = columns["loss"][by_step].tolist()
        return dict(zip(places, losses, strict=True))

    def _number(self, source: str) -> int:
        if source not in self.names:
            raise PlanError(
                f"the run has no losses of a source {source!r}; it has those of {', '.join(self.names) or 'none'}"
            )
        return self.names.index(source)

    def _ranked(self, scores: Floats, count: int, source: str | None) -> SampleLosses:
        if source is not None:
            scores = np.where(self._of_samples().source == self._number(source), scores, -np.inf)
        best = np.argsort(-scores, kind="stable")[:count]
        return SampleLosses([self._sample(int(place)) for place in best if scores[place] > -np.inf])

    def _sample(self, place: int) -> SampleLoss:
        samples = self._of_samples()
        visits = samples.visits[samples.starts[place] : samples.starts[place + 1]]
        return SampleLoss(
            source=self.names[int(samples.source[place])],
            sample=int(samples.sample[place]),
            loss=float(samples.last[place]),
            first_loss=float(samples.first[place]),
            excess=float(samples.excess[place]),
            fall=float(samples.fall[place]),
            times=int(samples.times[place]),
            targets=int(samples.targets[place]),
            steps=tuple(sorted({int(step) for step in visits})),
        )

    def _of_samples(self) -> "_Samples":
        if self._samples is None:
            self._samples = _add_up(self._pieces, self._expected())
        return self._samples

    def _expected(self) -> Floats:
        """Return for each piece the mean loss per target of its source at that time."""
        _, of_piece = self._bins(_CURVE_BINS)
        curves = np.stack(
            [curve.losses for curve in self.curves()] or [np.zeros(0)]
        )  # (sources, bins)
        return np.asarray(curves[self._pieces["source"], of_piece], np.float64)


@dataclass(frozen=True, slots=True)
class _Samples:
    """Sums over every sample that was trained, by source and row number."""

    source: Ints
    sample: Ints
    first: Floats  # loss per target
    last: Floats
    excess: Floats
    fall: Floats
    times: Ints
    targets: Ints
    starts: Ints  # of a sample's steps in `visits`, one more than there are samples
    visits: Ints


def _add_up(pieces: Mapping[str, Any], expected: Floats) -> _Samples:
    """Add up pieces by sample.  A visit is a sample in a step: all of its pieces there."""
    order = np.lexsort((pieces["step"], pieces["sample"], pieces["source"]))
    source = pieces["source"][order]
    sample = pieces["sample"][order]
    step = pieces["step"][order]
    is_new_sample = _changes(source) | _changes(sample)
    visit_starts = np.flatnonzero(is_new_sample | _changes(step))
    if not visit_starts.size:
        none = np.zeros(0, np.int64)
        no_loss = np.zeros(0)
        empty = np.zeros(1, np.int64)
        return _Samples(none, none, no_loss, no_loss, no_loss, no_loss, none, none, empty, none)
    targets = np.add.reduceat(pieces["targets"][order].astype(np.int64), visit_starts)
    sums = np.add.reduceat(pieces["loss"][order], visit_starts)
    expected_sums = np.add.reduceat((expected * pieces["targets"])[order], visit_starts)
    loss = sums / targets
    excess = (sums - expected_sums) / targets
    starts = np.flatnonzero(is_new_sample[visit_starts])
    ends = np.append(starts[1:], visit_starts.size)
    times = ends - starts
    all_targets = np.add.reduceat(targets, starts)
    return _Samples(
        source=source[visit_starts][starts],
        sample=sample[visit_starts][starts],
        first=loss[starts],
        last=loss[ends - 1],
        excess=np.add.reduceat(sums - expected_sums, starts) / all_targets,
        fall=(excess[starts] - excess[ends - 1]) / np.maximum(times - 1, 1),
        times=times,
        targets=all_targets // times,
        starts=np.append(starts, visit_starts.size),
        visits=step[visit_starts],
    )


def _changes(values: Ints) -> npt.NDArray[np.bool_]:
    """Return which values differ from the one before; the first one does."""
    differs = np.ones(values.size, np.bool_)
    differs[1:] = values[1:] != values[:-1]
    return differs


def read_losses(
    run_id: str,
    *,
    cache_dir: str | Path | None = None,
    folder: str | Path | None = None,
    root: Path | None = None,
    plan: str | None = None,
) -> RunLosses:
    """Return the losses that `LossBySource` has recorded under this name.

    cache_dir: the cache of the run.  folder: of LossBySource(folder=…), whose last part is the run_id then.  root: the folder of a cache
    that is open.  plan: the fingerprint of the plan, if the run has had several.
    """
    if folder is not None:
        place = Path(folder)
    else:
        place = losses_folder(open_cache(cache_dir).root if root is None else root, run_id)
    pieces = read_rows(place, "pieces", run_id=run_id, plan=plan)
    positions = read_rows(place, "positions", run_id=run_id, plan=plan)
    if not pieces.names:
        raise PlanError(
            f"{place}: no losses of run {run_id!r}; record them with LossBySource(loader), or check run_id and cache_dir"
        )
    tokens = read_rows(place, "tokens", run_id=run_id, plan=plan)
    return RunLosses(pieces, positions, tokens)
