"""What will be needed soon?  A store that is still being made hears which shards the coming blocks need, and makes those first.

The walk itself is not touched: hints change when a shard is made, never what is in it or in which order it is read.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.errors import PlanError
from penstock.plan.plan import Plan, Position, Step
from penstock.plan.settings import PlanSettings
from penstock.store import Store

_BLOCKS = 2  # the one that begins, and the next


def with_hints(walk: Iterator[Step], plan: Plan, stores: Sequence[Any], start: Position) -> Iterator[Step]:
    """The steps of a walk from `start`; before each block, its shards are wished for."""
    position: Position | None = start
    while True:
        if position is not None:
            _hint(plan, stores, position)
        step = next(walk, None)
        if step is None:
            return
        moved = (step.after.epoch, step.after.block) != (start.epoch, start.block)
        position, start = (step.after, step.after) if moved else (None, start)
        yield step


def refuse_waiting(stores: Sequence[Any], settings: PlanSettings) -> None:
    """A full shuffle of a store that is still being made would wait for all of it, which is what `background` is to avoid."""
    under_way = [store for store in stores if isinstance(store, Store) and store.manifest is None]
    if under_way and not settings.is_local:
        raise PlanError(
            f"{under_way[0]!r} is still being made in the background, and window={settings.window!r} shuffles all of its "
            f"{under_way[0].num_shards:,} shards together, so the first batch would need every one of them; pass window=16 to "
            f"shuffle 16 shards at a time, or shuffle=False, or wait for the whole store: store.wait()"
        )


def _hint(plan: Plan, stores: Sequence[Any], position: Position) -> None:
    under_way = {n: store for n, store in enumerate(stores) if isinstance(store, Store) and store.manifest is None}
    # With weights, shares are known only once the shards before them are made; then `lengths` itself says what it needs.
    if not under_way or plan.settings.weights is not None:
        return
    blocks = range(position.block, position.block + _BLOCKS)
    pairs = [pair for block in blocks for pair in plan.blocks.shards(position.epoch, block) or ()]
    for number, store in under_way.items():
        store.want([shard for source, shard in pairs if source == number])
