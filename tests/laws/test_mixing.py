"""Law 10: with default settings every tenth of an epoch is like the whole, within sampling error."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan import Plan, PlanSettings, PlanSource, Position, Rows

from .worlds import examples

# Of a cell: the chance of a difference beyond it is 1 in 500 million if the epoch is a random order.
SIGMAS = 6.0


@st.composite
def default_runs(draw):
    """Sources of different sizes, from one shard to more than a window of them; weights or none; everything else at its default.

    Rows are shuffled inside a block, so a dataset of one block is mixed whatever its windows are.  Small blocks stand for large data.
    """
    num_sources = draw(st.integers(1, 3))
    kinds = [
        draw(st.sampled_from(["one shard", "a few", "hundreds", "more than a window"]))
        for _ in range(num_sources)
    ]
    shards = {
        "one shard": (1, 6000),
        "a few": (5, 2000),
        "hundreds": (700, 12),
        "more than a window": (2500, 4),
    }
    sizes = [np.full(*shards[kind], np.int64) for kind in kinds]
    weighted = num_sources > 1 and draw(st.booleans())
    options = (
        {"weights": tuple(draw(st.sampled_from(["1", "2", "5"])) for _ in kinds)}
        if weighted
        else {}
    )
    if weighted:
        options["mix_by"] = draw(st.sampled_from(["samples", "tokens"]))
    if draw(st.booleans()):
        options["block"] = 300
    settings = PlanSettings(max_length=64, seed=draw(st.integers(0, 2**40)), **options)
    return sizes, settings, draw(st.integers(0, 1))


def make(sizes: list[np.ndarray], settings: PlanSettings) -> Plan:
    sources = [
        PlanSource(name=f"source {i}", key=f"key {i}", shard_sizes=size)
        for i, size in enumerate(sizes)
    ]
    return Plan(
        sources, lambda source, samples: 5 + (samples * 7919 + source) % 71, settings
    )  # some are too long


def delivered_in_tenths(plan: Plan, epoch: int) -> list[np.ndarray]:
    """The spans that each tenth of an epoch's rows holds, counted from the steps that a trainer would take."""
    steps = list(plan.steps(start=Position(epoch=epoch), num_rows=64, epochs=epoch + 1))
    rows = Rows.join([step.rows.slice(0, step.num_real) for step in steps])
    borders = [rows.num_rows * tenth // 10 for tenth in range(11)]
    return [rows.slice(low, high).spans for low, high in pairwise(borders)]


def assert_like_the_whole(tenths: list[np.ndarray], sizes: list[np.ndarray], window: int) -> None:
    for source, size in enumerate(sizes):
        ours = [tenth["source"] == source for tenth in tenths]
        assert_alike(ours, f"source {source}", 0.0)
        # Beyond one window, shards are drawn before samples are.
        few = 1 / window if size.size > window else 0.0
        for fifth in range(5):
            pairs = zip(tenths, ours, strict=True)
            found = [tenth["sample"][here] * 5 // size.sum() == fifth for tenth, here in pairs]
            assert_alike(found, f"fifth {fifth} of source {source}", few)


def assert_alike(tenths: list[np.ndarray], name: str, few: float) -> None:
    share = np.concatenate(tenths).mean()
    for number, found in enumerate(tenths):
        error = np.sqrt(share * (1 - share) * (1 / found.size + few)) + 0.5 / found.size
        assert abs(found.mean() - share) <= SIGMAS * error, (
            f"{name}, tenth {number}: {found.mean():.3f} of {share:.3f}"
        )


@examples(40)
@given(default_runs())
def test_law_10_every_tenth_of_an_epoch_is_like_the_whole(run):
    sizes, settings, epoch = run
    assert_like_the_whole(delivered_in_tenths(make(sizes, settings), epoch), sizes, 1024)


def test_the_field_tests_data_set_is_mixed_from_the_first_step():
    """52,002 rows in 5 shards: the first tenth of the first epoch came from one fifth of the file."""
    sizes = [np.array([10_401, 10_401, 10_400, 10_400, 10_400], np.int64)]
    for seed in range(3):
        tenths = delivered_in_tenths(make(sizes, PlanSettings(max_length=64, seed=seed)), 0)
        assert_like_the_whole(tenths, sizes, 1024)
        counts = np.bincount(tenths[0]["sample"] * 5 // 52_002, minlength=5)
        assert counts.min() > 0.15 * counts.sum()


def test_a_data_set_of_many_blocks_is_mixed_in_its_first_epoch():
    """800,000 samples in 100 shards: nothing but the shuffle can bring them together."""
    sizes = [np.full(100, 8000, np.int64)]
    plan = make(sizes, PlanSettings(max_length=64))
    spans = [plan.blocks.pack(0, number).rows.spans for number in range(12)]
    assert plan.blocks.pack(0, 12) is None
    assert_like_the_whole(spans, sizes, 1024)


@pytest.mark.parametrize(
    ("num_shards", "expected"),
    [
        (0, [0]),
        (1, [0, 1]),
        (1024, [0, 1024]),
        (1025, [0, 1025]),
        (1535, [0, 1535]),
        (1536, [0, 1024, 1536]),
        (4000, [0, 1024, 2048, 3072, 4000]),
    ],
)
def test_windows_hold_1024_shards_and_a_small_rest_joins_the_last(num_shards, expected):
    assert PlanSettings(max_length=8).window_borders(num_shards).tolist() == expected


@pytest.mark.parametrize(
    ("window", "expected"),
    [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (9, [0, 5]), ("all", [0, 5])],
)
def test_a_window_that_was_asked_for_has_that_size_in_every_epoch(window, expected):
    settings = PlanSettings(max_length=64, shuffle_window=window)
    assert settings.window_borders(5).tolist() == expected
    [order] = make([np.full(5, 10, np.int64)], settings).blocks.segment_of(0, 0).orders
    for epoch in range(3):
        assert order.window_borders(epoch).tolist() == [10 * border for border in expected]
