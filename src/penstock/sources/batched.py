"""`source.map(fn, batched=True)`: n records become m records.

A function gets the records of a batch as columns and returns columns.  How many records each batch becomes is found by one pass, when a
length or a record number is first needed.  After it, reading a record calls the function for the batch that has it: random access is kept.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from penstock.cache.checked import Json
from penstock.errors import BadRecord, SourceError
from penstock.sources.bad import ProcessLock, Unreadable
from penstock.sources.base import RowAccess, answer, at_most, distinct, in_groups
from penstock.sources.iterate import Place, Walked, row_of
from penstock.sources.python_values import copied
from penstock.sources.views import View, digest_of_made, name_of, short_name
from penstock.types import BadRow, Ints, Record, RemovedNulls, Source, Where
from penstock.words import plural

Columns = Mapping[str, Any]
BatchFunction = Callable[[dict[str, list[Any]]], Columns]


class BatchMapped(View):
    """The records that a function makes of each batch of records.  Bad records of a batch come behind its new records."""

    def __init__(self, source: Source, fn: BatchFunction, batch_size: int) -> None:
        super().__init__(source)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise SourceError(
                f"map: batch_size is {batch_size!r}, expected a number of records ≥ 1"
            )
        self._fn = fn
        self._batch_size = batch_size
        self._counted: list[int] | None = None
        self._last: tuple[int, list[Record | BadRow]] | None = None  # the batch of the last row
        self._lock = ProcessLock()

    # Where rows are

    @property
    def _first_rows(self) -> list[int]:
        """The first record of each batch, and the number of all records."""
        if self._counted is None:
            with self._lock:
                if self._counted is None:  # another thread may have counted meanwhile
                    counts = [len(made) for made in self._every_batch()]
                    self._counted = [0, *accumulate(counts)]
        return self._counted

    def __len__(self) -> int:
        return self._first_rows[-1]

    @property
    def is_counted(self) -> bool:
        return self._counted is not None

    def outline(self) -> Json:
        return self._outlined("batched", self._batch_size, short_name(self._fn))

    def _every_batch(self) -> Iterator[list[Record | BadRow]]:
        held: list[Record | BadRow] = []
        first = 0
        for record in self._source.records(0, len(self._source)):
            held.append(record)
            if len(held) == self._batch_size:
                yield self._apply(first, held)
                first += len(held)
                held = []
        if held:
            yield self._apply(first, held)

    def _batch_of(self, row: int) -> int:
        return bisect_right(self._first_rows, row) - 1

    def locate(self, row: int) -> Where:
        """Return where the batch begins that the record was made of: which of its records it came from, only the function knows."""
        return self._source.locate(self._batch_of(self._row(row)) * self._batch_size)

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Return the source's cuts, each moved to the next border of a batch."""
        first_rows = np.array(self._first_rows, dtype=np.int64)
        if not first_rows[-1]:
            return np.zeros(1, dtype=np.int64)
        borders = self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)
        batches = -(-borders // self._batch_size)
        return at_most(distinct(first_rows[batches]), num_rows)

    # Records

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        while start < stop:
            batch = self._batch_of(start)
            first, end = self._first_rows[batch : batch + 2]
            upto = min(stop, end)
            yield from self._batch(batch)[start - first : upto - first]
            start = upto

    def records_at(self, rows: Ints) -> list[Record]:
        """Call the function once for each batch."""
        first_rows = np.array(self._first_rows, dtype=np.int64)
        batches = np.searchsorted(first_rows, rows, side="right") - 1

        def read(batch: int, places: Ints) -> list[Any]:
            made = self._batch(batch)
            return [made[row] for row in (rows[places] - first_rows[batch]).tolist()]

        return in_groups(batches, read)

    def _record(self, row: int) -> Record:
        """Neighbouring records that are read one by one call the function once."""
        batch = self._batch_of(row)
        last = self._last
        if last is None or last[0] != batch:
            last = (batch, self._batch(batch))
            self._last = last
        record: Any = last[1][row - self._first_rows[batch]]
        return record if isinstance(record, BadRow) else copied(record)  # type: ignore[return-value]  # as Mapped gives bad rows

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    def _batch(self, batch: int) -> list[Record | BadRow]:
        """Return the new records of a batch."""
        first = batch * self._batch_size
        last = min(first + self._batch_size, len(self._source))
        made = self._apply(first, list(self._source.records(first, last)))
        begin, end = self._first_rows[batch : batch + 2]
        if len(made) != end - begin:
            raise self._failed(
                first,
                f"returned {plural(len(made), 'record')}, and {end - begin:,} when it was called before for the same records; "
                f"it must always return the same",
            )
        return made

    def unreadable(self) -> Unreadable:
        return RowAccess.unreadable(self)  # rows have other numbers than in the source

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        """Count those of all records of the batches that the records were made of."""
        batches = sorted({self._batch_of(self._row(row)) for row in rows})
        size = self._batch_size
        num_rows = len(self._source)
        return super().removed_nulls(
            row
            for batch in batches
            for row in range(batch * size, min(batch * size + size, num_rows))
        )

    def digest(self, start: int, stop: int) -> str:
        return digest_of_made(self, start, stop, self._fn)

    def number_columns(self) -> dict[str, str]:
        return {}  # the function may return anything

    def walk(self, after: Place = None) -> Iterator[Walked]:
        """Walk batch by batch: nothing is counted before the first record."""
        row = row_of(after)
        inner: Place = None if after is None else after["inner"]  # where the batch begins
        passed = 0 if after is None else int(after["passed"])  # rows of the batch before the place
        steps = self.below.walk(inner)
        while True:
            held: list[Record | BadRow] = []
            behind = inner
            for walked in steps:
                held.append(walked.record)
                behind = walked.place
                if len(held) == self._batch_size:
                    break
            if not held:
                return
            first = row_of(inner)
            for number, record in enumerate(self._apply(first, held)):
                if number < passed:
                    continue
                row += 1
                place = {"row": row, "inner": inner, "passed": number + 1}
                yield Walked(record, place, lambda first=first: self._source.locate(first))  # type: ignore[misc]
            passed = 0
            inner = behind

    # The function

    def _apply(self, first: int, records: list[Record | BadRow]) -> list[Record | BadRow]:
        """Return the new records of a batch that begins at record `first` of the source."""
        good = [record for record in records if not isinstance(record, BadRow)]
        bad = [record for record in records if isinstance(record, BadRow)]
        made: list[Record | BadRow] = []
        if good:
            try:
                columns = answer(self._fn(_columns_of(good)))
            except Exception as error:
                raise self._failed(first, f"raised {type(error).__name__}: {error}") from error
            try:
                made += _rows_of(columns)
            except _WrongColumns as error:
                raise self._failed(first, str(error)) from error
        return made + bad

    def _failed(self, first: int, what: str) -> BadRecord:
        return BadRecord(
            f"{self._source.locate(first)}: the map function {name_of(self._fn)} {what} "
            f"(batch of {self._batch_size:,} records from record {first}, counted from 0)"
        )

    def refuse_empty(self) -> None:
        if not len(self) and len(self._source):
            raise SourceError(
                f"{self!r} makes no record of {len(self._source):,} records; return at least one record for some batch"
            )

    def __repr__(self) -> str:
        rows = "" if self._counted is None else f", {plural(self._counted[-1], 'record')}"
        return f"{self._source!r}.map({name_of(self._fn)}, batched=True{rows})"


class _WrongColumns(Exception):
    """What a function returned, and what was expected."""


def _columns_of(records: list[Record]) -> dict[str, list[Any]]:
    """Return the columns of records; a key that a record does not have is None, as in `datasets`."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def _rows_of(columns: Any) -> list[Record]:
    """Return the records of columns."""
    if not isinstance(columns, Mapping):
        raise _WrongColumns(
            f"returned a {type(columns).__name__}, expected a dict with a list of values for each column"
        )
    values = {name: _values(name, column) for name, column in columns.items()}
    lengths = {name: len(column) for name, column in values.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise _WrongColumns(f"returned columns of different lengths ({found}), expected one length")
    names = list(values)
    return [dict(zip(names, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _values(name: str, column: Any) -> list[Any]:
    """Return the values of a column: a list, or an array of numpy, pyarrow, pandas or torch."""
    if isinstance(column, list | tuple):
        return list(column)
    if hasattr(column, "to_pylist"):  # of pyarrow; as an array, its nulls would be NaN
        return list(column.to_pylist())
    if not hasattr(column, "__array__"):
        raise _WrongColumns(
            f"returned a {type(column).__name__} for the column {name!r}, expected a list with a value for each new record"
        )
    array = np.asarray(column)
    if not array.ndim:
        raise _WrongColumns(
            f"returned one value for the column {name!r}, expected a list with a value for each new record"
        )
    return array.tolist() if array.ndim == 1 else list(array)
