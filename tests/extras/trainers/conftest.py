"""A folder with data, a tokenizer and a prepared store, as the small trainings want it."""

import json
import random
import shutil
from pathlib import Path

import pytest

from .runs import open_loader


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
