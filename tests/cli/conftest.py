"""The command as a user starts it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import run as run_here

from .json_answers import name_of, validated

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

Result = subprocess.CompletedProcess[str]
Penstock = Callable[..., Result]


def _validate_json(arguments: list[str], output: str) -> None:
    """What a command printed with --json must be what its schema says, in every test."""
    if "--json" in arguments and output:
        validated(name_of(arguments), output)


@pytest.fixture
def command(tmp_path: Path) -> Penstock:
    """The command in a process of its own, in an empty folder, with a cache of its own."""

    def run(*arguments: str | Path, **environment: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PENSTOCK_CACHE": str(tmp_path / "cache"), **environment},
        )
        _validate_json([str(each) for each in arguments], done.stdout)
        return done

    return run


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    """The command in this process: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = run_here([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        _validate_json([str(argument) for argument in arguments], captured.out)
        return code, captured.out, captured.err

    yield run


@pytest.fixture
def chat_tokenizer(tokenizer_path: Path, tmp_path: Path) -> Path:
    """The same tokenizer with a chat template, for sequences of up to 2,048 tokens."""
    folder = tmp_path / "instruct"
    shutil.copytree(tokenizer_path, folder)
    config = {
        "eos_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
