"""Owners and workers are killed with SIGKILL at random moments; together they train every prompt of every epoch once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOAK = bool(os.environ.get("PENSTOCK_SOAK"))
KILLS = 1000 if SOAK else 4
NUM_PROMPTS = 20_000 if SOAK else 150
EPOCHS = 2


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, HERE / script, *map(str, arguments)], start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None or path.exists(), f"the owner ended with {process.returncode}"
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.soak
@pytest.mark.timeout(7200 if SOAK else 300)
def test_killed_owners_and_workers_train_every_prompt_once(tmp_path: Path) -> None:
    rng = random.Random(11)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"id": n}) + "\n" for n in range(NUM_PROMPTS)))
    kills, life = 0, 0
    while True:
        run = tmp_path / f"run-{life}"
        run.mkdir()
        owner = start("owner_job.py", tmp_path, run.name)
        workers: list[subprocess.Popen[bytes]] = []
        try:
            wait_for(run / "address", owner)
            workers = [start("worker_job.py", run, f"worker-{n}") for n in range(2)]
            if kills < KILLS:
                time.sleep(0.5 + rng.random())
                kill(workers[0])  # its leases run out, and the other worker gets its prompts
                workers[0] = start("worker_job.py", run, "worker-2")
                time.sleep(rng.random())
                kill(owner)
                kills += 2
            else:
                wait_for(run / "finished", owner)
                break
        finally:
            for process in (owner, *workers):
                kill(process)
        life += 1
        if (run / "finished").exists():  # done before the kill
            break
    trained = json.loads((tmp_path / "checkpoint.json").read_text())
    every = [(epoch, n) for epoch in range(EPOCHS) for n in range(NUM_PROMPTS)]
    assert Counter(map(tuple, trained["weights"])) == Counter(every)
    assert kills >= 2
    assert trained["prompts"]["done"] == len(every) and trained["prompts"]["open"] == []
