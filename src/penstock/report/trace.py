"""Follow one record through every stage; show one row as segments, and one step as rows.

    record(loader, sample)      raw → rendered → tokens → positions in training
    row(loader, step, number)   a row as segments: which samples, how many of their tokens are trained, how much is padding
    step(loader, number)        all rows of a step, or those of one rank
    compare_state(loader, …)    whether a saved state fits, and where it continues

All results are frozen values made of plain ones; `numbers.plain` makes JSON of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock import plugins
from penstock.errors import PenstockError, PlanError, PlanMismatch
from penstock.loader import Loader
from penstock.plan.plan import Position
from penstock.plan.ranks import dealt_rows
from penstock.plan.rows import Rows
from penstock.plan.settings import PlanSettings
from penstock.reasons import meaning
from penstock.report.columns import reported_values
from penstock.report.numbers import SAMPLES_PER_SECOND, EpochRows, stores
from penstock.report.record import (
    PADDING,
    Token,
    Turn,
    record_text,
    rendered_text,
    sample_tokens,
    turns_of,
)
from penstock.store import Sample, Store
from penstock.types import SEQUENCE_LENGTHS, Bools, Ints
from penstock.words import log_stage, plural

_MOST_LANDINGS = 1_000  # of one sample

PieceNote = Callable[[str, int], str]  # source and sample → what is known of it, or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """The position of a sample, or of a piece of it, in an epoch."""

    epoch: int
    step: int
    rank: int
    row: int  # in that rank's batch
    place: int  # of the first token in the row
    start: int  # tokens start..stop of the sample
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTrace:
    """One record through every stage.  `outcome` says in words what happened to it."""

    source: str
    sample: int  # its row number
    where: str
    raw: str  # JSON; for a row that cannot be read, the reason
    rendered: str | None  # as text, before it became tokens; only of conversations
    tokens: tuple[Token, ...]
    turns: tuple[Turn, ...]  # of a conversation
    trained: int  # targets: trained tokens without the first one, which nothing predicts
    landings: tuple[Landing, ...]
    outcome: str
    # column → a line for each thing that it holds, such as its images, videos and audio clips
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sequences: tuple[int, ...] = ()  # tokens of each sequence of a pair


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSegment:
    """Neighbouring tokens of one sample in a row."""

    source: str
    sample: int
    where: str
    place: int  # of the first token in the row
    start: int  # tokens start..stop of the sample
    stop: int
    length: int  # of the whole sample
    trained: int  # targets among these tokens: a segment's first token never is one


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTrace:
    """A row as segments; the rest up to `max_length` is padding.  Only `row` fills in `tokens`, which are as long as the row."""

    step: int
    rank: int
    row: int  # in that rank's batch
    max_length: int
    used: int
    trained: int
    segments: tuple[RowSegment, ...]
    tokens: tuple[Token, ...] = ()

    @property
    def padding(self) -> int:
        return self.max_length - self.used


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """A step: the rows of one rank, or of all, in the global order.  Rows beyond `num_real` fill up the epoch's last step."""

    plan: str
    step: int
    epoch: int
    batch_size: int
    world_size: int
    rank: int | None  # None: all ranks
    num_real: int
    num_repeated: int
    rows: tuple[RowTrace, ...]


def record(loader: Loader, sample: int, *, source: int = 0, epoch: int = 0) -> RecordTrace:
    """Trace one record of one source, from its file to its positions in an epoch."""
    name, store = list(stores(loader).items())[source]
    if not -len(store) <= sample < len(store):
        raise PlanError(
            f"record {sample} does not exist: {name!r} has {len(store):,} records, counted from 0"
        )
    made = store[sample]
    positions = Positions(loader, [(source, made.row)], epoch)
    for rows in EpochRows(loader.plan, epoch) if len(made) else ():
        positions.add(rows)
        found = sum(each.stop - each.start for each in positions.of(source, made.row))
        if positions.is_full or (found == len(made) and loader.plan.settings.weights is None):
            break  # without weights, no sample is repeated
    landings = positions.of(source, made.row)
    return trace_sample(
        store, made, name, landings, outcome(loader.plan.settings, made, landings, epoch)
    )


