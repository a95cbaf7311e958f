"""What is worth drawing of an epoch, and of its samples?  A bounded choice, made by name and seed, found in one walk over the rows.

    chosen(loader, …)      samples by source: the longest, the shortest, some at random, the first that were dropped
    survey(loader, …)      how full every row is, rows from all over the epoch as segments, the chosen samples token by token
    trained_shares(store)  how much of a sample is trained, over samples from all over

The same loader gives the same choice.  A page of a store of a thousand samples and one of a billion have the same size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError
from penstock.loader import Loader
from penstock.plan.block import Rows
from penstock.plan.seeds import derive, keyed_words
from penstock.report import walk
from penstock.report.numbers import epoch_rows, stores
from penstock.report.numbers import names as names_of
from penstock.report.record_text import record_text
from penstock.store import Sample, Store
from penstock.types import Bools, Ints

FILL_BINS = 20  # of 5 % each, and one more for rows that are full
SHARE_BINS = 20
SHARES_LOOKED = 2_000  # samples of a source whose masks are read
HEAD, TAIL = 700, 100  # tokens drawn of a long sample: how it begins and how it ends
MOST_RAW = 6_000  # characters of a record

_MOST_ENDS = 8  # sources whose longest and shortest samples are shown
_MOST_DROPS = 12
_DROPS_EACH = 2  # of one reason
_MOST_LANDINGS = 16
_LANE = 1_000  # places that the trained part of a row is drawn with


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A sample, and why it was chosen."""

    source: int
    sample: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A sample as it is drawn: `head` and `tail` are tokens; between them `num_tokens - len(head) - len(tail)` are left out."""

    source: int
    sample: int
    why: str
    where: str
    raw: str
    raw_length: int  # characters of the whole record, of which `raw` may be the beginning
    head: tuple[walk.Token, ...]
    tail: tuple[walk.Token, ...]
    num_tokens: int
    trained: int
    special: frozenset[int]  # ids, of the tokens here
    landings: tuple[walk.Landing, ...]
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRow:
    """A row as segments, with the places that are trained: runs (start, stop), no finer than can be seen."""

    number: int  # in the epoch
    row: walk.RowWalk
    trained: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One epoch at a glance."""

    fills: tuple[int, ...]  # (FILL_BINS + 1,) rows by how full they are; the last counts those that are full
    mean_samples: float  # per row
    most_samples: int
    rows: tuple[DrawnRow, ...]
    samples: tuple[Shown, ...]


def chosen(loader: Loader, *, num_samples: int) -> tuple[Pick, ...]:
    """Samples worth a look, by source.  Chance is seeded with the plan's seed and the source's name."""
    found = stores(loader)
    picks: dict[tuple[int, int], Pick] = {}

    def pick(source: int, sample: int, why: str) -> None:
        picks.setdefault((source, sample), Pick(source=source, sample=sample, why=why))

    for source, store in enumerate(found):
        lengths = store.lengths
        if source < _MOST_ENDS and lengths.any():
            pick(source, int(lengths.argmax()), "longest")
            pick(source, int(np.where(lengths > 0, lengths, lengths.max()).argmin()), "shortest")
        share = num_samples // len(found) + (source < num_samples % len(found))
        key = derive(loader.plan.settings.seed, "report", loader.plan.sources[source].name)
        for sample in _by_chance(lengths, share, key):
            pick(source, sample, "random")
    drops = [
        (source, row, reason)
        for source, store in enumerate(found)
        for reason, part in store.counts.dropped.items()
        for row in list(part.rows)[:_DROPS_EACH]
    ]
    for source, row, reason in drops[:_MOST_DROPS]:
        pick(source, int(row), f"dropped: {reason}")
    return tuple(sorted(picks.values(), key=lambda each: each.source))


def survey(loader: Loader, picks: Sequence[Pick], *, num_rows: int, epoch: int = 0) -> Survey:
    """One walk over an epoch's rows."""
    found, settings, total = stores(loader), loader.plan.settings, loader.plan.num_rows(epoch)
    per_step = loader.batch_size * loader.world.size
    wanted = spread(total, num_rows)
    fills, spans, most = np.zeros(FILL_BINS + 1, np.int64), 0, 0
    drawn: list[DrawnRow] = []
    landings: dict[tuple[int, int], list[walk.Landing]] = {(each.source, each.sample): [] for each in picks}
    first = 0
    for rows in epoch_rows(loader, epoch):
        fills += _fills(rows, settings.max_length)
        spans += len(rows.spans)
        most = max(most, int(np.diff(rows.starts).max(initial=0)))
        for number in wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, first + len(rows))].tolist():
            step, place = divmod(number, per_step)
            row = walk.segments(loader, found, rows[number - first], step, place)
            drawn.append(DrawnRow(number=number, row=row, trained=_trained_runs(loader, found, row)))
        _land(loader, rows, first, epoch, landings)
        first += len(rows)
    return Survey(
        fills=tuple(fills.tolist()),
        mean_samples=spans / first if first else 0.0,
        most_samples=most,
        rows=tuple(drawn),
        samples=tuple(shown(loader, each, tuple(landings[each.source, each.sample]), epoch) for each in picks),
    )


