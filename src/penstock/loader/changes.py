"""Change the mixture of a run: add, remove, grow or reweight sources, now or at a later step, and keep the journal of it.

A Loader built from the last mixture continues from a state, whose journal says which mixtures came before.  Stores of earlier mixtures
are looked for in the cache; without them only earlier steps cannot be explained.
"""

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from penstock.cache import Cache
from penstock.errors import PlanError, PlanMismatch
from penstock.extras.trainers.sequences import TOKENS, batch_kind, check_sequences
from penstock.fingerprint import fingerprint
from penstock.loader.collate import Collator
from penstock.loader.columns import batch_columns
from penstock.loader.layout import BatchForm, LoaderSettings
from penstock.loader.losses import refuse_losses
from penstock.loader.records import RecordCollator, read_mixture
from penstock.loader.state import Cursor, Run, check_position, checked, read_state
from penstock.plan.order import PlanSource, check_numbers, sizes_of_rows
from penstock.plan.plan import ALL_SOURCES, Plan, Position
from penstock.plan.segments import Mixture, Start, check_mixtures
from penstock.plan.settings import PlanSettings, weights_as_text, whole_number
from penstock.plan.stream import StreamPlan, StreamSource
from penstock.store import Store
from penstock.store.digests import rows_per_shard
from penstock.store.inventory import list_stores
from penstock.store.kept import MissingStore, kept_store, not_grown
from penstock.store.shards import template_identity
from penstock.store.sizes import SampleSizes
from penstock.store.stream import RecordStream, ShardsOfStream, StreamStore
from penstock.words import differences

_log = logging.getLogger("penstock")

_OTHER = "give new data a name of its own"
_REPEATED = (
    "cannot change the mixture after the first pass of a run with shuffle=False: each pass repeats the same epochs, and the journal "
    "would not say which of them came before; give the Loader more epochs, or start a new run"
)


def plan_source(name: str, store: Any) -> PlanSource:
    return PlanSource(name=name, key=store.fingerprint, shard_sizes=store.shard_sizes)


def is_streamed(stores: Sequence[Any], settings: PlanSettings) -> bool:
    """Whether the one store is of a stream and its order can be followed while it is read: in windows, or without shuffle.

    Also of a stream that was read to its end: the order does not depend on when.
    """
    if len(stores) != 1 or settings.weights is not None or not settings.is_local:
        return False
    return bool(getattr(getattr(stores[0], "source", None), "is_stream", False))


def stream_source(name: str, store: Any) -> StreamSource:
    """Return what the plan knows of a store of a stream."""
    source = store.source
    if isinstance(store, StreamStore | RecordStream):
        shards = store.shards_of_stream
    else:
        shards = ShardsOfStream(source, num_rows=rows_per_shard(store.columns))
    identity: Any = "records"
    if isinstance(store, Store):
        identity = template_identity(store.unopened_template)
    return StreamSource(
        name=name,
        key=fingerprint(["stream", identity]),
        shard_end=shards.end,
        has_row=source.has_row,
        has_ended=lambda: source.has_ended,
        digest_of=shards.digest_of,
    )


def make_plan(
    names: Sequence[str],
    stores: Sequence[Any],
    settings: PlanSettings,
    mixtures: Sequence[Mixture] = (),
    start: Start | None = None,
) -> Plan:
    """Return the plan of these stores."""
    sizes = SampleSizes(stores)
    if is_streamed(stores, settings):
        (store,) = stores
        source = stream_source(names[0], store)
        return StreamPlan(source, sizes.lengths, settings, targets=sizes.has_target)
    for name, store in zip(names, stores, strict=True):
        if isinstance(store, StreamStore) and store.manifest is None:
            raise PlanError(
                f"{name!r} is a stream whose end was not read, and a mixture needs the number of its samples; read and make all of it "
                f"first: store.wait()"
            )
    return Plan(
        list(map(plan_source, names, stores)),
        sizes.lengths,
        settings,
        targets=sizes.has_target,
        mixtures=mixtures,
        start=start,
    )


