"""Laws of views: random trees of views give the records that plain Python lists give, and go on after any record."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import SourceError
from penstock.sources import RowAccess

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class World:
    """The records that a tree of views has, by plain Python, and a function that builds the views."""

    rows: Rows
    build: Callable[[], RowAccess]


class Leaf:
    """Makes the records of a list or a stream."""

    def __init__(self, number: int, num_rows: int) -> None:
        self.rows = [{"n": n, "k": n * 7 % 4, "from": number} for n in range(num_rows)]

    def __call__(self) -> Rows:
        return self.rows


def leaves() -> st.SearchStrategy[World]:
    def make(number: int, num_rows: int, is_stream: bool) -> World:
        leaf = Leaf(number, num_rows)
        rows = leaf()
        return World(rows, lambda: ps.open(leaf if is_stream else rows))

    return st.builds(make, st.integers(0, 9), st.integers(1, 25), st.booleans())


class Remainder:
    """Passes records whose n has one of some remainders."""

    def __init__(self, divisor: int, passing: frozenset[int]) -> None:
        self.divisor = divisor
        self.passing = passing

    def __call__(self, record: dict[str, Any]) -> bool:
        return record["n"] % self.divisor in self.passing


class Repeat:
    """Makes `times` rows of each row whose n is not divisible by 3."""

    def __init__(self, times: int) -> None:
        self.times = times

    def rows_of(self, batch: Rows) -> Rows:
        return [row for row in batch if row["n"] % 3 for _ in range(self.times)]

    def __call__(self, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        names = list(columns)
        batch = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        made = self.rows_of(batch)
        return {name: [row[name] for row in made] for name in names} if made else {}


def plus_one(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "n": record["n"] + 1}


def batches(rows: Rows, size: int) -> list[Rows]:
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def turns(parts: list[Rows], strategy: str) -> Rows:
    """Rows of several lists in turns, as the documentation of `datasets` describes it."""
    if strategy == "first_exhausted":
        rounds = min(len(part) for part in parts)
        return [part[number] for number in range(rounds) for part in parts]
    rounds = max(len(part) for part in parts)
    if strategy == "all_exhausted":
        return [part[number % len(part)] for number in range(rounds) for part in parts]
    return [part[number] for number in range(rounds) for part in parts if number < len(part)]


def grown(inner: st.SearchStrategy[World]) -> st.SearchStrategy[World]:
    def mapped(world: World) -> World:
        rows = [plus_one(row) for row in world.rows]
        return World(rows, lambda: world.build().map(plus_one))

    def filtered(world: World, divisor: int, passing: frozenset[int]) -> World:
        keep = Remainder(divisor, passing)
        return World(list(filter(keep, world.rows)), lambda: world.build().filter(keep))

    def batched(world: World, times: int, size: int) -> World:
        repeat = Repeat(times)
        rows = [row for batch in batches(world.rows, size) for row in repeat.rows_of(batch)]
        return World(rows, lambda: world.build().map(repeat, batched=True, batch_size=size))

    def sliced(world: World, start: int, step: int) -> World:
        return World(world.rows[start::step], lambda: world.build()[start::step])

    def ordered(world: World, reverse: bool) -> World:
        rows = sorted(world.rows, key=lambda row: (row["k"], row["n"]), reverse=reverse)
        return World(rows, lambda: world.build().sort("k", "n", reverse=reverse))

    def renamed_twice(world: World) -> World:
        return World(world.rows, lambda: world.build().rename({"n": "m"}).rename({"m": "n"}))

    def chained(worlds: list[World]) -> World:
        rows = [row for world in worlds for row in world.rows]
        return World(rows, lambda: ps.concat([world.build() for world in worlds]))

    def interleaved(worlds: list[World], strategy: str) -> World:
        parts = [world.rows for world in worlds]
        return World(
            turns(parts, strategy),
            lambda: ps.interleave([world.build() for world in worlds], stopping_strategy=strategy),
        )

    full = inner.filter(lambda world: bool(world.rows))
    several = st.lists(full, min_size=1, max_size=3)
    return st.one_of(
        st.builds(mapped, inner),
        st.builds(filtered, inner, st.integers(2, 4), st.frozensets(st.integers(0, 3))),
        st.builds(batched, inner, st.integers(0, 3), st.integers(1, 9)),
        st.builds(sliced, inner, st.integers(0, 6), st.integers(1, 3)),
        st.builds(ordered, inner, st.booleans()),
        st.builds(renamed_twice, full),
        st.builds(chained, several),
        st.builds(
            interleaved,
            several,
            st.sampled_from(
                ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"]
            ),
        ),
    )


worlds = st.recursive(leaves(), grown, max_leaves=6)


@given(worlds, st.data())
@settings(max_examples=60, deadline=None)
def test_an_iteration_goes_on_after_any_record(world: World, data: st.DataObject) -> None:
    rows = world.rows
    first_cut = data.draw(st.integers(0, len(rows)), "first cut")
    second_cut = data.draw(st.integers(first_cut, len(rows)), "second cut")
    begun = world.build().iterate()
    assert list(islice(begun, first_cut)) == rows[:first_cut]
    state = json.loads(json.dumps(begun.state_dict()))
    resumed = world.build().iterate()
    next(resumed, None)  # where an iterator was does not matter
    resumed.load_state_dict(state)
    assert list(islice(resumed, second_cut - first_cut)) == rows[first_cut:second_cut]
    again = world.build().iterate()
    again.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
    assert list(again) == rows[second_cut:] == list(resumed)
    assert list(begun) == rows[first_cut:]


@given(worlds, st.data())
@settings(max_examples=40, deadline=None)
def test_a_tree_of_views_is_read_in_every_way_as_a_list(world: World, data: st.DataObject) -> None:
    rows = world.rows
    view = world.build()
    assert list(view) == rows and len(view) == len(rows)
    numbers = st.integers(0, len(rows) - 1)
    chosen = data.draw(st.lists(numbers, max_size=5) if rows else st.just([]), "rows")
    assert view.records_at(np.array(chosen, np.int64)) == [rows[row] for row in chosen]
    assert [view[row] for row in chosen] == [rows[row] for row in chosen]
    assert [record for row in chosen for record in view.records(row, row + 1)] == [
        rows[row] for row in chosen
    ]
    assert list(pickle.loads(pickle.dumps(view))) == rows
    other = world.build()
    assert other.digest(0, len(rows)) == view.digest(0, len(rows))
    cuts = view.cuts(num_bytes=100, num_rows=4).tolist()
    assert cuts[0] == 0 and cuts[-1] == len(rows) and cuts == sorted(set(cuts))


@given(worlds, worlds)
@settings(max_examples=30, deadline=None)
def test_a_state_of_other_data_never_goes_on(one: World, other: World) -> None:
    rows = one.build().iterate()
    if next(rows, None) is None:
        return
    foreign = other.build().iterate()
    try:
        foreign.load_state_dict(rows.state_dict())
    except SourceError:
        return
    # accepted: the same views, and the record at this place is the same
    assert other.rows[0] == one.rows[0]
    assert type(other.build()) is type(one.build())


@pytest.mark.parametrize("damage", [{"row": 7}, {"before": None}, {"before": {"row": -3}}])
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    rows = ps.open([{"n": n} for n in range(9)]).iterate()
    list(islice(rows, 4))
    state = rows.state_dict()
    with pytest.raises(SourceError, match="the state is damaged"):
        rows.load_state_dict({**state, **damage})
    assert next(rows) == {"n": 4}


def test_an_iterator_can_be_sent_to_another_process() -> None:
    rows = ps.open([{"n": n} for n in range(9)]).filter(Remainder(2, frozenset([1]))).iterate()
    assert next(rows) == {"n": 1}
    sent = pickle.loads(pickle.dumps(rows))
    assert list(sent) == list(rows) == [{"n": 3}, {"n": 5}, {"n": 7}]
