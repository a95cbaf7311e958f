"""Real ranks with real workers: killed at any time and resumed under any number of ranks, they train one epoch; at odds, they say so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.policy import SOAK

from .test_kill_and_resume import expect_one_epoch, folder, trained

pytest.importorskip("torch")

__all__ = ["folder"]  # a fixture
ROOT = Path(__file__).parents[2]
KILLS = 50 if SOAK else 6


def drive(*arguments: object) -> None:
    job = [sys.executable, "-m", "tests.journeys.ranks", *map(str, arguments)]
    env = {**os.environ, "PYTHONWARNINGS": "ignore", "PENSTOCK_PATIENCE": "60"}
    result = subprocess.run(job, cwd=ROOT, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(1800)
def test_killed_again_and_again_with_other_ranks_they_train_one_epoch(folder):
    drive("kill", folder, KILLS, 11)
    kept = []
    for run in range(KILLS):
        kept += trained(folder, run, int((folder / f"kept-{run}").read_text()))
    expect_one_epoch(folder, kept + trained(folder, KILLS, None))


def test_ranks_that_disagree_fail_in_seconds_and_name_the_field(folder):
    drive("disagree", folder)
    for run, field in enumerate(["seed 7 → 8", "step 0 → 2"]):
        said = [(folder / f"said-{run}-{rank}").read_text() for rank in range(3)]
        assert field in said[0] and "rank 0 → rank 1" in said[0]
        assert all(
            "ranks disagree on what to train" in text for text in said
        )  # none of them waited in vain


@pytest.mark.soak
def test_a_bare_loop_under_torchrun_is_restarted_and_goes_on_with_fewer_ranks(folder):
    """Three ranks; one is killed, torchrun starts all again, one is killed again, and two ranks finish the epoch."""
    # torch 2.13 leaves the addresses of the ranks before on the store that it shares, and gloo then calls there.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    quiet = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "PENSTOCK_PATIENCE": "60"}
    codes = []
    for run, ranks, die_at in [(0, 3, 7), (2, 2, -1)]:
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
        ]
        job = [
            *torchrun,
            "--max-restarts=1",
            "--monitor-interval=0.1",
            "-m",
            "tests.journeys.torchrun_job",
        ]
        result = subprocess.run(
            [*job, folder, str(run), str(die_at)],
            cwd=ROOT,
            env={**os.environ, **own_store, **quiet},
            capture_output=True,
            text=True,
        )
        codes.append(result.returncode)
    assert codes == [1, 0], result.stdout + result.stderr
    began = [int((folder / f"began-{run}").read_text()) for run in range(3)]
    assert (
        began == sorted(set(began)) and began[0] == 0
    )  # each start went on from a later checkpoint
    kept = [row for run in range(3) for row in trained(folder, run, [*began[1:], None][run])]
    expect_one_epoch(folder, kept)
