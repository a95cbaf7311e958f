"""What do several sources make together?  One run of row numbers: first all rows of the first, then all of the second.

For a mixture by weight, keep them apart and give them to the loader.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import SourceError
from penstock.fingerprint import Digest
from penstock.sources.bad import BadRows
from penstock.sources.view import RowAccess, in_groups, records_at
from penstock.types import BadRow, Ints, Record, RemovedNulls, Where

if TYPE_CHECKING:
    from penstock.types import Source


class Concat(RowAccess):
    """Sources one after the other."""

    def __init__(self, sources: "list[Source]", *, name: str) -> None:
        self.name = name
        self._sources = sources
        self._first_rows = [0, *accumulate(len(source) for source in sources)]
        self.shape = " + ".join(dict.fromkeys(getattr(source, "shape", "") for source in sources))

    def __len__(self) -> int:
        return self._first_rows[-1]

    @property
    def files(self) -> list[str]:
        files = [file for source in self._sources if isinstance(source, RowAccess) for file in source.files]
        return list(dict.fromkeys(files))

    @property
    def num_bytes(self) -> int | None:
        sizes = [source.num_bytes if isinstance(source, RowAccess) else None for source in self._sources]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        for source, first, last in self._pieces(start, stop):
            yield from source.records(first, last)

    def where(self, row: int) -> Where:
        source, local = self._home(self._row(row))
        return source.where(local)

    def digest(self, start: int, stop: int) -> str:
        """A range inside one source is named as that source names it, so that joining makes no new shards."""
        self._range(start, stop)
        pieces = [source.digest(first, last) for source, first, last in self._pieces(start, stop)]
        if len(pieces) <= 1:
            return pieces[0] if pieces else Digest().hexdigest()
        content = Digest()
        for piece in pieces:
            content.update(piece.encode())
        return content.hexdigest()

    def stamp(self) -> Any:
        stamps = [source.stamp() if isinstance(source, RowAccess) else None for source in self._sources]
        return None if None in stamps else ["concat", *stamps]

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Each source's own cuts: no range reaches over a border between sources."""
        inner = [source.cuts(num_bytes=num_bytes, num_rows=num_rows) for source in self._sources]
        shifted = [first + cuts for first, cuts in zip(self._first_rows, inner, strict=False)]
        return np.unique(np.concatenate(shifted)).astype(np.int64)

    def _ledgers(self) -> list[BadRows]:
        return [ledger for source in self._sources if isinstance(source, RowAccess) for ledger in source._ledgers()]

    def records_at(self, rows: Ints) -> list[Record]:
        homes = np.searchsorted(self._first_rows, rows, side="right") - 1
        return in_groups(
            homes, lambda home, places: records_at(self._sources[home], rows[places] - self._first_rows[home])
        )

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        homes = (self._home(self._row(row)) for row in rows)
        counts = (source.removed_nulls([local]) for source, local in homes if isinstance(source, RowAccess))
        return sum(counts, start=RemovedNulls())

    def _record(self, row: int) -> Record:
        source, local = self._home(row)
        return source[local]

    def _home(self, row: int) -> "tuple[Source, int]":
        index = bisect_right(self._first_rows, row) - 1
        return self._sources[index], row - self._first_rows[index]

    def _pieces(self, start: int, stop: int) -> "Iterator[tuple[Source, int, int]]":
        """(source, first row in it, last row in it + 1) of a row range; none is empty."""
        while start < stop:
            source, local = self._home(start)
            last = min(len(source), local + stop - start)
            yield source, local, last
            start += last - local

    def __repr__(self) -> str:
        sources = "1 source" if len(self._sources) == 1 else f"{len(self._sources)} sources"
        return f"Concat({self.name!r}, {len(self):_} rows, {sources})"


def is_source(place: object) -> bool:
    """Whether this already speaks the protocol, ours or a user's."""
    return all(hasattr(place, method) for method in ("records", "where", "digest", "cuts", "__len__", "__getitem__"))


def concat(sources: "Iterable[Source]", *, name: str | None = None) -> RowAccess:
    """Sources as one, in this order.  Rows keep their homes; a mixture by weight is the loader's, which takes them apart."""
    flat: list[Source] = []
    for source in list(sources):
        if not is_source(source):
            raise SourceError(f"concat: found a {type(source).__name__}, expected sources; open it with penstock.open")
        flat += source._sources if isinstance(source, Concat) else [source]
    if not flat:
        raise SourceError("concat: no sources given, expected at least one")
    if name is None:
        names = list(dict.fromkeys(source.name for source in flat))
        name = "+".join(names) if len(names) <= 3 else f"{names[0]}+{len(names) - 1}"
    return Concat(flat, name=name)
