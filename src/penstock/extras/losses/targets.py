"""Find the piece of a sample that each target of a batch belongs to.  A target is a token with a label.

The places follow from the batch's spans and the layout of its labels, as `loader/collate.py` makes them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.loader import Loader
from penstock.loader.collate import IGNORE
from penstock.loader.layout import BatchForm
from penstock.plan.rows import Rows
from penstock.plan.settings import PlanSettings
from penstock.types import TARGETS, Ints

Floats = npt.NDArray[np.float64]

# A position bucket begins at each of these tokens of a sample: it holds positions up to the next one.
BUCKETS = (0, 16, 64, 256, 1_024, 4_096, 16_384, 65_536)


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of a batch, in the order of its labels."""

    places: Ints  # in the labels as one flat row
    spans: Ints  # number of the span in the batch
    positions: Ints  # of the target in its sample


@dataclass(frozen=True, slots=True)
class PieceLosses:
    """Sums over the targets of each piece of a batch that has any."""

    spans: Ints
    losses: Floats
    targets: Ints


@dataclass(frozen=True, slots=True)
class PositionLosses:
    """Sums over the targets of a batch, by source and position bucket."""

    sources: Ints
    buckets: Ints
    losses: Floats
    targets: Ints


def require_next_tokens(loader: Loader, user: str) -> None:
    """Refuse a Loader whose labels are not those of the next tokens of its rows."""
    columns = loader.parts.columns
    objective = loader.plan.objective
    own = () if objective is None else objective.columns
    # labels that stand at their own tokens, or that a stage makes after all others
    if TARGETS in columns or any(column.name in loader.parts.stages for column in own):
        asked = loader.plan.settings.objective
        name = asked["name"] if isinstance(asked, dict) else asked
        raise PlanError(
            f"{user} is for labels that are the next tokens of their rows, and objective {name!r} makes others; leave one of them out"
        )


def find_targets(rows: Rows, labels: Ints, *, order: PlanSettings, form: BatchForm) -> Targets:
    """Return the targets of labels that a Loader with these settings has made of these rows."""
    sizes = rows.spans["stop"] - rows.spans["start"]
    begins = _begins(rows, order.aligned(sizes), labels, form)
    places = np.flatnonzero(labels.reshape(-1) != IGNORE)
    # with shifted labels, place p holds the label of token p + 1
    tokens = places + (form.labels == "shifted")
    by_place = np.argsort(begins, kind="stable")
    spans = by_place[np.searchsorted(begins[by_place], tokens, side="right") - 1]
    inside = tokens - begins[spans] if spans.size else tokens
    is_outside = (inside < 0) | (inside >= sizes[spans]) if spans.size else np.zeros(0, np.bool_)
    # nothing in a row predicts its first token
    is_first = (places % labels.shape[-1] == 0) & (form.labels == "unshifted")
    if (is_outside | is_first).any():
        raise PlanError(
            f"the labels of this batch, {list(labels.shape)}, do not have the layout of its rows: a target lies outside of all samples; "
            f"give LossBySource the batch as the Loader delivered it"
        )
    return Targets(places, spans, inside + rows.spans["start"][spans])


def _begins(rows: Rows, rooms: Ints, labels: Ints, form: BatchForm) -> Ints:
    """Return the place of each span's first token, in the labels as one flat row."""
    before = np.concatenate(([0], np.cumsum(rooms)))
    if form.padding_free:
        return before[:-1]
    num_rows = rows.num_rows
    if labels.ndim != 2 or labels.shape[0] != num_rows:
        raise PlanError(
            f"the labels of this batch have shape {list(labels.shape)}, expected one row for each of its {num_rows} rows; give "
            f"LossBySource the batch as the Loader delivered it"
        )
    width = labels.shape[1]
    used = np.diff(before[rows.starts])
    row_of_span = np.repeat(np.arange(num_rows), np.diff(rows.starts))
    in_row = before[:-1] - before[rows.starts[:-1]][row_of_span]
    if form.pad_side == "left":
        in_row = in_row + (width - used)[row_of_span]
    begins: Ints = row_of_span * width + in_row
    return begins


def sum_pieces(targets: Targets, losses: Floats) -> PieceLosses:
    """Add up the losses of each piece."""
    count = int(targets.spans.max(initial=-1)) + 1
    numbers = np.bincount(targets.spans, minlength=count)
    sums = np.bincount(targets.spans, weights=losses, minlength=count).astype(np.float64)
    trained = np.flatnonzero(numbers)
    return PieceLosses(trained, sums[trained], numbers[trained])


def sum_positions(targets: Targets, losses: Floats, sources: Ints) -> PositionLosses:
    """Add up the losses of each source and position bucket.  sources: of the batch's spans."""
    buckets = np.searchsorted(BUCKETS, targets.positions, side="right") - 1
    keys = sources[targets.spans].astype(np.int64) * len(BUCKETS) + buckets
    numbers = np.bincount(keys)
    sums = np.bincount(keys, weights=losses).astype(np.float64)
    some = np.flatnonzero(numbers)
    source, bucket = np.divmod(some, len(BUCKETS))
    return PositionLosses(source, bucket, sums[some], numbers[some])
