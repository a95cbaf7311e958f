"""Describe messages by the properties that a chat template can distinguish, and make up messages of the same kind.

A kind says who speaks and which fields hold what: text, nothing, whitespace, an inline thought, parts, tool calls, which types of
arguments.  It does not say which words.  So what is learned from made-up messages holds for all messages of their kind.
"""

import re
from collections.abc import Callable, Container, Sequence
from typing import Any

from penstock.templates.conversation import Message
from penstock.templates.to_json import to_json

Kind = tuple[Any, ...]  # of a message, as of any dict: ("dict", ((key, kind of its value), …))

REASONING = ("reasoning_content", "thinking", "reasoning")  # names that transformers treats as one
THOUGHT_END = "</think>"
ARGUMENTS = ("arguments", "parameters")
_OBJECTS = (
    *ARGUMENTS,
    "content",
)  # dicts of any keys: only types count, and names that the template looks up
_LITERAL = ("role", "type")
_LABELS = ("id", "name", "tool_call_id")
_LISTS = (list, tuple)
_MOST = {"tool_calls": 3}  # four calls are printed like three
_MOST_PARTS = 8
_MORE = "more"  # behind the kinds of the first values of a list: there are others
_WORD = re.compile("penstock(?:[a-j]+word|tool[abc])")

# Values of each type, as engines may print them in different ways.
_LEAVES: dict[str, Any] = {
    "empty": "",
    "blank": "  \n",
    "int": 7,
    "big": 1 << 60,
    "float": 1.5,
    "whole": 2.0,
    "exponent": 1e-7,
    "true": True,
    "false": False,
    "none": None,
    "list": [],
    "dict": {},
}


def read_kind(key: str, value: Any, strings: list[Any], known: Container[str] = frozenset()) -> Any:
    """Return the kind of a key's value.  Append its texts and objects to `strings`, in an order that depends on the kind.

    `known`: names that the template looks up; arguments of these names count by themselves.
    """
    if isinstance(value, str):
        if key in _LITERAL:
            return ("is", value)
        if not value or value.isspace() or (key in ARGUMENTS and value.strip() == "{}"):
            return "blank" if value.isspace() and key not in ARGUMENTS else "empty"
        strings.append(value)
        return "thought" if key == "content" and THOUGHT_END in value else "text"
    if isinstance(value, dict):
        if key in _OBJECTS:
            if value:
                strings.append(value)
            named = tuple(
                [(name, _leaf_kind(inner)) for name, inner in value.items() if name in known]
            )
            return ("types", (tuple(sorted(_types(value, set()))), named))
        pairs = []
        for name, inner in value.items():
            if (
                name in _LABELS and type(inner) is str and inner and not inner.isspace()
            ):  # by far the most common ones
                strings.append(inner)
                pairs.append((name, "text"))
            else:
                pairs.append((name, read_kind(name, inner, strings, known)))
        return ("dict", tuple(pairs))
    if isinstance(value, _LISTS):
        read = [read_kind("part", inner, strings, known) for inner in value]
        what = "list" if type(value) is list else "tuple"  # they are printed in different ways
        most = _MOST.get(key, _MOST_PARTS)
        if len(read) > most:
            # not the kind of a list of `most` values: a template may print how many there are
            read = [*read[:most], _MORE]
        return (what, tuple(read))
    return _leaf_kind(value)


def _leaf_kind(value: Any) -> str:
    if isinstance(value, str):
        return "text" if value and not value.isspace() else "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return "big" if value.bit_length() > 50 else "int"
    if isinstance(value, float):
        if not repr(value)[-1].isdigit() or "e" in repr(value):
            return "exponent"
        return "whole" if value.is_integer() else "float"
    return "none" if value is None else "list" if isinstance(value, _LISTS) else "dict"


def _types(value: Any, found: set[str]) -> set[str]:
    """Types of everything in an argument."""
    for key, inner in (
        value.items() if isinstance(value, dict) else (("", inner) for inner in value)
    ):
        if not str(key).isascii():
            found.add("key")
        kind = _leaf_kind(inner)
        is_filled = kind in ("list", "dict") and inner
        found.add(f"filled {kind}" if is_filled else kind)
        if is_filled:
            _types(inner, found)
    return found


def kind_of(message: Message) -> Kind:
    found: Kind = read_kind("", message, [])
    return found


def text_kind(role: Any) -> Kind:
    """The kind of a message that is nothing but text."""
    return kind_of({"role": role, "content": "text"})


def role_of(kind: Kind) -> Any:
    return dict(kind[1]).get("role", ("is", None))[1]


def with_text(kind: Kind) -> Kind:
    """The same kind with text for content."""
    return ("dict", tuple({**dict(kind[1]), "content": "text"}.items()))


_A_CALL = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "a", "arguments": {"b": "c"}},
}
USER = text_kind("user")
ANSWER = text_kind("assistant")
SYSTEM = text_kind("system")
CALL, CALLS = (
    kind_of({"role": "assistant", "content": "", "tool_calls": [_A_CALL] * number})
    for number in (1, 3)
)
RESULT = kind_of({"role": "tool", "name": "a", "tool_call_id": "call00000", "content": "text"})
THINKING = kind_of({"role": "assistant", **dict.fromkeys(REASONING, "text"), "content": "text"})
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "penstocktoola",
        "description": "Does.",
        "parameters": {
            "type": "object",
            "properties": {"penstockkey": {"type": "string", "description": "A key."}},
        },
    },
}


