"""Plain records as a store, and the stores that a Loader or Prompts are given by name.

A record that cannot be read has length 0 if its source was opened with on_bad="skip" or "quarantine": it keeps its number, is counted
under its reason, and never reaches a batch.
"""

import logging
import os
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
    """Return the names, stores and weights of what a Loader or Prompts are given.

    given: one store, a list of them, or a dict by name, in which each may have its weight next to it: (store, weight).  Sources may stand
    for all of the stores: `open_rows` makes a RowAccess of a source, and its records are the samples.
    """
    weights = None
    if isinstance(given, Mapping):
        names = [str(name) for name in given]
        stores, weights = _split_weights(list(given.values()))
    elif isinstance(given, Sequence) and not isinstance(given, str) and not _is_source(given):
        stores = list(given)
        names = [str(number) for number in range(len(stores))]
    else:
        stores = [given]
        names = ["data"]
    if not stores:
        raise PlanError("no stores given; pass at least one Store")
    if all(map(_is_source, stores)):
        record_stores = [_record_store(open_rows(source)) for source in stores]
        return NamedStores(names, record_stores, weights, is_records=True)
    for name, store in zip(names, stores, strict=True):
        if isinstance(store, str | os.PathLike):
            raise PlanError(
                f"{os.fspath(store)!r} is a path, expected a Store from penstock.prepare: "
                f"penstock.load(RECIPE, batch_size=…) makes a Loader of a recipe, and "
                f"penstock.prepare(FILE, tokenizer=…) makes a Store of data"
            )
        if not isinstance(store, Store):
            of_name = f"{name!r}: " if len(stores) > 1 else ""
            raise PlanError(
                f"{of_name}found {type(store).__name__}, expected a Store from penstock.prepare, a list of them, "
                f"or a dict like {{'name': (store, weight)}}"
            )
    return NamedStores(names, stores, weights, is_records=False)


def _split_weights(values: list[Any]) -> tuple[list[Any], list[float] | None]:
    """Return the stores of a mixture and their weights, which all of them have or none."""
    has_weight = [isinstance(value, tuple) and len(value) == 2 for value in values]
    if not any(has_weight):
        return values, None
    if not all(has_weight):
        raise PlanError("a mixture needs a weight for all of its stores or for none")
    return [store for store, _ in values], [weight for _, weight in values]


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
        return f"{plural(total, 'record')} → {total - bad.rows.size:,} kept{dropped}"

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

    def longest_of(self, sample_ids: Ints) -> Ints:
        return self.lengths_of(sample_ids)

    def has_target(self, sample_ids: Ints, starts: Ints, stops: Ints) -> Bools:
        return np.ones(sample_ids.size, np.bool_)
