"""Do the pages' examples run?  Every block of every page, in order, in a folder of made-up data; what cannot run says why."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from penstock.recipe.keys import keys

from .pages import PAGES, ROOT, Block, blocks, commands, is_as_shown, name
from .world import make, make_commands

# Pieces of programs that each need a trainer and a model; tests/extras/trainers runs the programs themselves.
FRAGMENTS = {ROOT / "docs/guides/trainers.md"}
MOST_NOT_RUN = 13  # blocks that say why they do not run here
LANGUAGES = {"", "python", "bash", "console", "yaml", "json", "text"}

RUNNING = [
    page for page in PAGES if page not in FRAGMENTS and any(block.runs for block in blocks(page))
]
EVERY = [block for page in PAGES for block in blocks(page)]


@pytest.mark.parametrize("page", RUNNING, ids=name)
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    make(folder, page)
    bin_folder = make_commands(tmp_path / "bin")
    keep = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    env = {
        **keep,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        ),
        "PENSTOCK_CACHE": str(tmp_path / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    job = [sys.executable, "-W", "error", "-m", "tests.docs.run_page", page]
    done = subprocess.run(job, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]


def test_few_blocks_do_not_run_and_each_says_why() -> None:
    not_run = [block for block in EVERY if block.why_not_run]
    assert len(not_run) <= MOST_NOT_RUN, [block.where for block in not_run]
    assert all(len(str(block.why_not_run)) > 10 for block in not_run)


def test_every_block_is_of_a_language_that_is_known_here() -> None:
    assert [block.where for block in EVERY if block.language not in LANGUAGES] == []


@pytest.mark.parametrize(
    "block", [block for block in EVERY if block.language == "yaml"], ids=lambda block: block.where
)
def test_every_yaml_block_can_be_read(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.text), dict)


FRAGMENT_BLOCKS = [
    block for page in FRAGMENTS for block in blocks(page) if block.language == "python"
]


@pytest.mark.parametrize("block", FRAGMENT_BLOCKS, ids=lambda block: block.where)
def test_fragments_name_what_is_there(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            made = find_spec(node.module or "")
            assert made and made.origin
            body = ast.parse(Path(made.origin).read_text()).body
            names = {getattr(part, "name", None) for part in body}
            for part in body:  # a public module passes on the names of an extra
                if isinstance(part, ast.ImportFrom):
                    names |= {alias.asname or alias.name for alias in part.names}
            assert {alias.name for alias in node.names} <= names, f"{block.where}: {node.module}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ps.Loader":
            assert {str(keyword.arg) for keyword in node.keywords} <= keys().keys(), block.where


def test_what_is_shown_is_compared_with_what_is_printed() -> None:
    printed = "one  1\n\ttwo\t22\nthree /some/place 3\nfour\n"
    for shown in (
        ["one 1", "two 22", "…"],
        ["…", "four"],
        ["one 1", "…", "four"],
        ["one …", "two 22", "three … 3", "four"],
        [],
    ):
        assert is_as_shown(shown, printed), shown
    for shown in (
        ["one 1"],
        ["one 2", "…"],
        ["…", "three … 4", "four"],
        ["one 1", "…", "two 22", "four"],
        ["…", "our"],
    ):
        assert not is_as_shown(shown, printed), shown


def test_commands_are_found_in_blocks() -> None:
    page = ROOT / "README.md"
    assert commands(Block(page, "bash", "# why\npenstock a \\\n  b\n\npenstock c\n", 1)) == [
        ("penstock a    b", []),
        ("penstock c", []),
    ]
    assert commands(Block(page, "console", "$ penstock a\nx\ny\n$ b\n", 1)) == [
        ("penstock a", ["x", "y"]),
        ("b", []),
    ]
    assert (
        Block(page, "bash", "# not run here: needs two machines\nx\n", 1).why_not_run
        == "needs two machines"
    )
    assert Block(page, "yaml", "# mix.yaml\ndata: x\n", 1).file == "mix.yaml"
