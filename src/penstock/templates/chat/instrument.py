"""Make a chat template's rendering say which message printed which characters.

A chat template prints its messages in loops.  `instrument` puts a call behind every `{% for … %}`: where the loop variable *is* one of the
messages handed in, by identity, it prints a mark with the loop's level and the message's number.  A constant mark behind `{% endfor %}`
leaves the level.  `attribute` reads the marks and takes them out.  Messages are not altered, and a template cannot read what it has printed
outside macros and other captures, where no marks are put: so the rendering without its marks is the plain rendering.

`{% generation %}` tags become marks as well.  Whitespace control is resolved while rewriting: compile the result with
`trim_blocks=False, lstrip_blocks=False, keep_trailing_newline=True`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import jinja2
import jinja2.ext

from penstock.errors import TemplateError

MARK = "\ufdd0"  # a noncharacter.  A mark is MARK, a level and a number, one character each.
LOOP_FUNCTION = "penstock_loop"  # (level, *values) → a mark for the message among the values, or one that leaves the level
SET_FUNCTION = "penstock_set"  # (level, value) → a mark if the value is a message, else ""
_FIRST_LEVEL = 0x30  # level l is chr(_FIRST_LEVEL + l)
_SET_BIT = 0x80  # added to the level of marks that a `{% set %}` makes
_FIRST_NUMBER = 0x100  # message n is chr(_FIRST_NUMBER + n)
_NO_MESSAGE = chr(0x30)  # the number of a mark that leaves its level
_TAGS = {
    "generation": chr(0x21),
    "endgeneration": chr(0x22),
}  # levels of the marks around a generation block
_MOST_MESSAGES = 0xD800 - _FIRST_NUMBER
_MOST_LEVELS = 0x40

_LEXER = jinja2.Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
).lexer
_CAPTURES = ("macro", "call", "filter", "block")
_SCOPES = ("if", "with", "autoescape")


@dataclass(slots=True)
class _Statement:
    """A piece of the template: text, `{{ … }}` or `{% … %}`."""

    kind: str  # data, print or block
    tokens: list[tuple[str, str]]  # type and text
    line: int

    @property
    def word(self) -> str:
        """The first name in a block: for, endfor, set …"""
        return (
            next((text for kind, text in self.tokens if kind == "name"), "")
            if self.kind == "block"
            else ""
        )

    def text(self, newlines: int = 0) -> str:
        """The source.  `newlines` move it down to its line of the template, so that errors name that one."""
        inside = "".join(text for _, text in self.tokens)
        if self.kind == "data":
            return _literal(inside)
        begin, end = ("{{", "}}") if self.kind == "print" else ("{%", "%}")
        return f"{begin}{chr(10) * newlines} {inside} {end}"

    def words(self) -> list[tuple[str, str]]:
        return [token for token in self.tokens if token[0] not in ("whitespace", "comment")]


@dataclass(slots=True)
class _Block:
    """An open block."""

    is_capture: bool = False
    level: int | None = None  # of a loop
    is_marked: bool = False  # whether the loop prints marks


@dataclass(frozen=True, slots=True)
class Instrumented:
    source: str
    plain: str  # the same without marks
    has_generation: bool  # whether the template has `{% generation %}` tags


def instrument(text: str) -> Instrumented:
    """Return the template with marks."""
    try:
        statements = list(_statements(text))
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"the chat template is not Jinja: line {error.lineno}: {error.message}"
        ) from error
    marked = _Writer(statements).write()
    untagged = [statement for statement in statements if statement.word not in _TAGS]
    plain = "".join(statement.text() for statement in untagged)
    return Instrumented(marked, plain, has_generation=len(untagged) < len(statements))


def _statements(text: str) -> Iterator[_Statement]:
    kind = ""
    tokens = list[tuple[str, str]]()
    began = 0
    for line, token, value in _LEXER.tokeniter(text, None):
        if token == "data":
            yield _Statement("data", [(token, value)], line)
        elif token in ("block_begin", "variable_begin"):
            kind = "block" if token == "block_begin" else "print"
            tokens = []
            began = line
        elif token in ("block_end", "variable_end"):
            yield _Statement(kind, tokens, began)
            kind = ""
        elif kind:
            tokens.append((token, value))


class _Writer:
    """Writes the statements of a template out again, with marks."""

    def __init__(self, statements: list[_Statement]) -> None:
        self._statements = statements
        self._out: list[str] = []
        self._open: list[_Block] = []
        self._lines = 0  # written so far

    def write(self) -> str:
        for place, statement in enumerate(self._statements):
            word = statement.word
            if word in _TAGS:
                if self._in_capture():
                    raise TemplateError(
                        "the chat template has a generation tag inside a macro or a set block, where what it prints cannot be "
                        "followed; move the tag around the place where the text is printed"
                    )
                self._out.append(f"{MARK}{_TAGS[word]}{_NO_MESSAGE}")
                continue
            self._out.append(statement.text(max(0, statement.line - 1 - self._lines)))
            self._lines += self._out[-1].count("\n")
            if word == "for":
                self._enter(place, statement)
            elif word.startswith("end"):
                self._close()
            elif word in _SCOPES:
                self._open.append(_Block())
            elif word in _CAPTURES or (word == "set" and _is_capture(statement)):
                self._open.append(_Block(is_capture=True))
            elif word == "set":
                self._set(statement)
        return "".join(self._out)

    def _in_capture(self) -> bool:
        return any(block.is_capture for block in self._open)

    def _close(self) -> None:
        block = self._open.pop() if self._open else _Block()
        if block.is_marked and block.level is not None:
            self._out.append(_mark(block.level))

    def _enter(self, place: int, statement: _Statement) -> None:
        targets, is_recursive = _targets(statement)
        if is_recursive:  # `loop(…)` gives its text as a value: a capture
            self._open.append(_Block(is_capture=True))
            return
        level = sum(block.level is not None for block in self._open)
        prints = any(part.kind != "block" for part in self._body(place))
        block = _Block(
            level=level, is_marked=prints and level < _MOST_LEVELS and not self._in_capture()
        )
        self._open.append(block)
        if block.is_marked:
            self._out.append(f"{{{{ {LOOP_FUNCTION}({', '.join([str(level), *targets])}) }}}}")

    def _body(self, place: int) -> Iterator[_Statement]:
        """What is inside the loop that begins at `place`."""
        depth = 1
        for statement in self._statements[place + 1 :]:
            depth += (statement.word == "for") - (statement.word == "endfor")
            if not depth:
                return
            yield statement

    def _set(self, statement: _Statement) -> None:
        """Mark `{% set message = messages[i] %}` directly inside a loop; attribution ignores it if the loop is over messages itself."""
        loop = next((block for block in reversed(self._open) if block.level is not None), _Block())
        if loop.is_marked and not self._in_capture() and (name := _set_name(statement)):
            self._out.append(f"{{{{ {SET_FUNCTION}({loop.level}, {name}) }}}}")


def _literal(text: str) -> str:
    """Return text as template source, escaped if it looks like code."""
    if MARK in text:
        raise TemplateError(
            f"the chat template prints {MARK!r}, which Penstock uses to mark messages; remove it"
        )
    looks_like_code = text.endswith("{") or any(a == "{" and b in "{%#" for a, b in pairwise(text))
    return f"{{% raw %}}{text}{{% endraw %}}" if looks_like_code else text


def _targets(statement: _Statement) -> tuple[list[str], bool]:
    """The loop variables, and whether the loop is recursive."""
    words = statement.words()
    if ("name", "in") not in words:
        raise TemplateError(
            f"the chat template is not Jinja: line {statement.line}: a for tag without in, expected {{% for … in … %}}"
        )
    names = [text for kind, text in words[1 : words.index(("name", "in"))] if kind == "name"]
    return names, words[-1] == ("name", "recursive")


def _is_capture(statement: _Statement) -> bool:
    """Whether `{% set x %}` opens a block: it has no `=` outside brackets."""
    depth = 0
    for kind, text in statement.tokens:
        depth += ((text in "([{") - (text in ")]}")) if kind == "operator" else 0
        if not depth and (kind, text) == ("operator", "="):
            return False
    return True


def _set_name(statement: _Statement) -> str | None:
    """Return the name in `{% set name = value %}`."""
    words = statement.words()
    return words[1][1] if words[1][0] == "name" and words[2:3] == [("operator", "=")] else None


def _mark(level: int, number: int | None = None) -> str:
    return f"{MARK}{chr(_FIRST_LEVEL + level)}{_NO_MESSAGE if number is None else chr(_FIRST_NUMBER + number)}"


class Marker:
    """The two functions that a template calls, for the messages of one rendering."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # identity of a message → its number

    def start(self, context: dict[str, Any]) -> dict[str, Any]:
        """Begin a rendering; return the context to render, in which no message is there twice."""
        messages = context["messages"]
        if len(messages) > _MOST_MESSAGES:
            raise TemplateError(
                f"the conversation has {len(messages):_} messages, expected at most {_MOST_MESSAGES:_}"
            )
        self._numbers = {id(message): number for number, message in enumerate(messages)}
        if len(self._numbers) < len(messages):  # one object at several places
            return self.start({**context, "messages": [dict(message) for message in messages]})
        return context

    def loop(self, level: int, *values: Any) -> str:
        for value in values:
            if (number := self._numbers.get(id(value))) is not None:
                return f"{MARK}{chr(_FIRST_LEVEL + level)}{chr(_FIRST_NUMBER + number)}"  # not by _mark: it is called often
        return _mark(level)

    def set(self, level: int, value: Any) -> str:
        number = self._numbers.get(id(value))
        return "" if number is None else _mark(_SET_BIT + level, number)


