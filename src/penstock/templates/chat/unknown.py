"""Values of messages whose words are unknown, and the rules that say what a chat template may do with them.

To learn what a template prints around the words of messages, it is rendered once with an `UnknownText` in the place of every text
(proof.py).  An unknown text stands for all texts that hold at least one letter.  So what a template does with it must come out the same
for all of them.  Each rule below says for one operation why it does, and what it assumes about the words:

- printing, joining with other text, and cutting whitespace off the ends give a new unknown text;
- a question such as `'</think>' in content` is answered "no", and the proof notes that it holds only for words without `</think>`;
- two texts are taken for different ones, and a length that is compared with a number for that number: the proof notes both.

Whatever has no rule ends the proof: a letter, a loop over a text, `upper`.  An unknown value is not a `str`, so that nothing
can read it by accident, and `Assumptions` remembers the first question without a rule, even where the template's code hides the error.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

from penstock.templates.to_json import to_json

_PLACE = "\ufdd2"  # a noncharacter, before the place of a slot in a text
_FIRST_PLACE = 0x100
_MOST_PLACES = 0xD800 - _FIRST_PLACE
_TEXT_ATTRIBUTES = frozenset(dir(str))

Change = Callable[[Any], str]


class NotProven(Exception):
    """A template does something with the words of messages that no rule allows."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one unknown value in a text."""

    number: int  # of the value
    changes: tuple[Change, ...] = ()  # what the template does with it before it prints it
    is_json: bool = False

    def text(self, value: Any) -> str:
        """What is printed of a value."""
        for change in self.changes:
            value = change(value)
        return str(value)


@dataclass(frozen=True, slots=True)
class Stripped:
    """Cut characters off the ends of a text: the methods strip, lstrip and rstrip."""

    method: str
    characters: str | None

    def __call__(self, text: str) -> str:
        stripped: str = getattr(text, self.method)(self.characters)
        return stripped


@dataclass(frozen=True, slots=True)
class AsJson:
    """Write a value as JSON."""

    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, value: Any) -> str:
        return to_json(value, **dict(self.options))


@dataclass(slots=True)
class Assumptions:
    """What one rendering with unknown values assumed about them, and the slots that it printed."""

    constants: set[str] = field(default_factory=set)  # texts that no unknown text may hold
    different: set[tuple[int, int]] = field(default_factory=set)  # pairs of texts, by number
    lengths: dict[int, int] = field(default_factory=dict)  # number of a text → its length
    failure: str = ""  # the first question that has no rule
    slots: list[Slot] = field(default_factory=list)
    # Before the number of a slot, which is one character.  Drawn by lot, as a template can print any character that it knows.
    place: str = field(default_factory=lambda: f"{_PLACE}{secrets.token_hex(8)}")

    def failed(self, why: str) -> NotProven:
        """The end of the proof, as an error to raise."""
        self.failure = self.failure or why
        return NotProven(self.failure)

    def written(self, text: "UnknownText") -> str:
        """An unknown text as a string, with a place for each slot."""
        written = []
        for part in text.parts:
            if isinstance(part, str):
                written.append(part)
                continue
            if len(self.slots) >= _MOST_PLACES:
                raise self.failed("it prints too many texts of messages")
            written.append(self.place + chr(_FIRST_PLACE + len(self.slots)))
            self.slots.append(part)
        return "".join(written)

    def read(self, value: Any) -> Any:
        """The reverse of `written`, for what a macro or a block of the template has printed; other values as they are."""
        if not isinstance(value, str) or self.place not in value:
            return value
        if type(value) is not str:
            raise self.failed("it marks text of a message as safe for HTML")
        return UnknownText(self, self.parts_of(value))

    def parts_of(self, written: str) -> "tuple[str | Slot, ...]":
        """Literal text and slots of a string that `written` made."""
        first, *rest = written.split(self.place)
        parts: list[str | Slot] = [first]
        for piece in rest:
            parts += [self.slots[ord(piece[0]) - _FIRST_PLACE], piece[1:]]
        return tuple(parts)

    def join(self, values: Sequence[Any]) -> "UnknownText":
        """Texts one after another, by `+`, `~` or in a macro."""
        parts: list[str | Slot] = []
        for value in values:
            if isinstance(value, UnknownText):
                parts += value.parts
            elif type(value) is str:
                parts.append(value)
            else:
                raise self.failed(f"it joins text of a message with a {type(value).__name__}")
        return UnknownText(self, parts)


class Unknown:
    """A value of which nothing is known.  Every question about it ends the proof."""

    __slots__ = ("_assumptions",)
    what = "a value of a message"
    # Tests of jinja2, and their answers.
    known_tests: ClassVar[dict[str, bool]] = {"defined": True, "undefined": False}

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions

    def failed(self, how: str) -> NotProven:
        return self._assumptions.failed(f"it {how} {self.what}")

    def _refuse(self, *args: Any) -> Any:
        raise self.failed("computes with")

    __str__ = __repr__ = __len__ = __iter__ = __hash__ = __bool__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __getitem__ = __contains__ = __format__ = __int__ = __float__ = __index__ = _refuse
    __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __neg__ = _refuse

    def attribute(self, name: Any) -> Callable[..., Any] | None:
        """A method of the value; None where no value of its kind has such an attribute."""
        raise self.failed(f"reads {str(name)[:40]!r} of")


