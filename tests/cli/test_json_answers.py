"""Every `--json` output has a schema, and real outputs are valid under it.

The fixtures `here` and `command` validate the output of each command of each test, so what is here is what other tests do not run.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator

from penstock.cli import screen
from penstock.cli.answers import schema_of

from .json_answers import every_command, validated

COMMANDS = every_command()


@pytest.fixture
def recipe(tmp_path: Path, chat_tokenizer: Path) -> Path:
    """A mixture with a bad record, a record that is too long, and an eval set with a record of the training data."""
    turns = [
        [
            {"role": "user", "content": "word " * (1 + row % 9)},
            {"role": "assistant", "content": f"answer {row} " * (200 if row == 7 else 3)},
        ]
        for row in range(40)
    ]
    lines = [json.dumps({"messages": each, "unread": "x"}) for each in turns]
    (tmp_path / "talk.jsonl").write_text("\n".join([*lines, "{broken"]) + "\n")
    (tmp_path / "held.jsonl").write_text("\n".join(lines[:3]) + "\n")
    (tmp_path / "more.jsonl").write_text("\n".join(lines[5:20]) + "\n")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data:\n  talk: {{path: talk.jsonl, weight: 2}}\n  more: {{path: more.jsonl, weight: 1}}\neval: held.jsonl\n"
        f"tokenizer: {chat_tokenizer}\ntemplate: messages\nmax_length: 128\nbatch_size: 2\nmax_dropped: 1\non_bad: skip\nnum_proc: 1\n"
    )
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_json_and_has_a_valid_schema(name: str, here: Any) -> None:
    assert "--json" in {option for each in COMMANDS[name].params for option in each.opts}
    schema = schema_of(COMMANDS[name], name)
    Draft202012Validator.check_schema(schema)
    code, shown, _ = here("schema", *name.split(), "--json")
    assert code == 0 and json.loads(shown) == schema


def test_a_schema_refuses_what_it_does_not_name(here: Any, recipe: Path) -> None:
    _, shown, _ = here("plan", recipe, "--json")
    value = json.loads(shown)
    del value["fill"]
    for wrong in (value, {**json.loads(shown), "more": 1}, {**json.loads(shown), "steps": "3"}):
        with pytest.raises(jsonschema.ValidationError):
            validated("plan", json.dumps(wrong))


def test_outputs_of_a_recipe_are_what_their_schemas_say(
    here: Any, recipe: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    runs: list[tuple[object, ...]] = [
        ("check", recipe),
        ("prepare", recipe, "--status"),
        ("show", recipe),
        ("cache", "why", recipe),
        ("prepare", recipe),
        ("prepare", recipe, "--status"),
        ("show", recipe, "--record", "-1"),
        ("show", recipe, "--step", 1),
        ("stats", recipe),
        ("plan", recipe, "--world-size", 2),
        ("plan", recipe, "--set", "packing=none", "--part", "held"),
        ("trace", recipe, "--step", 2, "--world-size", 2),
        ("bench", recipe, "--seconds", 0.1, "--model-tokens-per-second", 1),
        ("verify", "--all"),
        ("verify", recipe),
        ("cache", "ls"),
        ("cache", "why", recipe),
        ("cache", "prune", "--older-than", "30d"),
    ]
    for arguments in runs:
        code, shown, said = here(*arguments, "--json")
        assert (code, bool(shown)) == (0, True), (arguments, said)
    import penstock as ps

    loader = ps.load(recipe, output="numpy", cache_dir=str(tmp_path / "cache"))
    next(iter(loader))
    state.write_text(json.dumps(loader.state_dict()))
    assert here("plan", recipe, "--compare", state, "--json")[0] == 0
    assert here("state", recipe, "--state", state, "--json")[0] == 0
    changed = recipe.with_name("changed.yaml")
    changed.write_text(recipe.read_text().replace("weight: 2", "weight: 5"))
    code, shown, _ = here("state", changed, "--state", state, "--changes", "--json")
    assert code == 0 and json.loads(shown)["changes"]
    stores = json.loads(here("cache", "ls", "--json")[1])["stores"]
    assert here("cache", "rm", stores[0]["store"], "--force", "--json")[0] == 0


def test_outputs_of_data_are_what_their_schemas_say(
    here: Any, recipe: Path, tmp_path: Path
) -> None:
    data = (tmp_path / "more.jsonl", "--tokenizer", tmp_path / "instruct")
    for arguments in (
        ("prepare", *data),
        ("cache", "why", *data),
        ("init", *data, "-o", "x.yaml"),
        ("check", *data),
    ):
        code, shown, said = here(*arguments, "--json")
        assert (code, bool(shown)) == (0, True), (arguments, said)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("one line\nanother line\n" * 30)
    (tmp_path / "text" / "test.txt").write_text("a line\n")
    for output, more in (("a.yaml", ()), ("b.yaml", ("--tokenizer", tmp_path / "instruct"))):
        code, _, said = here("init", tmp_path / "text", "-o", output, *more, "--json")
        assert code == 0, said


@pytest.mark.extra("formats")
def test_written_files_of_megatron_are_in_the_schema(here: Any, recipe: Path) -> None:
    code, shown, said = here("prepare", recipe, "--megatron", "out", "--drop-loss-mask", "--json")
    assert code == 0 and json.loads(shown)[0]["megatron"]["sequences"] == 40, said


@pytest.mark.extra("example")
def test_an_example_is_in_the_schema(here: Any) -> None:
    code, shown, _ = here("example", "chat", "--json")
    found = json.loads(shown)
    assert code == 0 and list(found["records"].values()) == [206, 120]
    assert Path(found["recipe"]).exists()


@pytest.mark.extra("imports")
def test_an_import_is_in_the_schema(here: Any, tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("model_name_or_path: m\ndataset_name: d\nmax_length: 64\n")
    code, _, said = here("import", "sft.yaml", "--json")
    assert code == 0, said


@pytest.mark.extra("view")
def test_pages_are_in_the_schema(here: Any, recipe: Path) -> None:
    few = ("--samples", 1, "--steps", 1, "--no-compare")
    assert here("report", recipe, *few, "--json")[0] == 0
    assert here("view", recipe, "--export", "page.html", *few, "--json")[0] == 0


@pytest.mark.extra("view")
def test_a_served_page_is_in_the_schema_and_ctrl_c_ends_it(recipe: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "penstock", "view", recipe, "--no-browser", "--json"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=tmp_path, text=True)
    assert server.stdout is not None
    shown = ""
    while not shown.endswith("}\n"):
        line = server.stdout.readline()
        assert line, "the server ended"
        shown += line
    server.send_signal(signal.SIGINT)
    rest, _ = server.communicate(timeout=60)
    assert (server.returncode, rest) == (0, "")
    assert validated("view", shown)["url"].startswith("http://127.0.0.1:")


def test_an_error_is_in_every_schema(here: Any, tmp_path: Path) -> None:
    for arguments in (("check", "missing.jsonl"), ("verify", "abcdef"), ("cache", "rm", "abcdef")):
        code, shown, _ = here(*arguments, "--json")
        assert code == 3 and json.loads(shown)["error"]["code"]


def test_a_number_that_is_not_finite_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    screen.as_json({"loss": float("nan"), "rest": [float("inf"), 1.5], "pair": (2, float("-inf"))})
    found = json.loads(capsys.readouterr().out)
    assert found == {"loss": None, "rest": [None, 1.5], "pair": [2, None]}
