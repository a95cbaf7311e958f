"""One or more files of one format as one source.

A format adds a `Part`, which reads one file, and a `FilesSource` that opens it.
"""

import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from operator import index as as_index
from pathlib import Path
from typing import Any, Self

import numpy as np

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.fingerprint import Digest
from penstock.places.files import identify_all, settled
from penstock.places.local import max_open
from penstock.places.place import File, FileId
from penstock.sources.bad import HINT, BadRows, Unreadable, recall_unreadable, remember_unreadable
from penstock.sources.base import Joined, RowAccess, at_most, content_of
from penstock.types import BadRow, Ints, Record, Where
from penstock.words import plural, size

_FEW = 4  # rows that are read one by one
_SAME_RECORDS = {"cache_bytes"}  # options that do not change records


class HeldFile:
    """A range of a file in memory: it stays as it was read, whatever happens to the file.  Nothing else can be read."""

    on_disk = True

    def __init__(
        self, identity: FileId, start: int, held: bytes, check: Callable[[], None] = lambda: None
    ) -> None:
        self.identity = identity
        self._start = start
        self._held = held
        self.check = check

    def read(self, start: int, stop: int) -> bytes:
        assert self._start <= start <= stop <= self._start + len(self._held)
        return self._held[start - self._start : stop - self._start]

    def readinto(self, buffer: bytearray | memoryview, start: int) -> int:
        some = self.read(start, min(start + len(buffer), self._start + len(self._held)))
        buffer[: len(some)] = some
        return len(some)

    def map(self) -> bytes:
        return self.read(0, self.identity.size)


