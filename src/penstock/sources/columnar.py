"""What columnar formats share: the choice of columns, equal schemas, a cache of decoded batches, one kind of error."""

import contextlib
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa

from penstock.errors import PenstockError, SourceError
from penstock.sources.bad import ProcessLock
from penstock.sources.file_source import FilesSource, Part
from penstock.sources.values import ToRecords, check_nulls, parts, same_values
from penstock.types import BadRow, Record, RemovedNulls

SLICE_BYTES = 4 << 20  # decoded at once, about
SLICE_ROWS = 8192  # and never more rows than this


@contextlib.contextmanager
def reading(path: str, what: str) -> Iterator[None]:
    """Turn every error inside into one line that names the file."""
    try:
        yield
    except PenstockError:
        raise
    except (
        Exception
    ) as error:  # of any type: struct.error, ArrowException, KeyError … for a damaged file
        reason = f"{' '.join(str(error).split()) or type(error).__name__}; is it cut off or damaged? make it again"
        raise SourceError(f"{path}: cannot be read as {what}: {reason}") from error


def slice_rows(num_rows: int, num_bytes: int) -> int:
    """Return how many rows to decode at once."""
    return max(1, min(SLICE_ROWS, num_rows * SLICE_BYTES // max(num_bytes, 1)))


class ByteCache:
    """The newest values, as many as fit into `budget` bytes, but always the last one.  Threads share it, forks and pickles do not."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.num_bytes = 0
        # keys begin with the file's path
        self._kept: OrderedDict[tuple[Hashable, ...], tuple[Any, int]] = OrderedDict()
        self._lock = ProcessLock(on_fork=self._clear)

    def _clear(self) -> None:
        self._kept = OrderedDict()
        self.num_bytes = 0

    def get(self, key: tuple[Hashable, ...]) -> Any:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def pop(self, key: tuple[Hashable, ...]) -> Any:
        """Take a value out: it is now the caller's alone."""
        with self._lock:
            value, num_bytes = self._kept.pop(key, (None, 0))
            self.num_bytes -= num_bytes
            return value

    def put(self, key: tuple[Hashable, ...], value: Any, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = value, num_bytes
            while self.num_bytes > self.budget and len(self._kept) > 1:
                self.num_bytes -= self._kept.popitem(last=False)[1][1]

    def drop(self, path: str) -> None:
        """Forget what came from a file."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == path]:
                self.num_bytes -= self._kept.pop(key)[1]

    def __reduce__(self) -> tuple[type["ByteCache"], tuple[int]]:
        return ByteCache, (self.budget,)


class ColumnarPart(Part):
    """One file of columns."""

    def __init__(self, source: "ColumnarSource", schema: Any) -> None:
        self._decoded = source.decoded
        self._names = source.choose(schema, self.file.identity.path)
        with reading(self.file.identity.path, source.shape):
            self._chosen = pa.schema([schema.field(name) for name in self._names])
            self._to_records = ToRecords(
                self._chosen,
                json_columns=source.json_columns,
                parse_json=source.parse_json,
                nulls=source.nulls,
            )

    @abstractmethod
    def _one(self, row: int) -> Any:
        """Return a batch of one row."""

    def record(self, row: int) -> Record | BadRow:
        return self._to_records(self._one(row))[0]

    def removed_nulls(self, row: int) -> RemovedNulls:
        return self._to_records.removed_nulls(self._one(row))

    def release(self) -> None:
        self._decoded.drop(self.file.identity.path)  # batches and readers hold the file


class ColumnarSource(FilesSource):
    """Files of columns.

    columns: read only these; they keep the file's order.  json_columns: their text is JSON and becomes values.
    nulls: "deep" removes the null members that Arrow's schema added to tools, calls and messages (values.py), "keep" keeps them.
    cache_bytes: how much to keep decoded for random access.
    """

    OPTIONS: tuple[str, ...] = ("columns", "json_columns", "nulls", "cache_bytes")
    columns: Sequence[str] | None = None
    json_columns: Sequence[str] = ()
    nulls: str = "deep"
    cache_bytes: int = 64 << 20
    parse_json = False  # whether cells of Arrow's JSON type become values by default
    _schema: Any = None  # of the first file, the chosen columns
    _schema_path = ""

    def check_options(self) -> None:
        for option in ("columns", "json_columns"):
            given = getattr(self, option)
            is_list = (
                given
                and not isinstance(given, str)
                and all(isinstance(name, str) for name in given)
            )
            if not is_list and given not in (None, ()):
                raise SourceError(f"{option} is {given!r}, expected a list of column names")
        self.nulls = check_nulls(self.nulls)
        self.decoded = ByteCache(self.cache_bytes)

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        places = (self._locate(self._row(row)) for row in rows)
        counts = (
            cast(ColumnarPart, self._part(index)).removed_nulls(local) for index, local in places
        )
        return sum(counts, start=RemovedNulls())

    def number_columns(self) -> dict[str, str]:
        if not len(self):
            return {}
        self._part(0)  # the first file that is opened decides about the schema
        return number_types(self._schema)

    def choose(self, schema: Any, path: str) -> list[str]:
        """Return the columns to read from a file of this schema, checked against the options and the files before it."""
        # names may not be text, and types may be nested too deep, or be maps without a key
        with reading(path, self.shape):
            return self._choose(schema, path)

    def _choose(self, schema: Any, path: str) -> list[str]:
        expect_unique(schema, path)
        # `schema.names` makes a new list each time, and a hostile file has thousands of columns
        in_file = dict.fromkeys(schema.names)
        for option, names in (("columns", self.columns or ()), ("json_columns", self.json_columns)):
            for name in names:
                if name not in in_file:
                    known = ", ".join(in_file) or "no columns"
                    raise SourceError(f"{path}: {option} names {name!r}, expected one of {known}")
        wanted = in_file if self.columns is None else frozenset(self.columns)
        chosen = [name for name in in_file if name in wanted]
        for name in self.json_columns:
            if name not in chosen:
                raise SourceError(
                    f"json_columns names {name!r}, which columns leaves out; name it in both"
                )
            kind = same_values(schema.field(name).type)
            if not (
                isinstance(kind, pa.JsonType)
                or pa.types.is_string(kind)
                or pa.types.is_binary(kind)
            ):
                raise SourceError(
                    f"{path}: column {name!r} is {kind}, expected text that holds JSON"
                )
        for name in chosen:
            if (
                kind := next(filter(_has_no_class, parts(schema.field(name).type)), None)
            ) is not None:
                raise SourceError(
                    f"{path}: column {name!r} holds the Arrow type {kind}, which pyarrow cannot give to Python; "
                    f"write the column as another type, or choose the others with columns="
                )
        found = pa.schema([(name, same_values(schema.field(name).type)) for name in chosen])
        if self._schema is None:
            self._schema = found
            self._schema_path = path
        else:
            _expect_equal(self._schema, self._schema_path, found, path)
        return chosen


def number_types(schema: Any) -> dict[str, str]:
    """Return the columns of an Arrow schema that hold lists of numbers, at any depth, with the numbers' type in numpy."""
    found: dict[str, str] = {}
    for column in schema:
        kind = column.type
        depth = 0
        while _is_list(kind):
            kind = kind.value_type
            depth += 1
        if depth and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            found[column.name] = str(kind.to_pandas_dtype().__name__)
    return found


def _is_list(kind: Any) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def expect_unique(schema: Any, path: str) -> None:
    """A record is a dict: of two columns with one name it could hold only one."""
    groups = [("", [field.name for field in schema])]
    for field in schema:
        structs = filter(pa.types.is_struct, parts(field.type))
        groups += [(f"{field.name}.", [member.name for member in kind]) for kind in structs]
    for inside, names in groups:
        if len(set(names)) < len(names):
            name = next(name for name, times in Counter(names).items() if times > 1)
            raise SourceError(
                f"{path}: column {inside + name!r} is there twice; rename one of the two"
            )


def _has_no_class(kind: Any) -> bool:
    """Return whether pyarrow cannot convert values of a type to Python, such as intervals of months."""
    with contextlib.suppress(
        pa.ArrowException
    ):  # there may be no empty array of it, but there is a class
        try:
            pa.nulls(0, kind)
        except KeyError:
            return True
    return False


def _expect_equal(first: Any, first_path: str, second: Any, second_path: str) -> None:
    """Expect the same columns of the same types in the same order: rows of one source have one form."""
    first_types = {field.name: field.type for field in first}
    second_types = {field.name: field.type for field in second}
    for name in {**first_types, **second_types}:
        one = first_types.get(name, "missing")
        two = second_types.get(name, "missing")
        if one != two:
            raise SourceError(
                f"column {name!r} is {one} in {first_path} and {two} in {second_path}; "
                f"open files of one schema, or choose columns that they share with columns="
            )
    if first.names != second.names:
        raise SourceError(
            f"columns are in another order: {', '.join(first.names)} in {first_path}, {', '.join(second.names)} "
            f"in {second_path}; rewrite one of them, as the order of keys is part of a record"
        )
