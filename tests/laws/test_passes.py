"""A dataset repeats a sample only after it has delivered all of its samples: in the order of rows, and of the spans in a row."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan import Plan, PlanSettings, PlanSource

from .worlds import as_list, check_passes, examples, worlds


@examples(60)
@given(worlds(weighted=True, tails=("pad", "wrap", "repeat")), st.integers(1, 9))
def test_a_source_repeats_a_sample_only_after_it_has_delivered_all_of_them(world, num_rows):
    """A4.  With every packing; a step is the next rows of one order, so no number of ranks changes what has come before it."""
    if world.drops_rows:
        world = replace(world, masks=None)
    rows = []
    for step in world.plan().steps(num_rows=num_rows, epochs=world.epochs):
        rows += as_list(step.rows)[: step.num_real - step.num_repeated]
    check_passes(rows, world)


@pytest.mark.parametrize(
    "packing", ["mixed_fit", "best_fit", "first_fit", "next_fit", "window_50", "none", "concat"]
)
def test_two_sources_of_2000_and_40_samples_with_equal_weights(packing):
    """A4: the first repeat came at the small source's 8th delivered sample, and one batch had 765 repeats."""
    lengths = [
        np.random.default_rng(seed).integers(40, 400, size) for seed, size in enumerate((2000, 40))
    ]
    sources = [
        PlanSource(name=name, key=name, shard_sizes=np.array([values.size]))
        for name, values in zip(("large", "small"), lengths, strict=True)
    ]
    settings = PlanSettings(
        max_length=4096,
        packing=packing,
        weights=("1/2", "1/2"),
        stopping_strategy="all_exhausted",
        mix_by="samples",
    )
    plan = Plan(sources, lambda source, samples: lengths[source][samples], settings)
    counters = plan.count(0)
    spans = np.concatenate(
        [step.rows.spans[step.rows.spans["start"] == 0] for step in plan.steps(num_rows=4)]
    )
    small = spans["sample"][spans["source"] == 1]
    assert small.size == 2000
    for begin in range(0, small.size, 40):
        assert np.unique(small[begin : begin + 40]).size == 40
    if packing in ("mixed_fit", "best_fit", "first_fit"):
        assert counters.fill > 0.96  # a section holds 80 samples, about four rows
