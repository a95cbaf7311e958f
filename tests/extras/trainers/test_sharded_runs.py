"""FSDP2 and DeepSpeed ZeRO over real processes: killed and resumed on other numbers of ranks, every step is that of a whole run."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .test_launchers import run

pytest.importorskip("torch")
pytest.importorskip("transformers")

TO_THE_END = 0


def steps_of(folder: Path, *runs: tuple[int, int], job: str = "sharded_runs") -> dict[int, Any]:
    """Train with these (ranks, step at which all ranks are killed), one after the other; return the last line of each step."""
    folder.mkdir()
    for ranks, die_at in runs:
        module = f"tests.extras.trainers.{job}"
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
    expect_same(steps_of(tmp_path / "run", *runs), whole)


@pytest.mark.soak
def test_a_training_with_zero_resumes_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    whole = steps_of(tmp_path / "whole", (2, TO_THE_END), job="deepspeed_runs")
    runs = [(2, 4), (4, 8), (1, TO_THE_END)]
    expect_same(steps_of(tmp_path / "run", *runs, job="deepspeed_runs"), whole)


def expect_same(found: dict[int, Any], whole: dict[int, Any]) -> None:
    assert found.keys() == whole.keys()
    assert len(whole) > 10
    for step, line in whole.items():
        assert found[step]["samples"] == line["samples"]
        assert found[step]["loss"] == pytest.approx(line["loss"], rel=1e-3)
