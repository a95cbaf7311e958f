"""Compute the numbers of stores and plans, as frozen values; text, JSON and HTML only show them.

    sources(loader)          per source: rows, tokens, trained, dropped by reason with places, lengths with a histogram
    epoch(loader)            one epoch: steps, rows, fill, tail, counters, shares by source, a digest of the order
    fits(loader, …)          the same data under several max_length × packing, side by side

Rows and records one by one are in walk.py, verdicts in checks.py.  `plain(value)` makes JSON values of any of them: field names there are
field names here, and they stay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.fingerprint import Digest
from penstock.loader import Loader
from penstock.plan.block import Rows
from penstock.plan.counters import Counters
from penstock.plan.mixing import Mixing, MixingCounter
from penstock.plan.plan import Plan, Position
from penstock.store import Store
from penstock.store.notes import unrendered
from penstock.types import Ints, Where

PACKINGS = ("best_fit", "concat", "none")  # compared where nobody says which
_AT_ONCE = 1 << 14  # rows looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Bin i counts the samples with edges[i] < length <= edges[i + 1]; edges grow by half powers of two.

    A bin holds its upper edge, so that samples of exactly max_length, which fit, are not among those that are too long.
    """

    edges: tuple[int, ...]  # (num_bins + 1,)
    counts: tuple[int, ...]  # (num_bins,)
    tokens: tuple[int, ...]  # (num_bins,) tokens of those samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens per sample, of samples that have any."""

    count: int
    total: int
    min: int
    mean: float
    p50: int
    p90: int
    p99: int
    max: int
    histogram: Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Records that gave no sample, for one reason; `first` are places, as file:line."""

    reason: str
    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPrinted:
    """A field that the chat template does not print; `first` are places, as file:line."""

    field: str
    count: int  # rows
    characters: int
    share: float | None  # of the assistant's characters; None for a field of another role
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNumbers:
    """A store, as it lies on disk.  Law: rows = samples + the sum of drops."""

    name: str
    store: str  # its fingerprint
    rows: int
    samples: int
    tokens: int
    trained: int  # targets: trained tokens, without first tokens, which nothing predicts
    num_bytes: int  # of its shards
    weight: str | None
    dropped: tuple[Drop, ...]
    unrendered: tuple[NotPrinted, ...]
    lengths: Lengths

    @property
    def trained_share(self) -> float:
        return self.trained / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a source gives to an epoch."""

    name: str
    samples: int  # that reach a row; one that repeats counts again
    tokens: int
    share: float  # of the epoch's tokens
    unused: int = 0  # samples that the epoch does not come to, because it ends when another source is used up
    unused_share: float = 0.0  # of the source's samples


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochNumbers:
    """One epoch of a plan, under this batch and world size."""

    plan: str  # fingerprint: data, settings, seed
    order: str  # digest of every row of the epoch, in order
    epoch: int
    max_length: int
    packing: str
    overflow: str
    tail: str
    seed: int
    batch_size: int
    world_size: int
    rows_per_step: int
    steps: int  # of this epoch
    steps_of_run: int | None  # None where it is endless
    rows: int
    fill: float  # share of the rows' places that hold tokens; 0 without rows
    tokens_per_step: float
    counters: Counters  # with what becomes of the tail
    tail_rows: int  # rows of the last step, where it is not full; else 0
    shares: tuple[Share, ...]
    mixing: Mixing  # how like the whole epoch each tenth of it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The same data, cut and packed in one way.  `problem` says why it cannot be, and then there are no numbers."""

    max_length: int
    packing: str
    rows: int = 0
    steps: int = 0
    fill: float = 0.0
    tokens: int = 0
    samples_dropped: int = 0  # as overlong, or because they are cut before anything that is trained
    samples_cut: int = 0  # truncated or split
    tokens_lost: int = 0
    problem: str | None = None


def plain(value: Any) -> Any:
    """A value of this room as plain JSON: dicts of field names, lists, and places as file:line."""
    if isinstance(value, Where):
        return str(value)
    if is_dataclass(value):  # not asdict, which makes nonsense of a Counter
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def stores(loader: Loader) -> list[Store]:
    """The loader's stores; whole from here on.  Plain records have no tokens to speak of."""
    for store in loader.stores:
        if not isinstance(store, Store):
            raise PlanError("this loader serves plain records, which have no tokens; numbers are of prepared stores")
        store.wait()
    return list(loader.stores)


