"""Law 9 at every step of every life: no counter is negative, and what is given, dropped and still to come is all there is."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.counters import Counters
from penstock.plan.plan import Plan, Position
from tests.laws.worlds import as_list, check_counters, examples, through_json, worlds


def still_to_come(plan: Plan, position: Position, epochs: int) -> Counters:
    """Count the rows after a position as delivered, and what the blocks that begin after it drop."""
    counters = Counters()
    number, row = position.block, position.row
    for epoch in range(position.epoch, epochs):
        while (block := plan.pack(epoch, number)) is not None:
            counters += block.delivered(row, block.rows.num_rows)
            counters += Counters() if row else block.dropped
            number, row = number + 1, 0
        number = 0
    return counters


class Firsts:
    """Counts the samples whose first piece is in given rows, by source: an oracle that reads spans only."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def of(self, start: Position, stop: Position, epochs: int) -> Counter:
        counted = Counter()
        for epoch in range(start.epoch, min(stop.epoch + 1, epochs)):
            number = start.block if epoch == start.epoch else 0
            while (block := self.plan.pack(epoch, number)) is not None:
                if (epoch, number, 0) > (stop.epoch, stop.block, stop.row):
                    break
                rows = as_list(block.rows)
                first = start.row if (epoch, number) == (start.epoch, start.block) else 0
                is_last = (epoch, number) == (stop.epoch, stop.block)
                counted += samples_that_begin(rows, first, stop.row if is_last else len(rows))
                number += 1
        return counted


def samples_that_begin(rows: list, first: int, last: int) -> Counter:
    begins = {}
    for source, sample, start, _ in (span for row in rows for span in row):
        begins[source, sample] = min(start, begins.get((source, sample), start))
    spans = [span for row in rows[first:last] for span in row]
    return Counter(source for source, sample, start, _ in spans if begins[source, sample] == start)


def live(world, before: int, after: int, cut: int, skip: set[int]) -> None:
    """Resume a run at a step of `before` rows, go on with steps of `after` rows, and check the counters after each."""
    plan, here, epochs = world.plan(), Position(), world.epochs
    for _, step in zip(range(cut), plan.steps(num_rows=before, epochs=epochs), strict=False):
        here = through_json(step.after)
    plan = world.plan()
    whole = still_to_come(plan, here, epochs)
    firsts = Firsts(plan)
    counters, given = Counters(), Counter()
    number = 0
    while (step := plan.step(here, after, epochs=epochs)) is not None:
        is_skipped = number in skip
        counters += step.count_skipped() if is_skipped else step.count()
        if not is_skipped and world.settings.last_step != "drop":
            given += firsts.of(here, step.after, epochs)
        check_counters(counters)
        here, number = step.after, number + 1
        to_come = still_to_come(plan, here, epochs)
        assert counters.samples_in + to_come.samples_in == whole.samples_in
        assert counters.tokens_in + to_come.tokens_in == whole.tokens_in
        if world.settings.last_step != "drop":
            assert counters.samples_by_source == given
    counters += plan.count_rest(here, after, epochs=epochs)
    check_counters(counters)
    assert (counters.samples_in, counters.tokens_in) == (whole.samples_in, whole.tokens_in)
    if cut == 0 and world.settings.weights is None:
        assert counters.samples_in == epochs * sum(map(len, world.lengths))
        assert counters.tokens_in == epochs * sum(int(each.sum()) for each in world.lengths)


@examples(40)
@given(
    worlds(most=120, weighted=False),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([0, 0, 1, 2, 5, 20]),
    st.sets(st.integers(0, 20), max_size=5),
)
def test_law_9_given_and_dropped_and_still_to_come_are_all_there_is(
    world, before, after, cut, skip
):
    live(world, before, after, cut, skip)


@examples(30)
@given(
    worlds(most=300, weighted=True),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 30),
    st.sets(st.integers(0, 20), max_size=2),
)
def test_law_9_also_of_a_mixture(world, before, after, cut, skip):
    live(world, before, after, cut, skip)
