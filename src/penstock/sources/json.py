"""Which bytes of a JSON document are record i?  One scan for the brackets and commas outside strings, then a memory map.

A document is an array of records, or an object that holds one.  Its rows can only be told apart while quotes and brackets
agree, so a document in which they do not is refused as a whole when it is opened; any other fault is the fault of one row.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.files import RangeFile
from penstock.fingerprint import Digest
from penstock.sources.jsonl import JsonlPart, JsonlSource
from penstock.sources.parse import parse_value
from penstock.sources.parts import Part
from penstock.sources.rows import RowsPart
from penstock.sources.spans import SPACE, Bytes, after_bom, blocks, spans
from penstock.types import BadRow, Bools, Ints, Record

_LOOK = 1 << 20  # as far as is read to tell lines from a document, and to find a key
_LEAD = 1 << 12  # white space before a row, as far as it is skipped to name the row's line
_NAMED = 10  # arrays listed in an error

_QUOTE, _BACKSLASH, _OPEN, _CLOSE, _COMMA = 1, 2, 3, 4, 5
_KINDS = bytearray(256)
for _kind, _characters in ((_QUOTE, b'"'), (_BACKSLASH, b"\\"), (_OPEN, b"[{"), (_CLOSE, b"]}"), (_COMMA, b",")):
    for _character in _characters:
        _KINDS[_character] = _kind


@dataclass(frozen=True, slots=True)
class Marks:
    """Brackets and commas outside strings, of one block and down to some depth; one entry per mark."""

    places: Ints  # bytes from the file's start
    lines: Ints
    kinds: Bytes
    depths: Ints  # brackets open there; an opening and its closing one have the same depth


class Scanner:
    """What a block must know of those before it: whether a string is open or a backslash waits, how deep, which line."""

    def __init__(self, line: int = 1) -> None:
        self.line = line
        self.depth = 0
        self._in_string = False
        self._escaped = False  # the next byte follows an odd number of backslashes

    def take(self, position: int, block: Bytes, *, deepest: int) -> Marks:
        # bytes.translate and a comparison are several times faster than numpy's own table look-up and nonzero
        kinds = np.frombuffer(block.tobytes().translate(_KINDS), dtype=np.uint8)
        places = np.flatnonzero(kinds != 0)
        kinds = kinds[places]
        quotes = (kinds == _QUOTE) & ~self._behind_backslash(len(block), places, kinds)
        in_string = np.cumsum(quotes, dtype=np.int32) + self._in_string
        if len(places):
            self._in_string = bool(in_string[-1] & 1)
        outside = (kinds >= _OPEN) & (in_string & 1 == 0)
        places, kinds = places[outside], kinds[outside]
        closes = kinds == _CLOSE
        after = self.depth + np.cumsum((kinds == _OPEN).astype(np.int8) - closes, dtype=np.int64)
        if len(places):
            self.depth = int(after[-1])
        depths = after + closes
        shallow = depths <= deepest
        places, kinds, depths = places[shallow], kinds[shallow], depths[shallow]
        newlines = np.flatnonzero(block == ord("\n"))
        numbers = self.line + np.searchsorted(newlines, places)
        self.line += len(newlines)
        return Marks(position + places, numbers, kinds, depths)

    def _behind_backslash(self, num_bytes: int, places: Ints, kinds: Bytes) -> Bools:
        """For each place, whether an odd run of backslashes ends just before it."""
        waits = np.zeros(num_bytes + 1, dtype=np.bool_)
        waits[0] = self._escaped
        slashes = places[kinds == _BACKSLASH]
        if len(slashes):
            firsts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # where runs begin
            lengths = np.diff(firsts, append=len(slashes))
            ends = slashes[firsts] + lengths
            if slashes[0] == 0:
                lengths[0] += self._escaped  # the run began in the block before
            waits[ends[lengths % 2 == 1]] = True
        self._escaped = bool(waits[num_bytes])
        return waits[places]


class JsonPart(JsonlPart):
    """The records of one array.  A row ends with its comma, the last one with the array's bracket."""

    tail = 1

    def decode(self, raw: bytes) -> Record | BadRow:
        # without the white space before it, so that a fault is counted from the byte that `place` names
        return super().decode(raw.lstrip(SPACE))

    def decode_all(self, raw: bytes, edges: list[int]) -> Iterator[Record | BadRow]:
        for (start, stop), record in zip(pairwise(edges), super().decode_all(raw, edges), strict=True):
            yield self.decode(raw[start:stop]) if type(record) is BadRow else record

    def place(self, row: int) -> tuple[int, int]:
        line, byte = super().place(row)
        lead = self._file.read(byte, min(byte + _LEAD, self._starts.item(row + 1)))
        skipped = lead[: len(lead) - len(lead.lstrip(SPACE))]
        return line + skipped.count(b"\n"), byte + len(skipped)

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        RowsPart.add_digest(self, content, first, last)  # commas frame nothing, unlike the line ends of JSONL


