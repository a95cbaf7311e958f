"""Batches made by worker processes come in the same order, and the state counts what was handed over."""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from .arrays import Loader  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create 3 worker processes"
)  # on two cores
WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "home", "and"]
OPTIONS = {"batch_size": 2, "max_length": 64, "epochs": 2}


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(2)
    records = [
        {"text": " ".join(rng.choice(WORDS, rng.integers(0, 40)).tolist())} for _ in range(200)
    ]
    cache_dir = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
    )


def contents(batches) -> list:
    return [
        (
            batch.step,
            batch["input_ids"].tolist(),
            [batch.rows[r].tolist() for r in range(len(batch.rows))],
        )
        for batch in batches
    ]


def test_a_dataloader_may_spawn_its_workers(store):
    """T11: the data set had a lock of forked processes, which cannot be sent to others: `SemLock created in a fork context`."""
    expected = contents(Loader(store, **OPTIONS))
    steps = Loader(store, **OPTIONS).as_dataset()
    batches = DataLoader(
        steps, batch_size=None, num_workers=2, multiprocessing_context="spawn", collate_fn=as_it_is
    )
    assert contents(batches) == expected
    in_this_process = DataLoader(steps, batch_size=None, collate_fn=as_it_is)
    assert len(contents(in_this_process)) == len(expected)  # the next pass


def as_it_is(batch):
    return batch


@pytest.mark.parametrize(("workers", "output"), [(1, "numpy"), (3, "torch")])
def test_workers_change_neither_order_nor_state(store, workers, output):
    alone = Loader(store, **OPTIONS, output=output)
    states = [alone.state_dict()]
    whole = []
    for batch in alone:
        whole.append(batch)
        states.append(alone.state_dict())
    loader = Loader(store, **OPTIONS, output=output, workers=workers)
    for number, batch in enumerate(loader):
        assert contents([batch]) == contents([whole[number]])
        assert (
            loader.state_dict() == states[number + 1]
        )  # what the workers have ready is not counted
        assert batch.provenance == whole[number].provenance
    assert number == len(whole) - 1
    mine, theirs = loader.metrics.as_dict(), alone.metrics.as_dict()
    assert {**mine, "wait_seconds": 0} == {
        **theirs,
        "wait_seconds": 0,
    } and loader.counters == alone.counters


def test_cuts_that_are_no_multiple_of_the_workers(store):
    whole = contents(Loader(store, **OPTIONS))
    seen, state = [], None
    for workers, steps in [
        (2, 3),
        (3, 4),
        (0, 2),
        (2, None),
    ]:  # a second and a third resume, with other workers
        loader = Loader(store, **OPTIONS, workers=workers, prefetch=3)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        iterator = iter(loader)
        seen += contents(islice(iterator, steps))
        iterator.close()
        state = loader.state_dict()
    assert seen == whole


def test_workers_pass_over_skipped_steps_and_end_with_the_epoch(store):
    options = {**OPTIONS, "skip": [1, 2, 7]}
    assert contents(Loader(store, **options, workers=2)) == contents(Loader(store, **options))
    loader = Loader(store, **OPTIONS, per_epoch=True, workers=2)
    epochs = []
    for epoch in range(2):
        loader.set_epoch(
            epoch
        )  # the workers of the epoch before are gone; those of this one begin where it begins
        epochs += contents(loader)
    assert epochs == contents(Loader(store, **OPTIONS))


def test_an_error_in_a_worker_reaches_the_consumer(store):
    loader = Loader(store, batch_size=2, max_length=24, overflow="error", workers=2)
    with pytest.raises(ps.errors.Overlong, match="max_length is 24"):
        list(loader)


