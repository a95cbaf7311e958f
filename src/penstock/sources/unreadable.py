"""Which rows of a source cannot be read, found without a loader having to reach them.

Only reading a row tells, so this is one pass over the files of a source that was opened with on_bad="skip" or "quarantine".  What it
finds is kept in the cache as long as the files stay as they are.  A view has no bad rows but those of what it looks at.
"""

import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import fingerprint
from penstock.sources.concat import Concat
from penstock.sources.mapped import Mapped
from penstock.sources.parts import FilesSource
from penstock.sources.view import RowAccess, Rows, View
from penstock.types import BadRow, Ints, Source

_VERSION = 1  # raise when a row becomes bad, or good, that was not


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Rows in ascending order, and why each cannot be read."""

    rows: Ints
    reasons: tuple[str, ...]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.reasons)


NONE = Unreadable(np.zeros(0, np.int64), ())


def find_unreadable(source: Source) -> Unreadable:
    """The bad rows of a source; none where it stops at the first, as by default, since that is an error once it is reached."""
    if isinstance(source, Mapped):
        return find_unreadable(source._source)
    if isinstance(source, Rows):
        return _chosen(find_unreadable(source._source), np.asarray(source.rows, np.int64))
    if isinstance(source, Concat):
        found = [find_unreadable(part) for part in source._sources]
        rows = [first + part.rows for first, part in zip(source._first_rows, found, strict=False)]
        return Unreadable(np.concatenate(rows), tuple(reason for part in found for reason in part.reasons))
    if isinstance(source, RowAccess) and all(ledger.on_bad == "stop" for ledger in source._ledgers()):
        return NONE
    return _remembered(source) if isinstance(source, FilesSource) else _look(source)


def cache_of(source: Source) -> Cache | None:
    """The cache with which a source, or the first one that a view looks at, was opened."""
    if isinstance(source, View):
        return cache_of(source._source)
    if isinstance(source, Concat):
        return cache_of(source._sources[0])
    return source.cache if isinstance(source, FilesSource) else None


def _look(source: Source) -> Unreadable:
    """Read every row."""
    rows: list[int] = []
    reasons: list[str] = []
    for row, record in enumerate(source.records(0, len(source))):
        if isinstance(record, BadRow):
            rows.append(row)
            reasons.append(record.reason)
    return Unreadable(np.array(rows, np.int64), tuple(reasons))


def _chosen(inner: Unreadable, rows: Ints) -> Unreadable:
    """Of a view, by the rows that it takes from its source."""
    if not inner.rows.size or not rows.size:
        return NONE
    places = np.searchsorted(inner.rows, rows).clip(max=inner.rows.size - 1)
    found = np.flatnonzero(inner.rows[places] == rows)
    return Unreadable(found, tuple(inner.reasons[place] for place in places[found].tolist()))


def _remembered(source: FilesSource) -> Unreadable:
    stamp = source.stamp()
    if stamp is None:
        return _look(source)
    key = fingerprint([_VERSION, stamp])
    name = f"unreadable/{key[:2]}/{key}.json"
    if (found := _recall(name, source)) is None:
        found = _look(source)
        if source.stamp() == stamp:
            value = {"rows": found.rows.tolist(), "reasons": list(found.reasons)}
            text = json.dumps({**value, "check": fingerprint(value)}).encode()
            with contextlib.suppress(StoreError):  # without it all works, only slower
                source.cache.publish(name, lambda file: file.write(text), replace=True)
        return found
    for row, reason in zip(found.rows.tolist(), found.reasons, strict=True):
        source.bad.count(row, reason, source.where(row))
    return found


def _recall(name: str, source: FilesSource) -> Unreadable | None:
    with contextlib.suppress(StoreError, ValueError, TypeError, KeyError, RecursionError):
        if source.cache.size(name) is None:
            return None
        value: dict[str, Any] = json.loads(source.cache.read(name))
        check = value.pop("check")
        rows, reasons = np.array(value["rows"], np.int64), tuple(map(str, value["reasons"]))
        in_order = bool((np.diff(rows) > 0).all()) and (not rows.size or 0 <= rows[0] <= rows[-1] < len(source))
        if check == fingerprint(value) and in_order and len(reasons) == rows.size:
            return Unreadable(rows, reasons)
    return None
