"""Does the mirror remove what is needed last, never what is open, and fetch as little as the best rule can?"""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache import Fetch
from penstock.cache.remote import choose_victims
from penstock.errors import PlanError
from penstock.loader.mirror import Future, fit_window
from penstock.plan.plan import Plan, PlanSource, Position
from penstock.plan.settings import PlanSettings


def belady(accesses: list[str], capacity: int) -> int:
    """The least number of misses that any rule can have, by trying every victim: exponential, and independent of the code."""
    states: dict[frozenset[str], int] = {frozenset(): 0}
    for name in accesses:
        after: dict[frozenset[str], int] = {}
        for held, misses in states.items():
            if name in held:
                options = [(held, misses)]
            elif len(held) < capacity:
                options = [(held | {name}, misses + 1)]
            else:
                options = [((held - {victim}) | {name}, misses + 1) for victim in held]
            for state, count in options:
                after[state] = min(count, after.get(state, count))
        states = after
    return min(states.values())


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=24), st.integers(1, 4))
def test_no_rule_misses_less_often(accesses: list[str], capacity: int) -> None:
    present: dict[str, int] = {}
    misses = 0
    for at, name in enumerate(accesses):
        if name in present:
            continue
        misses += 1

        def next_use(other: str, at: int = at) -> float:
            return accesses.index(other, at) if other in accesses[at:] else float("inf")

        excess = len(present) + 1 - capacity
        victims = choose_victims(present, next_use, kept={name}, excess=excess) if excess > 0 else []
        assert victims is not None
        for victim in victims:
            del present[victim]
        present[name] = 1
        assert len(present) <= capacity
    assert misses == belady(accesses, capacity)


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 9)), st.sets(st.sampled_from("abcdefgh")),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 9)), st.integers(1, 40), st.integers(-1, 9),
)  # fmt: skip
def test_what_is_open_or_needed_earlier_is_never_removed(
    present: dict[str, int], opened: set[str], uses: dict[str, int], excess: int, before: int
) -> None:
    def next_use(name: str) -> float:
        return uses.get(name, float("inf"))

    victims = choose_victims(present, next_use, kept=opened, excess=excess, before=before)
    possible = {name for name in present if name not in opened and next_use(name) > before}
    if victims is None:
        assert sum(present[name] for name in possible) < excess
        return
    assert set(victims) <= possible and len(set(victims)) == len(victims)
    freed = [present[name] for name in victims]
    assert sum(freed) >= excess > sum(freed[:-1])  # and not one more than it takes
    assert all(next_use(one) >= next_use(other) for one, other in pairwise(victims))
    assert all(next_use(name) <= next_use(victims[-1]) for name in possible - set(victims))


class Shards:
    """A store of shards of one size in a bucket, as far as a plan and a mirror look at it."""

    def __init__(self, name: str, num_shards: int, rows: int, num_bytes: int = 100) -> None:
        entries = [
            SimpleNamespace(num_bytes=num_bytes, key=f"{n:032x}", file=Fetch(f"{name}{n}", num_bytes))
            for n in range(num_shards)
        ]
        self.cache = SimpleNamespace(is_remote=True, where=f"s3://{name}", mirror_bytes=None, budget=10**9)
        self.manifest, self.rows = SimpleNamespace(shards=entries), rows
        self.counts = SimpleNamespace(samples=len(self), tokens=10 * len(self))

    def __len__(self) -> int:
        return self.rows * len(self.manifest.shards)

    def source(self, name: str) -> PlanSource:
        return PlanSource(name=name, key=name, shard_sizes=np.full(len(self.manifest.shards), self.rows))


def plan_of(stores: dict[str, Shards], **settings: Any) -> Plan:
    sources = [store.source(name) for name, store in stores.items()]
    return Plan(
        sources, lambda source, samples: np.full(len(samples), 10), PlanSettings(**{"max_length": 10, **settings})
    )


def fetched_per_epoch(share: float, *, lru: bool = False, num_shards: int = 80, epochs: int = 4) -> float:
    """The part of a store that a mirror of a share of it fetches in an epoch, from the second on: every epoch in a new order."""
    store = Shards("a", num_shards, 16)
    plan = plan_of({"a": store}, window=1, block=16)
    future, capacity = Future(plan, [store], Position()), int(share * num_shards)
    present: dict[str, int] = {}
    misses = 0
    for number in range(epochs * num_shards):
        future.now = number
        block = future.block(number)
        assert block is not None
        for _, name in block[1]:
            if name in present:
                present[name] = present.pop(name)  # the last one is the most recently used
                continue
            misses += block[0].epoch > 0

            def next_use(other: str) -> float:
                return -list(present).index(other) if lru else future.next_use(("s3://a", other))

            excess = len(present) + 1 - capacity
            for victim in (choose_victims(present, next_use, kept=(), excess=excess) or ()) if excess > 0 else ():
                del present[victim]
            present[name] = 1
    return misses / (epochs - 1) / num_shards


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_epochs_in_new_orders_fetch_what_does_not_fit_and_no_more(share: float) -> None:
    assert fetched_per_epoch(share) == pytest.approx(1 - share, abs=0.03)
    assert fetched_per_epoch(share, lru=True) > 1 - share + 0.05


def test_the_future_is_the_order_in_which_shards_are_read() -> None:
    stores = {"a": Shards("a", 9, 16), "b": Shards("b", 5, 8)}
    plan = plan_of(stores, window=2, block=32)
    future = Future(plan, list(stores.values()), Position(epoch=1, block=2))
    for number in range(12):
        block = future.block(number)
        assert block is not None
        at, uses = block
        rows, _ = plan.blocks.pack(at.epoch, at.block) or pytest.fail("no such block")
        read = {
            ("s3://" + name, store.manifest.shards[sample // store.rows].file.name)
            for number, (name, store) in enumerate(stores.items())
            for sample in rows.spans["sample"][rows.spans["source"] == number].tolist()
        }
        assert read <= set(uses)
        future.now = number
        assert all(future.next_use(use) == number for use in uses)
    assert future.next_use(("s3://other", "x")) == float("inf")


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 8), st.integers(8, 200), st.booleans())
def test_what_is_read_at_once_fits_into_a_mirror_that_was_not_refused(
    num_shards: int, rows: int, window: int, block: int, shuffle: bool
) -> None:
    """The bound is made from sizes alone; the blocks of three epochs, with the one before each, never need more."""
    store = Shards("a", num_shards, rows)
    settings = PlanSettings(max_length=10, window=window, block=block, shuffle=shuffle)
    store.cache.budget = 0
    with pytest.raises(PlanError, match=r"set mirror_bytes=(\d+)") as refused:
        fit_window(settings, [store], None, 1)
    bound = int(str(refused.value).partition("mirror_bytes=")[2].split()[0])
    store.cache.budget = bound
    assert fit_window(settings, [store], None, 1) == settings
    plan = Plan([store.source("a")], lambda source, samples: np.full(len(samples), 10), settings)
    for epoch in range(3):
        number = 0
        while (shards := plan.blocks.shards(epoch, number)) is not None:
            assert 100 * len(set(shards)) <= bound
            number += 1
