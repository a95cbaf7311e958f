"""Law 9 at every step of every life: no counter is negative, and what is given, dropped and still to come is all there is."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.plan import Counters, Plan, Position
from tests.laws.worlds import as_list, check_counters, examples, through_json, worlds


class StillToCome:
    """Counts the rows after a position as delivered, and what the blocks that begin after it drop.  Packs every block once."""

    def __init__(self, plan: Plan, start: Position, epochs: int) -> None:
        self._plan = plan
        self._from_block: dict[tuple[int, int], Counters] = {}
        self._next: dict[tuple[int, int], tuple[int, int] | None] = {}
        blocks = []
        for epoch in range(start.epoch, epochs):
            number = start.block if epoch == start.epoch else 0
            while (block := plan.pack(epoch, number)) is not None:
                blocks.append(((epoch, number), block.counters))
                number += 1
        following = None
        total = Counters()
        for place, counters in reversed(blocks):
            total += counters
            self._from_block[place] = total
            self._next[place] = following
            following = place

    def after(self, position: Position) -> Counters:
        place = (position.epoch, position.block)
        if not position.row:
            return self._from_block.get(place, Counters())
        block = self._plan.pack(*place)
        rest = block.delivered(position.row, block.rows.num_rows)
        return rest + self._from_block.get(self._next[place], Counters())


class Firsts:
    """Counts the samples whose first piece is in given rows, by source: an oracle that reads spans only."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._begins: dict[tuple[int, int], list[list[int]] | None] = {}

    def of(self, start: Position, stop: Position, epochs: int) -> Counter:
        counted = Counter()
        for epoch in range(start.epoch, min(stop.epoch + 1, epochs)):
            number = start.block if epoch == start.epoch else 0
            while (begins := self.begins(epoch, number)) is not None:
                if (epoch, number, 0) > (stop.epoch, stop.block, stop.row):
                    break
                first = start.row if (epoch, number) == (start.epoch, start.block) else 0
                is_last = (epoch, number) == (stop.epoch, stop.block)
                last = stop.row if is_last else len(begins)
                counted.update(source for row in begins[first:last] for source in row)
                number += 1
        return counted

    def begins(self, epoch: int, number: int) -> list[list[int]] | None:
        """For each row of a block, the sources of the samples that begin in it."""
        if (epoch, number) not in self._begins:
            block = self.plan.pack(epoch, number)
            rows = None if block is None else sources_that_begin(as_list(block.rows))
            self._begins[epoch, number] = rows
        return self._begins[epoch, number]


def sources_that_begin(rows: list) -> list[list[int]]:
    first_token = {}
    for source, sample, start, _ in (span for row in rows for span in row):
        first_token[source, sample] = min(start, first_token.get((source, sample), start))
    return [
        [source for source, sample, start, _ in row if first_token[source, sample] == start]
        for row in rows
    ]


def live(world, before: int, after: int, cut: int, skip: set[int]) -> None:
    """Resume a run at a step of `before` rows, go on with steps of `after` rows, and check the counters after each."""
    plan, here, epochs = world.plan(), Position(), world.epochs
    for _, step in zip(range(cut), plan.steps(num_rows=before, epochs=epochs), strict=False):
        here = through_json(step.after)
    plan = world.plan()
    still_to_come = StillToCome(plan, here, epochs)
    whole = still_to_come.after(here)
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
        to_come = still_to_come.after(here)
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
