"""Limit chat templates, which are untrusted programs: the size of their source, what they can access, how long they run.

A template meets its limits in three places.  `check_source` looks at its tokens before anything compiles it.  `trial.py` renders made-up
conversations in a child process with limits set by the operating system.  In the user's process `Sandbox` keeps it from Python and counts
the turns of its loops, and the renderer bounds time and output of every conversation.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

from penstock.errors import TemplateError

SECONDS = 10.0  # for one conversation
MOST_TURNS = 20_000_000  # of all loops of one rendering
MOST_CHARACTERS = 1 << 25  # of output
# Of the source.  The largest of 75 templates of 2026 have 19,574 bytes, 2,676 tokens, 47 tokens in a tag, 3 brackets in each other and
# 20 blocks in each other, an `elif` counted as a block inside the one before it.
MOST_BYTES = 1 << 19
MOST_TOKENS = 60_000
MOST_IN_TAG = 1_000  # bounds every chain of operators, filters and attributes
MOST_BRACKETS = 32
MOST_BLOCKS = 128

_OPENS = frozenset(("if", "elif", "for", "macro", "call", "filter", "set", "with", "block", "generation"))
_DROPPED_FILTERS = ("random", "wordwrap", "urlize", "xmlattr", "pprint", "filesizeformat")  # not for chat templates
_DROPPED_GLOBALS = ("lipsum", "cycler", "joiner")  # Python functions and classes


class LimitExceeded(TemplateError):
    """A chat template is too large, runs too long, or makes too much text."""


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment that transformers gives to chat templates, with a count of loop turns.  Not for two threads at once."""

    def __init__(self) -> None:
        # White space control is resolved in instrumented sources.  Not optimized: constant expressions are computed when the template is
        # rendered, under its limits, not when it is compiled.
        super().__init__(keep_trailing_newline=True, extensions=[jinja2.ext.loopcontrols], optimized=False)
        self._turns = 0
        self._deadline = 0.0
        for name in _DROPPED_FILTERS:
            del self.filters[name]
        for name in _DROPPED_GLOBALS:
            del self.globals[name]
        self.filters["penstock_turns"] = jinja2.pass_context(lambda context, values: self._counted(values))
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace

    def start(self) -> None:
        """Begin a rendering."""
        self._turns = 0
        self._deadline = time.monotonic() + SECONDS

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._turns += 1
            if self._turns > MOST_TURNS or (self._turns & 63 == 0 and time.monotonic() > self._deadline):
                stop()
            yield value

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _CountLoops().visit(super()._parse(source, name, filename))
        return tree


class _CountLoops(jinja2.visitor.NodeTransformer):
    """Make every loop of a template count its turns."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = nodes.Filter(node.iter, "penstock_turns", [], [], None, None, lineno=node.iter.lineno)
        return node


def stop() -> NoReturn:
    raise LimitExceeded(
        f"the chat template passes a limit for one conversation: {SECONDS:.0f} s, {MOST_TURNS:_} turns of its loops or "
        f"{MOST_CHARACTERS:_} characters"
    )


def check_source(text: str) -> None:
    """Refuse a template that is too large or too deeply nested: compiling it could overflow an engine's stack."""
    _check(len(text.encode("utf-8", "surrogatepass")), MOST_BYTES, "{} bytes")
    lexer = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).lexer
    tokens = in_tag = brackets = 0
    blocks: list[str] = []  # names of those that are open
    before = ""
    try:
        for line, kind, value in lexer.tokeniter(text, None):
            if kind == "whitespace":
                continue
            tokens += 1
            in_tag += 1
            if kind in ("variable_begin", "block_begin"):
                in_tag = 1
            elif kind in ("variable_end", "block_end"):
                brackets = 0
            elif kind == "name" and before == "block_begin":
                _nest(blocks, value)
            elif kind == "operator":
                brackets += (value in "([{") - (value in ")]}")
                if value == "=" and in_tag == 4 and blocks and blocks[-1] == "set":
                    blocks.pop()  # `set x = …` opens no block
            before = kind
            _check(tokens, MOST_TOKENS, "{} tokens or more", line)
            _check(in_tag, MOST_IN_TAG, "a tag of {} tokens or more", line)
            _check(brackets, MOST_BRACKETS, "{} brackets inside each other", line)
            _check(len(blocks), MOST_BLOCKS, "{} blocks inside each other", line)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is not Jinja: line {error.lineno}: {error.message}") from error


def _nest(blocks: list[str], tag: str) -> None:
    """Open or close a block.  Engines nest an `elif` in the branch before it; both end with the `if`."""
    if tag in _OPENS:
        blocks.append(tag)
    elif tag.startswith("end") and (name := tag[3:]) in blocks:
        while blocks.pop() != name:
            pass


def _check(found: int, limit: int, what: str, line: int | None = None) -> None:
    if found > limit:
        where = "" if line is None else f" (line {line})"
        raise LimitExceeded(f"the chat template has {what.format(f'{found:_}')}{where}, expected at most {limit:_}")


def raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


class _Dict:
    """`dict` without Python's attributes of it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without names that begin with an underscore: some of them mean something to Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace cannot hold {name!r}: names with an underscore are Python's"
        )
