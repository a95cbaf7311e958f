"""What does line i of these files say?  One read and one parse per record; RAM does not grow with the files."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.files import RangeFile
from penstock.fingerprint import Digest
from penstock.sources.counts import row_counts
from penstock.sources.offsets import count_lines, lines
from penstock.sources.parse import has_long_digits, parse, parse_lines
from penstock.sources.parts import Part
from penstock.sources.rows import TOO_LONG, Index, RowsPart, RowsSource
from penstock.types import BadRow, Record

_BLOCK = 1 << 20
_TOGETHER = 256  # rows parsed at once: enough to save calls, few enough to stay in the cache of a core
_SPACE = b" \t\r\n"


class JsonlPart(RowsPart):
    """One file of lines, found by their offsets."""

    tail = 0  # bytes at the end of a row that are no JSON: a line end is

    def __init__(self, file: RangeFile, index: Index, *, max_row_bytes: int, unique_keys: bool) -> None:
        super().__init__(file, index, max_row_bytes=max_row_bytes)
        self._unique_keys = unique_keys
        self.mark = b"unique_keys " if unique_keys else b""

    def trim(self, raw: bytes) -> bytes:
        return raw[: len(raw) - self.tail].strip(_SPACE)

    def decode(self, raw: bytes) -> Record | BadRow:
        if self.tail:
            raw = raw[: -self.tail]
        return parse(raw, exact=has_long_digits(raw), unique_keys=self._unique_keys)

    def decode_all(self, raw: bytes, edges: list[int]) -> Iterator[Record | BadRow]:
        for first in range(0, len(edges) - 1, _TOGETHER):
            some = edges[first : first + _TOGETHER + 1]
            piece = raw[some[0] : some[-1]]
            exact = has_long_digits(piece)
            plain = not (exact or self._unique_keys or self.tail)
            yield from (parse_lines(piece, len(some) - 1) if plain else None) or self._each(raw, some, exact)

    def _each(self, raw: bytes, edges: list[int], exact: bool) -> Iterator[Record | BadRow]:
        """One by one, for what is out of the ordinary."""
        view, unique_keys, tail = memoryview(raw), self._unique_keys, self.tail
        for start, stop in pairwise(edges):
            line = view[start : stop - tail]
            yield parse(line, exact=exact and has_long_digits(line.tobytes()), unique_keys=unique_keys)

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """The lines as they are: a newline frames a line, so file borders and block borders leave no trace."""
        if self._unique_keys:  # then equal bytes may be a record or none
            super().add_digest(content, first, last)
            return
        long = first + np.flatnonzero(np.diff(self._starts[first : last + 1]) > self._max_row_bytes)
        for row in long.tolist():
            self._add_lines(content, first, row + 1)
            content.extend(TOO_LONG)
            first = row + 1
        self._add_lines(content, first, last)

    def _add_lines(self, content: Digest, first: int, last: int) -> None:
        begin, end = self._starts.item(first), self._starts.item(last)
        piece = b"\n"
        for position in range(begin, end, _BLOCK):
            piece = self._file.read(position, min(position + _BLOCK, end))
            content.extend(piece)
        if not piece.endswith(b"\n"):
            content.extend(b"\n")


class JsonlSource(RowsSource):
    """One record per line, over one or more files."""

    shape = "jsonl"
    rows_are_lines = True  # False where a subclass finds its rows in another way, or must read them as parts
    OPTIONS = (*RowsSource.OPTIONS, "unique_keys")

    def __init__(self, paths: Sequence[str], *, unique_keys: bool = False, **rest: Any) -> None:
        """`unique_keys`: a record that gives a key twice is bad.  It costs a slower parser; without it the last one wins."""
        self.unique_keys = unique_keys
        super().__init__(paths, **rest)

    def _counts(self) -> list[int]:
        return row_counts(self, super()._counts, self._count) if self.rows_are_lines else super()._counts()

    def _small(self, index: int) -> bytes | None:
        return super()._small(index) if self.rows_are_lines else None

    def _count(self, index: int) -> int:
        raw = self._small(index)
        count = None if raw is None else count_lines(raw)
        return self._part(index).num_rows if count is None else count

    def _all_records(self, index: int) -> list[Record] | None:
        raw = None if self.unique_keys else self._small(index)
        if raw is None or count_lines(raw) != self._num_rows(index) or has_long_digits(raw):
            return None
        return parse_lines(raw, self._num_rows(index))

    def _all_lines(self, index: int) -> bytes | None:
        raw = None if self.unique_keys else self._small(index)
        if raw is None or count_lines(raw) != self._num_rows(index):
            return None
        return raw if raw.endswith(b"\n") else raw + b"\n"

    def rows(self, file: RangeFile, path: str) -> Part:
        index = lines(file, self.cache)
        return JsonlPart(file, index, max_row_bytes=self.max_row_bytes, unique_keys=self.unique_keys)
