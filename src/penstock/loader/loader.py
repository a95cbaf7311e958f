"""Which batch comes next, and where are we?  Walks the plan, reads the stores, counts what was handed over."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import PlanError
from penstock.loader.collate import Collator
from penstock.loader.prefetch import read_ahead
from penstock.loader.state import make_state, read_state
from penstock.loader.world import find_world
from penstock.plan.block import Rows
from penstock.plan.plan import Plan, PlanSource, Position, Step
from penstock.plan.settings import PlanSettings, weights_as_text
from penstock.plan.shard import rank_rows
from penstock.store import Store
from penstock.types import Ints, Where

Mixture = Mapping[str, Store | tuple[Store, float]]


class Batch(dict[str, Any]):
    """Arrays by name, and where they come from."""

    def __init__(self, arrays: Mapping[str, Any], rows: Rows, stores: Sequence[Store], step: int) -> None:
        super().__init__(arrays)
        self.step = step
        self.rows = rows
        self._stores = stores

    @property
    def provenance(self) -> list[list[tuple[Where, int, int]]]:
        """For each row, its spans as (home of the record, first token, last token + 1)."""
        return _provenance(self.rows, self._stores)


class Loader:
    """Batches of one or several stores.  `batch_size` is rows per rank; a step is batch_size × world_size rows."""

    def __init__(
        self,
        stores: Store | Mixture | Sequence[Store],
        *,
        batch_size: int,
        max_length: int = 4096,
        packing: str = "best_fit",
        overflow: str = "drop",
        shuffle: bool = True,
        window: int | str | None = None,
        seed: int = 0,
        epochs: int | None = 1,
        tail: str = "pad",
        rank: int | None = None,
        world_size: int | None = None,
        output: str = "numpy",
        prefetch: int = 2,
        replicas: int = 1,
        pad_id: int = 0,
        **options: Any,
    ) -> None:
        """`options` are the plan's rarer settings: mix_by, stop, block, align, max_per_row."""
        if batch_size < 1:
            raise PlanError(f"batch_size is {batch_size}, expected at least 1")
        if epochs is not None and epochs < 0:
            raise PlanError(f"epochs is {epochs}, expected None (endless) or a number ≥ 0")
        if output != "numpy":
            raise PlanError(f"output is {output!r}, expected 'numpy'")
        names, self.stores, weights = _mixture(stores)
        settings = PlanSettings(
            max_length=max_length,
            packing=packing,
            overflow=overflow,
            shuffle=shuffle,
            window=window,
            seed=seed,
            tail=tail,
            weights=weights_as_text(weights),
            **options,
        )
        self.world = find_world(rank, world_size, replicas=replicas)
        self.batch_size = batch_size
        self.epochs = epochs
        self._prefetch = prefetch
        sources = [
            PlanSource(name=name, key=store.fingerprint, shard_sizes=store.shard_sizes)
            for name, store in zip(names, self.stores, strict=True)
        ]
        self.plan = Plan(sources, self._lengths, settings)
        self._collate = Collator(self.stores, max_length=max_length, align=settings.align, pad_id=pad_id)
        self._position, self._step = Position(), 0
        if settings.tail == "error" and epochs is not None:
            self.plan.num_steps(self._rows_per_step, epochs=epochs)  # refuses now what would fail at the epoch's end

    @property
    def _rows_per_step(self) -> int:
        return self.batch_size * self.world.size

    def __len__(self) -> int:
        """Steps of the whole run."""
        if self.epochs is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        return self.plan.num_steps(self._rows_per_step, epochs=self.epochs)

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the current position on; only what is handed over moves the position."""
        first = self._step
        for batch, position in read_ahead(self._batches(self._position, first), self._prefetch):
            self._position, self._step = position, batch.step + 1
            yield batch

    def _batches(self, position: Position, first: int) -> Iterator[tuple[Batch, Position]]:
        walk = self.plan.walk(start=position, num_rows=self._rows_per_step, epochs=self.epochs)
        for number, step in enumerate(walk, start=first):
            yield self._batch(step, number), step.after

    def _batch(self, step: Step, number: int) -> Batch:
        mine = rank_rows(step.rows, self.world)
        return Batch(self._collate(mine), mine, self.stores, number)

    def state_dict(self) -> dict[str, Any]:
        """How far all ranks together have come; small, plain JSON, the same on every rank."""
        return make_state(self.plan, self._position, self._step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken; the next iteration goes on from there, under whatever ranks and batch size."""
        self._position, self._step = read_state(state, self.plan)

    def explain(self, step: int) -> list[list[tuple[Where, int, int]]]:
        """Where every span of all ranks' rows at `step` comes from, without running to it."""
        position = self.plan.seek(step, self._rows_per_step, epochs=self.epochs)
        found = self.plan.step(position, self._rows_per_step, epochs=self.epochs)
        if found is None:
            raise PlanError(f"step {step} is past the end: the run has {len(self)} steps, counted from 0")
        return _provenance(found.rows, self.stores)

    def _lengths(self, source: int, samples: Ints) -> Ints:
        return self.stores[source].lengths(samples)

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.plan.sources)
        return (
            f"Loader({names}; rank {self.world.rank} of {self.world.size}, {self.batch_size} rows of "
            f"{self.plan.settings.max_length}, at step {self._step}, plan {self.plan.fingerprint[:8]})"
        )


def _mixture(stores: Store | Mixture | Sequence[Store]) -> tuple[list[str], list[Store], list[float] | None]:
    """(names, stores, weights) of what was given: one store, a list of them, or a dict with or without weights."""
    if isinstance(stores, Store):
        return ["data"], [stores], None
    if not isinstance(stores, Mapping):
        return [str(number) for number in range(len(stores))], list(stores), None
    weighted = [isinstance(value, tuple) for value in stores.values()]
    if not stores or (any(weighted) and not all(weighted)):
        raise PlanError("a mixture needs at least one store, and a weight for all of them or for none")
    parts = [value if isinstance(value, tuple) else (value, None) for value in stores.values()]
    weights = [weight for _, weight in parts if weight is not None]
    return list(stores), [store for store, _ in parts], weights or None


def _provenance(rows: Rows, stores: Sequence[Store]) -> list[list[tuple[Where, int, int]]]:
    return [
        [(stores[source].source.where(sample), start, stop) for source, sample, start, stop in rows[r].tolist()]
        for r in range(rows.num_rows)
    ]
