"""Do the files that services read say what is true: metadata, citation, hook, action, container, issue templates?"""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

import penstock
from penstock.cli.main import cli

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"].keys()


def read_yaml(name: str) -> object:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_classifiers_are_known_and_python_versions_agree() -> None:
    known = pytest.importorskip("trove_classifiers").classifiers
    assert [each for each in PROJECT["classifiers"] if each not in known] == []
    versions = [each.rpartition(":: ")[2] for each in PROJECT["classifiers"] if ":: 3." in each]
    assert versions[0] == PROJECT["requires-python"].removeprefix(">=")
    assert (ROOT / "src" / "penstock" / "py.typed").is_file() and "Typing :: Typed" in PROJECT[
        "classifiers"
    ]
    assert len(PROJECT["keywords"]) > 3


def test_the_citation_is_of_this_version() -> None:
    citation = read_yaml("CITATION.cff")
    assert isinstance(citation, dict)
    assert citation["version"] == penstock.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_hook_and_the_action_run_commands_that_are_there() -> None:
    hooks = read_yaml(".pre-commit-hooks.yaml")
    action = read_yaml("action.yml")
    assert isinstance(hooks, list) and isinstance(action, dict)
    lines = [hook["entry"] for hook in hooks] + [step["run"] for step in action["runs"]["steps"]]
    commands = [shlex.split(line)[:2] for line in lines if line.startswith("penstock ")]
    assert len(commands) == 2
    assert all(command in cli.commands for _, command in commands)
    assert re.search(hooks[0]["files"], "data/recipe-sft.yml")
    assert not re.search(hooks[0]["files"], "docs/mkdocs.yml")
    assert action["inputs"]["extras"]["default"] in EXTRAS


def test_the_container_installs_extras_that_are_there() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (named,) = re.findall(r"/src\[([\w,]+)\]", text)
    assert set(named.split(",")) <= EXTRAS
    copied = re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())


@pytest.mark.parametrize(
    "page", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")), ids=lambda page: page.name
)
def test_an_issue_template_has_a_name_and_says_what_it_is_for(page: Path) -> None:
    head = yaml.safe_load(page.read_text(encoding="utf-8").split("---")[1])
    assert head["name"] and head["about"]