def test_a_data_set_for_a_dataloader_of_ones_own(store):
    whole = contents(Loader(store, **OPTIONS))
    for workers in (0, 2):
        loader = Loader(store, **OPTIONS)
        own = DataLoader(
            loader.as_dataset(), batch_size=None, collate_fn=lambda x: x, num_workers=workers
        )
        assert len(own) == len(whole)
        assert contents(own) == whole
    loader.seek(5)
    batches = list(
        DataLoader(loader.as_dataset(), batch_size=None, collate_fn=lambda x: x, num_workers=2)
    )
    assert contents(batches) == whole[5:]
    with pytest.raises(PlanError, match=r"without its stores; ask loader\.explain\(5\)"):
        batches[0].provenance


def test_persistent_workers_see_the_new_epoch(store):
    whole = contents(Loader(store, **OPTIONS))
    steps = Loader(store, **OPTIONS, per_epoch=True).as_dataset()
    own = DataLoader(
        steps, batch_size=None, collate_fn=lambda x: x, num_workers=2, persistent_workers=True
    )
    passes = []
    for epoch in range(2):
        steps.set_epoch(epoch)
        passes += [content[1:] for content in contents(own)]
    assert passes == [content[1:] for content in whole]
    assert contents(own) == contents(_from_epoch(store, 2))  # without set_epoch, the next one


def _from_epoch(store, epoch: int) -> ps.Loader:
    loader = Loader(store, **OPTIONS, per_epoch=True)
    for _ in range(epoch):
        list(loader)
    return loader


def test_a_loader_travels_to_another_process(store):
    loader = Loader(store, **OPTIONS)
    iterator = iter(loader)
    next(iterator)
    again = pickle.loads(pickle.dumps(loader))
    assert (
        again.state_dict() == loader.state_dict()
        and again.plan.fingerprint == loader.plan.fingerprint
    )
    iterator.close()
    assert contents(again) == contents(loader)


def test_a_batch_moves_and_keeps_where_it_comes_from(store):
    batch = next(iter(Loader(store, **OPTIONS, output="torch")))
    moved = batch.to("meta", non_blocking=True)
    assert moved["input_ids"].device.type == "meta" and moved.provenance == batch.provenance
    assert (moved.step, moved["max_seqlen"]) == (batch.step, batch["max_seqlen"])


LEAVES = """
    import sys
    import penstock as ps

    if __name__ == "__main__":
        store = ps.prepare(sys.argv[1], template="pretokenized", vocab_size=99, cache_dir=sys.argv[2], num_proc=1)
        batches = iter(ps.Loader(store, batch_size=1, max_length=64, epochs=None, workers=2))
        for batch in batches:
            if sys.argv[3] == "error":
                raise ValueError("the job fails")
            if sys.argv[3] == "wait":
                print("begun", flush=True)
                sys.stdin.read()
            break
"""


def leave(tmp_path, how):
    data = tmp_path / "ids.jsonl"
    data.write_text(
        "".join(json.dumps({"input_ids": list(range(n % 50 + 2))}) + "\n" for n in range(100))
    )
    (tmp_path / "job.py").write_text(textwrap.dedent(LEAVES))
    command = [sys.executable, str(tmp_path / "job.py"), str(data), str(tmp_path / "cache"), how]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, start_new_session=True, **pipes)


@pytest.mark.parametrize("how", ["end", "error"])
def test_a_job_that_ends_in_the_middle_does_not_wait_for_its_workers(tmp_path, how):
    job = leave(tmp_path, how)
    _, err = job.communicate(
        timeout=100
    )  # an iteration that is still held does not keep the process from ending
    assert job.returncode == (how == "error") and ("ValueError: the job fails" in err) == (
        how == "error"
    )


def test_workers_go_with_their_owner_and_not_by_the_word_of_others(tmp_path):
    job = leave(tmp_path, "wait")
    assert job.stdout.readline() == "begun\n"
    workers = [
        int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    ]
    assert len(workers) >= 2
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    time.sleep(0.2)
    assert all(Path(f"/proc/{pid}").exists() for pid in workers)
    _, err = job.communicate(timeout=100)
    assert job.returncode == 0, err
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