def unprepared(store: Store, settings: PlanSettings, number: int, name: str) -> RecordTrace:
    """Trace one record of a dataset that is not prepared; `store` holds it alone, as its row 0.  Its positions are not known."""
    made = store[0]
    if not len(made):
        what = f"dropped: {', '.join(store.counts.dropped)}"
    elif _longest(made) > settings.capacity and settings.on_overlong == "drop":
        what = _overlong(made, settings)
    else:
        what = "not known: this dataset is not prepared; run penstock prepare first"
    return replace(trace_sample(store, made, name, (), what), sample=number)


def trace_sample(
    store: Store,
    made: Sample,
    name: str,
    landings: tuple[Landing, ...],
    outcome: str,
    shown: Sequence[slice] = (slice(None),),
) -> RecordTrace:
    """Trace a sample whose positions are known; `shown`: which of its tokens."""
    raw: dict[str, Any] = {}
    try:
        raw = store.source[made.row]
        text = record_text(raw)
    except PenstockError as error:
        text = str(error)
    rendered = rendered_text(store, raw) if len(made) else None
    tokens = sample_tokens(store, made, raw, rendered, shown)
    lengths = made.columns.get(SEQUENCE_LENGTHS.name)
    return RecordTrace(
        source=name,
        sample=made.row,
        where=str(made.where),
        raw=text,
        rendered=rendered,
        tokens=tokens,
        turns=turns_of(tokens),
        trained=int(np.count_nonzero(made.loss_mask[1:])),
        landings=landings,
        outcome=outcome,
        columns={name: report.lines(value) for name, report, value in reported_values(made)},
        sequences=() if lengths is None else tuple(lengths.tolist()),
    )


def _log_packing(loader: Loader) -> None:
    """Say that samples are packed before a step is known, if that takes long."""
    num_samples = sum(source.num_samples for source in loader.plan.sources)
    what = f"packing {plural(num_samples, 'sample')}"
    log_stage(what, seconds=num_samples / SAMPLES_PER_SECOND)


def step(loader: Loader, number: int, *, rank: int | None = None) -> StepTrace:
    """Return the rows of a step, without running to it."""
    world = loader.world
    if rank is not None and not 0 <= rank < world.size:
        raise PlanError(
            f"rank {rank} does not exist: the loader has world size {world.size}; ranks are counted from 0"
        )
    found = stores(loader)
    _log_packing(loader)
    taken = loader.look_up(number)
    dealt = dealt_rows(taken.rows, world.size, loader.plan.settings)
    places = range(taken.rows.num_rows) if rank is None else dealt[rank].tolist()
    return StepTrace(
        plan=loader.plan.fingerprint,
        step=number,
        epoch=taken.epoch,
        batch_size=loader.batch_size,
        world_size=world.size,
        rank=rank,
        num_real=taken.num_real,
        num_repeated=taken.num_repeated,
        rows=tuple(
            trace_row(loader, found, _one(taken.rows, place), number, *_rank_of(place, dealt))
            for place in places
        ),
    )


def piece_notes(loader: Loader) -> list[PieceNote]:
    """Return what plugins of the group `piece_notes` say of samples, such as their losses."""
    opened: list[PieceNote | None] = [
        open_it(loader) for _, open_it in plugins.every("piece_notes")
    ]
    return [note for note in opened if note is not None]


