"""What does line i of these files say?  One read and one parse per record; RAM does not grow with the files."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from penstock.cache import Cache
from penstock.files import FileId, RangeFile
from penstock.fingerprint import Digest
from penstock.sources.offsets import lines
from penstock.sources.parse import has_long_digits, parse
from penstock.sources.parts import FilesSource, Part
from penstock.types import BadRow, Ints, Record

_BLOCK = 1 << 20


class JsonlPart(Part):
    """One file of lines, found by their offsets."""

    def __init__(self, identity: FileId, cache: Cache) -> None:
        self._file = RangeFile(identity)
        self._lines = lines(self._file, cache)
        self._starts = self._lines.starts
        self.num_rows = self._lines.num_rows
        self.num_bytes = identity.size

    def record(self, row: int) -> Record | BadRow:
        raw = self.raw(row)
        return parse(raw, exact=has_long_digits(raw))

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        starts = self._starts
        while first < last:
            # as many whole lines as fit into a block, but at least one
            upto = int(np.searchsorted(starts, starts[first] + _BLOCK, side="right")) - 1
            upto = min(max(upto, first + 1), last)
            edges = starts[first : upto + 1].tolist()
            raw = self._file.read(edges[0], edges[-1])
            view, begin, exact = memoryview(raw), edges[0], has_long_digits(raw)
            for start, stop in pairwise(edges):
                line = view[start - begin : stop - begin]
                yield parse(line, exact=exact and has_long_digits(line.tobytes()))
            first = upto

    def place(self, row: int) -> tuple[int, int]:
        return self._lines.line(row), self._starts.item(row)

    def raw(self, row: int) -> bytes:
        return self._file.read(self._starts.item(row), self._starts.item(row + 1))

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """The lines as they are: a newline frames a line, so file borders and block borders leave no trace."""
        begin, end = self._starts.item(first), self._starts.item(last)
        piece = b"\n"
        for position in range(begin, end, _BLOCK):
            piece = self._file.read(position, min(position + _BLOCK, end))
            content.extend(piece)
        if not piece.endswith(b"\n"):
            content.extend(b"\n")

    def borders(self, num_bytes: int) -> Ints:
        return np.searchsorted(self._starts[:-1], np.arange(0, self.num_bytes, num_bytes)).astype(np.int64)

    def check(self) -> None:
        self._file.check()


class JsonlSource(FilesSource):
    """One record per line, over one or more files."""

    shape = "jsonl"

    def part(self, identity: FileId) -> Part:
        return JsonlPart(identity, self.cache)
