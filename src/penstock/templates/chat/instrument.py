"""Rewrite a chat template so that its rendering says which message printed which characters.

A chat template prints its messages in loops.  A call is put behind every `{% for … %}`: where the loop variable *is* one of the
messages handed in, by identity, it prints a mark with the loop's level and the message's number.  A constant mark behind
`{% endfor %}` leaves the level.  `attribution.py` reads the marks.  Messages are not altered, and a template cannot read what
it has printed outside macros and other captures, where no marks are put: so the rendering without its marks is the plain rendering.

`{% generation %}` tags become marks as well.  White space control is resolved while rewriting, so that the result means the same to
jinja2 and to minijinja; compile it with `trim_blocks=False, lstrip_blocks=False, keep_trailing_newline=True`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jinja2
import jinja2.ext

from penstock.errors import TemplateError

MARK = (
    "\ufdd0"  # a noncharacter: no text means anything by it.  A mark is MARK, a level and a number, one character each.
)
LOOP_FUNCTION = (
    "penstock_loop"  # (level, *values) → a mark for the message among the values, or one that leaves the level
)
SET_FUNCTION = "penstock_set"  # (level, value) → a mark if the value is a message, else ""
FIRST_LEVEL = 0x30  # level l is chr(FIRST_LEVEL + l)
FIRST_NUMBER = 0x100  # message n is chr(FIRST_NUMBER + n)
NOBODY = chr(0x30)  # the number of a mark that leaves its level
SET_BIT = 0x80  # added to the level of marks that a `{% set %}` makes
GENERATION, END_GENERATION = chr(0x21), chr(0x22)  # levels of the marks around what a generation block prints
MOST_MESSAGES = 0xD800 - FIRST_NUMBER
_MOST_LEVELS = 0x40

_LEXER = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
_CAPTURES = ("macro", "call", "filter", "block")
# Loops over these, and variables set to these, are never messages.
_NOT_MESSAGES = frozenset(
    (
        *(
            "items",
            "dictsort",
            "tool_calls",
            "function",
            "content",
            "arguments",
            "parameters",
            "properties",
            "name",
            "role",
        ),
        *("reasoning_content", "thinking", "text", "type", "id", "length", "trim", "tojson", "string"),
    )
)
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}

Token = tuple[str, str]  # type and text


@dataclass(slots=True)
class _Statement:
    """A piece of the template: text, `{{ … }}` or `{% … %}`."""

    kind: str  # data, print or block
    tokens: list[Token]
    line: int
    word: str = ""  # the first name in a block: for, endfor, set …

    def text(self) -> str:
        inside = "".join(text for _, text in self.tokens)
        if self.kind == "data":
            return _literal(inside)
        return f"{{{{ {inside} }}}}" if self.kind == "print" else f"{{% {inside} %}}"

    def at_line(self, written: int) -> str:
        """The text, moved down to its line of the template, so that errors name that one."""
        text = self.text()
        return text if self.kind == "data" else f"{text[:2]}{chr(10) * max(0, self.line - 1 - written)}{text[2:]}"


@dataclass(slots=True)
class _Loop:
    """An open `{% for %}`."""

    level: int
    marked: bool  # whether it prints marks


@dataclass(slots=True)
class _Block:
    """An open block of any kind."""

    word: str
    loop: _Loop | None = None


@dataclass(slots=True)
class Instrumented:
    source: str
    plain: str  # the same without marks
    has_generation: bool  # whether the template has `{% generation %}` tags
    num_loops: int = field(default=0)  # loops that may mark messages


def instrument(text: str) -> Instrumented:
    """Return the template with marks."""
    try:
        statements = list(_statements(text))
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is not Jinja: line {error.lineno}: {error.message}") from error
    return _Writer(statements).write()


class _Writer:
    def __init__(self, statements: list[_Statement]) -> None:
        self._statements = statements
        self._ends = _matching_ends(statements)
        self._out: list[str] = []
        self._open: list[_Block] = []
        self._captures = 0
        self._lines = 0  # written so far
        self._found = Instrumented("", "", has_generation=False)

    def write(self) -> Instrumented:
        for place, statement in enumerate(self._statements):
            if statement.kind == "block":
                self._block(place, statement)
            else:
                self._copy(statement)
        self._found.source = "".join(self._out)
        tags = ("generation", "endgeneration")
        self._found.plain = "".join(part.text() for part in self._statements if part.word not in tags)
        return self._found

    def _copy(self, statement: _Statement) -> None:
        self._out.append(statement.at_line(self._lines))
        self._lines += self._out[-1].count("\n")

    def _block(self, place: int, statement: _Statement) -> None:
        word = statement.word
        if word in ("generation", "endgeneration"):
            self._generation(word)
            return
        self._copy(statement)
        if word.startswith("end"):
            self._close(word)
        elif word == "for":
            self._enter(place, statement)
        elif word == "if" or word in _CAPTURES or (word == "set" and _is_capture(statement)):
            self._captures += word != "if"
            self._open.append(_Block(word))
        elif word == "set":
            self._set(statement)

    def _generation(self, word: str) -> None:
        if self._captures:
            raise TemplateError(
                "the chat template has a generation tag inside a macro or a set block, where what it prints cannot be followed; "
                "move the tag around the place where the text is printed"
            )
        self._found.has_generation = True
        self._out.append(f"{MARK}{GENERATION if word == 'generation' else END_GENERATION}{NOBODY}")

    def _close(self, word: str) -> None:
        block = self._open.pop() if self._open else _Block("")
        if word == "endfor" and block.loop is not None and block.loop.marked:
            self._out.append(_leave(block.loop.level))
        elif block.word == "for recursive" or (block.word not in ("if", "for", "")):
            self._captures -= 1

    def _enter(self, place: int, statement: _Statement) -> None:
        targets, recursive = _targets(statement)
        if recursive:  # `loop(…)` gives its text as a value: a capture
            self._captures += 1
            self._open.append(_Block("for recursive"))
            return
        body = self._statements[place + 1 : self._ends.get(place, len(self._statements))]
        level = sum(block.loop is not None for block in self._open)
        prints = not self._captures and level < _MOST_LEVELS and any(part.kind != "block" for part in body)
        sets = any(part.kind == "block" and part.word == "set" and _set_name(part) for part in body)
        loop = _Loop(level, marked=prints and bool(targets or sets))
        self._open.append(_Block("for", loop))
        if loop.marked:
            self._found.num_loops += 1
            values = "".join(f", {target}" for target in targets)
            self._out.append(f"{{{{ {LOOP_FUNCTION}({level}{values}) }}}}" if targets else _leave(level))

    def _set(self, statement: _Statement) -> None:
        """Mark `{% set message = messages[i] %}` directly inside a loop; attribution ignores it if the loop is over messages itself."""
        loop = next((block.loop for block in reversed(self._open) if block.loop is not None), None)
        name = _set_name(statement)
        if loop is not None and loop.marked and name and not self._captures:
            self._out.append(f"{{{{ {SET_FUNCTION}({loop.level}, {name}) }}}}")


def _leave(level: int) -> str:
    return f"{MARK}{chr(FIRST_LEVEL + level)}{NOBODY}"


class Marker:
    """The two functions that a template calls, for the messages of one rendering."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # identity of a message → its number

    def start(self, context: dict[str, Any]) -> dict[str, Any]:
        """Begin a rendering; return the context to render, in which no message stands twice."""
        messages = context["messages"]
        if len(messages) > MOST_MESSAGES:
            raise TemplateError(f"the conversation has {len(messages):_} messages, expected at most {MOST_MESSAGES:_}")
        self._numbers = {id(message): number for number, message in enumerate(messages)}
        if len(self._numbers) < len(messages):  # one object at several places
            messages = [dict(message) for message in messages]
            self._numbers = {id(message): number for number, message in enumerate(messages)}
            context = {**context, "messages": messages}
        return context

    def loop(self, level: int, *values: Any) -> str:
        for value in values:
            if (number := self._numbers.get(id(value))) is not None:
                return f"{MARK}{chr(FIRST_LEVEL + level)}{chr(FIRST_NUMBER + number)}"
        return _leave(level)

    def set(self, level: int, value: Any) -> str:
        number = self._numbers.get(id(value))
        return "" if number is None else f"{MARK}{chr(FIRST_LEVEL + SET_BIT + level)}{chr(FIRST_NUMBER + number)}"


