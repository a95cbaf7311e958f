"""Benchmarks run for minutes and rarely, so a tiny size of each runs here, and the pages are compared with the numbers they show."""

import json
import math
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"


def load(name: str) -> ModuleType:
    """A module of benchmarks/, which is no package."""
    sys.path.insert(0, str(FOLDER))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(FOLDER))


runner, pages, stand = load("all"), load("pages"), load("stand")
SCRIPTS: list[str] = runner.names()
ENTRIES: dict[str, Any] = stand.read_results()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every script reports, all in one process."""
    out = tmp_path_factory.mktemp("tiny") / "reports.json"
    command = [sys.executable, str(FOLDER / "all.py"), "--tiny", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr[-3000:]
    return dict(json.loads(out.read_text()))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_tiny_run_gives_numbers(reports: dict[str, Any], name: str) -> None:
    report = reports[name]
    assert not report["error"], report["error"]
    numbers = [stand.Number(**fields) for fields in report["numbers"]]
    assert numbers
    for number in numbers:
        assert math.isfinite(number.value), number
        assert number.what, number
        if number.unit in ("×", "s", "ms", "bytes", "M tokens/s"):
            assert number.value > 0 or "shard" in number.key, number
    for table in report["tables"]:
        assert table["rows"], table["title"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_peers_are_compared_or_named_as_absent(reports: dict[str, Any], name: str) -> None:
    report = reports[name]
    compared = {fields.get("peer") for fields in report["numbers"]}
    for peer in report["peers"]:
        installed = find_spec(stand.PEERS[peer]) is not None
        if installed and peer != "mosaicml-streaming":  # of an environment of its own
            assert peer in compared, f"{peer} is installed and not compared: {report['absent']}"
            assert peer not in report["absent"]
            assert report["versions"][peer] == stand.version_of(peer)
        else:
            assert report["absent"][peer]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_declares_what_it_measures(name: str) -> None:
    """Modules and packages that exist: a page is older than the code when these have changed."""
    benchmark = load(name).BENCHMARK
    assert benchmark.question.endswith("?")
    assert benchmark.measures
    for module in benchmark.measures:
        assert find_spec(f"penstock.{module}"), module


def test_the_example_of_the_readme_is_a_benchmark(tmp_path: Path) -> None:
    text = (FOLDER / "README.md").read_text()
    example = text.partition("```python\n")[2].partition("```")[0]
    script = tmp_path / "lines.py"
    script.write_text(example)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{FOLDER}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, str(script), "--tiny"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "counting, against datasets" in done.stdout


def compare_with(new: Path, works: list[str]) -> "subprocess.CompletedProcess[str]":
    """This tree against another one."""
    script = str(FOLDER / "compare.py")
    command = [sys.executable, script, "--tiny", str(ROOT), str(new), "--only", *works]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_two_commits_are_compared_by_the_same_work() -> None:
    done = compare_with(ROOT, ["prepare_one_row", "batches_of_numpy"])
    assert done.returncode == 0, done.stdout + done.stderr
    for work in ("prepare one row", "batches of numpy"):
        row = next(line for line in done.stdout.splitlines() if line.startswith(f"| {work}"))
        _, _, old, new, ratio, *_ = (cell.strip() for cell in row.split("|"))
        assert float(old) > 0
        assert float(new) > 0
        assert float(ratio.split()[0]) > 0


def test_a_commit_with_another_result_or_an_error_fails_the_comparison(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    names = tmp_path / "src" / "penstock" / "__init__.py"
    text = names.read_text()
    names.write_text(f"{text}\n__all__ = []\n")
    done = compare_with(tmp_path, ["import_package"])
    assert done.returncode == 1
    assert "import_package: True before, False now" in done.stdout
    names.write_text("raise RuntimeError('broken on purpose')\n")
    done = compare_with(tmp_path, ["import_package"])
    assert done.returncode == 1
    assert "broken on purpose" in done.stdout


def test_every_script_has_its_line_in_the_index_and_its_numbers_in_the_file() -> None:
    index = (FOLDER / "README.md").read_text()
    for script in FOLDER.glob("*.py"):
        assert script.name in index
    assert set(SCRIPTS) == set(ENTRIES), "run it: python benchmarks/NAME.py"


def test_pages_and_the_front_page_are_written_from_the_file_of_results() -> None:
    """So the mark "older than the code" is right, too: it compares the digest of the sources with that of the run."""
    stale = [
        path.name
        for path, text in pages.files().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not stale, (
        f"{', '.join(stale)}: run python benchmarks/pages.py, and commit what it writes"
    )


def test_a_page_older_than_its_code_says_so() -> None:
    entry = {**next(iter(ENTRIES.values())), "measures": ["plan.packing"]}
    now = stand.digest(["plan.packing"])
    assert "Older than the code" not in pages.page("pack", {**entry, "digest": now})
    assert "Older than the code" in pages.page("pack", {**entry, "digest": "0" * 16})
    assert stand.digest(["plan.packing", "plan.block"]) != now


def test_the_digest_covers_every_module_of_a_package(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(stand, "SOURCES", tmp_path)
    (tmp_path / "room" / "inner").mkdir(parents=True)
    for file in ("room/one.py", "room/inner/two.py", "other.py"):
        (tmp_path / file).write_text("a = 1\n")
    before = stand.digest(["room"])
    (tmp_path / "other.py").write_text("a = 2\n")
    assert stand.digest(["room"]) == before
    (tmp_path / "room" / "inner" / "two.py").write_text("a = 2\n")
    assert stand.digest(["room"]) != before


def test_the_front_page_shows_numbers_that_were_measured() -> None:
    table = pages.front(ENTRIES)
    assert len(table) >= len(pages.FRONT)
    assert not [row for row in table if "not measured" in row]


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_where_a_peer_is_ahead_the_page_says_so(name: str) -> None:
    numbers = [stand.Number(**fields) for fields in ENTRIES[name]["numbers"]]
    page = pages.page(name, ENTRIES[name])
    for number in numbers:
        if pages.is_behind(number):
            assert f"**{number.peer} is ahead** in “{number.what}”" in page
    for peer, why in ENTRIES[name]["absent"].items():
        assert f"**Not measured**: {why}" in page, peer
