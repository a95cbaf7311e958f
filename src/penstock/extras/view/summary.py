"""The numbers of a run on one screen: what was prepared, how long samples are, what is dropped, how rows are packed and mixed.

The tables are those that `penstock stats` and `penstock plan` print.  The plots are counts by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.loader import Loader
from penstock.plan.rows import Rows
from penstock.report import numbers, text
from penstock.report.columns import column_reports
from penstock.report.text import TextBlock
from penstock.store import Store
from penstock.words import plural, spread

_BINS = 20  # of 5 % each, in the plots of shares
_MASKS_READ = 2_000  # samples of a source whose trained share is counted

Stage = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A histogram: how many there are of each kind."""

    title: str
    note: str
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    unit: str  # of the labels
    counted: str  # what there are so many of
    lost: tuple[bool, ...] = ()  # bars of what does not reach a row


class RowFills:
    """Counts the rows of an epoch by the share of them that holds tokens."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self.counts: npt.NDArray[np.int64] = np.zeros(_BINS + 1, np.int64)

    def add(self, rows: Rows) -> None:
        sizes = rows.spans["stop"] - rows.spans["start"]
        ends = np.concatenate(([0], np.cumsum(sizes)))[rows.starts]
        bins = np.diff(ends) * _BINS // self._max_length
        self.counts += np.bincount(bins, minlength=_BINS + 1)


def summary(
    loader: Loader, *, compare: bool = True, overlaps: Sequence[str] = (), stage: Stage = str
) -> dict[str, Any]:
    """Return the screen as JSON values: `problem`, `plots` and `pieces`.

    compare: also pack the data under other lengths and packings, which takes long.  overlaps: sentences about samples that eval sets
    share with the training data.  stage: called with the name of each stage of the work.
    """
    stage("counting tokens")
    stores = numbers.stores(loader)
    sources = numbers.sources(loader)
    settings = loader.plan.settings
    lengths = numbers.lengths(stores.values())
    plots = [
        _length_plot(lengths, settings.max_length),
        _trained_plot(list(stores.values())),
    ]
    pieces = [text.line(sentence, "warn") for sentence in overlaps]
    pieces += text.sources(sources)
    for _, report in column_reports():
        pieces += report.table(report.count(stores))
    try:
        stage("packing an epoch")
        fills = RowFills(loader.plan.row_capacity)
        epoch = numbers.epoch(loader, visit=fills.add)
    except PlanError as error:  # such as a sample that is too long, where that is an error
        pieces += text.dropped(sources)
        return _as_json(plots, pieces, problem=str(error))
    plots.append(_fill_plot(fills))
    said = f"max_length {settings.max_length:,}, on_overlong {settings.on_overlong}"
    pieces += text.dropped(sources, epoch.counters, settings=said)
    pieces += text.epoch(epoch)
    pieces += text.mixing(epoch)
    if compare:
        stage("comparing other max_length and packings")
        fits = numbers.fits(loader, known=epoch.counters)
        pieces += text.fits(fits, chosen=(settings.max_length, settings.packing))
    problem = None if epoch.has_step else text.no_step(epoch)
    return _as_json(plots, pieces, problem=problem)


def _as_json(
    plots: Sequence[Plot], pieces: Sequence[TextBlock], *, problem: str | None
) -> dict[str, Any]:
    return {"problem": problem, "plots": numbers.plain(plots), "pieces": numbers.plain(pieces)}


def _length_plot(lengths: numbers.Lengths, max_length: int) -> Plot:
    ranges = list(pairwise(lengths.histogram.edges))
    return Plot(
        title="Tokens per sample",
        note=f"median {lengths.p50:,}, p99 {lengths.p99:,}, longest {lengths.max:,}; max_length {max_length:,}",
        labels=tuple(text.length_range(low, high) for low, high in ranges),
        counts=tuple(lengths.histogram.counts),
        unit="tokens",
        counted="samples",
        lost=tuple(low >= max_length for low, _ in ranges),
    )


def _trained_plot(stores: Sequence[Store]) -> Plot:
    counts = np.zeros(_BINS, np.int64)
    for store in stores:
        counts += trained_shares(store)
    counted = int(counts.sum())
    return Plot(
        title="Trained share of each sample",
        note=f"{plural(counted, 'sample')}, up to {_MASKS_READ:,} of each dataset, evenly spread",
        labels=_share_labels(),
        counts=tuple(counts.tolist()),
        unit="of the tokens",
        counted="samples",
    )


def _fill_plot(fills: RowFills) -> Plot:
    return Plot(
        title="Filled share of each row",
        note="the last bar counts rows without padding",
        labels=(*_share_labels(), "full"),
        counts=tuple(fills.counts.tolist()),
        unit="of max_length",
        counted="rows",
    )


def _share_labels() -> tuple[str, ...]:
    width = 100 // _BINS
    return tuple(f"{low}–{low + width} %" for low in range(0, 100, width))


def trained_shares(store: Store) -> npt.NDArray[np.int64]:
    """Count samples by the share of their tokens that are targets; of some of them, evenly spread."""
    counts = np.zeros(_BINS, np.int64)
    for row in spread(len(store), _MASKS_READ):
        mask = store[row].loss_mask
        if mask.size:
            share = int(np.count_nonzero(mask[1:]) * _BINS / mask.size)
            counts[min(share, _BINS - 1)] += 1
    return counts


def identity(loader: Loader) -> Mapping[str, str]:
    """Return the fingerprints of the stores and of the plan."""
    prints = {name: store.fingerprint for name, store in numbers.stores(loader).items()}
    return {**prints, "plan": loader.plan.fingerprint}
