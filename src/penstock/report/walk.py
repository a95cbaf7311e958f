"""Where does this record go, and what is in that row?  One record through every stage, one row as segments, one step as rows.

    record(loader, sample)      raw → rendered → tokens → where it lands
    row(loader, step, number)   a row as segments: whose tokens, how many of them trained, what is padding
    step(loader, number)        all rows of a step, or those of one rank

For whoever walks over many at once: `tokens`, `rendering`, `segments`, `landing`, `outcome`, each for one of them.
All are frozen values made of plain ones; `numbers.plain` makes JSON of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from penstock.errors import PenstockError, PlanError
from penstock.loader import Loader
from penstock.plan.block import Rows
from penstock.plan.plan import Position
from penstock.plan.settings import PlanSettings
from penstock.report.numbers import epoch_rows, stores
from penstock.store import Sample, Store

_MOST_LANDINGS = 16
_MOST_PARTS = 8  # tokens that may share one character


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """`text` is what it stands for; the first of several tokens that share a character has it, the others have ""."""

    id: int
    text: str
    trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A place of a sample, or of a piece of it, in an epoch."""

    epoch: int
    step: int
    rank: int
    row: int  # in that rank's batch
    place: int  # of the first token in the row
    start: int  # tokens start..stop of the sample
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWalk:
    """One record through every stage.  `outcome` says in words what became of it."""

    source: str
    sample: int  # its row number
    where: str
    raw: str  # JSON; of a row that cannot be read, why
    rendered: str | None  # as text, before it became tokens; None where there is none
    tokens: tuple[Token, ...]
    trained: int
    landings: tuple[Landing, ...]
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Neighbouring tokens of one sample in a row."""

    source: str
    sample: int
    where: str
    place: int  # of the first token in the row
    start: int  # tokens start..stop of the sample
    stop: int
    length: int  # of the whole sample
    trained: int  # of these tokens, those that are targets: a segment's first token never is


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWalk:
    """A row as segments; the rest up to `max_length` is padding.  `tokens` is as long as the row where it was asked for."""

    step: int
    rank: int
    row: int  # in that rank's batch
    max_length: int
    used: int
    trained: int
    segments: tuple[Segment, ...]
    tokens: tuple[Token, ...] = ()

    @property
    def padding(self) -> int:
        return self.max_length - self.used


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWalk:
    """A step: the rows of one rank, or of all, in the global order.  Rows beyond `num_real` fill up the epoch's last step."""

    plan: str
    step: int
    epoch: int
    batch_size: int
    world_size: int
    rank: int | None  # None: all ranks
    num_real: int
    num_repeated: int
    rows: tuple[RowWalk, ...]


def record(loader: Loader, sample: int, *, source: int = 0, epoch: int = 0) -> RecordWalk:
    """One record of one source, from its file to its place in an epoch."""
    found = stores(loader)
    store, name = found[source], loader.plan.sources[source].name
    if not -len(store) <= sample < len(store):
        raise PlanError(f"row {sample} of {name!r}: it has {len(store):,} rows, counted from 0")
    made = store[sample]
    raw, shown = _raw(store, made.row)
    rendered = rendering(store, raw) if len(made) else None
    landings = _landings(loader, source, made.row, epoch) if len(made) else ()
    return RecordWalk(
        source=name,
        sample=made.row,
        where=str(made.where),
        raw=shown,
        rendered=rendered,
        tokens=tokens(store, made, rendered),
        trained=int(np.count_nonzero(made.loss_mask)),
        landings=landings,
        outcome=outcome(loader, made, landings, epoch),
    )


def unprepared(store: Store, settings: PlanSettings, number: int, name: str) -> RecordWalk:
    """One record of a data set that is not prepared; `store` holds it alone, as its row 0.  Where it is trained is not known."""
    made = store[0]
    raw, shown = _raw(store, 0)
    rendered = rendering(store, raw) if len(made) else None
    return RecordWalk(
        source=name,
        sample=number,
        where=str(made.where),
        raw=shown,
        rendered=rendered,
        tokens=tokens(store, made, rendered),
        trained=int(np.count_nonzero(made.loss_mask)),
        landings=(),
        outcome=_without_plan(store, made, settings),
    )


def _without_plan(store: Store, made: Sample, settings: PlanSettings) -> str:
    if not len(made):
        return f"dropped: {', '.join(store.counts.dropped)}"
    if len(made) > settings.capacity and settings.overflow == "drop":
        return _overlong(made, settings)
    return "not known: this data set is not prepared; run penstock prepare first"


