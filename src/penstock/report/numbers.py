"""Compute the numbers of stores and plans as frozen values; text, JSON and the HTML page show them.

    sources(loader)      each source: records, tokens, trained tokens, drops by reason, lengths with a histogram
    epoch(loader)        one epoch: steps, rows, fill, last_step, counters, shares by source, a digest of the order
    fits(loader)         the same data under several max_length × packing

`plain(value)` turns any of them into JSON values.  Field names are part of the `--json` output, so they do not change.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import numpy as np

from penstock.errors import PlanError
from penstock.fingerprint import Digest
from penstock.loader import Loader
from penstock.loader.columns import batch_columns
from penstock.plan.counters import NOTHING, Counters
from penstock.plan.plan import Plan, Position
from penstock.plan.rows import Rows
from penstock.reasons import NOTHING_TO_TRAIN, OVERLONG
from penstock.report.balance import Balance, BalanceCounter
from penstock.report.tenths import Mixing, MixingCounter
from penstock.report.variation import VariationCounter, epoch_variation
from penstock.store import Store
from penstock.store.counts import about_turns, unrendered
from penstock.types import Ints
from penstock.words import ProgressLog, log_stage, plural

# compared by default; other samples than tokens are never packed
_COMPARED_PACKINGS = ("mixed_fit", "best_fit", "concat", "none")
SAMPLES_PER_SECOND = 250_000  # that a slow core packs and counts
_ROWS_AT_ONCE = 1 << 14  # another number would change the digest of every order


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Bin i counts samples with edges[i] < length <= edges[i + 1]; edges grow by half powers of two.

    A bin includes its upper edge, so samples of exactly max_length, which fit, are not among those that are too long.
    """

    edges: tuple[int, ...]  # (num_bins + 1,)
    counts: tuple[int, ...]  # (num_bins,)
    tokens: tuple[int, ...]  # (num_bins,) tokens of those samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens per sample; records without a sample are left out."""

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
    """Records that gave no sample, for one reason; `first` lists the first few as file:line."""

    reason: str
    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprintedField:
    """A field that the chat template does not print; `first` lists the first few rows as file:line."""

    field: str
    count: int  # rows
    characters: int
    share: float | None  # of the assistant's characters; None for a field of another role
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OddTurns:
    """Something odd about the turns of conversations, in words; `first` lists the first few rows as file:line."""

    said: str
    count: int  # rows
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNumbers:
    """A store as it is on disk.  rows = samples + the sum of drops."""

    name: str
    store: str  # its fingerprint
    rows: int
    samples: int
    tokens: int
    trained: int  # targets: trained tokens without the first of each sample, which nothing predicts
    num_bytes: int  # of its shards
    weight: str | None
    dropped: tuple[Drop, ...]
    unrendered: tuple[UnprintedField, ...]
    turns: tuple[OddTurns, ...]
    lengths: Lengths

    @property
    def lost_share(self) -> float:
        return (self.rows - self.samples) / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShare:
    """What one source contributes to an epoch."""

    name: str
    samples: int  # in rows; a repeated sample counts each time
    tokens: int
    share: float  # of the epoch's tokens
    unused: int  # samples left over because the epoch ends when another source is used up
    unused_share: float  # of the source's samples
    times: float  # that the epoch uses each sample; more than 1 if stopping_strategy: all_exhausted repeats a small source
    times_in_run: float | None  # the same over all epochs; None for an endless run


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochNumbers:
    """One epoch of a plan, under this batch and world size."""

    plan: str  # fingerprint: data, settings, seed
    order: str  # digest of every row of the epoch, in order
    epoch: int
    max_length: int
    packing: str
    on_overlong: str
    stopping_strategy: str | None  # of a mixture by weights: when an epoch ends
    last_step: str
    seed: int
    kind: str  # what the samples are: tokens, pairs, judged answers, prompts or judged steps
    batch_size: int
    world_size: int
    rows_per_step: int  # with tokens_per_step, at most
    rows_of_full_step: int  # the same; with tokens_per_step, of which every full step is a multiple
    most_tokens_per_step: int | None  # with their padding, as tokens_per_step says
    steps: int  # of this epoch
    steps_of_run: int | None  # None for an endless run
    steps_skipped: int  # of those of the epoch, which skip_steps leaves out
    steps_of_run_skipped: int
    rows: int
    fill: float  # share of the rows' capacity that holds tokens; 0 without rows
    samples_per_row: float
    variation: float  # coefficient of variation of samples per row
    alternative: (
        "PackingFit | None"  # the first block under mixed_fit or best_fit, whichever is not chosen
    )
    tokens_per_step: float
    counters: Counters  # including the last step
    last_step_rows: int  # rows of a last step that is not full, else 0
    shares: tuple[SourceShare, ...]
    mixing: Mixing  # how much each tenth of the epoch is like the whole
    balance: Balance  # how evenly ranks share the cost of a step

    @property
    def has_step(self) -> bool:
        """Whether the run has a step: there may be rows, and fewer than a step takes (last_step: drop)."""
        return self.rows > 0 and self.steps_of_run != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingFit:
    """The same data under one max_length and packing.  `problem` says why these settings are refused; the rest is then 0."""

    max_length: int
    packing: str
    rows: int = 0
    steps: int = 0
    fill: float = 0.0
    variation: float = 0.0  # coefficient of variation of samples per row
    tokens: int = 0
    samples_dropped: int = 0  # overlong, or cut before the first target
    samples_cut: int = 0  # truncated or split
    tokens_lost: int = 0
    problem: str | None = None


