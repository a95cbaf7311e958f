"""Records in memory: a list of dicts."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.errors import BadRecord
from penstock.fingerprint import Digest
from penstock.sources.base import RowAccess
from penstock.sources.parse import has_long_digits, parse
from penstock.sources.python_values import copied, take_bytes
from penstock.types import MOST_DEPTH, BadRow, Ints, Record, nests_too_deep
from penstock.words import plural

_DEEP = f"values that nest more than {MOST_DEPTH} levels deep"


class ListSource(RowAccess):
    """Records in memory.  They must be plain JSON values, as their text is the content that names a store.

    Images may also be bytes, or images of Pillow.
    """

    format = "list"

    def __init__(self, records: Sequence[Record], *, name: str = "list") -> None:
        self.name = name
        self._records = list(records)
        for row, record in enumerate(self._records):
            _expect_dict(record, name, row)

    def __len__(self) -> int:
        return len(self._records)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        self._range(start, stop)
        for row in range(start, stop):
            record = self._records[row]
            if nests_too_deep(record):
                raise _refused(self.name, row, _DEEP)
            yield copied(record)

    def digest(self, start: int, stop: int) -> str:
        self._range(start, stop)
        content = Digest()
        for row in range(start, stop):
            content.update(self._text(row))
        return content.hexdigest()

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        borders = [0]
        size = 0
        for row in range(len(self)):
            if size >= num_bytes or row - borders[-1] >= num_rows:
                borders.append(row)
                size = 0
            size += len(self._text(row))
        return np.array([*borders, len(self)] if self._records else [0], dtype=np.int64)

    def _text(self, row: int) -> bytes:
        """Return canonical JSON.  Keys keep their order: a chat template may print a dict as it is."""
        record = self._records[row]
        if _not_json(record) is None:
            return _json_text(record)
        plain, digests = take_bytes(record)
        if fault := _not_json(plain):
            raise _refused(self.name, row, fault)
        # a NUL stands in no JSON text, so this is never the text of another record
        return b"\0".join([_json_text(plain), _json_text(digests)])

    def __repr__(self) -> str:
        return f"ListSource({self.name!r}, {plural(len(self), 'record')})"


def json_line(record: Any, name: str, row: int) -> bytes:
    """Return a record as a line that reads back as the same record; raise BadRecord if there is none."""
    _expect_dict(record, name, row)
    try:
        fault = _not_json(record)
        if fault is None:
            line = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
            if not isinstance(parse(line, exact=has_long_digits(line)), BadRow):
                return line
            fault = "values nested too deep, or too many digits"
    except (UnicodeEncodeError, RecursionError, ValueError) as error:
        fault = f"what JSON cannot hold ({error})"
    refused = _refused(name, row, fault)
    if fault == "a bytes":
        raise BadRecord(f"{refused}; of images, write paths or data: URLs, or pass a list")
    raise refused


def _expect_dict(record: Any, name: str, row: int) -> None:
    if not isinstance(record, dict):
        raise BadRecord(
            f"{name}:{row + 1}: record {row} is a {type(record).__name__}, expected a dict"
        )


def _refused(name: str, row: int, fault: str) -> BadRecord:
    return BadRecord(f"{name}:{row + 1}: record {row} holds {fault}, expected plain JSON values")


def _json_text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _not_json(value: Any) -> str | None:
    """Name what in a record JSON would change: tuples, keys that are not strings, NaN, subclasses; or that it nests too deep."""
    return _DEEP if nests_too_deep(value) else _not_json_inside(value)


def _not_json_inside(value: Any) -> str | None:
    kind = type(value)
    if kind is dict:
        for key, inner in value.items():
            if type(key) is not str:
                return f"the key {key!r} of type {type(key).__name__}"
            if fault := _not_json_inside(inner):
                return fault
        return None
    if kind is list:
        return next((fault for inner in value if (fault := _not_json_inside(inner))), None)
    if kind is float and not math.isfinite(value):
        return f"the number {value}"
    return None if kind in (str, int, float, bool, type(None)) else f"a {kind.__name__}"
