"""Which bytes are row i, and what may they weigh?  What all files of text share: blocks of rows, homes, the limit, compression."""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import FileId, RangeFile, read_small
from penstock.fingerprint import Digest
from penstock.sources.compressed import MAX_EXPANSION, is_compressed, spool
from penstock.sources.parts import FilesSource, Part
from penstock.sources.sidecar import SMALL
from penstock.types import BadRow, Ints, Record

MAX_ROW_BYTES = 256 << 20
TOO_LONG = b"\xfftoo_long\n"  # in a digest: with another limit it is a record; no good row is not UTF-8

_BLOCK = 1 << 20
_ROWS = 1 << 14  # looked at in one go; more short rows than a block holds


class Index(Protocol):
    """Where rows begin: row i lies at bytes starts[i]..starts[i + 1], with what separates it from the next."""

    @property
    def starts(self) -> Ints: ...
    @property
    def num_rows(self) -> int: ...
    def line(self, row: int) -> int: ...


class RowsPart(Part):
    """One file of text whose rows are found by an index.  A row beyond `max_row_bytes` is never read."""

    mark = b""  # settings under which equal bytes are another record; part of the digest

    def __init__(self, file: RangeFile, index: Index, *, max_row_bytes: int) -> None:
        self._file = file
        self._index = index
        self._starts = index.starts
        self._start = index.starts.data  # gives a plain int in half the time
        self._max_row_bytes = max_row_bytes
        self.num_rows = index.num_rows
        self.num_bytes = file.identity.size

    @abstractmethod
    def decode(self, raw: bytes) -> Record | BadRow:
        """What one row says; `raw` ends with what separates it from the next."""

    @abstractmethod
    def trim(self, raw: bytes) -> bytes:
        """One row without what separates it from the next."""

    def decode_all(self, raw: bytes, edges: list[int]) -> Iterator[Record | BadRow]:
        """What neighbouring rows say: row i is raw[edges[i]:edges[i + 1]]."""
        for start, stop in pairwise(edges):
            yield self.decode(raw[start:stop])

    def record(self, row: int) -> Record | BadRow:
        start, stop = self._start[row], self._start[row + 1]
        if stop - start > self._max_row_bytes:
            return self._too_long(stop - start)
        raw = self._file.read(start, stop)
        self._file.check()
        return self.decode(raw)

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for raw, edges in self.chunks(first, last):
            if raw is None:
                yield self._too_long(edges[-1])
            else:
                yield from self.decode_all(raw, edges)

    def chunks(self, first: int, last: int) -> Iterator[tuple[bytes | None, list[int]]]:
        """Neighbouring rows and their edges, a block at a time but at least one row; None for a row that is too long."""
        block = min(_BLOCK, self._max_row_bytes)
        while first < last:
            edges = self._starts[first : min(first + _ROWS, last) + 1]
            count = max(1, int(np.searchsorted(edges, edges[0] + block, side="right")) - 1)
            begin, end = edges.item(0), edges.item(count)
            raw = self._file.read(begin, end) if count > 1 or end - begin <= self._max_row_bytes else None
            yield raw, (edges[: count + 1] - begin).tolist()
            first += count

    def place(self, row: int) -> tuple[int, int]:
        return self._index.line(row), self._starts.item(row)

    def raw(self, row: int) -> bytes:
        """Empty where the row is too long: the quarantine then holds its place alone."""
        start, stop = self._starts.item(row), self._starts.item(row + 1)
        return self._file.read(start, stop) if stop - start <= self._max_row_bytes else b""

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Each row as it is written; what stands between rows leaves no trace."""
        for raw, edges in self.chunks(first, last):
            if raw is None:
                content.update(TOO_LONG)
                continue
            for start, stop in pairwise(edges):
                content.update(self.mark + self.trim(raw[start:stop]))

    def borders(self, num_bytes: int) -> Ints:
        # bisect, as numpy would first copy starts that do not lie side by side
        found = [bisect_left(self._starts, byte, hi=self.num_rows) for byte in range(0, self.num_bytes, num_bytes)]
        return np.array(found, dtype=np.int64)

    def check(self) -> None:
        self._file.check()

    def _too_long(self, num_bytes: int) -> BadRow:
        return BadRow(
            reason="too_long",
            message=f"the row takes {num_bytes:_} bytes, expected at most max_row_bytes={self._max_row_bytes:_}",
        )


class RowsSource(FilesSource):
    """Files of text, plain or compressed."""

    OPTIONS: tuple[str, ...] = ("max_row_bytes", "max_expansion")

    def __init__(
        self,
        paths: Sequence[str],
        *,
        cache: Cache,
        max_row_bytes: int = MAX_ROW_BYTES,
        max_expansion: int = MAX_EXPANSION,
        **rest: Any,
    ) -> None:
        """`max_row_bytes`: what one row may weigh, with its line end and blank lines behind it.
        `max_expansion`: how many times its own size a compressed file may grow.
        """
        for name, value in (("max_row_bytes", max_row_bytes), ("max_expansion", max_expansion)):
            if not isinstance(value, int) or value < 1:
                raise SourceError(f"{name} is {value!r}, expected a number ≥ 1")
        self.max_row_bytes = max_row_bytes
        self.max_expansion = max_expansion
        super().__init__(paths, cache=cache, **rest)

    @abstractmethod
    def rows(self, file: RangeFile, path: str) -> Part:
        """Index one file of plain text.  `path` is what the user calls it."""

    def _weight(self, index: int) -> int:
        known = self.identities[index]
        return super()._weight(index) if is_compressed(known.path) else known.size

    def _small(self, index: int) -> bytes | None:
        """A small file of plain text, whole; None for any other file."""
        known = self.identities[index]
        if known.size > min(SMALL, self.max_row_bytes) or is_compressed(known.path):
            return None
        return read_small(known)

    def part(self, identity: FileId) -> Part:
        if is_compressed(identity.path):
            return self.rows(spool(identity, self.cache, max_expansion=self.max_expansion), identity.path)
        return self.rows(RangeFile(identity), identity.path)
