"""What all sources share: records by number, slices, iteration, views."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import index as as_index
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.cache.checked import Json
from penstock.errors import PlanError, SourceError
from penstock.fingerprint import fingerprint
from penstock.notebook import shown_in_notebooks
from penstock.settings import notice_former_name, whole_number
from penstock.sources.bad import BadRows, Unreadable
from penstock.sources.iterate import Place, RecordIterator, Walked, row_of
from penstock.sources.parse import record_bytes
from penstock.types import BadRow, Ints, Record, RemovedNulls, Where
from penstock.words import did_you_mean

# Plain values that change when what they describe changes; None if nothing tells.
Stamp = Json

Keys = npt.NDArray[np.uint64]

_BATCH_SIZE = 1000  # records that a batched map function gets, as in `datasets`

if TYPE_CHECKING:
    from penstock.sources.concat import Description
    from penstock.sources.filter import FilterCount
    from penstock.sources.views import Slice, View


# What people try who come from `datasets` or pandas, and what to use.
_INSTEAD = {
    "features": "records are as written and have no schema: column_names lists their keys, describe() their types",
    "columns": "column_names lists the keys of the records",
    "num_rows": "len(source) is the number of records",
    "iloc": "source[3] is a record, source[3:9] some records",
    "take": "source.head(n) has the first records, source.select([…]) any records",
    "skip": "source[n:] has the records after the first n",
    "with_format": "a Loader makes arrays: Loader(source, output='numpy')",
    "set_format": "a Loader makes arrays: Loader(source, output='numpy')",
    "to_list": "list(source) reads all records",
    "to_dict": "list(source) reads all records",
    "remove_columns": "source.remove('a', 'b') leaves columns out",
    "rename_column": "source.rename({'old': 'new'}) renames columns",
    "rename_columns": "source.rename({'old': 'new'}) renames columns",
    "select_columns": "source.map(lambda record: {'a': record['a']}) keeps some columns",
    "add_column": "use source.map(lambda record: {**record, 'new': …})",
    "state_dict": "an iteration has a state: records = source.iterate(); records.state_dict()",
    "load_state_dict": "an iteration has a state: records = source.iterate(); records.load_state_dict(state)",
    "cast_column": "use source.map(lambda record: …)",
    "interleave": "penstock.interleave([a, b]) takes a record of each in turns",
    "save_to_disk": "sources are not written; prepare makes a store",
}


@shown_in_notebooks
class RowAccess(ABC):
    """The base of all sources: record numbers, slices, iteration, views."""

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
        notice_former_name("source.where(row)", "source.locate(row)")
        return self.locate(row)

    def locate(self, row: int) -> Where:
        return Where(file=self.name, line=self._row(row) + 1)

    def outline(self) -> Json:
        """Return which views with which arguments lie over the data, as plain values; data is compared by its records."""
        return "rows"

    @property
    def is_counted(self) -> bool:
        """Whether the number of records is known, so that `len` reads nothing."""
        return True

    @abstractmethod
    def digest(self, start: int, stop: int) -> str: ...

    @abstractmethod
    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints: ...

    def number_columns(self) -> dict[str, str]:
        """The columns that hold lists of numbers by the files' own schema, with the numbers' type in numpy."""
        return {}

    def _record(self, row: int) -> Record:
        """Return record 0 <= record < len."""
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
        """Return a record by its number, a view of some records (a slice, or a list of numbers), or the values of a column by name."""
        if type(row) is int:  # nearly always
            return self._record(row if 0 <= row < len(self) else self._row(row))
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
        """Yield good records in order; the source's policy stops at bad ones or counts them."""
        for record in self.records(0, len(self)):
            if type(record) is not BadRow:
                yield record  # type: ignore[misc]  # the check above

    def select(self, rows: Iterable[int]) -> "View":
        """Return these records, in this order; a record may come twice, and -1 is the last."""
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
            raise SourceError(f"select: found {found}, expected whole record numbers{hint}")
        outside = (chosen < -num_rows) | (chosen >= num_rows)
        if outside.any():
            self._row(int(chosen[outside.argmax()]))  # raises
        numbers = chosen.astype(np.int64)
        return Selection(self, np.where(numbers < 0, numbers + num_rows, numbers))

    def filter(
        self,
        fn: Callable[[Record], Any],
        *,
        num_proc: int | None = 1,
        version: str | int | None = None,
    ) -> "View":
        """Return the records that pass `fn`.  They are found when first needed, by one pass over the source.

        num_proc: processes that call `fn`; None for all cores.
        version: have the answers remembered in the cache, for these records and the name of `fn`; raise it when `fn` changes, or
        something that it uses.
        """
        from penstock.sources.filter import RecordFilter
        from penstock.sources.views import Filtered

        return Filtered(self, RecordFilter(fn, num_proc=num_proc, version=version), fn)

    def left_out(self) -> "list[FilterCount]":
        """Return what each filter below has left out."""
        return []

    @overload
    def map(self, fn: Callable[[Record], Record]) -> "View": ...
    @overload
    def map(
        self,
        fn: Callable[[dict[str, list[Any]]], Mapping[str, Any]],
        *,
        batched: bool,
        batch_size: int = _BATCH_SIZE,
    ) -> "View": ...
    def map(
        self, fn: Callable[..., Any], *, batched: bool = False, batch_size: int = _BATCH_SIZE
    ) -> "View":
        """Return each record as `fn` returns it.  `fn` is called at every read, and must always return the same.

        batched: `fn` gets a dict of columns, each a list of `batch_size` values, and returns a dict of columns of any one length:
        these are the new records.  Random access is kept: one pass finds how many records each batch becomes, when it is first needed.
        """
        expect_function("map", fn)
        if not isinstance(batched, bool):
            raise SourceError(f"map: batched is {batched!r}, expected True or False")
        if batched:
            from penstock.sources.batched import BatchMapped

            return BatchMapped(self, fn, batch_size)
        if batch_size != _BATCH_SIZE:
            raise SourceError(
                f"map: batch_size={batch_size!r} needs batched=True: without it, the function gets one record"
            )
        from penstock.sources.views import Mapped

        return Mapped(self, fn)

    def rename(self, names: Mapping[str, str]) -> "View":
        """Return records with other names for some columns: {old name: new name}.  Columns keep their places."""
        from penstock.sources.column_views import Renamed

        return Renamed(self, names)

    def remove(self, *columns: str) -> "View":
        """Return records without these columns."""
        from penstock.sources.column_views import Removed

        return Removed(self, columns)

    def sort(self, *columns: str, reverse: bool | Sequence[bool] = False) -> "View":
        """Return all records in the order of a column's values; further columns decide between equal values.

        reverse: the largest first; a list says it for each column.  Equal records keep their order.  NaN, and records without a value, come
        last.  One pass reads the values, when a record is first needed.
        """
        from penstock.sources.column_views import Sorted

        return Sorted(self, columns, reverse)

    def iterate(self) -> RecordIterator:
        """Return an iterator over the good records, with `state_dict()` and `load_state_dict(state)`."""
        return RecordIterator(self)

    def walk(self, after: Place = None) -> Iterator[Walked]:
        """Yield the records behind a place in order, each with the place behind it; `iterate` keeps the place of its caller."""
        num_rows = len(self)
        first = min(row_of(after), num_rows)  # files may have become shorter
        for row, record in enumerate(self.records(first, num_rows), first):
            yield Walked(record, {"row": row + 1}, partial(self.locate, row))

    @property
    def has_unread_stream(self) -> bool:
        """Whether the number of records is known only by reading a stream to its end."""
        return False

    def head(self, num_rows: int = 5) -> "Slice":
        """Return the first records."""
        return self[: max(num_rows, 0)]

    def shuffle(self, seed: int = 0) -> "View":
        """Return all records in an order that the seed decides.  A Loader shuffles by itself, in another order in every epoch."""
        from penstock.sources.views import Selection

        seed = expect_seed("shuffle", seed)
        keys = random_keys(np.arange(len(self), dtype=np.uint64), ["shuffle", seed])
        return Selection(self, np.argsort(keys).astype(np.int64))

    def to_pandas(self) -> Any:
        """Return all records as a DataFrame of pandas, in memory."""
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ImportError as error:
            raise SourceError("to_pandas needs pandas: pip install pandas") from error
        return pd.DataFrame(list(self))

    @property
    def column_names(self) -> list[str]:
        """The keys of 200 records spread over the source; records need not have the same keys.  `describe()` shows their types."""
        return list(self.describe().columns)

    if not TYPE_CHECKING:  # a type checker would take it for a permission to use any name

        def __getattr__(self, name: str) -> Any:
            hint = _INSTEAD.get(name)
            more = f"; {hint}" if hint is not None else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{more}")

    def train_test_split(
        self,
        *,
        test_size: float = 0.1,
        seed: int = 0,
        by: Literal["row", "content"] = "row",
        columns: Sequence[str] | None = None,
        stratify_by: str | None = None,
    ) -> "tuple[View, View]":
        """Return (train, test): disjoint, together everything, each in the source's order.

        test_size: a share or a number of records.  Records are chosen by a hash of seed and number: no library's random numbers matter.
        by: content chooses by a hash of seed and record, so that equal records are on one side, and stay there when records are added.
        The share is then met about.  columns: with by="content", the columns that decide, such as a user or a prompt.
        stratify_by: a column; both parts get each of its values in the same proportion.
        """
        from penstock.sources.random_split import split

        return split(
            self,
            test_size=test_size,
            seed=seed,
            by=by,
            columns=columns,
            stratify_by=stratify_by,
        )

    def describe(self, *, look: int = 200) -> "Description":
        """Return format, files, records, bytes, and the columns of `look` records spread over the source; `print` it."""
        from penstock.sources.concat import describe

        return describe(self, look)

    def records_at(self, rows: Ints) -> list[Record]:
        """Return records by number, in this order; faster than one by one if several records share a file."""
        return [self._record(row) for row in rows.tolist()]

    @property
    def files(self) -> list[str]:
        """Files that hold the records."""
        return []

    @property
    def num_bytes(self) -> int | None:
        """Bytes of all files; None if unknown, or if not every record of them is here."""
        return None

    def stamp(self) -> Stamp:
        """Return plain values that change when a file is written to; None if only reading shows a change.

        They save reading all records to see that nothing has changed, and never name content by themselves.
        """
        return None

    def snapshot(self, start: int, stop: int) -> "RowAccess | None":
        """Return this source with records start..stop in memory, read once for their digest and their content.

        None if the format cannot hold raw records, or if they are too large.
        """
        return None

    @property
    def bad_counts(self) -> Counter[str]:
        """Bad records read so far, by reason; a view counts those of its source."""
        policies = {id(each): each for each in self._policies()}
        return sum((each.counts for each in policies.values()), start=Counter())

    def unreadable(self) -> Unreadable:
        """Find the records that cannot be read, by one pass; none if the policy is to stop: then the first one is an error."""
        policies = self._policies()
        if policies and all(policy.on_bad == "stop" for policy in policies):
            return Unreadable(np.zeros(0, np.int64), ())
        rows_and_reasons = [
            (row, each.reason)
            for row, each in enumerate(self.records(0, len(self)))
            if isinstance(each, BadRow)
        ]
        return Unreadable(
            np.array([row for row, _ in rows_and_reasons], np.int64),
            tuple(reason for _, reason in rows_and_reasons),
        )

    def refuse_empty(self) -> None:
        """Raise if a selection left no record.  Files may be empty."""
        return

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        """Count the null members that reading these records removes, which only columnar sources do (`nulls="deep"`)."""
        return RemovedNulls()

    def _policies(self) -> list[BadRows]:
        return []

    def _row(self, row: int) -> int:
        try:
            row = as_index(row)  # numpy's integers are not integers to JSON
        except TypeError:
            raise TypeError(
                f"{self!r}[{row!r}]: expected a record number, a slice, a list of record numbers, or the name of a column"
            ) from None
        num_rows = len(self)
        if not -num_rows <= row < num_rows:
            raise IndexError(
                f"record {row} of {self!r}: expected {-num_rows} <= record < {num_rows}"
            )
        return row % num_rows

    def _range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(
                f"records {start}..{stop} of {self!r}: expected 0 <= start <= stop <= {len(self)}"
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


def random_keys(rows: Keys, path: list[Any]) -> Keys:
    """Return a number for each record number that a named seed decides; different records get different numbers."""
    keys = rows.copy()
    # mixed by steps that can be undone, so that all stay different
    for word in np.frombuffer(bytes.fromhex(fingerprint(path)), dtype="<u8"):
        keys ^= word
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            keys ^= keys >> np.uint64(shift)
            keys *= np.uint64(factor)
    return keys


class Joined(RowAccess):
    """Pieces in a row, as one run of record numbers: the records of files, or of sources."""

    _first_rows: list[int]  # of each piece, and the number of all rows

    def __len__(self) -> int:
        return self._first_rows[-1]

    def _locate(self, row: int) -> tuple[int, int]:
        """Return (piece, record within it) of a record."""
        index = bisect_right(self._first_rows, row) - 1
        return index, row - self._first_rows[index]

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (piece, first record in it, last record in it + 1) of a record range; none is empty."""
        while start < stop:
            index, local = self._locate(start)
            upto = min(stop, self._first_rows[index + 1])
            yield index, local, local + upto - start
            start = upto

    def _read_each(self, rows: Ints, read: Callable[[int, Ints], list[Any]]) -> list[Any]:
        """Return the records with these numbers, by one call of `read(piece, rows within it)` for each piece."""
        pieces = np.searchsorted(self._first_rows, rows, side="right") - 1
        return in_groups(
            pieces, lambda index, places: read(index, rows[places] - self._first_rows[index])
        )


def expect_function(what: str, fn: object) -> None:
    """Raise SourceError where a function is expected and something else was passed."""
    if not callable(fn):
        raise SourceError(f"{what}: found {fn!r}, expected a function of a record")


def expect_seed(what: str, seed: Any) -> int:
    """Return a seed as a plain int; refuse None, which is another order each time, and what only looks like a number."""
    try:
        return whole_number("seed", seed, least=None)
    except PlanError as error:
        raise SourceError(f"{what}: {error}") from None


def content_of(record: Record | BadRow) -> bytes:
    """Return what a record, or a bad record in its place, adds to a digest."""
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


def answer(value: Any) -> Any:
    """Return what a user's function returned; refuse a coroutine and a generator, which are true whatever they would return."""
    if isinstance(value, CoroutineType | GeneratorType):
        value.close()
        raise TypeError(f"returned a {type(value).__name__}; write it without async and yield")
    return value
