"""Bad records: why a record cannot be read, what happens then, and which records of a source are bad."""

import base64
import codecs
import contextlib
import fcntl
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from penstock.cache import Cache, memo
from penstock.cache.checked import Json
from penstock.errors import BadRecord, SourceError
from penstock.fingerprint import digest
from penstock.types import BadRow, Ints, Where

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how such a file begins
IS_UTF_16 = "the file is UTF-16 (convert it with `iconv -f UTF-16 -t UTF-8`)"
POLICIES = ("stop", "skip", "quarantine")
NO_MEMORY = (
    "no_memory"  # the one reason that is not a fault of the row, and differs between machines
)
HINT = "fix or remove the line, or set on_bad to 'skip' or 'quarantine' (counted)"
_VERSION = 3  # of remembered bad rows: raise it when a good row becomes bad, or the other way round


def not_utf8(raw: bytes, error: UnicodeDecodeError, *, before: str = "") -> BadRow:
    """Name the byte that is wrong, and the encoding if the first bytes tell it."""
    hint = f"; {IS_UTF_16}" if raw[:2] in UTF_16 else ""
    message = f"{before}not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start} of the record{hint}"
    return BadRow(reason="bad_utf8", message=message)


class ProcessLock:
    """A lock between the threads of one process.  A forked or pickled copy is a new, free lock."""

    def __init__(self, on_fork: Callable[[], object] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._on_fork = on_fork

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock = threading.Lock()
            self._process = os.getpid()
            self._on_fork()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["ProcessLock"], tuple[()]]:
        return ProcessLock, ()


class BadRows:
    """The bad-record policy of a source, and the bad records read so far.  A record is counted once, however often it is read."""

    def __init__(
        self, on_bad: str = "stop", *, max_bad: int | None = None, quarantine: str | None = None
    ) -> None:
        if on_bad not in POLICIES:
            raise SourceError(f"on_bad is {on_bad!r}, expected one of {', '.join(POLICIES)}")
        if (on_bad == "quarantine") != (quarantine is not None):
            raise SourceError(
                "on_bad='quarantine' and quarantine=FILE go together: the file takes the bad records"
            )
        if max_bad is not None and (on_bad == "stop" or max_bad < 0):
            raise SourceError(
                f"max_bad is {max_bad}, expected a number ≥ 0 with on_bad='skip' or 'quarantine'"
            )
        self.on_bad = on_bad
        self.max_bad = max_bad
        self.quarantine = quarantine
        self._file = None if quarantine is None else _Quarantine(quarantine)
        self.counts: Counter[str] = Counter()  # by reason
        self._rows: set[tuple[str, int]] = (
            set()
        )  # (file, row): sources opened together share a policy
        self._lock = ProcessLock()

    def handle(self, row: int, found: BadRow, where: Where, raw: bytes) -> None:
        """Apply the policy to a bad row: raise, or count it and write it to the quarantine once."""
        if found.reason == NO_MEMORY:  # whatever the policy: the row itself is not bad
            raise SourceError(
                f"{found.message}; run again with a smaller num_proc, or with more memory"
            )
        if self.on_bad == "stop":
            raise BadRecord(f"{found.message}; {HINT}")
        with self._lock:
            if self._add(row, found.reason, where) and self._file is not None:
                self._file.add(row, found, where, raw)
            self._check_count(found.message)

    def count(self, row: int, reason: str, where: Where) -> None:
        """Count a bad record that an earlier run has read and quarantined."""
        with self._lock:
            self._add(row, reason, where)
            self._check_count(f"{where}: {reason}")

    def _add(self, row: int, reason: str, where: Where) -> bool:
        """Count a record; return whether it is new."""
        is_new = (where.file, row) not in self._rows
        if is_new:
            self._rows.add((where.file, row))
            self.counts[reason] += 1
        return is_new

    def _check_count(self, message: str) -> None:
        if self.max_bad is not None and len(self._rows) > self.max_bad:
            raise BadRecord(
                f"{message}; this is bad record number {len(self._rows)} and max_bad is {self.max_bad}"
            )

    @property
    def rows(self) -> list[int]:
        """Bad records read so far, ascending."""
        return sorted({row for _, row in self._rows})


class _Quarantine:
    """A file of bad records, a JSON line each.  Over all runs and processes, a record has one entry until it changes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._forget(None)

    def _forget(self, inode: int | None) -> None:
        # the file, and how much of it is in `_written`
        self._inode = inode
        self._read = 0
        self._written: set[str] = set()  # digests of lines

    def add(self, row: int, found: BadRow, where: Where, raw: bytes) -> None:
        line = _entry(row, found, where, raw)
        try:
            with self._path.open("a+b") as file:
                with contextlib.suppress(
                    OSError
                ):  # without locks, two processes may write one row at the same moment
                    fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
                is_torn = self._catch_up(file)
                if digest(line) not in self._written:
                    file.write(b"\n" * is_torn + line)
        except OSError as error:
            why = f"cannot write the quarantine: {error.strerror}; check the folder and its space"
            raise SourceError(f"{self._path}: {why}") from error

    def _catch_up(self, file: BinaryIO) -> bool:
        """Read what was written since; return whether the last line has no end because its writer was killed."""
        status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._read:
            self._forget(status.st_ino)
        file.seek(self._read)
        for line in file:
            if not line.endswith(b"\n"):
                return True
            self._written.add(digest(line))
            self._read += len(line)
        return False

    def __reduce__(self) -> tuple[type["_Quarantine"], tuple[str]]:
        return _Quarantine, (str(self._path),)


def _entry(row: int, found: BadRow, where: Where, raw: bytes) -> bytes:
    entry = {
        "file": where.file,
        "line": where.line,
        "byte": where.byte,
        "row": row,
        "reason": found.reason,
    }
    entry["message"] = found.message
    try:
        entry["raw"] = raw.decode()
    except UnicodeDecodeError:
        entry["raw_base64"] = base64.b64encode(raw).decode()
    return json.dumps(entry).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The records of a source that cannot be read, ascending, and why."""

    rows: Ints
    reasons: tuple[str, ...]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.reasons)


def remember_unreadable(cache: Cache, stamp: Json, unreadable: Unreadable) -> None:
    """Keep the bad records of files with this stamp in the cache."""
    value = [unreadable.rows.tolist(), unreadable.reasons]
    memo.remember("unreadable", _VERSION, stamp, value, cache)


def recall_unreadable(cache: Cache, stamp: Json) -> Unreadable | None:
    """Return the bad records of files with this stamp, if the cache has them."""
    remembered: Any = memo.recall("unreadable", _VERSION, stamp, cache)
    if remembered is None:
        return None
    rows, reasons = remembered
    return Unreadable(np.array(rows, np.int64), tuple(reasons))
