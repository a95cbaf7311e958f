"""JSON Lines: one record per line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.cache import Cache
from penstock.places.place import File, FileId
from penstock.settings import setting
from penstock.sources.files import Files
from penstock.sources.index import MANY, row_counts
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.parse import has_long_digits, parse, parse_lines
from penstock.sources.rows import FileRecords
from penstock.sources.text import (
    SPACE,
    TextOptions,
    TextReader,
    TextRows,
    count_lines,
    index_lines,
)
from penstock.types import BadRow, Record

_TOGETHER = 256  # rows parsed at once: enough to save calls, few enough to stay in a core's cache


class JsonDecoder:
    """Records of JSON: lines, or the elements of an array, of which each ends with one byte that is not its own."""

    def __init__(self, *, unique_keys: bool, in_array: bool = False) -> None:
        self._unique_keys = unique_keys
        # A line end is whitespace to JSON.
        self._num_ending = 1 if in_array else 0
        self.mark = b"unique_keys " if unique_keys else b""
        # of an array, a comma does not frame a row; with unique keys, equal bytes may be a record or not
        self.are_lines = not in_array and not unique_keys
        self.skips_space = in_array

    def trim(self, raw: bytes) -> bytes:
        return self._without_ending(raw).strip(SPACE)

    def decode(self, raw: bytes) -> Record | BadRow:
        if self.skips_space:  # so that a fault is counted from the byte that is named
            raw = self._without_ending(raw.lstrip(SPACE))
        return parse(raw, exact=has_long_digits(raw), unique_keys=self._unique_keys)

    def decode_all(self, raw: bytes, edges: list[int]) -> Iterator[Record | BadRow]:
        for first in range(0, len(edges) - 1, _TOGETHER):
            some = edges[first : first + _TOGETHER + 1]
            together = raw[some[0] : some[-1]]
            if self.are_lines and not has_long_digits(together):
                records = parse_lines(together, len(some) - 1)
                if records:
                    yield from records
                    continue
            for start, stop in pairwise(some):
                yield self.decode(raw[start:stop])

    def _without_ending(self, raw: bytes) -> bytes:
        return raw[: len(raw) - self._num_ending]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlOptions(TextOptions):
    """One record per line."""

    unique_keys: bool = setting(
        "refuse a JSON object that has a key twice, with a slower parser; else the last one wins",
        False,
    )


class JsonLines:
    """Opens files of lines."""

    def __init__(self, options: JsonlOptions, cache: Cache) -> None:
        self._options = options
        self._cache = cache

    def open_text(self, file: File, path: str) -> FileRecords:
        decoder = JsonDecoder(unique_keys=self._options.unique_keys)
        index = index_lines(file, self._cache)
        return TextRows(file, index, self._options.max_row_bytes, decoder)


class JsonlReader(TextReader):
    """Opens files of lines.  There may be thousands of small ones: those are read whole, and need no index."""

    def __init__(self, options: JsonlOptions, cache: Cache) -> None:
        super().__init__("jsonl", options, cache, JsonLines(options, cache))
        self._unique_keys = options.unique_keys

    def counts(self, files: Sequence[FileId]) -> list[int] | None:
        if len(files) < MANY:
            return None
        return row_counts(
            files, self.cache, kind="lines", count=lambda number: self._count(files[number])
        )

    def _count(self, file: FileId) -> int:
        raw = self.read_small(file)
        count = None if raw is None else count_lines(raw)
        return len(self.open_rows(file)) if count is None else count

    def whole_records(self, file: FileId, num_rows: int) -> list[Record] | None:
        raw = self._plain_lines(file, num_rows)
        if raw is None or has_long_digits(raw):
            return None
        return parse_lines(raw, num_rows)

    def whole_content(self, file: FileId, num_rows: int) -> bytes | None:
        raw = self._plain_lines(file, num_rows)
        if raw is None or raw.endswith(b"\n"):
            return raw
        return raw + b"\n"

    def _plain_lines(self, file: FileId, num_rows: int) -> bytes | None:
        """Read a small file whose lines are all records; None if it must be opened."""
        raw = None if self._unique_keys else self.read_small(file)
        if raw is None or count_lines(raw) != num_rows:
            return None
        return raw


def open_jsonl(request: OpenRequest) -> Files:
    """Open lines of JSON, over one or more files."""
    return open_files(request, JsonlReader(request.options, request.cache))


JSONL = Opener(JsonlOptions, open_jsonl)