class JsonSource(JsonlSource):
    """The records of an array, over one or more files; and one record per line where a `.json` holds that."""

    shape = "json"
    rows_are_lines = False
    OPTIONS = (*JsonlSource.OPTIONS, "field")

    def __init__(self, paths: Sequence[str], *, field: str | None = None, **rest: Any) -> None:
        """`field`: the key under which the array lies, where the document is an object with several."""
        self.field = field
        super().__init__(paths, **rest)

    def rows(self, file: RangeFile, path: str) -> Part:
        begin = after_bom(file)
        if _is_lines(file, begin):
            return super().rows(file, path)
        document = _Document(file, path, begin)
        index = spans(file, self.cache, kind=f"json {self.field!r}", scan=lambda _: document.rows(self.field))
        return JsonPart(file, index, max_row_bytes=self.max_row_bytes, unique_keys=self.unique_keys)


def _is_lines(file: RangeFile, begin: int) -> bool:
    """Whether the first line is an object by itself and something follows."""
    stop = min(file.identity.size, begin + _LOOK)
    head, newline, rest = file.read(begin, stop).lstrip(SPACE).partition(b"\n")
    if not (head.startswith(b"{") and newline and type(parse_value(head, exact=False)) is dict):
        return False
    return bool(rest.strip(SPACE)) or stop < file.identity.size


