"""Where in an Arrow IPC file or stream does each record batch lie?  One look at every header; the data stays untouched.

pyarrow can read a batch once its message is found, but to find the n-th of a stream it reads all before it, and it tells
a batch's number of rows only after decompressing it.  So the headers are read here: each is a flatbuffer, a few fields
of which matter.  Everything a header says is checked against the file before it is believed.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from penstock.errors import SourceError
from penstock.types import Ints

MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_CONTINUES = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # kinds of messages
_BLOCK = 24  # offset int64, length of header int32, four bytes of padding, length of body int64


@dataclass(frozen=True, slots=True)
class Words:
    """One dictionary message: where it lies, whose it is, whether it adds to what was there, batches before it."""

    start: int
    stop: int
    column: int
    adds: bool
    batch: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Batch b lies at bytes starts[b]..stops[b] and holds rows first_rows[b]..first_rows[b + 1]."""

    schema: tuple[int, int]
    starts: Ints
    stops: Ints
    first_rows: Ints
    words: tuple[Words, ...]
    compressed: bool
    big_endian: bool

    def words_of(self, batch: int) -> list[tuple[int, int]]:
        """The dictionary messages that this batch needs, in their order: for each column the last full one and what adds to it."""
        needed: dict[int, list[Words]] = {}
        for each in self.words:
            if each.batch <= batch:
                needed[each.column] = [*needed.get(each.column, []), each] if each.adds else [each]
        return sorted((each.start, each.stop) for group in needed.values() for each in group)


@dataclass(frozen=True, slots=True)
class _Message:
    start: int
    stop: int  # behind the body
    kind: int
    rows: int
    compressed: bool
    column: int
    adds: bool
    big_endian: bool


def layout(data: memoryview, path: str) -> Layout:
    """The layout of a whole file, whichever of the two formats it has."""
    try:
        if data[: len(_FEATHER_1)] == _FEATHER_1:
            raise SourceError(f"{path}: Feather version 1, expected version 2; write it again with a newer library")
        if data[: len(MAGIC)] == MAGIC:
            return _layout(list(_file_messages(data, path)), in_file=True)
        return _layout(list(_stream_messages(data, path)), in_file=False)
    except _Damaged as error:
        raise SourceError(f"{path}: not a whole Arrow file or stream: {error}; make it again") from error


def _layout(messages: list[_Message], *, in_file: bool) -> Layout:
    if not messages or messages[0].kind != _SCHEMA:
        raise _Damaged("it does not begin with a schema")
    starts, stops, counts, words = [], [], [], []
    for message in messages[1:]:
        if message.kind == _BATCH:
            starts.append(message.start)
            stops.append(message.stop)
            counts.append(message.rows)
        elif message.kind == _DICTIONARY:
            # in a file all dictionaries belong to all batches; in a stream one counts from where it stands
            batch = 0 if in_file else len(starts)
            words.append(Words(message.start, message.stop, message.column, message.adds, batch))
        else:
            raise _Damaged(f"a message of kind {message.kind} at byte {message.start}, expected a record batch")
    if sum(counts) >= 1 << 62:
        raise _Damaged(f"its batches claim {sum(counts)} rows")
    return Layout(
        schema=(messages[0].start, messages[0].stop),
        starts=np.array(starts, dtype=np.int64),
        stops=np.array(stops, dtype=np.int64),
        first_rows=np.array([0, *accumulate(counts)], dtype=np.int64),
        words=tuple(words),
        compressed=any(message.compressed for message in messages),
        big_endian=messages[0].big_endian,
    )


def _stream_messages(data: memoryview, path: str) -> Iterator[_Message]:
    """Message after message up to the end mark.  Without the mark nobody could tell a whole stream from one cut off."""
    position = 0
    while position < len(data):
        message = _message(data, position)
        if message is None:
            end = position + (8 if _number(data, "<I", position) == _CONTINUES else 4)
            if end != len(data):
                raise _Damaged(f"{len(data) - end} bytes follow the end of the stream at byte {end}")
            return
        yield message
        position = message.stop
    raise _Damaged(f"no end mark at byte {position}, so it is cut off or its writer was never closed")


