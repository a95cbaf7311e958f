"""full_batch: no batch of the run is larger, the position stays, and full rows are full."""

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError
from tests.loader.arrays import Loader


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(3)
    words = ["fox", "river", "stone", "mill", "gate"]
    records = [{"text": " ".join(rng.choice(words, int(rng.integers(1, 30))))} for _ in range(150)]
    cache = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache, num_proc=1
    )


SETTINGS = [
    {"max_length": 256},
    {"max_length": 256, "packing": "none"},
    {"max_length": 40, "packing": "none", "max_dropped": 1},
    {"max_length": 40, "packing": "none", "on_overlong": "truncate"},
    {"max_length": 64, "packing": "concat"},
    {"max_length": 256, "padding_free": True},
    {"max_length": 256, "align": 16},
    {"max_length": 200, "pad_to_multiple_of": 48, "labels": "shifted"},
    {"max_length": 256, "max_segments": 40, "packing": "first_fit"},
    {"max_length": 1000, "attention_mask": "4d"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_no_batch_of_the_run_is_larger(store, settings):
    loader = Loader(store, batch_size=3, **settings)
    before = loader.state_dict()
    full = loader.full_batch()
    assert loader.state_dict() == before and loader.metrics.as_dict()["steps"] == 0
    largest: dict[str, int] = {}
    for batch in loader:
        assert set(full) == set(batch)
        for name, value in batch.items():
            largest[name] = max(largest.get(name, 0), int(np.prod(np.shape(value))))
    for name in (
        "input_ids",
        "labels",
        "position_ids",
        *(["attention_mask"] * ("attention_mask" in full)),
    ):
        assert int(np.prod(np.shape(full[name]))) >= largest[name], name
        assert full[name].dtype == batch[name].dtype
    rows = full.rows
    tokens = int((rows.spans["stop"] - rows.spans["start"]).sum())
    if settings.get("packing") != "none" and not {"align", "max_segments"} & settings.keys():
        assert tokens == 3 * settings["max_length"]


def test_plain_records_and_objectives_have_no_full_batch(store):
    with pytest.raises(PlanError, match="plain records have no length"):
        Loader(ps.open([{"a": 1}]), batch_size=1).full_batch()
    with pytest.raises(PlanError, match="no sample has at most max_length=1 tokens"):
        Loader(store, batch_size=1, max_length=1, max_dropped=1).full_batch()
