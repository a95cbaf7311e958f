"""FSDP2 over real processes: killed at any step and resumed on other numbers of ranks, every step is that of a whole run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .test_launchers import run

pytest.importorskip("torch")
pytest.importorskip("transformers")

TO_THE_END = 0


def steps_of(folder: Path, *runs: tuple[int, int]) -> dict[int, Any]:
    """Train with these (ranks, step at which all ranks are killed), one after the other; return the last line of each step."""
    folder.mkdir()
    for ranks, die_at in runs:
        module = "tests.extras.trainers.sharded_runs"
        result = run([sys.executable, "-m", module, str(ranks), str(die_at)], folder)
        assert result.returncode == 0, result.stdout + result.stderr
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    return steps_of(tmp_path_factory.mktemp("whole") / "run", (2, TO_THE_END))


@pytest.mark.soak
@pytest.mark.parametrize("runs", [[(2, 4), (4, 8), (1, TO_THE_END)], [(4, 7), (2, TO_THE_END)]])
def test_a_sharded_training_resumes_on_other_numbers_of_ranks(
    runs: list[tuple[int, int]], whole: dict[int, Any], tmp_path: Path
) -> None:
    found = steps_of(tmp_path / "run", *runs)
    assert found.keys() == whole.keys()
    assert len(whole) > 10
    for step, line in whole.items():
        assert found[step]["samples"] == line["samples"]
        assert found[step]["loss"] == pytest.approx(line["loss"], rel=1e-3)
