"""Prepare a conversation for a template engine: plain JSON values only, reasoning under every name, no marks of ours in the data."""

from typing import Any

import orjson

from penstock.errors import TemplateError
from penstock.templates.chat.instrument import MARK
from penstock.templates.chat.kinds import REASONING
from penstock.templates.messages import Message

_ANY_REASONING = frozenset(REASONING)
_PLAIN = (str, int, float, bool, type(None))
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_MARK_BYTES = MARK.encode()


def with_reasoning(messages: list[Message]) -> list[Message]:
    """Reasoning under the names that templates look for, as transformers does it."""
    if all(_ANY_REASONING.isdisjoint(message) for message in messages):
        return messages
    out = []
    for message in messages:
        thought = next((message[name] for name in REASONING if message.get(name) is not None), None)
        out.append(message if thought is None else {"thinking": thought, **message, "reasoning_content": thought})
    return out


def checked(context: dict[str, Any], *, simple: bool) -> dict[str, Any]:
    """The context of plain values; `simple`: its messages are nothing but roles and text, and there is nothing beside them."""
    if simple:
        if any(MARK in message["content"] for message in context["messages"]):
            raise _marked()
        return context
    try:
        if _MARK_BYTES in orjson.dumps(context, option=_STRICT):
            raise _marked()
    except TypeError:  # something else than JSON, a number of more than 64 bits, or half of a surrogate pair
        context = plain(context)
        if ascii(MARK)[1:-1] in ascii(context):
            raise _marked() from None
    return context


def _marked() -> TemplateError:
    return TemplateError(f"the record holds {MARK!r}, a noncharacter that marks messages here; remove it")


def plain(value: Any) -> Any:
    """The same of plain values only: a template must not get hold of objects with methods, such as an array that writes files."""
    kind = type(value)
    if kind is dict:
        return {plain(key): plain(inner) for key, inner in value.items()}
    if kind is list:
        return [plain(inner) for inner in value]
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return tuple(plain(inner) for inner in value)
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a number of numpy
        return plain(value.item())
    return plain(dict(value)) if isinstance(value, dict) else f"<{kind.__name__}>"