class UnknownObject(Unknown):
    """A dict with any keys and values: the arguments of a call, a tool, the result of a tool.  It is not empty."""

    __slots__ = ("_slot",)
    what = "an object of a message"
    known_tests: ClassVar[dict[str, bool]] = {
        **Unknown.known_tests,
        **dict.fromkeys(("mapping", "iterable", "sequence"), True),
        **dict.fromkeys(("string", "none", "number", "integer", "float", "boolean"), False),
        **dict.fromkeys(("true", "false", "callable"), False),
    }

    def __init__(self, assumptions: Assumptions, number: int) -> None:
        super().__init__(assumptions)
        self._slot = Slot(number)

    def __bool__(self) -> bool:
        return True

    def as_json(self, options: dict[str, Any]) -> "UnknownText":
        return UnknownText(self._assumptions, [_json_slot(self._slot, options)])


class UnknownText(Unknown):
    """Text with at least one letter that is not whitespace, alone or among literal text."""

    __slots__ = ("parts",)
    what = "the text of a message"
    known_tests: ClassVar[dict[str, bool]] = {
        **Unknown.known_tests,
        **dict.fromkeys(("string", "iterable", "sequence"), True),
        **dict.fromkeys(("mapping", "none", "number", "integer", "float", "boolean"), False),
        **dict.fromkeys(("true", "false", "callable"), False),
    }

    def __init__(self, assumptions: Assumptions, parts: "Sequence[str | Slot]") -> None:
        super().__init__(assumptions)
        self.parts = _merged(parts)

    # Rules.  Each is a question or an operation, and true for all words that keep what is assumed.

    def __bool__(self) -> bool:
        """It is not empty: a letter of the words is left, whatever was done to them."""
        return True

    def __contains__(self, constant: Any) -> bool:
        """A constant in literal text is found.  No words hold it, which is assumed, and none can complete it."""
        self._require_constant(constant, "looks for something in")
        if any(isinstance(part, str) and constant in part for part in self.parts):
            return True
        self._assume_absent(constant)
        return False

    def __eq__(self, other: Any) -> bool:
        """Words are not empty and not whitespace.  They do not hold the constant, so they are not equal to it.

        Two texts are different ones, which is assumed.
        """
        if isinstance(other, UnknownText):
            return self._is_same(other)
        if other is None or isinstance(other, bool | int | float | list | dict):
            return False
        self._only_slot("compares")
        if type(other) is not str:
            raise self.failed("compares something with")
        if other and not other.isspace():
            self._assume_absent(other)
        return False

    def __ne__(self, other: Any) -> bool:
        return not self.__eq__(other)

    __hash__: Any = Unknown.__hash__

    def _is_same(self, other: "UnknownText") -> bool:
        numbers = (self._words_alone("compares").number, other._words_alone("compares").number)
        if numbers[0] != numbers[1]:
            self._assumptions.different.add((min(numbers), max(numbers)))
        return numbers[0] == numbers[1]

    def has_length(self, length: int) -> bool:
        """The first number that a length is compared with is the length, which is assumed.  No text is empty."""
        if length <= 0:
            return False
        number = self._words_alone("asks for the length of").number
        return self._assumptions.lengths.setdefault(number, length) == length

    def cut(self, start: Any, stop: Any, step: Any) -> "UnknownText":
        """Cut characters off the literal text at the ends, before and behind all words."""
        parts = list(self.parts)
        first = parts[0] if isinstance(parts[0], str) else ""
        last = parts[-1] if isinstance(parts[-1], str) else ""
        begin = 0 if start is None else start
        end = 0 if stop is None else stop
        is_literal = type(begin) is int and type(end) is int and step is None
        if not is_literal or not 0 <= begin <= len(first) or not -len(last) <= end <= 0:
            raise self.failed("cuts letters off")
        if stop == 0:
            raise self.failed("cuts letters off")  # all of them
        if begin:
            parts[0] = first[begin:]
        if end:
            parts[-1] = last[:end]
        return UnknownText(self._assumptions, parts)

    def begins_with(self, constant: Any) -> bool:
        """Literal text tells; words do not hold the constant."""
        self._require_constant(constant, "compares the beginning of")
        return self._has_end(self.parts[0], constant, str.startswith)

    def ends_with(self, constant: Any) -> bool:
        self._require_constant(constant, "compares the end of")
        return self._has_end(self.parts[-1], constant, str.endswith)

    def _has_end(self, part: "str | Slot", constant: str, has: Callable[[str, str], bool]) -> bool:
        if not isinstance(part, str):
            self._only_slot("compares the ends of")
            self._assume_absent(constant)
            return False
        if len(part) < len(constant) and has(constant, part):
            raise self.failed("compares the ends of")  # the words decide about the rest
        return has(part, constant)

    def stripped(self, method: str, characters: Any = None) -> "UnknownText":
        """Whitespace at the ends goes.  A letter stays, so that nothing behind it is touched."""
        if not _is_white_space(characters):
            raise self.failed("cuts letters off")
        parts = list(self.parts)
        if method != "rstrip":
            _strip_first(parts, Stripped("lstrip", characters))
        if method != "lstrip":
            parts.reverse()
            _strip_first(parts, Stripped("rstrip", characters))
            parts.reverse()
        return UnknownText(self._assumptions, parts)

    def split(self, separator: Any = None, most: int = -1) -> "list[UnknownText]":
        """Words do not hold the separator, so there is one part."""
        if type(most) is not int or self.__contains__(separator):
            raise self.failed("splits")
        return [self]

    def replaced(self, old: Any, new: Any, most: int | None = None) -> "UnknownText":
        """Words do not hold what is replaced."""
        if type(new) is not str or not isinstance(most, int | None) or self.__contains__(old):
            raise self.failed("replaces something in")
        return self

    def as_json(self, options: dict[str, Any]) -> "UnknownText":
        """One text of a message, as a string of JSON."""
        return UnknownText(
            self._assumptions, [_json_slot(self._only_slot("writes as JSON"), options)]
        )

    def attribute(self, name: Any) -> Callable[..., Any] | None:
        methods: dict[str, Callable[..., Any]] = {
            "startswith": self.begins_with,
            "endswith": self.ends_with,
            "split": self.split,
            "replace": self.replaced,
            **{
                method: lambda characters=None, method=method: self.stripped(method, characters)
                for method in ("strip", "lstrip", "rstrip")
            },
        }
        if name in methods:
            return methods[name]
        if type(name) is not str or name in _TEXT_ATTRIBUTES:
            raise self.failed(f"reads {str(name)[:40]!r} of")
        return None

    # What the rules share

    def _only_slot(self, how: str) -> Slot:
        """The slot of a text that is nothing but the words of one field, as they are or with their ends cut."""
        if len(self.parts) != 1 or isinstance(self.parts[0], str) or self.parts[0].is_json:
            raise self.failed(how)
        return self.parts[0]

    def _words_alone(self, how: str) -> Slot:
        """The slot of a text that is the words of one field as they are."""
        slot = self._only_slot(how)
        if slot.changes:
            raise self.failed(how)
        return slot

    def _require_constant(self, constant: Any, how: str) -> None:
        if type(constant) is not str or not constant:
            raise self.failed(how)

    def _assume_absent(self, constant: str) -> None:
        """Assume that no words hold a constant, and prove that words and the literal text next to them cannot form it."""
        for part in self.parts:
            if isinstance(part, str):
                if _may_complete(part, constant):
                    raise self.failed("looks in text that is joined with")
            elif part.is_json:
                raise self.failed("looks into the JSON of")
        slots = [isinstance(part, Slot) for part in self.parts]
        if any(a and b for a, b in pairwise(slots)):
            raise self.failed("looks in text that is joined with")
        self._assumptions.constants.add(constant)


