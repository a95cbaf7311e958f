"""JSON Lines, one record per line; and JSON documents, an array of records or an object that holds one.

One scan of a document finds the brackets and commas outside strings.  Rows can be separated only while quotes and brackets match, so a
document in which they do not is refused as a whole when it is opened; any other fault makes one bad row.
"""

import json
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from penstock.errors import SourceError
from penstock.fingerprint import Digest
from penstock.places.place import File
from penstock.sources.file_source import Part
from penstock.sources.index import MANY, Bytes, Index, blocks, row_counts
from penstock.sources.parse import has_long_digits, parse, parse_lines, parse_value
from penstock.sources.text import (
    SPACE,
    TOO_LONG,
    TextFiles,
    TextPart,
    after_bom,
    count_lines,
    index_lines,
    index_rows,
)
from penstock.types import BadRow, Bools, Ints, Record

_BLOCK = 1 << 20
_TOGETHER = 256  # rows parsed at once: enough to save calls, few enough to stay in a core's cache


class JsonlPart(TextPart):
    """One file of lines."""

    tail = 0  # bytes at the end of a row that are not JSON; a line end is white space to JSON

    def __init__(self, file: File, index: Index, max_row_bytes: int, *, unique_keys: bool) -> None:
        super().__init__(file, index, max_row_bytes)
        self._unique_keys = unique_keys
        self.mark = b"unique_keys " if unique_keys else b""

    def trim(self, raw: bytes) -> bytes:
        return raw[: len(raw) - self.tail].strip(SPACE)

    def decode(self, raw: bytes) -> Record | BadRow:
        if self.tail:
            raw = raw[: -self.tail]
        return parse(raw, exact=has_long_digits(raw), unique_keys=self._unique_keys)

    def decode_all(self, raw: bytes, edges: list[int]) -> Iterator[Record | BadRow]:
        for first in range(0, len(edges) - 1, _TOGETHER):
            some = edges[first : first + _TOGETHER + 1]
            piece = raw[some[0] : some[-1]]
            is_exact = has_long_digits(piece)
            is_plain = not (is_exact or self._unique_keys or self.tail)
            if is_plain and (records := parse_lines(piece, len(some) - 1)):
                yield from records
                continue
            for start, stop in pairwise(some):
                row = raw[start : stop - self.tail]
                record = parse(
                    row, exact=is_exact and has_long_digits(row), unique_keys=self._unique_keys
                )
                yield self.decode(raw[start:stop]) if type(record) is BadRow else record

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add the lines as they are: a newline frames a line, so borders of files and blocks do not matter."""
        if self._unique_keys:  # then equal bytes may be a record or not
            super().add_digest(content, first, last)
            return
        long = first + np.flatnonzero(np.diff(self._starts[first : last + 1]) > self._max_row_bytes)
        for row in long.tolist():
            self._add_lines(content, first, row + 1)
            content.extend(TOO_LONG)
            first = row + 1
        self._add_lines(content, first, last)

    def _add_lines(self, content: Digest, first: int, last: int) -> None:
        begin = self._starts.item(first)
        end = self._starts.item(last)
        piece = b"\n"
        for position in range(begin, end, _BLOCK):
            piece = self.file.read(position, min(position + _BLOCK, end))
            content.extend(piece)
        if not piece.endswith(b"\n"):
            content.extend(b"\n")


class JsonlSource(TextFiles):
    """One record per line, over one or more files.

    unique_keys: a record that gives a key twice is bad, at the cost of a slower parser; otherwise the last one wins.
    """

    shape = "jsonl"
    rows_are_lines = (
        True  # False if a subclass finds its rows in another way, or must read them as parts
    )
    OPTIONS: tuple[str, ...] = (*TextFiles.OPTIONS, "unique_keys")
    unique_keys: bool = False

    def text_part(self, file: File, path: str) -> Part:
        return JsonlPart(
            file, index_lines(file, self.cache), self.max_row_bytes, unique_keys=self.unique_keys
        )

    def _counts(self) -> list[int]:
        if not self.rows_are_lines or len(self.identities) < MANY:
            return super()._counts()
        return row_counts(self.identities, self.cache, kind="lines", count=self._count)

    def _count(self, index: int) -> int:
        raw = self._small(index)
        count = None if raw is None else count_lines(raw)
        return self._part(index).num_rows if count is None else count

    def _plain_lines(self, index: int) -> bytes | None:
        """Read a small file whose lines are all rows; None if it must be read as a part."""
        raw = self._small(index) if self.rows_are_lines and not self.unique_keys else None
        return raw if raw is not None and count_lines(raw) == self._num_rows(index) else None

    def _whole_records(self, index: int) -> list[Record] | None:
        raw = self._plain_lines(index)
        return (
            None if raw is None or has_long_digits(raw) else parse_lines(raw, self._num_rows(index))
        )

    def _whole_content(self, index: int) -> bytes | None:
        raw = self._plain_lines(index)
        return raw if raw is None or raw.endswith(b"\n") else raw + b"\n"


_HEAD = 1 << 20  # read to tell lines from a document, and to find a key
_LEAD = 1 << 12  # white space skipped at once
_NAMED = 10  # arrays listed in an error

_QUOTE = 1
_BACKSLASH = 2
_COMMA = 3
_CLOSE = 4
_OBJECT = 5
_ARRAY = 6
_KIND_OF = {
    '"': _QUOTE,
    "\\": _BACKSLASH,
    ",": _COMMA,
    "]": _CLOSE,
    "}": _CLOSE,
    "{": _OBJECT,
    "[": _ARRAY,
}
_KINDS = bytes(_KIND_OF.get(chr(byte), 0) for byte in range(256))


class JsonPart(JsonlPart):
    """The records of one array.  A row ends with its comma, the last one with the array's bracket."""

    tail = 1

    def decode(self, raw: bytes) -> Record | BadRow:
        # without the white space before it, so that a fault is counted from the byte that `place` names
        return super().decode(raw.lstrip(SPACE))

    def place(self, row: int) -> tuple[int, int]:
        line, byte = super().place(row)
        lead = self.file.read(byte, min(byte + _LEAD, self._starts.item(row + 1)))
        skipped = lead[: len(lead) - len(lead.lstrip(SPACE))]
        return line + skipped.count(b"\n"), byte + len(skipped)

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        TextPart.add_digest(
            self, content, first, last
        )  # a comma does not frame a row, as a line end does in JSONL


