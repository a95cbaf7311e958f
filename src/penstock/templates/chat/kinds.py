"""Describe messages by what a chat template can tell apart, and make up messages of the same kind from words of our own.

A kind says who speaks and which fields hold what: text, nothing, white space, an inline thought, parts, tool calls, which types of
arguments.  It does not say which words.  So what is learned from made-up messages holds for all messages of their kind.
"""

import re
from collections.abc import Container, Sequence
from typing import Any

from penstock.templates.messages import Message

Kind = tuple[Any, ...]

REASONING = ("reasoning_content", "thinking", "reasoning")  # names that transformers treats as one
THOUGHT_END = "</think>"
_MOST_CALLS = 3  # four calls are printed like three
_MOST_PARTS = 8
_WORD = re.compile("penstock[a-j]+word")
_OTHER_LETTERS = str.maketrans("abcdefghijklmnopqrstuvwxyz", "bcdefghijklmnopqrstuvwxyza")

# Values of each type of argument, as engines may print them in different ways.
_LEAVES: dict[str, Any] = {
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


def kind_of(message: Message, known: Container[str] = frozenset()) -> Kind:
    """The kind of a message.  `known`: names that the template looks up; arguments of these names count by themselves."""
    content = message.get("content")
    if len(message) == 2 and type(content) is str and content and not content.isspace() and THOUGHT_END not in content:
        return (message["role"], "text")  # nearly always
    fields = tuple((key, _value_kind(key, value, known)) for key, value in message.items() if key != "role")
    return (message.get("role"), fields)


def _value_kind(key: str, value: Any, known: Container[str]) -> Any:
    if isinstance(value, str):
        if not value.strip():
            return "blank" if value else "empty"
        return "thought" if THOUGHT_END in value and key not in REASONING else "text"
    if isinstance(value, list | tuple):
        if key == "tool_calls":
            return ("calls", tuple(_call_kind(call, known) for call in value[:_MOST_CALLS]))
        return ("parts", tuple(_part_kind(part) for part in value[:_MOST_PARTS]))
    return _object_kind(value) if isinstance(value, dict) else _leaf_kind(value)


def _leaf_kind(value: Any) -> str:
    if isinstance(value, str):
        return "text" if value.strip() else "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return "big" if value.bit_length() > 50 else "int"
    if isinstance(value, float):
        return (
            "exponent"
            if not repr(value)[-1:].isdigit() or "e" in repr(value)
            else "whole"
            if value.is_integer()
            else "float"
        )
    return "none" if value is None else "list" if isinstance(value, list | tuple) else "dict"


def _object_kind(value: dict[str, Any]) -> Any:
    return ("object", tuple((name, _leaf_kind(inner)) for name, inner in value.items()))


def _part_kind(part: Any) -> Any:
    if not isinstance(part, dict):
        return _leaf_kind(part)
    return ("part", part.get("type"), tuple((name, _leaf_kind(v)) for name, v in part.items() if name != "type"))


def _call_kind(call: Any, known: Container[str]) -> Any:
    if not isinstance(call, dict):
        return _leaf_kind(call)
    function = call.get("function")
    nested = isinstance(function, dict)
    return (tuple(call), nested, _function_kind(function if nested else call, known))


def _function_kind(function: Any, known: Container[str]) -> Any:
    given = function.get("arguments", function.get("parameters"))
    if isinstance(given, dict):
        kinds: set[str] = set()
        _collect(given, kinds)
        named = tuple((key, _leaf_kind(value)) for key, value in given.items() if key in known)
        return (tuple(function), ("types", tuple(sorted(kinds)), named))
    if isinstance(given, str):
        return (tuple(function), "text" if given.strip() not in ("", "{}") else "empty")
    return (tuple(function), _leaf_kind(given))


def _collect(value: Any, kinds: set[str]) -> None:
    """Types of everything in an argument."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not key.isascii():
                kinds.add("key")
            _collect_inner(inner, kinds)
    else:
        for inner in value:
            _collect_inner(inner, kinds)


def _collect_inner(inner: Any, kinds: set[str]) -> None:
    kind = _leaf_kind(inner)
    if kind in ("list", "dict") and inner:
        kinds.add(f"filled {kind}")
        _collect(inner, kinds)
    else:
        kinds.add(kind)


class Kinds:
    """Numbers for kinds, so that they are cheap to compare."""

    def __init__(self, known: Container[str]) -> None:
        self._known = known
        self._numbers: dict[Kind, int] = {}
        self._kinds: list[Kind] = []

    def number(self, message: Message) -> int:
        return self.number_of(kind_of(message, self._known))

    def number_of(self, kind: Kind) -> int:
        if (number := self._numbers.get(kind)) is None:
            number = self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        return number

    def __getitem__(self, number: int) -> Kind:
        return self._kinds[number]


class MadeUp:
    """Messages of given kinds, made of words that occur nowhere else."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.words: list[list[str]] = []  # of each message: what is its own to say; names of tools are not
        self.contents: list[bool] = []  # whether its content has words
        self._number = 0
        self.messages = [self._message(kind) for kind in kinds]

    @staticmethod
    def call_kind() -> Kind:
        """The kind of a message that calls one tool."""
        function = {"name": "a", "arguments": {"b": "c"}}
        call = {"id": "call00000", "type": "function", "function": function}
        return kind_of({"role": "assistant", "content": "", "tool_calls": [call]})

    def with_other_words(self) -> list[Message]:
        """The same messages with other words of the same length."""
        return [_other_words(message) for message in self.messages]

    def _word(self) -> str:
        self._number += 1
        letters = "".join(chr(ord("a") + int(digit)) for digit in str(self._number))
        self.words[-1].append(f"penstock{letters}word")
        return self.words[-1][-1]

    def _message(self, kind: Kind) -> Message:
        self.words.append([])
        role, fields = kind
        fields = (("content", "text"),) if fields == "text" else fields
        message: Message = {"role": role}
        thought = next((self._word() for key, value in fields if key in REASONING and value == "text"), "")
        before = len(self.words[-1])
        if (content := dict(fields).get("content")) is not None:
            made = self._value("content", content)
        self.contents.append(len(self.words[-1]) > before)
        for key, value in fields:
            is_thought = key in REASONING and value == "text"
            message[key] = thought if is_thought else made if key == "content" else self._value(key, value)
        return message

    def _value(self, key: str, kind: Any) -> Any:
        if key == "tool_call_id" and kind == "text":
            return "call00000"
        if key == "name" and kind == "text":
            return "penstocktoola"
        if kind == "thought":
            return f"<think>\n{self._word()}\n</think>\n\n{self._word()}"
        if isinstance(kind, tuple) and kind[0] == "calls":
            return [self._call(call, number) for number, call in enumerate(kind[1])]
        if isinstance(kind, tuple) and kind[0] == "parts":
            return [self._part(part) for part in kind[1]]
        if isinstance(kind, tuple) and kind[0] == "object":
            return {name: self._leaf(inner) for name, inner in kind[1]}
        return self._leaf(kind)

    def _leaf(self, kind: str) -> Any:
        if kind in ("text", "key", "filled list", "filled dict"):
            word = self._word()
            return word if kind in ("text", "key") else [word] if kind == "filled list" else {"penstockinner": word}
        return {"blank": "  \n", "empty": "", **_LEAVES}[kind]

    def _part(self, kind: Any) -> Any:
        if not isinstance(kind, tuple):
            return self._leaf(kind)
        made = {} if kind[1] is None else {"type": kind[1]}
        return {**made, **{name: self._leaf(inner) for name, inner in kind[2]}}

    def _call(self, kind: Any, number: int) -> Any:
        if not isinstance(kind, tuple):
            return self._leaf(kind)
        keys, nested, (names, arguments) = kind
        function = {name: self._function_field(name, arguments, number) for name in names}
        if not nested:
            return function
        return {key: function if key == "function" else _call_field(key, number) for key in keys}

    def _function_field(self, name: str, kind: Any, number: int) -> Any:
        if name == "name":
            return f"penstocktool{'abc'[number]}"
        if name not in ("arguments", "parameters"):
            return _call_field(name, number)
        if isinstance(kind, tuple):  # some types
            made = {f"penstock{'é' if t == 'key' else ''}key{place}": self._leaf(t) for place, t in enumerate(kind[1])}
            return {**made, **{key: self._leaf(inner) for key, inner in kind[2]}}
        return (
            f'{{"penstockkey": "{self._word()}"}}' if kind == "text" else "{}" if kind == "empty" else self._leaf(kind)
        )


def _call_field(key: str, number: int) -> Any:
    return f"call{number:05d}" if key in ("id", "tool_call_id") else "function" if key == "type" else number


def _other_words(value: Any) -> Any:
    if isinstance(value, str):
        return _WORD.sub(lambda word: word[0].translate(_OTHER_LETTERS), value)
    if isinstance(value, dict):
        return {key: _other_words(inner) for key, inner in value.items()}
    return [_other_words(inner) for inner in value] if isinstance(value, list) else value