def names(loader: Loader) -> list[str]:
    """What the sources are called.  A plan of one source calls it "data", so that its order does not depend on a file's name."""
    known = [source.name for source in loader.plan.sources]
    return [store.name for store in stores(loader)] if known == ["data"] else known


def sources(loader: Loader) -> tuple[SourceNumbers, ...]:
    weights = loader.plan.settings.weights or [None] * len(loader.plan.sources)
    found = zip(names(loader), stores(loader), weights, strict=True)
    return tuple(_source(name, store, weight) for name, store, weight in found)


def lengths(found: Sequence[Store]) -> Lengths:
    """Of several stores together."""
    parts = [store.lengths for store in found]
    return length_numbers(np.concatenate(parts) if parts else np.zeros(0, np.int64))


def length_numbers(sizes: Ints) -> Lengths:
    """Numbers of these lengths; 0 stands for a record that gave no sample."""
    sizes = np.sort(sizes[sizes > 0])
    if not sizes.size:
        empty = Histogram(edges=(0, 1), counts=(0,), tokens=(0,))
        return Lengths(count=0, total=0, min=0, mean=0.0, p50=0, p90=0, p99=0, max=0, histogram=empty)
    p90, p99 = (int(sizes[min(int(share * sizes.size), sizes.size - 1)]) for share in (0.9, 0.99))
    return Lengths(
        count=int(sizes.size),
        total=int(sizes.sum()),
        min=int(sizes[0]),
        mean=float(sizes.mean()),
        p50=int(np.median(sizes)),
        p90=p90,
        p99=p99,
        max=int(sizes[-1]),
        histogram=_histogram(sizes),
    )


def epoch(loader: Loader, number: int = 0) -> EpochNumbers:
    """Everything about one epoch; costs one packing of all its lengths."""
    stores(loader)
    plan, settings = loader.plan, loader.plan.settings
    per_step = loader.batch_size * loader.world.size
    digest, tokens = Digest(), np.zeros(len(plan.sources), np.int64)
    rows, mixing = 0, MixingCounter(plan, number, names(loader))
    for part in epoch_rows(loader, number):
        spans = part.spans
        digest.extend(np.ascontiguousarray(spans).tobytes())
        digest.extend((part.starts[1:] - part.starts[:-1]).astype("<i8").tobytes())
        tokens += _per_source(spans["source"], len(tokens), spans["stop"] - spans["start"])
        mixing.add(part)
        rows += part.num_rows
    steps = plan.num_steps(per_step, epochs=number + 1) - plan.num_steps(per_step, epochs=number)
    counters = plan.count(number, per_step)
    whole = plan.count(number) if settings.tail == "drop" else counters  # with the rows that the tail drops
    total = int(tokens.sum())
    shares = _shares(loader, number, whole, tokens)
    return EpochNumbers(
        plan=plan.fingerprint,
        order=digest.hexdigest(),
        epoch=number,
        max_length=settings.max_length,
        packing=settings.packing,
        overflow=settings.overflow,
        tail=settings.tail,
        seed=settings.seed,
        batch_size=loader.batch_size,
        world_size=loader.world.size,
        rows_per_step=per_step,
        steps=steps,
        steps_of_run=None if loader.epochs is None else plan.num_steps(per_step, epochs=loader.epochs),
        rows=rows,
        fill=whole.fill,
        tokens_per_step=total / steps if steps else 0.0,
        counters=counters,
        tail_rows=rows % per_step,
        shares=shares,
        mixing=mixing.result(samples_out=whole.samples_out),
    )


def _shares(loader: Loader, number: int, whole: Counters, tokens: Ints) -> tuple[Share, ...]:
    plan = loader.plan
    taken, total = plan.blocks.samples_taken(number), max(int(tokens.sum()), 1)
    return tuple(
        Share(
            name=name,
            samples=whole.samples_by_source[place],
            tokens=int(tokens[place]),
            share=int(tokens[place]) / total,
            unused=(unused := max(source.num_samples - taken[place], 0)),
            unused_share=unused / max(source.num_samples, 1),
        )
        for place, (name, source) in enumerate(zip(names(loader), plan.sources, strict=True))
    )


def fits(
    loader: Loader, *, max_lengths: Sequence[int] | None = None, packings: Sequence[str] | None = None
) -> tuple[Fit, ...]:
    """The same data under other lengths and packings; those of the loader are always among them."""
    settings = loader.plan.settings
    wanted = sorted({*(max_lengths or _around(settings.max_length)), settings.max_length})
    ways = list(dict.fromkeys([settings.packing, *(packings or PACKINGS)]))
    return tuple(_fit(loader, length, packing) for length in wanted for packing in ways)


