"""loader.counters after every batch: what was delivered so far, and what was dropped in the blocks that have begun."""

import numpy as np
import pytest

import penstock as ps
from tests.laws.worlds import check_counters
from tests.loader.arrays import Loader


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(0)
    records = [{"text": "fox " * int(rng.integers(1, 40))} for _ in range(150)]
    cache = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache, num_proc=1
    )


@pytest.mark.parametrize("packing", ["mixed_fit", "best_fit", "concat", "none"])
@pytest.mark.parametrize("on_overlong", ["drop", "split"])
@pytest.mark.parametrize("block", [64, 65_536])
@pytest.mark.parametrize("last_step", ["pad", "drop", "repeat", "wrap"])
def test_counters_say_what_was_delivered_so_far(store, packing, on_overlong, block, last_step):
    """N15: after one batch they counted the whole packed block."""
    options = {
        "packing": packing,
        "on_overlong": on_overlong,
        "block": block,
        "last_step": last_step,
        "epochs": 2,
    }
    loader = Loader(store, batch_size=3, max_length=32, **options)
    rows = tokens = 0
    started = set()
    for batch in loader:
        step = loader.look_up(batch.step)
        fresh = batch.rows.slice(0, step.num_real - step.num_repeated)
        rows += fresh.num_rows
        tokens += int((fresh.spans["stop"] - fresh.spans["start"]).sum())
        found = loader.counters
        check_counters(found)
        assert (found.rows, found.tokens_out) == (rows, tokens)
        started |= {(step.epoch, sample) for sample in fresh.spans["sample"].tolist()}
        if on_overlong == "drop" and packing != "concat" and last_step != "wrap":
            assert found.samples_out == len(started)
    whole = loader.plan.count(0, 3) + loader.plan.count(1, 3)
    if last_step != "wrap":
        assert loader.counters == whole
    resumed = Loader(store, batch_size=3, max_length=32, **options)
    resumed.seek(3)
    assert resumed.counters.rows == 0
    next(iter(resumed))
    assert resumed.counters.rows == 3
