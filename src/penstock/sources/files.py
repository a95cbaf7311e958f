"""One or more files of one format as one source."""

import dataclasses
import json
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from operator import index as as_index
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.fingerprint import Digest
from penstock.places.files import identify_all, settled
from penstock.places.local import max_open
from penstock.places.place import FileId
from penstock.sources.bad import HINT, BadRows, Unreadable, recall_unreadable, remember_unreadable
from penstock.sources.base import Joined, RowAccess, Stamp, at_most
from penstock.sources.rows import FileReader, FileRecords, RemovesNulls
from penstock.types import BadRow, Ints, Record, RemovedNulls, Where
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


class _OpenFiles:
    """Which files of which sources this process keeps open, the oldest first.  There is one limit for the process."""

    def __init__(self) -> None:
        self._owners: OrderedDict[tuple[int, int], weakref.ref[Files]] = OrderedDict()

    def add(self, source: "Files", index: int) -> None:
        """Note a file of a source that was just opened; close the oldest ones beyond the limit."""
        self._owners[id(source), index] = weakref.ref(source)
        while len(self._owners) > max_open():
            (_, oldest), owner = self._owners.popitem(last=False)
            source_of_oldest = owner()
            if source_of_oldest is not None:
                source_of_oldest.close_file(oldest)


_OPEN = _OpenFiles()


