"""Views that change or use columns: rename, remove, sort."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from penstock.cache.checked import Json
from penstock.errors import BadRecord, SourceError
from penstock.fingerprint import Digest
from penstock.sources.base import RowAccess, Stamp
from penstock.sources.concat import describe
from penstock.sources.iterate import Place, Walked
from penstock.sources.parse import record_bytes
from penstock.sources.views import ChosenRows, Selection, View, records_at
from penstock.types import BadRow, Ints, Record
from penstock.words import did_you_mean, plural

_LOOK = 200  # rows in which columns are looked for


def expect_columns(source: RowAccess, names: Sequence[str], what: str) -> None:
    """Raise SourceError for a column that no record has.

    200 records show nearly every column that there is, and only if one is missing in them the others are read.  Of a stream,
    whose end may never come, only the first 200 are looked at.
    """
    while isinstance(source, ChosenRows):
        source = source.below  # chosen rows have the columns of the rows they are chosen from; none needs to be found for this
    known = _columns_seen(source)
    if not known:
        return
    missing = [name for name in names if name not in known]
    if missing and not source.has_unread_stream:
        missing = _never_seen(source, missing)
    if not missing:
        return
    name = missing[0]
    hint = did_you_mean(name, known)
    first_key = name.partition(".")[0]
    if first_key != name and first_key in known:
        hint = f"; for a key inside {first_key!r}, make a column of it with map"
    looked_at = f"the first {_LOOK} records of " if source.has_unread_stream else ""
    raise SourceError(
        f"{what}: no column {name!r} in {looked_at}{source.name}{hint}; there are {', '.join(known)}"
    )


def _columns_seen(source: RowAccess) -> list[str]:
    """Return the columns of 200 records spread over a source; where records must be counted first, those of the first 200."""
    if source.is_counted:
        return list(describe(source, _LOOK).columns)
    records = (walked.record for walked in islice(source.walk(), _LOOK))
    return list(
        dict.fromkeys(
            name for record in records if not isinstance(record, BadRow) for name in record
        )
    )


def _never_seen(source: RowAccess, names: Sequence[str]) -> list[str]:
    """Return those of some columns that no record has; stop at the record that has the last of them."""
    missing = list(names)
    for walked in source.walk():
        if not isinstance(walked.record, BadRow):
            missing = [name for name in missing if name not in walked.record]
        if not missing:
            break
    return missing


class ColumnView(View):
    """Each record with other columns.  What it does has a name, so its digest needs no record."""

    _does: tuple[Any, ...]  # plain values that say what is done

    def _change(self, row: int, record: Record) -> Record:
        raise NotImplementedError

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        for row, record in enumerate(self._source.records(start, stop), start):
            yield record if isinstance(record, BadRow) else self._change(row, record)

    def records_at(self, rows: Ints) -> list[Record]:
        read = records_at(self._source, rows)
        return [self._change(row, record) for row, record in zip(rows.tolist(), read, strict=True)]

    def _record(self, row: int) -> Record:
        return self._change(row, self._source[row])

    def walk(self, after: Place = None) -> Iterator[Walked]:
        for walked in self.below.walk(after):
            if isinstance(walked.record, BadRow):
                yield walked
            else:
                row = walked.place["row"] - 1
                yield walked._replace(record=self._change(row, walked.record))

    def digest(self, start: int, stop: int) -> str:
        """Return the digest of the source's records with what is done to them."""
        inner = self._source.digest(start, stop)
        content = Digest()
        content.update(record_bytes([*self._does, inner]))
        return content.hexdigest()

    def stamp(self) -> Stamp:
        return self._stamp(*self._does)

    def outline(self) -> Json:
        return self._outlined(*self._does)


class Renamed(ColumnView):
    """Records with other names for some keys.  Keys keep their order."""

    def __init__(self, source: RowAccess, names: Mapping[str, str]) -> None:
        super().__init__(source)
        _expect_names(names)
        self._names = dict(names)
        self._does = ("rename", sorted(self._names.items()))
        expect_columns(source, list(names), "rename")

    def _change(self, row: int, record: Record) -> Record:
        names = self._names
        made = {names.get(name, name): value for name, value in record.items()}
        if len(made) != len(record):
            lost = next(new for old, new in names.items() if old in record and new in record)
            raise BadRecord(
                f"{self._source.locate(row)}: rename: the record has {lost!r} already, which another key would be renamed to; "
                f"remove it first (source.remove({lost!r})), or choose another name"
            )
        return made

    def number_columns(self) -> dict[str, str]:
        return {
            self._names.get(name, name): kind for name, kind in super().number_columns().items()
        }

    def __repr__(self) -> str:
        return f"{self._source!r}.rename({self._names})"