class Changing(Run):
    """The part of a Loader that changes its mixture."""

    _columns: Any
    form: BatchForm
    kind: str
    _asked: LoaderSettings
    _collator: "type[Collator] | type[RecordCollator]"
    metrics: Any
    _open_media: Callable[[Sequence[str], Sequence[Any]], None]

    def _tabled_plan(
        self,
        names: list[str],
        settings: PlanSettings,
        tables: list[tuple[int, list[str]]],
        schedule: str | None,
    ) -> Plan:
        """Return the plan of a new run, with a mixture for every point of its tables of weights."""
        if len(tables) < 2:
            if schedule is not None:
                raise PlanError(
                    f"schedule={schedule!r} needs a table of weights with two points or more, and there is none"
                )
            return make_plan(names, self.stores, settings)
        mixtures = []
        for point, weights in tables:
            rows = (
                point // settings.max_length
                if schedule == "tokens"
                else point * self._rows_per_step
            )
            mixture = Mixture(
                sources=tuple(map(plan_source, names, self.stores)),
                weights=weights_as_text(weights),
                rows=rows,
                point=None if schedule == "tokens" else point,
                mix_by=settings.mix_by,
                stopping_strategy=settings.stopping_strategy,
                at=None if point else (0, 0, 0),
            )
            mixtures.append(mixture)
        return make_plan(names, self.stores, mixtures[-1].settings(settings), mixtures)

    @property
    def journal(self) -> list[dict[str, Any]]:
        """The mixtures of this run in order: how many rows come before each, and its sources with their weights."""
        made = []
        for mixture in self.plan.mixtures:
            weights = mixture.weights or [None] * len(mixture.sources)
            sources = {
                source.name: weight for source, weight in zip(mixture.sources, weights, strict=True)
            }
            made.append({"rows": mixture.rows, "sources": sources})
        return made

    def last_change(self) -> tuple[int, int, list[str]]:
        """Return the step and the rows before the last mixture, and in words what it changes; packs the lengths up to there."""
        mixtures = self.plan.mixtures
        blocks = self.plan.blocks
        here = self._cursor.position
        assert self.plan.has_changes, "a run that never changed"
        rows = blocks.start_of_last().rows if mixtures[-1].at is not None else mixtures[-1].rows
        step = self._cursor.step + max(rows - here.rows, 0) // self._rows_per_step
        return (
            step,
            rows,
            _changed_words(*(_named(mixture.identity()) for mixture in mixtures[-2:])),
        )

    def load_journal(self, state: dict[str, Any]) -> None:
        """Take over the mixtures of a state's run and go to its first step, to replay or explain it with this batch and world size."""
        with self._all_or_nothing():
            self._read(checked(state, self.plan), changes=False)
            self._go_to(Cursor(), [Cursor()])

    def change_mixture(self, stores: Any, *, at: int | None = None) -> None:
        """Change the mixture from the next step on, or from step `at` on.  Call it on all ranks, with the same arguments.

        stores: as of Loader, all sources that the run has from then on.  A source of the same name goes on where it was, also after it
        was removed for a while; its store may have grown at its end.  Nothing that was delivered comes again before its time.  Where
        samples are cut (packing="concat", on_overlong="split") the change comes at the end of the block.
        """
        self._refuse_stream("change_mixture")
        read = read_mixture(stores)
        if read.collator.has_tokens != self._collator.has_tokens:
            raise PlanError(
                "one run cannot hold records and tokens; change to stores of the same kind"
            )
        weights = weights_as_text(read.weights)
        past = reversed(self.plan.mixtures)
        mix_by, stopping_strategy = next(
            ((m.mix_by, m.stopping_strategy) for m in past if weights and m.weights), (None, None)
        )
        new = dict(zip(read.names, read.stores, strict=True))
        mixture = Mixture(
            sources=(), weights=weights, mix_by=mix_by, stopping_strategy=stopping_strategy
        )
        with self._all_or_nothing():
            self._change(self.plan, self._own, self._cursor, new, mixture, at=at)
            self._refuse_uneven()

    def _refuse_stream(self, what: str) -> None:
        if self.plan.is_stream:
            raise PlanError(
                f"{what}: the mixture of a run over a stream cannot change, because its number of samples is not known"
            )

    def _change(
        self,
        before: Plan,
        known: Mapping[str, Any],
        cursor: Cursor,
        new: Mapping[str, Any],
        mixture: Mixture,
        *,
        at: int | None = None,
    ) -> None:
        """Change the mixture of a run of the plan `before`, of the stores `known`, that has come to `cursor`, to the stores `new`.

        The only way in which a mixture changes: of a running loader, and of a state that is loaded.  at: the step before which it
        changes; None is the next one.
        """
        for name, store in new.items():
            if store.manifest is None:
                raise PlanError(
                    f"the store of {name!r} is still being made; wait for all of it: store.wait()"
                )
            _check_source(name, store, known)
        refuse_losses(list(new), list(new.values()), before.settings, self._asked.max_dropped)
        mixture = replace(mixture, sources=tuple(map(plan_source, new, new.values())))
        mixture.settings(before.settings)  # refuses weights that are no weights
        next_loop, there = self._place_of_change(before, cursor, at)
        here = next_loop.position
        past = before.mixtures
        start = None
        begun = 1
        if before.has_changes:
            start = before.blocks.segment_of(here.epoch, here.block).start
            begun += before.blocks.segment_of(there.epoch, there.block).start.number
        num_planned = len(past) - begun
        if not num_planned and _shares(past[-1]) == _shares(mixture):
            return  # this is the run's mixture already: a change would pack the rest of the block again
        mixture = replace(mixture, at=(there.epoch, there.block, there.row), rows=there.rows)
        plan = self._use([*past[:begun], mixture], {**known, **new}, before.settings, start)
        self._move_to_change(plan, here)
        self._changes += 1
        if num_planned:
            _log.warning(
                "%d planned changes of the mixture are dropped: the new one replaces them",
                num_planned,
            )

    def _place_of_change(
        self, before: Plan, cursor: Cursor, at: int | None
    ) -> tuple[Cursor, Position]:
        """Return where the next loop begins, and where the mixture changes: there, or before step `at`.

        A loop that is over stays as it was, also if its last rows were dropped: the change belongs to the next one.
        """
        own_plan = self.plan
        self.plan = before  # passes and loops are functions of the plan and a cursor
        try:
            next_loop = cursor
            while self.is_over(next_loop):
                next_loop = self.next_loop(next_loop)
            end = self.pass_end(next_loop)
        finally:
            self.plan = own_plan
        if next_loop.pass_step and not (before.settings.shuffle or before.has_changes):
            if cursor.pass_step or not self.epochs:
                raise PlanError(_REPEATED)
            next_loop = next_loop.begin_pass(self.epochs)
        step = next_loop.step if at is None else whole_number("at", at, least=0)
        if step < next_loop.step:
            raise PlanError(
                f"cannot change the mixture at step {step}: the run is at step {next_loop.step}"
            )
        try:
            there = before.seek(
                step - next_loop.step, self._rows_per_step, epochs=end, start=next_loop.position
            )
        except PlanError as error:
            raise PlanError(
                f"cannot change the mixture at step {step}: this pass ends before it"
            ) from error
        return next_loop, there

    def _use(
        self,
        mixtures: Sequence[Mixture],
        stores: Mapping[str, Any],
        settings: PlanSettings,
        start: Start | None,
        content: dict[str, Any] | None = None,
    ) -> Plan:
        """Use a plan with these mixtures; refuse stores whose samples one batch cannot hold, and a state of another plan."""
        if self._dataset:
            raise PlanError(
                f"the mixture changes, and what {self._dataset}() returned would go on with the old one; load the state first, or "
                f"iterate over the Loader itself. To change: save a state, load it into a new Loader of the new mixture with "
                f"changes=True, and call {self._dataset}() of that one"
            )
        names = list(check_mixtures(mixtures))
        chosen = [stores[name] for name in names]
        there = {name: stores[name] for name in names if not isinstance(stores[name], MissingStore)}
        columns = (
            batch_columns(list(there), list(there.values()), settings)
            if self._collator.has_tokens
            else ()
        )
        if batch_kind(columns) != self.kind:
            raise PlanError(
                f"this run has batches of {self.kind}, and the new mixture of {batch_kind(columns)}"
            )
        if self.kind != TOKENS:
            check_sequences(self.kind, columns, settings, self.form, self.batch_size)
        plan = make_plan(names, chosen, mixtures[-1].settings(settings), mixtures, start)
        if content is not None:
            read_state(content, plan)
        self._open_media(names, chosen)
        self.plan = plan
        self.stores = chosen
        self._columns = columns
        return plan

    def _move_to_change(self, plan: Plan, here: Position) -> None:
        """Go to the new mixture if it begins here."""
        place = (here.epoch, here.block, here.row)
        if plan.mixtures[-1].at != place or self._cursor.position != here:
            return
        start = plan.blocks.start_of_last()
        if start.at == place:  # else samples are cut: the change comes at the end of the block
            epoch, block = start.first
            if block and not plan.blocks.has(epoch, block):  # nothing is left of this epoch
                epoch = epoch + 1
                block = 0
            self._cursor = replace(
                self._cursor, position=Position(epoch=epoch, block=block, rows=here.rows)
            )

    # States

    def _read(self, content: dict[str, Any], *, changes: bool) -> Cursor:
        """Return the cursor of a checked state; take over its journal, or with `changes` the mixture that it ended with."""
        journal = content.get("journal")
        if self.plan.is_stream:
            return read_state(content, self.plan)
        own = [mixture.identity() for mixture in self.plan.mixtures]
        if journal is None:
            if not changes or self.plan.has_changes or content["plan"] == self.plan.fingerprint:
                return read_state(content, self.plan)
            return self._change_from(content, self._old_mixture(content), None)
        theirs, start = _parsed(journal)
        is_same = len(own) == len(theirs) and all(
            _undated(a) == _undated(b) for a, b in zip(own, theirs, strict=True)
        )
        is_last = len(own) == 1 and own[0][3:] == theirs[-1][3:]
        if is_same or is_last:
            return self._adopt(content, theirs, start)
        if changes and len(own) == 1:
            return self._change_from(content, theirs, start)
        found = differences(_named(theirs[-1]), _named(own[-1])) or ["the table of weights"]
        raise PlanMismatch(
            f"cannot resume: the state's run has another mixture now: {'; '.join(found)}; build the Loader with the last mixture of that "
            f"run, or change it on purpose: penstock resume --changes, or load_state_dict(state, changes=True)"
        )

    def _adopt(self, content: dict[str, Any], theirs: list[Any], start: Start) -> Cursor:
        """Use the mixtures of a journal."""
        stores = self._stores_of(theirs, is_exact=False)
        mixtures = [_mixture_of(value, stores) for value in theirs]
        return read_state(content, self._use(mixtures, stores, self.plan.settings, start, content))

    def _stores_of(self, theirs: list[Any], *, is_exact: bool) -> dict[str, Any]:
        """Return the stores of all mixtures of a journal: this loader's own, or of their keys, and those that are in the cache."""
        own = self._own
        stores = {}
        for *_, sources in theirs:
            for name, key, size, _ in sources:
                mine = own.get(name)
                if mine is not None and not (is_exact and mine.fingerprint != key):
                    stores[name] = mine
                else:
                    stores[name] = kept_store(name, key, self._cache) or MissingStore(
                        name, key, size, self._cache
                    )
        return stores

    @property
    def _own(self) -> dict[str, Any]:
        """This loader's stores by name."""
        return dict(zip((source.name for source in self.plan.sources), self.stores, strict=True))

    @property
    def _cache(self) -> Cache:
        return (
            next((store.cache for store in self.stores if store.cache is not None), None) or Cache()
        )

    def _change_from(
        self, content: dict[str, Any], theirs: list[Any], start: Start | None
    ) -> Cursor:
        """Go on from a state of another mixture, and change to this loader's own at once."""
        own = self._own
        stores = self._stores_of(theirs, is_exact=True)
        mixtures = [_mixture_of(value, stores) for value in theirs]
        settings = mixtures[-1].settings(self.plan.settings)
        names = list(check_mixtures(mixtures))
        before = make_plan(
            names, [stores[name] for name in names], settings, mixtures if start else (), start
        )
        cursor = read_state(content, before)
        check_position(before, cursor.position)
        self._cursor = cursor
        self._change(before, stores, cursor, own, self.plan.mixtures[-1])
        return self._cursor

    def _old_mixture(self, content: dict[str, Any]) -> list[Any]:
        """Return the mixture of a run that never changed, from what its state says of its sources; they are looked for in the cache."""
        summary = content["settings"]
        named = summary.get("sources") or []
        weights = summary.get("weights") or [None] * len(named)
        is_listed = isinstance(weights, list) and len(weights) == len(named)
        if not is_listed or any(name == ALL_SOURCES for name, _ in named):
            raise PlanMismatch(
                "the state has too many sources to name them; load it into a Loader of the old mixture, and call change_mixture"
            )
        cache = self._cache
        keys = [store.fingerprint for store in self.stores] + [
            info.store for info in list_stores(cache).stores
        ]
        found = []
        for (name, digest), weight in zip(named, weights, strict=True):
            for key in dict.fromkeys(keys):
                mine = next((s for s in self.stores if s.fingerprint == key), None) or kept_store(
                    name, key, cache
                )
                if mine is not None and plan_source(name, mine).digest == digest:
                    found.append([name, key, len(mine), weight])
                    break
            else:
                raise PlanMismatch(
                    f"the store of source {name!r} of the saved run is not in {cache.root}, and what it has delivered is known only "
                    f"with it; prepare it again in this cache, or resume with the mixture of the saved run"
                )
        return [
            [[0, 0, 0], 0, None, summary.get("mix_by"), summary.get("stopping_strategy"), found]
        ]


