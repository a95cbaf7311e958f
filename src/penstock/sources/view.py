"""Which rows of a source?  A view leaves rows where they are and does arithmetic with their numbers; it reads when asked.

`RowAccess` is what every source offers once it can give record i; `View` what all views of one source share; `Slice` the
plainest of them.  Others: chosen.py (select, filter, split), mapped.py (map), concat.py (several sources in a row).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from penstock.errors import SourceError
from penstock.fingerprint import Digest
from penstock.sources.bad import BadRows
from penstock.types import BadRow, Ints, Record, RemovedNulls, Where

if TYPE_CHECKING:
    from penstock.sources.describe import Description
    from penstock.types import Source

_BLOCK = 1 << 16  # rows of a view looked at together


class RowAccess(ABC):
    """What every source does with row numbers: negative ones, slices, iteration, views."""

    name: str
    shape: str = ""

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
    def __getitem__(self, row: slice, /) -> "Slice": ...
    def __getitem__(self, row: int | slice, /) -> "Record | Slice":
        if isinstance(row, slice):
            return Slice(self, range(len(self))[row])
        return self._record(self._row(row))

    def __iter__(self) -> Iterator[Record]:
        """Good rows in order; bad ones stop the iteration or are counted, as the source was opened."""
        for record in self.records(0, len(self)):
            if type(record) is not BadRow:
                yield record  # type: ignore[misc]  # what is no BadRow is a Record

    # The views live in modules that need this one, so they are imported when first asked for.

    def select(self, rows: Iterable[int]) -> "View":
        """These rows, in this order; a row may come twice, and -1 is the last."""
        from penstock.sources.chosen import select

        return select(self, rows)

    def filter(self, fn: Callable[[Record], Any]) -> "View":
        """The rows of whose record `fn` says yes.  They are found when first needed, by one pass over the source."""
        from penstock.sources.chosen import Filtered

        return Filtered(self, fn)

    def map(self, fn: Callable[[Record], Record]) -> "View":
        """Each record as `fn` gives it back.  `fn` is called whenever a record is read, and must always give the same."""
        from penstock.sources.mapped import Mapped

        return Mapped(self, fn)

    def train_test_split(self, *, test_size: float = 0.1, seed: int = 0) -> "tuple[View, View]":
        """(train, test): disjoint, together everything, each in the source's order.  A share below 1, or a number of rows."""
        from penstock.sources.chosen import split

        return split(self, test_size=test_size, seed=seed)

    def describe(self, *, look: int = 200) -> "Description":
        """Shape, files, rows, bytes, and the columns seen in `look` rows spread over the source; `print` it."""
        from penstock.sources.describe import describe

        return describe(self, look=look)

    def records_at(self, rows: Ints) -> list[Record]:
        """Records by number, in this order, read together: faster than one by one where neighbours share a file."""
        return [self._record(row) for row in rows.tolist()]

    @property
    def files(self) -> list[str]:
        """Files that the rows live in."""
        return []

    @property
    def num_bytes(self) -> int | None:
        """Bytes of all files, where that is known and every row of them is here."""
        return None

    def stamp(self) -> Any:
        """Plain values that stay the same as long as nobody writes to the files; None where only reading tells.

        They save reading all rows to see that nothing has changed, and never name anything by themselves.
        """
        return None

    @property
    def bad_counts(self) -> Counter[str]:
        """Bad rows met so far, by reason; a view counts what its source met."""
        total: Counter[str] = Counter()
        for ledger in {id(ledger): ledger for ledger in self._ledgers()}.values():
            total += ledger.counts
        return total

    def refuse_empty(self) -> None:
        """Raise if a selection left no row; a file without rows is not for a source to judge."""
        return

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        """How many null members reading these rows removes, which only columnar sources do (`nulls="deep"`)."""
        return RemovedNulls()

    def _ledgers(self) -> list[BadRows]:
        return []

    def _row(self, row: int) -> int:
        row, num_rows = index(row), len(self)  # numpy's integers are no integers to JSON
        if not -num_rows <= row < num_rows:
            raise IndexError(f"row {row} of {self!r}: expected {-num_rows} <= row < {num_rows}")
        return row % num_rows

    def _range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"rows {start}..{stop} of {self!r}: expected 0 <= start <= stop <= {len(self)}")


class View(RowAccess):
    """Something made of the rows of one source.  Any object with the protocol of a source will do."""

    def __init__(self, source: "Source") -> None:
        self.name = source.name
        self.shape = getattr(source, "shape", "")
        self._source = source

    @property
    def files(self) -> list[str]:
        return self._source.files if isinstance(self._source, RowAccess) else []

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        return self._source.removed_nulls(self._homes(rows)) if isinstance(self._source, RowAccess) else RemovedNulls()

    def _homes(self, rows: Iterable[int]) -> Iterable[int]:
        """The source's rows that these rows are made of; here each row is made of the one with its number."""
        return rows

    def _ledgers(self) -> list[BadRows]:
        return self._source._ledgers() if isinstance(self._source, RowAccess) else []


