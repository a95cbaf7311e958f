"""What is handed over?  Arrays by name, and where they come from; the latter costs nothing until it is asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import PlanError
from penstock.plan.block import Rows
from penstock.types import Where

Provenance = list[list[tuple[Where, int, int]]]


class Batch(dict[str, Any]):
    """Arrays by name, and where they come from."""

    def __init__(
        self, arrays: Mapping[str, Any], rows: Rows, stores: Sequence[Any], step: int, trained: int = 0
    ) -> None:
        super().__init__(arrays)
        self.step = step
        self.rows = rows
        self.trained = trained  # tokens with a label
        self._stores = stores

    @property
    def provenance(self) -> Provenance:
        """For each row, its spans as (home of the record, first token, last token + 1)."""
        if not self._stores:
            raise PlanError(f"this batch came from another process without its stores; ask loader.explain({self.step})")
        return homes(self.rows, self._stores)

    def to(self, device: Any, **options: Any) -> "Batch":
        """The same batch with its tensors on `device`; trainers that move batches keep step and provenance so."""
        moved = {name: value.to(device, **options) if hasattr(value, "to") else value for name, value in self.items()}
        return Batch(moved, self.rows, self._stores, self.step, self.trained)

    def of(self, stores: Sequence[Any]) -> "Batch":
        """The same batch, its rows being of these stores."""
        return Batch(self, self.rows, stores, self.step, self.trained)

    def __reduce__(self) -> tuple[Any, ...]:
        # Stores do not travel between processes with every batch.
        return Batch, (dict(self), self.rows, (), self.step, self.trained)


def homes(rows: Rows, stores: Sequence[Any]) -> Provenance:
    """For each row, its spans as (home of the record, first token, last token + 1)."""
    return [
        [(stores[source].source.where(sample), start, stop) for source, sample, start, stop in rows[r].tolist()]
        for r in range(rows.num_rows)
    ]