class _Document:
    """One document on its way to an index."""

    def __init__(self, file: RangeFile, path: str, begin: int) -> None:
        self._file = file
        self._path = path
        self._begin = begin

    def rows(self, field: str | None) -> Iterator[Ints]:
        """(byte, line) of each record of the array that is meant, and of the array's end."""
        start, line, byte = self._text(self._begin, 1)
        if byte == b"{":
            yield from self._split(*self._choose(field, start, line))
        elif byte == b"[" and field is None:
            stop, stop_line = yield from self._split(start, line)
            self._expect_end(stop, stop_line)
        elif byte == b"[":
            raise self._error(line, start, f"the document is an array, so field={field!r} has no use; leave it out")
        else:
            found = f"the document begins with {byte!r}" if byte else "there is nothing but white space"
            raise self._error(line, start, f"{found}, expected an array of objects, or an object that holds one")

    def _split(self, start: int, line: int) -> Generator[Ints, None, tuple[int, int]]:
        """Rows of the array that opens at byte `start`; returns the byte and the line behind it."""
        first, first_line, byte = self._text(start + 1, line)
        if byte == b"]":
            yield np.array([[first + 1, first_line]])
            return first + 1, first_line
        scanner = Scanner(line)
        for position, block in blocks(self._file, start, self._file.identity.size):
            found = scanner.take(position, block, deepest=1)
            end = np.flatnonzero(found.kinds == _CLOSE)[:1]
            rows = np.stack([found.places + 1, found.lines], axis=1)[: end.item() + 1 if len(end) else None]
            yield rows
            if len(end):
                stop, stop_line = rows[-1].tolist()
                self._expect_closed(start, line, stop, stop_line)
                return stop, stop_line
        raise self._cut_off(start, line)

    def _choose(self, field: str | None, start: int, line: int) -> tuple[int, int]:
        """Byte and line of the array that `field` names, or of the only one that holds objects, or of the only empty one."""
        arrays = self._arrays(start, line)
        if field is not None:
            named = [(place, at) for key, place, at in arrays if key == field]
            if not named:
                raise self._error(line, start, f"no array lies under the key {field!r}; choose another field")
            return named[-1]  # as a parser would have it
        found: dict[bytes, list[tuple[str, int, int]]] = {}
        for key, place, at in arrays:
            found.setdefault(self._text(place + 1, at)[2], []).append((key, place, at))
        chosen = found.get(b"{") or found.get(b"]") or []
        if len(chosen) == 1:
            return chosen[0][1:]
        if not chosen:
            hint = "expected an array of objects in it; where the object itself is the record, pass shape='jsonl'"
            raise self._error(line, start, f"the document is one object, {hint}")
        names = ", ".join(repr(key) for key, _, _ in chosen[:_NAMED]) + (", …" if len(chosen) > _NAMED else "")
        raise self._error(line, start, f"the object holds {len(chosen)} arrays ({names}); choose one with field=")

    def _arrays(self, start: int, line: int) -> Iterator[tuple[str, int, int]]:
        """(key, byte, line) of each array directly in the object that opens at byte `start`."""
        scanner, before = Scanner(line), start
        for position, block in blocks(self._file, start, self._file.identity.size):
            marks = scanner.take(position, block, deepest=2)
            members = (marks.depths == 1) | ((marks.depths == 2) & (marks.kinds == _OPEN))
            columns = (marks.places, marks.lines, marks.kinds, marks.depths)
            for place, at, kind, depth in zip(*(column[members].tolist() for column in columns), strict=True):
                if depth == 2 and block[place - position] == ord("["):
                    yield self._key(before + 1, place, at), place, at
                elif depth == 1 and kind == _CLOSE:
                    self._expect_closed(start, line, place + 1, at)
                    self._expect_end(place + 1, at)
                    return
                elif depth == 1:
                    before = place
        raise self._cut_off(start, line)

    def _key(self, start: int, stop: int, line: int) -> str:
        """The key between a comma and its value."""
        raw = self._file.read(start, min(stop, start + _LOOK)).strip(SPACE)
        try:
            key = json.loads(raw.removesuffix(b":"))
        except ValueError:
            key = None
        if type(key) is not str or not raw.endswith(b":"):
            raise self._error(line, start, "the array has no key before it; the document is damaged, fix it")
        return key

    def _text(self, start: int, line: int) -> tuple[int, int, bytes]:
        """(byte, line, what stands there) of the first thing that is not white space; b"" at the end."""
        size = self._file.identity.size
        while start < size:
            raw = self._file.read(start, min(start + _LEAD, size))
            text = raw.lstrip(SPACE)
            line += raw.count(b"\n", 0, len(raw) - len(text))
            start += len(raw) - len(text)
            if text:
                return start, line, text[:1]
        return start, line, b""

    def _expect_closed(self, start: int, line: int, stop: int, stop_line: int) -> None:
        pair = self._file.read(start, start + 1) + self._file.read(stop - 1, stop)
        if pair not in (b"[]", b"{}"):
            found = f"{pair[1:].decode()} closes what {pair[:1].decode()} opened in line {line}"
            raise self._error(stop_line, stop - 1, f"{found}; the document is damaged, fix it")

    def _expect_end(self, stop: int, line: int) -> None:
        place, at, byte = self._text(stop, line)
        if byte:
            hint = "expected one array or object; for one record per line pass shape='jsonl'"
            raise self._error(at, place, f"something follows the end of the document, {hint}")

    def _cut_off(self, start: int, line: int) -> SourceError:
        hint = "it is cut off, or a quote or bracket is missing; fix it, or pass shape='jsonl' for one record per line"
        return self._error(line, start, f"the file ends inside what begins here: {hint}")

    def _error(self, line: int, byte: int, reason: str) -> SourceError:
        return SourceError(f"{self._path}:{line}: {reason} (byte {byte})")
