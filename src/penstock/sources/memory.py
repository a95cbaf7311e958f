"""How does a list of dicts become a source?  It is one; only its digest has to be made."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.errors import BadRecord
from penstock.fingerprint import Digest
from penstock.sources.parse import has_long_digits, parse
from penstock.sources.view import RowAccess
from penstock.types import BadRow, Ints, Record, Where


class ListSource(RowAccess):
    """Records in memory.  They must be plain JSON values, since their text is what names the store made of them."""

    shape = "list"

    def __init__(self, records: Sequence[Record], *, name: str = "list") -> None:
        self.name = name
        self._records = list(records)
        for row, record in enumerate(self._records):
            if not isinstance(record, dict):
                raise BadRecord(f"{name}:{row + 1}: record {row} is a {type(record).__name__}, expected a dict")

    def __len__(self) -> int:
        return len(self._records)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        self._range(start, stop)
        yield from map(_copy, self._records[start:stop])

    def where(self, row: int) -> Where:
        return Where(file=self.name, line=self._row(row) + 1)

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

    def _record(self, row: int) -> Record:
        record: Record = _copy(self._records[row])
        return record

    def _text(self, row: int) -> bytes:
        """Canonical JSON.  Keys keep their order: a chat template may print a dict as it stands."""
        if fault := _not_json(self._records[row]):
            raise _refused(self.name, row, f"holds {fault}")
        return json.dumps(self._records[row], separators=(",", ":")).encode()

    def __repr__(self) -> str:
        return f"ListSource({self.name!r}, {len(self):_} rows)"


def json_line(record: Any, name: str, row: int) -> bytes:
    """A record as a line that reads back as the same record; refused if there is none."""
    if not isinstance(record, dict):
        raise BadRecord(f"{name}:{row + 1}: record {row} is a {type(record).__name__}, expected a dict")
    try:
        fault = _not_json(record)
        if fault is None:
            line = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
            if not isinstance(parse(line, exact=has_long_digits(line)), BadRow):
                return line
            fault = "values nested too deep, or too many digits"
    except (UnicodeEncodeError, RecursionError, ValueError) as error:
        fault = f"what JSON cannot hold ({error})"
    raise _refused(name, row, f"holds {fault}")


def _refused(name: str, row: int, why: str) -> BadRecord:
    return BadRecord(f"{name}:{row + 1}: record {row} {why}, expected plain JSON values")


def _copy(value: Any) -> Any:
    """A record of one's own, as every other source gives: what a map function does to it must not come back here."""
    if type(value) is dict:
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if type(value) is list else value


def _not_json(value: Any) -> str | None:
    """What in a value JSON would change on the way: tuples, other keys than strings, NaN, subclasses."""
    kind = type(value)
    if kind is dict:
        for key, inner in value.items():
            if type(key) is not str:
                return f"the key {key!r} of type {type(key).__name__}"
            if fault := _not_json(inner):
                return fault
        return None
    if kind is list:
        return next((fault for inner in value if (fault := _not_json(inner))), None)
    if kind is float and not np.isfinite(value):
        return f"the number {value}"
    return None if kind in (str, int, float, bool, type(None)) else f"a {kind.__name__}"
