"""Remove the null members that Arrow's schema adds to tools, tool calls and messages.

An Arrow struct has every member that any row has, so `{"city": "Rome"}` comes back as `{"city": "Rome", "date": null}` if another
row has a date.  Nothing in the file tells an added null from a written one.  Inside tools, calls and arguments a written null is
rare and an added one is the rule, so `nulls="deep"`, the default of all columnar sources, removes both; `nulls="keep"` removes none.

| where | what is removed |
|---|---|
| below a column or member named in `_TOOL_NAMES`, and below anything that looks like a tool or a call | every null member, at any depth |
| a message (it has a role, and content or calls) | null members but its role and content; every null member below it |
| elements of lists, entries of maps, JSON text, all other structs, the columns themselves | nothing |

Which columns need this is decided once, from the schema: a file without such structs pays nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from penstock.errors import SourceError
from penstock.types import RemovedNulls

NULLS = ("deep", "keep")

# Removes null members of a value in place and returns how many there were.
Prune = Callable[[Any], int]

_TOOL_NAMES = frozenset(
    {"tools", "functions", "tool_calls", "function_call", "function_calls", "arguments", "parameters", "input_schema"}
)
_SPEAKERS = frozenset({"role", "from"})
_SPOKEN = frozenset({"content", "value", "tool_calls", "function_call"})
_KEPT = frozenset({"role", "from", "content", "value"})  # `"content": null` beside calls is how OpenAI writes it


def check_nulls(nulls: Any) -> str:
    """The option's value, or an error that lists what it may be."""
    if nulls not in NULLS:
        raise SourceError(f"nulls is {nulls!r}, expected one of {', '.join(NULLS)}")
    return str(nulls)


class Pruner:
    """What to remove from the records of one schema."""

    def __init__(self, schema: Iterable[Any], nulls: str) -> None:
        self._given = list(schema), nulls
        found = {column.name: _of_field(column, inside=False) for column in self._given[0]} if nulls == "deep" else {}
        self._columns = [(name, prune) for name, prune in found.items() if prune is not None]

    def __bool__(self) -> bool:
        """Whether any column can hold something to remove."""
        return bool(self._columns)

    def __call__(self, record: dict[str, Any]) -> None:
        """Remove from a record, in place."""
        for name, prune in self._columns:
            if (value := record.get(name)) is not None:
                prune(value)

    def count(self, record: dict[str, Any]) -> RemovedNulls:
        """Remove from a record, in place, and say how many members of which columns went."""
        counts = Counter({name: prune(record[name]) for name, prune in self._columns if record.get(name) is not None})
        return RemovedNulls(+counts, int(any(counts.values())))

    def __reduce__(self) -> tuple[type["Pruner"], tuple[list[Any], str]]:
        return Pruner, self._given


def _of_field(column: Any, *, inside: bool) -> Prune | None:
    return _of_type(column.type, inside=inside or column.name in _TOOL_NAMES)


def _of_type(kind: Any, *, inside: bool) -> Prune | None:
    """How to prune values of a type; None where there is nothing to prune.  `inside`: every null member goes."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return None if isinstance(kind, pa.JsonType) else _of_type(kind.storage_type, inside=inside)
    if types.is_struct(kind):
        return _of_struct(kind, inside=inside)
    if types.is_map(kind):  # to Python a list of (key, item)
        item = _of_type(kind.item_type, inside=inside)
        return None if item is None else lambda pairs: sum(item(each) for _, each in pairs if each is not None)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _of_type(kind.value_type, inside=inside)
    if hasattr(kind, "value_type"):  # lists of all kinds
        element = _of_type(kind.value_type, inside=inside)
        return None if element is None else lambda values: sum(element(each) for each in values if each is not None)
    return None


def _of_struct(kind: Any, *, inside: bool) -> Prune | None:
    names = {member.name for member in kind}
    is_message = not inside and bool(names & _SPEAKERS and names & _SPOKEN)
    is_tool = not inside and (("name" in names and bool(names & _TOOL_NAMES)) or {"type", "function"} <= names)
    prunes = inside or is_message or is_tool
    found = {member.name: _of_field(member, inside=prunes) for member in kind}
    below = [(name, prune) for name, prune in found.items() if prune is not None]
    if not prunes and not below:
        return None
    removable = names - (_KEPT if is_message else frozenset()) if prunes else frozenset()

    def prune(value: dict[str, Any]) -> int:
        gone = [name for name, member in value.items() if member is None and name in removable]
        for name in gone:
            del value[name]
        count = len(gone)
        for name, inner in below:
            if (member := value.get(name)) is not None:
                count += inner(member)
        return count

    return prune
