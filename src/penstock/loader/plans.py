"""The plan of the stores of a run."""

from collections.abc import Sequence
from typing import Any

from penstock.errors import PlanError
from penstock.fingerprint import fingerprint
from penstock.plan.order import PlanSource
from penstock.plan.plan import Plan
from penstock.plan.segments import Mixture, Start
from penstock.plan.settings import PlanSettings, weights_as_text
from penstock.plan.stream import StreamPlan, StreamSource
from penstock.store import Store
from penstock.store.digests import rows_per_shard
from penstock.store.shards import template_identity
from penstock.store.sizes import SampleSizes
from penstock.store.stream import RecordStream, ShardsOfStream, StreamStore


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
        return StreamPlan(
            stream_source(names[0], store),
            sizes.lengths,
            settings,
            targets=sizes.has_target,
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
    rows_per_step: int,
) -> Plan:
    """Return the plan of a new run, with a mixture for every point of its tables of weights."""
    if len(tables) < 2:
        if schedule is not None:
            raise PlanError(
                f"schedule={schedule!r} needs a table of weights with two points or more, and there is none"
            )
        return make_plan(names, stores, settings)
    counts_tokens = schedule == "tokens"
    sources = tuple(map(plan_source, names, stores))
    mixtures = []
    for point, weights in tables:
        rows = point // settings.max_length if counts_tokens else point * rows_per_step
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
