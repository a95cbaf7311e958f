"""What all sources share: records by row number, slices, iteration, views."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import index as as_index
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from penstock.cache import Cache
from penstock.cache.checked import Json
from penstock.errors import SourceError
from penstock.fingerprint import fingerprint
from penstock.settings import notice_old_name
from penstock.sources.bad import BadRows, Unreadable
from penstock.sources.parse import record_bytes
from penstock.types import BadRow, Ints, Record, RemovedNulls, Where
from penstock.words import did_you_mean

# Plain values that change when what they describe changes; None if nothing tells.
Stamp = Json

if TYPE_CHECKING:
    from penstock.sources.concat import Description
    from penstock.sources.views import Slice, View


# What people try who come from `datasets` or pandas, and what to use.
_INSTEAD = {
    "features": "records are as written and have no schema: column_names lists their keys, describe() their types",
    "columns": "column_names lists the keys of the records",
    "num_rows": "len(source) is the number of rows",
    "iloc": "source[3] is a record, source[3:9] some rows",
    "take": "source.head(n) has the first rows, source.select([…]) any rows",
    "skip": "source[n:] has the rows after the first n",
    "sort": "sort the rows by hand: source.select(order)",
    "with_format": "a Loader makes arrays: Loader(source, output='numpy')",
    "set_format": "a Loader makes arrays: Loader(source, output='numpy')",
    "to_list": "list(source) reads all records",
    "to_dict": "list(source) reads all records",
    "remove_columns": "use source.map(lambda record: …)",
    "rename_column": "use source.map(lambda record: …)",
    "add_column": "use source.map(lambda record: …)",
    "save_to_disk": "sources are not written; prepare makes a store",
}


class RowAccess(ABC):
    """The base of all sources: row numbers, slices, iteration, views."""

    name: str
    format: str = ""
    cache: Cache | None = None
    is_stream = False  # read in order, and cut by its content while it is read (memory.py)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]: ...

    def where(self, row: int) -> Where:
        """The name of `locate` in 0.2."""
        notice_old_name("source.where(row)", "source.locate(row)")
        return self.locate(row)

    def locate(self, row: int) -> Where:
        return Where(file=self.name, line=self._row(row) + 1)

    @abstractmethod
    def digest(self, start: int, stop: int) -> str: ...

    @abstractmethod
    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints: ...

    def number_columns(self) -> dict[str, str]:
        """The columns that hold lists of numbers by the files' own schema, with the numbers' type in numpy."""
        return {}

    def _record(self, row: int) -> Record:
        """Return row 0 <= row < len."""
        return next(self.records(row, row + 1))  # type: ignore[arg-type]  # for sources without bad rows

    @overload
    def __getitem__(self, row: int, /) -> Record: ...
    @overload
    def __getitem__(self, row: slice, /) -> "Slice": ...
    @overload
    def __getitem__(self, row: str, /) -> "ColumnValues": ...
    @overload
    def __getitem__(self, row: Sequence[int], /) -> "View": ...
    def __getitem__(self, row: Any, /) -> Any:
        """Return a record by its number, a view of some rows (a slice, or a list of numbers), or the values of a column by name."""
        if type(row) is int:  # nearly always
            return self._record(self._row(row))
        if isinstance(row, slice):
            return self._sliced(row)
        if isinstance(row, str):
            return ColumnValues(self, row)
        if isinstance(row, list | tuple | range | np.ndarray) and np.ndim(cast(Any, row)):
            return self.select(row)
        return self._record(self._row(row))

    def _sliced(self, rows: slice) -> "Slice":
        from penstock.sources.views import Slice  # views need this module

        return Slice(self, range(len(self))[rows])

    def __iter__(self) -> Iterator[Record]:
        """Yield good rows in order; the source's policy stops at bad ones or counts them."""
        for record in self.records(0, len(self)):
            if type(record) is not BadRow:
                yield record  # type: ignore[misc]  # the check above

    def select(self, rows: Iterable[int]) -> "View":
        """Return these rows, in this order; a row may come twice, and -1 is the last."""
        from penstock.sources.views import Selection, Slice

        num_rows = len(self)
        if isinstance(rows, range) and (
            not rows or (min(rows[0], rows[-1]) >= 0 and max(rows[0], rows[-1]) < num_rows)
        ):
            return Slice(self, rows)  # a range needs no array
        chosen = np.array(rows if isinstance(rows, np.ndarray | list) else list(rows))
        if chosen.size and (chosen.dtype.kind not in "iu" or chosen.ndim != 1):
            hint = (
                "; for a mask of booleans, pass np.flatnonzero(mask)"
                if chosen.dtype.kind == "b"
                else ""
            )
            found = f"{chosen.ndim}-dimensional {chosen.dtype} values"
            raise SourceError(f"select: found {found}, expected whole row numbers{hint}")
        outside = (chosen < -num_rows) | (chosen >= num_rows)
        if outside.any():
            self._row(int(chosen[outside.argmax()]))  # raises
        numbers = chosen.astype(np.int64)
        return Selection(self, np.where(numbers < 0, numbers + num_rows, numbers))

    def filter(self, fn: Callable[[Record], Any]) -> "View":
        """Return the rows whose record passes `fn`.  They are found when first needed, by one pass over the source."""
        from penstock.sources.views import Filtered

        return Filtered(self, fn)

    def map(self, fn: Callable[[Record], Record]) -> "View":
        """Return each record as `fn` returns it.  `fn` is called at every read, and must always return the same."""
        from penstock.sources.views import Mapped

        return Mapped(self, fn)

    def head(self, num_rows: int = 5) -> "Slice":
        """Return the first rows."""
        return self[: max(num_rows, 0)]

    def shuffle(self, seed: int = 0) -> "View":
        """Return all rows in an order that the seed decides.  A Loader shuffles by itself, in another order in every epoch."""
        from penstock.sources.views import Selection

        keys = _random_keys(len(self), ["shuffle", seed])
        return Selection(self, np.argsort(keys).astype(np.int64))

    def to_pandas(self) -> Any:
        """Return all rows as a DataFrame of pandas, in memory."""
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ImportError as error:
            raise SourceError("to_pandas needs pandas: pip install pandas") from error
        return pd.DataFrame(list(self))

    @property
    def column_names(self) -> list[str]:
        """The keys of 200 rows spread over the source; records need not have the same keys.  `describe()` shows their types."""
        return list(self.describe().columns)

    if not TYPE_CHECKING:  # a type checker would take it for a permission to use any name

        def __getattr__(self, name: str) -> Any:
            hint = _INSTEAD.get(name)
            more = f"; {hint}" if hint is not None else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{more}")

    def train_test_split(self, *, test_size: float = 0.1, seed: int = 0) -> "tuple[View, View]":
        """Return (train, test): disjoint, together everything, each in the source's order.

        test_size: a share or a number of rows.  Rows are chosen by a hash of seed and number: no library's random numbers matter.
        """
        from penstock.sources.views import Selection

        num_rows = len(self)
        num_test = (
            math.ceil(num_rows * test_size - 1e-9) if isinstance(test_size, float) else test_size
        )
        share = isinstance(test_size, float) and 0 < test_size < 1
        if (
            isinstance(test_size, bool)
            or not (share or isinstance(test_size, int))
            or not 0 < num_test < num_rows
        ):
            raise SourceError(
                f"test_size is {test_size!r} of {num_rows} rows, expected a share between 0 and 1 or a number of rows; "
                f"both parts need at least one row"
            )
        keys = _random_keys(num_rows, ["train_test_split", seed])
        is_test = keys <= np.partition(keys, num_test - 1)[num_test - 1]
        return Selection(self, np.flatnonzero(~is_test)), Selection(self, np.flatnonzero(is_test))

    def describe(self, *, look: int = 200) -> "Description":
        """Return format, files, rows, bytes, and the columns of `look` rows spread over the source; `print` it."""
        from penstock.sources.concat import describe

        return describe(self, look)

    def records_at(self, rows: Ints) -> list[Record]:
        """Return records by number, in this order; faster than one by one if several rows share a file."""
        return [self._record(row) for row in rows.tolist()]

    @property
    def files(self) -> list[str]:
        """Files that hold the rows."""
        return []

    @property
    def num_bytes(self) -> int | None:
        """Bytes of all files; None if unknown, or if not every row of them is here."""
        return None

    def stamp(self) -> Stamp:
        """Return plain values that change when a file is written to; None if only reading shows a change.

        They save reading all rows to see that nothing has changed, and never name content by themselves.
        """
        return None

    def snapshot(self, start: int, stop: int) -> "RowAccess | None":
        """Return this source with rows start..stop in memory, read once for their digest and their records.

        None if the format cannot hold raw rows, or if they are too large.
        """
        return None

    @property
    def bad_counts(self) -> Counter[str]:
        """Bad rows read so far, by reason; a view counts those of its source."""
        policies = {id(each): each for each in self._policies()}
        return sum((each.counts for each in policies.values()), start=Counter())

    def unreadable(self) -> Unreadable:
        """Find the rows that cannot be read, by one pass; none if the policy is to stop: then the first one is an error."""
        policies = self._policies()
        if policies and all(policy.on_bad == "stop" for policy in policies):
            return Unreadable(np.zeros(0, np.int64), ())
        found = [
            (row, each.reason)
            for row, each in enumerate(self.records(0, len(self)))
            if isinstance(each, BadRow)
        ]
        return Unreadable(
            np.array([row for row, _ in found], np.int64), tuple(reason for _, reason in found)
        )

    def refuse_empty(self) -> None:
        """Raise if a selection left no row.  Files may be empty."""
        return

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        """Count the null members that reading these rows removes, which only columnar sources do (`nulls="deep"`)."""
        return RemovedNulls()

    def _policies(self) -> list[BadRows]:
        return []

    def _row(self, row: int) -> int:
        try:
            row = as_index(row)  # numpy's integers are not integers to JSON
        except TypeError:
            raise TypeError(
                f"{self!r}[{row!r}]: expected a row number, a slice, a list of row numbers, or the name of a column"
            ) from None
        num_rows = len(self)
        if not -num_rows <= row < num_rows:
            raise IndexError(f"row {row} of {self!r}: expected {-num_rows} <= row < {num_rows}")
        return row % num_rows

    def _range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(
                f"rows {start}..{stop} of {self!r}: expected 0 <= start <= stop <= {len(self)}"
            )


