"""What does row i of these Arrow files say?  Batches are looked at in place through a memory map; opening reads headers only."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.files import FileId
from penstock.sources.columnar import COLUMNAR_OPTIONS, ColumnarPart, ColumnarSource, MappedFile, reading, slice_rows
from penstock.sources.ipc_layout import layout
from penstock.sources.parts import Part
from penstock.sources.values import ToRecords
from penstock.types import BadRow, Record, RemovedNulls

_IN_PLACE = 1 << 14  # what a batch weighs whose data stays in the file
_END = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowPart(ColumnarPart):
    """One file or stream of record batches."""

    def __init__(self, identity: FileId, source: ColumnarSource) -> None:
        self._file = MappedFile(identity)
        self._path = identity.path
        self._decoded = source.decoded
        self._data = self._file.map()
        self._layout = layout(memoryview(self._data), self._path)
        self._starts: list[int] = self._layout.first_rows.tolist()
        self._checked: set[int] = set()
        with reading(self._path, "Arrow"):
            self._schema = pa.ipc.read_schema(self._piece(*self._layout.schema))
        self._names = source.choose(self._schema, self._path)
        chosen = pa.schema([self._schema.field(name) for name in self._names])
        self._to_records = ToRecords(
            chosen, json_columns=source.json_columns, parse_json=source.parse_json, nulls=source.nulls
        )
        self.num_rows = self._starts[-1]
        self.num_bytes = identity.size

    def record(self, row: int) -> Record | BadRow:
        return self._to_records(self._one(row))[0]

    def removed_nulls(self, row: int) -> RemovedNulls:
        return self._to_records.removed_nulls(self._one(row))

    def _one(self, row: int) -> Any:
        """A batch of one row."""
        number = bisect_right(self._starts, row) - 1
        return self._batch(number).slice(row - self._starts[number], 1)

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        while first < last:
            number = bisect_right(self._starts, first) - 1
            begin, end = self._starts[number : number + 2]
            batch = self._batch(number)
            step = slice_rows(batch.num_rows, batch.nbytes)
            for start in range(first, min(last, end), step):
                self.check()
                yield from self._to_records(batch.slice(start - begin, min(step, min(last, end) - start)))
            first = min(last, end)

    def check(self) -> None:
        self._file.check()

    def let_go(self) -> None:
        self._decoded.drop(self._path)  # batches in place hold the map, and that the file

    def _batch(self, number: int) -> Any:
        """A record batch whose every offset has been checked once, as the values are taken from it without looking."""
        self.check()  # pages behind the end of a file that was cut would be no memory
        key = (self._path, number)
        batch = self._decoded.get(key)
        if batch is None:
            with reading(self._path, "Arrow"):
                batch = self._read(number).select(self._names)
                if number not in self._checked:
                    batch.validate(full=True)
                    self._checked.add(number)
            in_place = not (self._layout.compressed or self._layout.words or self._layout.big_endian)
            self._decoded.put(key, batch, _IN_PLACE if in_place else batch.get_total_buffer_size())
        return batch

    def _read(self, number: int) -> Any:
        start, stop = self._layout.starts.item(number), self._layout.stops.item(number)
        words = self._layout.words_of(number)
        if not words and not self._layout.big_endian:
            return pa.ipc.read_record_batch(pa.ipc.read_message(self._piece(start, stop)), self._schema)
        # A stream of one batch: pyarrow offers no other way to hand dictionaries to a batch, and swaps bytes in streams only.
        pieces = [self._layout.schema, *words, (start, stop)]
        stream = b"".join(memoryview(self._piece(*piece)) for piece in pieces) + _END
        return pa.ipc.open_stream(stream).read_next_batch()

    def _piece(self, start: int, stop: int) -> Any:
        return self._data.slice(start, stop - start)


class ArrowSource(ColumnarSource):
    """Arrow IPC files and streams (Feather version 2 is one) of one schema."""

    shape = "arrow"
    OPTIONS = COLUMNAR_OPTIONS

    def part(self, identity: FileId) -> Part:
        return ArrowPart(identity, self)