def plain(value: Any) -> Any:
    """Turn a value of this room into JSON values: dataclasses become dicts."""
    if is_dataclass(value):  # dataclasses.asdict cannot copy a Counter
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def stores(loader: Loader) -> dict[str, Store]:
    """Return the loader's complete stores by name, in the plan's order; refuse a loader of plain records.

    A plan calls a single source "data", so that its order does not depend on a file name; here it has its store's name.
    """
    for store in loader.stores:
        if not isinstance(store, Store):
            raise PlanError(
                "this loader delivers plain records, which have no tokens; pass one of prepared stores"
            )
        store.wait()
    names = [source.name for source in loader.plan.sources]
    return dict(
        zip([loader.stores[0].name] if names == ["data"] else names, loader.stores, strict=True)
    )


def names_of(loader: Loader) -> list[str]:
    """Return the names of the loader's datasets in the plan's order, also of plain records."""
    if loader.has_tokens:
        return list(stores(loader))
    names = [source.name for source in loader.plan.sources]
    return [loader.stores[0].source.name] if names == ["data"] else names


def sources(loader: Loader) -> tuple[SourceNumbers, ...]:
    """Return the numbers of every store of the loader."""
    weights = [loader.journal[-1]["sources"].get(source.name) for source in loader.plan.sources]
    return tuple(
        _source(name, store, weight)
        for (name, store), weight in zip(stores(loader).items(), weights, strict=True)
    )


def _source(name: str, store: Store, weight: str | None) -> SourceNumbers:
    counts = store.counts

    def places(rows: Iterable[int]) -> tuple[str, ...]:
        return tuple(str(store.source.locate(row)) for row in rows)

    return SourceNumbers(
        name=name,
        store=store.fingerprint,
        rows=counts.rows,
        samples=counts.samples,
        tokens=counts.tokens,
        trained=counts.trained - _trained_first_tokens(store),
        num_bytes=sum(entry.num_bytes for entry in store.manifest.shards) if store.manifest else 0,
        weight=weight,
        dropped=tuple(
            Drop(reason=reason, count=part.count, first=places(part.rows))
            for reason, part in counts.dropped.items()
        ),
        unrendered=tuple(
            UnprintedField(
                field=x.field,
                count=x.count,
                characters=x.characters,
                share=x.share,
                first=places(x.rows),
            )
            for x in unrendered(counts.notes, assistant_characters=counts.assistant_characters)
        ),
        turns=tuple(
            OddTurns(said=said, count=note.count, first=places(note.rows))
            for said, note in about_turns(counts.notes, num_rows=counts.rows)
        ),
        lengths=lengths([store]),
    )


