"""Which rows of a source?  Slices are views: rows stay where they are, `range` does the arithmetic."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, overload

import numpy as np

from penstock.fingerprint import Digest
from penstock.types import BadRow, Ints, Record, Where

if TYPE_CHECKING:
    from penstock.types import Source


class RowAccess(ABC):
    """What every source does with row numbers: negative ones, slices, iteration."""

    name: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]: ...

    @abstractmethod
    def where(self, row: int) -> Where: ...

    @abstractmethod
    def digest(self, start: int, stop: int) -> str: ...

    @abstractmethod
    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints: ...

    @abstractmethod
    def _record(self, row: int) -> Record:
        """Row 0 <= row < len."""

    @overload
    def __getitem__(self, row: int, /) -> Record: ...
    @overload
    def __getitem__(self, row: slice, /) -> "View": ...
    def __getitem__(self, row: int | slice, /) -> "Record | View":
        if isinstance(row, slice):
            return View(self, range(len(self))[row])
        return self._record(self._row(row))

    def __iter__(self) -> Iterator[Record]:
        """Good rows in order; bad ones stop the iteration or are counted, as the source was opened."""
        for record in self.records(0, len(self)):
            if type(record) is not BadRow:
                yield record  # type: ignore[misc]  # what is no BadRow is a Record

    def _row(self, row: int) -> int:
        num_rows = len(self)
        if not -num_rows <= row < num_rows:
            raise IndexError(f"row {row} of {self!r}: expected {-num_rows} <= row < {num_rows}")
        return row % num_rows

    def _range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"rows {start}..{stop} of {self!r}: expected 0 <= start <= stop <= {len(self)}")


class View(RowAccess):
    """Some rows of a source, in steps."""

    def __init__(self, source: "Source", rows: range) -> None:
        self.name = source.name
        self._source = source
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int, /) -> Record: ...
    @overload
    def __getitem__(self, row: slice, /) -> "View": ...
    def __getitem__(self, row: int | slice, /) -> "Record | View":
        if isinstance(row, slice):
            return View(self._source, self._rows[row])  # a view of a view is a view
        return self._record(self._row(row))

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        rows = self._rows[start:stop]
        if rows.step == 1 and rows:
            yield from self._source.records(rows[0], rows[-1] + 1)
        else:
            for row in rows:
                yield from self._source.records(row, row + 1)

    def where(self, row: int) -> Where:
        return self._source.where(self._rows[self._row(row)])

    def digest(self, start: int, stop: int) -> str:
        """The source's own digest where rows are neighbours, so that a slice of a file shares its shards."""
        self._range(start, stop)
        rows = self._rows[start:stop]
        if rows.step == 1:
            return self._source.digest(rows.start, rows.start + len(rows))
        content = Digest()
        for row in rows:
            content.update(self._source.digest(row, row + 1).encode())
        return content.hexdigest()

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """The source's cuts, in this view's numbers; ranges shrink with the step."""
        if not self._rows:
            return np.zeros(1, dtype=np.int64)
        borders = self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)
        first, step = self._rows.start, self._rows.step
        # The first view row at or past border b: forwards ceil((b - first) / step), backwards the first row below b.
        inside = -((first - borders) // step) if step > 0 else (first - borders) // -step + 1
        return np.unique(np.concatenate([[0], inside.clip(0, len(self)), [len(self)]])).astype(np.int64)

    def _record(self, row: int) -> Record:
        return self._source[self._rows[row]]

    def __repr__(self) -> str:
        step = "" if self._rows.step == 1 else f":{self._rows.step}"
        return f"{self._source!r}[{self._rows.start}:{self._rows.stop}{step}]"
