"""A Loader as a dataset for torch's DataLoader: worker processes make the same batches in the same order."""

import pickle

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
    """T11: the dataset had a lock of forked processes, which cannot be sent to others: `SemLock created in a fork context`."""
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


def test_the_option_workers_is_refused_with_what_replaces_it(store):
    with pytest.raises(PlanError, match=r"DataLoader\(loader\.as_dataset\(\).*num_workers=N"):
        Loader(store, **OPTIONS, workers=2)


def test_workers_pass_over_skipped_steps(store):
    options = {**OPTIONS, "skip_steps": [1, 2, 7]}
    steps = Loader(store, **options).as_dataset()
    batches = DataLoader(steps, batch_size=None, num_workers=2, collate_fn=as_it_is)
    assert contents(batches) == contents(Loader(store, **options))


def test_an_error_in_a_worker_reaches_the_consumer(store):
    steps = Loader(store, batch_size=2, max_length=24, on_overlong="error").as_dataset()
    with pytest.raises(ps.errors.Overlong, match="max_length is 24"):
        list(DataLoader(steps, batch_size=None, num_workers=2, collate_fn=as_it_is))


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
