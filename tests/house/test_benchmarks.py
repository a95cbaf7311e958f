"""Benchmarks run for minutes and rarely: what they take from each other and from the package must be there, without running them."""

import ast
import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))


def defined(path: Path) -> set[str]:
    """Names at the top of a script."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
    return names


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_is_there(script: Path) -> None:
    siblings = {path.stem: path for path in SCRIPTS}
    for node in ast.walk(ast.parse(script.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module in siblings:
            missing = {alias.name for alias in node.names} - defined(siblings[node.module])
        elif node.module.partition(".")[0] == "penstock":
            module = importlib.import_module(node.module)
            missing = {alias.name for alias in node.names if not hasattr(module, alias.name)}
        else:
            continue
        assert not missing, (
            f"{script.name}:{node.lineno}: {node.module} has no {', '.join(sorted(missing))}"
        )


def test_every_script_has_its_line_in_the_index() -> None:
    index = (FOLDER / "README.md").read_text()
    assert len(SCRIPTS) > 8
    for script in SCRIPTS:
        assert script.name in index
        if script.stem not in ("stand", "contestants", "quick"):
            assert (FOLDER / "results" / f"{script.stem}.md").exists()