class ColumnValues(Sequence[Any]):
    """The values of one column: each is read when it is asked for."""

    def __init__(self, source: RowAccess, name: str) -> None:
        self._source = source
        self.name = name
        if len(source) and name not in source.describe().columns:
            known = source.column_names
            hint = did_you_mean(name, known)
            raise KeyError(f"no column {name!r}{hint}; there are {', '.join(known)}")

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, row: int, /) -> Any: ...
    @overload
    def __getitem__(self, row: slice, /) -> "ColumnValues": ...
    def __getitem__(self, row: int | slice, /) -> Any:
        if isinstance(row, slice):
            return ColumnValues(self._source[row], self.name)
        return self._value(self._source[row], row)

    def __iter__(self) -> Iterator[Any]:
        for row, record in enumerate(self._source):
            yield self._value(record, row)

    def _value(self, record: Record, row: int) -> Any:
        if self.name not in record:
            where = self._source.locate(row)
            raise KeyError(
                f"{where}: the record has no {self.name!r}; for a value in its place, use [record.get({self.name!r}) for record in source]"
            )
        return record[self.name]

    def __repr__(self) -> str:
        return f"{self._source!r}[{self.name!r}]"


def _random_keys(num_rows: int, path: list[Any]) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    """Return a number for each row that a named seed decides; all are different."""
    keys = np.arange(num_rows, dtype=np.uint64)
    # mixed by steps that can be undone, so that all stay different
    for word in np.frombuffer(bytes.fromhex(fingerprint(path)), dtype="<u8"):
        keys ^= word
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            keys ^= keys >> np.uint64(shift)
            keys *= np.uint64(factor)
    return keys