class Rows(View):
    """Some rows of a source.  Subclasses say which: `rows` is a range, or an array where they follow no rule."""

    @property
    @abstractmethod
    def rows(self) -> "range | Ints": ...

    def __len__(self) -> int:
        return len(self.rows)

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        for first in range(start, stop, _BLOCK):
            for begin, end in runs(self.rows[first : min(first + _BLOCK, stop)]):
                yield from self._source.records(begin, end)

    def where(self, row: int) -> Where:
        return self._source.where(int(self.rows[self._row(row)]))

    def digest(self, start: int, stop: int) -> str:
        """The source's own digest where rows are neighbours, so that a slice of a file shares its shards."""
        self._range(start, stop)
        pieces = [self._source.digest(begin, end) for begin, end in runs(self.rows[start:stop])]
        if len(pieces) <= 1:
            return pieces[0] if pieces else self._source.digest(0, 0)
        content = Digest()
        for piece in pieces:
            content.update(piece.encode())
        return content.hexdigest()

    def records_at(self, rows: Ints) -> list[Record]:
        mine = self.rows
        return records_at(self._source, mine[rows] if isinstance(mine, np.ndarray) else mine.start + mine.step * rows)

    def refuse_empty(self) -> None:
        """Raise if this view leaves no row of a source that has some."""
        if not len(self) and len(self._source):
            raise SourceError(f"{self!r} leaves none of {len(self._source):,} rows; choose or keep at least one row")

    def _record(self, row: int) -> Record:
        return self._source[int(self.rows[row])]

    def _homes(self, rows: Iterable[int]) -> Iterable[int]:
        return (int(self.rows[row]) for row in rows)


class Slice(Rows):
    """Rows of a source in even steps."""

    def __init__(self, source: "Source", rows: range) -> None:
        super().__init__(source)
        self._rows = rows

    @property
    def rows(self) -> range:
        return self._rows

    @overload
    def __getitem__(self, row: int, /) -> Record: ...
    @overload
    def __getitem__(self, row: slice, /) -> "Slice": ...
    def __getitem__(self, row: int | slice, /) -> "Record | Slice":
        if isinstance(row, slice):
            return Slice(self._source, self._rows[row])  # a slice of a slice is a slice
        return self._record(self._row(row))

    def stamp(self) -> Any:
        inner = self._source.stamp() if isinstance(self._source, RowAccess) else None
        return None if inner is None else ["slice", inner, self._rows.start, self._rows.stop, self._rows.step]

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """The source's cuts, in this view's numbers; ranges shrink with the step."""
        if not self._rows:
            return np.zeros(1, dtype=np.int64)
        borders = self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)
        first, step = self._rows.start, self._rows.step
        # The first view row at or past border b: forwards ceil((b - first) / step), backwards the first row below b.
        inside = -((first - borders) // step) if step > 0 else (first - borders) // -step + 1
        return np.unique(np.concatenate([[0], inside.clip(0, len(self)), [len(self)]])).astype(np.int64)

    def __repr__(self) -> str:
        rows = self._rows
        # Backwards to the very first row the stop is -1, which as a slice would mean the last: leave it out.
        stop = "" if rows.stop < 0 else rows.stop
        step = "" if rows.step == 1 else f":{rows.step}"
        return f"{self._source!r}[{rows.start}:{stop}{step}]"


def records_at(source: "Source", rows: Ints) -> list[Record]:
    """Records of any source by number; one that is not ours is asked for one after another."""
    return source.records_at(rows) if isinstance(source, RowAccess) else [source[row] for row in rows.tolist()]


def in_groups(homes: Ints, read: Callable[[int, Ints], list[Record]]) -> list[Record]:
    """What `read(home, places)` gives for the places of each home, put back in the order of the places."""
    if not homes.size or (homes == homes[0]).all():
        return read(int(homes[0]), np.arange(homes.size)) if homes.size else []
    out: list[Any] = [None] * homes.size
    order = np.argsort(homes, kind="stable")
    edges = np.flatnonzero(np.diff(homes[order])) + 1
    for places in np.split(order, edges):
        for place, record in zip(places.tolist(), read(int(homes[places[0]]), places), strict=True):
            out[place] = record
    return out


def runs(rows: "range | Ints") -> Iterator[tuple[int, int]]:
    """Neighbouring rows together, as (first, last + 1)."""
    if isinstance(rows, range):
        if rows.step == 1 and rows:
            yield rows[0], rows[-1] + 1
        else:
            yield from ((row, row + 1) for row in rows)
    elif len(rows):
        edges = np.flatnonzero(np.diff(rows) != 1) + 1
        firsts = rows[np.concatenate([[0], edges])].tolist()
        lasts = rows[np.concatenate([edges, [len(rows)]]) - 1].tolist()
        yield from ((first, last + 1) for first, last in zip(firsts, lasts, strict=True))


def at_most(borders: Ints, num_rows: int) -> Ints:
    """Cuts with more borders in between, so that no range is longer than `num_rows`."""
    steps = [np.arange(first, last, num_rows) for first, last in pairwise(np.unique(borders))]
    return np.concatenate([*steps, borders[-1:]]).astype(np.int64)
