"""Which Python values does a batch of Arrow columns hold?  The same on every machine, also where pandas or datasets is installed.

Nearly always pyarrow's own conversion, about 4 µs for a record of a text, two messages and fifty ids.
"""

import json
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sources.bad import NO_MEMORY
from penstock.sources.nulls import Pruner
from penstock.sources.parse import has_long_digits, short_of_memory
from penstock.types import BadRow, Record, RemovedNulls

# What a value that Python cannot hold raises: invalid UTF-8, year 12000, half a microsecond, broken JSON.
_UNREADABLE = (ValueError, ArithmeticError, NotImplementedError, RecursionError, pa.ArrowException)

Values = list[Any]


class ToRecords:
    """How batches of one schema become records, in the order of its columns.

    json_columns hold JSON text that becomes values; with parse_json so does every cell of Arrow's JSON type.
    nulls: "deep" removes the null members that Arrow added (see nulls.py), "keep" keeps them.
    """

    def __init__(
        self, schema: Any, *, json_columns: Collection[str] = (), parse_json: bool = False, nulls: str = "keep"
    ) -> None:
        self._json_columns = json_columns
        self._parse_json = parse_json
        self._prune = Pruner((field for field in schema if field.name not in json_columns), nulls)
        # pyarrow's own conversion is the fastest; only some types need more care than it takes
        self._plain = not json_columns and not any(_needs_care(field.type, parse_json) for field in schema)

    def __call__(self, batch: Any) -> list[Record | BadRow]:
        records = self._as_stored(batch)
        if self._prune:
            for record in records:
                if type(record) is dict:
                    self._prune(record)
        return records

    def removed_nulls(self, batch: Any) -> RemovedNulls:
        """How many null members reading a batch removes."""
        records = self._as_stored(batch) if self._prune else []
        counts = (self._prune.count(record) for record in records if type(record) is dict)
        return sum(counts, start=RemovedNulls())

    def _as_stored(self, batch: Any) -> list[Record | BadRow]:
        try:
            return batch.to_pylist() if self._plain else self._records(batch)
        except _UNREADABLE:
            return [self._row(batch.slice(row, 1)) for row in range(batch.num_rows)]  # only some of them are bad

    def _records(self, batch: Any) -> list[Any]:
        names = batch.schema.names
        columns = []
        for name, array in zip(names, batch.columns, strict=True):
            cells = _values(array, self._parse_json)
            if name in self._json_columns and not (self._parse_json and isinstance(array.type, pa.JsonType)):
                cells = [json_value(cell) for cell in cells]
            columns.append(cells)
        return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]

    def _row(self, batch: Any) -> Record | BadRow:
        """A batch of one row, that may be the one which cannot be read."""
        record: Record = {}
        for number, name in enumerate(batch.schema.names):
            try:
                record |= self._records(batch.select([number]))[0]
            except orjson.JSONDecodeError as error:
                message = f"column {name!r} is not JSON: {error.msg} at character {error.pos}"
                return short_of_memory(error) or BadRow(reason="bad_json", message=message)
            except MemoryError as error:  # also Arrow's own, which is an ArrowException, too
                return BadRow(reason=NO_MEMORY, message=f"column {name!r}: there is not enough memory for it: {error}")
            except _UNREADABLE as error:
                reason = " ".join(str(error).split())
                return BadRow(reason="bad_value", message=f"column {name!r} cannot be read: {reason}")
        return record


def json_value(text: str | bytes | None) -> Any:
    """What JSON text says, long integers included; None is a cell without text."""
    if text is None:
        return None
    raw = text.encode() if isinstance(text, str) else text
    value = orjson.loads(raw)
    return json.loads(raw) if has_long_digits(raw) else value  # orjson has checked what json is lax about


