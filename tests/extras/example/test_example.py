"""`penstock example`: what it writes can be trained on at once, and is the same on every machine."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "example", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def digests(folder: Path) -> dict[str, str]:
    """Digest of every file below a folder, by its name."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each example, under its default name."""
    folder = tmp_path_factory.mktemp("examples")
    for kind in ("chat", "text", "prompts"):
        done = run(folder, kind)
        assert done.returncode == 0, done.stderr
        assert f"next: {'python' if kind == 'prompts' else 'penstock'}" in done.stdout
    return folder


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_an_example_can_be_trained_on_at_once(kind: str, examples: Path, tmp_path: Path) -> None:
    recipe = examples / f"example-{kind}" / "recipe.yaml"
    loader = ps.load(recipe, output="numpy", cache_dir=tmp_path / "cache", num_proc=1)
    batches = list(loader)
    assert len(batches) == len(loader) > 0
    assert all(int((batch["labels"] != -100).sum()) > 0 for batch in batches)
    assert not loader.counters.samples_dropped


@pytest.mark.parametrize("most_bytes", [1_000, 52_000])  # of chat.jsonl, of tokenizer.json
def test_a_file_that_cannot_be_written_is_an_error_with_its_reason(
    most_bytes: int, tmp_path: Path
) -> None:
    limited = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {most_bytes})); "
        "from penstock.cli.main import app; app(['example', 'chat'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    assert "example-chat: cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr


def test_prompts_have_a_gold_word(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    recipe = examples / "example-prompts" / "recipe.yaml"
    prompts = ps.Prompts(recipe)
    taken = prompts.take(3)
    assert all(prompt.record["gold"] and len(prompt.input_ids) > 0 for prompt in taken)


def test_held_out_questions_are_not_in_the_training_set(examples: Path) -> None:
    folder = examples / "example-chat"
    asked = {
        message["content"]
        for record in ps.open(folder / "chat.jsonl")
        for message in record["messages"]
        if message["role"] == "user"
    }
    held_out = {record["messages"][0]["content"] for record in ps.open(folder / "held_out.jsonl")}
    assert held_out
    assert not asked & held_out


def test_an_example_is_the_same_each_time(examples: Path, tmp_path: Path) -> None:
    assert run(tmp_path, "chat", "again").returncode == 0
    assert digests(tmp_path / "again") == digests(examples / "example-chat")


def test_a_folder_with_files_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    done = run(tmp_path, "text", "mine")
    assert done.returncode == 3
    assert "mine is not an empty folder" in done.stderr
    assert digests(tmp_path / "mine").keys() == {"notes.txt"}


@pytest.mark.parametrize("command", ["show", "stats", "plan"])
def test_the_commands_read_prompts_that_are_prepared(
    command: str, examples: Path, tmp_path: Path
) -> None:
    """They ended with a refusal of the default packing, once the prompts were prepared."""
    recipe = examples / "example-prompts" / "recipe.yaml"
    env = {**os.environ, "PENSTOCK_CACHE": str(tmp_path)}
    for words in (["prepare", str(recipe)], [command, str(recipe)]):
        penstock = [sys.executable, "-m", "penstock", *words]
        done = subprocess.run(penstock, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
