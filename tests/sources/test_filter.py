"""source.filter(fn, num_proc=, version=), and filter: in a recipe: run in processes, remembered by content, name and version, counted."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cli.main import run
from penstock.errors import BadRecord, SourceError
from penstock.sources import RowAccess
from tests.sources.filters import fails, is_easy, is_easy_and_counted

COUNT = 300
KEPT = [n for n in range(COUNT) if n % 5]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": "a fox"}) + "\n" for n in range(COUNT)))
    return path


@pytest.fixture
def source(path: Path, tmp_path: Path) -> RowAccess:
    return ps.open(path, cache_dir=tmp_path / "cache")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[int, int]]:
    """The number of calls of is_easy_and_counted so far, by process."""
    monkeypatch.setenv("PENSTOCK_TEST_CALLS", str(tmp_path / "calls"))
    (tmp_path / "calls").mkdir()
    return lambda: {
        int(file.name): len(file.read_text()) for file in (tmp_path / "calls").iterdir()
    }


def ids(view: RowAccess) -> list[int]:
    return [record["id"] for record in view]


def test_a_filter_in_processes_keeps_what_it_keeps_in_one(
    source: RowAccess, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sources.filter._RANGE_ROWS", 50)
    view = source.filter(is_easy_and_counted, num_proc=2)
    assert ids(view) == ids(source.filter(is_easy)) == KEPT
    assert sum(calls().values()) == COUNT and os.getpid() not in calls()


def test_answers_are_kept_for_the_same_records_name_and_version(
    path: Path, tmp_path: Path, calls: Any
) -> None:
    def kept(version: str | int | None, at: Path = path) -> list[int]:
        view = ps.open(at, cache_dir=tmp_path / "cache").filter(
            is_easy_and_counted, version=version
        )
        return ids(view)

    num_calls = []
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    for version, place in (("1", path), ("1", path), (1, copy), ("2", path), (None, path)):
        assert kept(version, place) == KEPT
        num_calls.append(sum(calls().values()))
    assert num_calls == [COUNT, COUNT, COUNT, 2 * COUNT, 3 * COUNT]
    path.write_text("".join(json.dumps({"id": n + 1}) + "\n" for n in range(COUNT)))
    assert kept("1") == [n + 1 for n in range(COUNT) if (n + 1) % 5]  # as many other records
    assert sum(calls().values()) == 4 * COUNT


def test_functions_of_one_name_that_are_written_elsewhere_do_not_share_answers(
    source: RowAccess,
) -> None:
    first = source.filter(lambda record: record["id"] < 5, version="1")
    second = source.filter(lambda record: record["id"] < 7, version="1")
    assert ids(first) == list(range(5)) and ids(second) == list(range(7))
    both = [lambda record: record["id"] < 3, lambda record: record["id"] < 4]
    assert [len(source.filter(keep, version="1")) for keep in both] == [3, 4]


def test_a_function_that_holds_values_is_not_remembered(source: RowAccess) -> None:
    border = 5
    with pytest.raises(SourceError, match="cannot be remembered: it is an object, or a function"):
        source.filter(lambda record: record["id"] < border, version="1")
    with pytest.raises(SourceError, match="filter: version is True, expected text or a whole"):
        source.filter(is_easy, version=True)


def test_what_filters_leave_out_is_counted_through_views(
    source: RowAccess, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        kept = source.filter(is_easy)
        view = ps.concat([kept.map(dict), source.filter(lambda record: record["id"] == 7)])
        assert len(view) == 241
    words = [str(left_out) for left_out in view.sort("id")[::2].left_out()]
    assert words[0] == "dropped 60 of 300 records (20.0%) by filter is_easy"
    assert "dropped 299 of 300 records (99.7%) by filter test_what" in words[1]
    assert caplog.text.count("by filter is_easy") == 1


def test_bad_rows_stay_and_errors_name_the_record(path: Path, tmp_path: Path) -> None:
    with path.open("a") as file:
        file.write("{broken\n")
    skipping = ps.open(path, on_bad="skip", cache_dir=tmp_path / "cache")
    view = skipping.filter(is_easy, version="1")
    assert len(view) == len(KEPT) + 1 and ids(view) == KEPT
    with pytest.raises(BadRecord, match=r"data.jsonl:8: the filter function fails raised ZeroDiv"):
        len(skipping.filter(fails, num_proc=2))


# In a recipe


@pytest.fixture
def recipe(path: Path, tmp_path: Path, tokenizer_path: Path) -> Iterator[Callable[[str], Path]]:
    """Writes a recipe with a module of filters next to it."""
    paths = list(sys.path)
    (tmp_path / "recipe_filters.py").write_text(
        "limit = 5\ndef is_late(record):\n    return record['id'] >= 290\n"
    )

    def write(lines: str) -> Path:
        file = tmp_path / "recipe.yaml"
        file.write_text(
            f"tokenizer: {tokenizer_path}\ntemplate: text\ncache_dir: cache\nbatch_size: 1\nnum_proc: 1\n{lines}"
        )
        return file

    yield write
    sys.path[:] = paths
    sys.modules.pop("recipe_filters", None)


def test_a_recipe_filters_its_data_sets(recipe: Any, caplog: pytest.LogCaptureFixture) -> None:
    file = recipe("data: data.jsonl\nfilter: recipe_filters:is_late\nfilter_version: 1\n")
    with caplog.at_level(logging.WARNING, "penstock"):
        loader = ps.load(file)
    assert loader.stores[0].source.left_out()[0].num_dropped == 290
    assert len(loader.stores[0]) == 10
    assert "data: dropped 290 of 300 records (96.7%) by filter is_late" in caplog.text
    of_one = recipe(
        "data:\n- path: data.jsonl\n  name: late\n  filter: recipe_filters:is_late\n- path: data.jsonl@[:7]\n  name: first\n"
    )
    assert [len(store) for store in ps.load(of_one).stores] == [10, 7]


def test_commands_show_what_a_filter_leaves_out(
    recipe: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    file = recipe("data: data.jsonl\nfilter: recipe_filters:is_late\n")
    for command in ("check", "prepare"):
        assert run([command, str(file)]) == 0
        printed = "".join(capfd.readouterr())
        assert "dropped 290 of 300 records (96.7%) by filter is_late" in printed, command


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("len(text) > 3", r"filter is 'len\(text\) > 3', expected module:function.*conditions"),
        ("is_late", "filter is 'is_late', expected module:function"),
        ("recipe_filtres:is_late", "module 'recipe_filtres' is not on Python's path or in"),
        ("recipe_filters:is_lat", "has no function 'is_lat'; did you mean 'is_late'"),
        ("recipe_filters:limit", "has no function 'limit'"),
        ("[1, 2]", r"filter is \[1, 2\], expected"),
    ],
)
def test_a_filter_that_names_no_function_is_refused(recipe: Any, value: str, message: str) -> None:
    quoted = value if value.startswith("[") else json.dumps(value)
    with pytest.raises(ValueError, match=message):
        ps.load(recipe(f"data: data.jsonl\nfilter: {quoted}\n"))


def test_a_version_needs_a_filter(recipe: Any) -> None:
    with pytest.raises(SourceError, match="filter_version='1' belongs to a filter"):
        ps.load(recipe("data: data.jsonl\nfilter_version: '1'\n"))


def test_a_filter_that_keeps_nothing_is_an_error_of_prepare(recipe: Any) -> None:
    (Path(recipe("data: data.jsonl\n").parent) / "recipe_filters.py").write_text(
        "def is_late(record):\n    return False\n"
    )
    with pytest.raises(SourceError, match="keeps none of 300 records"):
        ps.load(recipe("data: data.jsonl\nfilter: recipe_filters:is_late\n"))
