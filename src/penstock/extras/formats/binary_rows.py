"""Files of rows with an index in front: the number of rows u32, where each begins and the last ends u32, then the rows.

A row is the size u32 of each field that has no fixed one, then the values of all fields.  MDS shards and litdata chunks are such files.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import DecimalException
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.fingerprint import Digest
from penstock.places.place import File
from penstock.sources.rows import FileRecords
from penstock.types import BadRow, Ints, Record

_MOST_AXES = 64


@dataclass(frozen=True, slots=True)
class Field:
    """A field of rows: `decode` makes a value of its bytes, and raises ValueError if it cannot."""

    name: str
    encoding: str
    decode: Callable[[bytes], Any]
    size: int | None = None


class BinaryRows(FileRecords):
    """One file."""

    def __init__(self, file: File, fields: Sequence[Field], starts: Ints) -> None:
        self.file = file
        self._fields = fields
        self._starts = starts
        self._sizes = np.dtype(("<u4", sum(field.size is None for field in fields)))
        self._kinds = json.dumps([[field.name, field.encoding] for field in fields]).encode()
        self.num_bytes = file.identity.size

    def __len__(self) -> int:
        return len(self._starts) - 1

    def record(self, row: int) -> Record | BadRow:
        raw = self._raw(row)
        if len(raw) < self._sizes.itemsize:
            return self._bad(row, f"{len(raw)} bytes, expected at least {self._sizes.itemsize}")
        sizes = iter(np.frombuffer(raw, "<u4", self._sizes.itemsize // 4).tolist())
        at = self._sizes.itemsize
        record = {}
        for field in self._fields:
            size = next(sizes) if field.size is None else field.size
            if at + size > len(raw):
                return self._bad(
                    row, f"the field {field.name!r} ends at byte {at + size} of {len(raw)}"
                )
            try:
                record[field.name] = field.decode(raw[at : at + size])
            except (ValueError, RecursionError, DecimalException) as error:
                return self._bad(
                    row, f"the field {field.name!r} ({field.encoding}) cannot be read: {error}"
                )
            at += size
        if at != len(raw):
            return self._bad(row, f"its fields take {at} bytes of {len(raw)}")
        return record

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for row in range(first, last):
            yield self.record(row)

    def locate(self, row: int) -> tuple[int, int]:
        return row + 1, self._starts.item(row)

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add the names and encodings of the fields, and the bytes of each row."""
        for row in range(first, last):
            content.update(self._kinds)
            content.update(self._raw(row))

    def borders(self, num_bytes: int) -> Ints:
        """Cut at rows, every `num_bytes`."""
        first = self._starts.item(0)
        last = self._starts.item(-1)
        return np.searchsorted(self._starts[:-1], np.arange(first, last, num_bytes)).astype(
            np.int64
        )

    def _raw(self, row: int) -> bytes:
        return self.file.read(self._starts.item(row), self._starts.item(row + 1))

    def _bad(self, row: int, why: str) -> BadRow:
        return BadRow(
            reason="bad_value", message=f"the row cannot be read: {why}; make the file again"
        )


def read_starts(file: File, num_rows: int, *, listed_in: str) -> Ints:
    """Return where rows begin, and where the last one ends; they must be all of the file behind the index."""
    path = file.identity.path
    size = file.identity.size
    count = int.from_bytes(file.read(0, 4), "little") if size >= 4 else None
    if count != num_rows:
        found = "has no number of rows" if count is None else f"byte 0 says {count} rows"
        raise SourceError(
            f"{path}: {found}, but {listed_in} says {num_rows}; make or copy it again"
        )
    first = 4 * (num_rows + 2)
    if first > size:
        raise SourceError(
            f"{path}: ends at byte {size}, inside its index of {first} bytes; make or copy it again"
        )
    starts: Ints = np.frombuffer(file.read(4, first), "<u4").astype(np.int64)
    steps = np.diff(starts, prepend=first)
    if (wrong := (steps < 0) | (starts > size)).any():
        row = int(wrong.argmax())
        raise SourceError(
            f"{path}: byte {4 * (row + 1)} says that row {row} begins at byte {starts[row]}, expected a number from "
            f"{first if row == 0 else starts[row - 1]} to {size}; make or copy it again"
        )
    if starts[-1] != size:
        left = size - int(starts[-1])
        raise SourceError(
            f"{path}: {left} bytes behind the last row, from byte {starts[-1]} on; make or copy it again"
        )
    return starts


def array(raw: bytes, kind: str, shape: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
    """Return an array of these bytes: flat, or of a shape that must fit."""
    dtype = np.dtype(kind)
    if shape is None and len(raw) % dtype.itemsize:
        raise ValueError(f"{len(raw)} bytes are not a whole number of {dtype.name} values")
    if shape is not None and (
        len(shape) > _MOST_AXES or math.prod(shape) * dtype.itemsize != len(raw)
    ):
        raise ValueError(
            f"{len(raw)} bytes are not {dtype.name} values of the shape {list(shape)[:8]}"
        )
    flat: np.ndarray[Any, Any] = np.frombuffer(raw, dtype)
    return flat if shape is None else flat.reshape(shape)


def scalar(kind: str) -> Callable[[bytes], Any]:
    """Return a decoder of one number."""
    return lambda raw: array(raw, kind, ()).item()


def image(raw: bytes) -> Record:
    """An image in its own format, as `datasets` has it."""
    return {"bytes": raw, "path": None}


def raw_image(raw: bytes) -> Record:
    """An image of raw pixels behind width, height and its mode, as an image in the format PNM."""
    if len(raw) < 12:
        raise ValueError(f"{len(raw)} bytes, expected a width, a height and a mode")
    width, height, size = np.frombuffer(raw, "<u4", 3).tolist()
    mode = raw[12 : 12 + size]
    pixels = raw[12 + size :]
    depth = {b"L": 1, b"RGB": 3}.get(mode)
    if depth is None:
        raise ValueError(
            f"raw pixels in the mode {mode[:20]!r}, expected L or RGB; write it as png"
        )
    if width * height * depth != len(pixels):
        raise ValueError(f"{len(pixels)} bytes of pixels, expected {width} x {height} x {depth}")
    return image(b"P%d %d %d 255\n" % (5 if depth == 1 else 6, width, height) + pixels)


def several(raw: bytes, first: int, decode: Callable[[bytes], Any]) -> list[Any]:
    """A list: the number of elements u32 at `first`, the size u32 of each, and the elements."""
    count = int.from_bytes(raw[first : first + 4], "little")
    at = first + 4 * (count + 1)
    if at > len(raw):
        raise ValueError(f"{count} elements in {len(raw)} bytes")
    values = []
    for size in np.frombuffer(raw, "<u4", count, first + 4).tolist():
        if at + size > len(raw):
            raise ValueError(f"an element ends at byte {at + size} of {len(raw)}")
        values.append(decode(raw[at : at + size]))
        at += size
    if at != len(raw):
        raise ValueError(f"{len(raw) - at} bytes behind the last element")
    return values
