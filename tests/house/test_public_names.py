"""Is what users can see what we promise?  `penstock.__all__` is the list; anything else that shows is an accident."""

import ast
import re
import types
from pathlib import Path

import penstock

ROOMS = {
    path.stem
    for path in Path(penstock.__file__).parent.iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
} - {"__init__"}


# Needed by the annotations of `__init__`, and kept out of `dir()` there.
ANNOTATIONS = {"TYPE_CHECKING", "Any"}


def visible(module: types.ModuleType) -> set[str]:
    """Names without an underscore, less the package's own rooms: Python adds those when they are first imported.

    `dir()` alone would believe a module that defines `__dir__`; what is really bound counts too.
    """
    bound = set(vars(module)) - ANNOTATIONS
    names = {name for name in bound | set(dir(module)) if not name.startswith("_")}
    rooms = {
        name
        for name in names
        if isinstance(getattr(module, name), types.ModuleType) and name in ROOMS
    }
    return names - rooms


def test_all_is_what_is_visible() -> None:
    promised = {name for name in penstock.__all__ if not name.startswith("_")}
    assert len(penstock.__all__) == len(set(penstock.__all__))
    assert visible(penstock) == promised


def test_a_stray_name_is_visible() -> None:
    stray = types.ModuleType("stray")
    stray.os = types  # a module that is no room of ours counts as a leak
    stray.helper = len
    stray.errors = types
    stray.__dir__ = list  # hiding it does not unbind it
    assert visible(stray) == {"os", "helper"}


def test_no_verb_hides_a_room() -> None:
    hidden = {name for name in penstock.__all__ if name in ROOMS} - {
        name for name, value in vars(penstock).items() if isinstance(value, types.ModuleType)
    }
    assert hidden == set()


def test_every_public_name_says_what_it_is() -> None:
    silent = [
        name
        for name in penstock.__all__
        if not name.startswith("_") and not getattr(penstock, name).__doc__
    ]
    assert silent == []


def test_messages_name_the_public_modules_of_trainers() -> None:
    """An import path stands alone in a string; a message has words around it."""
    package = Path(penstock.__file__).parent
    inner: list[str] = []
    named: set[str] = set()
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "penstock.extras.trainers." not in text and "penstock.trainers." not in text:
            continue
        tree = ast.parse(text)
        statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
        docstrings = {id(value) for value in statements}
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if not is_text or id(node) in docstrings or " " not in node.value:
                continue
            named |= set(re.findall(r"penstock\.trainers\.(\w+)", node.value))
            if "penstock.extras.trainers." in node.value:
                inner.append(f"{path.relative_to(package)}:{node.lineno}: {node.value}")
    assert inner == []
    assert {"accelerate", "hf_trainer", "lightning", "trl"} <= named
    assert all((package / "trainers" / f"{name}.py").exists() for name in named)