class Files(Joined):
    """One or more files of one format.  Pickles as the files' identities and the options."""

    cache: Cache

    def __init__(
        self,
        paths: Sequence[str],
        reader: FileReader,
        *,
        cache: Cache,
        name: str | None = None,
        bad: BadRows | None = None,
    ) -> None:
        if not paths and name is None:
            raise SourceError(f"no files given, expected at least one {reader.format} file")
        self.name = name or Path(paths[0]).stem
        self.format = reader.format
        self.reader = reader
        self.bad = bad or BadRows()
        self.cache = cache
        self._set_files(identify_all(paths))

    def _set_files(self, files: list[FileId]) -> None:
        self.identities = files
        self._opened: OrderedDict[int, FileRecords] = OrderedDict()
        self._first_rows = [0]
        counts = self.reader.counts(files)
        if counts is None:
            counts = [len(self._rows(index)) for index in range(len(files))]
        self._first_rows = [0, *np.cumsum(counts, dtype=np.int64).tolist()]

    @property
    def files(self) -> list[str]:
        return [file.path for file in self.identities]

    @property
    def num_bytes(self) -> int | None:
        return sum(file.size for file in self.identities)

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        if stop - start <= _FEW:  # as views of scattered rows read: one row is faster than a block
            for row in range(start, stop):
                index, local = self._locate(row)
                record = self._rows(index).record(local)
                yield self._handle(row, record) if type(record) is BadRow else record
            return
        for index, first, last in self._pieces(start, stop):
            yield from self._records_of_file(index, first, last)

    def _records_of_file(self, index: int, first: int, last: int) -> Iterator[Record | BadRow]:
        if last - first == self._num_rows(index):
            records = self.reader.whole_records(self.identities[index], last - first)
            if records is not None:
                yield from records
                return
        rows = self._rows(index)
        rows.file.check()
        for row, record in enumerate(rows.records(first, last), self._first_rows[index] + first):
            yield self._handle(row, record) if type(record) is BadRow else record
        rows.file.check()

    def records_at(self, rows: Ints) -> list[Record]:
        records = self._read_each(rows, lambda index, local: self._rows(index).records_at(local))
        for row, record in zip(rows.tolist(), records, strict=True):
            if type(record) is BadRow:
                raise BadRecord(f"{self._located(row, record).message}; {HINT}")
        return records

    def _record(self, row: int) -> Record:
        index = bisect_right(self._first_rows, row) - 1
        rows = self._opened.get(index) or self._rows(index)
        record = rows.record(row - self._first_rows[index])
        if type(record) is BadRow:  # asked for by number: it cannot be skipped
            raise BadRecord(self._located(row, record).message)
        return record  # type: ignore[return-value]

    def locate(self, row: int) -> Where:
        index, local = self._locate(self._row(as_index(row)))  # numpy's integers are not JSON's
        line, byte = self._rows(index).locate(local)
        return Where(file=self.identities[index].path, line=line, byte=byte)

    def digest(self, start: int, stop: int) -> str:
        """Return the digest of the records' content: file names and the borders between files do not matter."""
        self._range(start, stop)
        content = Digest()
        for index, first, last in self._pieces(start, stop):
            self._add_digest(content, index, first, last)
        return content.hexdigest()

    def _add_digest(self, content: Digest, index: int, first: int, last: int) -> None:
        if last - first == self._num_rows(index):
            whole = self.reader.whole_content(self.identities[index], last - first)
            if whole is not None:
                content.extend(whole)
                return
        rows = self._rows(index)
        rows.file.check()
        rows.add_digest(content, first, last)
        rows.file.check()

    def snapshot(self, start: int, stop: int) -> "Files | None":
        """Return this source with these records in memory; None if the format cannot hold them.

        None also if there are too many files: each stays open, so that a change of it is noticed.  Small files need not: they are read
        when they are first needed, and kept.
        """
        held = copy(self)
        held._opened = OrderedDict()
        held.reader = self.reader.keeping()
        pieces = [
            piece
            for piece in self._pieces(start, stop)
            if not held.reader.is_kept(self.identities[piece[0]])
        ]
        if len(pieces) > max_open():
            return None
        for index, first, last in pieces:
            rows = self._rows(index).snapshot(first, last)
            if rows is None:
                return None
            held._opened[index] = rows
        return held

    def stamp(self) -> Stamp:
        """Return the files as the system reports them, with the time of the last change of any kind, and every option."""
        files = [*self.identities, *self.reader.files_beside()]
        try:
            if not _are_unchanged(files):
                return None
            media = self._media_stamp()
        except SourceError:
            return None
        if media is None:
            return None
        options = [
            [option.name, repr(getattr(self.reader.options, option.name))]
            for option in dataclasses.fields(self.reader.options)  # type: ignore[arg-type]
            if option.name not in _SAME_RECORDS
        ]
        return ["files", self.format, options, [_stat(file) for file in files], media]

    def _media_stamp(self) -> str | None:
        """Return a digest of the sizes and times of all media that records refer to; None if one was just written to.

        It stats each of them.
        """
        media = self.reader.media()
        if media is None:
            return ""
        content = Digest()
        for file in media:
            if not _are_unchanged([file]):
                return None
            content.update(json.dumps(_stat(file)).encode())
        return content.hexdigest()

    def unreadable(self) -> Unreadable:
        """Find the records that cannot be read; the cache remembers them as long as the files stay as they are."""
        stamp = None if self.bad.on_bad == "stop" else self.stamp()
        if stamp is None:
            return super().unreadable()
        remembered = recall_unreadable(self.cache, stamp)
        if remembered is not None:
            self._count_again(remembered)
            return remembered
        unreadable = super().unreadable()
        if self.stamp() == stamp:
            remember_unreadable(self.cache, stamp, unreadable)
        return unreadable

    def _count_again(self, unreadable: Unreadable) -> None:
        """Apply the policy to bad records that an earlier run has found."""
        for row, reason in zip(unreadable.rows.tolist(), unreadable.reasons, strict=True):
            if self.bad.quarantine is None:
                self.bad.count(row, reason, self.locate(row))
            else:
                _handle(self, row)  # the quarantine file may be new

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Cut a large file every `num_bytes` from its start, so that appending moves only the last border.

        Small files are gathered until they hold `num_bytes`, so that a change in one moves few borders.
        """
        borders = [0]
        gathered = 0
        for index, file in enumerate(self.identities):
            weight = self.reader.weight(file)
            if weight is None:
                weight = self._rows(index).num_bytes
            gathered += weight
            if weight > num_bytes:
                inside = self._first_rows[index] + self._rows(index).borders(num_bytes)
                borders += inside.tolist()
            if gathered >= num_bytes:
                borders.append(self._first_rows[index + 1])
                gathered = 0
        return at_most(np.array([*borders, len(self)], dtype=np.int64), num_rows)

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        total = RemovedNulls()
        for row in rows:
            index, local = self._locate(self._row(row))
            opened = self._rows(index)
            if isinstance(opened, RemovesNulls):
                total += opened.removed_nulls(local)
        return total

    def number_columns(self) -> dict[str, str]:
        return self.reader.number_columns(self.identities) if len(self) else {}

    def rows_of_files(self) -> list[int]:
        """Return the number of records of each file."""
        return np.diff(self._first_rows).tolist()

    def open_first_file(self) -> None:
        """Open the first file, so that what is wrong with all of them is said now."""
        self._rows(0)

    def close_file(self, index: int) -> None:
        """Close a file, which the next read of its records opens again."""
        rows = self._opened.pop(index, None)
        if rows is not None:
            rows.close()  # the file is closed with its last reader

    def _policies(self) -> list[BadRows]:
        return [self.bad]

    def _handle(self, row: int, bad_row: BadRow) -> BadRow:
        """Apply the policy to a bad record."""
        index, local = self._locate(row)
        rows = self._rows(index)
        rows.file.check()  # a changed file is the better explanation
        located = self._located(row, bad_row)
        self.bad.handle(row, located, self.locate(row), rows.raw(local))
        return located

    def _located(self, row: int, bad_row: BadRow) -> BadRow:
        where = self.locate(row)
        message = f"{where.file}:{where.line}: {bad_row.message} (record {row}, counted from 0; byte {where.byte})"
        return BadRow(reason=bad_row.reason, message=message)

    def _row(self, row: int) -> int:
        is_plain = type(row) is int and 0 <= row < self._first_rows[-1]
        return row if is_plain else super()._row(row)

    def _num_rows(self, index: int) -> int:
        return self._first_rows[index + 1] - self._first_rows[index]

    def _rows(self, index: int) -> FileRecords:
        """Return the records of a file, which is opened if it is not open."""
        rows = self._opened.get(index)
        if rows is None:
            file = self.identities[index]
            rows = self.reader.open_rows(file)
            is_opened_again = index + 1 < len(self._first_rows)
            if is_opened_again and len(rows) != self._num_rows(index):
                raise SourceChanged(
                    f"{file.path}: changed while open: it has {len(rows)} records, "
                    f"expected {self._num_rows(index)}; open the source again"
                )
            self._opened[index] = rows
            _OPEN.add(self, index)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": OrderedDict()}

    def __repr__(self) -> str:
        rows = plural(len(self), "record")
        files = plural(len(self.identities), "file")
        return f"Files({self.name!r}, {self.format}, {rows}, {files}, {size(self.num_bytes or 0)})"


def _are_unchanged(files: Sequence[FileId]) -> bool:
    """Return whether files are as they were, and not so new that another write could have the same time."""
    if not all(map(settled, files)):
        return False
    return identify_all([file.path for file in files]) == list(files)


def _stat(file: FileId) -> list[str | int]:
    return [file.path, file.size, file.inode, file.ctime_ns, file.etag]


class InMemory:
    """Takes the place of a file, for records that are in memory."""

    on_disk = True

    def __init__(self, identity: FileId) -> None:
        self.identity = identity

    def read(self, start: int, stop: int) -> bytes:
        raise AssertionError("records in memory are not read from a file")

    def readinto(self, buffer: bytearray | memoryview, start: int) -> int:
        raise AssertionError("records in memory are not read from a file")

    def map(self) -> bytes:
        raise AssertionError("records in memory are not read from a file")

    def check(self) -> None:
        return


class RowsInMemory(Files):
    """Records of a table or dataset in memory, read as if they were those of one file.  Only reading them shows a change."""

    def __init__(
        self, reader: FileReader, *, name: str, num_bytes: int, bad: BadRows | None, repr_name: str
    ) -> None:
        self.name = name
        self.format = reader.format
        self.reader = reader
        self.bad = bad or BadRows()
        self._repr_name = repr_name
        self._set_files([FileId(name, num_bytes, 0)])

    @property
    def files(self) -> list[str]:
        return [file.path for file in self.reader.files_beside()]

    @property
    def num_bytes(self) -> None:
        return None

    def stamp(self) -> None:
        return None

    def __repr__(self) -> str:
        return f"{self._repr_name}({self.name!r}, {plural(len(self), 'record')})"


def _handle(source: "RowAccess", row: int) -> bool:
    """Read a record, so that the policy of its source applies if it is bad; return whether it is."""
    return any(isinstance(record, BadRow) for record in source.records(row, row + 1))


def handle_dropped(store: Any) -> None:
    """Apply `max_bad` and the quarantine to all bad records of a finished store, which another run or process may have read."""
    source = store.source
    policies = source._policies() if isinstance(source, RowAccess) else []
    if all(policy.quarantine is None and policy.max_bad is None for policy in policies):
        return
    for reason, dropped in store.counts.dropped.items():
        num_bad = sum(_handle(source, row) for row in dropped.rows)
        for row in store.rows_dropped_as(reason) if num_bad else ():  # else the template did it
            if row not in dropped.rows:
                _handle(source, row)
