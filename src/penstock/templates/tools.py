"""What may an assistant call, and what did it call?  Every way of writing tools and calls, made the one that templates read.

That one is OpenAI's: `{"type": "function", "function": {...}}`.  What is written so already is handed on, not copied.
"""

import json
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.keys import kind

ARGUMENTS = ("parse", "as_is", "text")


def read_json(text: str, what: str) -> Any:
    """`json`, not orjson: an integer beyond 64 bits must stay one."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise TemplateError(f"{what} is a string that is not JSON ({error}): {text[:80]!r}") from error


def read_list(value: Any, what: str) -> list[Any] | None:
    """A list, from a list, one dict or JSON text; None where there is nothing, in any spelling."""
    if isinstance(value, str) and value:
        value = read_json(value, what)
    if isinstance(value, tuple):
        value = list(value)
    if value is None or (isinstance(value, str | list | dict) and not value) or value != value:
        return None  # != : NaN, which tables put where nothing is
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise TemplateError(f"{what} is {kind(value)}, expected a list, a dict, JSON text or null")
    return value


def read_tools(value: Any, key: str) -> list[Any] | None:
    """The tools of a record.  None for an empty list: some templates print a preamble for one."""
    what = f"key {key!r}"
    tools = read_list(value, what)
    return None if tools is None else [_tool(tool, what) for tool in tools]


def _tool(tool: Any, what: str) -> dict[str, Any]:
    tool = read_json(tool, f"a tool in {what}") if isinstance(tool, str) else tool
    if not isinstance(tool, dict):
        raise TemplateError(f"a tool in {what} is {kind(tool)}, expected a JSON schema (a dict)")
    bare = "name" in tool and "function" not in tool and "type" not in tool
    return {"type": "function", "function": tool} if bare else tool


def read_calls(value: Any, what: str, *, arguments: str) -> list[dict[str, Any]] | None:
    """The tool calls of a message, `arguments` as ARGUMENTS says; None where there are none."""
    calls = read_list(value, what)
    return None if calls is None else [_call(call, what, arguments) for call in calls]


def _call(call: Any, what: str, policy: str) -> dict[str, Any]:
    call = read_json(call, what) if isinstance(call, str) else call
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise TemplateError(
            f"{what} holds {str(call)[:80]!r}, expected {{'function': {{'name': …, 'arguments': …}}}} "
            f"or {{'name': …, 'arguments': …}}"
        )
    old = function.get("arguments")
    new = _arguments(old, what, policy)
    if function is call:
        rest = {key: call[key] for key in call if key not in ("id", "type", "name", "arguments")}
        identity = {"id": call["id"]} if "id" in call else {}
        return {**identity, "type": "function", "function": {"name": call["name"], "arguments": new, **rest}}
    return call if new is old else {**call, "function": {**function, "arguments": new}}


def _arguments(value: Any, what: str, policy: str) -> Any:
    if policy == "as_is":
        return value
    if policy == "text":
        return value if isinstance(value, str) else json.dumps({} if value is None else value, ensure_ascii=False)
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(value, str):
        return value
    parsed = read_json(value, f"'arguments' in {what}")
    if not isinstance(parsed, dict):
        raise TemplateError(
            f"'arguments' in {what} is JSON of a {kind(parsed)}, expected an object; "
            f"pass tool_arguments='as_is' to hand them to the chat template as they stand"
        )
    return parsed


def without_nulls(value: Any) -> Any:
    """A copy without keys that hold null, at any depth: what tables of structs put in for other rows' keys."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value