class Part(ABC):
    """One file.  Rows are counted from 0 within it; a row that cannot be read is a BadRow, never an exception."""

    num_rows: int
    num_bytes: int  # about the size of its rows, for cutting
    file: File

    @abstractmethod
    def record(self, row: int) -> Record | BadRow: ...

    @abstractmethod
    def records(self, first: int, last: int) -> Iterator[Record | BadRow]: ...

    def records_at(self, rows: Ints) -> list[Record | BadRow]:
        """Return rows by number, in this order."""
        return [self.record(row) for row in rows.tolist()]

    def place(self, row: int) -> tuple[int, int]:
        """Return (line from 1, byte from 0) at which a row begins; its row number if the format has no lines."""
        return row + 1, 0

    def raw(self, row: int) -> bytes:
        """Return a row as it is in the file, for the quarantine; empty for binary formats."""
        return b""

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add the content of rows first..last.  A bad row counts with its reason: fixing it changes the content."""
        for record in self.records(first, last):
            content.update(content_of(record))

    def borders(self, num_bytes: int) -> Ints:
        """Return rows at which to cut so that each range takes about `num_bytes`, as if all rows had one size."""
        rows_per_cut = max(1, self.num_rows * num_bytes // max(self.num_bytes, 1))
        return np.arange(0, self.num_rows, rows_per_cut, dtype=np.int64)

    def snapshot(self, first: int, last: int) -> "Part | None":
        """Return this part with rows first..last in memory; None if the format has no raw rows, or they are too large."""
        return None

    def release(self) -> None:
        """Drop what else keeps the file open; called when the source closes this part."""
        return


# (source, file) of every part that this process keeps open, the oldest first: the limit is the process's.
_OPEN: "OrderedDict[tuple[int, int], weakref.ref[FilesSource]]" = OrderedDict()


class FilesSource(Joined):
    """One or more files of one format.  Pickles as the files' identities and the options."""

    OPTIONS: tuple[
        str, ...
    ] = ()  # the options that the format takes; attributes of the class are their defaults
    cache: Cache

    def __init__(
        self,
        paths: Sequence[str],
        *,
        cache: Cache,
        name: str | None = None,
        bad: BadRows | None = None,
        **options: Any,
    ) -> None:
        if unknown := options.keys() - {*self.OPTIONS}:
            raise TypeError(f"{type(self).__name__} has no option {min(unknown)!r}")
        self.__dict__ |= options
        self.check_options()
        if not paths and name is None:
            raise SourceError(f"no files given, expected at least one {self.shape} file")
        self.name = name or Path(paths[0]).stem
        self.bad = bad or BadRows()
        self.cache = cache
        self.identities = identify_all(paths)
        self._parts: OrderedDict[int, Part] = OrderedDict()
        self._first_rows = [0]
        self._first_rows = [0, *np.cumsum(self._counts(), dtype=np.int64).tolist()]

    def check_options(self) -> None:
        """Raise SourceError if the value of an option makes no sense."""

    @abstractmethod
    def part(self, identity: FileId) -> Part:
        """Open one file."""

    def beside(self) -> Sequence[FileId]:
        """Return the files beside those with rows that decide what the rows are."""
        return ()

    def _counts(self) -> list[int]:
        """Return the number of rows of each file."""
        return [self._part(index).num_rows for index in range(len(self.identities))]

    def _weight(self, index: int) -> int:
        """Return about the size of a file's rows, for cutting."""
        return self.identities[index].size

    def _whole_records(self, index: int) -> list[Record] | None:
        """Return all records of a file if a format has a faster way than a part, else None."""
        return None

    def _whole_content(self, index: int) -> bytes | None:
        """Return what all rows of a file add to a digest if a format has a faster way than a part, else None."""
        return None

    def ordered(self) -> RowAccess:
        """Return the rows in the order that the data set was saved with, if it has one besides that of its files."""
        return self

    @property
    def files(self) -> list[str]:
        return [known.path for known in self.identities]

    @property
    def num_bytes(self) -> int:
        return sum(known.size for known in self.identities)

    def _policies(self) -> list[BadRows]:
        return [self.bad]

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        if stop - start <= _FEW:  # as views of scattered rows read: one row is faster than a block
            for row in range(start, stop):
                index, local = self._locate(row)
                found = self._part(index).record(local)
                yield self._handle(row, found) if type(found) is BadRow else found
            return
        for index, first, last in self._pieces(start, stop):
            if (
                last - first == self._num_rows(index)
                and (whole := self._whole_records(index)) is not None
            ):
                yield from whole
                continue
            part = self._part(index)
            part.file.check()
            for row, record in enumerate(
                part.records(first, last), self._first_rows[index] + first
            ):
                yield self._handle(row, record) if type(record) is BadRow else record
            part.file.check()

    def locate(self, row: int) -> Where:
        index, local = self._locate(
            self._row(as_index(row))
        )  # numpy's integers are not integers to JSON
        line, byte = self._part(index).place(local)
        return Where(file=self.identities[index].path, line=line, byte=byte)

    def digest(self, start: int, stop: int) -> str:
        """Return the digest of the rows' content: file names and the borders between files do not matter."""
        self._range(start, stop)
        content = Digest()
        for index, first, last in self._pieces(start, stop):
            if (
                last - first == self._num_rows(index)
                and (lines := self._whole_content(index)) is not None
            ):
                content.extend(lines)
                continue
            part = self._part(index)
            part.file.check()
            part.add_digest(content, first, last)
            part.file.check()
        return content.hexdigest()

    def snapshot(self, start: int, stop: int) -> "FilesSource | None":
        return self._with_held(self._pieces(start, stop))

    def _with_held(self, pieces: Iterable[tuple[int, int, int]]) -> Self | None:
        """Return this source with these rows (file, first, last) in memory; None if a part cannot hold them.

        None also if there are too many files: each stays open, so that a change of it is noticed.
        """
        pieces = list(pieces)
        if len(pieces) > max_open():
            return None
        made = copy(self)  # without open parts
        for index, first, last in pieces:
            part = self._part(index).snapshot(first, last)
            if part is None:
                return None
            made._parts[index] = part
        return made

    def stamp(self) -> Any:
        """Return the files as the system reports them, with the time of the last change of any kind, and every option."""
        identities = [*self.identities, *self.beside()]
        try:
            if (
                not all(map(settled, identities))
                or identify_all([known.path for known in identities]) != identities
            ):
                return None  # written to meanwhile, or just now
        except SourceError:
            return None
        options = [
            [name, repr(getattr(self, name))] for name in sorted({*self.OPTIONS} - _SAME_RECORDS)
        ]
        files = [
            [known.path, known.size, known.inode, known.ctime_ns, known.etag]
            for known in identities
        ]
        return [type(self).__name__, self.shape, options, files]

    def unreadable(self) -> Unreadable:
        """Find the rows that cannot be read; the cache remembers them as long as the files stay as they are."""
        stamp = None if self.bad.on_bad == "stop" else self.stamp()
        if stamp is None:
            return super().unreadable()
        if (found := recall_unreadable(self.cache, stamp)) is not None:
            for row, reason in zip(found.rows.tolist(), found.reasons, strict=True):
                if self.bad.quarantine is None:
                    self.bad.count(row, reason, self.locate(row))
                else:
                    _handle(self, row)  # the quarantine file may be new
            return found
        found = super().unreadable()
        if self.stamp() == stamp:
            remember_unreadable(self.cache, stamp, found)
        return found

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Cut a large file every `num_bytes` from its start, so that appending moves only the last border.

        Small files are gathered until they hold `num_bytes`, so that a change in one moves few borders.
        """
        borders = [0]
        gathered = 0
        for index in range(len(self.identities)):
            weight = self._weight(index)
            gathered += weight
            if weight > num_bytes:
                borders += (self._first_rows[index] + self._part(index).borders(num_bytes)).tolist()
            if gathered >= num_bytes:
                borders.append(self._first_rows[index + 1])
                gathered = 0
        return at_most(np.array([*borders, len(self)], dtype=np.int64), num_rows)

    def _record(self, row: int) -> Record:
        index = bisect_right(self._first_rows, row) - 1
        record = (self._parts.get(index) or self._part(index)).record(row - self._first_rows[index])
        if type(record) is BadRow:
            raise BadRecord(
                self._located(row, record).message
            )  # asked for by number: it cannot be skipped
        return record  # type: ignore[return-value]

    def records_at(self, rows: Ints) -> list[Record]:
        found = self._read_each(rows, lambda index, local: self._part(index).records_at(local))
        for row, record in zip(rows.tolist(), found, strict=True):
            if type(record) is BadRow:
                raise BadRecord(f"{self._located(row, record).message}; {HINT}")
        return found

    def _handle(self, row: int, found: BadRow) -> BadRow:
        """Apply the policy to a bad row."""
        index, local = self._locate(row)
        self._part(index).file.check()  # a changed file is the better explanation
        located = self._located(row, found)
        self.bad.handle(row, located, self.locate(row), self._part(index).raw(local))
        return located

    def _located(self, row: int, found: BadRow) -> BadRow:
        where = self.locate(row)
        message = f"{where.file}:{where.line}: {found.message} (record {row}, counted from 0; byte {where.byte})"
        return BadRow(reason=found.reason, message=message)

    def _row(self, row: int) -> int:
        is_plain = type(row) is int and 0 <= row < self._first_rows[-1]
        return row if is_plain else super()._row(row)

    def _num_rows(self, index: int) -> int:
        return self._first_rows[index + 1] - self._first_rows[index]

    def _part(self, index: int) -> Part:
        part = self._parts.get(index)
        if part is None:
            part = self.part(self.identities[index])
            if index + 1 < len(self._first_rows) and part.num_rows != self._num_rows(
                index
            ):  # opened again
                raise SourceChanged(
                    f"{self.identities[index].path}: changed while open: it has {part.num_rows} rows, "
                    f"expected {self._num_rows(index)}; open the source again"
                )
            self._parts[index] = part
            _OPEN[id(self), index] = weakref.ref(self)
            while len(_OPEN) > max_open():
                (_, oldest), owner = _OPEN.popitem(last=False)
                source = owner()
                if source is not None and (closed := source._parts.pop(oldest, None)) is not None:
                    closed.release()  # the file is closed with its last reader
        return part

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": OrderedDict()}

    def __repr__(self) -> str:
        files = plural(len(self.identities), "file")
        return f"{type(self).__name__}({self.name!r}, {plural(len(self), 'row')}, {files}, {size(self.num_bytes)})"


def _handle(source: "RowAccess", row: int) -> bool:
    """Read a row, so that the policy of its source applies if it is bad; return whether it is."""
    return any(isinstance(record, BadRow) for record in source.records(row, row + 1))


def handle_dropped(store: Any) -> None:
    """Apply `max_bad` and the quarantine to all bad rows of a finished store, which another run or process may have read."""
    source = store.source
    policies = source._policies() if isinstance(source, RowAccess) else []
    if all(policy.quarantine is None and policy.max_bad is None for policy in policies):
        return
    dropped = [part for part in store.counts.dropped.values() if part.rows]
    left = sum(
        part.count for part in dropped if _handle(source, part.rows[0])
    )  # the template dropped the others
    for row in np.flatnonzero(store.lengths == 0).tolist() if left else ():
        left -= _handle(source, row)
        if left <= 0:
            return


def one_folder(paths: Sequence[str], kind: str, split: str | None) -> Path:
    """Return the one folder that is given."""
    if len(paths) != 1:
        raise SourceError(f"{len(paths)} folders of {kind}, expected one; join them with concat")
    if split is not None:
        raise SourceError(
            f"{paths[0]}: split {split!r} asked for, but such a folder is one split; leave split out"
        )
    return Path(paths[0])
