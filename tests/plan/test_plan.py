"""Corners of the plan that were once wrong, each by name."""

import pickle
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from penstock.errors import Overlong, PlanError
from penstock.plan import Plan, PlanSettings, PlanSource, Position, rank_rows
from penstock.plan.ranks import dealt_rows
from penstock.plan.settings import weights_as_text
from penstock.types import World


def make(*lengths, names=None, shard=50, **settings) -> Plan:
    arrays = [np.asarray(values) for values in lengths]
    sources = [
        PlanSource(
            name=names[i] if names else f"source {i}",
            key=f"key {i}",
            shard_sizes=np.array(
                [min(shard, len(a) - at) for at in range(0, len(a), shard)], np.int64
            ),
        )
        for i, a in enumerate(arrays)
    ]
    return Plan(
        sources,
        lambda source, samples: arrays[source][samples],
        PlanSettings(**{"max_length": 64, **settings}),
    )


def test_an_endless_wrap_over_tiny_epochs_pads_nothing():
    plan = make([10], last_step="wrap")  # an epoch is one row
    assert plan.step(Position(), 32, epochs=None).num_real == 32
    steps = []
    for step in plan.steps(num_rows=32, epochs=None):
        steps.append(step)
        if len(steps) == 3:
            break
    assert plan.seek(3, 32, epochs=None) == steps[-1].after


def test_a_weight_below_one_sample_per_epoch_is_given_in_the_long_run():
    plan = make(np.full(100, 10), np.full(100, 10), weights=("0.004", "0.996"), packing="none")
    seen = Counter(
        int(span["source"])
        for step in plan.steps(num_rows=10, epochs=100)
        for span in step.rows.spans
    )
    assert abs(seen[0] - 40) <= 1 and seen.total() == pytest.approx(10_040, abs=2)


@pytest.mark.parametrize("mix_by", ["samples", "tokens"])
@pytest.mark.parametrize("on_overlong", ["drop", "truncate", "split"])
def test_shares_are_of_what_is_delivered_not_of_what_is_dropped(mix_by, on_overlong):
    """0.5/0.3/0.2 gave 51.2/28.3/20.5 % where one source had more overlong samples than another."""
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, high, 3000) for high in (60, 110, 70)]
    wanted = (0.5, 0.3, 0.2)
    block_size = 20 if mix_by == "tokens" else 500
    options = {"on_overlong": on_overlong, "block": block_size, "packing": "none"}
    plan = make(*lengths, weights=("0.5", "0.3", "0.2"), mix_by=mix_by, **options)
    seen, number = np.zeros(3), 0
    while (block := plan.blocks.pack(0, number)) is not None:
        spans, number = block.rows.spans, number + 1
        first = spans["start"] == 0
        amounts = (spans["stop"] - spans["start"]) if mix_by == "tokens" else first
        seen += np.bincount(spans["source"], weights=amounts, minlength=3)
        slack = 64 if mix_by == "tokens" else 1
        longest = 110 if on_overlong == "split" and mix_by == "tokens" else slack
        assert np.abs(seen - np.array(wanted) * seen.sum()).max() <= 2 * longest
    assert number > 5
    assert seen / seen.sum() == pytest.approx(wanted, abs=0.002)


@dataclass(frozen=True)
class EveryThird:
    """Lengths that can be pickled: every third sample is longer."""

    def lengths(self, source: int, samples: np.ndarray) -> np.ndarray:
        return 10 + 20 * (samples % 3 == 0)


@pytest.mark.parametrize("weights", [None, ("1", "2")])
def test_a_pickled_plan_gives_the_same_rows(weights):
    sources = [PlanSource(name=name, key=name, shard_sizes=np.array([90, 60])) for name in "ab"]
    settings = PlanSettings(max_length=64, weights=weights)
    plan = Plan(sources, EveryThird().lengths, settings)
    rows = [step.rows.spans.tolist() for step in plan.steps(num_rows=8, epochs=2)]
    again = pickle.loads(pickle.dumps(plan))
    assert again.fingerprint == plan.fingerprint
    assert [step.rows.spans.tolist() for step in again.steps(num_rows=8, epochs=2)] == rows


def test_names_and_seeds_that_print_differently_order_alike():
    class Name(str):
        def __repr__(self):
            return "another face"

    lengths = np.arange(1, 60)
    plain, dressed = make(lengths, names=["a"]), make(lengths, names=[Name("a")], seed=np.int64(0))
    assert plain.fingerprint == dressed.fingerprint
    pairs = zip(plain.steps(num_rows=4), dressed.steps(num_rows=4), strict=True)
    assert all(np.array_equal(a.rows.spans, b.rows.spans) for a, b in pairs)


