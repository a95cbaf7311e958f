"""Plain records as a store, and the stores that a Loader or Prompts are given by name.

A record that cannot be read has length 0 if its source was opened with on_bad="skip" or "quarantine": it keeps its number, is counted
under its reason, and never reaches a batch.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PlanError
from penstock.fingerprint import fingerprint
from penstock.store.digests import RowRanges
from penstock.store.store import Store
from penstock.types import Bools, Column, Ints
from penstock.words import percent, plural

_log = logging.getLogger("penstock")

USUAL_BYTES = 4096  # of a record, if its source does not know its bytes


class NamedStores(NamedTuple):
    """Stores with their names and weights.  is_records: they are RecordStores."""

    names: list[str]
    stores: list[Any]  # of Store or RecordStore
    weights: list[float] | None
    is_records: bool


def read_stores(given: Any, open_rows: Callable[[Any], Any]) -> NamedStores:
    """Read one store, a list of them, or a dict with or without weights; or sources, which `open_rows` makes a RowAccess."""
    found = [given]
    weights = None
    names = ["data"]
    if isinstance(given, Mapping):
        names = [str(name) for name in given]
        found = list(given.values())
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
        stores = [_record_store(open_rows(source)) for source in found]
        return NamedStores(names, stores, weights, True)
    for value in found:
        if not isinstance(value, Store):
            raise PlanError(
                f"found a {type(value).__name__}, expected a Store from penstock.prepare, a list of them, "
                f"or a dict like {{'name': (store, weight)}}"
            )
    return NamedStores(names, found, weights, False)


def _record_store(source: Any) -> "RecordStore":
    from penstock.store.stream import RecordStream  # it is a RecordStore

    return RecordStream(source) if source.is_stream else RecordStore(source)


def _is_source(value: Any) -> bool:
    """Return whether this delivers records, not tokens."""
    return all(
        hasattr(value, name) for name in ("records", "digest", "cuts", "where")
    ) and not hasattr(value, "tokens")


class RecordStore:
    """A source as a store: every record that can be read is a sample of length 1."""

    manifest: Any = ()  # complete: records need no preparation
    columns: tuple[Column, ...] = ()

    def __init__(self, source: Any) -> None:
        """source: a RowAccess."""
        self.source = opened = source
        self.cache = opened.cache
        ranges = RowRanges(self.source, self.cache)
        self.shard_sizes: Ints = np.diff(ranges.borders).astype(np.int64)
        self._unreadable = opened.unreadable()
        digests = ranges.recall()  # files that did not change are not read again
        if digests is None:
            digests = ranges.remember(
                [self.source.digest(start, stop) for start, stop in ranges.pairs]
            )
        content: list[Any] = ["records", digests]
        if (
            self._unreadable.rows.size
        ):  # which records have length 0 decides the order, as their content does
            content.append([self._unreadable.rows.tolist(), list(self._unreadable.reasons)])
            _log.warning("%s: %s", source.name, self.describe())
        self.fingerprint = fingerprint(content)

    @property
    def dropped(self) -> Counter[str]:
        """Records that cannot be read, by reason."""
        counts: Counter[str] = self._unreadable.counts
        return counts

    def describe(self) -> str:
        """One line: how many records there are, and how many of them cannot be read, with the first of each kind."""
        total = len(self.source)
        bad = self._unreadable
        first = {
            reason: row
            for row, reason in zip(bad.rows[::-1].tolist(), bad.reasons[::-1], strict=True)
        }
        parts = [
            f"{reason} {n:,} (first {self.source.locate(first[reason])})"
            for reason, n in bad.counts.items()
        ]
        share = percent(bad.rows.size, total)
        dropped = f"; {bad.rows.size:,} dropped ({share}): {', '.join(parts)}" if parts else ""
        return f"{plural(total, 'row')} → {plural(total - bad.rows.size, 'record')}{dropped}"

    @property
    def bytes_per_record(self) -> int:
        """The mean size of a record, roughly."""
        size = getattr(self.source, "num_bytes", None)
        return max(1, size // max(1, len(self.source))) if isinstance(size, int) else USUAL_BYTES

    def lengths_of(self, sample_ids: Ints) -> Ints:
        lengths = np.ones(sample_ids.size, np.int64)
        if (bad := self._unreadable.rows).size:
            lengths[bad[np.searchsorted(bad, sample_ids).clip(max=bad.size - 1)] == sample_ids] = 0
        return lengths

    def has_target(self, sample_ids: Ints, starts: Ints, stops: Ints) -> Bools:
        return np.ones(sample_ids.size, np.bool_)
