"""What do the shapes of columns share?  Choosing columns, equal schemas, a cache counted in bytes, one kind of error."""

import contextlib
import io
import mmap
import os
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa

from penstock.cache import Cache
from penstock.errors import PenstockError, SourceError
from penstock.files import RangeFile
from penstock.sources.bad import BadRows
from penstock.sources.nulls import check_nulls
from penstock.sources.parts import FilesSource, Part
from penstock.types import RemovedNulls

SLICE_BYTES = 4 << 20  # decoded at once, about
SLICE_ROWS = 8192  # and never more rows than this
COLUMNAR_OPTIONS = ("columns", "json_columns", "nulls", "cache_bytes")
CACHE_BYTES = 64 << 20  # decoded batches kept per source

Key = tuple[Hashable, ...]  # begins with the file's path

# Everything that pyarrow is known to raise at damaged files.
_DAMAGE = (OSError, ValueError, ArithmeticError, MemoryError, LookupError, TypeError, NotImplementedError)


@contextlib.contextmanager
def reading(path: str, what: str) -> Iterator[None]:
    """Whatever goes wrong inside becomes one line that names the file."""
    try:
        yield
    except PenstockError:
        raise
    except (*_DAMAGE, pa.ArrowException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(f"{path}: cannot be read as {what}: {reason}; is it cut off or damaged? make it again") from (
            error
        )


def slice_rows(num_rows: int, num_bytes: int) -> int:
    """How many rows to decode at once."""
    return max(1, min(SLICE_ROWS, num_rows * SLICE_BYTES // max(num_bytes, 1)))


class ByteCache:
    """The newest values, as many as fit into `budget` bytes, but always the last one.  Threads share it, forks and pickles do not."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self.num_bytes = 0

    def _mine(self) -> None:
        if self._owner != os.getpid():  # the lock may have been held by a thread that was not forked
            self._begin()

    def get(self, key: Key) -> Any:
        self._mine()
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def pop(self, key: Key) -> Any:
        """Take a value out: it is now the caller's alone."""
        self._mine()
        with self._lock:
            value, num_bytes = self._kept.pop(key, (None, 0))
            self.num_bytes -= num_bytes
            return value

    def put(self, key: Key, value: Any, num_bytes: int) -> None:
        self._mine()
        with self._lock:
            self.num_bytes += num_bytes - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = value, num_bytes
            while self.num_bytes > self.budget and len(self._kept) > 1:
                self.num_bytes -= self._kept.popitem(last=False)[1][1]

    def drop(self, path: str) -> None:
        """Forget what came from a file."""
        self._mine()
        with self._lock:
            for key in [key for key in self._kept if key[0] == path]:
                self.num_bytes -= self._kept.pop(key)[1]

    def __reduce__(self) -> tuple[type["ByteCache"], tuple[int]]:
        return ByteCache, (self.budget,)


class MappedFile(RangeFile):
    """A file that can also be looked at in place."""

    def map(self) -> Any:
        """All of it as an Arrow buffer.  Check the file before each look: pages behind a new end are no memory."""
        if not self.identity.size:
            return pa.py_buffer(b"")
        return pa.py_buffer(mmap.mmap(self._fd, self.identity.size, access=mmap.ACCESS_READ))


class Cursor(io.RawIOBase):
    """A file as pyarrow wants it, on top of reads that share no position: each reader has a cursor of its own."""

    def __init__(self, file: RangeFile) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def read(self, size: int | None = -1, /) -> bytes:
        end = self._file.identity.size
        stop = end if size is None or size < 0 else min(self._at + size, end)
        data = self._file.read(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.identity.size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class ColumnarPart(Part):
    """One file of columns."""

    @abstractmethod
    def removed_nulls(self, row: int) -> RemovedNulls:
        """How many null members reading a row removes."""


class ColumnarSource(FilesSource):
    """Files of columns.

    columns: read only these; they keep the file's order.  json_columns: their text is JSON and becomes values.
    nulls: "deep" removes the null members that Arrow's schema added to tools, calls and messages (nulls.py), "keep" keeps them.
    cache_bytes: how much to keep decoded for random access.
    """

    parse_json = False  # whether cells of Arrow's JSON type become values without being asked for
    _schema: Any = None  # of the first file, the chosen columns
    _schema_path = ""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        cache: Cache,
        name: str | None = None,
        bad: BadRows | None = None,
        columns: Sequence[str] | None = None,
        json_columns: Sequence[str] = (),
        nulls: str = "deep",
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.columns = _names("columns", columns) if columns is not None else None
        self.json_columns = frozenset(_names("json_columns", json_columns)) if json_columns else frozenset()
        self.nulls = check_nulls(nulls)
        self.decoded = ByteCache(cache_bytes)
        super().__init__(paths, cache=cache, name=name, bad=bad)

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        homes = (self._home(self._row(row)) for row in rows)
        parts = ((cast(ColumnarPart, self._part(index)), local) for index, local in homes)
        return sum((part.removed_nulls(local) for part, local in parts), start=RemovedNulls())

    def choose(self, schema: Any, path: str) -> list[str]:
        """The columns to read from a file of this schema, checked against the options and the files before it."""
        with reading(path, self.shape):
            _unique(schema, path, "")  # takes all names in hand, and they may be no text
        for option, names in (("columns", self.columns or ()), ("json_columns", sorted(self.json_columns))):
            for name in names:
                if name not in schema.names:
                    raise SourceError(
                        f"{path}: {option} names {name!r}, expected one of {', '.join(schema.names) or 'none at all'}"
                    )
        chosen = [name for name in schema.names if self.columns is None or name in self.columns]
        for name in sorted(self.json_columns):
            if name not in chosen:
                raise SourceError(f"json_columns names {name!r}, which columns leaves out; name it in both")
            if not _is_text(kind := schema.field(name).type):
                raise SourceError(f"{path}: column {name!r} is {kind}, expected text that holds JSON")
        for name in chosen:
            if (kind := _unreadable(schema.field(name).type)) is not None:
                raise SourceError(
                    f"{path}: column {name!r} holds the Arrow type {kind}, which pyarrow cannot give to Python; "
                    f"write the column as another type, or choose the others with columns="
                )
        found = pa.schema([(name, _same_values(schema.field(name).type)) for name in chosen])
        if self._schema is None:
            self._schema, self._schema_path = found, path
        else:
            _expect_equal(self._schema, self._schema_path, found, path)
        return chosen


def _names(option: str, given: Sequence[str]) -> list[str]:
    if isinstance(given, str) or not given or not all(isinstance(name, str) for name in given):
        raise SourceError(f"{option} is {given!r}, expected a list of column names")
    return list(given)


def _unique(fields: Any, path: str, inside: str) -> None:
    """A record is a dict: of two columns with one name it could hold but one."""
    seen = set()
    for field in fields:
        if field.name in seen:
            raise SourceError(f"{path}: column {inside + field.name!r} is there twice; rename one of the two")
        seen.add(field.name)
        _unique_inside(field.type, path, f"{inside}{field.name}.")


def _unique_inside(kind: Any, path: str, inside: str) -> None:
    if isinstance(kind, pa.BaseExtensionType):
        _unique_inside(kind.storage_type, path, inside)
    elif pa.types.is_struct(kind):
        _unique(kind, path, inside)
    elif pa.types.is_map(kind):
        _unique_inside(kind.item_type, path, inside)
    elif hasattr(kind, "value_type"):
        _unique_inside(kind.value_type, path, inside)


def _unreadable(kind: Any) -> Any:
    """The type, or the one inside it, of whose values pyarrow has no Python form (such as intervals of months); else None."""
    if isinstance(kind, pa.BaseExtensionType):
        return _unreadable(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _unreadable(kind.value_type)
    for number in range(kind.num_fields):
        if (found := _unreadable(kind.field(number).type)) is not None:
            return found
    try:
        pa.nulls(0, kind)
    except KeyError:  # pyarrow has no class for arrays of it
        return kind
    except pa.ArrowException:  # there may be no empty array of it, but there is a class
        return None
    return None


def _is_text(kind: Any) -> bool:
    kind = _same_values(kind)
    return isinstance(kind, pa.JsonType) or bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _expect_equal(first: Any, first_path: str, second: Any, second_path: str) -> None:
    """The same columns of the same types in the same order, else the rows would change shape half-way."""
    for path, other_path, schema, other in (
        (first_path, second_path, first, second),
        (second_path, first_path, second, first),
    ):
        for name in schema.names:
            if name not in other.names:
                raise SourceError(
                    f"column {name!r} is {schema.field(name).type} in {path} and missing in {other_path}; "
                    f"open files of one schema, or choose what they share with columns="
                )
    for field in first:
        other = second.field(field.name)
        if field.type != other.type:
            raise SourceError(
                f"column {field.name!r} is {field.type} in {first_path} and {other.type} in {second_path}; "
                f"open files of one schema, or choose other columns with columns="
            )
    if first.names != second.names:
        raise SourceError(
            f"columns stand in another order: {', '.join(first.names)} in {first_path}, {', '.join(second.names)} "
            f"in {second_path}; rewrite one of them, as the order of keys is part of a record"
        )


def _same_values(kind: Any) -> Any:
    """One type for all that differ only in how they lie in memory."""
    types = pa.types
    if isinstance(kind, pa.ExtensionType):  # registered by somebody's Python: to others it is what it is stored as
        return _same_values(kind.storage_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_dictionary(kind):
        return _same_values(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("item", _same_values(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _same_values(field.type)) for field in kind])
    return kind
