"""What a Loader reads: stores of tokens, or plain records as stores of samples of length one, under the same plan."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PlanError
from penstock.loader.collate import Collator, Made
from penstock.plan.block import Rows
from penstock.sources.base import in_groups
from penstock.sources.concat import as_rows
from penstock.store.records import RecordStore, read_stores
from penstock.types import Record

_BYTES_AT_ONCE = 16 << 20  # of records that are read together


class Mixture(NamedTuple):
    """The stores of a Loader, with the collator that makes batches of them."""

    names: list[str]
    stores: list[Any]  # of Store or RecordStore
    weights: list[float] | None
    collator: "type[Collator] | type[RecordCollator]"


def read_mixture(given: Any) -> Mixture:
    """Read the first argument of a Loader: one store, a list of them, or a dict with or without weights; or sources of records."""
    found = read_stores(given, as_rows)
    return Mixture(
        found.names, found.stores, found.weights, RecordCollator if found.is_records else Collator
    )


class RecordCollator:
    """Rows → records → a batch.  Rows that pad a last step hold no record, so that batch is shorter, or empty."""

    has_tokens = False

    def __init__(
        self,
        stores: Sequence[RecordStore],
        settings: Any,
        form: Any,
        users: Callable[..., Any] | None = None,
        columns: Any = (),
    ) -> None:
        self._sources = [store.source for store in stores]
        self._collate = users or stack

    @staticmethod
    def steps_at_once(
        stores: Sequence[RecordStore], batch_size: int, max_length: int, users: Any, prefetch: int
    ) -> int:
        """Return how many steps' records are read together; without prefetch, one."""
        size = batch_size * max(store.bytes_per_record for store in stores)
        return _BYTES_AT_ONCE // size if prefetch else 1

    def many(self, steps: Sequence[Rows]) -> Iterator[list[Made]]:
        """Yield the batches of several steps: records are read together, and each batch is made when its turn comes."""
        spans = Rows.join(list(steps)).spans
        samples = np.ascontiguousarray(spans["sample"])
        records = in_groups(
            np.ascontiguousarray(spans["source"]),
            lambda source, places: self._sources[source].records_at(samples[places]),
        )
        records.reverse()
        for rows in steps:
            batch = self._collate([records.pop() for _ in range(len(rows.spans))])
            yield [
                (batch if isinstance(batch, dict) else {"batch": batch}, 0)
            ]  # trained tokens are not known


def stack(records: list[Record]) -> dict[str, Any]:
    """Stack arrays of one shape by key; records that are not all arrays stay a list."""
    first = records[0] if records else {}
    if not first or not all(isinstance(value, np.ndarray) for value in first.values()):
        return {"records": records}
    for key in first:
        shapes = {getattr(record.get(key), "shape", None) for record in records}
        if len(shapes) > 1 or any(record.keys() != first.keys() for record in records):
            raise PlanError(
                f"records of one batch differ in keys, or in the shape of {key!r}: {shapes}; pass collate="
            )
    return {key: np.stack([record[key] for record in records]) for key in first}
