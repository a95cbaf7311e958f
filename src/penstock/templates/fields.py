"""Read fields of records: keys, options with fixed choices, roles, flags of messages, tools and tool calls.

Each way to write tools and calls becomes OpenAI's, `{"type": "function", "function": {...}}`, which chat templates read.  What is
written like this already is passed on without a copy.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from penstock.errors import TemplateError
from penstock.types import MOST_DEPTH, Record, nests_too_deep
from penstock.words import did_you_mean

Choice = TypeVar("Choice", bound=str)


def check_choice(option: str, value: Choice, known: Sequence[str], *, more: str = "") -> Choice:
    """Refuse a value that is not one of these; `more` says what else there is."""
    if value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise TemplateError(
            f"{option}={value!r} is not known, expected one of {', '.join(map(repr, known))}{more}{near}"
        )
    return value


def kind(value: object) -> str:
    """The type of a value, as a message names it: null rather than NoneType."""
    return "null" if value is None else type(value).__name__


# Keys

_QUERY = ("query", "prompt", "input", "instruction", "question", "problem")
_RESPONSE = (
    "response",
    "answer",
    "output",
    "target",
    "targets",
    "answers",
    "answer_key",
    "solution",
    "completion",
)


def value_under(record: Record, key: str, option: str, *, expected: str = "a value") -> Any:
    """The value of a key; `option` is the name of the option that chooses the key."""
    if key not in record:
        found = f"key {key!r} is missing among {sorted(map(str, record))}"
        raise TemplateError(f"{found}, expected {expected}; name the key with {option}=")
    return record[key]


def text_under(record: Record, key: str, option: str) -> str:
    value = value_under(record, key, option, expected="a string")
    if isinstance(value, str):
        return value
    raise TemplateError(
        f"key {key!r} is {kind(value)}, expected a string; name the key with {option}="
    )


def as_label(value: Any, what: str) -> bool:
    if isinstance(value, bool) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise TemplateError(f"{what} is {value!r}, expected true or false")


def one_key(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of the names that has a value in the record, else the first that is there."""
    return next(
        (name for name in names if record.get(name)),
        next((name for name in names if name in record), None),
    )


