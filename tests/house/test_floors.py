"""Does every import go down?  The contracts live in pyproject.toml; here they are run."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "penstock"

LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_logo=True, no_cache=True))"

# The plan must give the same answer at any time, on any machine: no files, no clock, no environment, no chance.
IMPURE = {
    *(
        "os",
        "io",
        "pathlib",
        "glob",
        "shutil",
        "tempfile",
        "mmap",
        "socket",
        "subprocess",
        "multiprocessing",
    ),
    *(
        "time",
        "datetime",
        "random",
        "secrets",
        "uuid",
        "platform",
        "getpass",
        "locale",
        "threading",
    ),
}
IMPURE_BUILTINS = {"open", "input", "print"}


def lint(package_parent: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the `penstock` found in this folder, in a process of its own: it reads cwd and sys.path."""
    env = {**os.environ, "PYTHONPATH": str(package_parent)}
    return subprocess.run(
        [sys.executable, "-c", LINT], cwd=ROOT, env=env, capture_output=True, text=True
    )


def imported(source: str) -> set[str]:
    """Dotted names of all modules that a file imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add(node.module or "")
    return names


def impurities(source: str) -> set[str]:
    """What a file of the plan uses although it may not: outside packages but numpy, and doors to the world."""
    tops = {name.partition(".")[0] for name in imported(source)}
    outside = {
        top
        for top in tops
        if top not in sys.stdlib_module_names and top not in ("numpy", "penstock")
    }
    called = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    return outside | (tops & IMPURE) | (called & IMPURE_BUILTINS)


def test_every_import_goes_down_a_floor() -> None:
    result = lint(PACKAGE.parent)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_plan_sees_numpy_and_nothing_of_the_world() -> None:
    files = sorted((PACKAGE / "plan").rglob("*.py"))
    assert files
    found = {file.name: bad for file in files if (bad := impurities(file.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os.path", "os"),
        ("from time import monotonic", "time"),
        ("def f():\n    import pyarrow.compute", "pyarrow"),
        ("text = open('x').read()", "open"),
    ],
)
def test_an_impure_plan_is_noticed(source: str, found: str) -> None:
    assert impurities(source) == {found}
    assert impurities("import math\nimport numpy as np\nfrom penstock.types import Ints") == set()


def test_torch_is_imported_by_the_loader_and_by_extras() -> None:
    users = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if any(name.partition(".")[0] == "torch" for name in imported(file.read_text()))
    }
    assert {user for user in users if not user.startswith("extras/")} <= {
        "loader/layout.py",
        "loader/dataset.py",  # processes of its DataLoader
    }
