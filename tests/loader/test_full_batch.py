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
    {"max_length": 100, "align": 8},  # rows of 96
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


@pytest.mark.parametrize("padding_free", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_batch_has_no_more_than_tokens_per_step(store, ranks, padding_free):
    """It had batch_size of the longest rows, which no step of tokens has."""
    options = {"max_length": 64, "packing": "none", "tokens_per_step": 400, "max_dropped": 1}
    options |= {"batch_size": 64, "padding_free": padding_free}
    loaders = [Loader(store, **options, rank=rank, world_size=ranks) for rank in range(ranks)]
    full = loaders[0].full_batch()["input_ids"].size
    assert full * ranks <= 400
    largest = max(batch["input_ids"].size for loader in loaders for batch in loader)
    assert full >= largest - 64 * padding_free  # rows of one length are not always as many tokens


@pytest.mark.extra("trainers")
def test_a_full_batch_of_pairs_has_the_longest_sequence(tokenizer_path, tmp_path):
    """It had the pair with the most tokens, and a pair with one long sequence is padded to more."""
    pairs = [(20, 20), (30, 1), (5, 5), (24, 12)]
    records = [
        {"prompt": "a", "chosen": " fox" * chosen, "rejected": " fox" * rejected}
        for chosen, rejected in pairs
    ]
    store = ps.prepare(
        records, tokenizer=tokenizer_path, template="preference", cache_dir=tmp_path, num_proc=1
    )
    loader = Loader(store, batch_size=2, max_length=64, last_step="drop")
    full = loader.full_batch()["input_ids"].size
    assert full == max(batch["input_ids"].size for batch in loader)
