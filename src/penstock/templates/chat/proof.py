"""Prove what a chat template prints around the words of messages, for all words: by rendering it once with unknown words.

The template runs as it always does, in the same sandbox, compiled from the same syntax tree.  Only the texts of its messages are
`UnknownText`s (unknown.py).  Roles, the presence of fields, flags and the number of calls and tools are known: they are the messages'
kinds.  So every branch that the rendering takes is taken for all messages of these kinds whose words keep what was assumed, and what it
prints is the same literal text around the words.  Where the template asks something about words that has no rule, nothing is proven, and
such conversations are rendered one by one.

Every way in which a template can touch a value leads through this sandbox: operators that jinja2 lets it intercept, attributes, calls,
filters, tests and printing; and Python's own operators, which ask the value itself.
"""

import json
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from penstock.errors import TemplateError
from penstock.templates.chat.instrument import MARK
from penstock.templates.chat.kinds import ARGUMENTS, Kind
from penstock.templates.chat.unknown import (
    Assumptions,
    NotProven,
    Slot,
    Unknown,
    UnknownLength,
    UnknownObject,
    UnknownText,
)
from penstock.templates.guards import with_context
from penstock.templates.meter import MADE_UP
from penstock.templates.render import Renderer
from penstock.templates.sandbox import Sandbox, Trusted

_ANY_MARK = re.compile(f"{MARK}..", re.DOTALL)
_EXACT: dict[str, Any] = {"empty": "", "true": True, "false": False, "none": None}
_EQUAL = ("==", "eq", "equalto")
_UNEQUAL = ("!=", "ne")
# These filters look at nothing but the type of their value, and hand it on.
_HAND_ON = frozenset(("default", "d", "penstock_read", "penstock_made"))


@dataclass(frozen=True, slots=True)
class Proof:
    """What a template prints for all messages of some kinds, in some order."""

    literals: tuple[str, ...]  # with marks: the text before, between and behind the slots
    slots: tuple[Slot, ...]
    constants: tuple[str, ...]  # it holds where no text of a message has one of these inside
    different: tuple[tuple[int, int], ...]  # and these pairs of values are not equal
    lengths: tuple[tuple[int, int], ...]  # and these values are so long

    def marked(self, values: Sequence[Any]) -> str:
        """The rendering with marks of messages that have these texts and objects."""
        parts = [self.literals[0]]
        for slot, literal in zip(self.slots, self.literals[1:], strict=True):
            parts += [slot.text(values[slot.number]), literal]
        return "".join(parts)

    def is_comparable(self, values: Sequence[Any]) -> bool:
        """Whether the values compare as is assumed, with each other and by their lengths."""
        return all(values[a] != values[b] for a, b in self.different) and all(
            len(values[number]) == length for number, length in self.lengths
        )

    def plain_literals(self) -> list[str]:
        return [_ANY_MARK.sub("", literal) for literal in self.literals]


class Prover(Renderer):
    """Renders a chat template with unknown words."""

    def __init__(self, renderer: Renderer) -> None:
        self._assumptions = Assumptions()
        super().__init__(
            renderer.text,
            renderer.today,
            wraps_text=renderer.wraps_text,
            instrumented=renderer.instrumented,
        )

    def prove(self, kinds: Sequence[Kind], context: dict[str, Any], *, num_tools: int = 0) -> Proof:
        """Return what is printed of messages of these kinds; raise NotProven.

        context: what else the template is given.  num_tools: how many unknown tools it gets; 0 for those of the context.
        The values of the slots are the strings and objects of the messages, as `read_kind` lists them, then the unknown tools.
        """
        assumptions = Assumptions()
        self._assumptions = assumptions
        unknown = _UnknownMessages(assumptions)
        messages = [unknown.message(kind) for kind in kinds]
        tools = [unknown.object() for _ in range(num_tools)] or context["tools"]
        given = {**context, "messages": messages, "tools": tools}
        if self.wraps_text:
            raise NotProven("it takes content in parts only")
        try:
            written = self.render(given, MADE_UP)
        except NotProven as error:
            raise NotProven(f"{_line(error)}{error}") from error
        except TemplateError as error:
            raise NotProven(assumptions.failure or f"it refuses such messages: {error}") from error
        except Exception as error:  # any question to an unknown value may fail in its own way
            raise NotProven(f"{_line(error)}{assumptions.failure or error}") from error
        if assumptions.failure:
            raise NotProven(assumptions.failure)
        parts = assumptions.parts_of(written)
        return Proof(
            literals=tuple(part for part in parts if isinstance(part, str)),
            slots=tuple(part for part in parts if isinstance(part, Slot)),
            constants=tuple(sorted(assumptions.constants)),
            different=tuple(sorted(assumptions.different)),
            lengths=tuple(sorted(assumptions.lengths.items())),
        )

    def _open_sandbox(self) -> Sandbox:
        sandbox = _UnknownSandbox(lambda: self._assumptions)
        self._add_functions(sandbox)
        sandbox.guard_tables()
        return sandbox