def row(loader: Loader, number: int, place: int = 0) -> RowTrace:
    """Return row `place` of step `number`, counted over all ranks, with its tokens."""
    found = stores(loader)
    if place == 0:  # the others are looked up in what was packed for it
        _log_packing(loader)
    rows = loader.look_up(number).rows
    num_rows = rows.num_rows
    if not 0 <= place < num_rows:
        raise PlanError(
            f"row {place} does not exist: step {number} has {num_rows} rows, counted from 0"
        )
    dealt = dealt_rows(rows, loader.world.size, loader.plan.settings)
    one_row = _one(rows, place)
    chosen = trace_row(loader, found, one_row, number, *_rank_of(place, dealt))
    tokens: list[Token] = []
    for span, segment in enumerate(chosen.segments):
        store = found[segment.source]
        raw = store.source[segment.sample]
        rendered = rendered_text(store, raw) if loader.plan.objective is None else None
        whole = sample_tokens(store, _delivered(loader, store, one_row, span), raw, rendered)
        tokens += [PADDING] * (segment.place - len(tokens))
        tokens += [
            replace(whole[segment.start], trained=False),
            *whole[segment.start + 1 : segment.stop],
        ]
    tokens += [PADDING] * (chosen.max_length - len(tokens))
    return replace(chosen, tokens=tuple(tokens))


def _rank_of(place: int, dealt: Ints) -> tuple[int, int]:
    """Return (rank, row in its batch) of a row of a step; `dealt` is that of `dealt_rows`."""
    (rank,), (row,) = np.nonzero(dealt == place)
    return int(rank), int(row)


def place_of(loader: Loader, landing: Landing) -> int:
    """Return the row of its step, counted over all ranks, in which a sample is."""
    rows = loader.look_up(landing.step).rows
    return int(dealt_rows(rows, loader.world.size, loader.plan.settings)[landing.rank, landing.row])


def _one(rows: Rows, number: int) -> Rows:
    return rows.slice(number, number + 1)


def _delivered(loader: Loader, store: Store, rows: Rows, span: int) -> Sample:
    """Return the sample of a span as batches have it: changed, if the run has an objective."""
    source, number, _, _ = rows.spans[span].tolist()
    stored: Sample = store[number]
    objective = loader.plan.objective
    if objective is None:
        return stored
    passes = np.zeros(1, np.int64) if rows.passes is None else rows.passes[span : span + 1]
    changed = objective.change(source, np.array([number]), passes)
    delivered: Sample = replace(stored, input_ids=changed.input_ids, loss_mask=changed.loss_mask)
    return delivered


