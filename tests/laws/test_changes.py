"""Mixtures that change: over random histories of changes, kills and resumes, each source goes on exactly where it was."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan import Counters, Mixture, Plan, PlanSettings, PlanSource, Position, Start
from penstock.plan.segments import check_mixtures
from tests.laws.worlds import (
    World,
    as_list,
    check_counters,
    check_passes,
    examples,
    shard_sizes,
    worlds,
)


@dataclass(frozen=True)
class Change:
    """One change: after so many more steps, these sources, of so many of their samples, with these weights."""

    steps: int
    rows: int  # per step until then
    sources: tuple[int, ...]
    grown: tuple[float, ...]  # share of each source's samples that exist from then on
    weights: tuple[str, ...] | None


@dataclass(frozen=True)
class History:
    world: World
    changes: tuple[Change, ...]


WHOLE = ["mixed_fit", "best_fit", "first_fit", "next_fit", "window_5", "none", "group_4"]


@st.composite
def histories(draw, *, weighted=None, packings=(*WHOLE, "concat"), grows=True):
    world = draw(
        worlds(
            most=300,
            tails=("pad", "wrap", "repeat"),
            weighted=True,
            packings=packings,
            masked=False,
        )
    )
    count = len(world.lengths)
    is_weighted = draw(st.booleans()) if weighted is None else weighted
    changes, grown = (
        [],
        [draw(st.sampled_from([0.3, 0.7, 1.0])) if grows else 1.0 for _ in range(count)],
    )
    for _ in range(draw(st.integers(1, 4))):
        sources = tuple(draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True)))
        weights = (
            tuple(str(draw(st.sampled_from([1, 2, 3, 7]))) for _ in sources)
            if is_weighted
            else None
        )
        changes.append(
            Change(draw(st.integers(0, 6)), draw(st.integers(1, 7)), sources, tuple(grown), weights)
        )
        grown = [max(old, draw(st.sampled_from([old, 1.0]))) if grows else 1.0 for old in grown]
    weights = tuple("1" for _ in range(count)) if is_weighted else None
    last = Change(
        draw(st.integers(0, 3)), 3, tuple(range(count)), tuple(grown), weights
    )  # every source comes back
    return History(world, (*changes, last))


def source_of(world: World, number: int, share: float) -> PlanSource:
    """The first samples of a source, in the shards that the whole source has; at least five, one of which can be delivered."""
    lengths = world.lengths[number]
    sizes = shard_sizes(len(lengths), world.shard_size)
    size = min(max(5, int(len(lengths) * share)), len(lengths))
    if not world_delivers(world, number, size):
        size = len(lengths)
    borders = np.concatenate(([0], np.cumsum(sizes)))
    cut = (
        sizes
        if size == len(lengths)
        else np.diff(np.clip(borders, 0, size))[: int(np.searchsorted(borders, size))]
    )
    return PlanSource(name=f"source {number}", key=f"key {number} {size}", shard_sizes=cut)


def world_delivers(world: World, number: int, size: int) -> bool:
    return any(world.wanted(number, sample).any() for sample in range(size))


def mixture(history: History, number: int, at=(0, 0, 0), rows=0) -> Mixture:
    change, recipe = history.changes[number], history.world.settings
    sources = tuple(source_of(history.world, s, change.grown[s]) for s in change.sources)
    is_mixed = change.weights is not None
    return Mixture(
        sources=sources,
        weights=change.weights,
        at=at,
        rows=rows,
        mix_by=recipe.mix_by if is_mixed else None,
        stopping_strategy=recipe.stopping_strategy if is_mixed else None,
    )


def make_plan(
    history: History, mixtures: list[Mixture], start: Start | None = None, known=None
) -> Plan:
    """`known`: the sources whose lengths may be asked for; else all."""
    world, numbers = history.world, check_mixtures(mixtures)
    own = [int(name.split()[1]) for name in numbers]
    newest = {s.name: s for mixture in mixtures for s in mixture.sources}

    def lengths(source: int, samples: np.ndarray) -> np.ndarray:
        assert known is None or own[source] in known, "the lengths of a removed source"
        return world.lengths[own[source]][samples]

    recipe = mixtures[-1].settings(
        replace(world.settings, weights=None, mix_by=None, stopping_strategy=None)
    )
    return Plan([newest[name] for name in numbers], lengths, recipe, mixtures=mixtures, start=start)


def in_world(rows, plan: Plan) -> list:
    """Rows as lists, with the world's own numbers of sources."""
    own = [int(source.name.split()[1]) for source in plan.sources]
    return [[(own[s], *rest) for s, *rest in row] for row in as_list(rows) if row]