class UnknownLength(Unknown):
    """The number of characters of an unknown text: one at least."""

    __slots__ = ("_text",)
    what = "the length of a text of a message"

    def __init__(self, assumptions: Assumptions, text: UnknownText) -> None:
        super().__init__(assumptions)
        self._text = text

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: Any) -> bool:
        if type(other) is not int:
            raise self.failed("compares something with")
        return self._text.has_length(other)

    def __ne__(self, other: Any) -> bool:
        return not self.__eq__(other)

    __hash__: Any = Unknown.__hash__

    def __gt__(self, other: Any) -> bool:
        """It is more than nothing; other numbers have no rule."""
        if type(other) is not int or other > 0:
            raise self.failed("compares something with")
        return True


def _merged(parts: "Sequence[str | Slot]") -> "tuple[str | Slot, ...]":
    """The same without empty literal text, and with neighbours of literal text joined."""
    merged: list[str | Slot] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return tuple(merged)


def _json_slot(slot: Slot, options: dict[str, Any]) -> Slot:
    as_json = AsJson(tuple(options.items()))
    return replace(slot, changes=(*slot.changes, as_json), is_json=True)


def _is_white_space(characters: Any) -> bool:
    """Whether this argument of `strip` lets it cut off whitespace only."""
    return characters is None or (type(characters) is str and characters.isspace())


def _strip_first(parts: "list[str | Slot]", strip: Stripped) -> None:
    """Strip the first of the parts, and the next one where nothing is left of it."""
    while parts:
        first = parts[0]
        if not isinstance(first, str):
            if not first.is_json:  # JSON neither begins nor ends with whitespace
                parts[0] = replace(first, changes=(*first.changes, strip))
            return
        parts[0] = strip(first)
        if parts[0]:
            return
        del parts[0]


def _may_complete(literal: str, constant: str) -> bool:
    """Whether words before or behind a literal text may form a constant together with it."""
    for cut in range(1, len(constant)):
        begin = constant[:cut]
        end = constant[cut:]
        if literal.endswith(begin) or begin.endswith(literal):
            return True
        if literal.startswith(end) or end.startswith(literal):
            return True
    return False