def _line(error: BaseException) -> str:
    """The line of the template that an error comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return f"line {lines[-1]}: " if lines else ""


class _UnknownMessages:
    """Messages of given kinds, whose texts and objects are unknown.  Numbers count up in the order of `read_kind`."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._number = 0

    def message(self, kind: Kind) -> Any:
        return self._value("", kind)

    def object(self) -> UnknownObject:
        return UnknownObject(self._assumptions, self._next())

    def _next(self) -> int:
        self._number += 1
        return self._number - 1

    def _value(self, key: str, kind: Any) -> Any:
        if not isinstance(kind, tuple):
            return self._leaf(key, kind)
        what, inside = kind
        if what == "dict":
            return {name: self._value(name, inner) for name, inner in inside}
        if what == "list":
            return [self._value("part", inner) for inner in inside]
        if what == "types":
            types, named = inside
            return self.object() if types or named else {}
        if what == "is":
            return inside
        return Unknown(self._assumptions)

    def _leaf(self, key: str, kind: str) -> Any:
        """A kind that one value has is that value.  Numbers and odd texts are unknown: a template must not look at them."""
        if kind == "text":
            return UnknownText(self._assumptions, [Slot(self._next())])
        if kind == "thought":
            self._next()
        if kind in _EXACT and not (kind == "empty" and key in ARGUMENTS):
            return _EXACT[kind]
        return Unknown(self._assumptions)