@dataclass
class Life:
    """A run as it was lived: its rows in order, how many of them came before each change took effect, the last plan and position."""

    rows: list
    borders: list
    mixtures: list
    plan: Plan
    position: Position
    counters: Counters


def live(history: History, *, batch=None, through_state=False) -> Life:
    """Run a history: some steps, a change, some steps …  With `through_state`, every change is also a kill and a resume."""
    mixtures = [mixture(history, 0)]
    plan, position, rows, borders, counters = (
        make_plan(history, mixtures),
        Position(),
        [],
        [0],
        Counters(),
    )
    for number, change in enumerate(history.changes):
        for _ in range(change.steps):
            step = plan.step(position, batch or change.rows, epochs=None)
            rows += in_world(step.rows.slice(0, step.num_real - step.num_repeated), plan)
            position, counters = step.after, counters + step.count()
        if number + 1 == len(history.changes):
            break
        at = (position.epoch, position.block, position.row)
        mixtures.append(mixture(history, number + 1, at, position.rows))
        start = plan.blocks.segment_of(*at[:2]).start
        start = Start.from_json(json.loads(json.dumps(start.as_json()))) if through_state else start
        plan = make_plan(history, mixtures, start)
        borders.append(len(rows))
    return Life(rows, borders, mixtures, plan, position, counters)


def rest(life: Life, history: History) -> list:
    """The rows after a life: to the end of an epoch of the last mixture, or with weights until every source has gone through it."""
    epoch, block, row = life.position.epoch, life.position.block, life.position.row
    rows, times = [], times_of(history, life.rows)
    goal, is_weighted = (
        [count.max(initial=0) + 2 for count in times],
        history.changes[-1].weights is not None,
    )
    while True:
        packed = life.plan.blocks.pack(epoch, block)
        if packed is None:
            is_last = life.plan.blocks.segment_of(epoch, block).start.number + 1 == len(
                life.mixtures
            )
            if not is_weighted and rows and is_last:
                return rows
            epoch, block, row = epoch + 1, 0, 0
            continue
        new = in_world(
            packed.rows.slice(min(row, packed.rows.num_rows), packed.rows.num_rows), life.plan
        )
        rows, block, row = rows + new, block + 1, 0
        times = [before + more for before, more in zip(times, times_of(history, new), strict=True)]
        if is_weighted and all(
            (count >= most).all() for count, most in zip(times, goal, strict=True)
        ):
            return rows


def times_of(history: History, rows: list) -> list[np.ndarray]:
    """How often each sample that can be delivered was delivered, per source; of a sample in pieces, its first one counts."""
    made = []
    for number, lengths in enumerate(history.world.lengths):
        starts = [
            sample
            for row in rows
            for source, sample, start, _ in row
            if source == number and start == 0
        ]
        kept = [
            sample for sample in range(len(lengths)) if history.world.wanted(number, sample).any()
        ]
        made.append(np.bincount(np.array(starts, np.int64), minlength=len(lengths))[kept])
    return made


@examples(30)
@given(histories(grows=False, weighted=False))
def test_an_epoch_holds_every_sample_of_every_source_equally_often_across_changes(history):
    life = live(history)
    for source, times in enumerate(times_of(history, life.rows + rest(life, history))):
        assert times.size == 0 or times.min() == times.max(), f"source {source}: {times}"


@examples(12)
@given(histories(grows=False, weighted=True))
def test_no_sample_of_a_mixture_comes_again_before_all_others_of_its_source_across_changes(history):
    """A4, across changes: at no row has a sample come twice more than another of its source."""
    life = live(history)
    rows = life.rows + rest(life, history)
    check_passes(rows, history.world)
    for source, times in enumerate(times_of(history, rows)):
        assert times.size == 0 or times.max() - times.min() <= 1, f"source {source}: {times}"


@examples(30)
@given(histories(), st.integers(1, 9))
def test_a_run_is_replayed_from_its_journal_with_any_number_of_rows_per_step(history, batch):
    life = live(history)
    assert live(history, through_state=True).rows == life.rows
    plan, rows, position = make_plan(history, life.mixtures), [], Position()
    assert plan.fingerprint == life.plan.fingerprint
    while len(rows) < len(life.rows):
        step = plan.step(position, batch, epochs=None)
        rows += in_world(step.rows.slice(0, step.num_real - step.num_repeated), plan)
        position = step.after
    assert rows[: len(life.rows)] == life.rows


