"""Tables in memory: a DataFrame of pandas or polars, and a Table or RecordBatch of pyarrow.  They are read as Arrow, by row number."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.errors import SourceError
from penstock.places.place import FileId
from penstock.sources.bad import BadRows
from penstock.sources.base import RowAccess
from penstock.sources.columnar import expect_unique
from penstock.sources.file_source import FilesSource, Part
from penstock.sources.hf import InMemory
from penstock.sources.values import ToRecords, check_nulls
from penstock.types import BadRow, Ints, Record, RemovedNulls
from penstock.words import plural

_ROWS = 1000  # read at once
_PACKAGES = ("pandas", "polars", "pyarrow")


def is_table(place: object) -> bool:
    """Return whether this is a table of one of these packages; they are not imported for it."""
    kinds = ("DataFrame", "LazyFrame", "Table", "RecordBatch")
    return any(
        base.__name__ in kinds and base.__module__.partition(".")[0] in _PACKAGES
        for base in type(place).__mro__
    )


def as_arrow(place: Any) -> pa.Table:
    """Return a table as Arrow.  The index of pandas becomes a column if it has a name; numbers of rows are not data."""
    kind = type(place).__name__
    if kind == "LazyFrame":
        raise SourceError("a LazyFrame has no rows yet; pass frame.collect()")
    if isinstance(place, pa.Table):
        return place
    if isinstance(place, pa.RecordBatch):
        return pa.Table.from_batches([place])
    try:
        if hasattr(place, "to_arrow"):  # polars
            return place.to_arrow()
        has_names = any(name is not None for name in place.index.names)
        frame = place.reset_index() if has_names else place
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise SourceError(
            f"a column of the {kind} has values of several types, or of a type that Arrow does not have: {error}; "
            "convert it, or pass a list of dicts: frame.to_dict('records')"
        ) from error


class _TablePart(Part):
    """The rows of a table."""

    def __init__(self, table: pa.Table, nulls: str) -> None:
        self.file = cast(Any, InMemory())  # it is never read
        self.num_rows = table.num_rows
        self.num_bytes = table.nbytes
        self._table = table
        self._to_records = ToRecords(table.schema, nulls=nulls)

    def record(self, row: int) -> Record | BadRow:
        return next(self.records(row, row + 1))

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for start in range(first, last, _ROWS):
            for batch in self._table.slice(start, min(_ROWS, last - start)).to_batches():
                yield from self._to_records(batch)

    def removed_nulls(self, row: int) -> RemovedNulls:
        batches = self._table.slice(row, 1).to_batches()
        return sum(
            (self._to_records.removed_nulls(batch) for batch in batches), start=RemovedNulls()
        )

    def borders(self, num_bytes: int) -> Ints:
        rows_per_cut = max(1, self.num_rows * num_bytes // max(self.num_bytes, 1))
        return np.arange(0, self.num_rows, rows_per_cut, dtype=np.int64)


class TableSource(FilesSource):
    """Rows of a table in memory, with the values that a Parquet file of it would give."""

    shape = "table"
    OPTIONS = ("nulls",)
    nulls: str = "deep"

    def __init__(
        self, place: Any, *, name: str | None = None, bad: BadRows | None = None, **options: Any
    ) -> None:
        self._table = as_arrow(place)
        name = name or type(place).__name__
        expect_unique(self._table.schema, name)
        super().__init__([], cache=None, name=name, bad=bad, **options)  # type: ignore[arg-type]  # nothing is kept
        self.identities = [FileId(name, self._table.nbytes, 0)]
        self._first_rows = [0, self._table.num_rows]

    def check_options(self) -> None:
        check_nulls(self.nulls)

    def part(self, identity: FileId) -> Part:
        return _TablePart(self._table, self.nulls)

    @property
    def files(self) -> list[str]:
        return []

    @property
    def num_bytes(self) -> None:  # type: ignore[override]
        return None

    stamp = RowAccess.stamp  # only reading shows a change

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        part = cast(_TablePart, self._part(0))
        return sum((part.removed_nulls(self._row(row)) for row in rows), start=RemovedNulls())

    def __repr__(self) -> str:
        return f"TableSource({self.name!r}, {plural(len(self), 'row')})"
