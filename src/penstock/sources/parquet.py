"""What does row i of these Parquet files say?  Row groups are decoded a slice at a time, so their size does not matter to RAM.

A row in a group that fits the cache costs one decoding of that group for all its rows.  In a larger group, a jump back
decodes it from its first row again: Parquet has no other way in.

Nothing here asks pyarrow for the metadata of a column chunk: a footer that contradicts itself makes `row_group(i).column(j)` end
the process with std::terminate.  What a row weighs is measured on a few decoded rows instead.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import SourceError
from penstock.files import FileId, RangeFile
from penstock.sources.columnar import COLUMNAR_OPTIONS, ColumnarPart, ColumnarSource, Cursor, reading, slice_rows
from penstock.sources.parts import Part
from penstock.sources.values import ToRecords
from penstock.types import BadRow, Ints, Record, RemovedNulls

_BUFFER = 1 << 18  # read ahead per column
_LOOK = 64  # rows that are weighed
_GRACE = 256 << 20  # bytes that a row group may always take uncompressed
MAX_EXPANSION = 1000


class ParquetPart(ColumnarPart):
    """One file.  A row group is a run of slices; slice k of a group can be had once those before it are decoded."""

    def __init__(self, identity: FileId, source: "ParquetSource") -> None:
        self._file = RangeFile(identity)
        self._path = identity.path
        self._decoded = source.decoded
        self._group_starts: list[int] = []  # rows
        with reading(self._path, "Parquet"):
            file = self._reader(None)
            self._metadata = file.metadata
            schema = file.schema_arrow
        self._names = source.choose(schema, self._path)
        if not self._names:
            raise SourceError(f"{self._path}: a Parquet file without columns, expected at least one")
        chosen = pa.schema([schema.field(name) for name in self._names])
        self._to_records = ToRecords(chosen, json_columns=source.json_columns, nulls=source.nulls)
        self._varies = any(_varies(field.type) for field in chosen)
        with reading(self._path, "Parquet"):
            counts, sizes = self._groups(source.max_expansion)
            if source.columns is not None:
                sizes = self._chosen_sizes(counts, sizes)
        self._group_starts = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
        self._first_bytes = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._at_once: dict[int, int] = {}  # rows decoded together, of each group met so far
        self.num_rows = self._group_starts[-1]
        self.num_bytes = int(self._first_bytes[-1])
        if self.num_rows != self._metadata.num_rows:
            raise SourceError(
                f"{self._path}: its row groups hold {self.num_rows} rows, its footer says {self._metadata.num_rows}; "
                f"the file is damaged, make it again"
            )

    def record(self, row: int) -> Record | BadRow:
        return self._to_records(self._one(row))[0]

    def removed_nulls(self, row: int) -> RemovedNulls:
        return self._to_records.removed_nulls(self._one(row))

    def _one(self, row: int) -> Any:
        """A batch of one row."""
        self.check()
        group = bisect_right(self._group_starts, row) - 1
        number, within = divmod(row - self._group_starts[group], self._slice_rows(group))
        return self._slice(group, number).slice(within, 1)

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        while first < last:
            group = bisect_right(self._group_starts, first) - 1
            begin, end = self._group_starts[group : group + 2]
            upto = min(last, end)
            for batch in self._batches(group, first - begin, upto - begin):
                yield from self._to_records(batch)
            first = upto

    def borders(self, num_bytes: int) -> Ints:
        """Between row groups; inside one only where it is larger than `num_bytes`."""
        wanted = np.arange(0, self.num_bytes, num_bytes)
        group = np.searchsorted(self._first_bytes, wanted, side="right") - 1
        starts = np.array(self._group_starts, dtype=np.int64)
        inside = np.interp(wanted, self._first_bytes, starts).astype(np.int64)
        small = np.diff(self._first_bytes)[group] <= num_bytes
        cut: Ints = np.where(small, starts[group], inside)
        return cut

    def check(self) -> None:
        self._file.check()

    def let_go(self) -> None:
        self._decoded.drop(self._path)  # parked readers hold the file

    def _batches(self, group: int, first: int, last: int) -> Iterator[Any]:
        """Rows first..last of a group, in pieces."""
        size = self._slice_rows(group)
        number, final = first // size, (last - 1) // size
        if number == final:  # one row, or a few: likely to be followed by others from here
            yield self._slice(group, number).slice(first - number * size, last - first)
            return
        slices: Iterator[Any] | None = None
        while number <= final:
            key = (self._path, group, number)
            batch = self._decoded.get(key) if slices is None else None
            if batch is None:
                slices = slices or self._from(group, number)
                batch = self._next(slices, group, number)
                if number == final:
                    self._keep(group, number, batch)  # the next range may begin inside it
            begin, end = max(first - number * size, 0), min(last - number * size, size)
            yield batch.slice(begin, end - begin)
            number += 1
        if slices is not None:
            self._park(slices, group, number)

    def _slice(self, group: int, number: int) -> Any:
        """One slice, from the cache or by decoding towards it, and on to the group's end as long as all of it fits the cache."""
        found = self._decoded.get((self._path, group, number))
        if found is not None:
            return found
        size = int(self._first_bytes[group + 1] - self._first_bytes[group])
        final = self._num_slices(group) - 1 if size <= self._decoded.budget // 2 else number
        at, slices = self._parked(group, number)
        room = self._decoded.budget // 2  # a text that is repeated in every row weighs nothing in the file
        while at <= number or (at <= final and room > 0):
            batch = self._next(slices, group, at)
            self._keep(group, at, batch)
            found = batch if at == number else found
            room -= batch.get_total_buffer_size()
            at += 1
        self._park(slices, group, at)
        return found

    def _from(self, group: int, number: int) -> Iterator[Any]:
        at, slices = self._parked(group, number)
        for passed in range(at, number):
            self._next(slices, group, passed)
        return slices

    def _parked(self, group: int, number: int) -> tuple[int, Iterator[Any]]:
        """A reader of this group that has not passed `number`, and the slice it will give next."""
        at, slices = self._decoded.pop((self._path, group, "reader")) or (0, None)
        return (at, slices) if slices is not None and at <= number else (0, self._read(group))

    def _park(self, slices: Iterator[Any], group: int, number: int) -> None:
        """Whoever reads on from here need not decode the group from its start."""
        weight = 2 * _BUFFER * len(self._names)
        if number < self._num_slices(group) and weight <= self._decoded.budget // 4:  # else it would drive out the rows
            self._decoded.put((self._path, group, "reader"), (number, slices), weight)

    def _read(self, group: int) -> Iterator[Any]:
        """A reader of a group from its start, slice by slice."""
        return self._begin(group, self._slice_rows(group))

    def _begin(self, group: int, batch_size: int) -> Iterator[Any]:
        with reading(self._path, "Parquet"):
            batches: Iterator[Any] = self._reader(self._metadata).iter_batches(
                batch_size=batch_size, row_groups=[group], columns=self._names, use_threads=False
            )
        return batches

    def _next(self, batches: Iterator[Any], group: int, number: int) -> Any:
        """The slice that comes next.  pyarrow hands it out in pieces where a dictionary changes or text passes 2 GiB."""
        size = self._slice_rows(group)
        count = self._group_starts[group + 1] - self._group_starts[group]
        expected = min(size, count - number * size)
        pieces: list[Any] = []
        with reading(self._path, "Parquet"):
            while (found := sum(piece.num_rows for piece in pieces)) < expected:
                piece = next(batches, None)
                if piece is None:
                    raise SourceError(
                        f"{self._path}: row group {group} ends at row {number * size + found} of {count}; "
                        f"the file is damaged, make it again"
                    )
                pieces.append(piece.select(self._names))  # a name with a dot in it selects more than itself
            return pieces[0] if len(pieces) == 1 else pa.Table.from_batches(pieces)

    def _keep(self, group: int, number: int, batch: Any) -> None:
        self._decoded.put((self._path, group, number), batch, batch.get_total_buffer_size())

    def _slice_rows(self, group: int) -> int:
        """How many rows to decode at once.  A few are weighed first: a text that many rows share is in the file but once."""
        found = self._at_once.get(group)
        if found is None:
            first, last = self._group_starts[group : group + 2]
            size = int(self._first_bytes[group + 1] - self._first_bytes[group])
            if self._varies:
                size = max(size, self._weight(group) * (last - first))
            found = self._at_once[group] = slice_rows(last - first, size)
        return found

    def _weight(self, group: int) -> int:
        """Bytes that a row of a group takes when decoded, from its first few rows."""
        with reading(self._path, "Parquet"):
            few = next(self._begin(group, _LOOK), None)
            return -(-few.nbytes // few.num_rows) if few else 0

    def _num_slices(self, group: int) -> int:
        count = self._group_starts[group + 1] - self._group_starts[group]
        return -(-count // self._slice_rows(group))

    def _reader(self, metadata: Any) -> Any:
        # No threads and no read-ahead: they would not survive a fork, and the engine is what makes things parallel.
        return pq.ParquetFile(
            Cursor(self._file),
            metadata=metadata,
            buffer_size=_BUFFER,
            pre_buffer=False,
            page_checksum_verification=True,
        )

    def _groups(self, max_expansion: int) -> tuple[list[int], list[int]]:
        """Rows and uncompressed bytes of each row group."""
        groups = [self._metadata.row_group(number) for number in range(self._metadata.num_row_groups)]
        counts = [group.num_rows for group in groups]
        sizes = [max(group.total_byte_size, 1) for group in groups]
        if any(count < 0 for count in counts):
            raise SourceError(f"{self._path}: a row group of {min(counts)} rows; the file is damaged, make it again")
        limit = max(_GRACE, max_expansion * self._file.identity.size)
        if sizes and max(sizes) > limit:
            raise SourceError(
                f"{self._path}: a row group of {max(sizes):_} bytes in a file of {self._file.identity.size:_}, expected at "
                f"most {limit:_}; if this is not a bomb, raise max_expansion (now {max_expansion})"
            )
        return counts, sizes

    def _chosen_sizes(self, counts: list[int], sizes: list[int]) -> list[int]:
        """About the bytes of the chosen columns in each group, by the first rows of the first group that has any."""
        group = next((group for group, count in enumerate(counts) if count), None)
        weight = 0 if group is None else self._weight(group)
        return [max(1, min(size, weight * count)) for count, size in zip(counts, sizes, strict=True)]


def _varies(kind: Any) -> bool:
    """Whether values of a type can be larger in memory than in the file: text and lists that rows share are stored but once."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _varies(kind.storage_type)
    if types.is_struct(kind):
        return any(_varies(field.type) for field in kind)
    return not types.is_primitive(kind) and not types.is_null(kind)


class ParquetSource(ColumnarSource):
    """Parquet files of one schema.  Values are as the file stores them: Arrow knows no missing keys, only nulls."""

    shape = "parquet"
    OPTIONS = (*COLUMNAR_OPTIONS, "max_expansion")

    def __init__(self, paths: Sequence[str], *, max_expansion: int = MAX_EXPANSION, **rest: Any) -> None:
        """`max_expansion`: how many times the file's size one row group may take uncompressed; 256 MiB are always allowed."""
        if type(max_expansion) is not int or max_expansion < 1:
            raise SourceError(f"max_expansion is {max_expansion!r}, expected a number ≥ 1")
        self.max_expansion = max_expansion
        super().__init__(paths, **rest)

    def part(self, identity: FileId) -> Part:
        return ParquetPart(identity, self)
