"""What a Loader reads: stores of tokens, or plain records as stores of samples of length one, under the same plan.

A record that cannot be read has length 0 if its source was opened with on_bad="skip" or "quarantine": it keeps its number, is counted
under its reason, and never reaches a batch.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PlanError
from penstock.fingerprint import fingerprint
from penstock.loader.collate import Collator, Made
from penstock.plan.block import Rows
from penstock.sources.base import RowAccess, in_groups
from penstock.sources.views import View
from penstock.store import Store
from penstock.store.digests import RowRanges
from penstock.types import Bools, Column, Ints, Record, Source

_log = logging.getLogger("penstock")

_BYTES_AT_ONCE = 16 << 20  # of records that are read together
_USUAL_BYTES = 4096  # of a record, if its source does not know its bytes


class Mixture(NamedTuple):
    """The stores of a Loader, with the collator that makes batches of them."""

    names: list[str]
    stores: list[Any]  # of Store or RecordStore
    weights: list[float] | None
    collator: "type[Collator] | type[RecordCollator]"


def read_mixture(given: Any) -> Mixture:
    """Read the first argument of a Loader: one store, a list of them, or a dict with or without weights; or sources of records."""
    found, weights = [given], None
    names = ["data"]
    if isinstance(given, Mapping):
        names, found = [str(name) for name in given], list(given.values())
        weighted = [isinstance(value, tuple) and len(value) == 2 for value in found]
        if any(weighted) and not all(weighted):
            raise PlanError("a mixture needs a weight for all of its stores or for none")
        if any(weighted):
            found, weights = [store for store, _ in found], [weight for _, weight in found]
    elif isinstance(given, Sequence) and not isinstance(given, str) and not _is_source(given):
        found = list(given)
        names = [str(number) for number in range(len(found))]
    if not found:
        raise PlanError("no stores given; pass at least one Store")
    if all(map(_is_source, found)):
        return Mixture(names, [RecordStore(source) for source in found], weights, RecordCollator)
    for value in found:
        if not isinstance(value, Store):
            raise PlanError(
                f"found a {type(value).__name__}, expected a Store from penstock.prepare, a list of them, "
                f"or a dict like {{'name': (store, weight)}}"
            )
    return Mixture(names, found, weights, Collator)


def _is_source(value: Any) -> bool:
    """Return whether this delivers records, not tokens."""
    return all(hasattr(value, name) for name in ("records", "digest", "cuts", "where")) and not hasattr(value, "tokens")


class RecordStore:
    """A source as a store: every record that can be read is a sample of length 1."""

    manifest: Any = ()  # complete: records need no preparation
    columns: tuple[Column, ...] = ()

    def __init__(self, source: Source) -> None:
        self.source = opened = source if isinstance(source, RowAccess) else View(source)
        self.cache = opened.cache
        ranges = RowRanges(self.source, self.cache)
        self.shard_sizes: Ints = np.diff(ranges.borders).astype(np.int64)
        self._unreadable = opened.unreadable()
        digests = ranges.recall()  # files that did not change are not read again
        if digests is None:
            digests = ranges.remember([self.source.digest(start, stop) for start, stop in ranges.pairs])
        content: list[Any] = ["records", digests]
        if self._unreadable.rows.size:  # which records have length 0 decides the order, as their content does
            content.append([self._unreadable.rows.tolist(), list(self._unreadable.reasons)])
            _log.warning("%s: %s", source.name, self.describe())
        self.fingerprint = fingerprint(content)

    @property
    def dropped(self) -> Counter[str]:
        """Records that cannot be read, by reason."""
        return self._unreadable.counts

    def describe(self) -> str:
        """One line: how many records there are, and how many of them cannot be read, with the first of each kind."""
        total, bad = len(self.source), self._unreadable
        first = {reason: row for row, reason in zip(bad.rows[::-1].tolist(), bad.reasons[::-1], strict=True)}
        parts = [f"{reason} {n:,} (first {self.source.where(first[reason])})" for reason, n in bad.counts.items()]
        dropped = f"; {bad.rows.size:,} dropped: {', '.join(parts)}" if parts else ""
        return f"{total:,} rows → {total - bad.rows.size:,} records{dropped}"

    @property
    def bytes_per_record(self) -> int:
        """The mean size of a record, roughly."""
        size = getattr(self.source, "num_bytes", None)
        return max(1, size // max(1, len(self.source))) if isinstance(size, int) else _USUAL_BYTES

    def lengths_of(self, sample_ids: Ints) -> Ints:
        lengths = np.ones(sample_ids.size, np.int64)
        if (bad := self._unreadable.rows).size:
            lengths[bad[np.searchsorted(bad, sample_ids).clip(max=bad.size - 1)] == sample_ids] = 0
        return lengths

    def has_target(self, sample_ids: Ints, starts: Ints, stops: Ints) -> Bools:
        return np.ones(sample_ids.size, np.bool_)


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
        self._sources, self._collate = [store.source for store in stores], users or stack

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
            yield [(batch if isinstance(batch, dict) else {"batch": batch}, 0)]  # trained tokens are not known


def stack(records: list[Record]) -> dict[str, Any]:
    """Stack arrays of one shape by key; records that are not all arrays stay a list."""
    first = records[0] if records else {}
    if not first or not all(isinstance(value, np.ndarray) for value in first.values()):
        return {"records": records}
    for key in first:
        shapes = {getattr(record.get(key), "shape", None) for record in records}
        if len(shapes) > 1 or any(record.keys() != first.keys() for record in records):
            raise PlanError(f"records of one batch differ in keys, or in the shape of {key!r}: {shapes}; pass collate=")
    return {key: np.stack([record[key] for record in records]) for key in first}
