"""How are plain records served?  Any source, shuffled, mixed, sharded and resumed by the same plan: a record is a row of length one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.fingerprint import fingerprint
from penstock.plan.block import Rows
from penstock.types import Ints, Record, Source

_SHARD_BYTES, _SHARD_ROWS = 8 << 20, 1 << 16

Collate = Callable[[list[Record]], Any]


class RecordStore:
    """A source with the face of a store: every record has length 1, whatever it holds."""

    def __init__(self, source: Source) -> None:
        self.source = source
        borders = source.cuts(num_bytes=_SHARD_BYTES, num_rows=_SHARD_ROWS)
        self.shard_sizes: Ints = np.diff(borders).astype(np.int64)
        ranges = zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
        self.fingerprint = fingerprint(["records", [source.digest(start, stop) for start, stop in ranges]])

    def lengths_of(self, samples: Ints) -> Ints:
        return np.ones(samples.size, np.int64)


def is_records(value: Any) -> bool:
    """Whether this is a source: it gives records, and no tokens."""
    return all(hasattr(value, name) for name in ("records", "digest", "cuts", "where")) and not hasattr(value, "tokens")


class RecordCollator:
    """Rows → records → a batch.  Rows that fill up a last step hold no record, so that batch is shorter, or empty."""

    def __init__(self, stores: Sequence[RecordStore], collate: Collate | None) -> None:
        self._stores = stores
        self._collate = collate or stack

    def many(self, steps: Sequence[Rows]) -> Iterator[list[tuple[dict[str, Any], int]]]:
        return ([self(rows)] for rows in steps)

    def __call__(self, rows: Rows) -> tuple[dict[str, Any], int]:
        """(batch, 0): nothing is said of what is trained."""
        records = [self._stores[source].source[sample] for source, sample, _, _ in rows.spans.tolist()]
        batch = self._collate(records)
        return (batch if isinstance(batch, dict) else {"batch": batch}), 0


def stack(records: list[Record]) -> dict[str, Any]:
    """Arrays of one shape stacked by key; records that are not all arrays stay a list."""
    first = records[0] if records else {}
    if not first or not all(isinstance(value, np.ndarray) for value in first.values()):
        return {"records": records}
    out = {}
    for key in first:
        values = [record.get(key) for record in records]
        shapes = {value.shape if isinstance(value, np.ndarray) else None for value in values}
        if len(shapes) > 1 or any(record.keys() != first.keys() for record in records):
            raise PlanError(f"records of one batch differ in keys, or in the shape of {key!r}: {shapes}; pass collate=")
        out[key] = np.stack(values)  # type: ignore[arg-type]  # all arrays, as just checked
    return out
