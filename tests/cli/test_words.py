"""What the commands print can be read: on narrow terminals, for odd values, for bad rows, and with places that editors open."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.shell_completion import ShellComplete

import penstock as ps
from penstock.cli.main import cli, in_command_words
from penstock.cli.request import parse_options
from penstock.report.record import record_text

from .test_recipe_commands import on_a_terminal

Write = Callable[..., Path]

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]


@pytest.fixture
def recipe(write_jsonl: Write, tokenizer_path: Path, tmp_path: Path) -> Path:
    write_jsonl([{"text": " ".join(WORDS * (row % 7 + 1))} for row in range(3000)], "prose.jsonl")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data: prose.jsonl\ntokenizer: {tokenizer_path}\ntemplate: text\nmax_length: 512\nbatch_size: 8\nnum_proc: 1\n"
    )
    return path


@pytest.mark.parametrize("columns", [40, 120])
def test_tables_do_not_break_inside_numbers(recipe: Path, tmp_path: Path, columns: int) -> None:
    environment = {
        **os.environ,
        "PENSTOCK_CACHE": str(tmp_path / "cache"),
        "TERM": "xterm",
        "COLUMNS": str(columns),
    }
    numbers: dict[str, set[str]] = {}
    for name in ("stats", "plan", "check"):
        raw = on_a_terminal([sys.executable, "-m", "penstock", name, str(recipe)], environment)
        text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", raw).replace(b"\r", b"\n").decode()
        lines = [line for line in text.splitlines() if not line.startswith("penstock:")]
        table = [
            line
            for line in lines
            if re.match(r"(dataset  |prose  |max_length  | +[\d,]+  (best_fit|concat|none))", line)
        ]
        assert all(len(line.rstrip()) <= columns for line in table), (name, table)
        numbers[name] = set(re.findall(r"\d[\d,]*\d", text))
    tokens = sum(len(sample) for sample in _store(recipe, tmp_path))
    assert (
        f"{tokens:,}" in numbers["stats"]
        and f"{tokens:,}" in numbers["plan"]
        and "3,000" in numbers["check"]
    )


def _store(recipe: Path, tmp_path: Path) -> Any:
    return ps.load(
        recipe, output="numpy", cache_dir=tmp_path / "cache", rank=0, world_size=1
    ).stores[0]


def test_a_long_verdict_goes_on_under_its_text(recipe: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PENSTOCK_CACHE": str(tmp_path / "cache"),
        "TERM": "xterm",
        "COLUMNS": "60",
    }
    raw = on_a_terminal(
        [sys.executable, "-m", "penstock", "check", str(recipe), "--max-length", "32"], environment
    )
    lines = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", raw).replace(b"\r", b"").decode().splitlines()
    first = next(place for place, line in enumerate(lines) if "too long" in line)
    assert lines[first + 1].startswith(" " * 24) and all(
        len(line) <= 60 for line in lines[first : first + 3]
    )


def test_check_of_a_file_with_a_bad_row_is_a_verdict_not_an_error(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "the fox"}\nnot json\n{"text": "a dog"}\n')
    code, out, err = here("check", "bad.jsonl", "--tokenizer", tokenizer_path)
    assert code == 1 and re.search(
        r"^fail bad records +1 of 3 records \(33\.3%\) cannot be read", out, flags=re.MULTILINE
    ), err
    assert "1 failure" in out
    code, _, err = here("prepare", "bad.jsonl", "--tokenizer", tokenizer_path, "--num-proc", "1")
    assert code == 3 and "bad.jsonl:2: not JSON" in err


def test_init_says_how_many_sampled_rows_cannot_be_read(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "the fox"}\nnot json\n{"text": "a dog"}\n')
    code, out, err = here("init", "bad.jsonl", "--tokenizer", tokenizer_path)
    assert code == 0 and "(3 records sampled, 1 of them unreadable)" in out, err


def test_a_bad_row_is_named_as_editors_open_it(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "the fox"}\nnot json\n')
    _, _, err = here("prepare", "bad.jsonl", "--tokenizer", tokenizer_path, "--num-proc", "1")
    assert (
        f"{tmp_path}/bad.jsonl:2: not JSON" in err and "(record 1, counted from 0; byte 20)" in err
    )
    assert not re.search(r"jsonl:\d+:\d+", err)


def test_check_says_how_many_rows_it_read(here: Any, recipe: Path) -> None:
    _, out, _ = here("check", recipe, "--rows", "100", "-v")
    assert re.search(
        r"^ok +bad records +100 of 3,000 records read: all fine$", out, flags=re.MULTILINE
    )


HUGE = '{"text": "the fox", "id": 123456789012345678901234567890, "more": [1e400, -1e400], "deep": {"n": 1180591620717411303424}}'


@pytest.mark.extra("view")
def test_show_prints_integers_of_any_size(here: Any, tokenizer_path: Path, tmp_path: Path) -> None:
    (tmp_path / "huge.jsonl").write_text(HUGE.replace("1e400, -1e400", "1, 2") + "\n")
    for command in (("show", "huge.jsonl", "--row", "0"), ("report", "huge.jsonl", "--no-compare")):
        code, out, err = here(
            *command, "--tokenizer", tokenizer_path, "--template", "text", "--set", "num_proc=1"
        )
        assert code == 0 and "Traceback" not in err, err
        assert command[0] == "report" or "123456789012345678901234567890" in out
    assert "1180591620717411303424" in Path("report.html").read_text()


def test_a_record_of_any_values_can_be_shown() -> None:
    odd: Any = {
        "big": 10**5000,
        "nan": float("nan"),
        "bytes": b"\x00\xff" * 50,
        "array": np.arange(3),
        "scalar": np.float32(1.5),
        "date": np.datetime64("2020-01-02"),
        "nested": {"deep": [np.zeros((1, 2)), {1: "one"}]},
        "half": "\ud800",
        7: None,
    }
    odd["list"] = list(range(5000))
    shown = record_text(odd)
    for part in (
        "<integer of 16,610 bits>",
        "<nan>",
        "<100 bytes: 00 ff",
        "<date 2020-01-02>",
        '"7": null',
        "<3,000 more values>",
    ):
        assert part in shown, part
    json.loads(shown)
    odd["self"] = odd
    assert "nested deeper than" in record_text(odd)


def test_trained_tokens_are_targets_so_the_first_of_a_sample_is_none(
    here: Any, write_jsonl: Write, tokenizer_path: Path
) -> None:
    write_jsonl([{"text": "the fox"}] * 4, "t.jsonl")
    _, out, _ = here(
        "show",
        "t.jsonl",
        "--tokenizer",
        tokenizer_path,
        "--set",
        "num_proc=1",
        "--json",
        "--row",
        "0",
    )
    found = json.loads(out)
    assert (
        found["trained"]
        == len(found["tokens"]) - 1
        == sum(token["trained"] for token in found["tokens"])
    )
    _, out, _ = here(
        "stats", "t.jsonl", "--tokenizer", tokenizer_path, "--set", "num_proc=1", "--json"
    )
    (source,) = json.loads(out)["sources"]
    assert source["trained"] == source["tokens"] - source["samples"]
    _, out, _ = here(
        "show",
        "t.jsonl",
        "--tokenizer",
        tokenizer_path,
        "--set",
        "num_proc=1",
        "--json",
        "--row",
        "0",
    )
    assert (
        sum(segment["trained"] for segment in json.loads(out)["packed_row"]["segments"])
        == source["trained"]
    )


@pytest.mark.extra("view")
def test_report_shows_what_it_is_doing(here: Any, recipe: Path) -> None:
    code, _, err = here("report", recipe)
    stages = [
        "counting tokens",
        "packing an epoch",
        "comparing other max_length",
        "reading samples",
        "drawing the page",
    ]
    assert code == 0 and [err.index(stage) for stage in stages] == sorted(
        err.index(stage) for stage in stages
    )
    _, _, err = here("report", recipe, "--json")
    assert "counting tokens" not in err


def test_cache_false_beside_a_cache_dir_is_accepted(
    write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    path = write_jsonl([{"text": "the fox"}] * 3, "t.jsonl")
    folder = tmp_path / "unused"
    store = ps.prepare(path, tokenizer=tokenizer_path, cache=False, cache_dir=folder, num_proc=1)
    assert len(store) == 3 and not folder.exists()
    recipe = ps.Recipe.of(
        str(path),
        tokenizer=str(tokenizer_path),
        disable_cache=True,
        cache_dir=str(folder),
        batch_size=1,
    )
    assert (
        len(list(ps.load(recipe, output="numpy", num_proc=1, rank=0, world_size=1))) == 1
        and not folder.exists()
    )


def test_an_argument_of_open_given_to_prepare_is_named(
    write_jsonl: Write, tokenizer_path: Path
) -> None:
    path = write_jsonl([{"text": "the fox"}], "t.jsonl")
    with pytest.raises(
        ValueError,
        match=r"split= is an option of open: prepare\(penstock\.open\(…, split='train'\), …\)",
    ):
        ps.prepare(path, tokenizer=tokenizer_path, split="train")


def test_a_loader_that_is_taken_for_a_data_set_says_what_to_use(
    recipe: Path, tmp_path: Path
) -> None:
    loader = ps.load(recipe, output="numpy", cache_dir=tmp_path / "cache", rank=0, world_size=1)
    with pytest.raises(
        TypeError,
        match=r"LoaderTrainer\(loader=loader\).*LoaderSFTTrainer\(loader=loader\).*loader\.as_dataset\(\)",
    ):
        loader[0]


def test_a_list_on_the_command_line_needs_no_quotes() -> None:
    words = ["json_columns=[tools, messages]", "a=[x]", 'b=["y", 1]', "c=[INST] {{ x }}", "d=[]"]
    lists = {
        "json_columns": ["tools", "messages"],
        "a": ["x"],
        "b": ["y", 1],
        "c": "[INST] {{ x }}",
        "d": [],
    }
    assert parse_options(tuple(words)) == lists


def test_a_missing_tokenizer_is_asked_for_in_words_of_the_command_line(
    here: Any, tmp_path: Path
) -> None:
    (tmp_path / "small.jsonl").write_text('{"text": "a fox"}\n')
    code, _, error = here("show", "small.jsonl")
    assert code == 3 and "pass --tokenizer Qwen/Qwen3-0.6B" in error


@pytest.mark.parametrize("command", ["show", "prepare", "init", "verify"])
def test_shells_complete_the_names_of_files(command: str) -> None:
    complete = ShellComplete(cli, {}, "penstock", "_PENSTOCK_COMPLETE")
    completions = complete.get_completions([command], "ch")
    assert [(item.type, item.value) for item in completions] == [("file", "ch")]


@pytest.mark.parametrize(
    ("command", "option", "least"), [("trace", "--step", 0), ("plan", "--world-size", 1)]
)
def test_a_number_that_is_too_small_is_refused_with_the_least(
    here: Any, command: str, option: str, least: int
) -> None:
    code, _, error = here(command, "recipe.yaml", option, least - 1)
    assert code == 2
    assert f"'{option}': {least - 1} is too small, expected {least} or more" in error


def test_verify_advises_the_command_that_makes_a_damaged_file_again(
    here: Any, tmp_path: Path
) -> None:
    assert here("example", "text")[0] == 0
    assert here("prepare", "example-text/recipe.yaml")[0] == 0
    for shard in (tmp_path / "cache").rglob("shards/**/*.arrow"):
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    code, said, error = here("verify", "example-text/recipe.yaml")
    assert code == 1, error
    assert (
        "; run penstock prepare --refresh to make it again" in said and "refresh=True" not in said
    )
    assert here("prepare", "example-text/recipe.yaml", "--refresh")[0] == 0
    assert here("verify", "example-text/recipe.yaml")[0] == 0


def test_advice_is_in_the_words_of_the_command_line() -> None:
    cases = {
        "pass on_bad='skip'": "pass --set on_bad=skip",
        "pass tokenizer='Qwen/Qwen3-0.6B', or a path": "pass --tokenizer Qwen/Qwen3-0.6B, or a path",
        "pass shuffle_window=16 to shuffle, or shuffle=False": "pass --set shuffle_window=16 to shuffle, or --set shuffle=false",
        "run again with refresh=True": "run again with --refresh",
        "damaged; pass refresh=True to make it again": "damaged; run penstock prepare --refresh to make it again",
        "pass record=5": "pass record=5",  # no setting
        "pass chat_template=, or chat=True for ChatML": "pass --set chat_template=…, or --set chat=true for ChatML",
        "name the key with key=": "name the key with --set key=…",
        "give template='text' with key=, or": "give --set template=text with --set key=…, or",
        "pass verify= or": "pass --set verify=… or",
    }
    assert {each: in_command_words(each) for each in cases} == cases