def with_reasoning(messages: list[Message]) -> list[Message]:
    """Reasoning under the names that templates look for, as transformers does it."""
    out = None
    for place, message in enumerate(messages):
        if len(message) > 2 or "content" not in message:
            thought = next(
                (message[name] for name in REASONING if message.get(name) is not None), None
            )
            if thought is not None:
                out = list(messages) if out is None else out
                out[place] = {"thinking": thought, **message, "reasoning_content": thought}
    return messages if out is None else out


def functions_of(message: Message) -> list[dict[str, Any]]:
    """What a message calls: {name, arguments} of each call."""
    calls = message.get("tool_calls")
    found = (
        [call.get("function", call) for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else []
    )
    return [function for function in found if isinstance(function, dict)]


def call_names(message: Message) -> list[str]:
    return [
        function["name"]
        for function in functions_of(message)
        if isinstance(function.get("name"), str)
    ]


def strings_of(message: Message) -> list[str]:
    """All strings of a message, as a template may print them."""
    strings: list[Any] = []
    read_kind("", message, strings)
    return [some if type(some) is str else to_json(some) for some in strings]


class Kinds:
    """Numbers for kinds, so that they are cheap to compare."""

    def __init__(self, known: Container[str]) -> None:
        """`known`: names that the template looks up."""
        self._known = known
        self._numbers: dict[Kind, int] = {}
        self._kinds: list[Kind] = []
        # Kinds that are nothing but a role and text: (the first of the two keys, the role) → number.
        # A template may print the fields of a message in their order.
        self._texts: dict[tuple[str, Any], int] = {}
        self._text_numbers: set[int] = set()

    def read(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], list[Any]]:
        """The kinds of messages, and their texts and objects."""
        texts = self._texts
        strings = list[Any]()
        numbers = []
        for message in messages:
            number = None
            if is_text(message):
                number = texts.get((next(iter(message)), message.get("role")))
            if number is None:
                number = self.number_of(read_kind("", message, strings, self._known))
            else:  # nearly always
                strings.append(message["content"])
            numbers.append(number)
        return tuple(numbers), strings

    def number_of(self, kind: Kind) -> int:
        number = self._numbers.get(kind)
        if number is None:
            number = len(self._kinds)
            self._numbers[kind] = number
            self._kinds.append(kind)
            role = role_of(kind)
            if dict(kind[1]) == dict(text_kind(role)[1]):
                self._texts[kind[1][0][0], role] = number
                self._text_numbers.add(number)
        return number

    def is_text(self, number: int) -> bool:
        """Return whether such messages have only a role and text."""
        return number in self._text_numbers

    def __getitem__(self, number: int) -> Kind:
        return self._kinds[number]


def is_text(message: Message) -> bool:
    """Whether a message is nothing but a role and text."""
    content = message.get("content")
    if len(message) != 2 or type(content) is not str or THOUGHT_END in content:
        return False
    return bool(content) and not content.isspace()


class MadeUp:
    """Messages of given kinds, made of words that occur nowhere else."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.words: list[
            list[str]
        ] = []  # of each message: what is its own to say; names and ids are not
        self._number = 0
        self.messages: list[Message] = []
        for kind in kinds:
            self.words.append([])
            self._thought = ""  # one for all names of reasoning
            self.messages.append(self._value("", kind))

    def changed(self, change: Callable[[str], str]) -> list[Message]:
        """Return the same messages with other words and other tool names."""
        return [_changed(message, lambda found: change(found[0])) for message in self.messages]

    def _word(self) -> str:
        self._number += 1
        letters = "".join(chr(ord("a") + int(digit)) for digit in str(self._number))
        self.words[-1].append(f"penstock{letters}word")
        return self.words[-1][-1]

    def _value(self, key: str, kind: Any, place: int = 0) -> Any:
        if not isinstance(kind, tuple):
            return self._leaf(key, kind, place)
        what, inside = kind
        if what == "dict":
            return {name: self._value(name, inner, place) for name, inner in inside}
        if what in ("list", "tuple"):
            kinds = [inner for inner in inside if inner != _MORE]
            values = [self._value("part", inner, number) for number, inner in enumerate(kinds)]
            return values if what == "list" else tuple(values)
        if what == "types":
            keys = [
                f"penstock{'é' if inner == 'key' else ''}key{number}"
                for number, inner in enumerate(inside[0])
            ]
            pairs = [*zip(keys, inside[0], strict=True), *inside[1]]
            return {name: self._leaf("", inner, place) for name, inner in pairs}
        return inside

    def _leaf(self, key: str, kind: str, place: int) -> Any:
        if kind == "text":
            return self._text(key, place)
        if kind == "thought":
            return f"<think>\n{self._word()}\n</think>\n\n{self._word()}"
        if kind == "key":
            return self._word()
        if kind.startswith("filled "):
            return [self._word()] if kind.endswith("list") else {"penstockinner": self._word()}
        return "{}" if kind == "empty" and key in ARGUMENTS else _LEAVES[kind]

    def _text(self, key: str, place: int) -> str:
        if key == "name":
            return f"penstocktool{'abc'[place % 3]}"
        if key in _LABELS:
            return f"call{place:05}"
        if key in REASONING:
            self._thought = self._thought or self._word()
            return self._thought
        return f'{{"penstockkey": "{self._word()}"}}' if key in ARGUMENTS else self._word()


def _changed(value: Any, change: Callable[[re.Match[str]], str]) -> Any:
    if isinstance(value, str):
        return _WORD.sub(change, value)
    if isinstance(value, dict):
        return {key: _changed(inner, change) for key, inner in value.items()}
    if isinstance(value, _LISTS):
        return type(value)([_changed(inner, change) for inner in value])
    return value