def _trained_first_tokens(store: Store) -> int:
    """Count samples whose first token is marked as trained; no token is before it, so it is never a target."""
    found = 0
    for shard in range(store.num_shards):
        tokens = store.tokens(shard)
        first = tokens.offsets[:-1][np.diff(tokens.offsets) > 0]
        found += int(((tokens.mask_bits[first // 8] >> (first % 8).astype(np.uint8)) & 1).sum())
    return found


def lengths(found: Iterable[Store]) -> Lengths:
    """Return the lengths of several stores together."""
    return length_numbers(
        np.concatenate([np.zeros(0, np.int64), *(store.lengths for store in found)])
    )


def length_numbers(sizes: Ints) -> Lengths:
    """Return the numbers of these lengths; a length of 0 is a record without a sample."""
    sizes = np.sort(sizes[sizes > 0])
    some = sizes if sizes.size else np.zeros(1, np.int64)
    least, p90, p99, most = (
        int(some[min(int(share * some.size), some.size - 1)]) for share in (0, 0.9, 0.99, 1)
    )
    return Lengths(
        count=int(sizes.size),
        total=int(sizes.sum()),
        min=least,
        mean=float(some.mean()),
        p50=int(np.median(some)),
        p90=p90,
        p99=p99,
        max=most,
        histogram=_histogram(sizes),
    )


def _histogram(sizes: Ints) -> Histogram:
    """Return the histogram of sorted, positive lengths."""
    edges = [0, 1]
    while sizes.size and edges[-1] < sizes[-1]:
        power = 1 << (edges[-1].bit_length() - 1)
        edges.append(2 * power if edges[-1] != power or power < 4 else power + power // 2)
    edges = edges[sum(edge < sizes[0] for edge in edges[1:]) if sizes.size else 0 :]
    borders = np.searchsorted(sizes, edges, side="right")
    tokens = np.diff(np.concatenate(([0], np.cumsum(sizes)))[borders])
    return Histogram(
        edges=tuple(edges), counts=tuple(np.diff(borders).tolist()), tokens=tuple(tokens.tolist())
    )


class EpochRows:
    """All rows of an epoch in order, some thousand at a time, without what the last step adds or drops.

    `counters`: of the blocks that were iterated over.
    """

    def __init__(self, plan: Plan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self.counters = NOTHING

    def __iter__(self) -> Iterator[Rows]:
        waiting = Rows.empty(0)
        for number in itertools.count():
            packed = self._plan.blocks.pack(self._epoch, number)
            if packed is None:
                break
            self.counters += packed.counters
            waiting = Rows.join([waiting, packed.rows])
            while waiting.num_rows >= _ROWS_AT_ONCE:
                yield waiting.slice(0, _ROWS_AT_ONCE)
                waiting = waiting.slice(_ROWS_AT_ONCE, waiting.num_rows)
        if waiting.num_rows:
            yield waiting


class RowCounter(Protocol):
    """Counts something over the rows of an epoch, which it is given in order."""

    def add(self, rows: Rows) -> None: ...


class OrderDigest:
    """The digest of every row of an epoch, in order."""

    def __init__(self) -> None:
        self._digest = Digest()

    def add(self, rows: Rows) -> None:
        spans_per_row = np.diff(rows.starts)
        self._digest.extend(np.ascontiguousarray(rows.spans).tobytes())
        self._digest.extend(spans_per_row.astype("<i8").tobytes())

    def result(self) -> str:
        return self._digest.hexdigest()


class TokensBySource:
    """Counts the tokens that each source has in the rows."""

    def __init__(self, num_sources: int) -> None:
        self._tokens = np.zeros(num_sources, np.int64)

    def add(self, rows: Rows) -> None:
        sizes = rows.spans["stop"] - rows.spans["start"]
        tokens = np.bincount(rows.spans["source"], weights=sizes, minlength=self._tokens.size)
        self._tokens += tokens.astype(np.int64)

    def result(self) -> Ints:
        return self._tokens


def epoch(
    loader: Loader, number: int = 0, *, visit: Callable[[Rows], object] | None = None
) -> EpochNumbers:
    """Compute everything about one epoch.  Packs it once; `visit` is called with all its rows, some thousand at a time."""
    plan = loader.run.whole_epochs()
    settings = plan.settings
    rows_per_step = loader.batch_size * loader.world.size
    names = names_of(loader)
    num_samples = sum(source.num_samples for source in plan.sources)
    what = f"packing epoch {number} of {plural(num_samples, 'sample')}"
    log_stage(what, seconds=num_samples / SAMPLES_PER_SECOND)

    order = OrderDigest()
    tokens_by_source = TokensBySource(len(plan.sources))
    mixing = MixingCounter(plan, number, names)
    balance = BalanceCounter(settings, loader.world.size, rows_per_step)
    variation = VariationCounter()
    row_counters: list[RowCounter] = [order, tokens_by_source, mixing, variation]
    if loader.run.has_steps_of_tokens:
        epoch_start = Position(epoch=number)
        for step in plan.steps(start=epoch_start, num_rows=rows_per_step, epochs=number + 1):
            balance.add_step(step.rows)
    else:
        row_counters.append(balance)
    epoch_rows = EpochRows(plan, number)
    for rows in epoch_rows:
        for row_counter in row_counters:
            row_counter.add(rows)
        if visit is not None:
            visit(rows)

    totals = epoch_rows.counters
    tokens = tokens_by_source.result()
    steps_before = plan.num_steps(rows_per_step, epochs=number)
    steps = plan.num_steps(rows_per_step, epochs=number + 1) - steps_before
    skipped = loader.settings.skip_steps
    steps_skipped = sum(steps_before <= step < steps_before + steps for step in skipped)
    steps_of_run = None
    steps_of_run_skipped = len(set(skipped))
    if not loader.run.is_endless:
        steps_of_run = len(loader)
        steps_of_run_skipped = sum(step < steps_of_run for step in skipped)
    stopping_strategy = None
    if settings.weights is not None:
        stopping_strategy = settings.stopping_strategy or "first_exhausted"
    return EpochNumbers(
        plan=plan.fingerprint,
        order=order.result(),
        epoch=number,
        max_length=settings.max_length,
        packing=settings.packing,
        on_overlong=settings.on_overlong,
        stopping_strategy=stopping_strategy,
        last_step=settings.last_step,
        seed=settings.seed,
        kind=loader.kind,
        batch_size=loader.batch_size,
        world_size=loader.world.size,
        rows_per_step=rows_per_step,
        rows_of_full_step=loader.run.rows_of_full_step,
        most_tokens_per_step=loader.settings.tokens_per_step,
        steps=steps,
        steps_of_run=steps_of_run,
        steps_skipped=steps_skipped,
        steps_of_run_skipped=steps_of_run_skipped,
        rows=totals.rows,
        fill=totals.fill,
        samples_per_row=variation.mean,
        variation=variation.variation,
        alternative=_alternative(plan, number),
        tokens_per_step=int(tokens.sum()) / steps if steps else 0.0,
        counters=_with_last_step(loader, number, totals),
        last_step_rows=totals.rows % loader.run.rows_of_full_step,
        shares=_shares(loader, number, names, totals, tokens),
        mixing=mixing.result(samples_out=totals.samples_out),
        balance=_balance(loader, number, balance.result()),
    )


def _with_last_step(loader: Loader, number: int, totals: Counters) -> Counters:
    """Return the counters of an epoch with what its last step adds or drops."""
    settings = loader.plan.settings
    rows_per_step = loader.run.rows_of_full_step
    rows_missing = -totals.rows % rows_per_step
    if not rows_missing:
        return totals
    if settings.last_step == "drop":
        return loader.plan.count(number, rows_per_step)
    if settings.last_step == "repeat":
        return totals + Counters(rows_repeated=rows_missing)
    # Batches of pairs, prompts and plain records have no empty rows.
    if settings.last_step == "pad" and loader.kind == "tokens":
        return totals + Counters(rows_padded=rows_missing)
    return totals


def _alternative(plan: Plan, number: int) -> PackingFit | None:
    """Return how the other of the two full packings fills the first block of an epoch: a whole epoch would take as long again."""
    other = {"mixed_fit": "best_fit", "best_fit": "mixed_fit"}.get(plan.settings.packing)
    if other is None:
        return None
    packed = plan.changed(packing=other).pack(number, 0)
    if packed is None or not packed.rows.num_rows:
        return None
    rows = packed.rows
    counters = packed.counters
    variation = VariationCounter()
    variation.add(rows)
    return PackingFit(
        max_length=plan.settings.max_length,
        packing=other,
        rows=rows.num_rows,
        fill=counters.fill,
        variation=variation.variation,
        tokens=counters.tokens_out,
    )


def _balance(loader: Loader, number: int, found: Balance) -> Balance:
    """Complete the numbers of an epoch: what balance="block" gains shows only next to the order that the epoch has without it."""
    plan = loader.plan
    world_size = loader.world.size
    if found.balance != "block" or world_size == 1 or loader.run.has_steps_of_tokens:
        return found
    before = BalanceCounter(plan.settings, world_size, loader.batch_size * world_size)
    for rows in EpochRows(plan.changed(balance="none"), number):
        before.add(rows)
    return replace(found, slowest_in_turn=before.result().slowest_in_turn)


def _shares(
    loader: Loader, number: int, names: list[str], totals: Counters, tokens: Ints
) -> tuple[SourceShare, ...]:
    """Return what each source contributes to an epoch."""
    blocks = loader.plan.blocks
    taken = blocks.samples_taken(number)
    taken_in_run = None
    epochs = loader.run.loop.epochs
    if loader.run.ends_with_epochs and epochs is not None:
        taken_in_run = blocks.samples_taken(0, epochs=epochs)
    all_tokens = max(int(tokens.sum()), 1)
    shares = []
    for place, (name, source) in enumerate(zip(names, loader.plan.sources, strict=True)):
        size = max(source.num_samples, 1)
        unused = max(source.num_samples - taken[place], 0)
        share = SourceShare(
            name=name,
            samples=totals.samples_by_source[place],
            tokens=int(tokens[place]),
            share=int(tokens[place]) / all_tokens,
            unused=unused,
            unused_share=unused / size,
            times=taken[place] / size,
            times_in_run=None if taken_in_run is None else taken_in_run[place] / size,
        )
        shares.append(share)
    return tuple(shares)


def counters(loader: Loader) -> Counters | None:
    """Count what becomes of the samples and tokens of the first epoch; None if the plan refuses it (on_overlong or last_step: error)."""
    try:
        return loader.plan.count(0, loader.run.rows_of_full_step)
    except PlanError:
        return None


def fits(
    loader: Loader,
    *,
    max_lengths: Sequence[int] | None = None,
    packings: Sequence[str] | None = None,
    known: Counters | None = None,
) -> tuple[PackingFit, ...]:
    """Pack the data under other lengths and packings, and under the loader's own; its counters, if `known`, save one packing."""
    settings = loader.plan.settings
    own = loader.plan.settings.max_length
    known = None if settings.last_step == "drop" else known  # they lack the rows of the last step
    usual: Sequence[str] = _COMPARED_PACKINGS if loader.kind in ("tokens", "records") else ("none",)
    usual = (
        usual
        if loader.parts.can_be_cut or loader.kind != "tokens"
        else ("mixed_fit", "best_fit", "none")
    )
    tried = [
        (length, way)
        for length in sorted({own, *(max_lengths or filter(None, (own // 4, own // 2, 2 * own)))})
        for way in dict.fromkeys([settings.packing, *(packings or usual)])
    ]
    progress = ProgressLog("comparing lengths and packings", len(tried))
    found = []
    for done, (length, way) in enumerate(tried):
        progress(done)
        is_own = (length, way) == (own, settings.packing)
        found.append(_fit(loader, length, way, known if is_own else None))
    return tuple(found)


def _fit(loader: Loader, max_length: int, packing: str, known: Counters | None) -> PackingFit:
    try:
        plan = loader.plan.changed(max_length=max_length, packing=packing, last_step="pad")
        batch_columns(
            list(stores(loader)), loader.stores, plan.settings
        )  # refuses to cut samples with media
        count = known or plan.count(0)
        variation = epoch_variation(loader.plan if known else plan)
    except (
        PlanError
    ) as error:  # settings that contradict each other or the stores, or on_overlong="error"
        return PackingFit(max_length=max_length, packing=packing, problem=str(error))
    return PackingFit(
        max_length=max_length,
        packing=packing,
        rows=count.rows,
        steps=-(-count.rows // (loader.batch_size * loader.world.size)),
        fill=count.fill,
        variation=variation,
        tokens=count.tokens_out,
        samples_dropped=count.samples_dropped[OVERLONG] + count.samples_dropped[NOTHING_TO_TRAIN],
        samples_cut=count.samples_truncated + count.samples_split,
        tokens_lost=count.tokens_dropped.total(),
    )
