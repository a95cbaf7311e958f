"""Does the page of dependencies list what pyproject.toml asks for, with bounds and licences, and do two builds agree?"""

import hashlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, files, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "dependencies.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required() -> dict[str, Requirement]:
    lines = list(PROJECT["dependencies"])
    for extra, more in PROJECT["optional-dependencies"].items():
        if extra != "dev":
            lines += more
    return {each.name: each for each in map(Requirement, lines)}


def listed() -> dict[str, tuple[str, str]]:
    """Package → (licence, upper bound), as the page has them."""
    text = PAGE.read_text(encoding="utf-8")
    core = re.findall(r"^\| ([a-z][\w-]+) \| [^|]+ \| ([^|]+) \| ([^|]*) ?\|$", text, re.MULTILINE)
    extras = re.findall(r"^\| `\w+` \| ([\w-]+) \| ([^|]+) \| ([^|]*) ?\|$", text, re.MULTILINE)
    rows = [row for row in (*core, *extras) if row[0] not in ("package", "extra")]
    return {name: (licence.strip(), bound.strip()) for name, licence, bound in rows}


def test_the_page_lists_every_dependency_with_its_upper_bound() -> None:
    bounds = {
        name: next((each.version for each in needed.specifier if each.operator == "<"), "")
        for name, needed in required().items()
    }
    assert {name: bound.partition(":")[0] for name, (_, bound) in listed().items()} == bounds


@pytest.mark.parametrize("name", sorted(required()))
def test_the_licence_is_that_of_the_package(name: str) -> None:
    try:
        found = metadata(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    stated = [found.get("License-Expression"), found.get("License")]
    stated += [each for each in found.get_all("Classifier") or [] if each.startswith("License")]
    words = " ".join(filter(None, stated)).lower()
    if not words:  # the metadata names none: then the files do
        texts = [each for each in files(name) or [] if "licenses" in each.parts]
        words = " ".join(each.read_text() for each in texts).lower()
    family = re.split(r"[-\s]", listed()[name][0])[0].lower()
    assert family in words


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_two_builds_are_equal(target: str, tmp_path: Path) -> None:
    digests = set()
    for turn in ("first", "second"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", tmp_path / turn]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        (built,) = (tmp_path / turn).iterdir()
        digests.add(hashlib.sha256(built.read_bytes()).hexdigest())
    assert len(digests) == 1