def _overlong(made: Sample, settings: PlanSettings) -> str:
    return f"dropped as overlong: {len(made):,} tokens, max_length is {settings.max_length:,}"


def step(loader: Loader, number: int, *, rank: int | None = None) -> StepWalk:
    """What is in a step, without running to it."""
    world, per_step = loader.world, loader.batch_size * loader.world.size
    if rank is not None and not 0 <= rank < world.size:
        raise PlanError(f"rank {rank}: there are {world.size}, counted from 0")
    found = stores(loader)
    position, first = _start(loader)
    if number < first:
        raise PlanError(f"step {number} lies before step {first}, where the state was taken; ask without the state")
    try:
        here = loader.plan.seek(number - first, per_step, epochs=loader.epochs, start=position)
    except PlanError as error:
        raise PlanError(f"step {number} is not there: {str(error).partition(': ')[2]}") from error
    taken = loader.plan.step(here, per_step, epochs=loader.epochs)
    if taken is None:
        raise PlanError(f"step {number} is past the end: the run has {len(loader)} steps, counted from 0")
    rows = []
    for place in range(per_step):
        if rank is None or place % world.size == rank:
            rows.append(segments(loader, found, taken.rows[place], number, place))
    return StepWalk(
        plan=loader.plan.fingerprint,
        step=number,
        epoch=taken.epoch,
        batch_size=loader.batch_size,
        world_size=world.size,
        rank=rank,
        num_real=taken.num_real,
        num_repeated=taken.num_repeated,
        rows=tuple(rows),
    )


def row(loader: Loader, number: int, place: int = 0) -> RowWalk:
    """Row `place` of step `number`, counted over all ranks, with its tokens."""
    rows = step(loader, number).rows
    if not 0 <= place < len(rows):
        raise PlanError(f"row {place} of step {number}: it has {len(rows)}, counted from 0")
    found, names = stores(loader), [source.name for source in loader.plan.sources]
    parts: list[Token] = []
    for segment in rows[place].segments:
        store = found[names.index(segment.source)]
        sample = store[segment.sample]
        parts += _padding(segment.place - len(parts))
        whole = tokens(store, sample, rendering(store, store.source[sample.row]))
        parts += whole[segment.start : segment.stop]
    parts += _padding(rows[place].max_length - len(parts))
    chosen = rows[place]
    return RowWalk(**{**{name: getattr(chosen, name) for name in chosen.__slots__}, "tokens": tuple(parts)})


def tokens(store: Store, sample: Sample, rendered: str | None, part: slice = slice(None)) -> tuple[Token, ...]:
    """Ids with the text that each stands for: cut from the rendered text where its ids are these, else decoded.

    part: only these tokens; decoding every token of a very long sample takes a while.
    """
    start, stop, _ = part.indices(len(sample))
    texts = _from_text(store, sample, rendered) if rendered is not None else None
    texts = texts[start:stop] if texts is not None else _decoded(store, sample, start, stop)
    ids, mask = sample.input_ids[start:stop].tolist(), sample.loss_mask[start:stop].tolist()
    return tuple(Token(id=i, text=text, trained=yes) for i, text, yes in zip(ids, texts, mask, strict=True))


def _padding(count: int) -> list[Token]:
    return [Token(id=-1, text="", trained=False)] * count


def _start(loader: Loader) -> tuple[Position, int]:
    """Where the loader stands, as its own state says."""
    state = loader.state_dict()
    return Position(epoch=state["epoch"], block=state["block"], row=state["row"], rows=state["rows"]), state["step"]


