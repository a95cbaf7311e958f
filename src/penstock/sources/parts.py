"""What do several files of one shape make together?  One run of row numbers, one bad-row policy, one way to name content.

A shape writes a `Part`: one file, its rows counted from 0.  Everything that all shapes share is here.
"""

import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import index as as_index
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.files import FileId, changed, identify, max_open
from penstock.fingerprint import Digest
from penstock.sources.bad import HINT, BadRows
from penstock.sources.canonical import record_bytes
from penstock.sources.view import RowAccess, at_most, in_groups
from penstock.types import BadRow, Ints, Record, Where

# (source, file) of every part that this process keeps open, the oldest first: what may be open is the process's, not a source's.
_OPEN: "OrderedDict[tuple[int, int], weakref.ref[FilesSource]]" = OrderedDict()

_FEW = 4  # rows that are read one by one
_NO_MATTER = {"cache_bytes"}  # options that change no record


class Part(ABC):
    """One file.  Rows are counted from 0 within it; a row that cannot be read is a BadRow, never an exception."""

    num_rows: int
    num_bytes: int  # about how much its rows weigh, for cutting

    @abstractmethod
    def record(self, row: int) -> Record | BadRow: ...

    @abstractmethod
    def records(self, first: int, last: int) -> Iterator[Record | BadRow]: ...

    def records_at(self, rows: Ints) -> list[Record | BadRow]:
        """Rows by number, in this order; a part that can read several together says so here."""
        return [self.record(row) for row in rows.tolist()]

    def place(self, row: int) -> tuple[int, int]:
        """(line from 1, byte from 0) at which a row begins; where a shape has no lines, its row number."""
        return row + 1, 0

    def raw(self, row: int) -> bytes:
        """A row as it stands in the file, for the quarantine; empty where that means nothing."""
        return b""

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add what rows first..last say.  A BadRow counts with its reason: mending it changes the content."""
        for record in self.records(first, last):
            if isinstance(record, BadRow):
                content.update(f"bad row: {record.reason}".encode())
            else:
                content.update(record_bytes(record))

    def borders(self, num_bytes: int) -> Ints:
        """Rows at which to cut so that each range weighs about `num_bytes`; rows are taken to weigh the same."""
        rows_per_cut = max(1, self.num_rows * num_bytes // max(self.num_bytes, 1))
        return np.arange(0, self.num_rows, rows_per_cut, dtype=np.int64)

    @abstractmethod
    def check(self) -> None:
        """Raise SourceChanged if the file is no longer the one that was opened."""

    def let_go(self) -> None:
        """Called when the source no longer keeps this part: whatever of it is kept elsewhere holds its file open."""
        return


class FilesSource(RowAccess):
    """One or more files of one shape.  Pickles as the files' identities and the options."""

    shape: str = ""
    _first_rows: list[int]  # of each file, and the number of all rows
    OPTIONS: tuple[str, ...] = ()  # names of what `options` may hold; whoever opens checks against them

    def __init__(
        self, paths: Sequence[str], *, cache: Cache, name: str | None = None, bad: BadRows | None = None, **options: Any
    ) -> None:
        if not paths and name is None:
            raise SourceError(f"no files given, expected at least one {self.shape} file")
        self.name = name or Path(paths[0]).stem
        self.options = options
        self.bad = bad or BadRows()
        self._open([identify(path) for path in paths], cache)

    @abstractmethod
    def part(self, identity: FileId) -> Part:
        """Open one file of this shape."""

    def _open(self, identities: list[FileId], cache: Cache) -> None:
        self.cache = cache
        self.identities = identities
        self._parts: OrderedDict[int, Part] = OrderedDict()
        self._first_rows = [0]
        self._first_rows = [0, *np.cumsum(self._counts(), dtype=np.int64).tolist()]

    def _counts(self) -> list[int]:
        """The number of rows of each file."""
        return [self._part(index).num_rows for index in range(len(self.identities))]

    def _weight(self, index: int) -> int:
        """About how much the rows of a file weigh, for cutting."""
        return self._part(index).num_bytes

    def _all_records(self, index: int) -> list[Record] | None:
        """All records of a file, where that is quicker than opening it as a part and nothing in it is out of the ordinary."""
        return None

    def _all_lines(self, index: int) -> bytes | None:
        """What all rows of a file add to a digest, under the same conditions."""
        return None

    def __len__(self) -> int:
        return self._first_rows[-1]

    @property
    def files(self) -> list[str]:
        return [known.path for known in self.identities]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(known.size for known in self.identities)

    def _ledgers(self) -> list[BadRows]:
        return [self.bad]

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        if stop - start <= _FEW:  # as views of scattered rows ask: each by itself is sooner there than a block
            for row in range(start, stop):
                index, local = self._home(row)
                found = self._part(index).record(local)
                yield self._met(row, found) if type(found) is BadRow else found
            return
        for index, first, last in self._pieces(start, stop):
            if last - first == self._num_rows(index) and (whole := self._all_records(index)) is not None:
                yield from whole
                continue
            part = self._part(index)
            part.check()
            for row, record in enumerate(part.records(first, last), self._first_rows[index] + first):
                yield self._met(row, record) if type(record) is BadRow else record
            part.check()

    def where(self, row: int) -> Where:
        index, local = self._home(self._row(as_index(row)))  # numpy's integers are no integers to JSON
        line, byte = self._part(index).place(local)
        return Where(file=self.identities[index].path, line=line, byte=byte)

    def digest(self, start: int, stop: int) -> str:
        """Over what the rows say: file names and the borders between files leave no trace."""
        self._range(start, stop)
        content = Digest()
        for index, first, last in self._pieces(start, stop):
            if last - first == self._num_rows(index) and (lines := self._all_lines(index)) is not None:
                content.extend(lines)
                continue
            part = self._part(index)
            part.check()
            part.add_digest(content, first, last)
        return content.hexdigest()

    def stamp(self) -> Any:
        """The files as the system sees them, and every option.  The time of the last change of any kind is among it, which
        nobody can set: a file whose time of writing was put back is another."""
        try:
            files = [[known.path, known.size, known.inode, changed(known)] for known in self.identities]
            options = [[name, _text(getattr(self, name))] for name in sorted({*self.OPTIONS} - _NO_MATTER)]
        except (SourceError, OSError, AttributeError):  # written to meanwhile, or just now; or an option is not kept
            return None
        return [type(self).__name__, self.shape, repr(sorted(self.options.items())), options, files]

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """A large file is cut every `num_bytes` from its start, so that appending moves no border but the last.

        Small files are gathered until they hold `num_bytes`, so that a change inside one soon stops being felt.
        """
        borders = [0]
        gathered = 0
        for index in range(len(self.identities)):
            first, last = self._first_rows[index], self._first_rows[index + 1]
            weight = self._weight(index)
            gathered += weight
            if weight > num_bytes:
                borders += (first + self._part(index).borders(num_bytes)).tolist()
            if gathered >= num_bytes:
                borders.append(last)
                gathered = 0
        return at_most(np.array([*borders, len(self)], dtype=np.int64), num_rows)

    def _record(self, row: int) -> Record:
        index = bisect_right(self._first_rows, row) - 1
        part = self._parts.get(index) or self._part(index)
        record = part.record(row - self._first_rows[index])
        if type(record) is BadRow:
            raise BadRecord(self._placed(row, record).message)  # asked for by number, there is nothing to skip to
        return record  # type: ignore[return-value]

    def records_at(self, rows: Ints) -> list[Record]:
        homes = np.searchsorted(self._first_rows, rows, side="right") - 1
        return in_groups(homes, lambda index, places: self._read_part(index, rows[places]))

    def _read_part(self, index: int, rows: Ints) -> list[Record]:
        part = self._parts.get(index) or self._part(index)
        found = part.records_at(rows - self._first_rows[index])
        for row, record in zip(rows.tolist(), found, strict=True):
            if type(record) is BadRow:
                # Asked for by number, there is nothing to skip to, whatever the policy.
                raise BadRecord(f"{self._placed(row, record).message}; {HINT}")
        return found  # type: ignore[return-value]

    def _met(self, row: int, found: BadRow) -> BadRow:
        """Stop, or count and go on, as the user chose."""
        index, local = self._home(row)
        self._part(index).check()  # a changed file is the better explanation
        placed = self._placed(row, found)
        self.bad.met(row, placed, self.where(row), self._part(index).raw(local))
        return placed

    def _placed(self, row: int, found: BadRow) -> BadRow:
        where = self.where(row)
        return BadRow(
            reason=found.reason,
            message=f"{where.file}:{where.line}: {found.message} (record {row}, counted from 0; byte {where.byte})",
        )

    def _row(self, row: int) -> int:
        return row if 0 <= row < self._first_rows[-1] else super()._row(row)

    def _num_rows(self, index: int) -> int:
        return self._first_rows[index + 1] - self._first_rows[index]

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

    def _part(self, index: int) -> Part:
        part = self._parts.get(index)
        if part is None:
            part = self.part(self.identities[index])
            if index + 1 < len(self._first_rows):  # opened again
                self._expect_rows(index, part.num_rows)
            self._parts[index] = part
            _OPEN[id(self), index] = weakref.ref(self)
            while len(_OPEN) > max_open():
                (_, oldest), source = _OPEN.popitem(last=False)
                _close(source(), oldest)
        return part

    def _expect_rows(self, index: int, found: int) -> None:
        expected = self._num_rows(index)
        if found != expected:
            raise SourceChanged(
                f"{self.identities[index].path}: changed while open: it has {found} rows, expected {expected}; "
                f"open the source again"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": OrderedDict()}

    def __repr__(self) -> str:
        files = "1 file" if len(self.identities) == 1 else f"{len(self.identities)} files"
        return f"{type(self).__name__}({self.name!r}, {len(self):_} rows, {files}, {self.num_bytes:_} bytes)"


def _close(source: FilesSource | None, index: int) -> None:
    """Files are closed when their last reader lets go."""
    part = source._parts.pop(index, None) if source is not None else None
    if part is not None:
        part.let_go()


def _text(value: Any) -> str:
    return repr(sorted(value)) if isinstance(value, set | frozenset) else repr(value)
