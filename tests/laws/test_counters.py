"""Law 9 at every step of every life: no counter is negative, and what is given, dropped, waiting and still to come is all there is."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.counters import Counters
from penstock.plan.plan import Position
from tests.laws.worlds import check_counters, examples, straight, through_json, worlds


def firsts(rows: list) -> list[Counter]:
    """For each row of an epoch in which each sample comes once, the samples whose first piece it holds, by source."""
    start = {}
    for source, sample, first, _ in (span for row in rows for span in row):
        start[source, sample] = min(first, start.get((source, sample), first))
    return [
        Counter(source for source, sample, first, _ in row if start[source, sample] == first)
        for row in rows
    ]


def total(counts: list[Counter]) -> Counter:
    return sum(counts, start=Counter())


@examples(40)
@given(
    worlds(most=120, weighted=False),
    st.integers(1, 9),
    st.integers(1, 9),
    st.floats(0, 1),
    st.data(),
)
def test_law_9_counters_of_a_run_that_resumes_with_other_steps_and_skips_some(
    world, before, after, cut, data
):
    plan, epochs = world.plan(), world.epochs
    steps = list(plan.steps(num_rows=before, epochs=epochs))
    position = (
        through_json(steps[place - 1].after) if (place := int(cut * len(steps))) else Position()
    )
    rows = [firsts(each) for each in straight(world, 1)]
    done = (
        int(plan.table(position.epoch)[position.block]) + position.row
        if position.epoch < epochs
        else 0
    )
    to_come = [each[done * (epoch == position.epoch) :] for epoch, each in enumerate(rows)][
        position.epoch :
    ]
    if world.settings.tail == "wrap":
        to_come = [[row for each in to_come for row in each]]
    plan, here, skip = world.plan(), position, data.draw(st.sets(st.integers(0, 20), max_size=5))
    found, given, skipped, number = (
        plan.rest_of_block(here) if here.row else Counters(),
        Counter(),
        Counter(),
        0,
    )
    while (step := plan.step(here, after, epochs=epochs)) is not None:
        while not to_come[0] or (len(to_come[0]) < after and world.settings.tail == "drop"):
            to_come.pop(0)
        taken, to_come[0] = total(to_come[0][:after]), to_come[0][after:]
        found += plan.skipped(here, step) if number in skip else step.counters
        given, skipped = (given, skipped + taken) if number in skip else (given + taken, skipped)
        check_counters(found)
        here, number = step.after, number + 1
        waiting = Counter()
        if here.row:
            first = int(plan.table(here.epoch)[here.block])
            waiting = total(
                rows[here.epoch][
                    first + here.row : first + plan.pack(here.epoch, here.block)[0].num_rows
                ]
            )
        assert found.samples_by_source == given + waiting
    found += plan.undelivered(here, after, epochs=epochs)
    check_counters(found)
    assert found.samples_by_source == given and found.samples_dropped["skipped"] == skipped.total()
    dropped = {
        reason: n
        for reason, n in found.samples_dropped.items()
        if reason not in ("tail", "skipped")
    }
    left = total(
        [
            total(each[done * (epoch == position.epoch) :])
            for epoch, each in enumerate(rows)
            if epoch >= position.epoch
        ]
    )
    assert found.samples_in - sum(dropped.values()) == left.total()
    if position == Position():
        assert found.samples_in == epochs * sum(map(len, world.lengths))


@examples(30)
@given(
    worlds(most=300, weighted=True),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 30),
    st.integers(0, 20),
)
def test_law_9_counters_of_a_mixture_that_resumes_are_never_negative(
    world, before, after, cut, skip
):
    plan, here = world.plan(), Position()
    for _, step in zip(range(cut), plan.steps(num_rows=before, epochs=world.epochs), strict=False):
        here = step.after
    found, number = plan.rest_of_block(here) if here.row else Counters(), 0
    while (step := plan.step(here, after, epochs=world.epochs)) is not None:
        found += plan.skipped(here, step) if number == skip else step.counters
        check_counters(found)
        here, number = step.after, number + 1
    check_counters(found + plan.undelivered(here, after, epochs=world.epochs))