class PrintedRun(NamedTuple):
    """Characters start..stop of a rendering that one message printed; -1 if no message did."""

    start: int
    stop: int
    message: int


@dataclass(frozen=True, slots=True)
class Attribution:
    """A rendering as text, which message printed which part, and which parts were in generation blocks."""

    text: str
    runs: list[PrintedRun]  # ascending, none empty, neighbours belong to different messages
    tagged: list[tuple[int, int]]
    _owned: dict[int, list[PrintedRun]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for run in self.runs:
            self._owned.setdefault(run.message, []).append(run)

    def runs_of(self, number: int) -> list[PrintedRun]:
        return self._owned.get(number, [])

    def printed_by(self, number: int) -> str:
        """All that a message printed in loops over the messages."""
        return "".join([self.text[start:stop] for start, stop, _ in self.runs_of(number)])


def attribute(rendered: str) -> Attribution:
    """Take the marks out of a rendering.

    Marks nest by level: a mark closes its own level and all deeper ones.  Characters belong to the message of the deepest open
    level, or to none.
    """
    first, *parts = rendered.split(MARK)
    texts = [first]
    runs = list[PrintedRun]()
    tagged = list[tuple[int, int]]()
    stack: list[tuple[int, int, bool]] = []  # levels entered: level, message, whether by a loop
    size = len(first)
    owner = -1
    opened = -1
    if first:
        runs.append(PrintedRun(0, size, -1))
    for part in parts:
        level = ord(part[0]) - _FIRST_LEVEL
        if level >= 0:
            is_set = level >= _SET_BIT
            level -= _SET_BIT * is_set
            if not (is_set and any(known == level and by_loop for known, _, by_loop in stack)):
                while stack and stack[-1][0] >= level:
                    stack.pop()
                if part[1] != _NO_MESSAGE:
                    stack.append((level, ord(part[1]) - _FIRST_NUMBER, not is_set))
                owner = stack[-1][1] if stack else -1
        elif part[0] == _TAGS["generation"]:
            opened = size
        else:
            if 0 <= opened < size:
                tagged.append((opened, size))
            opened = -1
        if length := len(part) - 2:
            if runs and runs[-1].message == owner:
                runs[-1] = PrintedRun(runs[-1].start, size + length, owner)
            else:
                runs.append(PrintedRun(size, size + length, owner))
            texts.append(part[2:])
            size += length
    if opened >= 0:
        raise TemplateError(
            "the chat template leaves a generation block early; remove the break or continue inside it"
        )
    return Attribution("".join(texts), runs, tagged)
