"""Limit chat templates, which are untrusted programs: the size of their source, what they can reach, what one rendering may cost.

A template meets its limits in two places.  `check_source` looks at its tokens before anything compiles it.  `Sandbox` compiles it so
that every operation which can be long or large asks the meter first (guards.py, meter.py): a template that is harmless until it meets
a certain word is stopped then, in the user's process.

At the end, syntax trees are analysed: which names a template reads, and what its generation prompt reads.
"""

import types
from collections.abc import Iterator
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor
from jinja2.exceptions import SecurityError

from penstock.errors import TemplateError
from penstock.templates.guards import (
    DICT_METHODS,
    PLAIN,
    TEXT_METHODS,
    Guards,
    formatted,
    make_dict,
)
from penstock.templates.meter import OBJECT, TURN, Lazy, LimitExceeded, Meter, TooDeep, Turns

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
_DROPPED_GLOBALS = ("lipsum", "cycler", "joiner")  # Python functions and classes
_DICT_ATTRIBUTES = frozenset(dir(dict))
_SIMPLE_KEYS = (str, int)
# Attributes that can be read without a further question.
_SAFE_ATTRIBUTES: dict[type, frozenset[str]] = {
    dict: frozenset(DICT_METHODS),
    str: TEXT_METHODS,
    jinja2.runtime.LoopContext: frozenset(
        ("index", "index0", "first", "last", "length", "revindex", "previtem", "nextitem")
    ),
}
_PLAIN_TYPES = frozenset((str, int, float, bool, list, dict, tuple))


class Trusted:
    """A function of Penstock that templates may call."""

    __slots__ = ("function",)

    def __init__(self, function: Any) -> None:
        self.function = function


