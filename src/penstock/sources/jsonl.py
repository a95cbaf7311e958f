"""What does line i of these files say?  One read and one parse per record; RAM does not grow with the files."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.files import FileId, RangeFile, identify
from penstock.fingerprint import Digest
from penstock.sources.offsets import lines
from penstock.sources.parse import has_long_digits, parse
from penstock.sources.view import RowAccess
from penstock.types import Ints, Record, Where

_BLOCK = 1 << 20
_MAX_OPEN = 64  # files kept open at once


class JsonlSource(RowAccess):
    """One record per line, over one or more files.  Pickles as the files' identities."""

    def __init__(self, paths: Sequence[str], *, cache: Cache, name: str | None = None) -> None:
        if not paths:
            raise SourceError("no files given, expected at least one .jsonl file")
        self.name = name or Path(paths[0]).stem
        self._open([identify(path) for path in paths], cache)

    def _open(self, identities: list[FileId], cache: Cache) -> None:
        self._identities = identities
        self._cache = cache
        self._files: OrderedDict[int, RangeFile] = OrderedDict()
        self._lines = [lines(self._file(index), cache) for index in range(len(identities))]
        counts = [index.num_rows for index in self._lines]
        self._first_rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64).tolist()

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def records(self, start: int, stop: int) -> Iterator[Record]:
        self._range(start, stop)
        for index, first, last in self._pieces(start, stop):
            file, starts = self._file(index), self._lines[index].starts
            file.check()
            while first < last:
                # as many whole lines as fit into a block, but at least one
                upto = int(np.searchsorted(starts, starts[first] + _BLOCK, side="right")) - 1
                upto = min(max(upto, first + 1), last)
                yield from self._block(index, file, first, starts[first : upto + 1].tolist())
                first = upto
            file.check()

    def where(self, row: int) -> Where:
        index, local = self._home(self._row(row))
        known = self._lines[index]
        return Where(file=self._identities[index].path, line=known.line(local), byte=known.starts.item(local))

    def digest(self, start: int, stop: int) -> str:
        """Over the lines as they are: a newline frames a line, so file borders and block borders leave no trace."""
        self._range(start, stop)
        content = Digest()
        for index, first, last in self._pieces(start, stop):
            file, starts = self._file(index), self._lines[index].starts
            file.check()
            begin, end = starts.item(first), starts.item(last)
            piece = b"\n"
            for position in range(begin, end, _BLOCK):
                piece = file.read(position, min(position + _BLOCK, end))
                content.extend(piece)
            if not piece.endswith(b"\n"):
                content.extend(b"\n")
        return content.hexdigest()

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """A large file is cut every `num_bytes` from its start, so that appending moves no border but the last.

        Small files are gathered until they hold `num_bytes`, so that a change inside one soon stops being felt.
        """
        borders = [0]
        gathered = 0
        for index, known in enumerate(self._lines):
            size = self._identities[index].size
            first, last = self._first_rows[index], self._first_rows[index + 1]
            gathered += size
            if size > num_bytes:
                inside = np.searchsorted(known.starts[:-1], np.arange(0, size, num_bytes))
                borders += (first + inside).tolist()
            if gathered >= num_bytes:
                borders.append(last)
                gathered = 0
        wide = np.unique(np.array([*borders, len(self)], dtype=np.int64))
        steps = [np.arange(first, last, num_rows) for first, last in pairwise(wide)]
        return np.concatenate([*steps, [len(self)]]).astype(np.int64)

    def _record(self, row: int) -> Record:
        index, local = self._home(row)
        starts = self._lines[index].starts
        raw = self._file(index).read(starts.item(local), starts.item(local + 1))
        try:
            return parse(raw, exact=has_long_digits(raw))
        except ValueError as error:
            raise self._bad(row, error) from error

    def _block(self, index: int, file: RangeFile, first: int, edges: list[int]) -> Iterator[Record]:
        """Records first..first + len(edges) - 1 of one file, which lie between the edges."""
        begin = edges[0]
        raw = file.read(begin, edges[-1])
        view = memoryview(raw)
        exact = has_long_digits(raw)
        for local, (start, stop) in enumerate(pairwise(edges), first):
            line = view[start - begin : stop - begin]
            try:
                yield parse(line, exact=exact and has_long_digits(line.tobytes()))
            except ValueError as error:
                raise self._bad(self._first_rows[index] + local, error) from error

    def _bad(self, row: int, error: ValueError) -> BadRecord:
        index, _ = self._home(row)
        self._file(index).check()  # a changed file is the better explanation
        where = self.where(row)
        return BadRecord(f"{where.file}:{where.line}:{where.byte}: {error}; mend or remove the line (row {row})")

    def _home(self, row: int) -> tuple[int, int]:
        index = bisect_right(self._first_rows, row) - 1
        return index, row - self._first_rows[index]

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(file, first row in it, last row in it + 1) of a row range."""
        while start < stop:
            index, local = self._home(start)
            upto = min(stop, self._first_rows[index + 1])
            yield index, local, local + upto - start
            start = upto

    def _file(self, index: int) -> RangeFile:
        file = self._files.get(index)
        if file is None:
            file = self._files[index] = RangeFile(self._identities[index])
            while len(self._files) > _MAX_OPEN:
                self._files.popitem(last=False)  # closed when its last reader lets go
        return file

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "identities": self._identities, "cache": self._cache}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.name = state["name"]
        self._open(state["identities"], state["cache"])

    def __repr__(self) -> str:
        num_bytes = sum(known.size for known in self._identities)
        files = "1 file" if len(self._identities) == 1 else f"{len(self._identities)} files"
        return f"JsonlSource({self.name!r}, {len(self):_} rows, {files}, {num_bytes:_} bytes)"
