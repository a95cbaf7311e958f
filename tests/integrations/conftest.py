"""A folder with data, a tokenizer and a prepared store, as the small trainings want it."""

import json
import random
import shutil
from pathlib import Path

import pytest

from .runs import open_loader


@pytest.fixture
def folder(tmp_path: Path, tokenizer_path: Path) -> Path:
    rng = random.Random(5)
    words = ["fox", "dog", "runs", "over", "away", "lazy"]
    lines = [{"text": " ".join(rng.choices(words, k=rng.randrange(40)))} for _ in range(90)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copytree(tokenizer_path, tmp_path / "tokenizer")
    open_loader(tmp_path, output="numpy")
    return tmp_path
