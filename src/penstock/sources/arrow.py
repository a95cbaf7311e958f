"""Arrow IPC files and streams (Feather version 2 is one).  Batches are read in place through a memory map, of a remote file that of a copy.

pyarrow finds the messages and checks their headers.  It does not tell a batch's number of rows before decompressing it, nor which column
a dictionary belongs to, so four numbers of a header are read here (`_header`).
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.places.files import open_file
from penstock.places.place import FileId
from penstock.sources.columnar import (
    ColumnarOptions,
    ColumnarReader,
    Columns,
    reading,
    slice_rows,
)
from penstock.sources.files import Files
from penstock.sources.index import mapped
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.rows import FileRecords
from penstock.types import BadRow, Record, RemovedNulls

_MAGIC = b"ARROW1"
_IN_PLACE = 1 << 14  # bytes that a batch takes whose data stays in the file
_END = b"\xff\xff\xff\xff\0\0\0\0"
_ENDS = (_END, b"\0\0\0\0")  # the second before Arrow 0.15


class _Message(NamedTuple):
    start: int
    stop: int
    kind: str
    rows: int = 0
    column: int = 0  # whose dictionary it is
    adds: bool = False  # to the dictionary that was there
    batch: int = 0  # batches before a dictionary
    in_place: bool = True  # neither compressed nor big-endian


class ArrowRows(FileRecords):
    """One file or stream of record batches."""

    def __init__(self, identity: FileId, columns: Columns, cache: Cache) -> None:
        self.file = open_file(identity)
        self._data = pa.py_buffer(mapped(self.file, cache))
        if bytes(memoryview(self._data)[:4]) == b"FEA1":
            why = "Feather version 1, expected version 2; write it again with a newer library"
            raise SourceError(f"{identity.path}: {why}")
        with reading(identity.path, "a whole Arrow file or stream"):
            messages = _messages(self._data)
            self._schema_bytes = messages[0][:2]
            self._schema = pa.ipc.read_schema(self._piece(*self._schema_bytes))
        self._batches = [message for message in messages if message.kind == "record batch"]
        self._words = [message for message in messages if message.kind == "dictionary"]
        self._starts = [0, *accumulate(batch.rows for batch in self._batches)]
        self._in_place = all(message.in_place for message in messages)
        self._checked: set[int] = set()
        self.num_bytes = identity.size
        self._decoded = columns.decoded
        self._columns = columns.of_file(self._schema, identity.path)

    def __len__(self) -> int:
        return self._starts[-1]

    def record(self, row: int) -> Record | BadRow:
        return self._columns.to_records(self._one(row))[0]

    def removed_nulls(self, row: int) -> RemovedNulls:
        return self._columns.to_records.removed_nulls(self._one(row))

    def close(self) -> None:
        self._decoded.drop(self.file.identity.path)  # batches hold the file

    def _one(self, row: int) -> pa.RecordBatch:
        """Return a batch of one row."""
        number = bisect_right(self._starts, row) - 1
        return self._batch(number).slice(row - self._starts[number], 1)

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        while first < last:
            number = bisect_right(self._starts, first) - 1
            begin = self._starts[number]
            end = min(last, self._starts[number + 1])
            batch = self._batch(number)
            step = slice_rows(batch.num_rows, batch.nbytes)
            for start in range(first, end, step):
                self.file.check()
                yield from self._columns.to_records(
                    batch.slice(start - begin, min(step, end - start))
                )
            first = end

    def _batch(self, number: int) -> pa.RecordBatch:
        """Return a record batch whose every offset has been checked once, as its values are read without a check."""
        self.file.check()  # reading a page behind the end of a truncated file kills the process
        key = (self.file.identity.path, number)
        batch = self._decoded.get(key)
        if batch is None:
            with reading(self.file.identity.path, "Arrow"):
                batch = self._read(number).select(self._columns.names)
                if number not in self._checked:
                    batch.validate(full=True)
                    self._checked.add(number)
            in_place = self._in_place and not self._words
            self._decoded.put(key, batch, _IN_PLACE if in_place else batch.get_total_buffer_size())
        return batch

    def _read(self, number: int) -> pa.RecordBatch:
        message = self._batches[number]
        if message.in_place and not self._words:
            return pa.ipc.read_record_batch(
                pa.ipc.read_message(self._piece(*message[:2])), self._schema
            )
        # A stream of one batch: pyarrow has no other way to give a batch its dictionaries, and swaps bytes in streams only.
        pieces = [self._schema_bytes, *self.dictionaries(number), message[:2]]
        stream = b"".join(memoryview(self._piece(*piece)) for piece in pieces) + _END
        return pa.ipc.open_stream(stream).read_next_batch()

    def dictionaries(self, number: int) -> list[tuple[int, int]]:
        """Return the dictionary messages that a batch needs: for each column the last full one and what adds to it."""
        needed: dict[int, list[_Message]] = {}
        for each in self._words:
            if each.batch <= number:
                needed[each.column] = [*needed.get(each.column, []), each] if each.adds else [each]
        return sorted(each[:2] for group in needed.values() for each in group)

    def _piece(self, start: int, stop: int) -> pa.Buffer:
        return self._data.slice(start, stop - start)


def _messages(data: Any) -> list[_Message]:
    """Return every message, the schema first.  Without its end mark a truncated stream would look complete."""
    view = memoryview(data)
    in_file = bytes(view[: len(_MAGIC)]) == _MAGIC
    first = 0
    last = len(view)
    num_batches = None
    if in_file:
        num_batches = pa.ipc.open_file(data).num_record_batches  # checks the footer
        tail = len(view) - len(_MAGIC) - 4
        first = 8
        last = tail - struct.unpack_from("<i", view, tail)[0]
    source = pa.BufferReader(data.slice(first, last - first))
    found: list[_Message] = []
    batches = 0
    big_endian = False
    for message in pa.ipc.MessageReader.open_stream(source):
        start = found[-1].stop if found else first
        stop = first + source.tell()
        rows, column, adds, compressed, big = _header(message)
        big_endian |= big
        if message.type not in (("record batch", "dictionary") if found else ("schema",)):
            expected = "a record batch" if found else "a schema"
            raise ValueError(
                f"a message of kind {message.type!r} at byte {start}, expected {expected}"
            )
        # in a file every dictionary belongs to all batches; in a stream only to those that follow it
        in_place = not (compressed or big_endian)
        found.append(
            _Message(
                start, stop, message.type, rows, column, adds, 0 if in_file else batches, in_place
            )
        )
        batches += message.type == "record batch"
    stop = found[-1].stop if found else first
    if not in_file and bytes(view[stop:last]) not in _ENDS:
        after = (
            "bytes follow the end of the stream"
            if source.tell() > stop
            else "no end mark, so it is cut off"
        )
        raise ValueError(f"{after} (byte {stop})")
    if (
        not found
        or sum(each.rows for each in found) >= 1 << 62
        or num_batches not in (None, batches)
    ):
        raise ValueError(f"{batches} batches found, {num_batches} listed")
    return found


def _header(message: Any) -> tuple[int, int, bool, bool, bool]:
    """Return (rows, column of a dictionary, whether it adds, compressed, big-endian) of a message, from its flatbuffer."""
    data = memoryview(message.metadata)

    def field(table: int, number: int, kind: str) -> int:
        """Return the value of a field of a table, 0 if it is left out; with kind "", its place."""
        slots = table - struct.unpack_from("<i", data, table)[0]
        slot = 4 + 2 * number
        is_there = slot + 2 <= struct.unpack_from("<H", data, slots)[0]
        offset = struct.unpack_from("<H", data, slots + slot)[0] if is_there else 0
        if not offset or not kind:
            return table + offset if offset else 0
        value: int = struct.unpack_from(kind, data, table + offset)[0]
        return value

    def inner(table: int, number: int) -> int:
        place = field(table, number, "")
        return place + int(struct.unpack_from("<I", data, place)[0])

    header = inner(struct.unpack_from("<I", data, 0)[0], 2)
    if message.type == "schema":
        return 0, 0, False, False, field(header, 0, "<h") == 1
    column = 0
    adds = False
    if message.type == "dictionary":
        column = field(header, 0, "<q")
        adds = bool(field(header, 2, "<B"))
        header = inner(header, 1)
    rows = field(header, 0, "<q")
    nodes = inner(header, 1)  # (rows, nulls) of each column
    column_rows = (
        struct.unpack_from("<q", data, nodes + 4)[0]
        if struct.unpack_from("<I", data, nodes)[0]
        else rows
    )
    if rows < 0 or column_rows != rows:
        raise ValueError(f"a batch of {rows} rows, with a column of {column_rows}")
    return rows, column, adds, bool(field(header, 3, "")), False


def open_arrow(request: OpenRequest) -> Files:
    """Open Arrow IPC files and streams of one schema."""
    columns = Columns("arrow", request.options)
    return open_files(request, arrow_reader(columns, request.cache))


def arrow_reader(columns: Columns, cache: Cache) -> ColumnarReader:
    """Return the reader of Arrow files."""
    return ColumnarReader(columns, cache, ArrowRows, is_weighed_by_file=True)


ARROW = Opener(ColumnarOptions, open_arrow)
