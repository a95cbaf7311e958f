"""How does one record become several?  A row for each of its turns: the same record with the turn's number in it.

A template that drops reasoning from earlier turns can train each of them only in a conversation that ends there.  How many
turns a record has, a function says; one pass over the source, 8 bytes per record.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import SourceError
from penstock.fingerprint import Digest
from penstock.sources.chosen import failed, name_of
from penstock.sources.view import RowAccess, View, at_most
from penstock.types import BadRow, Ints, Record, Where

if TYPE_CHECKING:
    from penstock.types import Source


class FanOut(View):
    """Each record as often as it has turns, its number under `key`: 0, 1, 2 …  One without turns comes once, and so does a bad row."""

    def __init__(self, source: "Source", num_turns: Callable[[Record], int], *, key: str) -> None:
        super().__init__(source)
        self._num_turns = num_turns
        self._key = key
        self._starts: Ints | None = None  # (num_records + 1,): record i has the rows starts[i]..starts[i + 1]
        self._lock = threading.Lock()

    @property
    def starts(self) -> Ints:
        if self._starts is None:
            with self._lock:
                if self._starts is None:  # another thread may have found them meanwhile
                    self._starts = self._find()
        return self._starts

    def _find(self) -> Ints:
        starts = np.zeros(len(self._source) + 1, dtype=np.int64)
        for row, record in enumerate(self._source.records(0, len(self._source))):
            starts[row + 1] = 1 if isinstance(record, BadRow) else max(1, self._count(row, record))
        return np.cumsum(starts)

    def _count(self, row: int, record: Record) -> int:
        if self._key in record:
            raise SourceError(f"{self._source.where(row)}: the record has the key {self._key!r}, which fan-out needs")
        try:
            return self._num_turns(record)
        except Exception as error:
            raise failed(self._source, row, "turns", self._num_turns, error) from error

    def __len__(self) -> int:
        return int(self.starts[-1])

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        if start == stop:
            return
        first, last = self._home(start)[0], self._home(stop - 1)[0]
        for row, record in enumerate(self._source.records(first, last + 1), first):
            begin, end = int(self.starts[row]), int(self.starts[row + 1])
            for place in range(max(begin, start), min(end, stop)):
                yield record if isinstance(record, BadRow) else {**record, self._key: place - begin}

    def where(self, row: int) -> Where:
        return self._source.where(self._home(self._row(row))[0])

    def digest(self, start: int, stop: int) -> str:
        """The records' digest and which of their turns."""
        self._range(start, stop)
        content = Digest()
        if start < stop:
            (first, turn), (last, _) = self._home(start), self._home(stop - 1)
            counts = np.diff(np.clip(self.starts[first : last + 2], start, stop))
            content.update(f"{self._key} {turn} {counts.tolist()} {self._source.digest(first, last + 1)}".encode())
        return content.hexdigest()

    def stamp(self) -> Any:
        """That of the source, and how many turns each record has: the digests follow from both."""
        inner = self._source.stamp() if isinstance(self._source, RowAccess) else None
        if inner is None:
            return None
        turns = Digest()
        turns.update(self.starts.tobytes())
        return ["fan_out", inner, self._key, turns.hexdigest()]

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """The source's cuts; a shard weighs as much more as its records have turns, as each is read once."""
        if not len(self):
            return np.zeros(1, dtype=np.int64)
        return at_most(self.starts[self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)], num_rows)

    def _record(self, row: int) -> Record:
        home, turn = self._home(row)
        return {**self._source[home], self._key: turn}

    def _home(self, row: int) -> tuple[int, int]:
        """Which record, and which of its turns."""
        home = int(np.searchsorted(self.starts, row, side="right")) - 1
        return home, row - int(self.starts[home])

    def _homes(self, rows: Iterable[int]) -> Iterable[int]:
        return sorted({self._home(row)[0] for row in rows})

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{self._source!r} by {name_of(self._num_turns)}"
