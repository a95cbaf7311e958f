"""Reports of runs with budgets: a plan shows whole epochs, and a trace knows which records the run never reaches."""

import numpy as np
import pytest

import penstock as ps
from penstock.report import numbers, trace

WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "home", "and"]


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(7)
    records = [
        {"text": " ".join(rng.choice(WORDS, 1 + rng.integers(30)).tolist())} for _ in range(90)
    ]
    folder = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=folder, num_proc=1
    )


@pytest.mark.parametrize(
    "budget",
    [
        {"max_steps": 5},
        {"max_tokens": 500},
        {"epochs": 0.4},
        {"tokens_per_step": 200, "batch_size": 16},
        {"tokens_per_step": 200, "batch_size": 16, "max_tokens": 500},
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trace_finds_a_record_where_it_is_delivered_and_nowhere_else(store, budget, ranks):
    options = {"batch_size": 2, "max_length": 48, "packing": "none", "output": "numpy", **budget}
    loaders = [ps.Loader(store, **options, rank=rank, world_size=ranks) for rank in range(ranks)]
    delivered = {}
    for rank, loader in enumerate(loaders):
        for batch in loader:
            for row in range(len(batch.rows)):
                for sample in batch.rows[row]["sample"].tolist():
                    delivered[sample] = (batch.step, rank, row)
    assert 0 < len(delivered) <= 90
    for sample in range(90):
        landings = trace.record(loaders[0], sample).landings
        found = [(each.step, each.rank, each.row) for each in landings]
        assert found == ([delivered[sample]] if sample in delivered else [])


def test_a_plan_counts_steps_of_tokens(store):
    options = {"max_length": 48, "packing": "none", "tokens_per_step": 200, "output": "numpy"}
    loader = ps.Loader(store, batch_size=16, **options, rank=0, world_size=2)
    found = numbers.epoch(loader)
    steps = list(loader)
    assert found.steps == found.steps_of_run == len(steps)
    assert found.last_step_rows == 90 % 2 and found.rows == 90
    assert found.balance.steps == len(steps)
    cut = ps.Loader(store, batch_size=16, **options, max_steps=3)
    assert numbers.epoch(cut).steps_of_run == 3 and numbers.epoch(cut).steps > 3