def _statements(text: str) -> Iterator[_Statement]:
    kind, tokens, began = "", list[Token](), 0
    for line, token, value in _LEXER.lexer.tokeniter(text, None):
        if token == "data":
            yield _Statement("data", [(token, value)], line)
        elif token in ("block_begin", "variable_begin"):
            kind, tokens, began = "block" if token == "block_begin" else "print", [], line
        elif token in ("block_end", "variable_end"):
            word = next((value for name, value in tokens if name == "name"), "")
            yield _Statement(kind, tokens, began, word if kind == "block" else "")
            kind = ""
        elif kind:
            tokens.append((token, value))


def _matching_ends(statements: list[_Statement]) -> dict[int, int]:
    """Place of each `for` → place of its `endfor`."""
    waiting: list[int] = []
    ends: dict[int, int] = {}
    for place, statement in enumerate(statements):
        if statement.word == "for":
            waiting.append(place)
        elif statement.word == "endfor" and waiting:
            ends[waiting.pop()] = place
    return ends


def _literal(text: str) -> str:
    """Text as template source, whatever it looks like."""
    if MARK in text:
        raise TemplateError(f"the chat template prints {MARK!r}, a noncharacter that marks messages here; remove it")
    looks_like_code = text.endswith("{") or any(a == "{" and b in "{%#" for a, b in pairwise(text))
    return f"{{% raw %}}{text}{{% endraw %}}" if looks_like_code else text


