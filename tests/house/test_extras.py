"""Is each extra one folder with a README that tells the truth, tests of its own, and a place in every contract?"""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from penstock import plugins

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "penstock"
FOLDERS = sorted(file.parent for file in PACKAGE.glob("extras/*/__init__.py"))
NAMES = [folder.name for folder in FOLDERS]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

# All that extras may know of each other (blueprint: view and trainers draw and train media; losses came later).
MAY_IMPORT = {
    "view": {"media", "losses"},
    "trainers": {"media", "losses"},
    "rl": {"trainers"},
    "ray": {"rl"},
}
# Names of packages above the core: they forward to extras.
ABOVE = {"extras", "trainers", "rl", "sequences", "integrations"}

FILE_NAME = re.compile(r"`([\w/]+\.(?:py|toml))`")
CODE_NAME = re.compile(r"`(\w+)`")
SEAM = re.compile(r"^\| (`.*?) \|", flags=re.MULTILINE)  # the first column of the table


def imported_extras(folder: Path) -> set[str]:
    """Names of other extras that the modules of one import."""
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            parts = [name.split(".") for name in names]
            found |= {part[2] for part in parts if part[:2] == ["penstock", "extras"]}
    return found - {folder.name}


def imports_that_it_states(text: str) -> set[str]:
    """Extras that the last sentence of a README names."""
    sentence = text.rpartition("Imports ")[2]
    assert sentence != text, "the README ends with what it imports"
    return set(CODE_NAME.findall(sentence)) & set(NAMES)


def missing_files(text: str, folder: Path) -> list[str]:
    """Names of files in a README that are neither in its folder, nor in the package, nor in the repository."""
    named = FILE_NAME.findall(text)
    return [
        name for name in named if not any((top / name).exists() for top in (folder, PACKAGE, ROOT))
    ]


def groups_of(extra: str) -> set[str]:
    """Groups of plugins in which the table of plugins.py has something of an extra."""
    table = plugins._OF_EXTRAS
    module = f"penstock.extras.{extra}."
    return {
        group
        for group, targets in table.items()
        if any(target.startswith(module) for target in targets.values())
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_the_readme_of_an_extra_says_what_it_adds_and_which_seams_it_uses(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {folder.name}: ") and "**Adds**" in text
    assert missing_files(text, folder) == []
    seams = {name for cell in SEAM.findall(text) for name in CODE_NAME.findall(cell)}
    assert seams & plugins._OF_EXTRAS.keys() == groups_of(folder.name)
    assert imports_that_it_states(text) == imported_extras(folder)
    assert f"tests/extras/{folder.name}/" in text


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_an_extra_has_tests_and_imports_only_the_extras_of_the_table(folder: Path) -> None:
    assert list((ROOT / "tests" / "extras" / folder.name).glob("test_*.py"))
    assert imported_extras(folder) <= MAY_IMPORT.get(folder.name, set())


def test_the_contracts_and_the_guide_name_every_extra_and_every_room() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {each["name"]: each for each in rules["tool"]["importlinter"]["contracts"]}
    strangers = set(re.findall(r"\w+", " ".join(contracts["extras are strangers"]["layers"])))
    assert strangers == set(NAMES)
    modules = {file.stem for file in PACKAGE.glob("*.py")}
    rooms = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    core = (modules | rooms) - ABOVE - {"__init__", "__main__"}
    assert set(contracts["the core does not know extras"]["source_modules"]) == {
        f"penstock.{name}" for name in core
    }
    assert all(f" {name}/" in GUIDE for name in NAMES)
    pairs = {(each, other) for each, others in MAY_IMPORT.items() for other in others}
    assert pairs == set(re.findall(r"`(\w+) → (\w+)`", GUIDE))


def test_a_readme_that_is_not_true_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "order.py").write_text("from penstock.extras.media.tar import Member\n")
    assert missing_files("`order.py` and `filter.py`, as `plan/order.py`", tmp_path) == [
        "filter.py"
    ]
    assert imported_extras(tmp_path) == {"media"}
    assert imports_that_it_states("Imports `view`.\n\nImports no other extra.") == set()