class Joined(RowAccess):
    """Pieces in a row, as one run of row numbers: the rows of files, or of sources."""

    _first_rows: list[int]  # of each piece, and the number of all rows

    def __len__(self) -> int:
        return self._first_rows[-1]

    def _locate(self, row: int) -> tuple[int, int]:
        """Return (piece, row within it) of a row."""
        index = bisect_right(self._first_rows, row) - 1
        return index, row - self._first_rows[index]

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (piece, first row in it, last row in it + 1) of a row range; none is empty."""
        while start < stop:
            index, local = self._locate(start)
            upto = min(stop, self._first_rows[index + 1])
            yield index, local, local + upto - start
            start = upto

    def _read_each(self, rows: Ints, read: Callable[[int, Ints], list[Any]]) -> list[Any]:
        """Return the records of rows, by one call of `read(piece, rows within it)` for each piece."""
        pieces = np.searchsorted(self._first_rows, rows, side="right") - 1
        return in_groups(
            pieces, lambda index, places: read(index, rows[places] - self._first_rows[index])
        )


def content_of(record: Record | BadRow) -> bytes:
    """Return what a record, or a bad row in its place, adds to a digest."""
    return (
        f"bad row: {record.reason}".encode() if isinstance(record, BadRow) else record_bytes(record)
    )


def in_groups(groups: Ints, read: Callable[[int, Ints], list[Any]]) -> list[Any]:
    """Call `read(group, places)` once for each group; return what it reads in the order of `groups`."""
    if not groups.size or (groups == groups[0]).all():
        return read(int(groups[0]), np.arange(groups.size)) if groups.size else []
    out: list[Any] = [None] * groups.size
    order = np.argsort(groups, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        for place, record in zip(
            places.tolist(), read(int(groups[places[0]]), places), strict=True
        ):
            out[place] = record
    return out


def at_most(borders: Ints, num_rows: int) -> Ints:
    """Add borders so that no range is longer than `num_rows`."""
    steps = [np.arange(first, last, num_rows) for first, last in pairwise(distinct(borders))]
    return np.concatenate([*steps, borders[-1:]]).astype(np.int64)


def distinct(values: Ints) -> Ints:
    """Return the sorted values, each once.  `np.unique` imports numpy.ma, which takes longer than opening a file."""
    ordered: Ints = np.sort(values)
    found: Ints = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
    return found


def answer(found: Any) -> Any:
    """Return what a user's function returned; refuse a coroutine and a generator, which are true whatever they would return."""
    if isinstance(found, CoroutineType | GeneratorType):
        found.close()
        raise TypeError(f"returned a {type(found).__name__}; write it without async and yield")
    return found
