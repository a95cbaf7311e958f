"""Which strings of a message are its author's words?  Content, reasoning, and what is handed to tools; in the order of printing.

Also: what a conversation is made of, as a key.  Two with the same key go the same ways through a template.
"""

from collections.abc import Callable, Container, Iterable
from typing import Any

from penstock.templates.messages import Message

_REASONING = ("reasoning_content", "thinking", "reasoning")  # the names that transformers treats as one
_ANY_REASONING = frozenset(_REASONING)
_PLAIN = (str, int, float, bool, type(None))

Change = Callable[[str], str]


def coloured(
    message: Message,
    change: Change,
    *,
    name: Change,
    argument: Change | None = None,
    reasoning: bool = True,
    keys: Container[str] = frozenset(),
) -> Message:
    """A copy of a message in which each of its words went through `change`, always in the same order.

    name: for the name of a tool whose arguments hold no words.  argument: for words handed to a tool; None as for others.
    reasoning: whether thoughts are among the words.
    keys: names of arguments that stay, as a template asks for them.
    """
    content = message.get("content")
    if len(message) == 2 and type(content) is str and reasoning:  # by far the most common one
        return {"role": message["role"], "content": change(content)}
    new = dict(message)
    if reasoning:
        thoughts: dict[str, str] = {}  # one thought under several names is one
        for alias in _REASONING:
            if isinstance(thought := message.get(alias), str):
                if thought not in thoughts:
                    thoughts[thought] = change(thought)
                new[alias] = thoughts[thought]
    if isinstance(content, str):
        new["content"] = _answer(content, change, reasoning)
    elif isinstance(content, list):
        new["content"] = [
            {**part, "text": _answer(part["text"], change, reasoning)}
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]
    if isinstance(message.get("tool_calls"), list):
        new["tool_calls"] = [_called(call, argument or change, name, keys) for call in message["tool_calls"]]
    return new


def _answer(text: str, change: Change, reasoning: bool) -> str:
    """Without the reasoning in it where that is not trained: what stands before `</think>` keeps its colour."""
    if reasoning or "</think>" not in text:
        return change(text)
    thought, tag, answer = text.rpartition("</think>")
    return f"{thought}{tag}{change(answer)}"


def _called(call: Any, change: Change, name: Change, keys: Container[str]) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _called(call["function"], change, name, keys)}
    new = dict(call)
    given = next((key for key in ("arguments", "parameters") if call.get(key)), None)
    if given is not None:
        new[given] = _strings(call[given], change, keys)
    if (given is None or not _has_words(call[given], keys)) and isinstance(call.get("name"), str):
        # Only for want of words in arguments: templates repeat a call's name before its result, which nobody is to be trained on.
        new["name"] = name(call["name"])
    return new


def _strings(value: Any, change: Change, keys: Container[str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key if key in keys else change(key): _strings(inner, change, keys) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strings(inner, change, keys) for inner in value]
    return value


def _has_words(value: Any, keys: Container[str]) -> bool:
    """Whether `_strings` finds something to change."""
    if isinstance(value, dict):
        return any(key not in keys or _has_words(inner, keys) for key, inner in value.items())
    if isinstance(value, list):
        return any(_has_words(inner, keys) for inner in value)
    return isinstance(value, str) and bool(value.strip())


def marked(message: Message, mark: Change) -> Message:
    """A copy of a message whose first words went through `mark`."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": mark(content)}
    if isinstance(content, list):
        parts = list(content)
        for place, part in enumerate(parts):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                parts[place] = {**part, "text": mark(part["text"])}
                break
        return {**message, "content": parts}
    return message


def is_hollow(message: Message) -> bool:
    """Whether nothing is said in a message."""
    content = message.get("content")
    return isinstance(content, str) and not content.strip() and not message.get("tool_calls")


def aliased(messages: list[Message]) -> list[Message]:
    """Reasoning under the names that templates look for, as transformers does it."""
    if all(_ANY_REASONING.isdisjoint(message) for message in messages):
        return messages
    out = []
    for message in messages:
        thought = next((message[name] for name in _REASONING if message.get(name) is not None), None)
        out.append(message if thought is None else {"thinking": thought, **message, "reasoning_content": thought})
    return out


def strings(messages: Iterable[Message], others: Any) -> list[str]:
    """All words of a conversation; of `others` (tools, documents) all strings."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    for message in messages:
        coloured(message, keep, name=keep)
    _strings(others, keep, frozenset())
    return found


def changed_strings(value: Any, change: Change) -> Any:
    """A copy in which every string at any depth, keys excepted, went through `change`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: changed_strings(inner, change) for key, inner in value.items()}
    return [changed_strings(inner, change) for inner in value] if isinstance(value, list) else value


Atom = tuple[Any, ...]


def atoms(messages: list[Message], others: dict[str, Any], keys: frozenset[str]) -> set[Atom]:
    """What a conversation is made of: who follows whom, which fields there are, of which types.  `keys`: names a template knows."""
    roles = [message.get("role") for message in messages]
    found: set[Atom] = set(zip([None, *roles], roles, strict=False))
    for message in messages:
        if len(message) != 2 or not message.get("content") or type(message["content"]) is not str:
            role = message.get("role")
            for key, value in message.items():
                if type(value) is str:
                    found.add(((role, key), str, not value))
                else:
                    _collect(value, (role, key), keys, found)
    for name, value in others.items():
        if value:
            _collect(value, name, keys, found)
    return found


def _collect(value: Any, name: Any, keys: frozenset[str], found: set[Atom]) -> None:
    kind = type(value)
    if kind is dict:
        found.add((name, kind, not value))
        for key, inner in value.items():
            if type(key) is not str or not key.isascii():
                found.add((name, type(key), "key"))
            _collect(inner, key if key in keys else "", keys, found)
    elif kind is list or kind is tuple:
        found.add((name, kind, not value))
        for inner in value:
            _collect(inner, name, keys, found)
    elif kind is str:
        found.add((name, kind, not value))
    elif kind is int:
        found.add((name, kind, value.bit_length() > 50))  # engines differ about numbers that a float does not hold
    elif kind is float:
        found.add((name, kind, "e" in repr(value), value.is_integer()))
    else:
        found.add((name, kind))


def is_plain(found: set[Atom]) -> bool:
    """Whether all types are those of JSON."""
    return all(
        len(atom) < 2 or not isinstance(atom[1], type) or atom[1] in (*_PLAIN, dict, list, tuple) for atom in found
    )


def plain(value: Any) -> Any:
    """The same of plain values only: a template must not get hold of what can do things, such as an array that writes files."""
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
    if isinstance(value, dict):
        return plain(dict(value))
    return f"<{kind.__name__}>"
