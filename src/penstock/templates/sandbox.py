"""What may a chat template do?  Read what it is given and print; not reach Python, not run without end, not fill the memory.

Templates come from model repositories: text by strangers.  jinja2's sandbox keeps them from attributes that lead out.  What it leaves
open is closed here: every turn of a loop is counted, and whatever can make a long value out of short ones is measured.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
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
MOST_TURNS = 20_000_000  # of all loops, and calls
MOST_CHARACTERS = 1 << 25  # in one value, and in the output
MOST_VALUES = 1 << 18  # in nested lists, counted as they would be printed
_MOST_WIDTH = 1000  # what a template may pad, indent or split to

_PADDING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "round"))
_DROPPED = (
    "random",
    "wordwrap",
    "urlize",
    "xmlattr",
    "pprint",
    "filesizeformat",
)  # chance, web pages, Python's own words
_LONG_NUMBER = re.compile(r"[0-9]{6}")


class Endless(TemplateError):
    """A template passed a limit: no conversation would be small enough."""


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment that transformers gives to chat templates, with limits.  Not for two threads at once."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self) -> None:
        # unoptimized: what could be worked out while compiling is worked out under the limits
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols],
            optimized=False,
            finalize=_weighed,
        )
        self._turns = 0
        self._deadline = 0.0
        for name in _DROPPED:
            del self.filters[name]
        self.filters = {name: measured(name, function) for name, function in self.filters.items()}
        self.filters["penstock_turns"] = jinja2.pass_context(lambda context, values: self._counted(values))
        self.filters["penstock_concat"] = lambda values: self.concat([str(_weighed(value)) for value in values])
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace
        self.globals["raise_exception"] = _raise

    def start(self) -> None:
        """Before each rendering."""
        self._turns = 0
        self._deadline = time.monotonic() + SECONDS

    def tick(self) -> None:
        self._turns += 1
        if self._turns > MOST_TURNS or (self._turns & 63 == 0 and time.monotonic() > self._deadline):
            stop()

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.tick()
        method = getattr(__obj, "__wrapped__", __obj)  # `format` comes wrapped
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_text_call(method.__name__, (owner, *args, *kwargs.values()))
        return _sized(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        self.tick()
        if operator == "*":
            _check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        return _sized(super().call_binop(context, operator, left, right))

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.tick()
            yield value

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Measure().visit(super()._parse(source, name, filename))
        return tree

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """How compiled templates join what a macro or a block printed."""
        parts = list(parts)
        if sum(map(len, parts)) > MOST_CHARACTERS:
            stop()
        return "".join(parts)


class _Measure(jinja2.visitor.NodeTransformer):
    """A template in which loops count their turns and joined text is measured before it is made."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "penstock_turns")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "penstock_concat")


def stop() -> NoReturn:
    raise Endless(
        f"the chat template does not end: more than {SECONDS:.0f} s, {MOST_TURNS:_} turns of its loops or "
        f"{MOST_CHARACTERS:_} characters for one conversation"
    )


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def measured(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are looked at before, and whose result after."""

    @wraps(function)  # takes along how jinja2 is to call it
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        for value in given:
            if isinstance(value, list | tuple | dict):
                _weighed(value)
        _check_text_call(name, [value for value in given if not isinstance(value, _SURROUNDINGS)])
        return _sized(function(*args, **kwargs))

    return checked


_SURROUNDINGS = (jinja2.Environment, jinja2.runtime.Context, nodes.EvalContext)


def _check_text_call(name: str, given: Any) -> None:
    """`given`: the text and what it is told to do with it."""
    if name in _PADDING and any(isinstance(value, int | float) and value > _MOST_WIDTH for value in given[1:]):
        stop()
    if name in ("format", "format_map"):
        _check_format(str(given[0]), given[1:])
    elif name == "indent" and any(isinstance(value, str) and len(value) > _MOST_WIDTH for value in given[1:]):
        stop()
    elif name == "replace" and len(given) > 2:
        text, old, new = map(str, given[:3])
        if (text.count(old) if old else len(text) + 1) * len(new) > MOST_CHARACTERS:
            stop()
    elif name == "join" and len(given) > 1:
        lists = [value for value in given if isinstance(value, list | tuple)]
        separator = max((len(value) for value in given if isinstance(value, str)), default=0)
        sizes = (sum(separator + (len(value) if isinstance(value, str) else 1) for value in values) for values in lists)
        if any(size > MOST_CHARACTERS for size in sizes):
            stop()


def _check_format(pattern: str, given: Iterable[Any]) -> None:
    wide = any(isinstance(value, int) and value > _MOST_WIDTH for value in given) and (
        "*" in pattern or "{:{" in pattern
    )
    if wide or _LONG_NUMBER.search(pattern) or pattern.count("{") > 1000:
        stop()


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int) and len(value) * times > MOST_CHARACTERS:
            stop()
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
        stop()


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > 4096:
        stop()


def _sized(value: Any) -> Any:
    if isinstance(value, str | list | tuple | dict) and len(value) > MOST_CHARACTERS:
        stop()
    return value


def _weighed(value: Any) -> Any:
    """Lists that hold one list twice, over and over, are small until they are printed."""
    if isinstance(value, list | tuple | dict):
        waiting, count = [value], 0
        while waiting:
            inner = waiting.pop()
            count += len(inner)
            if count > MOST_VALUES:
                stop()
            values = inner.values() if isinstance(inner, dict) else inner
            waiting += [each for each in values if isinstance(each, list | tuple | dict)]
        return value
    return _sized(value)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


class _Dict:
    """`dict`, of which a template sees nothing but what it makes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """No names that begin with an underscore: some of them mean something to Python."""

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
