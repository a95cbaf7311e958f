"""Budgets over random recipes: a pass ends after so many tokens or a part of an epoch, and steps of tokens never have more.

The oracle follows the order without a budget, row by row, and adds up.
"""

from dataclasses import replace
from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from penstock.plan import Position
from penstock.plan.budget import Budget, StepTokens

from .worlds import World, as_list, examples, straight, through_json, worlds


def tokens_of(row: list) -> int:
    return sum(stop - start for _, _, start, stop in row)


def within_tokens(rows: list, most: int) -> list:
    """The rows before the first one with which there would be more tokens."""
    kept = []
    for row in rows:
        most -= tokens_of(row)
        if most < 0:
            break
        kept.append(row)
    return kept


def delivered_rows(steps) -> list:
    return [row for step in steps for row in as_list(step.rows)[: step.num_real]]


@examples(60)
@given(
    worlds(most=600, tails=("pad", "wrap")),
    st.integers(1, 20_000),
    st.integers(1, 12),
    st.integers(1, 12),
    st.floats(0, 1),
)
def test_a_budget_of_tokens_is_the_longest_beginning_of_the_order(world, most, per_step, other, at):
    plan = world.plan().with_budget(Budget(tokens=most, epochs=world.epochs))
    expected = within_tokens([row for rows in straight(world, 1) for row in rows], most)
    steps = list(plan.steps(num_rows=per_step, epochs=world.epochs))
    assert delivered_rows(steps) == expected
    assert plan.num_steps(per_step, epochs=world.epochs) == len(steps)
    cut = int(at * len(steps))
    place = plan.seek(cut, per_step, epochs=world.epochs)
    rows_before = len(delivered_rows(steps[:cut]))
    rest = plan.steps(start=through_json(place), num_rows=other, epochs=world.epochs)
    assert delivered_rows(rest) == expected[rows_before:]


@examples(40)
@given(
    worlds(most=600, tails=("drop",)), st.integers(1, 20_000), st.integers(1, 12), st.integers(1, 3)
)
def test_dropped_last_steps_never_make_a_budget_larger(world, most, per_step, epochs):
    plan = world.plan().with_budget(Budget(tokens=most, epochs=epochs))
    steps = list(plan.steps(num_rows=per_step, epochs=epochs))
    assert sum(map(tokens_of, delivered_rows(steps))) <= most
    assert plan.num_steps(per_step, epochs=epochs) == len(steps)


@examples(40)
@given(
    worlds(most=600, tails=("pad", "wrap")),
    st.sampled_from(["0.5", "0.1", "1e-9", "0.999", "0.3333"]),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_a_part_of_an_epoch_is_that_part_of_its_rows(world, share, per_step, other):
    budget = Budget(share=Fraction(share), epochs=world.epochs)
    plan = world.plan().with_budget(budget)
    *whole, last = straight(world, 1)
    part = last[: ceil(Fraction(share) * len(last))]
    expected = [row for rows in whole for row in rows] + part
    steps = list(plan.steps(num_rows=per_step, epochs=world.epochs))
    assert delivered_rows(steps) == expected
    assert plan.num_steps(per_step, epochs=world.epochs) == len(steps)
    if steps:
        middle = steps[len(steps) // 2].after
        before = len(delivered_rows(steps[: len(steps) // 2 + 1]))
        rest = plan.steps(start=middle, num_rows=other, epochs=world.epochs)
        assert delivered_rows(rest) == expected[before:]


@examples(60)
@given(
    worlds(most=600, tails=("pad", "drop"), packings=("none",)),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 9),
    st.integers(1, 2000),
    st.booleans(),
)
def test_steps_of_tokens_hold_as_many_rows_as_fit(world, multiple, batch, more, is_padded):
    room = -(-world.settings.max_length // world.settings.align) * world.settings.align
    most = room * multiple + more
    step_tokens = StepTokens(
        tokens=most, multiple=multiple, is_padded=is_padded, pad_to=world.settings.align
    )
    plan = world.plan().with_budget(Budget(step=step_tokens))
    per_step = multiple * batch
    steps = list(plan.steps(num_rows=per_step, epochs=world.epochs))
    assert plan.num_steps(per_step, epochs=world.epochs) == len(steps)
    expected = straight(world, 1)
    if world.settings.last_step == "drop":
        expected = [rows[: len(rows) // multiple * multiple] for rows in expected]
    assert delivered_rows(steps) == [row for rows in expected for row in rows]
    for step, following in zip(steps, [*steps[1:], None], strict=False):
        assert step.rows.num_rows % multiple == 0 and step.rows.num_rows <= per_step
        real = as_list(step.rows)[: step.num_real]
        assert size_of(real, world, is_padded) <= most
        if following is not None and following.epoch == step.epoch:
            next_rows = as_list(following.rows)[: following.num_real][:multiple]
            together = size_of(real + next_rows, world, is_padded)
            is_full = step.rows.num_rows + multiple > per_step
            assert len(next_rows) < multiple or is_full or together > most  # as many as fit
    for cut in {0, len(steps) // 2, len(steps)}:
        place = plan.seek(cut, per_step, epochs=world.epochs)
        rest = plan.steps(start=place, num_rows=per_step, epochs=world.epochs)
        assert delivered_rows(rest) == delivered_rows(steps[cut:])


def size_of(rows: list, world: World, is_padded: bool) -> int:
    align = world.settings.align
    lengths = [-(-tokens_of(row) // align) * align for row in rows]
    return max(lengths) * len(lengths) if is_padded else sum(lengths)


@examples(30)
@given(worlds(most=300, tails=("pad",)), st.integers(1, 3000), st.integers(1, 5))
def test_tokens_end_an_endless_pass(world, most, per_step):
    """Without a number of epochs, tokens alone end a pass, and the next one begins with the epoch after it."""
    plan = world.plan()
    if not plan.num_rows(0):
        return
    endless = plan.with_budget(Budget(tokens=most))
    end = endless.end_of_pass(0)
    longer = replace(world, epochs=end + 1)
    order = [row for rows in straight(longer, 1) for row in rows]
    expected = within_tokens(order, most)
    assert len(expected) < len(order)  # it is not the data that ends
    steps = list(endless.steps(num_rows=per_step, epochs=end))
    assert delivered_rows(steps) == expected
    assert endless.first_epoch_of_pass(end) == end
    second = endless.steps(
        start=Position(epoch=end), num_rows=per_step, epochs=endless.end_of_pass(end)
    )
    assert sum(map(tokens_of, delivered_rows(second))) <= most
