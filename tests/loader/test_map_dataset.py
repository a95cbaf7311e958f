"""Rows by number and a sampler with a state: what a trainer with a DataLoader of its own trains equals the Loader's batches."""

import json
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import penstock as ps
from penstock.errors import PlanError, PlanMismatch

WORDS = ["fox", "dog", "runs", "over", "away", "lazy"]
OPTIONS: dict[str, Any] = {"batch_size": 3, "max_length": 48, "seed": 4, "output": "numpy"}


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(3)
    records = [
        {"text": " ".join(rng.choice(WORDS, 1 + rng.integers(40)).tolist())} for _ in range(120)
    ]
    cache_dir = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
    )


def open_loader(store, **options: Any) -> ps.Loader:
    return ps.Loader(store, **{"rank": 0, "world_size": 1, **OPTIONS, **options})


def stacked(rows: list[dict[str, np.ndarray]]) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in rows]


def batches_of(loader: ps.Loader, kind: Any = DataLoader, workers: int = 0) -> Any:
    dataset, sampler = loader.as_map_dataset()
    return kind(
        dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        collate_fn=stacked,
        num_workers=workers,
    )


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_dataloader_gets_the_batches_of_every_rank_pass_after_pass(
    store, packing, world_size
) -> None:
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "packing": packing, "skip_steps": [2]}
        loader, batches = open_loader(store, **options), batches_of(open_loader(store, **options))
        for _ in range(2):
            assert list(batches) == [batch["input_ids"].tolist() for batch in loader]


def test_a_row_is_one_sample_without_packing_and_has_labels_and_positions(store) -> None:
    loader = open_loader(store, packing="none", shuffle=False, batch_size=1)
    dataset, sampler = loader.as_map_dataset()
    assert len(dataset) == 120 == len(sampler)
    for number, (chosen, batch) in enumerate(zip(sampler, loader, strict=True)):
        row = dataset[chosen]
        assert row["input_ids"].tolist() == dataset[number]["input_ids"].tolist()
        assert row.keys() == {"input_ids", "labels", "position_ids", "seq_idx", "attention_mask"}
        assert all(np.array_equal(row[name], batch[name][0]) for name in row)
    assert dataset[np.int64(3)]["labels"].tolist() == dataset[3]["labels"].tolist()
    for wrong in (-1, 120, 10_000):
        with pytest.raises(IndexError, match="does not exist"):
            dataset[wrong]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_saves_the_sampler_whatever_its_workers_made_ahead(store, workers) -> None:
    expected = [batch["input_ids"].tolist() for batch in open_loader(store)]
    batches = batches_of(open_loader(store), StatefulDataLoader, workers)
    turns = iter(batches)
    taken = [next(turns) for _ in range(4)]
    state = (
        json.loads(json.dumps(batches.state_dict(), default=repr))
        if not workers
        else batches.state_dict()
    )
    again = batches_of(open_loader(store), StatefulDataLoader, workers)
    again.load_state_dict(state)
    assert taken + list(again) == expected


def test_a_state_between_two_steps_resumes_on_other_ranks_and_no_other_state_does(store) -> None:
    whole = [row for batch in open_loader(store) for row in batch["input_ids"].tolist()]
    _, sampler = open_loader(store).as_map_dataset()
    rows = iter(sampler)
    for _ in range(6):
        next(rows)
    state = json.loads(json.dumps(sampler.state_dict()))
    rest = []
    for rank in range(2):
        dataset, mine = open_loader(store, rank=rank, world_size=2, batch_size=1).as_map_dataset()
        mine.load_state_dict(state)
        rest += [dataset[row]["input_ids"].tolist() for row in mine]
    assert sorted(filter(any, rest)) == sorted(filter(any, whole[6:]))
    next(rows)
    state = sampler.state_dict()
    with pytest.raises(
        PlanMismatch,
        match="after 1 rows of a step with another assignment: batch_size 3 → 1; world_size 1 → 2",
    ):
        open_loader(store, rank=0, world_size=2, batch_size=1).as_map_dataset()[1].load_state_dict(
            state
        )
    with pytest.raises(
        PlanMismatch, match='another assignment: balance "rank" → "none"'
    ):  # a rank has other rows of the step
        open_loader(store, balance="none").as_map_dataset()[1].load_state_dict(state)
    _, same = open_loader(store).as_map_dataset()
    same.load_state_dict(state)
    assert [row.spans.tolist() for row in same] == [row.spans.tolist() for row in rows]


@pytest.mark.parametrize("per_epoch", [False, True])
def test_a_length_is_that_of_the_next_iteration_also_between_passes(store, per_epoch) -> None:
    batches = batches_of(open_loader(store, per_epoch=per_epoch, epochs=2))
    for _ in range(3):
        expected, turns = len(batches), iter(batches)
        assert (
            len([next(turns) for _ in range(expected)]) == expected
        )  # as Lightning: it does not ask for one more


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_iteration_that_was_left_early_goes_on_from_a_state_only(store) -> None:
    """Workers have read ahead: going on without a state would lose what they read."""
    expected = [batch["input_ids"].tolist() for batch in open_loader(store)]
    batches = batches_of(open_loader(store), StatefulDataLoader, 2)
    taken = []
    for batch in batches:
        taken.append(batch)
        if len(taken) == 3:
            state = batches.state_dict()
            break
    with pytest.raises(
        PlanError,
        match="left early, and rows that workers had read ahead would be lost; load a state",
    ):
        next(iter(batches))
    batches.load_state_dict(state)
    assert taken + list(batches) == expected


def test_states_of_something_else_are_refused(store) -> None:
    _, sampler = open_loader(store).as_map_dataset()
    good = sampler.state_dict()
    for wrong in ({}, None, good["loader"], {**good, "more": 1}):
        with pytest.raises(PlanMismatch, match="not the state of a sampler"):
            sampler.load_state_dict(wrong)
    with pytest.raises(PlanMismatch, match="rows_of_step is 3, expected less than 3"):
        sampler.load_state_dict({**good, "rows_of_step": 3})
    for wrong in (-1, 1.5, "1"):
        with pytest.raises(PlanError, match=r"rows_of_step is .*, expected a whole number ≥ 0"):
            sampler.load_state_dict({**good, "rows_of_step": wrong})


def test_records_are_served_as_they_are() -> None:
    records = [{"row": row} for row in range(10)]
    loader = ps.Loader(ps.open(records), batch_size=4, rank=0, world_size=1, seed=1)
    dataset, sampler = loader.as_map_dataset()
    served = [dataset[row] for row in sampler]
    assert sorted(each["row"] for each in served if each) == list(range(10))
    assert served.count(None) == 2, "padding of the last step"
