"""Parquet files.  Row groups are decoded a slice at a time, so their size does not matter to RAM.

The source's cache keeps decoded slices, and the reader of a group that is not decoded to its end.  In a group larger than the cache, a jump
back decodes the group from its first row again: Parquet has no other way in.

Nothing here asks pyarrow for the metadata of a column chunk: a footer that contradicts itself makes `row_group(i).column(j)` end the
process with std::terminate.  The size of a row is measured on a few decoded rows instead.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.places.files import open_file
from penstock.places.place import FileId
from penstock.settings import setting
from penstock.sources.columnar import (
    ColumnarOptions,
    ColumnarReader,
    Columns,
    reading,
    slice_rows,
)
from penstock.sources.compressed import StreamCursor
from penstock.sources.files import Files
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.rows import FileRecords
from penstock.types import BadRow, Ints, Record, RemovedNulls

_BUFFER = 1 << 18  # read ahead per column
_FEW = 64  # rows that are measured
_GRACE = 256 << 20  # bytes that a row group may always take uncompressed


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOptions(ColumnarOptions):
    """Parquet files of one schema."""

    max_expansion: int = setting(
        "of Parquet: how many times the file's size a row group may take; 256 MiB are always allowed",
        1000,
    )

    def __post_init__(self) -> None:
        ColumnarOptions.__post_init__(self)
        if type(self.max_expansion) is not int or self.max_expansion < 1:
            raise SourceError(f"max_expansion is {self.max_expansion!r}, expected a number ≥ 1")


class ParquetRows(FileRecords):
    """One file.  A row group is a run of slices; slice k of a group can be had once those before it are decoded."""

    def __init__(self, identity: FileId, columns: Columns, max_expansion: int) -> None:
        self.file = open_file(identity)
        self._path = identity.path
        with reading(self._path, "Parquet"):
            file = self._reader(None)
            self._metadata = file.metadata
            schema = file.schema_arrow
        self._decoded = columns.decoded
        self._columns = columns.of_file(schema, self._path)
        if not self._columns.names:
            raise SourceError(
                f"{self._path}: a Parquet file without columns, expected at least one"
            )
        # Shared text and lists are stored once, and may take more bytes in memory than in the file.
        self._varies = any(not pa.types.is_primitive(field.type) for field in self._columns.schema)
        self._at_once: dict[int, int] = {}  # rows decoded together, of each group read so far
        with reading(self._path, "Parquet"):
            counts, sizes = self._groups(max_expansion)
            self._starts: list[int] = [
                0,
                *np.cumsum(counts, dtype=np.int64).tolist(),
            ]  # first row of each group
            if columns.options.columns is not None:
                sizes = self._chosen_sizes(counts, sizes)
        self._first_bytes = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.num_bytes = int(self._first_bytes[-1])
        if len(self) != self._metadata.num_rows:
            raise self._damaged(
                f"its row groups hold {len(self)} rows, its footer says {self._metadata.num_rows}"
            )

    def __len__(self) -> int:
        return self._starts[-1]

    def record(self, row: int) -> Record | BadRow:
        return self._columns.to_records(self._one(row))[0]

    def removed_nulls(self, row: int) -> RemovedNulls:
        return self._columns.to_records.removed_nulls(self._one(row))

    def close(self) -> None:
        self._decoded.drop(self._path)  # batches and readers hold the file

    def _one(self, row: int) -> pa.RecordBatch:
        """Return a batch of one row."""
        self.file.check()
        group = bisect_right(self._starts, row) - 1
        number, within = divmod(row - self._starts[group], self._slice_rows(group))
        return self._slice(group, number).slice(within, 1)

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        while first < last:
            group = bisect_right(self._starts, first) - 1
            number, within = divmod(first - self._starts[group], self._slice_rows(group))
            batch = self._slice(group, number).slice(within, last - first)
            yield from self._columns.to_records(batch)
            first += batch.num_rows

    def borders(self, num_bytes: int) -> Ints:
        """Cut between row groups; inside one only if it is larger than `num_bytes`."""
        wanted = np.arange(0, self.num_bytes, num_bytes)
        group = np.searchsorted(self._first_bytes, wanted, side="right") - 1
        starts = np.array(self._starts, dtype=np.int64)
        inside = np.interp(wanted, self._first_bytes, starts).astype(np.int64)
        small = np.diff(self._first_bytes)[group] <= num_bytes
        cut: Ints = np.where(small, starts[group], inside)
        return cut

    def _slice(self, group: int, number: int) -> Any:
        """Return one slice: from the cache, or by decoding up to it."""
        found = self._decoded.get((self._path, group, number))
        if found is not None:
            return found
        reader_key = (self._path, group, "reader")
        at, batches = self._decoded.pop(reader_key) or (0, None)
        if batches is None or at > number:
            at = 0
            batches = self._read(group)
        last = number
        num_slices = -(-(self._starts[group + 1] - self._starts[group]) // self._slice_rows(group))
        weight = 2 * _BUFFER * len(self._columns.names)
        while at <= last:
            batch = self._next(batches, group, at)
            num_bytes = batch.get_total_buffer_size()
            self._decoded.put((self._path, group, at), batch, num_bytes)
            if at == number:
                found = batch
                if (
                    weight > self._decoded.budget // 4
                    and num_slices * num_bytes <= self._decoded.budget // 2
                ):
                    last = (
                        num_slices - 1
                    )  # the reader cannot be kept, but all rows of the group can
            at += 1
        if at < num_slices and weight <= self._decoded.budget // 4:
            self._decoded.put(reader_key, (at, batches), weight)
        return found

    def _read(self, group: int) -> Iterator[Any]:
        """Return a reader of a group from its start, slice by slice."""
        return self._begin(group, self._slice_rows(group))

    def _begin(self, group: int, batch_size: int) -> Iterator[Any]:
        with reading(self._path, "Parquet"):
            batches: Iterator[Any] = self._reader(self._metadata).iter_batches(
                batch_size=batch_size,
                row_groups=[group],
                columns=self._columns.names,
                use_threads=False,
            )
        return batches

    def _next(self, batches: Iterator[Any], group: int, number: int) -> Any:
        """The next slice.  pyarrow gives it in pieces where a dictionary changes or text passes 2 GiB."""
        size = self._slice_rows(group)
        count = self._starts[group + 1] - self._starts[group]
        expected = min(size, count - number * size)
        pieces: list[Any] = []
        with reading(self._path, "Parquet"):
            while (rows_so_far := sum(piece.num_rows for piece in pieces)) < expected:
                piece = next(batches, None)
                if piece is None:
                    raise self._damaged(
                        f"row group {group} ends at row {number * size + rows_so_far} of {count}"
                    )
                pieces.append(
                    piece.select(self._columns.names)
                )  # a name with a dot in it selects more than itself
            return pieces[0] if len(pieces) == 1 else pa.Table.from_batches(pieces)

    def _slice_rows(self, group: int) -> int:
        """Return how many rows to decode at once.  A few are measured first: a text that many rows share is in the file once."""
        rows = self._at_once.get(group)
        if rows is None:
            count = self._starts[group + 1] - self._starts[group]
            size = int(self._first_bytes[group + 1] - self._first_bytes[group])
            if self._varies:
                size = max(size, self._row_bytes(group) * count)
            rows = self._at_once[group] = slice_rows(count, size)
        return rows

    def _row_bytes(self, group: int) -> int:
        """Return the bytes that a row of a group takes when decoded, from its first few rows."""
        with reading(self._path, "Parquet"):
            few = next(self._begin(group, _FEW), None)
            return math.ceil(few.nbytes / few.num_rows) if few else 0

    def _reader(self, metadata: Any) -> Any:
        # No threads and no read-ahead: they would not survive a fork, and the engine already works in parallel.
        options = {"buffer_size": _BUFFER, "pre_buffer": False, "page_checksum_verification": True}
        return pq.ParquetFile(StreamCursor(self.file), metadata=metadata, **options)

    def _groups(self, max_expansion: int) -> tuple[list[int], list[int]]:
        """Return rows and uncompressed bytes of each row group."""
        groups = [
            self._metadata.row_group(number) for number in range(self._metadata.num_row_groups)
        ]
        counts = [group.num_rows for group in groups]
        sizes = [max(group.total_byte_size, 1) for group in groups]
        if any(count < 0 for count in counts):
            raise self._damaged(f"a row group of {min(counts)} rows")
        limit = max(_GRACE, max_expansion * self.file.identity.size)
        if sizes and max(sizes) > limit:
            raise SourceError(
                f"{self._path}: a row group of {max(sizes):,} bytes in a file of {self.file.identity.size:,}, expected at "
                f"most {limit:,}; if it is not a decompression bomb, raise max_expansion (now {max_expansion})"
            )
        return counts, sizes

    def _chosen_sizes(self, counts: list[int], sizes: list[int]) -> list[int]:
        """Estimate the bytes of the chosen columns in each group, by the first rows of the first group that has any."""
        group = next((group for group, count in enumerate(counts) if count), None)
        row_bytes = 0 if group is None else self._row_bytes(group)
        return [
            max(1, min(size, row_bytes * count)) for count, size in zip(counts, sizes, strict=True)
        ]

    def _damaged(self, found: str) -> SourceError:
        return SourceError(f"{self._path}: {found}; the file is damaged, make it again")


def open_parquet(request: OpenRequest) -> Files:
    """Open Parquet files of one schema."""
    columns = Columns("parquet", request.options)
    reader = ColumnarReader(columns, request.cache, _open_rows, is_weighed_by_file=False)
    return open_files(request, reader)


def _open_rows(file: FileId, columns: Columns, cache: Cache) -> FileRecords:
    options = columns.options
    assert isinstance(options, ParquetOptions)
    return ParquetRows(file, columns, options.max_expansion)


PARQUET = Opener(ParquetOptions, open_parquet)
