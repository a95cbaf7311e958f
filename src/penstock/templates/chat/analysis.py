"""Analyse the syntax tree of a chat template: which names it reads, what its generation prompt reads, which engine may render it."""

from collections.abc import Iterator

import jinja2.nodes as nodes

_TEXTS = frozenset(("content", "text", "reasoning_content", "reasoning", "thinking", "arguments"))
_TYPE_TESTS = frozenset(("defined", "undefined", "none", "string", "mapping", "iterable", "sequence"))
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
    waiting = [node for path in paths if _is_prompt(path[-1]) for node in (path[-1], *_conditions(path))]
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
    return isinstance(node, nodes.If | nodes.CondExpr) and "add_generation_prompt" in _names(node.test)


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
    if isinstance(node, nodes.Assign | nodes.AssignBlock | nodes.For) and _names(node.target) & names:
        return node.iter if isinstance(node, nodes.For) else node.node if isinstance(node, nodes.Assign) else node
    return node if isinstance(node, nodes.Macro) and node.name in names else None


def _reads_text(node: nodes.Node) -> bool:
    """Return whether an expression reads the text of a message, and not only whether it is empty."""
    inner = list(_within(node))
    tested = {id(test.node) for test in inner if isinstance(test, nodes.Test) and test.name in _TYPE_TESTS}
    fields = [(item, item.attr) for item in inner if isinstance(item, nodes.Getattr)]
    items = [item for item in inner if isinstance(item, nodes.Getitem) and isinstance(item.arg, nodes.Const)]
    named = [*fields, *((item, item.arg.value) for item in items)]  # type: ignore[attr-defined]
    return any(name in _TEXTS and id(item) not in tested for item, name in named)


# minijinja and jinja2 agree on the methods and filters listed here.  Everything else is left to jinja2: methods that change their object,
# Python's treatment of letters, and repetition, which is a MemoryError in Python but would end the process in Rust.
_FILTERS = frozenset(
    (
        *("trim", "length", "count", "join", "list", "string", "first", "last", "default", "d", "items"),
        *("safe", "selectattr", "rejectattr", "select", "reject", "map", "reverse", "replace", "tojson"),
        *("penstock_turns", "upper", "lower", "dictsort"),
    )
)
_METHODS = frozenset(
    (
        *("strip", "lstrip", "rstrip", "split", "rsplit", "startswith", "endswith", "replace", "find", "rfind"),
        *("index", "count", "partition", "rpartition", "removeprefix", "removesuffix", "join", "get", "items"),
        *("keys", "values", "upper", "lower"),
    )
)
_CASE = ("title", "capitalize")  # engines agree on these for ASCII letters
_LABELS = ("role", "type")  # fields of ASCII letters


def needs_jinja2(tree: nodes.Template) -> str | None:
    """Return the part of a template that only jinja2 can render, or None."""
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and not _is_common(call.node.attr, call.node.node, _METHODS):
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
