"""Plain records as batches: any source, shuffled, mixed, sharded and resumed by the same plan.  A record is a row of length one.

A record that cannot be read has length 0, if its source was opened with on_bad="skip" or "quarantine": it keeps its number, is counted
under its reason, and never reaches a batch.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.fingerprint import fingerprint
from penstock.plan.block import Rows
from penstock.sources.unreadable import cache_of, find_unreadable
from penstock.sources.view import in_groups, records_at
from penstock.store import digests
from penstock.store.build import SHARD_BYTES, SHARD_ROWS
from penstock.types import Ints, Record, Source

_log = logging.getLogger("penstock")

_BYTES_AT_ONCE = 16 << 20  # of records that are read together: several of each chunk, where there are a hundred
_USUAL_BYTES = 4096  # of a record whose source does not know its bytes

Collate = Callable[[list[Record]], Any]


class RecordStore:
    """A source with the face of a store: every record that can be read has length 1, whatever it holds."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.cache = cache_of(source)
        borders = source.cuts(num_bytes=SHARD_BYTES, num_rows=SHARD_ROWS)
        self.shard_sizes: Ints = np.diff(borders).astype(np.int64)
        self._unreadable = find_unreadable(source)
        said: list[Any] = ["records", self._digests(borders)]
        if self._unreadable.rows.size:  # which records have length 0 decides the order, as their content does
            said.append([self._unreadable.rows.tolist(), list(self._unreadable.reasons)])
            _log.warning("%s: %s", source.name, self.describe())
        self.fingerprint = fingerprint(said)

    def _digests(self, borders: Ints) -> list[str]:
        """Of each shard's records.  Files that did not change are not read again."""
        mark = digests.stamp(self.source) if self.cache is not None else None
        known = digests.recall(mark, borders, self.cache) if self.cache is not None else None
        if known is not None:
            return known
        found = [self.source.digest(start, stop) for start, stop in pairwise(borders.tolist())]
        if self.cache is not None:
            digests.remember(mark, self.source, borders, found, self.cache)
        return found

    @property
    def dropped(self) -> Counter[str]:
        """Records that cannot be read, by reason."""
        return self._unreadable.counts

    def describe(self) -> str:
        """One line: how many records there are, and how many of them cannot be read, with the first of each kind."""
        total, bad = len(self.source), self._unreadable
        first = {reason: row for row, reason in zip(bad.rows[::-1].tolist(), bad.reasons[::-1], strict=True)}
        parts = [
            f"{reason} {count:,} (first {self.source.where(first[reason])})" for reason, count in bad.counts.items()
        ]
        dropped = f"; {bad.rows.size:,} dropped: {', '.join(parts)}" if parts else ""
        return f"{total:,} rows → {total - bad.rows.size:,} records{dropped}"

    @property
    def bytes_per_record(self) -> int:
        """About how much one record weighs."""
        size = getattr(self.source, "num_bytes", None)
        return max(1, size // max(1, len(self.source))) if isinstance(size, int) else _USUAL_BYTES

    def lengths_of(self, samples: Ints) -> Ints:
        lengths = np.ones(samples.size, np.int64)
        if (bad := self._unreadable.rows).size:
            lengths[bad[np.searchsorted(bad, samples).clip(max=bad.size - 1)] == samples] = 0
        return lengths


def is_records(value: Any) -> bool:
    """Whether this is a source: it gives records, and no tokens."""
    return all(hasattr(value, name) for name in ("records", "digest", "cuts", "where")) and not hasattr(value, "tokens")


def steps_at_once(stores: Sequence[RecordStore], batch_size: int) -> int:
    """How many steps' records are read together."""
    return max(1, _BYTES_AT_ONCE // (batch_size * max(store.bytes_per_record for store in stores)))


class RecordCollator:
    """Rows → records → a batch.  Rows that fill up a last step hold no record, so that batch is shorter, or empty."""

    def __init__(self, stores: Sequence[RecordStore], collate: Collate | None) -> None:
        self._stores = stores
        self._collate = collate or stack

    def many(self, steps: Sequence[Rows]) -> Iterator[list[tuple[dict[str, Any], int]]]:
        """Several steps: their records are read together, and each batch is made when its turn comes."""
        records = self._read(np.concatenate([rows.spans for rows in steps])) if steps else []
        records.reverse()
        for rows in steps:
            yield [self._make([records.pop() for _ in range(len(rows.spans))])]

    def __call__(self, rows: Rows) -> tuple[dict[str, Any], int]:
        """(batch, 0): nothing is said of what is trained."""
        return self._make(self._read(rows.spans))

    def _make(self, records: list[Record]) -> tuple[dict[str, Any], int]:
        batch = self._collate(records)
        return (batch if isinstance(batch, dict) else {"batch": batch}), 0

    def _read(self, spans: np.ndarray) -> list[Record]:
        sources, samples = np.ascontiguousarray(spans["source"]), np.ascontiguousarray(spans["sample"])
        if len(self._stores) == 1:
            return records_at(self._stores[0].source, samples)
        return in_groups(sources, lambda number, places: records_at(self._stores[number].source, samples[places]))


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