class JsonSource(JsonlSource):
    """The records of an array, over one or more files; or one record per line if a `.json` file holds that.

    field: the key of the array, if the document is an object with several.
    """

    shape = "json"
    rows_are_lines = False
    OPTIONS = (*JsonlSource.OPTIONS, "field")
    field: str | None = None

    def text_part(self, file: File, path: str) -> Part:
        begin = after_bom(file)
        if _is_lines(file, begin):
            return super().text_part(file, path)
        document = _Document(file, path)
        index = index_rows(
            file,
            self.cache,
            kind=f"json {self.field!r}",
            scan=lambda: document.rows(begin, self.field),
        )
        return JsonPart(file, index, self.max_row_bytes, unique_keys=self.unique_keys)


def _is_lines(file: File, begin: int) -> bool:
    """Return whether the first line is an object by itself and more text follows."""
    stop = min(file.identity.size, begin + _HEAD)
    head, newline, rest = file.read(begin, stop).lstrip(SPACE).partition(b"\n")
    if not (head.startswith(b"{") and newline and type(parse_value(head, exact=False)) is dict):
        return False
    return bool(rest.strip(SPACE)) or stop < file.identity.size


class _Scanner:
    """Finds brackets and commas outside strings.  Between blocks it keeps open strings, backslashes, the depth and the line."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the next byte follows an odd number of backslashes

    def take(self, position: int, block: Bytes, *, deepest: int) -> Ints:
        """Return (byte, line, kind, depth) of each; a bracket and the one that closes it have the same depth."""
        # bytes.translate and a comparison are several times faster than numpy's own table look-up and nonzero
        kinds = np.frombuffer(block.tobytes().translate(_KINDS), dtype=np.uint8)
        places = np.flatnonzero(kinds != 0)
        kinds = kinds[places]
        quotes = (kinds == _QUOTE) & ~self._behind_backslash(len(block), places, kinds)
        in_string = np.cumsum(quotes, dtype=np.int32) + self._in_string
        if len(places):
            self._in_string = bool(in_string[-1] & 1)
        outside = (kinds >= _COMMA) & (in_string & 1 == 0)
        places = places[outside]
        kinds = kinds[outside]
        closes = kinds == _CLOSE
        after = self._depth + np.cumsum((kinds >= _OBJECT).astype(np.int8) - closes, dtype=np.int64)
        if len(places):
            self._depth = int(after[-1])
        depths = after + closes
        shallow = depths <= deepest
        newlines = np.flatnonzero(block == ord("\n"))
        places = places[shallow]
        numbers = self._line + np.searchsorted(newlines, places)
        self._line += len(newlines)
        return np.stack([position + places, numbers, kinds[shallow], depths[shallow]], axis=1)

    def _behind_backslash(self, num_bytes: int, places: Ints, kinds: Bytes) -> Bools:
        """Return for each place whether an odd run of backslashes ends just before it."""
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


class _Document:
    """Finds the rows of one document."""

    def __init__(self, file: File, path: str) -> None:
        self._file = file
        self._path = path
        self._size = file.identity.size
        self._end = (0, 0)  # byte and line behind what `_marks` has read

    def rows(self, begin: int, field: str | None) -> Iterator[Ints]:
        """Yield (byte, line) of each record of the chosen array, and of the array's end."""
        start, line, byte = self._skip_space(begin, 1)
        if byte == b"[" and field is not None:
            raise self._error(
                line,
                start,
                f"the document is an array, so field={field!r} cannot be used; leave it out",
            )
        if byte not in (b"[", b"{"):
            found = (
                f"the document begins with {byte!r}" if byte else "the file holds only white space"
            )
            raise self._error(
                line, start, f"{found}, expected an array of objects, or an object that holds one"
            )
        is_array = byte == b"["
        if not is_array:
            start, line = self._choose(field, start, line)
        first, first_line, byte = self._skip_space(start + 1, line)
        if byte == b"]":
            self._end = first + 1, first_line
            yield np.array([self._end])
        else:
            for marks in self._marks(start, line, deepest=1):
                yield marks[:, :2] + (1, 0)
        if is_array:
            self._expect_end()

    def _marks(self, start: int, line: int, *, deepest: int) -> Iterator[Ints]:
        """Yield brackets and commas of what opens at byte `start`, up to the bracket that closes it."""
        scanner = _Scanner(line)
        for position, block in blocks(self._file, start, self._size):
            marks = scanner.take(position, block, deepest=deepest)
            end = np.flatnonzero((marks[:, 2] == _CLOSE) & (marks[:, 3] == 1))[:1]
            yield marks[: end.item() + 1 if len(end) else None]
            if len(end):
                stop, stop_line = marks[end.item(), :2].tolist()
                pair = self._file.read(start, start + 1) + self._file.read(stop, stop + 1)
                if pair not in (b"[]", b"{}"):
                    found = (
                        f"{pair[1:].decode()} closes what {pair[:1].decode()} opened in line {line}"
                    )
                    raise self._error(stop_line, stop, f"{found}; the document is damaged, fix it")
                self._end = stop + 1, stop_line
                return
        hint = "it is cut off, or a quote or bracket is missing; fix it, or pass format='jsonl' for one record per line"
        raise self._error(line, start, f"the file ends inside the value that begins here: {hint}")

    def _choose(self, field: str | None, start: int, line: int) -> tuple[int, int]:
        """Return byte and line of the array that `field` names, else of the only one that holds objects or the only empty one."""
        arrays = self._arrays(start, line)
        if field is not None:
            named = [(place, at) for key, place, at in arrays if key == field]
            if not named:
                raise self._error(
                    line, start, f"no array has the key {field!r}; choose another field"
                )
            return named[-1]  # as a parser would have it
        found: dict[bytes, list[tuple[str, int, int]]] = {}
        for key, place, at in arrays:
            found.setdefault(self._skip_space(place + 1, at)[2], []).append((key, place, at))
        chosen = found.get(b"{") or found.get(b"]") or []
        if len(chosen) == 1:
            return chosen[0][1:]
        if not chosen:
            hint = "expected an array of objects in it; if the object itself is the record, pass format='jsonl'"
            raise self._error(line, start, f"the document is one object, {hint}")
        names = ", ".join(repr(key) for key, _, _ in chosen[:_NAMED]) + (
            ", …" if len(chosen) > _NAMED else ""
        )
        raise self._error(
            line, start, f"the object holds {len(chosen)} arrays ({names}); choose one with field="
        )

    def _arrays(self, start: int, line: int) -> Iterator[tuple[str, int, int]]:
        """Yield (key, byte, line) of each array directly in the object that opens at byte `start`."""
        before = start
        for marks in self._marks(start, line, deepest=2):
            for place, at, _, depth in marks[(marks[:, 3] == 1) | (marks[:, 2] == _ARRAY)].tolist():
                if depth == 2:
                    yield self._key(before + 1, place, at), place, at
                else:
                    before = place
        self._expect_end()

    def _key(self, start: int, stop: int, line: int) -> str:
        """Return the key between a comma and its value."""
        raw = self._file.read(start, min(stop, start + _HEAD)).strip(SPACE)
        try:
            key = json.loads(raw.removesuffix(b":"))
        except ValueError:
            key = None
        if type(key) is not str or not raw.endswith(b":"):
            raise self._error(
                line, start, "the array has no key before it; the document is damaged, fix it"
            )
        return key

    def _skip_space(self, start: int, line: int) -> tuple[int, int, bytes]:
        """Return (byte, line, character) of the next character that is not white space; b"" at the end."""
        while start < self._size:
            raw = self._file.read(start, min(start + _LEAD, self._size))
            text = raw.lstrip(SPACE)
            line += raw.count(b"\n", 0, len(raw) - len(text))
            start += len(raw) - len(text)
            if text:
                return start, line, text[:1]
        return start, line, b""

    def _expect_end(self) -> None:
        place, line, byte = self._skip_space(*self._end)
        if byte:
            hint = "expected one array or object; for one record per line pass format='jsonl'"
            raise self._error(line, place, f"more text follows the end of the document, {hint}")

    def _error(self, line: int, byte: int, reason: str) -> SourceError:
        return SourceError(f"{self._path}:{line}: {reason} (byte {byte})")
