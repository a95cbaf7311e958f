"""The plan of the stores of a run."""

from collections.abc import Sequence
from typing import Any

from penstock.errors import PlanError
from penstock.fingerprint import fingerprint
from penstock.plan.objectives import open_objective
from penstock.plan.order import PlanSource
from penstock.plan.plan import Plan
from penstock.plan.segments import Mixture, Start
from penstock.plan.settings import PlanSettings, weights_as_text
from penstock.plan.stream import PlannedStream
from penstock.store import Store
from penstock.store.digests import rows_per_shard
from penstock.store.shards import template_identity
from penstock.store.sizes import SampleSizes
from penstock.store.stream import RecordStream, ShardsOfStream, StreamStore
from penstock.types import SeveralSequences, row_sequences


def plan_source(name: str, store: Any) -> PlanSource:
    return PlanSource(name=name, key=store.fingerprint, shard_sizes=store.shard_sizes)


def is_streamed(stores: Sequence[Any], settings: PlanSettings) -> bool:
    """Whether the one store is of a stream and its order can be followed while it is read: in windows, or without shuffle.

    Also of a stream that was read to its end: the order does not depend on when.
    """
    if len(stores) != 1 or settings.weights is not None or not settings.is_local:
        return False
    return bool(getattr(getattr(stores[0], "source", None), "is_stream", False))


def stream_source(name: str, store: Any) -> PlannedStream:
    """Return what the plan knows of a store of a stream."""
    source = store.source
    if isinstance(store, StreamStore | RecordStream):
        shards = store.shards_of_stream
    else:
        shards = ShardsOfStream(source, num_rows=rows_per_shard(store.columns))
    identity: Any = "records"
    if isinstance(store, Store):
        identity = template_identity(store.unopened_template)
    return PlannedStream(
        name=name,
        key=fingerprint(["stream", identity]),
        shard_end=shards.end,
        has_row=source.has_row,
        has_ended=lambda: source.has_ended,
        digest_of=shards.digest_of,
    )


def _row_sequences(stores: Sequence[Any]) -> int:
    return max(row_sequences(store.columns) for store in stores)


def make_plan(
    names: Sequence[str],
    stores: Sequence[Any],
    settings: PlanSettings,
    mixtures: Sequence[Mixture] = (),
    start: Start | None = None,
) -> Plan:
    """Return the plan of these stores."""
    sizes = SampleSizes(stores)
    objective = open_objective(settings, names, stores)
    count = _row_sequences(stores)
    sequences = SeveralSequences(count=count, longest=sizes.longest) if count > 1 else None
    if is_streamed(stores, settings):
        (store,) = stores
        return Plan(
            (stream_source(names[0], store),),
            sizes.lengths,
            settings,
            targets=sizes.has_target,
            objective=objective,
            sequences=sequences,
        )
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
        objective=objective,
        sequences=sequences,
        mixtures=mixtures,
        start=start,
    )


def plan_of_tables(
    names: Sequence[str],
    stores: Sequence[Any],
    settings: PlanSettings,
    tables: Sequence[tuple[int, list[str]]],
    *,
    schedule: str | None,
    interpolate: bool,
    rows_per_step: int,
) -> Plan:
    """Return the plan of a new run, with a mixture for every point of its tables of weights."""
    if len(tables) < 2:
        needs_table = {"schedule": schedule, "interpolate": interpolate or None}
        for name, value in needs_table.items():
            if value is not None:
                raise PlanError(
                    f"{name}={value!r} needs a table of weights with two points or more, such as {{0: 0.7, 10000: 0.5}}, but no data "
                    "set has one; leave it out"
                )
        return make_plan(names, stores, settings)
    counts_tokens = schedule == "tokens"
    sources = tuple(map(plan_source, names, stores))
    row_tokens = settings.max_length * _row_sequences(stores)
    mixtures = []
    for point, weights in tables:
        rows = point // row_tokens if counts_tokens else point * rows_per_step
        mixture = Mixture(
            sources=sources,
            weights=weights_as_text(weights),
            rows=rows,
            point=None if counts_tokens else point,
            mix_by=settings.mix_by,
            stopping_strategy=settings.stopping_strategy,
            at=None if point else (0, 0, 0),
        )
        mixtures.append(mixture)
    return make_plan(names, stores, mixtures[-1].settings(settings), mixtures)
