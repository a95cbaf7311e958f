"""Arrow columns as Python values, the same on every machine, also if pandas or datasets is installed.

An Arrow struct has every member that any record has, so `{"city": "Rome"}` comes back as `{"city": "Rome", "date": null}` if another has a
date.  The file does not tell an added null from a written one.  Inside tools, calls and messages an added one is the rule, so
`nulls="deep"`, the default, removes both there; docs/concepts/sources.md says exactly where.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SourceError
from penstock.sources.bad import NO_MEMORY
from penstock.sources.parse import has_long_digits, short_of_memory
from penstock.types import BadRow, Record, RemovedNulls

_TOOL_NAMES = frozenset(
    [
        "tools",
        "functions",
        "tool_calls",
        "function_call",
        "function_calls",
        "arguments",
        "parameters",
        "input_schema",
    ]
)
_SPEAKERS = frozenset({"role", "from"})
_SPOKEN = frozenset({"content", "value", "tool_calls", "function_call"})
_KEPT = frozenset(
    {"role", "from", "content", "value"}
)  # `"content": null` next to calls is how OpenAI writes it

Convert = Callable[[Any], Any]  # a value that is not None → its final form


class ToRecords:
    """Converts batches of one schema to records, in the order of its columns.

    json_columns hold JSON text that becomes values; with parse_json so does every cell of Arrow's JSON type.
    """

    def __init__(
        self,
        schema: Any,
        *,
        json_columns: Collection[str] = (),
        parse_json: bool = False,
        nulls: str = "keep",
    ) -> None:
        self._schema = schema
        self._options: dict[str, Any] = {
            "json_columns": json_columns,
            "parse_json": parse_json,
            "nulls": nulls,
        }
        found = {
            field.name: _convert(field.type, field.name, parse_json, nulls == "deep")
            for field in schema
        }
        found |= dict.fromkeys(json_columns, _json_value)
        self._converts = {name: convert for name, convert in found.items() if convert is not None}
        # Pandas' types, if pandas is installed, and values of classes that another package has registered.
        self._casts = {
            field.name: same_values(field.type, micro=True)
            for field in schema
            if any(
                _is_nano(kind) or isinstance(kind, pa.ExtensionType) for kind in parts(field.type)
            )
        }

    def __call__(self, batch: Any) -> list[Record | BadRow]:
        try:
            return self._records(batch)
        except Exception:  # of any type; the rows are read one by one to find the bad ones
            return [
                self._row(batch.slice(row, 1)) for row in range(batch.num_rows)
            ]  # only some of them are bad

    def convert(self, record: Record) -> Record:
        """Convert the cells of one record, in place."""
        for name, convert in self._converts.items():
            if record.get(name) is not None:
                record[name] = convert(record[name])
        return record

    def removed_nulls(self, batch: Any) -> RemovedNulls:
        """Count the null members that reading a batch removes."""
        if self._options["nulls"] == "keep" or not self._converts:
            return RemovedNulls()
        keep = ToRecords(self._schema, **{**self._options, "nulls": "keep"})
        total = RemovedNulls()
        for kept, read in zip(keep(batch), self(batch), strict=True):
            if isinstance(kept, dict) and isinstance(read, dict):
                counts = Counter(
                    {
                        name: _num_members(kept[name]) - _num_members(read[name])
                        for name in self._converts
                    }
                )
                total += RemovedNulls(+counts, int(any(counts.values())))
        return total

    def _records(self, batch: Any) -> list[Any]:
        if self._casts:
            for number, name in enumerate(batch.schema.names):
                if name in self._casts:
                    batch = batch.set_column(
                        number, name, _as_list(batch.column(number)).cast(self._casts[name])
                    )
        records: list[Any] = batch.to_pylist()
        if self._converts:
            for record in records:
                self.convert(record)
        return records

    def _row(self, batch: Any) -> Record | BadRow:
        """Convert a batch of one record, which may be the one that cannot be read."""
        record: Record = {}
        for number, name in enumerate(batch.schema.names):
            try:
                column = batch.select([number])
                with contextlib.suppress(
                    pa.ArrowNotImplementedError
                ):  # not of runs and string views
                    column = column.take([0])  # a cast of lists includes the values next to a slice
                record |= self._records(column)[0]
            except orjson.JSONDecodeError as error:
                message = f"column {name!r} is not JSON: {error.msg} at character {error.pos}"
                return short_of_memory(error) or BadRow(reason="bad_json", message=message)
            except MemoryError as error:  # also Arrow's own, which is an ArrowException, too
                return BadRow(
                    reason=NO_MEMORY,
                    message=f"column {name!r}: there is not enough memory for it: {error}",
                )
            except Exception as error:
                # a value that Python cannot hold: invalid UTF-8, year 12000, half a microsecond; or a damaged one, which pyarrow
                # reports as an error of any type
                reason = " ".join(str(error).split())
                return BadRow(
                    reason="bad_value", message=f"column {name!r} cannot be read: {reason}"
                )
        return record

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return partial(ToRecords, **self._options), (self._schema,)


def check_nulls(nulls: Any) -> str:
    """Return the option's value, or raise an error that lists what it may be."""
    if nulls not in ("deep", "keep"):
        raise SourceError(f"nulls is {nulls!r}, expected one of deep, keep")
    return str(nulls)


