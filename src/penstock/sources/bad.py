"""What happens at a row that cannot be read?  Stop (the default), skip and count, or quarantine and count; never a silent hole."""

import base64
import codecs
import json
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.errors import BadRecord, SourceError
from penstock.sources.lock import ProcessLock
from penstock.types import BadRow, Where

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how such a file begins
IS_UTF_16 = "the file is UTF-16 (convert it with `iconv -f UTF-16 -t UTF-8`)"
POLICIES = ("stop", "skip", "quarantine")
NO_MEMORY = "no_memory"  # the one reason that is no fault of the row, and another on another machine
HINT = "fix or remove the line, or set on_bad to 'skip' or 'quarantine' (counted)"


def not_utf8(raw: bytes, error: UnicodeDecodeError, *, before: str = "") -> BadRow:
    """Which byte; and which alphabet it is instead, where the file says so at its beginning."""
    hint = f"; {IS_UTF_16}" if raw[:2] in UTF_16 else ""
    message = f"{before}not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start} of the row{hint}"
    return BadRow(reason="bad_utf8", message=message)


class BadRows:
    """The policy of one source and its ledger.  A row is counted once, however often it is read."""

    def __init__(self, on_bad: str = "stop", *, max_bad: int | None = None, quarantine: str | None = None) -> None:
        if on_bad not in POLICIES:
            raise SourceError(f"on_bad is {on_bad!r}, expected one of {', '.join(POLICIES)}")
        if (on_bad == "quarantine") != (quarantine is not None):
            raise SourceError("on_bad='quarantine' and quarantine=FILE go together: the file takes the bad rows")
        if max_bad is not None and (on_bad == "stop" or max_bad < 0):
            raise SourceError(
                f"max_bad is {max_bad}, expected a number ≥ 0 together with on_bad='skip' or 'quarantine'"
            )
        self.on_bad = on_bad
        self.max_bad = max_bad
        self.quarantine = quarantine
        self.counts: Counter[str] = Counter()  # by reason
        self._rows: dict[tuple[str, int], str] = {}  # (file, row) → reason: sources opened together share a ledger
        self._lock = ProcessLock()

    def met(self, row: int, found: BadRow, where: Where, raw: bytes) -> None:
        """Called for each bad row that is read; raises where the policy says stop."""
        if (
            found.reason == NO_MEMORY
        ):  # whatever the policy: a store must not lack rows because a machine was short of memory
            raise SourceError(f"{found.message}; run again with a smaller num_proc, or where there is more memory")
        if self.on_bad == "stop":
            raise BadRecord(f"{found.message}; {HINT}")
        with self._lock:
            if self._count(row, found.reason, where) and self.quarantine is not None:
                _append(Path(self.quarantine), row, found, where, raw)
            self._refuse_too_many(found.message)

    def count(self, row: int, reason: str, where: Where) -> None:
        """Count a bad row that an earlier run has met, and quarantined."""
        with self._lock:
            self._count(row, reason, where)
            self._refuse_too_many(f"{where}: {reason}")

    def _count(self, row: int, reason: str, where: Where) -> bool:
        """Whether the row is new."""
        if (where.file, row) in self._rows:
            return False
        self._rows[where.file, row] = reason
        self.counts[reason] += 1
        return True

    def _refuse_too_many(self, message: str) -> None:
        if self.max_bad is not None and len(self._rows) > self.max_bad:
            raise BadRecord(f"{message}; this is bad row number {len(self._rows)} and max_bad is {self.max_bad}")

    @property
    def rows(self) -> list[int]:
        """Bad rows met so far, ascending."""
        return sorted({row for _, row in self._rows})


def _append(path: Path, row: int, found: BadRow, where: Where, raw: bytes) -> None:
    """One line per bad row, written at once, so that several processes may share the file."""
    entry: dict[str, Any] = {
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
    try:
        with path.open("ab", buffering=0) as file:
            file.write(json.dumps(entry).encode() + b"\n")
    except OSError as error:
        raise SourceError(
            f"{path}: cannot write the quarantine: {error.strerror}; check the folder and its space"
        ) from error
