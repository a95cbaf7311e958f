"""What a format implements: `FileRecords`, the records of one file, and a `FileReader`, which opens the files of the format."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from penstock.fingerprint import Digest
from penstock.places.place import File, FileId
from penstock.sources.base import content_of
from penstock.types import BadRow, Ints, Record, RemovedNulls


# A class of rows, or of readers, inherits from its protocol for the answers that most formats give.
class FileRecords(Protocol):
    """The records of one file, counted from 0.  A record that cannot be read is a BadRow, never an exception."""

    file: File
    num_bytes: int  # about the size of the rows, for cutting

    def __len__(self) -> int: ...

    def record(self, row: int) -> Record | BadRow: ...

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]: ...

    def records_at(self, rows: Ints) -> list[Record | BadRow]:
        """Return records by number, in this order."""
        return [self.record(row) for row in rows.tolist()]

    def locate(self, row: int) -> tuple[int, int]:
        """Return (line from 1, byte from 0) at which a record begins; its record number if the format has no lines."""
        return row + 1, 0

    def raw(self, row: int) -> bytes:
        """Return a record as it is in the file, for the quarantine; empty for binary formats."""
        return b""

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add the content of records first..last.  A bad record counts with its reason: fixing it changes the content."""
        for record in self.records(first, last):
            content.update(content_of(record))

    def borders(self, num_bytes: int) -> Ints:
        """Return records at which to cut so that each range takes about `num_bytes`, as if all records had one size."""
        rows_per_cut = max(1, len(self) * num_bytes // max(self.num_bytes, 1))
        return np.arange(0, len(self), rows_per_cut, dtype=np.int64)

    def snapshot(self, first: int, last: int) -> "FileRecords | None":
        """Return these records with first..last in memory; None if the format has no raw records, or they are too large."""
        return None

    def close(self) -> None:
        """Drop what else keeps the file open."""
        return


@runtime_checkable
class RemovesNulls(Protocol):
    """Records of columns, whose schema adds nulls to records that reading removes."""

    def removed_nulls(self, row: int) -> RemovedNulls: ...


class FileReader(Protocol):
    """Opens the files of one format under some options.  It may keep what the files of a source share, such as their columns."""

    format: str
    options: object  # a dataclass

    def open_rows(self, file: FileId) -> FileRecords:
        """Open one file."""

    def files_beside(self) -> Sequence[FileId]:
        """Return the files next to those with records that decide what the records are."""
        return ()

    def media(self) -> Iterator[FileId] | None:
        """Yield the files that records refer to, as they are now, if their content belongs to the records."""
        return None

    def counts(self, files: Sequence[FileId]) -> list[int] | None:
        """Return the number of records of each file if something tells them; None to open each file."""
        return None

    def weight(self, file: FileId) -> int | None:
        """Return about the size of a file's records, for cutting; None to ask the opened file."""
        return file.size

    def whole_records(self, file: FileId, num_rows: int) -> list[Record] | None:
        """Return all records of a small file if there is a faster way than to open it."""
        return None

    def whole_content(self, file: FileId, num_rows: int) -> bytes | None:
        """Return what all records of a small file add to a digest if there is a faster way than to open it."""
        return None

    def is_kept(self, file: FileId) -> bool:
        """Return whether a reader made by `keeping` reads this file once and keeps it."""
        return False

    def keeping(self) -> "FileReader":
        """Return a reader that keeps small files in memory once they are read: they stay as they were."""
        return self

    def number_columns(self, files: Sequence[FileId]) -> dict[str, str]:
        """The columns that hold lists of numbers by the files' own schema, with the numbers' type in numpy."""
        return {}
