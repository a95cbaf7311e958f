"""A folder with data, a tokenizer and a prepared store, as the small trainings want it."""

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .runs import open_loader

ROOT = Path(__file__).parents[3]
QUIET = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def need(*packages: str) -> None:
    """Skip the test that asks, unless these packages are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def run_job(*arguments: str | Path) -> None:
    """Run Python with these arguments, on a CPU and without a network: trainers change the process that they run in."""
    job = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        job, cwd=ROOT, env={**os.environ, **QUIET}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path, tokenizer_path: Path) -> Path:
    return make_folder(tmp_path, tokenizer_path)


def make_folder(folder: Path, tokenizer_path: Path) -> Path:
    rng = random.Random(5)
    words = ["fox", "dog", "runs", "over", "away", "lazy"]
    lines = [{"text": " ".join(rng.choices(words, k=rng.randrange(40)))} for _ in range(90)]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copytree(tokenizer_path, folder / "tokenizer")
    open_loader(folder, output="numpy")
    return folder