def shown(loader: Loader, pick: Pick, landings: tuple[walk.Landing, ...] | None, epoch: int = 0) -> Shown:
    """One sample, ready to be drawn; without landings where there is no plan."""
    store = stores(loader)[pick.source]
    sample = store[pick.sample]
    raw, text = _raw(store, sample.row)
    head, tail = _drawn_tokens(store, sample, raw)
    if not len(sample):
        outcome = f"{pick.why}, when prepared" if pick.why.startswith("dropped") else "it has no tokens"
    else:
        outcome = "" if landings is None else walk.outcome(loader, sample, landings, epoch)
    return Shown(
        source=pick.source,
        sample=sample.row,
        why=pick.why,
        where=str(sample.where),
        raw=text[:MOST_RAW],
        raw_length=len(text),
        head=head,
        tail=tail,
        num_tokens=len(sample),
        trained=int(np.count_nonzero(sample.loss_mask[1:])),
        special=_special_ids(store) & {token.id for token in (*head, *tail)},
        landings=landings or (),
        outcome=outcome,
    )


def trained_shares(store: Store) -> tuple[int, ...]:
    """Samples by the share of their tokens that are targets, in bins of 5 %, of up to SHARES_LOOKED from all over the store."""
    counts = np.zeros(SHARE_BINS, np.int64)
    for row in spread(len(store), SHARES_LOOKED).tolist():
        mask = store[row].loss_mask
        if mask.size:
            counts[min(int(np.count_nonzero(mask[1:]) * SHARE_BINS / mask.size), SHARE_BINS - 1)] += 1
    return tuple(counts.tolist())


def spread(total: int, at_most: int) -> Ints:
    """Numbers below `total`, evenly apart, the first and the last among them; all where they are few."""
    if total <= at_most:
        return np.arange(total, dtype=np.int64)
    return np.unique(np.linspace(0, total - 1, max(at_most, 1)).round().astype(np.int64))


def _by_chance(lengths: npt.NDArray[np.int32], count: int, key: int) -> list[int]:
    """Up to `count` samples that have tokens."""
    if count <= 0 or not lengths.any():
        return []
    if lengths.size <= count:
        return [int(number) for number in np.flatnonzero(lengths)]
    tries = (keyed_words(key, 8 * count) % np.uint64(lengths.size)).astype(np.int64)
    kept = dict.fromkeys(int(number) for number in tries if lengths[number] > 0)
    return list(kept)[:count]


def _fills(rows: Rows, max_length: int) -> Ints:
    sums = np.concatenate(([0], np.cumsum(rows.spans["stop"] - rows.spans["start"])))[rows.starts]
    used = np.diff(sums)
    return np.bincount(used * FILL_BINS // max_length, minlength=FILL_BINS + 1)[: FILL_BINS + 1].astype(np.int64)


def _land(
    loader: Loader, rows: Rows, first: int, epoch: int, landings: Mapping[tuple[int, int], list[walk.Landing]]
) -> None:
    samples = np.array(sorted({sample for _, sample in landings}), np.int64)
    for span in np.flatnonzero(np.isin(rows.spans["sample"], samples)).tolist():
        places = landings.get((int(rows.spans["source"][span]), int(rows.spans["sample"][span])))
        if places is not None and len(places) < _MOST_LANDINGS:
            places.append(walk.landing(loader, rows, span, first=first, epoch=epoch))


def _trained_runs(loader: Loader, found: Sequence[Store], row: walk.RowWalk) -> tuple[tuple[int, int], ...]:
    names = names_of(loader)
    mask = np.zeros(row.max_length, np.bool_)
    for part in row.segments:
        own = found[names.index(part.source)][part.sample].loss_mask[part.start : part.stop]
        mask[part.place + 1 : part.place + len(own)] = own[1:]  # its first token is nobody's target
    grain = -(-row.max_length // _LANE)
    return tuple((start * grain, min(stop * grain, row.max_length)) for start, stop in _runs(_coarse(mask, grain)))


def _coarse(mask: Bools, grain: int) -> Bools:
    """One place for each `grain`, True where most of them are."""
    padded = np.concatenate((mask, np.zeros(-len(mask) % grain, np.bool_)))
    return np.asarray(padded.reshape(-1, grain).sum(axis=1) * 2 >= grain, np.bool_)


def _runs(mask: Bools) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _raw(store: Store, row: int) -> tuple[dict[str, Any] | None, str]:
    """A record as it was read and as JSON; or why it cannot be read."""
    try:
        raw = store.source[row]
    except PenstockError as error:
        return None, str(error)
    return raw, record_text(raw)


def _drawn_tokens(
    store: Store, sample: Sample, raw: dict[str, Any] | None
) -> tuple[tuple[walk.Token, ...], tuple[walk.Token, ...]]:
    rendered = None
    if raw is not None and len(sample):
        try:
            rendered = walk.rendering(store, raw)
        except PenstockError:
            rendered = None  # then its tokens are decoded
    if len(sample) <= HEAD + TAIL:
        return walk.tokens(store, sample, rendered), ()
    head = walk.tokens(store, sample, rendered, slice(0, HEAD))
    return head, walk.tokens(store, sample, rendered, slice(len(sample) - TAIL, None))


def _special_ids(store: Store) -> frozenset[int]:
    tokenizer: Any = getattr(store.template, "tokenizer", None)
    if tokenizer is None:
        return frozenset()
    ends = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
    added = (tokenizer.added_tokens[name] for name in tokenizer.special_added)
    return frozenset(number for number in (*added, *ends) if number is not None)
