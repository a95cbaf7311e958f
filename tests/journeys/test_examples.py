"""Every example runs as a user would run it: as a script, from any folder, with nothing prepared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, example], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout
    assert list(tmp_path.iterdir()) == []  # what it makes, it takes away again


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_is_short(example: Path) -> None:
    limit = 150 if example.name == "demo.py" else 60  # the demo also checks what it shows
    assert len(example.read_text().splitlines()) <= limit


def test_there_are_examples() -> None:
    assert {"demo.py", "01_first_batch.py"} <= {path.name for path in EXAMPLES}
