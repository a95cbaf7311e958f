"""Limit chat templates, which are untrusted programs: the size of their source, what they can access, how long they run.

At the end, their syntax trees are analysed: which names they read, what the generation prompt reads, which engine may render them.

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

_OPENS = frozenset(
    ("if", "elif", "for", "macro", "call", "filter", "set", "with", "block", "generation")
)
_DROPPED_FILTERS = (
    "random",
    "wordwrap",
    "urlize",
    "xmlattr",
    "pprint",
    "filesizeformat",
)  # not for chat templates
_DROPPED_GLOBALS = ("lipsum", "cycler", "joiner")  # Python functions and classes


class LimitExceeded(TemplateError):
    """A chat template is too large, runs too long, or makes too much text."""


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment that transformers gives to chat templates, with a count of loop turns.  Not for two threads at once."""

    def __init__(self) -> None:
        # White space control is resolved in instrumented sources.  Not optimized: constant expressions are computed when the template is
        # rendered, under its limits, not when it is compiled.
        super().__init__(
            keep_trailing_newline=True, extensions=[jinja2.ext.loopcontrols], optimized=False
        )
        self._turns = 0
        self._deadline = 0.0
        for name in _DROPPED_FILTERS:
            del self.filters[name]
        for name in _DROPPED_GLOBALS:
            del self.globals[name]
        self.filters["penstock_turns"] = jinja2.pass_context(
            lambda context, values: self._counted(values)
        )
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace

    def start(self) -> None:
        """Begin a rendering."""
        self._turns = 0
        self._deadline = time.monotonic() + SECONDS

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._turns += 1
            if self._turns > MOST_TURNS or (
                self._turns & 63 == 0 and time.monotonic() > self._deadline
            ):
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
        node.iter = nodes.Filter(
            node.iter, "penstock_turns", [], [], None, None, lineno=node.iter.lineno
        )
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
        raise TemplateError(
            f"the chat template is not Jinja: line {error.lineno}: {error.message}"
        ) from error


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
        raise LimitExceeded(
            f"the chat template has {what.format(f'{found:_}')}{where}, expected at most {limit:_}"
        )


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
        self = args[0]
        rest = args[1:]
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


# Analysis of syntax trees

_TEXTS = frozenset(("content", "text", "reasoning_content", "reasoning", "thinking", "arguments"))
_TYPE_TESTS = frozenset(
    ("defined", "undefined", "none", "string", "mapping", "iterable", "sequence")
)
Path = tuple[nodes.Node, ...]  # a node and those around it, the outermost first


def known_names(tree: nodes.Template) -> frozenset[str]:
    """Names that a template may look values up by."""
    constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(name for name in constants if len(name) < 80) | {
        node.attr for node in tree.find_all(nodes.Getattr)
    }


def prompt_reads_text(tree: nodes.Template) -> bool:
    """Return whether the text of messages reaches the generation prompt, as a condition or as a value.

    Some templates look for words such as "/no_think" in a message and print another generation prompt then.  Made-up messages do not tell
    the headers of such a template: they are found for every conversation by itself.  The answer errs on the side of yes.
    """
    paths = list(_paths(tree, ()))
    waiting = [
        node for path in paths if _is_prompt(path[-1]) for node in (path[-1], *_conditions(path))
    ]
    examined: set[int] = set()
    names: set[str] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in examined:
            continue
        examined.add(id(node))
        if _reads_text(node):
            return True
        fresh = _names(node) - names
        names |= fresh
        for path in paths if fresh else ():
            if (value := _value_given_to(path[-1], fresh)) is not None:
                waiting += [value, *_conditions(path)]
    return False


def _paths(node: nodes.Node, above: Path) -> Iterator[Path]:
    path = (*above, node)
    yield path
    for child in node.iter_child_nodes():
        yield from _paths(child, path)


def _within(node: nodes.Node) -> Iterator[nodes.Node]:
    """A node and all below it."""
    yield node
    yield from node.find_all(nodes.Node)


def _is_prompt(node: nodes.Node) -> bool:
    """A branch that is taken for the sake of the generation prompt."""
    return isinstance(node, nodes.If | nodes.CondExpr) and "add_generation_prompt" in _names(
        node.test
    )


