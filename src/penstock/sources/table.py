"""Tables in memory: a DataFrame of pandas or polars, and a Table or RecordBatch of pyarrow.  They are read as Arrow, by record number."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import SourceError
from penstock.places.place import FileId
from penstock.sources.bad import BadRows
from penstock.sources.columnar import expect_unique
from penstock.sources.files import InMemory, RowsInMemory
from penstock.sources.hf import NullOptions
from penstock.sources.rows import FileReader, FileRecords
from penstock.sources.values import ToRecords
from penstock.types import BadRow, Record, RemovedNulls

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
    """Return a table as Arrow.  The index of pandas becomes a column if it has a name; numbers of records are not data."""
    kind = type(place).__name__
    if kind == "LazyFrame":
        raise SourceError("a LazyFrame has no records yet; pass frame.collect()")
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


class _TableRows(FileRecords):
    """The records of a table."""

    def __init__(self, table: pa.Table, nulls: str, identity: FileId) -> None:
        self.file = InMemory(identity)
        self.num_bytes = table.nbytes
        self._table = table
        self._to_records = ToRecords(table.schema, nulls=nulls)

    def __len__(self) -> int:
        return int(self._table.num_rows)

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


class _TableReader(FileReader):
    """Reads a table in memory as if it were a file."""

    format = "table"

    def __init__(self, table: pa.Table, options: NullOptions) -> None:
        self.options = options
        self._table = table
        self._nulls = options.nulls

    def open_rows(self, file: FileId) -> FileRecords:
        return _TableRows(self._table, self._nulls, file)


def open_table(
    table: object, options: NullOptions, *, name: str | None = None, bad: BadRows | None = None
) -> RowsInMemory:
    """Open the records of a table in memory, with the values that a Parquet file of it would give."""
    as_table = as_arrow(table)
    name = name or type(table).__name__
    expect_unique(as_table.schema, name)
    return RowsInMemory(
        _TableReader(as_table, options),
        name=name,
        num_bytes=as_table.nbytes,
        bad=bad,
        repr_name="TableSource",
    )