def segments(loader: Loader, found: Sequence[Store], spans: Any, number: int, place: int) -> RowWalk:
    """The row of these spans, which is row `place` of step `number`, counted over all ranks."""
    names, settings = [source.name for source in loader.plan.sources], loader.plan.settings
    parts, used = [], 0
    for source, sample, start, stop in spans.tolist():
        made = found[source][sample]
        parts.append(
            Segment(
                source=names[source],
                sample=sample,
                where=str(made.where),
                place=used,
                start=start,
                stop=stop,
                length=len(made),
                trained=int(np.count_nonzero(made.loss_mask[start + 1 : stop])),
            )
        )
        used += -(-(stop - start) // settings.align) * settings.align
    return RowWalk(
        step=number,
        rank=place % loader.world.size,
        row=place // loader.world.size,
        max_length=settings.max_length,
        used=used,
        trained=sum(part.trained for part in parts),
        segments=tuple(parts),
    )


def _landings(loader: Loader, source: int, sample: int, epoch: int) -> tuple[Landing, ...]:
    """Places of a sample in an epoch; looks at its rows until the last piece is found, or all have been seen."""
    first, found = 0, []
    for rows in epoch_rows(loader, epoch):
        spans = rows.spans
        for span in np.flatnonzero((spans["source"] == source) & (spans["sample"] == sample)).tolist():
            found.append(landing(loader, rows, span, first=first, epoch=epoch))
        if len(found) >= _MOST_LANDINGS:
            break
        first += rows.num_rows
    return tuple(found[:_MOST_LANDINGS])


def landing(loader: Loader, rows: Rows, span: int, *, first: int, epoch: int) -> Landing:
    """Where one span of these rows of an epoch lies; `first` counts the rows of the epoch before them."""
    world, per_step, align = loader.world, loader.batch_size * loader.world.size, loader.plan.settings.align
    before_epoch = loader.plan.num_steps(per_step, epochs=epoch) if epoch else 0
    spans, place = rows.spans, int(np.searchsorted(rows.starts, span, side="right")) - 1
    sizes = spans["stop"][rows.starts[place] : span] - spans["start"][rows.starts[place] : span]
    in_step = (first + place) % per_step
    return Landing(
        epoch=epoch,
        step=before_epoch + (first + place) // per_step,
        rank=in_step % world.size,
        row=in_step // world.size,
        place=int((-(-sizes // align) * align).sum()),
        start=int(spans["start"][span]),
        stop=int(spans["stop"][span]),
    )


def outcome(loader: Loader, sample: Sample, landings: tuple[Landing, ...], epoch: int) -> str:
    """In words, what became of a sample."""
    settings, length = loader.plan.settings, len(sample)
    if not length:
        return "dropped when the store was made: nothing is left to train on"
    if not landings and length > settings.capacity and settings.overflow == "drop":
        return _overlong(sample, settings)
    if not landings:
        return f"not in epoch {epoch}: the mixture takes only part of this source"
    kept = sum(landing.stop - landing.start for landing in landings)
    if len(landings) > 1:
        return f"in {len(landings)} places"
    return "whole, in one row" if kept >= length else f"cut: {kept:,} of {length:,} tokens"


def _raw(store: Store, row: int) -> tuple[dict[str, Any], str]:
    """A record, and how it looks."""
    try:
        found = store.source[row]
    except PenstockError as error:
        return {}, str(error)
    return found, orjson.dumps(found, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def rendering(store: Store, raw: dict[str, Any]) -> str | None:
    """The text of a conversation as its own template makes it; other templates add nothing that decoding would not show."""
    render = getattr(store.template, "rendering", None)
    return None if render is None else str(render(raw).text)


def _from_text(store: Store, sample: Sample, rendered: str) -> list[str] | None:
    tokenizer = getattr(store.template, "tokenizer", None)
    if tokenizer is None:
        return None
    encoded = tokenizer.encode_spans([rendered])
    if not np.array_equal(encoded.ids, sample.input_ids):
        return None  # special tokens in somebody's words were kept as letters
    raw, texts, done = rendered.encode(), [], 0
    for stop in encoded.stops.tolist():
        end = stop
        while end < len(raw) and raw[end] & 0xC0 == 0x80:  # in the middle of a character: it goes with its first token
            end += 1
        texts.append(raw[done:end].decode(errors="replace") if end > done else "")
        done = max(done, end)
    return texts


def _decoded(store: Store, sample: Sample, start: int, stop: int) -> list[str]:
    """Token by token, after another one: a tokenizer may drop the blank that a text begins with."""
    ids = sample.input_ids
    try:
        store.template.decode(ids[:1])
    except PenstockError:
        return [f"[{number}]" for number in ids[start:stop].tolist()]  # no tokenizer
    texts: list[str] = []
    place = start
    while place < stop:
        for size in range(1, _MOST_PARTS + 1):
            text = _after(store, ids, place, size)
            if "\ufffd" not in text or place + size >= len(ids):
                break
        else:
            size, text = 1, _after(store, ids, place, 1)
        texts += [text, *[""] * (size - 1)]
        place += size
    return texts[: max(stop - start, 0)]


def _after(store: Store, ids: Any, place: int, size: int) -> str:
    if not place:
        return store.template.decode(ids[:size])
    before = store.template.decode(ids[place - 1 : place])
    both = store.template.decode(ids[place - 1 : place + size])
    return both[len(before) :] if both.startswith(before) else store.template.decode(ids[place : place + size])
