"""Find text in all rows: a thread writes their texts to one temporary file, and a search scans the part that is there.

A scan finds any text in any language, ignoring case, at about 1 GB a second.  It stops after a while and goes on at the next request,
so that an answer never takes long; it says how far it has come.
"""

import os
import tempfile
import threading
import time
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.extras.view.facts import Job, yield_lock
from penstock.types import BadRow, Bools, Ints, Record

MOST_BYTES = 8 << 30  # of the temporary file
_AT_ONCE = 64  # rows read under the lock
_HELD = 0.02  # seconds that the lock is held, if rows are short
_BLOCK = 8 << 20  # bytes scanned at once
_PATIENCE = 0.4  # seconds of one scan

# In messages of conversations, as templates read them.
_CALLS = ("tool_calls", "function_call", "function_calls", "tool_call")
_TOOL_ROLES = (
    "tool",
    "function",
    "observation",
    "function_call",
    "tool_call",
    "function_response",
    "tool_response",
)

ReadRows = Callable[
    [int, int], Iterator[tuple[str, bool]]
]  # rows start..stop → text, and whether it uses tools


class TextIndex:
    """The folded texts of records, one after another in a file without a name."""

    def __init__(
        self, read: ReadRows, num_rows: int, lock: threading.Lock, most_bytes: int = MOST_BYTES
    ) -> None:
        self._read = read
        self._lock = lock
        self._most = most_bytes
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)
        self.ends = np.zeros(num_rows + 1, np.int64)  # row r is bytes ends[r]..ends[r + 1]
        self.tools = np.zeros(num_rows, np.bool_)
        self.num_rows = 0  # that are in the file
        self.is_full = False  # the file has reached its limit, and other rows are not searched
        self.job: Job[bool] = Job(self._write, num_rows)

    def _write(self, job: Job[bool]) -> bool:
        row = 0
        total = len(self.tools)
        while row < total and not self.is_full:
            parts: list[bytes] = []
            first = row
            begun = time.monotonic()
            size = 0
            room = min(self._most - int(self.ends[row]), _BLOCK)
            with self._lock:
                while row < total and time.monotonic() - begun < _HELD and size <= room:
                    for text, uses_tools in self._read(row, min(row + _AT_ONCE, total)):
                        parts.append(fold(text))
                        size += len(parts[-1])
                        self.tools[row] = uses_tools
                        row += 1
            for place, part in enumerate(parts, start=first):
                self.ends[place + 1] = self.ends[place] + len(part)
            self._file.write(b"".join(parts))
            self.num_rows = job.done = row  # last: a search reads up to here
            self.is_full = int(self.ends[row]) > self._most and row < total
            yield_lock()
        return True

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self._file.fileno(), stop - start, start)

    @property
    def state(self) -> dict[str, Any]:
        limit = f"only the first {self.num_rows:,} records are searched: their text fills {self._most:,} bytes"
        return {**self.job.state, "limit": limit if self.is_full else None}

    def tools_so_far(self) -> tuple[bool, Bools]:
        """Return whether all records are read, and for each record that is read whether it uses tools.

        The thread writes the tools of records, then their number, then the result of its job.  They are read in the other order, so that
        no record is counted whose tools were not written yet.
        """
        is_complete = self.job.result is not None
        num_rows = self.num_rows
        return is_complete, self.tools[:num_rows].copy()


class Search:
    """The records that hold a text, in order, as far as the scan has come."""

    def __init__(self, index: TextIndex, wanted: str) -> None:
        self._index = index
        self._wanted = fold(wanted)
        self._found = array("q")
        self._lock = threading.Lock()  # two requests may ask for one search
        self.num_rows = 0  # scanned

    @property
    def found(self) -> Ints:
        with self._lock:
            return np.frombuffer(self._found.tobytes(), np.int64)

    @property
    def is_complete(self) -> bool:
        is_written = self._index.job.result is not None  # first: later the number of rows is final
        return is_written and self.num_rows == self._index.num_rows

    def advance(self, seconds: float = _PATIENCE) -> None:
        """Scan on, until the end of what is written or for about so long."""
        begun = time.monotonic()
        while self.num_rows < self._index.num_rows and time.monotonic() - begun < seconds:
            with self._lock:
                first = self.num_rows
                last = self._index.num_rows
                start = int(self._index.ends[first])
                stop = (
                    int(np.searchsorted(self._index.ends[: last + 1], start + _BLOCK, side="right"))
                    - 1
                )
                stop = min(max(stop, first + 1), last)
                if first < last:
                    self._scan(
                        first, (self._index.ends[first + 1 : stop + 1] - start).tolist(), start
                    )
                    self.num_rows = stop

    def _scan(self, first: int, ends: Sequence[int], start: int) -> None:
        block = self._index.read(start, start + ends[-1])
        wanted = self._wanted
        place = 0
        while (place := block.find(wanted, place)) >= 0:
            row = bisect_right(ends, place)
            if place + len(wanted) <= ends[row]:
                self._found.append(first + row)
                place = ends[row]
            else:  # it begins in one row and ends in the next
                place += 1


def fold(text: str) -> bytes:
    """Return text as it is compared: without the difference of upper and lower case."""
    return text.casefold().encode("utf-8", "replace")


def record_strings(value: Any) -> Iterator[str]:
    """Yield every string and number in a record, without its keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from record_strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from record_strings(part)
    elif isinstance(value, int | float):
        yield str(value)


def record_rows(source: Any, start: int, stop: int) -> Iterator[tuple[str, bool]]:
    """Yield the text of each record, and whether it uses tools; of a record that cannot be read, the reason."""
    for record in source.records(start, stop):
        if isinstance(record, BadRow):
            yield record.message, False
        else:
            yield "\n".join(record_strings(record)), uses_tools(record)


def uses_tools(record: Record) -> bool:
    """Return whether a record lists tools, calls one, or holds the answer of one."""
    if record.get("tools"):
        return True
    for value in record.values():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for turn in value:
                if isinstance(turn, dict) and (
                    any(turn.get(name) for name in _CALLS)
                    or turn.get("role", turn.get("from")) in _TOOL_ROLES
                ):
                    return True
    return False


def chosen(passed: Bools | None, search: Search | None, has_tools: Bools | None) -> Ints | None:
    """Return the records that pass all of these, in order; None for every record.

    has_tools: of the records that are read so far, whether they have or lack tools, as asked; no other record is chosen.
    """
    if has_tools is not None:
        passed = has_tools if passed is None else passed[: has_tools.size] & has_tools
    if search is None:
        return None if passed is None else np.flatnonzero(passed)
    matches = search.found
    if passed is None:
        return matches
    matches = matches[matches < passed.size]
    return matches[passed[matches]]
