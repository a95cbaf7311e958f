"""What columnar formats share: the choice of columns, equal schemas, a cache of decoded batches, one kind of error."""

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.cache import Cache
from penstock.errors import PenstockError, SourceError
from penstock.places.place import FileId
from penstock.settings import setting
from penstock.sources.bad import ProcessLock
from penstock.sources.rows import FileReader, FileRecords
from penstock.sources.values import ToRecords, check_nulls, parts, same_values

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
    """Return how many records to decode at once."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnarOptions:
    """Options of files of columns."""

    columns: Sequence[str] | None = setting(
        "of Parquet and Arrow: the columns to read; they keep the file's order", None
    )
    json_columns: Sequence[str] = setting(
        "of Parquet and Arrow: columns that hold JSON as text, which becomes values", ()
    )
    nulls: str = setting(
        "of Parquet, Arrow and datasets: deep removes the nulls that the schema added, keep leaves them",
        "deep",
    )
    cache_bytes: int = setting(
        "of Parquet and Arrow: decoded bytes that are kept in memory", 64 << 20
    )

    def __post_init__(self) -> None:
        for name, value in (("columns", self.columns), ("json_columns", self.json_columns)):
            if value is None or value == ():
                continue
            is_list = value and not isinstance(value, str)
            if not is_list or not all(isinstance(column, str) for column in value):
                raise SourceError(f"{name} is {value!r}, expected a list of column names")
        check_nulls(self.nulls)


class FileColumns:
    """The chosen columns of one file, and how their batches become records."""

    def __init__(self, names: list[str], schema: pa.Schema, to_records: ToRecords) -> None:
        self.names = names
        self.schema = schema
        self.to_records = to_records


class Columns:
    """What the files of a source share: the options, a cache of decoded batches, and the columns of the first file."""

    def __init__(self, format: str, options: ColumnarOptions, *, parse_json: bool = False) -> None:
        """parse_json: cells of Arrow's JSON type become values."""
        self.format = format
        self.options = options
        self.decoded = ByteCache(options.cache_bytes)
        self.first_schema: pa.Schema | None = None  # of the chosen columns
        self._first_path = ""
        self._parse_json = parse_json

    def of_file(self, schema: pa.Schema, path: str) -> FileColumns:
        """Return the columns to read from a file of this schema, checked against the options and the files before it."""
        with reading(path, self.format):  # names may not be text, and types may be nested too deep
            names = self._choose(schema, path)
            chosen = pa.schema([schema.field(name) for name in names])
            to_records = ToRecords(
                chosen,
                json_columns=self.options.json_columns,
                parse_json=self._parse_json,
                nulls=self.options.nulls,
            )
        return FileColumns(names, chosen, to_records)

    def _choose(self, schema: pa.Schema, path: str) -> list[str]:
        expect_unique(schema, path)
        # `schema.names` makes a new list each time, and a hostile file has thousands of columns
        in_file = dict.fromkeys(schema.names)
        for option, names in (
            ("columns", self.options.columns or ()),
            ("json_columns", self.options.json_columns),
        ):
            for name in names:
                if name not in in_file:
                    known = ", ".join(in_file) or "no columns"
                    raise SourceError(f"{path}: {option} names {name!r}, expected one of {known}")
        wanted = in_file if self.options.columns is None else frozenset(self.options.columns)
        chosen = [name for name in in_file if name in wanted]
        for name in self.options.json_columns:
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
        chosen_schema = pa.schema([(name, same_values(schema.field(name).type)) for name in chosen])
        if self.first_schema is None:
            self.first_schema = chosen_schema
            self._first_path = path
        else:
            _expect_equal(self.first_schema, self._first_path, chosen_schema, path)
        return chosen


class ColumnarReader(FileReader):
    """Opens files of columns."""

    def __init__(
        self,
        columns: Columns,
        cache: Cache,
        open_rows: Callable[[FileId, Columns, Cache], FileRecords],
        *,
        is_weighed_by_file: bool,
    ) -> None:
        """is_weighed_by_file: records take about as many bytes as the file."""
        self.format = columns.format
        self.options = columns.options
        self.columns = columns
        self._cache = cache
        self._open_rows = open_rows
        self._is_weighed_by_file = is_weighed_by_file

    def open_rows(self, file: FileId) -> FileRecords:
        return self._open_rows(file, self.columns, self._cache)

    def weight(self, file: FileId) -> int | None:
        return file.size if self._is_weighed_by_file else None

    def number_columns(self, files: Sequence[FileId]) -> dict[str, str]:
        if self.columns.first_schema is None:
            self.open_rows(files[0])  # the first file that is opened decides about the schema
        return number_types(self.columns.first_schema)


def number_types(schema: pa.Schema) -> dict[str, str]:
    """Return the columns of an Arrow schema that hold lists of numbers, at any depth, with the numbers' type in numpy."""
    types: dict[str, str] = {}
    for column in schema:
        kind = column.type
        depth = 0
        while _is_list(kind):
            kind = kind.value_type
            depth += 1
        if depth and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            types[column.name] = str(kind.to_pandas_dtype().__name__)
    return types


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def expect_unique(schema: pa.Schema, path: str) -> None:
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


def _has_no_class(kind: pa.DataType) -> bool:
    """Return whether pyarrow cannot convert values of a type to Python, such as intervals of months."""
    with contextlib.suppress(
        pa.ArrowException
    ):  # there may be no empty array of it, but there is a class
        try:
            pa.nulls(0, kind)
        except KeyError:
            return True
    return False


def _expect_equal(first: pa.Schema, first_path: str, second: pa.Schema, second_path: str) -> None:
    """Expect the same columns of the same types in the same order: records of one source have one form."""
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
