"""Laws 1 to 5 of the design, over random recipes.  The oracle (worlds.py) counts with multiplicity and compares order."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.plan import (
    Counters,
    PlanSettings,
    Position,
    Rows,
    data_parallel,
    rank_rows,
    rank_shares,
)
from penstock.types import World as Rank

from .worlds import (
    World,
    as_list,
    check_row,
    delivered,
    examples,
    row_counter,
    rows_upto,
    samples_seen,
    straight,
    through_json,
    worlds,
)

RANKS = [1, 2, 3, 4, 5, 8, 16, 64]


@examples(80)
@given(worlds(most=1500), st.sampled_from(RANKS), st.integers(1, 5))
def test_law_1_order_does_not_depend_on_ranks_or_batch_size(world, ranks, batch_size):
    """Whatever the balance: all ranks together get the rows of the step, each once, as many each, in the global order."""
    steps = list(world.plan().steps(num_rows=ranks * batch_size, epochs=world.epochs))
    steps = [*steps[:-2][:20], *steps[-2:]]  # a step is assigned by its own rows alone
    shares = [
        rank_shares([step.rows for step in steps], Rank(rank=rank, size=ranks), world.settings)
        for rank in range(ranks if steps else 0)
    ]
    for step, *mine in zip(steps, *shares, strict=True):
        places = [share.places.tolist() for share in mine]
        assert all(
            len(each) == batch_size for each in places
        )  # law 4: every rank gets a batch, of the same size
        assert all(each == sorted(each) for each in places) and places == sorted(places)
        assert sorted(place for each in places for place in each) == list(range(ranks * batch_size))
        whole, num_real = (
            as_list(step.rows),
            [sum(place < step.num_real for place in each) for each in places],
        )
        assert [row for share in mine for row in as_list(share.rows)] == [
            whole[place] for each in places for place in each
        ]
        assert (
            max(num_real) - min(num_real) <= 1
        )  # a padded step of pairs divides among the ranks if its rows do
        if world.settings.balance == "none":
            assert places == [list(range(rank, ranks * batch_size, ranks)) for rank in range(ranks)]
    assert straight(world, ranks * batch_size) == straight(world, 7)


@examples(130)
@given(worlds())
def test_law_2_nothing_is_lost_and_nothing_repeated(world):
    check_that_nothing_is_lost(world)


@examples(60)
@given(worlds(packings=("concat",), masked=True))
def test_law_2_rows_of_a_stream_come_if_they_hold_a_target(world):
    check_that_nothing_is_lost(world)


def check_that_nothing_is_lost(world):
    epochs = straight(world, 64)
    for rows in epochs:
        for row in rows:
            check_row(row, world)
    if world.drops_rows:  # of the rows of one stream, those with a target come, and no others
        every = straight(replace(world, masks=None), 64)
        for rows, whole in zip(epochs, every, strict=True):
            assert row_counter(rows) == row_counter(
                [row for row in whole if any(world.has_target(*s) for s in row)]
            )
        return
    tokens = delivered(world)
    if world.settings.weights is None:
        for rows in epochs:
            for times, given_tokens in zip(samples_seen(rows, world), tokens, strict=True):
                assert times.tolist() == (given_tokens > 0).astype(int).tolist()
        return
    # With weights, a source goes through its samples again and again: counts differ by at most one at any time.
    for upto in range(1, world.epochs + 1):
        seen = samples_seen([row for rows in epochs[:upto] for row in rows], world)
        for number, (times, given_tokens) in enumerate(zip(seen, tokens, strict=True)):
            alive = given_tokens > 0
            assert times[alive].max() - times[alive].min() <= 1
            if world.settings.mix_by == "samples":
                assert times.sum() == rows_upto(world, upto)[number]


@examples(80)
@given(worlds(weighted=True, packings=("best_fit", "concat", "next_fit")))
def test_mixing_keeps_exact_shares_of_what_is_delivered_in_every_block(world):
    """After every block there is a goal of which each source has given its share, and less than one sample more."""
    world = replace(world, epochs=1)
    plan, weights = world.plan(), [Fraction(w) for w in world.settings.weights]
    tokens = delivered(world)
    amounts = (
        tokens if world.settings.mix_by == "tokens" else [(n > 0).astype(np.int64) for n in tokens]
    )
    largest = max(int(amount.max()) for amount in amounts)
    places, given_amounts, number = [0] * len(weights), [0] * len(weights), 0
    segment = plan.blocks.segment_of(0, 0)
    while (part := segment.shares(0, number)) is not None:
        for s, (start, stop) in enumerate(zip(part.starts, part.stops, strict=True)):
            assert start == places[s]  # a block goes on where the last one stopped
            places[s] = stop
            given_amounts[s] += int(amounts[s][segment.orders[s].samples(start, stop)].sum())
        number += 1
        least = max(Fraction(n - largest) / w for n, w in zip(given_amounts, weights, strict=True))
        assert least < min(Fraction(n) / w for n, w in zip(given_amounts, weights, strict=True))
    passes = [
        Fraction(place, len(lengths)) for place, lengths in zip(places, world.lengths, strict=True)
    ]
    assert (
        max(passes) == 1
        if world.settings.stopping_strategy == "first_exhausted"
        else min(passes) >= 1
    )
    assert plan.blocks.samples_taken(0) == tuple(places)


@examples(130)
@given(
    worlds(most=800),
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from(RANKS), st.integers(1, 4)),
        min_size=1,
        max_size=5,
    ),
)
def test_law_3_resume_after_any_cuts_under_any_world(world, events):
    """Each event: go on for a share of the steps left, save, and start again with other ranks and batch size."""
    whole = straight(world, 16)
    position, epochs, repeated = Position(), [[] for _ in range(world.epochs)], 0
    for share, ranks, batch_size in [*events, (2.0, 3, 2)]:
        num_rows = ranks * batch_size
        plan = world.plan()  # nothing survives but the position
        left = plan.num_steps(num_rows, epochs=world.epochs, start=position)
        count = 0
        for step in plan.steps(start=position, num_rows=num_rows, epochs=world.epochs):
            if count > left * share:
                break
            fresh = as_list(step.rows)[: step.num_real - step.num_repeated]
            room = len(whole[step.epoch]) - len(epochs[step.epoch])
            epochs[step.epoch] += fresh[:room]
            rest, epoch = fresh[room:], step.epoch
            while rest:  # under last_step="wrap" a step may run on through several short epochs
                epoch += 1
                epochs[epoch] += rest[: len(whole[epoch])]
                rest = rest[len(whole[epoch]) :]
            repeated += step.num_repeated
            position, count = through_json(step.after), count + 1
        else:
            assert count == left  # law 4: the number of steps is known before
            assert plan.step(position, num_rows, epochs=world.epochs) is None
            break
    assert position.rows == sum(len(rows) for rows in epochs)
    if world.settings.last_step == "drop":
        for rows, all_rows in zip(epochs, whole, strict=True):
            assert rows == all_rows[: len(rows)]
            assert len(all_rows) - len(rows) < 64 * 4
    else:
        assert epochs == whole
    assert world.settings.last_step == "repeat" or repeated == 0


@examples(80)
@given(worlds(most=1000), st.integers(1, 40))
def test_law_4_number_of_steps_is_exact_and_every_step_can_be_sought(world, num_rows):
    plan = world.plan()
    steps = list(plan.steps(num_rows=num_rows, epochs=world.epochs))
    assert plan.num_steps(num_rows, epochs=world.epochs) == len(steps)
    other = world.plan()
    for k in {0, 1, len(steps) // 2, len(steps) - 1, len(steps)} & set(range(len(steps) + 1)):
        position = other.seek(k, num_rows, epochs=world.epochs)
        assert position == (steps[k - 1].after if k else Position())
        assert other.num_steps(num_rows, epochs=world.epochs, start=position) == len(steps) - k
    with pytest.raises(PlanError, match="cannot seek"):
        other.seek(len(steps) + 1, num_rows, epochs=world.epochs)


@examples(60)
@given(worlds(), st.integers(1, 50))
def test_law_9_the_counts_of_all_steps_and_of_the_rest_are_those_of_the_epochs(world, num_rows):
    """Also of blocks behind the last step, of which nothing is kept, and of the rows that last_step="drop" drops."""
    plan, position, found = world.plan(), Position(), Counters()
    for step in plan.steps(num_rows=num_rows, epochs=world.epochs):
        position, found = step.after, found + step.count()
    found += plan.count_rest(position, num_rows, epochs=world.epochs)
    expected = sum((plan.count(epoch, num_rows) for epoch in range(world.epochs)), start=Counters())
    if world.settings.last_step == "wrap":  # pads the last step of the run, not of an epoch
        found, expected = replace(found, rows_padded=0), replace(expected, rows_padded=0)
    assert found == expected


def test_law_9_counts_a_dropped_tail_that_began_in_an_earlier_step():
    settings = PlanSettings(
        max_length=8, on_overlong="truncate", shuffle=False, last_step="drop", block=50
    )
    world = World(lengths=(np.array([102, 76, 61]),), shard_size=1, settings=settings, epochs=1)
    plan = world.plan()
    (step,) = plan.steps(num_rows=2)
    found = step.count() + plan.count_rest(step.after, 2)
    assert (
        found == plan.count(0, 2)
        and found.samples_by_source == {0: 2}
        and found.samples_dropped == {"last_step": 1}
    )


@examples(80)
@given(
    worlds() | worlds(packings=("concat",), masked=True), st.integers(1, 50)
)  # the second: rows without a target
def test_law_5_tokens_in_are_tokens_out_and_tokens_counted(world, num_rows):
    plan = world.plan()
    handed = [[] for _ in range(world.epochs)]
    padded = repeated = 0
    for step in plan.steps(num_rows=num_rows, epochs=world.epochs):
        rows = as_list(step.rows)
        handed[step.epoch] += rows[: step.num_real - step.num_repeated]
        padded += num_rows - step.num_real
        repeated += step.num_repeated
    counters = [plan.count(epoch, num_rows) for epoch in range(world.epochs)]
    for counter in counters:
        assert counter.tokens_in == counter.tokens_out + counter.tokens_dropped.total()
        assert counter.samples_in == counter.samples_out + counter.samples_dropped.total()
        assert counter.samples_out == counter.samples_by_source.total()
        assert counter.tokens_capacity == counter.rows * world.settings.max_length
        assert counter.tokens_capacity >= counter.tokens_out and 0 <= counter.fill <= 1
    if world.settings.last_step != "wrap":  # whose steps run over epochs
        assert [c.rows for c in counters] == [len(rows) for rows in handed]
        tokens = [sum(stop - start for row in rows for _, _, start, stop in row) for rows in handed]
        assert [c.tokens_out for c in counters] == tokens
        assert sum(c.rows_padded for c in counters) == padded
        assert sum(c.rows_repeated for c in counters) == repeated
    if world.settings.weights is None:
        for counter in counters:
            assert counter.samples_in == sum(len(lengths) for lengths in world.lengths)
            assert counter.tokens_in == sum(int(lengths.sum()) for lengths in world.lengths)
            zeros = sum(int((lengths == 0).sum()) for lengths in world.lengths)
            assert counter.samples_dropped["empty"] == zeros
            if not world.drops_rows:
                check_what_was_dropped(world, counter)


def check_what_was_dropped(world, counter):
    """The counts of an epoch in which every sample comes once."""
    recipe, lengths, tokens = (
        world.settings,
        np.concatenate(world.lengths),
        np.concatenate(delivered(world)),
    )
    room = recipe.max_length // recipe.align * recipe.align
    is_lost, is_cut = (tokens == 0) & (lengths > 0), lengths > room
    last_step = counter.tokens_dropped["last_step"]
    assert counter.tokens_dropped.total() - last_step == int(lengths.sum() - tokens.sum())
    lost = "overlong" if recipe.on_overlong == "drop" else "nothing_to_train"
    assert counter.samples_dropped[lost] == int(is_lost.sum())
    assert counter.tokens_dropped["overlong"] == (
        int(lengths[is_lost].sum()) if lost == "overlong" else 0
    )
    truncated = recipe.on_overlong == "truncate"
    assert counter.tokens_dropped["truncated"] == (
        int((lengths - tokens)[~is_lost].sum()) if truncated else 0
    )
    if recipe.packing != "concat":
        assert counter.samples_truncated == (int((is_cut & ~is_lost).sum()) if truncated else 0)
        assert counter.samples_split == (
            int((is_cut & ~is_lost).sum()) if recipe.on_overlong == "split" else 0
        )


@examples(80)
@given(worlds(most=600, weighted=False, tails=("pad",), masked=False))
def test_every_epoch_has_a_new_order_of_the_same_samples(world):
    world = replace(world, epochs=2, settings=replace(world.settings, on_overlong="split"))
    first, second = straight(world, 8)
    tokens = [
        sorted(t for row in rows for s, i, a, b in row for t in [(s, i)] * (b - a))
        for rows in (first, second)
    ]
    assert tokens[0] == tokens[1]
    distinct = {tuple(row) for row in first} if world.settings.shuffle else set()
    if len(distinct) > 20 and sum(map(len, world.lengths)) > 50 and len(row_counter(first)) > 20:
        assert first != second
    if (
        not world.settings.shuffle
        and world.settings.block >= 600
        and sum(map(len, world.lengths)) <= 1024
    ):
        assert first == second  # one block either way: without shuffling nothing may move


@examples(80)
@given(worlds(most=400, tails=("pad",)), st.integers(1, 6), st.sampled_from([1, 2, 4]))
def test_ranks_of_a_model_parallel_group_see_the_same_rows(world, batch_size, model_parallel_size):
    groups = 3
    for step in world.plan().steps(num_rows=groups * batch_size, epochs=1):
        shares = [
            as_list(
                rank_rows(
                    step.rows,
                    data_parallel(
                        r, groups * model_parallel_size, model_parallel_size=model_parallel_size
                    ),
                    world.settings,
                )
            )
            for r in range(groups * model_parallel_size)
        ]
        for r, share in enumerate(shares):
            assert share == shares[r // model_parallel_size * model_parallel_size]
        assert sum(len(share) for share in shares[::model_parallel_size]) == step.rows.num_rows


def test_a_step_that_does_not_divide_among_the_ranks_is_refused():
    with pytest.raises(PlanError, match="10 rows does not divide among 4 ranks"):
        rank_rows(Rows.empty(10), Rank(rank=0, size=4), PlanSettings(max_length=8))
    with pytest.raises(PlanError, match="8 ranks do not divide into groups of 3"):
        data_parallel(0, 8, model_parallel_size=3)
