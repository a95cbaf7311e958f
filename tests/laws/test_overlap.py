"""Rows of a stream that share one token (packing: concat, overlap): the laws hold, and every token but a stream's first is a target."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.plan import PlanSettings

from . import test_laws
from .worlds import as_list, check_counters, examples, worlds


@st.composite
def streams(draw, **options):
    world = draw(worlds(packings=("concat",), **options))
    return replace(world, settings=replace(world.settings, overlap=True, align=1))


def tokens_of(row: list) -> tuple:
    return tuple(
        (source, sample, token)
        for source, sample, start, stop in row
        for token in range(start, stop)
    )


@examples(60)
@given(streams(most=400, masked=False))
def test_rows_are_cut_from_the_stream_of_a_block_and_share_one_token(world):
    plan, length = world.plan(), world.settings.max_length
    for epoch in range(world.epochs):
        number = 0
        while (block := plan.blocks.segment_of(epoch, number).block(epoch, number)) is not None:
            stream = [
                (source, sample, token)
                for source, sample, size in zip(
                    block.sources.tolist(),
                    block.samples.tolist(),
                    block.lengths.tolist(),
                    strict=True,
                )
                for token in range(size)
            ]
            expected = [
                tuple(stream[begin : begin + length])
                for begin in range(0, max(len(stream) - 1, min(len(stream), 1)), length - 1)
            ]
            packed = plan.pack(epoch, number)
            rows, counters = packed.rows, packed.counters
            assert Counter(map(tokens_of, as_list(rows))) == Counter(expected)
            check_counters(counters)
            assert counters.tokens_out == len(stream)
            assert counters.tokens_shared == max(len(expected) - 1, 0)
            assert plan.blocks.num_rows(epoch, number) == len(expected)
            targets = Counter(token for row in expected for token in row[1:])
            assert targets == Counter(stream[1:])  # every token but the first, once
            number += 1


@examples(40)
@given(streams(most=600), st.sampled_from(test_laws.RANKS), st.integers(1, 5))
def test_law_1_order_does_not_depend_on_ranks_or_batch_size(world, ranks, batch_size):
    law = test_laws.test_law_1_order_does_not_depend_on_ranks_or_batch_size
    law.hypothesis.inner_test(world, ranks, batch_size)


@examples(40)
@given(
    streams(most=600),
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from(test_laws.RANKS), st.integers(1, 4)),
        min_size=1,
        max_size=5,
    ),
)
def test_law_3_resume_after_any_cuts_under_any_world(world, events):
    law = test_laws.test_law_3_resume_after_any_cuts_under_any_world
    law.hypothesis.inner_test(world, events)


@examples(40)
@given(streams(most=600), st.integers(1, 40))
def test_law_4_number_of_steps_is_exact_and_every_step_can_be_sought(world, num_rows):
    law = test_laws.test_law_4_number_of_steps_is_exact_and_every_step_can_be_sought
    law.hypothesis.inner_test(world, num_rows)


@examples(40)
@given(streams(most=600), st.integers(1, 50))
def test_law_9_the_counts_of_all_steps_and_of_the_rest_are_those_of_the_epochs(world, num_rows):
    law = test_laws.test_law_9_the_counts_of_all_steps_and_of_the_rest_are_those_of_the_epochs
    law.hypothesis.inner_test(world, num_rows)


@examples(10)
@given(streams(most=300), st.integers(1, 9))
def test_counters_of_every_part_of_a_block_add_up(world, num_rows):
    """Also where a block holds several passes of a source, so that a token may end and begin several rows."""
    plan = world.plan()
    for step in plan.steps(num_rows=num_rows, epochs=world.epochs):
        here = step.after
        if here.row:
            packed = plan.pack(here.epoch, here.block)
            parts = [
                packed.delivered(0, here.row),
                packed.delivered(here.row, packed.rows.num_rows),
            ]
            for part in (packed.dropped, *parts):
                check_counters(part)
            assert packed.dropped + parts[0] + parts[1] == packed.counters


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"packing": "mixed_fit"},
            "packing 'mixed_fit' keeps samples whole; choose packing='concat'",
        ),
        ({"align": 8}, "overlap with align 8: rows share one token, so align must be 1"),
        ({"max_length": 1}, "overlap with max_length 1: .* must be at least 2"),
        ({"overlap": 2}, "overlap is 2, expected one of True, False"),
    ],
)
def test_overlap_is_refused_where_it_makes_no_sense(options, message):
    with pytest.raises(PlanError, match=message):
        PlanSettings(**{"max_length": 16, "packing": "concat", "overlap": True, **options})
