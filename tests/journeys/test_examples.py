"""Every example runs as a user would run it: as a script, from any folder, with nothing prepared."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
ON_RAY = "08_ray_train.py"  # tests/extras/ray/test_train.py runs it, on its cluster
# These run in a soak; 02_hf_trainer.py and the ranks of test_ranks.py run in `make test`.
LONG = ("03_torchrun.py", "05_accelerate.py", "06_lightning.py", "07_trl.py")


def missing(example: Path) -> list[str]:
    """Packages that the example imports, anywhere in it, and that are not installed here."""
    nodes = list(ast.walk(ast.parse(example.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return sorted(
        top
        for top in {name.partition(".")[0] for name in names}
        if importlib.util.find_spec(top) is None
    )


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=pytest.mark.soak if path.name in LONG else ())
        for path in EXAMPLES
        if path.name != ON_RAY
    ],
    ids=lambda path: path.name,
)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    if absent := missing(example):
        pytest.skip(f"{', '.join(absent)} not installed")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, example], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout
    kept = (
        ["demo-output"] if example.name == "demo.py" else []
    )  # what it makes otherwise, it takes away again
    assert [path.name for path in tmp_path.iterdir()] == kept
    assert not kept or (tmp_path / "demo-output" / "report.html").stat().st_size > 10_000


def test_there_are_examples() -> None:
    assert {"demo.py", "01_first_batch.py", "02_hf_trainer.py"} <= {path.name for path in EXAMPLES}
    assert missing(EXAMPLES[0]) == []
