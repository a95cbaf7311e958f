"""JSON documents: an array of records, or an object that holds one.

One scan of a document finds the brackets and commas outside strings.  Records can be separated only while quotes and brackets match, so a
document in which they do not is refused as a whole when it is opened; any other fault makes one bad record.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.places.place import File
from penstock.settings import setting
from penstock.sources.files import Files
from penstock.sources.index import Bytes, blocks, index
from penstock.sources.jsonl import JsonDecoder, JsonLines, JsonlOptions
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.parse import parse_value
from penstock.sources.rows import FileRecords
from penstock.sources.text import SPACE, TextReader, TextRows, after_bom
from penstock.types import Bools, Ints

_HEAD = 1 << 20  # read to tell lines from a document, and to find a key
_LEAD = 1 << 12  # whitespace skipped at once
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonOptions(JsonlOptions):
    """The records of an array; or one record per line if a `.json` file holds that."""

    field: str | None = setting(
        "of JSON: the key that the list of records is under, if there are several", None
    )


class JsonDocuments:
    """Opens documents, and files of lines that are called `.json`."""

    def __init__(self, options: JsonOptions, cache: Cache) -> None:
        self._options = options
        self._cache = cache

    def open_text(self, file: File, path: str) -> FileRecords:
        begin = after_bom(file)
        if _is_lines(file, begin):
            return JsonLines(self._options, self._cache).open_text(file, path)
        field = self._options.field
        rows = index(
            file,
            self._cache,
            kind=f"json {field!r}",
            scan=lambda: _Document(file, path).rows(begin, field),
        )
        # a row ends with its comma, the last one with the array's bracket
        decoder = JsonDecoder(unique_keys=self._options.unique_keys, in_array=True)
        return TextRows(file, rows, self._options.max_row_bytes, decoder)


def open_json(request: OpenRequest) -> Files:
    """Open the records of arrays, over one or more files."""
    text = JsonDocuments(request.options, request.cache)
    return open_files(request, TextReader("json", request.options, request.cache, text))


JSON = Opener(JsonOptions, open_json)


def _is_lines(file: File, begin: int) -> bool:
    """Return whether the first line is an object by itself and more text follows."""
    stop = min(file.identity.size, begin + _HEAD)
    head, newline, rest = file.read(begin, stop).lstrip(SPACE).partition(b"\n")
    if not (head.startswith(b"{") and newline and type(parse_value(head, exact=False)) is dict):
        return False
    return bool(rest.strip(SPACE)) or stop < file.identity.size


class _BracketScanner:
    """Finds brackets and commas outside strings.  Between blocks it keeps open strings, backslashes, the depth and the line."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the next byte follows an odd number of backslashes

    def take(self, position: int, block: Bytes, *, deepest: int) -> Ints:
        """Return (byte, line, kind, depth) of each; a bracket and the one that closes it have the same depth."""
        # bytes.translate and a comparison are several times faster than numpy's own table lookup and nonzero
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
    """Finds the records of one document."""

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
                f"the document begins with {byte!r}" if byte else "the file holds only whitespace"
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
        scanner = _BracketScanner(line)
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
        """Return (byte, line, character) of the next character that is not whitespace; b"" at the end."""
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