def _values(array: Any, parse_json: bool) -> Values:
    """An Arrow array as a list of Python values."""
    kind = array.type
    if not _needs_care(kind, parse_json):
        return array.to_pylist()  # type: ignore[no-any-return]
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in _values(chunk, parse_json)]
    if isinstance(kind, pa.BaseExtensionType):
        if isinstance(kind, pa.JsonType):
            return [json_value(cell) for cell in array.storage.to_pylist()]
        return _values(array.storage, parse_json)
    for applies, convert in _NESTED:
        if applies(kind):
            return convert(array, parse_json)
    return array.cast(_microseconds(kind)).to_pylist()  # type: ignore[no-any-return]  # refuses to lose anything


def _needs_care(kind: Any, parse_json: bool) -> bool:
    """Whether pyarrow's values would depend on what else is installed or imported, or JSON is to be parsed."""
    if isinstance(kind, pa.BaseExtensionType):
        # What a registered Python class makes of its values depends on who imported it; pyarrow's own types do not.
        return isinstance(kind, pa.ExtensionType) or (parse_json and isinstance(kind, pa.JsonType))
    if pa.types.is_struct(kind):
        return any(_needs_care(field.type, parse_json) for field in kind)
    if pa.types.is_map(kind):
        return _needs_care(kind.key_type, parse_json) or _needs_care(kind.item_type, parse_json)
    if hasattr(kind, "value_type"):  # lists, dictionaries
        return _needs_care(kind.value_type, parse_json)
    return _microseconds(kind) is not None  # pandas' types, where pandas is installed


def _structs(array: Any, parse_json: bool) -> Values:
    names = [field.name for field in array.type]
    children = [_values(array.field(number), parse_json) for number in range(len(names))]
    return _with_nulls(array, [dict(zip(names, cells, strict=True)) for cells in zip(*children, strict=True)])


def _lists(array: Any, parse_json: bool) -> Values:
    offsets = array.offsets.to_pylist()
    begin, end = offsets[0], offsets[-1]
    inner = _values(array.values.slice(begin, end - begin), parse_json)
    return _with_nulls(array, [inner[start - begin : stop - begin] for start, stop in pairwise(offsets)])


def _fixed_lists(array: Any, parse_json: bool) -> Values:
    size = array.type.list_size
    inner = _values(array.flatten(), parse_json)  # null lists leave nothing here
    starts = iter(range(0, len(inner) + 1, size)) if size else iter([0] * len(array))
    return [inner[(at := next(starts)) : at + size] if valid else None for valid in array.is_valid().to_pylist()]


def _maps(array: Any, parse_json: bool) -> Values:
    """A list of (key, value) each: a map may hold a key twice."""
    offsets = array.offsets.to_pylist()
    begin, end = offsets[0], offsets[-1]
    keys, items = (_values(half.slice(begin, end - begin), parse_json) for half in (array.keys, array.items))
    pairs = list(zip(keys, items, strict=True))
    return _with_nulls(array, [pairs[start - begin : stop - begin] for start, stop in pairwise(offsets)])


def _list_views(array: Any, parse_json: bool) -> Values:
    """Views may lie in any order and overlap, so each is taken by itself."""
    return [None if not cell.is_valid else _values(cell.values, parse_json) for cell in array]


def _runs(array: Any, parse_json: bool) -> Values:
    return _values(pc.run_end_decode(array), parse_json)


def _dictionaries(array: Any, parse_json: bool) -> Values:
    return _values(array.dictionary_decode(), parse_json)


_NESTED: tuple[tuple[Callable[[Any], bool], Callable[[Any, bool], Values]], ...] = (
    (pa.types.is_struct, _structs),
    (lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind), _lists),
    (pa.types.is_fixed_size_list, _fixed_lists),
    (pa.types.is_map, _maps),
    (pa.types.is_dictionary, _dictionaries),
    (lambda kind: pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind), _list_views),
    (pa.types.is_run_end_encoded, _runs),
)


def _with_nulls(array: Any, values: Values) -> Values:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def _microseconds(kind: Any) -> Any:
    """For types of nanoseconds, which Python's own types cannot hold, the nearest that they can."""
    if getattr(kind, "unit", None) != "ns":
        return None
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    return pa.time64("us") if pa.types.is_time(kind) else None