def _conditions(path: Path) -> list[nodes.Node]:
    """What decides whether the last node of a path is reached."""
    found: list[nodes.Node | None] = []
    for node in path[:-1]:
        if isinstance(node, nodes.If | nodes.CondExpr):
            found.append(node.test)
        elif isinstance(node, nodes.For):
            found += [node.iter, node.test]
    return [node for node in found if node is not None]


def _names(node: nodes.Node) -> set[str]:
    """Variables in an expression; an attribute of a namespace by its own name."""
    inner = list(_within(node))
    names = {name.name for name in inner if isinstance(name, nodes.Name)}
    return names | {f".{ref.attr}" for ref in inner if isinstance(ref, nodes.Getattr | nodes.NSRef)}


def _value_given_to(node: nodes.Node, names: set[str]) -> nodes.Node | None:
    """Return the value that an assignment, a loop or a macro gives to one of these names."""
    if (
        isinstance(node, nodes.Assign | nodes.AssignBlock | nodes.For)
        and _names(node.target) & names
    ):
        return (
            node.iter
            if isinstance(node, nodes.For)
            else node.node
            if isinstance(node, nodes.Assign)
            else node
        )
    return node if isinstance(node, nodes.Macro) and node.name in names else None


def _reads_text(node: nodes.Node) -> bool:
    """Return whether an expression reads the text of a message, and not only whether it is empty."""
    inner = list(_within(node))
    tested = {
        id(test.node) for test in inner if isinstance(test, nodes.Test) and test.name in _TYPE_TESTS
    }
    fields = [(item, item.attr) for item in inner if isinstance(item, nodes.Getattr)]
    items = [
        item
        for item in inner
        if isinstance(item, nodes.Getitem) and isinstance(item.arg, nodes.Const)
    ]
    named = [*fields, *((item, item.arg.value) for item in items)]  # type: ignore[attr-defined]
    return any(name in _TEXTS and id(item) not in tested for item, name in named)


# minijinja and jinja2 agree on the methods and filters listed here.  Everything else is left to jinja2: methods that change their object,
# Python's treatment of letters, and repetition, which is a MemoryError in Python but would end the process in Rust.
_FILTERS = frozenset(
    (
        *(
            "trim",
            "length",
            "count",
            "join",
            "list",
            "string",
            "first",
            "last",
            "default",
            "d",
            "items",
        ),
        *(
            "safe",
            "selectattr",
            "rejectattr",
            "select",
            "reject",
            "map",
            "reverse",
            "replace",
            "tojson",
        ),
        *("penstock_turns", "upper", "lower", "dictsort"),
    )
)
_METHODS = frozenset(
    (
        *(
            "strip",
            "lstrip",
            "rstrip",
            "split",
            "rsplit",
            "startswith",
            "endswith",
            "replace",
            "find",
            "rfind",
        ),
        *(
            "index",
            "count",
            "partition",
            "rpartition",
            "removeprefix",
            "removesuffix",
            "join",
            "get",
            "items",
        ),
        *("keys", "values", "upper", "lower"),
    )
)
_CASE = ("title", "capitalize")  # engines agree on these for ASCII letters
_LABELS = ("role", "type")  # fields of ASCII letters


def needs_jinja2(tree: nodes.Template) -> str | None:
    """Return the part of a template that only jinja2 can render, or None."""
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and not _is_common(
            call.node.attr, call.node.node, _METHODS
        ):
            return f"the method {call.node.attr}"
    for node in tree.find_all(nodes.Filter):
        if not _is_common(node.name, node.node, _FILTERS):
            return f"the filter {node.name}"
    return "repetition" if next(tree.find_all((nodes.Mul, nodes.Pow)), None) is not None else None


def _is_common(name: str, value: nodes.Node | None, known: frozenset[str]) -> bool:
    return _is_label(value) if name in _CASE else name in known


def _is_label(node: nodes.Node | None) -> bool:
    """Whether a value is a role or a type."""
    if isinstance(node, nodes.Filter) and node.name in ("upper", "lower", "trim"):
        return _is_label(node.node)
    if isinstance(node, nodes.Name):
        return node.name == "role"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value in _LABELS
    return isinstance(node, nodes.Getattr) and node.attr in _LABELS