class _UnknownSandbox(Sandbox):
    """The sandbox of chat templates, in which some values are unknown."""

    def __init__(self, assumptions: Callable[[], Assumptions]) -> None:
        self._assumptions = assumptions
        super().__init__()

    def _read(self, value: Any) -> Any:
        """A value; what a macro printed of unknown texts is an unknown text again."""
        return self._assumptions().read(value)

    def _finalizer(self) -> Any:
        usual = super()._finalizer()

        @jinja2.pass_context
        def finalize(context: Any, value: Any) -> Any:
            if isinstance(value, UnknownText):
                return self._assumptions().written(value)
            return usual(context, value)

        return finalize

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        left = self._read(left)
        right = self._read(right)
        if not isinstance(left, Unknown) and not isinstance(right, Unknown):
            return super().call_binop(context, operator, left, right)
        if operator != "+":
            raise self._assumptions().failed(
                f"it computes with {operator!r} and a value of a message"
            )
        return self._assumptions().join([left, right])

    def getattr(self, obj: Any, attribute: str) -> Any:
        obj = self._read(obj)
        if isinstance(obj, Unknown):
            return self._attribute(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        obj = self._read(obj)
        argument = self._read(argument)
        if isinstance(argument, Unknown):
            raise self._assumptions().failed("it looks up a value of a message")
        if isinstance(obj, Unknown):
            return self._attribute(obj, argument)
        return super().getitem(obj, argument)

    def _attribute(self, value: Unknown, name: Any) -> Any:
        method = value.attribute(name)
        return self.undefined(obj="", name=name) if method is None else Trusted(method)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        return __self._read(super().call(__context, __obj, *args, **kwargs))

    def guard_tables(self) -> None:
        """Put a question before every filter and test: whether it is given an unknown value."""
        tables: list[tuple[dict[str, Any], Any]] = [
            (self.filters, self._filtered),
            (self.tests, self._tested),
        ]
        for table, of_unknown in tables:
            guarded = {
                name: self._guarded(name, with_context(function), of_unknown)
                for name, function in table.items()
            }
            table.update(guarded)

    def _guarded(self, name: str, usual: Any, of_unknown: Any) -> Any:
        @jinja2.pass_context
        def guarded(context: Any, *args: Any, **kwargs: Any) -> Any:
            read = [self._read(value) for value in args]
            named = {key: self._read(value) for key, value in kwargs.items()}
            is_unknown = any(isinstance(value, Unknown) for value in (*read, *named.values()))
            if name in _HAND_ON or not (is_unknown or name in _OF_LISTS):
                return usual(context, *read, **named)
            if name in _OF_LISTS and not is_unknown:
                return self._of_list(name, context, usual, read, named)
            return of_unknown(name, *read, **named)

        return guarded

    def _of_list(
        self, name: str, context: Any, usual: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Filters of lists and dicts that hold unknown values: `a ~ b` and `tojson`."""
        if not _holds_unknown(args[0]):
            return usual(context, *args, **kwargs)
        if name == "penstock_concat":
            return self._assumptions().join([self._printed(value) for value in args[0]])
        if args[1:] or kwargs:
            raise self._assumptions().failed("it writes messages as JSON of a form of its own")
        return self._assumptions().join(list(self._as_json(args[0])))

    def _printed(self, value: Any) -> Any:
        value = self._read(value)
        return value if isinstance(value, Unknown) else str(self.guards.printable(value))

    def _as_json(self, value: Any) -> list[Any]:
        """The parts of a value as JSON, as `to_json` writes it."""
        if isinstance(value, UnknownText | UnknownObject):
            return [value.as_json({})]
        parts: list[Any] = []
        if type(value) is dict:
            for key, inner in value.items():
                if type(key) is not str:
                    raise self._assumptions().failed(
                        "it writes a dict as JSON whose keys are no text"
                    )
                start = ", " if parts else "{"
                parts += [f"{start}{json.dumps(key, ensure_ascii=False)}: ", *self._as_json(inner)]
            return [*parts, "}"] if parts else ["{}"]
        if type(value) in (list, tuple):
            for inner in value:
                parts += [", " if parts else "[", *self._as_json(inner)]
            return [*parts, "]"] if parts else ["[]"]
        if value is None or type(value) in (bool, int, float, str):
            return [json.dumps(value, ensure_ascii=False)]
        raise self._assumptions().failed(f"it writes a {type(value).__name__} as JSON")

    def _filtered(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """A filter of an unknown value."""
        if isinstance(value, UnknownText) and not kwargs:
            if name == "string" and not args:
                return value
            if name in ("length", "count") and not args:
                return UnknownLength(self._assumptions(), value)
            if name == "penstock_cut":
                return value.cut(*args)
            if name == "trim":
                return value.stripped("strip", *args)
            if name == "replace":
                return value.replaced(*args)
        is_known = not any(isinstance(option, Unknown) for option in (*args, *kwargs.values()))
        if name == "tojson" and isinstance(value, UnknownText | UnknownObject) and is_known:
            names = ("ensure_ascii", "indent", "separators", "sort_keys")
            return value.as_json({**dict(zip(names, args, strict=False)), **kwargs})
        raise self._assumptions().failed(f"it uses the filter {name!r} on a value of a message")

    def _tested(self, name: str, value: Any, *args: Any) -> bool:
        """A test of an unknown value."""
        if name in _EQUAL and len(args) == 1:
            return bool(value == args[0])
        if name in _UNEQUAL and len(args) == 1:
            return bool(value != args[0])
        if name == "in" and len(args) == 1:
            return bool(value in args[0])
        if isinstance(value, Unknown) and not args and name in value.known_tests:
            return bool(value.known_tests[name])
        raise self._assumptions().failed(f"it uses the test {name!r} on a value of a message")


_OF_LISTS = frozenset(("penstock_concat", "tojson"))


def _holds_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_unknown, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_unknown, value))
    return isinstance(value, Unknown)