def _parsed(journal: Any) -> tuple[list[Any], Start]:
    """Return the mixtures of a journal and the start of the segment that the state is in."""
    try:
        start = Start.from_json(journal["start"])
        for at, rows, point, _, _, sources in journal["mixtures"]:
            check_numbers(rows, point or 0, *(at or ()), *(size for _, _, size, _ in sources))
            if not sources or len(at or (0, 0, 0)) != 3:
                raise ValueError("a mixture that no run has")
        if not 0 <= start.number < len(journal["mixtures"]):
            raise ValueError("a start of no mixture")
        return list(journal["mixtures"]), start
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, zlib.error) as error:
        raise PlanMismatch(
            f"the state is damaged: journal: {error}; use an older checkpoint"
        ) from error


def _shares(mixture: Mixture) -> tuple[Any, ...]:
    """What a mixture mixes, whatever the order of its sources and the sum of its weights."""
    sources = {source.name: (source.key, source.num_samples) for source in mixture.sources}
    if mixture.weights is None:
        return sources, None
    weights = [Fraction(weight) for weight in mixture.weights]
    shares = {
        source.name: weight / sum(weights)
        for source, weight in zip(mixture.sources, weights, strict=True)
    }
    return (
        sources,
        shares,
        mixture.mix_by or "samples",
        mixture.stopping_strategy or "first_exhausted",
    )