@examples(25)
@given(histories(packings=WHOLE))
def test_a_resumed_run_needs_no_removed_source(history):
    if history.world.settings.on_overlong == "split":
        return
    life = live(history)
    position = life.position
    start = life.plan.blocks.segment_of(position.epoch, position.block).start
    if start.number + 1 < len(life.mixtures) or (start.at[2] and position.row):
        return
    known = set(history.changes[start.number].sources)
    plan = make_plan(history, life.mixtures, start, known=known)
    if (position.epoch, position.block) < start.first:
        position = Position(epoch=start.first[0], block=start.first[1], rows=position.rows)
    after = [plan.step(position, 4, epochs=None), life.plan.step(life.position, 4, epochs=None)]
    assert as_list(after[0].rows) == as_list(after[1].rows)


@examples(25)
@given(histories())
def test_counters_count_every_sample_once_across_changes(history):
    life = live(history)
    again = make_plan(history, life.mixtures)
    total, (epoch, number) = Counters(), (0, 0)
    here = life.position
    while (epoch, number) < (here.epoch, here.block):
        packed = again.blocks.pack(epoch, number)
        if packed is None:
            epoch, number = epoch + 1, 0
            continue
        total += packed.counters
        number += 1
    if here.row:
        packed = again.blocks.pack(here.epoch, here.block)
        total += packed.dropped + packed.delivered(0, here.row)
    assert replace(life.counters, rows_padded=0, rows_repeated=0) == total
    check_counters(life.counters)


@examples(25)
@given(histories(weighted=False, packings=WHOLE))
def test_new_rows_of_a_source_come_in_its_current_pass_and_nothing_comes_twice(history):
    """Without weights, an epoch that sees its sources grow still holds each of their samples at most once per pass."""
    life = live(history)
    for source, times in enumerate(times_of(history, life.rows + rest(life, history))):
        sizes = [
            source_of(history.world, source, change.grown[source]).num_samples
            for change in history.changes
        ]
        kept = [sample for sample in range(sizes[-1]) if history.world.wanted(source, sample).any()]
        born = np.searchsorted(sizes, kept, side="right")  # the change with which each sample came
        for number in np.unique(born).tolist():
            found = times[: len(kept)][born == number]
            assert found.min() == found.max() > 0, f"source {source}: {found}"
        assert (np.diff(times[: len(kept)]) <= 0).all(), "new rows came more often than old ones"


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
@pytest.mark.parametrize(
    ("first", "second", "block"),
    [((0, 1, 2, 3), (3,), 20), ((0, 1, 2, 3), (0,), 50), ((0, 1), (0, 1, 2), 50)],
    ids=["nothing left", "last block", "larger"],
)
def test_two_changes_at_one_place_inside_a_block(packing, first, second, block):
    """A5, property seed 3390458131: samples are cut, so the first change waits for the end of the block (with 50, of the epoch); the
    second asked the new segment for a block before its own start."""
    lengths = (np.full(3, 5), np.full(3, 17), np.full(30, 9), np.full(1, 8))
    recipe = PlanSettings(
        max_length=16, packing=packing, on_overlong="split", shuffle=False, block=block
    )
    grown = (1.0,) * 4
    history = History(
        World(lengths, 1, recipe, 1),
        (
            Change(1, 3, first, grown, None),
            Change(0, 1, second, grown, None),
            Change(0, 3, (0, 1, 2, 3), grown, None),
        ),
    )
    life = live(history)
    assert [mixed.at for mixed in life.mixtures[1:]] == [(0, 0, 3)] * 2
    begin = (1, 0) if block == 50 else (0, 1)
    last = life.plan.blocks.start_of_last()
    assert (last.first, last.rows) == (
        begin,
        make_plan(history, life.mixtures[:1]).blocks.num_rows(0, 0),
    )
    assert [life.plan.blocks.segment_of(*place).start.number for place in ((0, 0), begin)] == [0, 2]
    for source, times in enumerate(times_of(history, life.rows + rest(life, history))):
        assert (times == times[0]).all(), f"source {source}: {times}"
    state = Start.from_json(json.loads(json.dumps(last.as_json())))
    resumed = make_plan(history, life.mixtures, state)
    assert as_list(resumed.blocks.pack(*begin).rows) == as_list(life.plan.blocks.pack(*begin).rows)
