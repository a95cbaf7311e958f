"""Which tests look inside a room: the share that `make check` prints.

A test function looks inside when it, or a helper, fixture or constant of its file that it uses, was imported from a
module that is not a door.  Doors are the package itself, every file next to its `__init__` (`errors`, `types` …), the
`__init__` of a room or of a room within a room, `cli.main`, and all modules of an extra for the tests of that extra.
Tests of the plan and of the laws are exempt: they are about the numbers inside.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "penstock"
EXEMPT = ("plan", "laws")


@dataclass(frozen=True, slots=True)
class TestFile:
    """One file of tests: its test functions, and those of them that look inside a room."""

    name: str
    functions: tuple[str, ...]
    inner: tuple[str, ...]


def is_door(module: str, extra: str | None) -> bool:
    """Whether tests may import this module; `extra` is the one that they belong to."""
    parts = module.split(".")[1:]
    if parts in ([], ["cli", "main"]) or (parts[:1] == ["extras"] and parts[1:2] == [extra]):
        return True
    is_room = (PACKAGE.joinpath(*parts) / "__init__.py").exists()
    return is_room or len(parts) == 1


def is_module(dotted: str) -> bool:
    return PACKAGE.parent.joinpath(*dotted.split(".")).with_suffix(".py").exists()


@cache
def exported(room: str) -> frozenset[str]:
    """What the `__init__` of a room offers: `penstock.store.build` is a function, though there is a module of that name."""
    door = PACKAGE.parent.joinpath(*room.split("."), "__init__.py")
    if not door.exists():
        return frozenset()
    offered: set[str] = set()
    for node in ast.parse(door.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            offered.update(ast.literal_eval(node.value))
    return frozenset(offered)


def inner_names(tree: ast.Module, extra: str | None) -> set[str]:
    """Names that a file imports from behind a door."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("penstock.") and not is_door(alias.name, extra):
                    names.add(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "penstock":
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                module = submodule if is_module(submodule) else node.module
                if alias.name not in exported(node.module) and not is_door(module, extra):
                    names.add(alias.asname or alias.name)
    return names


def names_used(node: ast.AST) -> set[str]:
    """Names that a statement reads; for functions also their arguments, as those may be fixtures."""
    used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    used |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    return used


def names_bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {
            part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
        }
    return set()


def behind_a_door(path: Path) -> set[str]:
    """Names of a test file whose value was imported from behind a door, or uses such a value."""
    relative = path.relative_to(TESTS).parts
    extra = relative[1] if relative[0] == "extras" else None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = inner_names(tree, extra)
    statements = [(names_bound(node), names_used(node)) for node in tree.body]
    while True:
        reached = {name for bound, used in statements if used & inner for name in bound} - inner
        if not reached:
            return inner
        inner |= reached


def test_files() -> Iterator[TestFile]:
    for path in sorted(TESTS.rglob("test_*.py")):
        relative = path.relative_to(TESTS)
        if relative.parts[0] in EXEMPT:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
        inner = behind_a_door(path)
        looks_inside = [
            node.name for node in functions if node.name in inner or names_used(node) & inner
        ]
        names = tuple(node.name for node in functions)
        yield TestFile(relative.as_posix(), names, tuple(looks_inside))


def inner_share() -> float:
    """Share of test functions that look inside a room."""
    files = list(test_files())
    return sum(len(file.inner) for file in files) / sum(len(file.functions) for file in files)


if __name__ == "__main__":
    for file in sorted(test_files(), key=lambda file: len(file.inner)):
        if file.inner:
            print(f"{len(file.inner):4} of {len(file.functions):3}  {file.name}")
    print(f"{inner_share():.1%} of test functions look inside a room")
