"""What does a template look at in a text?  Constants that it searches for, and things it does that colour would change.

A template that only trims, splits, compares and replaces by its own constants, measures, and prints cannot tell a dyed text
from a plain one, as long as those constants stay undyed (dye.py).  Whatever else it does is a reason to render every conversation
twice.  Worked out once, from the template's syntax tree.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass

import jinja2.nodes as nodes

_FILTERS = frozenset(
    (
        *("trim", "length", "count", "join", "list", "string", "first", "last", "default", "d", "items", "safe"),
        *("selectattr", "rejectattr", "select", "reject", "map", "reverse", "replace", "tojson", "penstock_generation"),
        "penstock_turns",
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
            "index",
        ),
        *("count", "partition", "rpartition", "removeprefix", "removesuffix", "join", "get", "items", "keys", "values"),
    )
)
_TESTS = frozenset(
    (
        *("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true"),
        *(
            "false",
            "integer",
            "float",
            "odd",
            "even",
            "divisibleby",
            "callable",
            "in",
            "eq",
            "equalto",
            "==",
            "ne",
            "!=",
        ),
    )
)
_STRIPS = ("strip", "lstrip", "rstrip", "trim")
# Never dyed, whatever is done to them: roles, kinds, identities, what a loop knows, numbers.
_LABELS = frozenset(("role", "type", "id", "tool_call_id", "index", "index0", "first", "last", "length", "revindex"))
_TEXTS = frozenset(("content", "text", "reasoning_content", "thinking", "reasoning", "arguments", "name"))
_ORDER = ("lt", "lteq", "gt", "gteq")


@dataclass(frozen=True, slots=True)
class Reads:
    """What the dye must leave alone."""

    needles: tuple[str, ...]  # constants that texts are compared with or searched for
    keys: frozenset[str]  # names that values are looked up by
    json: bool  # whether something is written as JSON, which treats quotes and backslashes in a way of its own
    sorts: bool  # whether a dict is put in the order of its keys
    reason: str | None  # why dye could change the text all the same; None where it cannot

    @property
    def held(self) -> Container[str]:
        """Names of arguments that are not dyed."""
        return _Every() if self.sorts else self.keys


class _Every:
    def __contains__(self, name: object) -> bool:
        return True


def find_reads(tree: nodes.Template) -> Reads:
    skipped = {id(node) for node in _printed(tree)} | {id(node) for node in _names(tree)}
    needles = {
        node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str) and id(node) not in skipped
    }
    calls: list[nodes.Call | nodes.Filter] = [*tree.find_all(nodes.Call), *tree.find_all(nodes.Filter)]
    for stripped in calls:
        if _called(stripped) in _STRIPS:  # takes any of the characters, not the whole
            for argument in stripped.args:
                if isinstance(argument, nodes.Const) and isinstance(argument.value, str):
                    needles |= set(argument.value)
    return Reads(
        needles=tuple(sorted(filter(None, needles))),
        keys=frozenset(_keys(tree)),
        json=any(node.name == "tojson" for node in tree.find_all(nodes.Filter)),
        sorts=any(node.name == "dictsort" for node in tree.find_all(nodes.Filter)),
        reason=next(_reasons(tree), None),
    )


def wants_reference(tree: nodes.Template) -> str | None:
    """What is left to jinja2: methods that change what they are given, Python's own ways of treating letters, and repetition, which
    is a MemoryError in Python where it would end the process in Rust."""
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and not _is_common(call.node.attr, call.node.node):
            return f"the method {call.node.attr}"
    for node in tree.find_all(nodes.Filter):
        if not _is_common(node.name, node.node):
            return f"the filter {node.name}"
    return "repetition" if next(tree.find_all((nodes.Mul, nodes.Pow)), None) is not None else None


def _is_common(name: str, node: nodes.Node | None) -> bool:
    """Whether both engines do the same and no harm: of case, only where it is plain which letters there are."""
    if name in ("title", "capitalize"):
        return node is not None and _is_label(node)
    return name in _METHODS or name in _FILTERS or name in ("upper", "lower", "dictsort")


def _printed(tree: nodes.Template) -> Iterator[nodes.Node]:
    """Constants that are printed and nothing else."""
    waiting: list[nodes.Node] = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Const):
            yield node
        elif isinstance(node, nodes.Add):
            waiting += [node.left, node.right]
        elif isinstance(node, nodes.CondExpr):
            waiting += [node.expr1, *([node.expr2] if node.expr2 is not None else [])]
        elif isinstance(node, nodes.Concat):
            waiting += node.nodes
        elif isinstance(node, nodes.Call):
            waiting += node.args if _function(node) == "raise_exception" else []


def _names(tree: nodes.Template) -> Iterator[nodes.Node]:
    """Constants that name a key, or that a label is compared with."""
    for item in tree.find_all(nodes.Getitem):
        yield item.arg
    for call in tree.find_all(nodes.Call):
        if _called(call) == "get":
            yield from call.args[:1]
    for compare in tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        if any(_is_label(side) for side in sides):
            for side in sides:
                yield from [side, *side.find_all(nodes.Const)]


def _keys(tree: nodes.Template) -> Iterator[str]:
    for attribute in tree.find_all(nodes.Getattr):
        yield attribute.attr
    for node in tree.find_all(nodes.Const):
        if isinstance(node.value, str) and len(node.value) < 80:
            yield node.value


def _reasons(tree: nodes.Template) -> Iterator[str]:
    for node in tree.find_all(nodes.Filter):
        if node.name == "tojson" and any(word.key != "indent" and not _is_no(word.value) for word in node.kwargs):
            yield "tojson with options"
        if node.name not in _FILTERS and not (node.node is not None and _is_label(node.node)):
            yield f"the filter {node.name}"
        if node.name in ("map", "select", "reject") and node.args and not _is_safe_name(node.args[0]):
            yield f"the filter {node.name}"
        if node.name == "replace" and not all(isinstance(argument, nodes.Const) for argument in node.args):
            yield "the filter replace with what is no constant"
    for call in tree.find_all(nodes.Call):
        yield from _call_reasons(call)
    for test in tree.find_all(nodes.Test):
        if test.name not in _TESTS or not all(_is_constant(argument) for argument in test.args):
            yield f"the test {test.name}"
    for compare in tree.find_all(nodes.Compare):
        yield from _compare_reasons(compare)
    for item in tree.find_all(nodes.Getitem):
        if not _is_place(item.arg) and not (isinstance(item.node, nodes.Name) and item.node.name == "messages"):
            yield "values looked up by a name that is no constant"


def _call_reasons(call: nodes.Call) -> Iterator[str]:
    if not isinstance(call.node, nodes.Getattr) or _is_label(call.node.node):
        return
    if call.node.attr not in _METHODS:
        yield f"the method {call.node.attr}"
    elif call.node.attr not in ("join", "items", "keys", "values") and not all(_is_constant(a) for a in call.args[:2]):
        yield f"the method {call.node.attr} with what is no constant"


def _compare_reasons(compare: nodes.Compare) -> Iterator[str]:
    sides = [compare.expr, *(operand.expr for operand in compare.ops)]
    if any(operand.op in _ORDER for operand in compare.ops):
        if any(
            (isinstance(side, nodes.Const) and isinstance(side.value, str)) or _last_name(side) in _TEXTS
            for side in sides
        ):
            yield "the order of texts"
    elif sum(not _is_constant(side) for side in sides) > 1 and not any(_is_label(side) for side in sides):
        yield "texts compared with each other"


def _called(node: nodes.Call | nodes.Filter) -> str:
    if isinstance(node, nodes.Filter):
        return node.name
    return node.node.attr if isinstance(node.node, nodes.Getattr) else ""


def _function(call: nodes.Call) -> str | None:
    return call.node.name if isinstance(call.node, nodes.Name) else None


def _last_name(node: nodes.Node) -> str | None:
    """The attribute or key that an expression ends with."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    if isinstance(node, nodes.Call) and _called(node) == "get" and node.args and isinstance(node.args[0], nodes.Const):
        return str(node.args[0].value)
    return None


def _is_label(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Filter) and node.name in ("length", "count"):
        return True
    if isinstance(node, nodes.Name) and node.name == "role":
        return True
    if isinstance(node, nodes.Filter) and node.name in ("upper", "lower", "trim") and node.node is not None:
        return _is_label(node.node)
    return isinstance(node, nodes.Compare | nodes.Not | nodes.Sub | nodes.Mul) or _last_name(node) in _LABELS


def _is_constant(node: nodes.Node) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(_is_constant(item) for item in node.items)
    return isinstance(node, nodes.Const)


def _is_no(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and not node.value


def _is_place(node: nodes.Node) -> bool:
    """A constant, a slice or arithmetic with numbers."""
    return isinstance(node, nodes.Const | nodes.Slice | nodes.Neg | nodes.Sub) or (
        _is_label(node) or (isinstance(node, nodes.Add) and any(_is_number(side) for side in (node.left, node.right)))
    )


def _is_number(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, int)


def _is_safe_name(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and (node.value in _FILTERS or node.value in _TESTS)
