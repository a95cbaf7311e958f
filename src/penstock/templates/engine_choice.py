"""Decide from a template's syntax tree whether minijinja may render it, or only jinja2.

The two engines agree on the methods and filters listed here.  Everything else is left to jinja2: methods that change what they are given,
Python's own treatment of letters, and repetition, which is a MemoryError in Python but would end the process in Rust.
"""

import jinja2.nodes as nodes

_FILTERS = frozenset(
    (
        *("trim", "length", "count", "join", "list", "string", "first", "last", "default", "d", "items", "safe"),
        *("selectattr", "rejectattr", "select", "reject", "map", "reverse", "replace", "tojson", "penstock_turns"),
        *("upper", "lower", "dictsort"),
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
        *("upper", "lower"),
    )
)
_CASE = ("title", "capitalize")  # engines agree on these for ASCII letters
_LABELS = ("role", "type")  # fields of ASCII letters


def wants_reference(tree: nodes.Template) -> str | None:
    """Return what of a template must be left to jinja2, or None."""
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
