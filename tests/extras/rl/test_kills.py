"""Owners and workers are killed with SIGKILL at random moments; together they train every prompt of every epoch once."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.policy import SOAK

HERE = Path(__file__).parent
KILLS = 1000 if SOAK else 4
NUM_PROMPTS = 2_000 if SOAK else 150
EPOCHS = 2


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, HERE / script, *map(str, arguments)], start_new_session=True
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None or path.exists(), f"the owner ended with {process.returncode}"
        assert time.monotonic() < end
        time.sleep(0.01)


def live(folder: Path, rng: random.Random, most: int) -> int:
    """Train all prompts of all epochs; kill workers and owners up to `most` times; return the number of kills."""
    (folder / "data.jsonl").write_text(
        "".join(json.dumps({"id": n}) + "\n" for n in range(NUM_PROMPTS))
    )
    kills, lives = 0, 0
    while True:
        run = folder / f"run-{lives}"
        run.mkdir()
        owner = start("owner_job.py", folder, run.name)
        workers: list[subprocess.Popen[bytes]] = []
        try:
            wait_for(run / "address", owner)
            workers = [start("worker_job.py", run, f"worker-{n}") for n in range(2)]
            if kills < most:
                time.sleep(0.5 + rng.random())
                kill(workers[0])  # its leases run out, and the other worker gets its prompts
                workers[0] = start("worker_job.py", run, "worker-2")
                time.sleep(rng.random())
                kills += 1 + (owner.poll() is None)  # one that has finished cannot be killed
                kill(owner)
            else:
                wait_for(run / "finished", owner)
        finally:
            for process in (owner, *workers):
                kill(process)
        lives += 1
        if (run / "finished").exists():
            break
    trained = json.loads((folder / "checkpoint.json").read_text())
    every = [(epoch, n) for epoch in range(EPOCHS) for n in range(NUM_PROMPTS)]
    assert Counter(map(tuple, trained["weights"])) == Counter(every)
    assert trained["prompts"]["done"] == len(every) and trained["prompts"]["open"] == []
    return kills


@pytest.mark.timeout(4 * 3600 if SOAK else 300)
def test_killed_owners_and_workers_train_every_prompt_once(tmp_path: Path) -> None:
    rng, kills, runs = random.Random(11), 0, 0
    while kills < KILLS:
        folder = tmp_path / str(runs)
        folder.mkdir()
        kills += live(folder, rng, KILLS - kills)
        runs += 1
        print(
            f"{kills} kills, {runs} runs, {runs * NUM_PROMPTS * EPOCHS:,} prompts trained once each",
            flush=True,
        )