def test_weights_are_read_as_written():
    assert weights_as_text([0.1, 1, 1.0, np.float64(0.7), "1/3"]) == (
        "1/10",
        "1",
        "1",
        "7/10",
        "1/3",
    )
    assert weights_as_text(None) is None
    with pytest.raises(PlanError, match="not all numbers"):
        weights_as_text(["a few"])


def test_an_absurd_epoch_is_refused_with_its_size():
    with pytest.raises(PlanError, match=r"1e\+13 samples"):
        make(
            np.full(10, 5),
            np.full(10, 5),
            weights=("1e-12", "1"),
            stopping_strategy="all_exhausted",
        )


def test_lengths_of_any_integer_type_give_one_order():
    values = np.random.default_rng(0).integers(0, 90, 500)
    for recipe in ({}, {"weights": ("1", "2"), "mix_by": "tokens", "on_overlong": "truncate"}):
        orders = set()
        for dtype in (np.int64, np.int32, np.uint16, np.uint8):
            plan = make(values.astype(dtype), values.astype(dtype), **recipe)
            orders.add(b"".join(step.rows.spans.tobytes() for step in plan.steps(num_rows=8)))
        assert len(orders) == 1


def test_a_negative_step_is_refused():
    with pytest.raises(PlanError, match="cannot seek to step -1"):
        make(np.arange(9)).seek(-1, 4)


def test_a_short_epoch_is_repeated_as_often_as_a_step_needs():
    plan = make([10, 20], last_step="repeat", packing="none")
    step = plan.step(Position(), 7)
    assert step.num_repeated == 5 and step.rows.num_rows == 7
    assert Counter(step.rows.spans["sample"].tolist()).most_common() in (
        [(0, 4), (1, 3)],
        [(1, 4), (0, 3)],
    )


def test_seek_from_a_position_goes_on_from_there():
    values = np.random.default_rng(1).integers(1, 60, 900)
    for last_step in ("pad", "drop", "repeat", "wrap"):
        plan = make(values, last_step=last_step, block=200)
        start = plan.seek(3, 10, epochs=3)
        steps = list(plan.steps(start=start, num_rows=7, epochs=3))
        for k in (1, 5, len(steps) // 2, len(steps)):
            assert plan.seek(k, 7, epochs=3, start=start) == steps[k - 1].after
        assert plan.num_steps(7, epochs=3, start=start) == len(steps)


def test_shards_of_a_block_are_those_its_samples_lie_in():
    plan = make(np.full(400, 9), np.full(300, 9), shuffle_window=2, block=100)
    for block in range(4):
        segment = plan.blocks.segment_of(0, block)
        shares = segment.shares(0, block)
        touched = {
            (source, int(sample) // 50)
            for source, order in enumerate(segment.orders)
            for sample in order.samples(shares.starts[source], shares.stops[source])
        }
        assert touched <= set(plan.blocks.shards(0, block))
    assert plan.blocks.shards(0, 99) is None


def test_settings_are_values():
    assert replace(PlanSettings(max_length=8), seed=3) == PlanSettings(max_length=8, seed=3)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_dealt_rows_says_what_ranks_get(world_size):
    plan = make(np.arange(1, 600) % 60 + 1)
    step = plan.step(Position(), 24)
    for rank, places in enumerate(dealt_rows(step.rows, world_size, plan.settings).tolist()):
        mine = rank_rows(step.rows, World(rank=rank, size=world_size), plan.settings)
        assert [mine[row].tolist() for row in range(24 // world_size)] == [
            step.rows[row].tolist() for row in places
        ]


def test_an_overlong_sample_of_a_mixture_stops_the_run_where_it_comes_and_not_before():
    lengths = np.full(400, 10)
    lengths[399] = 100
    options = {
        "on_overlong": "error",
        "shuffle": False,
        "block": 50,
        "packing": "none",
        "weights": ("1", "1"),
    }
    plan, delivered = make(lengths, np.full(400, 10), **options), 0
    with pytest.raises(Overlong, match="sample 399 of source 'source 0' has 100 tokens"):
        for step in plan.steps(num_rows=10):
            delivered += step.num_real
    assert delivered >= 700