def query_keys(record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The keys that usually hold a question, and those that hold its answer, in upper or lower case."""
    named = {key.lower(): key for key in record if isinstance(key, str)}
    return (
        [named[name] for name in _QUERY if name in named],
        [named[name] for name in _RESPONSE if name in named],
    )


def query_pair(
    record: Mapping[str, Any], input_key: str | None, output_key: str | None
) -> tuple[str, str]:
    """The two keys of a question and its answer: as given, else the only usual name in the record."""
    if input_key is not None and output_key is not None:
        return input_key, output_key
    queries, responses = query_keys(record)
    for option, given, found in (
        ("input_key", input_key, queries),
        ("output_key", output_key, responses),
    ):
        if given is None and len(found) != 1:
            several = (
                f"{len(found)}: {', '.join(found)}"
                if found
                else f"none among {sorted(map(str, record))}"
            )
            reason = f"of the usual names for {option} the record has {several}"
            raise TemplateError(f"{reason}; name the key with {option}=")
    return input_key or queries[0], output_key or responses[0]


def read_history(record: Record, key: str) -> list[dict[str, Any]]:
    """Earlier turns as Alpaca writes them, a list of [question, answer], as messages."""
    messages = []
    for place, turn in enumerate(record.get(key) or ()):
        if (
            not isinstance(turn, list | tuple)
            or len(turn) != 2
            or not all(isinstance(side, str) for side in turn)
        ):
            raise TemplateError(
                f"{key}[{place}] is {str(turn)[:60]!r}, expected [question, answer]"
            )
        messages += [
            {"role": "user", "content": turn[0]},
            {"role": "assistant", "content": turn[1]},
        ]
    return messages


# Roles

CALL = "assistant: tool_call"  # an assistant that calls a tool, with the call as content; no data uses this name

# Roles that chat templates read; they are passed on as they are.
_KNOWN = (
    *(
        "user",
        "assistant",
        "system",
        "tool",
        "developer",
        "ipython",
        "environment",
        "context",
        "control",
    ),
    *("document", "documents", "available_tools"),
)
_ALIASES = {
    "user": ("human", "prompter"),
    "assistant": ("gpt", "chatgpt", "bot", "bing", "bard", "model", "ai"),
    "tool": (
        *("observation", "observations", "function_response", "function_result", "function"),
        *("tool_response", "tool_result", "tool_results"),
    ),
    CALL: ("function_call", "function_calls", "tool_call", "tool_calls"),
}


def role_names(given: Mapping[str, str | Sequence[str]] | None) -> dict[str, str]:
    """Name in the data → role.  `given` adds to the built-in names: {alias: role} or {role: [aliases]}."""
    names = {role: role for role in _KNOWN}
    names |= {alias: role for role, aliases in _ALIASES.items() for alias in aliases}
    added: dict[str, str] = {}
    for key, value in (given or {}).items():
        if not isinstance(value, Sequence) or not all(isinstance(alias, str) for alias in value):
            expected = f"a role, or a list of names for the role {key!r}"
            raise TemplateError(f"role_map[{key!r}] is {value!r}, expected {expected}")
        for alias, role in (
            [(key, value)] if isinstance(value, str) else [(each, key) for each in value]
        ):
            role = CALL if role in _ALIASES[CALL] else role
            if added.setdefault(alias, role) != role:
                raise TemplateError(
                    f"role_map has {alias!r} as {added[alias]!r} and as {role!r}; keep one of them"
                )
    return names | added


def find_role(name: Any, names: Mapping[str, str], what: str) -> str:
    """The role for a name, in upper or lower case.  An unknown name is an error: it would never be trained."""
    if not isinstance(name, str):
        raise TemplateError(f"{what} has a role that is {kind(name)}, expected a string")
    found = names.get(name) or names.get(name.strip().lower())
    if found is None:
        raise TemplateError(
            f"{what} has the role {name!r}, which is not known; pass role_map={{{name!r}: 'user'}} (or another role, "
            f"or {name!r} itself if the chat template knows it)",
            code="unknown_role",
        )
    return found


def check_roles(given: Any, names: Mapping[str, str]) -> list[str]:
    """A list of roles to train.  A role that no message can have is an error; without `names` any role is allowed."""
    if not isinstance(given, list | tuple) or not all(isinstance(role, str) for role in given):
        raise TemplateError(f"train_on={given!r} is not known, expected a word or a list of roles")
    for role in given:
        if names and role not in names.values():
            why = (
                f"is read as {names[role]!r}: name that one"
                if role in names
                else "is not a role: role_map= adds one"
            )
            raise TemplateError(f"train_on names {role!r}, which {why}")
    return list(given)


_USUAL_ROLES = frozenset(role_names(None))


# What a value looks like


def is_null(record: Record, key: str) -> bool:
    """A column that is there and empty in this record."""
    value = record.get(key)
    return key in record and (value is None or (isinstance(value, list | dict) and not value))


def dicts_in(value: Any) -> list[dict[str, Any]] | None:
    """A list of dicts, or JSON text of one (taken for messages when it begins like them)."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        return [{"role": ""}] if '"role"' in value[:200] else None
    if isinstance(value, list) and value and all(isinstance(turn, dict) for turn in value):
        return value
    return None


def is_turn(turn: dict[str, Any]) -> bool:
    if "from" in turn:
        return "value" in turn
    return "role" in turn or any(
        isinstance(key, str) and key.lower() in _USUAL_ROLES for key in turn
    )


def is_side(value: Any) -> bool:
    """Text, a message or messages."""
    turns = (
        [value] if isinstance(value, dict) else value if isinstance(value, list) and value else None
    )
    return isinstance(value, str) or bool(
        turns and all(isinstance(turn, dict) and is_turn(turn) for turn in turns)
    )


# Tools and tool calls

ARGUMENTS = ("parse", "as_is", "text")  # of tool_arguments


def read_json(text: str, what: str) -> Any:
    """By `json`, not orjson: integers may exceed 64 bits."""
    deep = f"{what} is JSON that nests more than {MOST_DEPTH} levels deep: {text[:80]!r}"
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise TemplateError(deep) from error
    except ValueError as error:
        raise TemplateError(
            f"{what} is a string that is not JSON ({error}): {text[:80]!r}"
        ) from error
    if nests_too_deep(value):
        raise TemplateError(deep)
    return value


def read_list(value: Any, what: str) -> list[Any] | None:
    """A list, from a list, one dict or JSON text; None for an empty value of any type."""
    if isinstance(value, str) and value:
        value = read_json(value, what)
    if isinstance(value, tuple):
        value = list(value)
    if value is None or (isinstance(value, str | list | dict) and not value) or value != value:
        return None  # != : NaN, which tables use for an absent value
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise TemplateError(f"{what} is {kind(value)}, expected a list, a dict, JSON text or null")
    return value


def read_tools(value: Any, key: str) -> list[Any] | None:
    """The tools of a record.  None for an empty list: some templates print a preamble for one."""
    tools = read_list(value, f"key {key!r}")
    return None if tools is None else [_tool(tool, f"a tool in key {key!r}") for tool in tools]


def _tool(tool: Any, what: str) -> dict[str, Any]:
    tool = read_json(tool, what) if isinstance(tool, str) else tool
    if not isinstance(tool, dict):
        raise TemplateError(f"{what} is {kind(tool)}, expected a JSON schema (a dict)")
    is_bare = "name" in tool and "function" not in tool and "type" not in tool
    return {"type": "function", "function": tool} if is_bare else tool


def read_calls(value: Any, what: str, *, arguments: str) -> list[dict[str, Any]] | None:
    """The tool calls of a message; `arguments` is one of ARGUMENTS.  None if there are none."""
    calls = read_list(value, what)
    return None if calls is None else [_call(call, what, arguments) for call in calls]


def are_ready(calls: Any, policy: str) -> bool:
    """Whether calls are written as `read_calls` returns them."""
    if type(calls) is not list or not calls:
        return False
    for call in calls:
        function = call.get("function") if type(call) is dict else None
        if type(function) is not dict or type(function.get("name")) is not str:
            return False
        if policy != "as_is" and type(function.get("arguments")) is not (
            dict if policy == "parse" else str
        ):
            return False
    return True


def _call(call: Any, what: str, policy: str) -> dict[str, Any]:
    call = read_json(call, what) if isinstance(call, str) else call
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        expected = "{'function': {'name': …, 'arguments': …}} or {'name': …, 'arguments': …}"
        raise TemplateError(f"{what} holds {str(call)[:80]!r}, expected {expected}")
    old = function.get("arguments")
    new = _arguments(old, what, policy)
    if function is call:
        rest = {key: call[key] for key in call if key not in ("id", "type", "name", "arguments")}
        number = {"id": call["id"]} if "id" in call else {}
        return {
            **number,
            "type": "function",
            "function": {"name": call["name"], "arguments": new, **rest},
        }
    return call if new is old else {**call, "function": {**function, "arguments": new}}


def _arguments(value: Any, what: str, policy: str) -> Any:
    if policy == "as_is":
        return value
    if policy == "text":
        return (
            value
            if isinstance(value, str)
            else json.dumps({} if value is None else value, ensure_ascii=False)
        )
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(value, str):
        return value
    parsed = read_json(value, f"'arguments' in {what}")
    if not isinstance(parsed, dict):
        raise TemplateError(
            f"'arguments' in {what} is JSON of a {kind(parsed)}, expected an object; "
            f"pass tool_arguments='as_is' to give them to the chat template unchanged"
        )
    return parsed


def without_nulls(value: Any) -> Any:
    """Return a copy without keys that hold null, at any depth: tables of structs add null for keys of other records."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value