class _TrustedDict(Trusted):
    """The global `dict`, which also has `fromkeys`."""

    __slots__ = ("fromkeys",)

    def __init__(self, guards: Guards) -> None:
        super().__init__(lambda *args, **kwargs: make_dict(guards, *args, **kwargs))
        self.fromkeys = Trusted(
            lambda keys, value=None: make_dict(guards, [(key, value) for key in guards.items(keys)])
        )


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment that transformers gives to chat templates, with a meter.  Not for two threads at once."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        # Whitespace control is resolved in instrumented sources.  Not optimized, and with a `finalize` that takes the context:
        # constant expressions are computed when the template is rendered, under its limits, not when it is compiled.
        self.meter = Meter()
        self.guards = Guards(self.meter)
        super().__init__(
            keep_trailing_newline=True,
            extensions=[jinja2.ext.loopcontrols],
            optimized=False,
            finalize=self._finalizer(),
        )
        self.filters.clear()
        self.filters.update(self.guards.filters)
        self.filters.update(self._operations())
        self.tests.clear()
        self.tests.update(self.guards.tests)
        for name in _DROPPED_GLOBALS:
            del self.globals[name]
        self.add_function("raise_exception", self._raise_exception)
        self.globals["range"] = Trusted(jinja2.sandbox.safe_range)
        self.globals["dict"] = _TrustedDict(self.guards)
        self.globals["namespace"] = Trusted(self._make_namespace)

    def _make_namespace(self, /, *args: Any, **kwargs: Any) -> "_Namespace":
        self.meter.allocate(4 * OBJECT)
        return _Namespace(make_dict(self.guards, *args, **kwargs))

    def add_function(self, name: str, function: Any) -> None:
        """Let templates call a function."""
        self.globals[name] = Trusted(function)

    def _raise_exception(self, message: Any) -> NoReturn:
        raise jinja2.TemplateError(str(self.guards.printable(message)))

    def _finalizer(self) -> Any:
        printable = self.guards.printable
        make_text = self.meter.make_text

        @jinja2.pass_context
        def finalize(context: Any, value: Any) -> Any:
            if type(value) is str:
                make_text(value)
                return value
            return printable(value)

        return finalize

    def _operations(self) -> dict[str, Any]:
        """What _Guarded puts in place of syntax: filters whose names templates do not use."""
        meter = self.meter
        guards = self.guards

        def read(context: Any, value: Any) -> Any:
            meter.spend(len(value) if type(value) is str else meter.weigh(value))
            return value

        operations = {
            "penstock_turns": lambda context, values: Turns(meter, values),
            "penstock_concat": lambda context, values: guards.concatenate(values),
            "penstock_cut": lambda context, value, *bounds: guards.cut(value, *bounds),
            "penstock_made": lambda context, value: guards.made(value),
            "penstock_read": read,
            "penstock_items": lambda context, values: guards.items(values),
        }
        return {name: jinja2.pass_context(function) for name, function in operations.items()}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        guarded: nodes.Template = _Guarded().visit(source)
        guarded.set_environment(self)
        return super()._generate(guarded, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if type(left) is str and type(right) is str:
                text = left + right  # at most twice what is there already
                self.meter.make_text(text)
                return text
            if type(left) is int and type(right) is int:
                return self.guards.made(left + right)
        return self.guards.binary(operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What templates ask most often comes first: it takes a tenth of the time of jinja2's own questions."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            # what jinja2 does after an AttributeError
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in _SAFE_ATTRIBUTES.get(kind, ()):
            return getattr(obj, attribute)
        if kind is _Namespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, None)
            if type(value) in _PLAIN_TYPES:
                return value
        if isinstance(obj, _READABLE):
            return super().getattr(obj, attribute)
        return self.unsafe_undefined(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, _SIMPLE_KEYS):
            self.guards.read(argument)  # a key is hashed, and shown where it is missing
        if isinstance(obj, _READABLE):
            return super().getitem(obj, argument)
        return self.unsafe_undefined(obj, str(argument)[:80])

    def wrap_str_format(self, value: Any) -> Any:
        """`str.format` with limits; jinja2 asks this for every attribute it hands out."""
        is_method = isinstance(value, types.MethodType | types.BuiltinMethodType)
        if not is_method or value.__name__ not in ("format", "format_map"):
            return None
        if not isinstance(value.__self__, str):
            return None
        return Trusted(formatted(self, self.guards, value))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what a template may call."""
        kind = type(__obj)
        if kind in _RENDERING:
            return __self._call_deeper(__context, __obj, args, kwargs)
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        if kind is types.BuiltinMethodType:
            return __self.guards.method(__obj, args, kwargs)
        if isinstance(__obj, Trusted):
            return __obj.function(*args, **kwargs)
        if isinstance(__obj, jinja2.Undefined):
            return __obj(*args)  # raises an error that names it
        if kind is types.MethodType and isinstance(__obj.__self__, str):
            return __self.guards.method(__obj, args, kwargs)
        if kind is types.MethodType and isinstance(__obj.__self__, jinja2.runtime.LoopContext):
            for value in args:
                __self.guards.read(value)  # `loop.changed` compares
            return __obj(*args, **kwargs)
        raise SecurityError(f"{kind.__name__} is not callable in chat templates")

    def _call_deeper(
        self, context: Any, callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a macro, a block or a recursive loop."""
        meter = self.meter
        meter.spend(10 * TURN)
        for value in args:
            meter.weigh(value)
        if meter.calls >= meter.limits.calls:
            raise TooDeep(
                f"the chat template calls macros or loops inside each other more than {meter.limits.calls} deep"
            )
        meter.calls += 1
        try:
            return self.guards.made(context.call(callee, *args, **kwargs))
        finally:
            meter.calls -= 1


class _Guarded(jinja2.visitor.NodeTransformer):
    """Put a question to the meter before every operation that is syntax and not a call, a filter or an operator."""

    def __init__(self) -> None:
        self._captures = 0  # macros, set blocks and others around the node that is visited

    def visit_For(self, node: nodes.For) -> nodes.For:
        if node.recursive:
            self._capture(node)
        else:
            self.generic_visit(node)
        node.iter = _operation("turns", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _operation("concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [
            bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)
        ]
        return _operation("cut", node.node, *bounds)

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return node if node.ctx == "store" else self._literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                pair.key = _operation("read", pair.key)  # it is hashed
        return self._literal(node)

    def _literal(self, node: nodes.Expr) -> nodes.Expr:
        if _is_constant(node):
            return node
        self.generic_visit(node)
        return _operation("made", node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        read = [False] * len(operands)
        for place, operand in enumerate(node.ops):
            left = operands[place]
            right = operands[place + 1]
            if operand.op in ("in", "notin"):
                read[place] |= not isinstance(left, nodes.Const)
                read[place + 1] |= not _is_constant(right)
            elif not isinstance(left, nodes.Const) and not isinstance(right, nodes.Const):
                # comparing with a constant takes no longer than the constant is
                read[place] = read[place + 1] = True
        if read[0]:
            node.expr = _operation("read", node.expr)
        for operand, is_read in zip(node.ops, read[1:], strict=True):
            if is_read:
                operand.expr = _operation("read", operand.expr)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._capture(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._capture(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        return self._capture(node)  # by `self.name()`

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.Node:
        return self._capture(node)

    def _capture(self, node: nodes.Node) -> nodes.Node:
        """Visit a block whose text becomes a value at its end: until then, the renderer does not see it grow."""
        self._captures += 1
        self.generic_visit(node)
        self._captures -= 1
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:
        """Text that is written out in the source passes `finalize` inside a capture, as a constant does."""
        return nodes.Const(node.data, lineno=node.lineno) if self._captures else node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self._capture(node)
        node.filter = _operation("made", node.filter)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        return self._spread(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        return self._spread(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        return self._spread(node)

    def _spread(self, node: nodes.Call | nodes.Filter | nodes.Test) -> nodes.Node:
        """`f(*values)` makes a tuple of all values before `f` is called."""
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _operation("items", node.dyn_args)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = _operation("read", node.dyn_kwargs)
        return node

    def refuse(self, node: nodes.Node) -> NoReturn:
        raise TemplateError(
            f"the chat template cannot be compiled: line {node.lineno}: {type(node).__name__} is not for chat templates"
        )

    visit_Include = visit_Import = visit_FromImport = visit_Extends = refuse
    visit_EvalContextModifier = visit_ScopedEvalContextModifier = refuse


def _operation(name: str, node: Any, *args: nodes.Expr) -> nodes.Filter:
    line = 0 if node is None else node.lineno
    return nodes.Filter(node, f"penstock_{name}", list(args), [], None, None, lineno=line)


def _is_constant(node: nodes.Node) -> bool:
    """Whether an expression is written out in the source, so that its size is that of its source."""
    if isinstance(node, nodes.Const | nodes.TemplateData):
        return True
    is_literal = isinstance(node, nodes.List | nodes.Tuple | nodes.Dict | nodes.Pair)
    return is_literal and all(map(_is_constant, node.iter_child_nodes()))


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

    def __repr__(self) -> str:
        """A namespace may hold itself."""
        raise SecurityError("a namespace cannot be printed")


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(
            f"a namespace cannot hold {name!r}: names with an underscore are Python's"
        )


_RENDERING = (jinja2.runtime.Macro, jinja2.runtime.LoopContext, jinja2.runtime.BlockReference)
# Templates may look up attributes of these.
_READABLE: tuple[Any, ...] = (
    *PLAIN,
    *_RENDERING,
    _Namespace,
    _TrustedDict,
    Lazy,
    jinja2.runtime.TemplateReference,
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
    given: dict[str, list[nodes.Node]] = {}  # name → what decides about its values
    for path in paths:
        for name, value in _values_given_by(path[-1]):
            given.setdefault(name, []).extend([value, *_conditions(path)])
    while waiting:
        node = waiting.pop()
        if id(node) in examined:
            continue
        examined.add(id(node))
        if _reads_text(node):
            return True
        fresh = _names(node) - names
        names |= fresh
        for name in fresh:
            waiting += given.get(name, [])
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


def _values_given_by(node: nodes.Node) -> Iterator[tuple[str, nodes.Node]]:
    """Yield the names that an assignment, a loop or a macro sets, each with what it is set to."""
    if isinstance(node, nodes.Macro):
        yield node.name, node
    elif isinstance(node, nodes.For):
        yield from ((name, node.iter) for name in _names(node.target))
    elif isinstance(node, nodes.Assign):
        yield from ((name, node.node) for name in _names(node.target))
    elif isinstance(node, nodes.AssignBlock):
        yield from ((name, node) for name in _names(node.target))


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
