"""Does the generation prompt of a chat template depend on what messages say?  Read from the template's syntax tree.

Some templates look for words such as "/no_think" in a message and print another generation prompt then.  Made-up messages do not tell
the headers of such a template: they are found for every conversation by itself.  The answer errs on the side of yes.
"""

from collections.abc import Iterator

import jinja2.nodes as nodes

_PROMPT = "add_generation_prompt"
_TEXTS = frozenset(("content", "text", "reasoning_content", "reasoning", "thinking", "arguments"))
_TYPE_TESTS = frozenset(("defined", "undefined", "none", "string", "mapping", "iterable", "sequence"))
_BRANCHES = (nodes.If, nodes.CondExpr, nodes.For)

Path = tuple[nodes.Node, ...]  # a node and those around it, the outermost first


def prompt_reads_text(tree: nodes.Template) -> bool:
    """Whether a condition or a value that reaches the generation prompt is made of the words of messages."""
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


def known_names(tree: nodes.Template) -> frozenset[str]:
    """Names that a template may look values up by."""
    constants = {
        node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str) and len(node.value) < 80
    }
    return frozenset(constants | {node.attr for node in tree.find_all(nodes.Getattr)})


def _paths(node: nodes.Node, above: Path) -> Iterator[Path]:
    path = (*above, node)
    yield path
    for child in node.iter_child_nodes():
        yield from _paths(child, path)


def _is_prompt(node: nodes.Node) -> bool:
    """A branch that is taken for the sake of the generation prompt."""
    return isinstance(node, nodes.If | nodes.CondExpr) and any(
        name.name == _PROMPT
        for name in [*node.test.find_all(nodes.Name), *([node.test] if isinstance(node.test, nodes.Name) else [])]
    )


def _conditions(path: Path) -> list[nodes.Node]:
    """What decides whether the last node of a path is reached."""
    found: list[nodes.Node] = []
    for node in path[:-1]:
        if isinstance(node, nodes.If | nodes.CondExpr):
            found.append(node.test)
        elif isinstance(node, nodes.For):
            found += [node.iter, *([node.test] if node.test is not None else [])]
    return found


def _names(node: nodes.Node) -> set[str]:
    """Variables that an expression reads; an attribute of a namespace by its own name."""
    found = {name.name for name in _all(node, nodes.Name) if isinstance(name, nodes.Name)}
    return found | {f".{ref.attr}" for ref in _all(node, nodes.Getattr) if isinstance(ref, nodes.Getattr)}


def _all(node: nodes.Node, kind: type[nodes.Node]) -> Iterator[nodes.Node]:
    if isinstance(node, kind):
        yield node
    yield from node.find_all(kind)


def _value_given_to(node: nodes.Node, names: set[str]) -> nodes.Node | None:
    """What an assignment, a loop or a macro gives to one of these names."""
    if isinstance(node, nodes.Assign | nodes.AssignBlock | nodes.For):
        targets = {target.name for target in _all(node.target, nodes.Name) if isinstance(target, nodes.Name)}
        targets |= {f".{target.attr}" for target in _all(node.target, nodes.NSRef) if isinstance(target, nodes.NSRef)}
        if targets & names:
            return node.iter if isinstance(node, nodes.For) else node.node if isinstance(node, nodes.Assign) else node
    return node if isinstance(node, nodes.Macro) and node.name in names else None


def _reads_text(node: nodes.Node) -> bool:
    """Whether an expression looks at the words of a message, and not just whether there are any."""
    tested = {
        id(inner.node)
        for inner in _all(node, nodes.Test)
        if isinstance(inner, nodes.Test) and inner.name in _TYPE_TESTS
    }
    for item in [*_all(node, nodes.Getattr), *_all(node, nodes.Getitem)]:
        name = item.attr if isinstance(item, nodes.Getattr) else getattr(getattr(item, "arg", None), "value", None)
        if name in _TEXTS and id(item) not in tested:
            return True
    return False
