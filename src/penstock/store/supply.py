"""Supplies bring the shards of a run here in time: a builder in the background is in the core, mirrors of buckets are an extra.

A supply follows a loop: it is told each block before the block is looked up, and when the steps up to there are made.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from penstock import plugins
from penstock.errors import PlanError
from penstock.plan.plan import Plan, Position
from penstock.plan.settings import PlanSettings

_BLOCKS = 2  # asked for: the one that begins, and the next


class Following(Protocol):
    """Follows one loop."""

    def begin(self, position: Position) -> None:
        """The block of this position is looked up next."""

    def chunk_made(self) -> None:
        """All steps up to here are made."""


class Supply(Protocol):
    """Brings the shards of stores here in time."""

    fork_safe: bool  # whether a forked process can read the stores

    def check(
        self, order: PlanSettings, *, rows_per_step: int, saved: int | str | None = None
    ) -> PlanSettings:
        """Return settings under which shards come in time, or refuse.  saved: the window that a state was begun with."""

    def steps_at_once(self, order: PlanSettings, rows_per_step: int) -> int | None:
        """Return how many steps may be looked up together; None for any number."""

    def ahead(
        self, plan: Plan, start: Position, end: int | None
    ) -> AbstractContextManager[Following]:
        """Follow a loop from `start` to the epoch `end`, in the thread that makes it."""

    def traffic(self) -> Mapping[str, float]:
        """Return what was read of other machines so far."""


class SupplyPlugin(Protocol):
    """A plugin of the group `supplies`."""

    def open(self, stores: Sequence[Any], settings: Mapping[str, Any]) -> Supply | None:
        """Return the supply of these stores; None if they need none.  settings: those of the Loader by name, with the options that
        plugins declare, as far as they were given."""


def find_supplies(stores: Sequence[Any], settings: Mapping[str, Any]) -> list[Supply]:
    """Return what brings the shards of these stores here."""
    supplies: list[Supply] = []
    if any(_is_incomplete(store) for store in stores):
        supplies.append(Background(stores))
    for _, plugin in plugins.every("supplies"):
        supply = plugin.open(stores, settings)
        if supply is not None:
            supplies.append(supply)
    return supplies


def _is_stream(store: Any) -> bool:
    return bool(getattr(store.source, "is_stream", False))


def _is_incomplete(store: Any) -> bool:
    return store.manifest is None or (_is_stream(store) and not store.source.has_ended)


class Background:
    """Stores that are still being made: before each block they are asked for its shards."""

    fork_safe = True

    def __init__(self, stores: Sequence[Any]) -> None:
        self._stores = stores

    def check(
        self, order: PlanSettings, *, rows_per_step: int, saved: int | str | None = None
    ) -> PlanSettings:
        """Refuse an order whose first batch needs every shard."""
        incomplete = [store for store in self._stores if store.manifest is None]
        if not incomplete or order.is_local:
            return order
        store = incomplete[0]
        if _is_stream(store):
            raise PlanError(
                f"{store!r}: shuffle_window={order.shuffle_window!r} "
                f"shuffles the whole stream together, so the first batch would need its "
                f"end; pass shuffle_window=16 to shuffle 16 shards at a time, or shuffle=False, "
                f"or read and make all of it first: store.wait()"
            )
        raise PlanError(
            f"{store!r} is still being made in the background, and shuffle_window={order.shuffle_window!r} shuffles all of its "
            f"{store.num_shards:,} shards together, so the first batch would need every one of them; pass shuffle_window=16 to "
            f"shuffle 16 shards at a time, or shuffle=False, or wait for the whole store: store.wait()",
            code="background_needs_a_window",
        )

    def steps_at_once(self, order: PlanSettings, rows_per_step: int) -> int | None:
        """One: a batch does not wait for the shards of later ones."""
        return 1 if any(_is_incomplete(store) for store in self._stores) else None

    @contextmanager
    def ahead(self, plan: Plan, start: Position, end: int | None) -> Iterator[Following]:
        """Ask for the shards of each block."""
        yield _Requests(plan, self._stores)

    def traffic(self) -> Mapping[str, float]:
        """Nothing is read of other machines."""
        return {}


class _Requests:
    """Asks stores for the shards of the blocks of a loop."""

    def __init__(self, plan: Plan, stores: Sequence[Any]) -> None:
        self._plan = plan
        self._stores = stores

    def begin(self, position: Position) -> None:
        if self._plan.is_stream:
            return  # its shards come one after the other, and reading on would delay this block
        # With weights, shares are known only when the shards before them are made; then `lengths_of` asks for what it needs.
        if self._plan.settings.weights is not None:
            return
        incomplete = {
            number: store for number, store in enumerate(self._stores) if store.manifest is None
        }
        if not incomplete:
            return
        blocks = range(position.block, position.block + _BLOCKS)
        pairs = [
            pair
            for block in blocks
            for pair in self._plan.blocks.shards(position.epoch, block) or ()
        ]
        for number, store in incomplete.items():
            store.want([shard for source, shard in pairs if source == number])

    def chunk_made(self) -> None:
        """Nothing has to be released."""