def trace_row(
    loader: Loader, found: dict[str, Store], rows: Rows, number: int, rank: int, row: int
) -> RowTrace:
    """Return the one row of `rows`, which is row `row` of a rank's batch at step `number`."""
    settings = loader.plan.settings
    named = list(found.items())
    segments = []
    used = 0
    for span, (source, sample, start, stop) in enumerate(rows.spans.tolist()):
        name, store = named[source]
        made = _delivered(loader, store, rows, span)
        trained = int(np.count_nonzero(made.loss_mask[start + 1 : stop]))
        segments.append(
            RowSegment(
                source=name,
                sample=sample,
                where=str(made.where),
                place=used,
                start=start,
                stop=stop,
                length=len(made),
                trained=trained,
            )
        )
        used += -(-(stop - start) // settings.align) * settings.align
    trained = sum(segment.trained for segment in segments)
    return RowTrace(
        step=number,
        rank=rank,
        row=row,
        max_length=settings.max_length,
        used=used,
        trained=trained,
        segments=tuple(segments),
    )


def epoch_steps(loader: Loader, epoch: int) -> tuple[int, int, int]:
    """Return the first step that has rows of an epoch, how many rows of earlier epochs it has, too, and how many steps have rows of it.

    With last_step="wrap" a step may have rows of two epochs; with "drop" the rows after the last full step are in none.
    """
    per_step = loader.batch_size * loader.world.size
    end = _end(loader, epoch)
    first = 0
    for part in loader.plan.parts(per_step, end, Position()):
        if part.epoch == epoch:
            steps, rest = divmod(part.carried + part.num_rows, per_step)
            steps += rest > 0 and loader.plan.settings.last_step != "drop"
            most = loader.run.loop.max_steps
            return first, part.carried, steps if most is None else max(min(steps, most - first), 0)
        first += part.steps
    return first, 0, 0  # the budget of the run ends before it


def _end(loader: Loader, epoch: int) -> int | None:
    """Return the epoch before which a run ends that reaches this one; None for an endless run."""
    epochs = loader.run.loop.epochs
    return None if epochs is None else max(epochs, epoch + 1)


def _starts_of_steps(loader: Loader, epoch: int) -> tuple[int, Ints, int]:
    """Return the first step of an epoch, the row of the epoch at which each of its steps begins, and its rows in steps.

    For steps of tokens, which have sizes of their own: every step up to there is looked up.
    """
    run = loader.run.at_step(0)
    first = 0
    starts = []
    num_rows = 0
    for number, step in enumerate(run.steps_from(run.cursor)):
        if step.epoch > epoch:
            break
        if step.epoch < epoch:
            first = number + 1
            continue
        starts.append(num_rows)
        num_rows += step.num_real
    return first, np.array(starts, np.int64), num_rows


class Positions:
    """Finds the positions of some samples in an epoch; `add` takes the epoch's rows in order."""

    def __init__(self, loader: Loader, samples: Iterable[tuple[int, int]], epoch: int = 0) -> None:
        self._loader = loader
        self._stores = stores(loader)
        self._epoch = epoch
        self._num_rows = 0
        self._found: dict[tuple[int, int], list[Landing]] = {each: [] for each in samples}
        self._samples = np.unique([sample for _, sample in self._found])
        self._per_step = loader.batch_size * loader.world.size
        # without earlier epochs and a dropped last step, the rows of the epoch need not be counted
        is_cut = not loader.run.ends_with_epochs and not loader.run.is_endless
        is_counted = epoch or is_cut or loader.plan.settings.last_step == "drop"
        self._last_row: int | None = None
        self._starts: Ints | None = None  # the first row of each step, with steps of tokens
        if loader.run.has_steps_of_tokens:
            self._first, self._starts, self._last_row = _starts_of_steps(loader, epoch)
            return
        self._first, self._carried, steps = (
            epoch_steps(loader, epoch) if is_counted else (0, 0, None)
        )
        if steps is not None:
            self._last_row = steps * self._per_step - self._carried
        if is_cut:
            within, _ = loader.plan.rows_within(epoch)
            self._last_row = min(within, self._last_row or 0)

    @property
    def is_full(self) -> bool:
        return all(len(found) == _MOST_LANDINGS for found in self._found.values())

    def of(self, source: int, sample: int) -> tuple[Landing, ...]:
        return tuple(self._found[source, sample])

    def add(self, rows: Rows) -> None:
        kept = (
            rows.num_rows
            if self._last_row is None
            else min(max(self._last_row - self._num_rows, 0), rows.num_rows)
        )
        spans = rows.spans[: rows.starts[kept]]
        align = self._loader.plan.settings.align
        for span in np.flatnonzero(np.isin(spans["sample"], self._samples)).tolist():
            found = self._found.get((int(spans["source"][span]), int(spans["sample"][span])))
            if found is not None and len(found) < _MOST_LANDINGS:
                number = int(np.searchsorted(rows.starts, span, side="right")) - 1
                step, rank, row = self._place(rows, number)
                before = spans[rows.starts[number] : span]
                found.append(
                    Landing(
                        epoch=self._epoch,
                        step=step,
                        rank=rank,
                        row=row,
                        place=int((-((before["start"] - before["stop"]) // align) * align).sum()),
                        start=int(spans["start"][span]),
                        stop=int(spans["stop"][span]),
                    )
                )
        self._num_rows += rows.num_rows

    def row(self, rows: Rows, number: int) -> RowTrace:
        """Return row `number` of `rows`, which are about to be added."""
        one_row = _one(rows, number)
        return trace_row(self._loader, self._stores, one_row, *self._place(rows, number))

    def _place(self, rows: Rows, number: int) -> tuple[int, int, int]:
        """Return step, rank and row in its batch of row `number` of `rows`, which are about to be added."""
        plan = self._loader.plan
        size = self._loader.world.size
        if self._starts is not None:
            row = self._num_rows + number
            step = int(np.searchsorted(self._starts, row, side="right")) - 1
            whole_step = self._loader.look_up(self._first + step)
            dealt = dealt_rows(whole_step.rows, size, plan.settings)
            return self._first + step, *_rank_of(row - int(self._starts[step]), dealt)
        step, place = divmod(self._carried + self._num_rows + number, self._per_step)
        first = number - place
        whole = Rows.empty(self._per_step)
        if size > 1 and self._loader.batch_size > 1:  # else the costs of rows decide nothing
            if 0 <= first <= rows.num_rows - self._per_step:
                whole = rows.slice(first, first + self._per_step)
            else:  # it also has rows before or after these
                end = _end(self._loader, self._epoch)
                found = plan.step(
                    plan.seek(self._first + step, self._per_step, epochs=end),
                    self._per_step,
                    epochs=end,
                )
                whole = whole if found is None else found.rows
        return self._first + step, *_rank_of(place, dealt_rows(whole, size, plan.settings))


def outcome(
    settings: PlanSettings, sample: Sample, landings: tuple[Landing, ...], epoch: int
) -> str:
    """Say in words what happened to a sample."""
    length = len(sample)
    kept = sum(landing.stop - landing.start for landing in landings)
    if not length:
        return f"dropped when it was prepared: {sample.reason} ({meaning(sample.reason)})"
    if len(landings) == _MOST_LANDINGS:
        return (
            f"at least {len(landings):,} times in the epoch, whole or in pieces; these are listed"
        )
    if len(landings) > 1:
        rest = (
            f": {kept:,} of {length:,} tokens, nothing in the rest is trained"
            if kept < length
            else ""
        )
        return (
            f"split into {len(landings)} pieces{rest}"
            if kept <= length
            else f"{len(landings)} times in the epoch"
        )
    if landings:
        return (
            "in one row, not split"
            if kept >= length
            else f"cut: {kept:,} of {length:,} tokens are kept"
        )
    if _longest(sample) > settings.capacity and settings.on_overlong == "drop":
        return _overlong(sample, settings)
    has_tail = settings.last_step == "drop"
    if lacks_targets(sample.loss_mask, settings) or (settings.weights is None and not has_tail):
        return f"dropped as nothing_to_train: cut at max_length {settings.max_length:,}, no piece of it holds a target"
    reasons = ["the mixture takes only part of this dataset"] * (settings.weights is not None)
    reasons += ["rows after the last full step are dropped (last_step: drop)"] * has_tail
    return f"not in epoch {epoch}: {', or '.join(reasons)}"


def _overlong(sample: Sample, settings: PlanSettings) -> str:
    return (
        f"dropped as too long: {_longest(sample):,} tokens, max_length is {settings.max_length:,}"
    )


def _longest(sample: Sample) -> int:
    """Return what max_length limits: the length of a sample, or of its longest sequence."""
    lengths = sample.columns.get(SEQUENCE_LENGTHS.name)
    return len(sample) if lengths is None or not len(lengths) else int(lengths.max())


def lacks_targets(mask: Bools, settings: PlanSettings) -> bool:
    """Return whether a sample with this loss mask is cut into pieces without any target."""
    length = len(mask)
    capacity = settings.capacity
    if (
        length <= capacity
        or settings.method.cuts
        or settings.on_overlong not in ("truncate", "split")
    ):
        return False
    starts = range(0, length, capacity) if settings.on_overlong == "split" else (0,)
    return not any(mask[start + 1 : start + capacity].any() for start in starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFit:
    """Whether a saved state fits a plan; `why` names what differs, or the position and the steps that are left."""

    fits: bool
    why: str
    step: int | None = None
    epoch: int | None = None
    steps_left: int | None = None  # under this batch and world size


def compare_state(loader: Loader, state: dict[str, Any]) -> StateFit:
    """Load the state into the loader; the state of another plan is a result, not an error."""
    try:
        loader.load_state_dict(state)
    except PlanMismatch as error:
        return StateFit(fits=False, why=str(error))
    now = loader.state_dict()
    left = loader.steps_left
    rest = "" if left is None else f", {left:,} steps left"
    step = now["step"]
    epoch = now["epoch"]
    why = f"fits: continues at step {step:,} in epoch {epoch}{rest}"
    return StateFit(fits=True, why=why, step=step, epoch=epoch, steps_left=left)