def counters(loader: Loader) -> Counters | None:
    """What becomes of samples and tokens in the first epoch; None where the plan refuses it (overflow or tail: error)."""
    try:
        stores(loader)
        return loader.plan.count(0, loader.batch_size * loader.world.size)
    except PlanError:
        return None


def epoch_rows(loader: Loader, number: int) -> Iterator[Rows]:
    """All rows of an epoch in order, many at a time, without what the tail adds or drops."""
    plan = changed_plan(loader, tail="pad")  # which rows there are does not depend on the tail
    for step in plan.walk(start=Position(epoch=number), num_rows=_AT_ONCE, epochs=number + 1):
        yield step.rows.slice(0, step.num_real)


def changed_plan(loader: Loader, **changes: Any) -> Plan:
    """The loader's plan with other settings."""
    stores(loader)
    return loader.plan.changed(**changes)


def _fit(loader: Loader, max_length: int, packing: str) -> Fit:
    per_step = loader.batch_size * loader.world.size
    try:
        plan = changed_plan(loader, max_length=max_length, packing=packing, tail="pad")
        counters = plan.count(0)
    except PlanError as error:  # settings that contradict each other, or overflow="error"
        return Fit(max_length=max_length, packing=packing, problem=str(error))
    return Fit(
        max_length=max_length,
        packing=packing,
        rows=counters.rows,
        steps=-(-counters.rows // per_step),
        fill=counters.fill,
        tokens=counters.tokens_out,
        samples_dropped=counters.samples_dropped["overlong"] + counters.samples_dropped["nothing_to_train"],
        samples_cut=counters.samples_truncated + counters.samples_split,
        tokens_lost=counters.tokens_dropped.total(),
    )


def _around(max_length: int) -> list[int]:
    return [length for length in (max_length // 4, max_length // 2, max_length, 2 * max_length) if length]


def _source(name: str, store: Store, weight: str | None) -> SourceNumbers:
    counts = store.counts
    manifest = store.manifest
    dropped = tuple(
        Drop(reason=reason, count=part.count, first=tuple(str(store.source.where(row)) for row in part.rows))
        for reason, part in counts.dropped.items()
    )
    return SourceNumbers(
        name=name,
        store=store.fingerprint,
        rows=counts.rows,
        samples=counts.samples,
        tokens=counts.tokens,
        trained=counts.trained - _trained_first_tokens(store),
        num_bytes=sum(entry.num_bytes for entry in manifest.shards) if manifest else 0,
        weight=weight,
        dropped=dropped,
        unrendered=tuple(
            NotPrinted(
                field=each.field,
                count=each.count,
                characters=each.characters,
                share=each.share,
                first=tuple(str(store.source.where(row)) for row in each.rows),
            )
            for each in unrendered(counts.notes, assistant_characters=counts.assistant_characters)
        ),
        lengths=lengths([store]),
    )


def _trained_first_tokens(store: Store) -> int:
    """Samples whose first token is marked as trained; no token comes before it, so it is never a target."""
    found = 0
    for shard in range(store.num_shards):
        tokens = store.tokens(shard)
        first = tokens.offsets[:-1][np.diff(tokens.offsets) > 0]
        found += int(((tokens.mask_bits[first // 8] >> (first % 8).astype(np.uint8)) & 1).sum())
    return found


def _histogram(sizes: Ints) -> Histogram:
    """Of sorted lengths, none of them 0."""
    edges = [0, 1]
    while edges[-1] < sizes[-1]:
        power = 1 << (edges[-1].bit_length() - 1)
        edges.append(2 * power if edges[-1] != power or power < 4 else power + power // 2)
    first = max(index for index, edge in enumerate(edges) if edge < sizes[0])
    borders = np.searchsorted(sizes, edges[first:], side="right")
    sums = np.concatenate(([0], np.cumsum(sizes)))[borders]
    return Histogram(
        edges=tuple(edges[first:]), counts=tuple(np.diff(borders).tolist()), tokens=tuple(np.diff(sums).tolist())
    )


def _per_source(found: Ints, num_sources: int, amounts: Ints) -> Ints:
    return np.bincount(found, weights=amounts, minlength=num_sources).astype(np.int64)
