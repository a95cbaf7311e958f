"""From file to batch, killed in the middle, resumed on another world size: what was trained is one epoch, exactly."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.policy import SOAK, first_in_short_runs

from .job import open_loader

NUM_RECORDS = 9_000 if SOAK else 900
JOB = Path(__file__).parent / "job.py"


@pytest.fixture
def folder(tmp_path: Path, tokenizer_path: Path) -> Path:
    rng = random.Random(5)
    with (tmp_path / "data.jsonl").open("w") as file:
        for n in range(NUM_RECORDS):
            text = " ".join(
                rng.choice(["fox", "dog", "runs", "over", "away", "lazy"])
                for _ in range(rng.randrange(60))
            )
            file.write(json.dumps({"text": text, "n": n}) + "\n")
    shutil.copytree(tokenizer_path, tmp_path / "tokenizer")
    open_loader(tmp_path, 0, 1)  # prepare once, so that a kill hits training, not preparation
    return tmp_path


def start(folder: Path, run: int, world_size: int) -> list[subprocess.Popen]:
    env = {**os.environ, "RUN": str(run)}
    return [
        subprocess.Popen(
            [sys.executable, JOB, folder, str(rank), str(world_size)],
            env=env,
            start_new_session=True,
        )
        for rank in range(world_size)
    ]


def kill(ranks: list[subprocess.Popen]) -> None:
    for rank in ranks:
        os.killpg(rank.pid, signal.SIGKILL)
    for rank in ranks:
        rank.wait()


def trained(folder: Path, run: int, upto: int | None) -> list[dict]:
    """Steps that run `run` logged whole, before step `upto` (later ones are lost with the killed job and done again)."""
    lines = [
        json.loads(line)
        for log in folder.glob(f"log-{run}-*.jsonl")
        for line in log.read_text().splitlines()
        if line.endswith("}")
    ]
    return [line for line in lines if upto is None or line["step"] < upto]


@pytest.mark.parametrize("sizes", first_in_short_runs([(2, 3), (3, 1, 2)]))
def test_killed_jobs_together_train_one_epoch(folder, sizes):
    rng = random.Random(sum(sizes))
    kept: list[dict] = []
    for run, world_size in enumerate(sizes):
        ranks = start(folder, run, world_size)
        if run < len(sizes) - 1:
            first = json.loads((folder / "state.json").read_text())["step"] if run else 0
            wanted = first + rng.randrange(5, 9)
            deadline = time.monotonic() + 60
            while not any(line["step"] >= wanted for line in trained(folder, run, None)):
                assert time.monotonic() < deadline and all(rank.poll() is None for rank in ranks)
                time.sleep(0.01)
            kill(ranks)
            kept += trained(folder, run, json.loads((folder / "state.json").read_text())["step"])
        else:
            assert [rank.wait(60) for rank in ranks] == [0] * world_size
            kept += trained(folder, run, None)

    expect_one_epoch(folder, kept)


def expect_one_epoch(folder: Path, kept: list[dict]) -> None:
    """What all runs together kept is one epoch: every step once by each rank, every row in its order, every token once."""
    # Every step once, by each of its ranks.
    steps = Counter(line["step"] for line in kept)
    assert all(
        count == next(x["world"] for x in kept if x["step"] == step)
        for step, count in steps.items()
    )
    assert sorted(steps) == list(range(len(steps)))

    # The rows, in order, are those of an uninterrupted run.
    together = []
    for step in sorted(steps):
        rows = sorted(row for line in kept if line["step"] == step for row in line["rows"])
        assert [place for place, _ in rows] == list(range(2 * steps[step]))
        together += [row for _, row in rows]
    alone = [
        [[str(where), start, stop] for where, start, stop in row]
        for batch in open_loader(folder, 0, 1)
        for row in batch.provenance
    ]
    assert [row for row in together if row] == [row for row in alone if row]

    # And they hold every token of every record once.
    tokens = Counter(
        (where, t) for row in together for where, start, stop in row for t in range(start, stop)
    )
    assert set(tokens.values()) == {1}
    store = open_loader(folder, 0, 1).stores[0]
    assert sum(tokens.values()) == sum(len(sample) for sample in store)
    assert len({where for where, _ in tokens}) == store.counts.samples
