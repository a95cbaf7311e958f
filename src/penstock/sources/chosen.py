"""Which rows, where no range says it?  By number, by a function of the record, or by chance with a name.  8 bytes per row."""

import math
from array import array
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import BadRecord, SourceError
from penstock.fingerprint import fingerprint
from penstock.sources.lock import ProcessLock
from penstock.sources.view import Rows, Slice, View, at_most
from penstock.types import BadRow, Bools, Ints, Record

if TYPE_CHECKING:
    from penstock.types import Source


class Selection(Rows):
    """Rows by number, in any order."""

    def __init__(self, source: "Source", rows: Ints) -> None:
        super().__init__(source)
        self._rows: Ints | None = rows

    @property
    def rows(self) -> Ints:
        assert self._rows is not None  # only a filter has rows yet to be found
        return self._rows

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Each row weighs its share of the source's range it lies in; a border follows when the weight of a range is reached."""
        if not len(self):
            return np.zeros(1, dtype=np.int64)
        borders = self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)
        ranges = np.searchsorted(borders, self.rows, side="right") - 1
        weights = (1 / np.diff(borders))[ranges]
        before = np.cumsum(weights) - weights
        filled = np.floor(before + 1e-9)  # ranges filled before each row; ⅓ + ⅓ + ⅓ is one range
        return at_most(np.concatenate([[0], np.flatnonzero(np.diff(filled)) + 1, [len(self)]]), num_rows)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        rows = self._rows
        if rows is not None and len(rows) and bool((np.diff(rows) > 0).all()) and rows[-1] < 64 * len(rows):
            state["_rows"] = _as_bits(rows)  # a bit per row of the source instead of 64 per row of ours
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._rows, bytes):
            self._rows = np.flatnonzero(np.unpackbits(np.frombuffer(self._rows, dtype=np.uint8)))

    def __repr__(self) -> str:
        return f"{self._source!r}.select({len(self.rows):_} rows)"


class Filtered(Selection):
    """Rows whose record passes.  A row that cannot be read is not the function's to judge: it stays, and stays counted."""

    def __init__(self, source: "Source", fn: Callable[[Record], Any]) -> None:
        super().__init__(source, np.zeros(0, dtype=np.int64))
        self._rows = None
        self._fn = fn
        self._lock = ProcessLock()

    @property
    def rows(self) -> Ints:
        if self._rows is None:
            with self._lock:
                if self._rows is None:  # another thread may have found them meanwhile
                    self._rows = self._find()
        return self._rows

    def _find(self) -> Ints:
        found = array("q")
        for row, record in enumerate(self._source.records(0, len(self._source))):
            if isinstance(record, BadRow) or self._passes(row, record):
                found.append(row)
        return np.frombuffer(found, dtype=np.int64) if found else np.zeros(0, dtype=np.int64)

    def _passes(self, row: int, record: Record) -> bool:
        try:
            return bool(self._fn(record))
        except Exception as error:
            raise failed(self._source, row, "filter", self._fn, error) from error

    def __repr__(self) -> str:
        rows = "" if self._rows is None else f", {len(self._rows):_} rows"
        return f"{self._source!r}.filter({name_of(self._fn)}{rows})"


def select(source: "Source", rows: Iterable[int]) -> View:
    """A view of these rows; a range needs no array."""
    num_rows = len(source)
    if isinstance(rows, range) and (not rows or (min(rows[0], rows[-1]) >= 0 and max(rows[0], rows[-1]) < num_rows)):
        return Slice(source, rows)
    chosen = np.array(rows if isinstance(rows, np.ndarray | list) else list(rows))
    if not chosen.size:
        return Selection(source, np.zeros(0, dtype=np.int64))
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
        hint = "; for a mask of yes and no, pass np.flatnonzero(mask)" if chosen.dtype.kind == "b" else ""
        raise SourceError(
            f"select: found {chosen.ndim}-dimensional {chosen.dtype} values, expected whole row numbers{hint}"
        )
    outside = (chosen < -num_rows) | (chosen >= num_rows)
    if outside.any():
        row = int(chosen[outside.argmax()])
        raise IndexError(f"row {row} of {source!r}: expected {-num_rows} <= row < {num_rows}")
    numbers = chosen.astype(np.int64)
    return Selection(source, np.where(numbers < 0, numbers + num_rows, numbers))


def split(source: "Source", *, test_size: float, seed: int) -> tuple[View, View]:
    """(train, test) by a keyed hash of the row number: no random stream that a library could change."""
    num_rows = len(source)
    num_test = math.ceil(num_rows * test_size - 1e-9) if isinstance(test_size, float) else test_size
    share = isinstance(test_size, float) and 0 < test_size < 1
    if isinstance(test_size, bool) or not (share or isinstance(test_size, int)) or not 0 < num_test < num_rows:
        raise SourceError(
            f"test_size is {test_size!r} of {num_rows} rows, expected a share between 0 and 1 or a number of rows, "
            f"so that both parts hold at least one row"
        )
    keys = _keys(num_rows, seed)
    is_test: Bools = keys <= np.partition(keys, num_test - 1)[num_test - 1]  # no two rows have one key
    return Selection(source, np.flatnonzero(~is_test)), Selection(source, np.flatnonzero(is_test))


def _keys(num_rows: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A number for each row, all different: the seed's two keys, each followed by a mixing that can be undone."""
    words = np.frombuffer(bytes.fromhex(fingerprint(["train_test_split", seed])), dtype="<u8")
    mixed = np.arange(num_rows, dtype=np.uint64)
    for word in words:
        mixed ^= word
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
    return mixed


def failed(source: "Source", row: int, what: str, fn: Callable[..., Any], error: Exception) -> BadRecord:
    """What a user's function made of a record, and which record it was."""
    where = source.where(row)
    return BadRecord(
        f"{where.file}:{where.line}: the {what} function {name_of(fn)} raised "
        f"{type(error).__name__}: {error} (record {row}, counted from 0)"
    )


def name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def _as_bits(rows: Ints) -> bytes:
    mask = np.zeros(int(rows[-1]) + 1, dtype=np.bool_)
    mask[rows] = True
    return np.packbits(mask).tobytes()
