"""What does a record hold under a key?  One wording for what is missing or of another type."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import TemplateError
from penstock.types import Record

_QUERY = ("query", "prompt", "input", "instruction", "question", "problem")
_RESPONSE = ("response", "answer", "output", "target", "targets", "answers", "answer_key", "solution", "completion")


def value_under(record: Record, key: str, option: str, *, expected: str = "a value", number: int | None = None) -> Any:
    """`option` is how a user names another key; `number` which of the records handed over."""
    if key not in record:
        raise TemplateError(
            f"key {key!r} is missing among {sorted(map(str, record))}, expected {expected}; name the key with {option}=",
            record=number,
        )
    return record[key]


def text_under(record: Record, key: str, option: str, *, number: int | None = None) -> str:
    value = value_under(record, key, option, expected="a string", number=number)
    if isinstance(value, str):
        return value
    raise TemplateError(f"key {key!r} is {kind(value)}, expected a string; name the key with {option}=", record=number)


def one_key(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of the names that the record has with a value, else the first that it has."""
    return next((name for name in names if record.get(name)), next((name for name in names if name in record), None))


def query_keys(record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The record's keys that usually hold a question, and those that hold its answer, whatever their case."""
    named = {key.lower(): key for key in record if isinstance(key, str)}
    return ([named[name] for name in _QUERY if name in named], [named[name] for name in _RESPONSE if name in named])


def query_pair(record: Mapping[str, Any], input_key: str | None, output_key: str | None) -> tuple[str, str]:
    """The two keys of a question and its answer: as given, else the only usual name that the record has."""
    if input_key is not None and output_key is not None:
        return input_key, output_key
    queries, responses = query_keys(record)
    pair = []
    for option, given, found in (("input_key", input_key, queries), ("output_key", output_key, responses)):
        if given is None and len(found) != 1:
            several = f"{len(found)}: {', '.join(found)}" if found else f"none among {sorted(map(str, record))}"
            raise TemplateError(
                f"of the usual names for {option} the record has {several}; name the key with {option}="
            )
        pair.append(given or found[0])
    return pair[0], pair[1]


def kind(value: object) -> str:
    """The type of a value, as a message names it: null rather than NoneType."""
    return "null" if value is None else type(value).__name__