def _targets(statement: _Statement) -> tuple[list[str], bool]:
    """The loop variables that may be a message, and whether the loop is recursive."""
    words = [token for token in statement.tokens if token[0] not in ("whitespace", "comment")]
    border = next(place for place, token in enumerate(words) if token == ("name", "in"))
    names = [text for kind, text in words[1:border] if kind == "name"]
    iterable = [text for kind, text in words[border + 1 :] if (kind, text) != ("name", "recursive")]
    iterable = iterable[: iterable.index("if")] if "if" in iterable else iterable
    if (
        iterable[:2] == ["range", "("]
        or iterable[-3:] == ["items", "(", ")"]
        or iterable[-1].strip("'\"") in _NOT_MESSAGES
    ):
        names = []
    return names, words[-1] == ("name", "recursive")


def _at_top(statement: _Statement) -> Iterator[tuple[int, Token]]:
    """Tokens outside all brackets, with their places."""
    depth = 0
    for place, (kind, text) in enumerate(statement.tokens):
        depth += _BRACKETS.get(text, 0) if kind == "operator" else 0
        if not depth:
            yield place, (kind, text)


def _is_capture(statement: _Statement) -> bool:
    """Whether `{% set x %}` opens a block."""
    return not any(token == ("operator", "=") for _, token in _at_top(statement))


def _set_name(statement: _Statement) -> str | None:
    """The name that `{% set name = value %}` gives to what may be a message; None for constants and attributes."""
    words = [token for token in statement.tokens if token[0] != "whitespace"]
    if len(words) < 4 or words[1][0] != "name" or words[2] != ("operator", "="):
        return None
    constant = len(words) == 4 and (words[3][0] != "name" or words[3][1].lower() in ("true", "false", "none"))
    last = words[-2] if words[-1] == ("operator", "]") else words[-1]
    field = last[0] in ("name", "string") and last[1].strip("'\"") in _NOT_MESSAGES and len(words) > 4
    return None if constant or field or words[3][0] == "string" else words[1][1]