def _file_messages(data: memoryview, path: str) -> Iterator[_Message]:
    """What the footer lists, and the schema, which stands first."""
    tail = len(data) - len(MAGIC)
    if tail < 16 or data[tail:] != MAGIC:
        raise _Damaged(f"it does not end in {MAGIC.decode()}, so it is cut off or its writer was never closed")
    footer_stop = tail - 4
    size = _number(data, "<i", footer_stop)
    if not 0 < size <= footer_stop - 8:
        raise _Damaged(f"a footer of {size} bytes in a file of {len(data)}")
    body = data[: footer_stop - size]
    schema = _message(body, 8)
    if schema is None:
        raise _Damaged("it does not begin with a schema")
    yield schema
    footer = _Table(data[footer_stop - size : footer_stop])
    blocks = [*footer.blocks(2), *footer.blocks(3)]  # dictionaries, then record batches
    for start, header, length in blocks:
        message = _message(body, start)
        if message is None or message.kind not in (_DICTIONARY, _BATCH) or message.stop - start != header + length:
            raise _Damaged(f"the footer lists a batch of {header + length} bytes at byte {start}, where there is none")
        yield message


def _message(data: memoryview, position: int) -> _Message | None:
    """The message at a byte, or None for the end mark."""
    begin = position + 4
    size = _number(data, "<I", position)
    if size == _CONTINUES:
        size, begin = _number(data, "<I", begin), begin + 4  # before Arrow 0.15 there was no such mark
    if size == 0:
        return None
    if begin + size > len(data):
        raise _Damaged(f"a header of {size} bytes at byte {position}, but the data ends at byte {len(data)}")
    root = _Table(data[begin : begin + size])
    kind, length = root.number(1, "<B"), root.number(3, "<q")
    stop = begin + size + length
    if length < 0 or stop > len(data):
        raise _Damaged(f"a batch of {length} bytes at byte {begin + size}, but the data ends at byte {len(data)}")
    rows, compressed, column, adds = 0, False, 0, False
    big_endian = kind == _SCHEMA and root.table(2).number(0, "<h") == 1
    if kind in (_DICTIONARY, _BATCH):
        header = root.table(2)
        if kind == _DICTIONARY:
            column, adds = header.number(0, "<q"), bool(header.number(2, "<B"))
            header = header.table(1)
        rows, compressed = header.number(0, "<q"), header.has(3)
        column_rows = header.first_of_vector(1)  # the first column's own count of rows
        if rows < 0 or column_rows not in (None, rows):
            raise _Damaged(f"a batch of {rows} rows at byte {position}, with a column of {column_rows}")
    return _Message(position, stop, kind, rows, compressed, column, adds, big_endian)


class _Damaged(Exception):
    """A header says what cannot be; the message says what."""


class _Table:
    """A flatbuffer table: fields by number, found through a small table of offsets."""

    def __init__(self, data: memoryview, at: int | None = None) -> None:
        self._data = data
        self._at = _number(data, "<I", 0) if at is None else at
        self._slots = self._at - _number(data, "<i", self._at)
        self._num_bytes = _number(data, "<H", self._slots)

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def number(self, field: int, kind: str) -> int:
        """A number, or 0 where it is left out."""
        place = self._place(field)
        return 0 if place is None else _number(self._data, kind, place)

    def table(self, field: int) -> "_Table":
        place = self._place(field)
        if place is None:
            raise _Damaged("a header without its content")
        return _Table(self._data, place + _number(self._data, "<I", place))

    def first_of_vector(self, field: int) -> int | None:
        """The int64 with which a list of structs begins, or None where the list is empty."""
        place = self._place(field)
        if place is None:
            return None
        place += _number(self._data, "<I", place)
        return _number(self._data, "<q", place + 4) if _number(self._data, "<I", place) else None

    def blocks(self, field: int) -> Iterator[tuple[int, int, int]]:
        """A footer's list of (byte, length of header, length of body)."""
        place = self._place(field)
        if place is None:
            return
        place += _number(self._data, "<I", place)
        for number in range(_number(self._data, "<I", place)):
            at = place + 4 + number * _BLOCK
            yield (
                _number(self._data, "<q", at),
                _number(self._data, "<i", at + 8),
                _number(self._data, "<q", at + 16),
            )

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        offset = _number(self._data, "<H", self._slots + slot) if slot + 2 <= self._num_bytes else 0
        return self._at + offset if offset else None


def _number(data: memoryview, kind: str, at: int) -> int:
    if at < 0 or at + struct.calcsize(kind) > len(data):
        raise _Damaged(f"a header leads to byte {at} of {len(data)}")
    found: int = struct.unpack_from(kind, data, at)[0]
    return found