def parts(kind: Any) -> Iterator[Any]:
    """Yield a type and all types inside it: of storage, members, items."""
    yield kind
    if isinstance(kind, pa.BaseExtensionType):
        yield from parts(kind.storage_type)
    elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        yield from parts(kind.value_type)
    else:
        for number in range(kind.num_fields):
            yield from parts(kind.field(number).type)


def same_values(kind: Any, *, micro: bool = False) -> Any:
    """Return one type for all that differ only in their memory layout.  micro: with microseconds for nanoseconds."""
    types = pa.types
    if isinstance(
        kind, pa.ExtensionType
    ):  # registered by some Python package: elsewhere it is its storage type
        return same_values(kind.storage_type, micro=micro)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return same_values(kind.value_type, micro=micro)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if (
        types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return pa.binary()
    if micro and _is_nano(kind):
        if types.is_timestamp(kind):
            return pa.timestamp("us", kind.tz)
        return pa.duration("us") if types.is_duration(kind) else pa.time64("us")
    if types.is_struct(kind):
        return pa.struct(
            [pa.field(field.name, same_values(field.type, micro=micro)) for field in kind]
        )
    if types.is_map(kind):
        return pa.map_(
            same_values(kind.key_type, micro=micro), same_values(kind.item_type, micro=micro)
        )
    if hasattr(kind, "value_type") and not isinstance(kind, pa.BaseExtensionType):
        return pa.list_(pa.field("item", same_values(kind.value_type, micro=micro)))
    return kind


def _as_list(column: Any) -> Any:
    """Return a column of runs or of list views in a layout that can be cast; pyarrow casts list views to wrong lists."""
    is_view = [
        pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
        for kind in parts(column.type)
    ]
    if any(is_view[1:]):
        raise NotImplementedError(f"values of type {column.type}")
    if is_view[0]:
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return pa.LargeListArray.from_arrays(offsets, column.flatten(), mask=column.is_null())
    return pc.run_end_decode(column) if pa.types.is_run_end_encoded(column.type) else column


def _is_nano(kind: Any) -> bool:
    """Whether values are times in nanoseconds, which Python's own types cannot hold and pandas' types can."""
    is_time = pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind)
    return bool(is_time and kind.unit == "ns")


def _json_value(text: Any) -> Any:
    """Return the value of JSON text, long integers included."""
    raw = text.encode() if isinstance(text, str) else text
    value = orjson.loads(raw)
    return (
        json.loads(raw) if has_long_digits(raw) else value
    )  # orjson has checked what json does not


def _num_members(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_num_members, value.values()))
    return sum(map(_num_members, value)) if isinstance(value, list | tuple) else 0


def _convert(
    kind: Any, name: str, parse_json: bool, deep: bool, inside: bool = False
) -> Convert | None:
    """Return how to convert values of a type: parse JSON, remove nulls; None if there is nothing to do.

    inside: every null member is removed.
    """
    inside = inside or (deep and name in _TOOL_NAMES)

    def below(kind: Any, name: str = "", inside: bool = inside) -> Convert | None:
        return _convert(kind, name, parse_json, deep, inside)

    if isinstance(kind, pa.JsonType):
        return _json_value if parse_json else None
    if isinstance(kind, pa.BaseExtensionType):
        return below(kind.storage_type)
    if pa.types.is_struct(kind):
        names = {member.name for member in kind}
        is_message = deep and not inside and bool(names & _SPEAKERS and names & _SPOKEN)
        is_tool = (
            deep
            and not inside
            and (bool("name" in names and names & _TOOL_NAMES) or {"type", "function"} <= names)
        )
        prunes = inside or is_message or is_tool
        members = {member.name: below(member.type, member.name, prunes) for member in kind}
        removable = names - _KEPT if is_message else names if prunes else frozenset()
        found = [(member, convert) for member, convert in members.items() if convert is not None]
        return partial(_convert_struct, removable, found) if removable or found else None
    if pa.types.is_map(kind):  # to Python a list of (key, item)
        item = below(kind.item_type)
        return (
            None
            if item is None
            else lambda pairs: [(k, None if v is None else item(v)) for k, v in pairs]
        )
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return below(kind.value_type)
    if hasattr(kind, "value_type"):  # lists of all kinds
        element = below(kind.value_type)
        return (
            None
            if element is None
            else lambda values: [None if v is None else element(v) for v in values]
        )
    return None


def _convert_struct(
    removable: Collection[str], members: list[tuple[str, Convert]], value: Record
) -> Record:
    for name in [name for name, member in value.items() if member is None and name in removable]:
        del value[name]
    for name, convert in members:
        if value.get(name) is not None:
            value[name] = convert(value[name])
    return value
