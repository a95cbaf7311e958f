"""Each exit code of the documentation, from a command that ends with it; 70 and 130 are in test_commands.py."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main

RECORDS = [{"text": f"the fox runs over a hill, number {row}"} for row in range(30)]


@pytest.fixture
def recipe(tmp_path: Path, tokenizer_path: Path) -> Path:
    lines = [json.dumps(record) for record in RECORDS]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data: data.jsonl\ntokenizer: {tokenizer_path}\ntemplate: text\nmax_length: 64\nbatch_size: 2\nnum_proc: 1\n"
    )
    return path


def test_the_table_names_every_code() -> None:
    named = [int(code) for code in re.findall(r"^(\d+) ", str(main.__doc__), re.MULTILINE)]
    codes = [main.OK, main.PROBLEMS, main.USAGE, main.DATA, main.FAULT, main.INTERRUPTED]
    assert named == codes


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ["check", "recipe.yaml"]),
        (0, ["plan", "recipe.yaml"]),
        (1, ["check", "bad.jsonl", "--template", "text"]),
        (1, ["plan", "recipe.yaml", "--max-length", "4"]),  # every sample is dropped
        (1, ["plan", "recipe.yaml", "--set", "last_step=drop", "--batch-size", "500"]),  # no step
        (1, ["plan", "recipe.yaml", "--compare", "state.json", "--set", "seed=1"]),
        (1, ["bench", "recipe.yaml", "--seconds", "0.1", "--model-tokens-per-second", "1e15"]),
        (1, ["verify", "--all"]),
        (2, ["plan", "recipe.yaml", "--no-such-option"]),
        (2, ["plan"]),
        (3, ["plan", "missing.yaml"]),
        (3, ["plan", "recipe.yaml", "--set", "no_such_key=1"]),
        (3, ["prepare", "empty.jsonl", "--template", "text"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_command_ends_with_its_code(
    code: int, arguments: list[str], here: Any, recipe: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text("{broken\n" * 3)
    (tmp_path / "empty.jsonl").write_text("")
    if "state.json" in arguments:
        import penstock as ps

        loader = ps.load(recipe, output="numpy", rank=0, world_size=1)
        next(iter(loader))
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    if arguments[0] == "verify":
        assert here("prepare", recipe)[0] == 0
        [shard, *_] = sorted((tmp_path / "cache").glob("**/*.shard")) or sorted(
            path for path in (tmp_path / "cache" / "shards").rglob("*") if path.is_file()
        )
        shard.chmod(0o644)
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    more = (
        ["--tokenizer", tokenizer_path]
        if arguments[1:2] and arguments[1].endswith("l") and "jsonl" in arguments[1]
        else []
    )
    found, _, said = here(*arguments, *more)
    assert found == code, said