def _expect_names(names: object) -> None:
    is_table = isinstance(names, Mapping) and all(
        isinstance(word, str) for pair in names.items() for word in pair
    )
    if not is_table or not names:
        raise SourceError(f"rename: found {names!r}, expected {{old name: new name}}")
    assert isinstance(names, Mapping)
    new_names = list(names.values())
    doubled = next((name for name in new_names if new_names.count(name) > 1), None)
    if doubled is not None:
        raise SourceError(f"rename: two columns would be {doubled!r}; give each a name of its own")


class Removed(ColumnView):
    """Records without some keys."""

    def __init__(self, source: RowAccess, columns: Sequence[str]) -> None:
        super().__init__(source)
        if not columns or not all(isinstance(column, str) for column in columns):
            raise SourceError(
                f"remove: found {tuple(columns)!r}, expected names of columns: source.remove('a', 'b')"
            )
        self._columns = frozenset(columns)
        self._does = ("remove", sorted(self._columns))
        expect_columns(source, columns, "remove")

    def _change(self, row: int, record: Record) -> Record:
        return {name: value for name, value in record.items() if name not in self._columns}

    def number_columns(self) -> dict[str, str]:
        known = super().number_columns()
        return {name: kind for name, kind in known.items() if name not in self._columns}

    def __repr__(self) -> str:
        return f"{self._source!r}.remove({', '.join(map(repr, sorted(self._columns)))})"


class Sorted(Selection):
    """Records in the order of their values.  Records with equal values keep their order, and so do records without a value, at the end."""

    def __init__(
        self, source: RowAccess, columns: Sequence[str], reverse: bool | Sequence[bool]
    ) -> None:
        super().__init__(source)
        if not columns or not all(isinstance(column, str) for column in columns):
            raise SourceError(
                f"sort: found {tuple(columns)!r}, expected names of columns: source.sort('a', 'b')"
            )
        self._columns = tuple(columns)
        self._reverse = _reverse_of_each(reverse, len(columns))
        expect_columns(source, columns, "sort")

    def _find(self) -> Ints:
        """Read the values of the columns by one pass, and sort by the last column first: each sort keeps the order of equal records."""
        values: list[list[Any]] = [[] for _ in self._columns]
        for record in self._source.records(0, len(self._source)):
            for column, of_rows in zip(self._columns, values, strict=True):
                of_rows.append(None if isinstance(record, BadRow) else record.get(column))
        rows = list(range(len(self._source)))
        for number in reversed(range(len(self._columns))):
            rows = self._sorted_by(number, values[number], rows)
        return np.array(rows, dtype=np.int64)

    def _sorted_by(self, number: int, values: list[Any], rows: list[int]) -> list[int]:
        """Return records in the order of their values in a column, by its number."""
        column = self._columns[number]
        given = [row for row in rows if not _is_missing(values[row])]
        not_numbers = [row for row in rows if _is_nan(values[row])]
        missing = [row for row in rows if values[row] is None]
        kinds = {_kind(values[row]): row for row in reversed(given)}
        if len(kinds) > 1:
            (first_kind, first_row), (other_kind, other_row) = sorted(
                kinds.items(), key=lambda found: found[1]
            )[:2]
            raise SourceError(
                f"sort: {column!r} is a {first_kind} in {self._source.locate(first_row)} and a {other_kind} in "
                f"{self._source.locate(other_row)}, expected values that can be compared; bring them to one type with map"
            )
        if given and next(iter(kinds)) not in _COMPARED:
            raise SourceError(
                f"sort: {column!r} is a {next(iter(kinds))} in {self._source.locate(given[0])}, expected numbers, text or times; "
                f"make a column of one of these with map"
            )
        given.sort(key=values.__getitem__, reverse=self._reverse[number])
        return given + not_numbers + missing

    def outline(self) -> Json:
        return self._outlined("sort", list(self._columns), list(self._reverse))

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self._columns))
        reverse = ""
        if any(self._reverse):
            reverse = f", reverse={True if all(self._reverse) else list(self._reverse)}"
        return f"{self._source!r}.sort({names}{reverse})"


def _reverse_of_each(reverse: bool | Sequence[bool], num_columns: int) -> tuple[bool, ...]:
    """Return for each column whether its largest values come first."""
    of_columns: list[Any] = (
        list(reverse) if isinstance(reverse, list | tuple) else [reverse] * num_columns
    )
    if len(of_columns) != num_columns or not all(isinstance(value, bool) for value in of_columns):
        raise SourceError(
            f"sort: reverse is {reverse!r}, expected True, False, or a list with one of these for each of {plural(num_columns, 'column')}"
        )
    return tuple(of_columns)


_COMPARED = ("number", "str", "bytes", "datetime", "date", "time", "timedelta", "Decimal")


def _kind(value: Any) -> str:
    return (
        "number"
        if isinstance(value, bool | int | float | np.number | np.bool_)
        else type(value).__name__
    )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _is_missing(value: Any) -> bool:
    return value is None or _is_nan(value)
