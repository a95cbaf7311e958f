"""JSON schemas of what commands print with `--json`, made from the types of the values that they print.

A command declares its schema with `@answers(…)`.  `penstock schema COMMAND` prints it, and a test validates real output against it.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    import click

Schema = dict[str, Any]
CommandType = TypeVar("CommandType", bound="click.Command")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: dict[Any, Schema] = {
    Any: {},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
}
ERROR: Schema = {
    "description": "what is printed, with exit code 3, where the data, the settings or the cache are wrong",
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "message"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}


def answers(make: Callable[[], Schema]) -> Callable[[CommandType], CommandType]:
    """Declare the schema of what a command prints with `--json`.  It is made when it is asked for: the types need imports."""

    def declare(command: CommandType) -> CommandType:
        command.answers = make  # type: ignore[attr-defined]
        return command

    return declare


def schema_of(command: "click.Command", name: str) -> Schema:
    """Return the whole schema of a command's `--json`: its answer, or an error."""
    made: Schema = command.answers()  # type: ignore[attr-defined]
    return {
        "$schema": _DIALECT,
        "title": f"penstock {name} --json",
        "anyOf": [made, {"$ref": "#/$defs/error"}],
        "$defs": {"error": ERROR},
    }


def of(kind: Any) -> Schema:
    """Return the schema of a type: a dataclass or a NamedTuple with all its fields, a union, a list, a mapping, a plain value."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return either(*(of(each) for each in inner))
    if origin is tuple and inner[-1] is not ...:
        items = [of(each) for each in inner]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        value = int if len(inner) == 1 else inner[1]  # a Counter names its keys only
        return {"type": "object", "additionalProperties": of(value)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return listed(inner[0])
    assert is_dataclass(kind) or hasattr(kind, "_fields"), kind
    return record(kind)


def record(kind: Any = None, /, *, optional: Sequence[str] = (), **more: Any) -> Schema:
    """Return the schema of an object with the fields of a dataclass or a NamedTuple, and more keys, given by type or schema."""
    properties: dict[str, Schema] = {}
    said: Schema = {}
    if kind is not None:
        hints = get_type_hints(kind)
        names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind._fields
        properties = {name: of(hints[name]) for name in names if name not in more}
        said = {"description": str(kind.__doc__).partition("\n")[0]}
    for name, each in more.items():
        properties[name] = each if isinstance(each, dict) else of(each)
    return {
        **said,
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def listed(item: Any) -> Schema:
    """Return the schema of a list of values of a type or schema."""
    return {"type": "array", "items": item if isinstance(item, dict) else of(item)}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


# The commands of the core


def of_check() -> Schema:
    from penstock.report.checks import Checked

    return listed(record(Checked, part=str))


def of_prepare() -> Schema:
    from penstock.store.counts import Counts
    from penstock.store.status import Status

    named: dict[str, Any] = {"part": str, "data_set": str}
    store: dict[str, Any] = {
        "store": str,
        "name": str,
        "cache": str,
        "num_shards": int,
        "samples": int,
        "megatron": record(path=str, sequences=int, tokens=int, untrained=int, dropped=int),
    }
    of_recipe = listed(record(Counts, optional=["megatron"], **named, **store))
    of_data = record(Counts, optional=["megatron"], **store)
    return either(of_recipe, of_data, listed(record(Status, **named)))


def of_show() -> Schema:
    from penstock.report.trace import RecordTrace, RowTrace

    return either(record(RecordTrace, packed_row=RowTrace | None), listed(RowTrace))


def of_stats() -> Schema:
    from penstock.plan.counters import Counters
    from penstock.report.numbers import Lengths, PackingFit, SourceNumbers

    made = record(
        sources=listed(SourceNumbers),
        lengths=Lengths,
        max_length=int,
        packing=str,
        counters=Counters,
        fits=listed(PackingFit),
    )
    return {**made, "additionalProperties": {"description": "counts of a column, such as media"}}


def of_plan() -> Schema:
    from penstock.report.numbers import EpochNumbers
    from penstock.report.trace import StateFit

    return record(EpochNumbers, optional=["state"], state=StateFit)


def of_trace() -> Schema:
    from penstock.report.trace import StepTrace

    return of(StepTrace)


def of_state() -> Schema:
    return record(step=int, rows=int, changes=list[str], state=str | None)


def of_bench() -> Schema:
    from penstock.report.progress import Speed

    return listed(record(Speed, tokens_per_second=float, headroom=float | None))


def of_verify() -> Schema:
    from penstock.store.verify import Report

    return listed(record(Report, is_whole=bool))


def of_cache_ls() -> Schema:
    from penstock.store.inventory import Listing

    return record(Listing, root=str)


def of_cache_rm() -> Schema:
    return listed(record(store=str, num_bytes=int))


def of_cache_prune() -> Schema:
    from penstock.store.inventory import Pruned

    return of(Pruned)


def of_cache_why() -> Schema:
    from penstock.store.miss import Miss

    return either(listed(record(Miss, part=str, data_set=str)), of(Miss))


def of_init() -> Schema:
    from penstock.report.numbers import Lengths
    from penstock.report.sampling import LostShare

    places = str | list[str]
    eval_set = record(name=str, path=places, num_rows=int, files=list[str], own={"type": "object"})
    return record(
        recipe=str,
        text=str,
        settings={"type": "object"},
        model_max_length=int | None,
        notes=list[str],
        path=places,
        name=str,
        shape=str,
        files=list[str],
        num_rows=int,
        num_bytes=int | None,
        template=str,
        runner_up=str | None,
        why=str,
        options={"type": "object"},
        choices=list[str],
        trained_share=float | None,
        is_estimate=bool,
        looked=int,
        unreadable=int,
        problems=list[str],
        lengths=Lengths,
        eval_sets=listed(eval_set),
        max_length=int,
        batch_size=int,
        lost=LostShare,
    )


def of_schema() -> Schema:
    return {"type": "object", "description": "a JSON schema", "required": ["$schema", "title"]}