def _undated(identity: list[Any]) -> list[Any]:
    """The identity of a mixture without its rows, which depend on the batch and world size with which the run began."""
    at, rows, point, *rest = identity
    return [at, rows if point is None else None, point, *rest]


def _named(identity: list[Any]) -> dict[str, Any]:
    *_, mix_by, stopping_strategy, sources = identity
    return {"mix_by": mix_by, "stopping_strategy": stopping_strategy} | {
        f"source {name!r}": f"{key[:8]}, {size:,} samples"
        + ("" if weight is None else f", weight {weight}")
        for name, key, size, weight in sources
    }


def _changed_words(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Say what differs between two mixtures."""
    both = [name for name in after if name in before and before[name] != after[name]]
    words = [f"{name} added: {after[name]}" for name in after if name not in before]
    words += [f"{name} removed: it keeps its place" for name in before if name not in after]
    return words + [f"{name}: {before[name]} → {after[name]}" for name in both]


def _mixture_of(identity: list[Any], stores: Mapping[str, Any]) -> Mixture:
    at, rows, point, mix_by, stopping_strategy, sources = identity
    made = [
        PlanSource(name=name, key=key, shard_sizes=sizes_of_rows(stores[name].shard_sizes, 0, size))
        for name, key, size, _ in sources
    ]
    weights = [weight for *_, weight in sources]
    return Mixture(
        sources=tuple(made),
        weights=None if None in weights else tuple(weights),
        mix_by=mix_by,
        stopping_strategy=stopping_strategy,
        at=None if at is None else (at[0], at[1], at[2]),
        rows=rows,
        point=point,
    )


def _check_source(name: str, store: Any, known: Mapping[str, Any]) -> None:
    """Refuse a source whose place in the run is not known for sure."""
    other = next(
        (
            each
            for each, old in known.items()
            if each != name and old.fingerprint == store.fingerprint
        ),
        None,
    )
    if other is not None and name not in known:
        raise PlanError(
            f"source {name!r} has the data of {other!r}, which this run has had: under the old name it goes on where it was; "
            f"under a new one everything would come again"
        )
    old = known.get(name)
    if old is None or old.fingerprint == store.fingerprint:
        return
    if not (isinstance(old, Store) and isinstance(store, Store)) or isinstance(old, MissingStore):
        raise PlanError(
            f"source {name!r} has other data than before, {old.fingerprint[:8]}, and cannot be compared with it; {_OTHER}"
        )
    if reason := not_grown(old, store):
        raise PlanError(f"source {name!r} has other data than before: {reason}; {_OTHER}")
