"""A Run is a value: laws 1 to 4 hold for it without a Loader, and a move that is refused leaves it as it was."""

import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError, PlanMismatch
from penstock.loader.run import Loop, Phase, Run
from tests.laws.worlds import World, as_list, examples, straight, worlds


def run_of(world: World, rows_per_step: int, **loop) -> Run:
    return Run(
        plan=world.plan(),
        stores=(),
        rows_per_step=rows_per_step,
        loop=Loop(**{"epochs": world.epochs, **loop}),
    )


def rows_of(numbered) -> list:
    step = numbered.step
    return as_list(step.rows)[: step.num_real - step.num_repeated]


def lived(run: Run, steps: int | None = None) -> tuple[Run, list]:
    """Follow the next loop of a run for some steps, or to its end; return the run after it, and its rows."""
    begun = run.begin_loop()
    if begun is None:
        return run, []
    rows = []
    for step in islice(begun.steps(), steps):
        rows += rows_of(step)
        begun = begun.after(step)
    return begun, rows


SMALL = {"most": 200, "weighted": False, "tails": ("pad",)}


@examples(20)
@given(worlds(**SMALL), st.integers(1, 9), st.integers(1, 40))
def test_law_1_and_2_rows_do_not_depend_on_the_size_of_steps(world, small, large):
    expected = [row for epoch in straight(world, 7) for row in epoch]
    for size in (small, large):
        assert lived(run_of(world, size))[1] == expected


@examples(30)
@given(
    worlds(**SMALL), st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(0, 6), max_size=4)
)
def test_law_3_a_run_that_is_cut_and_resumed_goes_on_as_if_it_was_not(world, one, other, cuts):
    expected = [row for epoch in straight(world, 7) for row in epoch]
    rows = []
    run = run_of(world, one)
    for number, cut in enumerate(cuts):
        run, part = lived(run, cut)
        rows += part
        state = json.loads(json.dumps(run.state()))
        run = run_of(world, other if number % 2 else one).resumed(state)
        assert run.phase is Phase.LOADED
    rows += lived(run)[1]
    assert rows == expected


@examples(20)
@given(worlds(**SMALL), st.integers(1, 9), st.data())
def test_law_4_the_number_of_steps_is_known_and_each_can_be_sought(world, size, data):
    run = run_of(world, size)
    steps = list(run.steps())
    assert run.steps_of_pass() == len(steps)
    assert [step.number for step in steps] == list(range(len(steps)))
    number = data.draw(st.integers(0, len(steps)))
    sought = run.at_step(number)
    assert [rows_of(step) for step in sought.steps()] == [rows_of(step) for step in steps[number:]]
    if number < len(steps):
        assert as_list(run.look_up(number).rows) == as_list(steps[number].step.rows)


@examples(20)
@given(worlds(**SMALL), st.integers(1, 5), st.sets(st.integers(0, 12), max_size=5))
def test_skipped_steps_come_with_the_step_after_them_and_are_counted(world, size, skipped):
    run = run_of(world, size, skipped=frozenset(skipped))
    whole = [step.step for step in run_of(world, size).steps()]
    counters = None
    seen = []
    for step in run.steps():
        seen += [
            *(number for number in range(step.number) if number in skipped and number not in seen)
        ]
        seen.append(step.number)
        run = run.after(step)
        for skipped_step in step.skipped:
            added = skipped_step.count_skipped()
            counters = added if counters is None else counters + added
        added = step.step.count()
        counters = added if counters is None else counters + added
    rest = run.count_rest()
    counters = rest if counters is None else counters + rest
    expected = run.plan.count_rest(whole[-1].after, size, epochs=world.epochs) if whole else rest
    for step in whole:
        expected += step.count()
    assert counters.samples_in == expected.samples_in
    assert counters.tokens_in == expected.tokens_in


@examples(20)
@given(worlds(most=200), st.integers(1, 9))
def test_workers_share_the_steps_of_a_loop(world, size):
    run = run_of(world, size)
    steps = [step.number for step in run.steps()]
    shares = [[step.number for step in run.steps(passed=w, every=3)] for w in range(3)]
    assert shares == [steps[w::3] for w in range(3)]


@examples(10)
@given(worlds(**SMALL), st.integers(1, 9))
def test_a_move_that_is_refused_leaves_the_run_as_it_was(world, size):
    run, _ = lived(run_of(world, size), 2)
    before = (run.state(), run.phase, run.lineage, run.anchors)
    for refused in (
        lambda: run.at_step(10**9),
        lambda: run.at_step(-1),
        lambda: run.resumed({**run.state(), "step": 10**6}),
        lambda: run.resumed({"version": 0}),
        lambda: run.at_epoch(-1),
    ):
        with pytest.raises((PlanError, PlanMismatch)):
            refused()
    assert (run.state(), run.phase, run.lineage, run.anchors) == before
    with pytest.raises(AttributeError):
        run.cursor = None


@examples(10)
@given(worlds(**SMALL))
def test_passes_follow_one_another_and_an_end_that_was_loaded_leaves_nothing(world):
    run, first = lived(run_of(world, 2))
    ended = run.ended()
    after, second = lived(ended)
    # Each epoch is packed again, so passes may differ in rows and steps.
    assert run.cursor.step == run.plan.num_steps(2, epochs=world.epochs)
    assert after.cursor.step == run.plan.num_steps(2, epochs=2 * world.epochs)
    assert bool(second) == bool(first)
    resumed = run_of(world, 2).resumed(run.state())
    if first:
        assert resumed.begin_loop() is None


@examples(10)
@given(worlds(**SMALL))
def test_moves_raise_the_lineage_and_steps_do_not(world):
    run = run_of(world, 1)
    moved = run.at_step(0)
    assert moved.lineage == run.lineage + 1
    stepped, _ = lived(moved, 1)
    assert stepped.lineage == moved.lineage + 1  # the loop that began, not its step
    assert stepped.restarted().lineage > stepped.lineage
