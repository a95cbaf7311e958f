"""Workers are guests: they leave when their parent does, let it save, and are missed at once.  Files are few, however many shards.

That no worker outlives a parent killed -9, and that nothing stays in /dev/shm, is looked at after every kill in ranks.py.
"""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.sources import open_source
from penstock.store import build
from penstock.templates import TextTemplate, open_tokenizer
from tests.policy import SOAK
from tests.processes import children

from .job import open_loader
from .test_kill_and_resume import folder, trained

pytest.importorskip("torch")

__all__ = ["folder"]  # a fixture
ROOT = Path(__file__).parents[2]
NUM_SHARDS = 10_000 if SOAK else 2_000  # more than are kept mapped


def test_sigterm_to_all_processes_leaves_a_state_that_can_be_saved(folder):
    job = subprocess.Popen(
        [sys.executable, "-m", "tests.journeys.stopping_job", folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        start_new_session=True,
    )
    while not trained(folder, 0, None):
        assert job.poll() is None
        time.sleep(0.01)
    os.killpg(job.pid, signal.SIGTERM)  # as Slurm does: the workers get it too, perhaps first
    assert job.wait(60) == 0
    handed = trained(folder, 0, None)
    state = json.loads((folder / "state.json").read_text())
    assert state["step"] == len(handed) > 0
    loader = open_loader(folder, 0, 1, epochs=None)
    loader.load_state_dict(state)
    again = open_loader(folder, 0, 1, epochs=None)
    again.seek(len(handed))
    assert next(iter(loader))["input_ids"].tolist() == next(iter(again))["input_ids"].tolist()


def test_an_abandoned_iteration_leaves_no_process_and_no_open_file(folder):
    loader = open_loader(folder, 0, 1)
    len(loader)  # maps the lengths, which stay mapped
    before, num_files = children(), 0
    for loop in range(4):
        batches = iter(loader)
        next(batches)
        batches.close()
        assert children() == before
        if not loop:
            num_files = open_files()
    assert open_files() <= num_files


def open_files() -> int:
    gc.collect()  # queues of multiprocessing hold each other, and their pipes, until then
    return len(list(Path("/proc/self/fd").iterdir()))


def test_thousands_of_shards_need_few_open_files(tokenizer_path, tmp_path):
    cache = Cache(tmp_path)
    records = [{"text": "fox runs " * (1 + number % 5)} for number in range(NUM_SHARDS)]
    template = TextTemplate(open_tokenizer(tokenizer_path))
    source = open_source(records, cache=cache, name="many")
    store = build(source, template, engine=LocalEngine(1), cache=cache, shard_rows=1)
    assert store.num_shards == NUM_SHARDS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        samples, mapped = 0, 0
        for batch in ps.Loader(
            store, batch_size=8, max_length=64, shuffle_window="all", epochs=2, output="numpy"
        ):
            samples += len(batch.rows.spans)
            if batch.step % 16 == 0:
                mapped = max(mapped, Path("/proc/self/maps").read_text().count(".arrow"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert samples == 2 * NUM_SHARDS
    assert (
        256 < mapped < 0.9 * NUM_SHARDS
    )  # shards stay mapped without an open file each, and not all of them
