"""Does the mirror remove what is needed last, never what is open, and fetch as little as the best rule can?"""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache import Fetch
from penstock.errors import PlanError
from penstock.extras.remote.cache import choose_victims
from penstock.extras.remote.mirror import Future, MirrorSupply
from penstock.plan import Plan, PlanSettings, PlanSource, Position


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
            return 1 + accesses.index(other, at) if other in accesses[at:] else float("inf")

        excess = len(present) + 1 - capacity
        victims = (
            choose_victims(present, next_use, kept={name}, excess=excess) if excess > 0 else []
        )
        for victim in victims:
            del present[victim]
        present[name] = 1
        assert len(present) <= capacity
    assert misses == belady(accesses, capacity)


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 9)),
    st.sets(st.sampled_from("abcdefgh")),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 9)),
    st.integers(1, 40),
    st.integers(-1, 9),
)
def test_what_is_open_or_needed_earlier_is_never_removed(
    present: dict[str, int], opened: set[str], uses: dict[str, int], excess: int, before: int
) -> None:
    def next_use(name: str) -> float:
        return uses.get(name, float("inf"))

    victims = choose_victims(present, next_use, kept=opened, excess=excess, before=before)
    possible = {name for name in present if name not in opened and next_use(name) > before}
    assert set(victims) <= possible and len(set(victims)) == len(victims)
    freed = [present[name] for name in victims]
    assert excess > sum(freed[:-1])  # not one more than it takes
    if sum(freed) < excess:
        assert set(victims) == possible
        return
    assert all(next_use(one) >= next_use(other) for one, other in pairwise(victims))
    assert all(next_use(name) <= next_use(victims[-1]) for name in possible - set(victims))


class UnreadPlace:
    """A place of which nothing was read."""

    num_bytes = 0
    num_requests = 0


class Shards:
    """A store of shards in a bucket, as far as a plan and a mirror look at it."""

    def __init__(
        self, name: str, rows: list[int], lengths: list[int] | None = None, num_bytes: int = 100
    ) -> None:
        self.shard_sizes = np.array(rows)
        self.shard_starts = np.concatenate(([0], np.cumsum(rows)))
        entries = [
            SimpleNamespace(
                num_bytes=num_bytes, key=f"{n:032x}", file=Fetch(f"{name}{n}", num_bytes)
            )
            for n in range(len(rows))
        ]
        self.lengths = np.array([10] * len(self) if lengths is None else lengths, np.int32)
        self.cache = SimpleNamespace(
            is_remote=True,
            where=f"s3://{name}",
            mirror_bytes=None,
            budget=10**9,
            bucket=SimpleNamespace(place=UnreadPlace()),
            stalls=0,
            stall_seconds=0.0,
        )
        self.manifest = SimpleNamespace(shards=entries)
        self.counts = SimpleNamespace(samples=len(self), tokens=int(self.lengths.sum()))

    def __len__(self) -> int:
        return int(self.shard_starts[-1])

    def source(self, name: str) -> PlanSource:
        return PlanSource(name=name, key=name, shard_sizes=self.shard_sizes)


def plan_of(stores: dict[str, Shards], targets: Any = None, **settings: Any) -> Plan:
    sources, own = [store.source(name) for name, store in stores.items()], [*stores.values()]
    return Plan(
        sources,
        lambda source, samples: own[source].lengths[samples].astype(np.int64),
        PlanSettings(**{"max_length": 10, **settings}),
        targets=targets,
    )


def some_targets(source: int, samples: Any, starts: Any, stops: Any) -> Any:
    """Two of three pieces that are cut off hold a target."""
    return (samples + starts + source) % 3 > 0


def fetched_per_epoch(
    share: float, *, lru: bool = False, num_shards: int = 80, epochs: int = 4
) -> float:
    """The part of a store that a mirror of a share of it fetches in an epoch, from the second on: every epoch in a new order."""
    store = Shards("a", [16] * num_shards)
    plan = plan_of({"a": store}, shuffle_window=1, block=16)
    future, capacity = Future(plan, [store], Position()), int(share * num_shards)
    present: dict[str, int] = {}
    misses = 0
    for number in range(epochs * num_shards):
        future.now = future.latest = number
        block = future.block(number)
        assert block is not None
        for _, name in block[1]:
            if name in present:
                present[name] = present.pop(name)  # the last one is the most recently used
                continue
            misses += block[0].epoch > 0

            def next_use(other: str) -> float:
                return (
                    len(present) - list(present).index(other)
                    if lru
                    else future.next_use(("s3://a", other))
                )

            excess = len(present) + 1 - capacity
            for victim in (
                (choose_victims(present, next_use, kept=(), excess=excess) or ())
                if excess > 0
                else ()
            ):
                del present[victim]
            present[name] = 1
    return misses / (epochs - 1) / num_shards


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_epochs_in_new_orders_fetch_what_does_not_fit_and_no_more(share: float) -> None:
    assert fetched_per_epoch(share) == pytest.approx(1 - share, abs=0.03)
    assert fetched_per_epoch(share, lru=True) > 1 - share + 0.05


def test_the_future_is_the_order_in_which_shards_are_read() -> None:
    stores = {"a": Shards("a", [16] * 9), "b": Shards("b", [8] * 5)}
    plan = plan_of(stores, shuffle_window=2, block=32)
    future = Future(plan, list(stores.values()), Position(epoch=1, block=2))
    for number in range(12):
        block = future.block(number)
        assert block is not None
        at, uses = block
        packed = plan.blocks.pack(at.epoch, at.block)
        assert packed is not None
        rows = packed.rows
        read = {
            ("s3://" + name, store.manifest.shards[sample // store.shard_sizes[0]].file.name)
            for number, (name, store) in enumerate(stores.items())
            for sample in rows.spans["sample"][rows.spans["source"] == number].tolist()
        }
        assert read <= set(uses)
        future.now = number
        future.latest = max(0, number - 1)
        assert all(future.next_use(use) == number - future.latest for use in uses)
    assert future.next_use(("s3://other", "x")) == float("inf")


@pytest.mark.parametrize("on_overlong", ["drop", "truncate", "split"])
def test_with_weights_the_present_block_is_exact_and_the_next_one_nearly(on_overlong: str) -> None:
    """Which samples a block holds depends on loss masks; the future reads lengths only, and is corrected when a block begins."""
    chance = np.random.default_rng(0)
    stores = {
        name: Shards(name, [16] * num, chance.choice([4, 9, 25, 60], 16 * num).tolist())
        for name, num in (("a", 60), ("b", 11))
    }
    plan = plan_of(
        stores,
        some_targets,
        weights=("0.7", "0.3"),
        shuffle_window=2,
        block=48,
        on_overlong=on_overlong,
    )
    future, missed, read = Future(plan, list(stores.values()), Position()), 0, 0
    names = [*stores]
    for epoch in range(4):
        number, predicted = 0, None
        while (pairs := plan.blocks.shards(epoch, number)) is not None:
            real = {(f"s3://{names[source]}", f"{names[source]}{shard}") for source, shard in pairs}
            at = Position(epoch=epoch, block=number)
            future.move_to(at, future.look_up(at))
            future.now = future.latest
            assert future.needed() == real
            assert all(future.next_use(use) == 0 for use in real)
            missed += 0 if predicted is None else len(real - predicted)
            read += len(real)
            ahead = future.block(future.latest + 1)
            predicted, number = None if ahead is None else set(ahead[1]), number + 1
        assert number > 4
    assert missed <= 0.1 * read


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[dict[str, Shards], dict[str, Any]]:
    """Stores with shards of different sizes and samples of different lengths, and settings for them."""
    stores = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        rows = draw(st.lists(st.integers(1, 30), min_size=1, max_size=30))
        lengths = np.random.default_rng(draw(st.integers(0, 99))).choice(
            draw(st.sampled_from([[10], [1, 3, 10], [0, 5, 40], [10, 40, 40, 40]])), sum(rows)
        )
        lengths[0] = 10  # a source in which everything is dropped is refused
        stores[name] = Shards(name, rows, lengths.tolist(), num_bytes=draw(st.integers(1, 200)))
        stores[name].cache.where = "s3://all"
    settings: dict[str, Any] = {
        "shuffle_window": draw(st.integers(1, 8)),
        "block": draw(st.integers(8, 200)),
        "shuffle": draw(st.booleans()),
        "on_overlong": draw(st.sampled_from(["drop", "truncate", "split"])),
    }
    if draw(st.booleans()):
        settings["weights"] = tuple(draw(st.sampled_from(["0.2", "1", "3"])) for _ in stores)
        settings["mix_by"] = draw(st.sampled_from(["samples", "tokens"]))
    return stores, settings


@given(mixtures())
def test_a_mirror_is_refused_with_the_size_that_is_enough(
    world: tuple[dict[str, Shards], dict[str, Any]],
) -> None:
    """The bound is made from sizes alone: at most all shards, and as much is not refused."""
    stores, settings = world
    plan, own = plan_of(stores, some_targets, **settings), [*stores.values()]
    supply = MirrorSupply(own, None)
    for store in own:
        store.cache.budget = 0
    with pytest.raises(PlanError, match=r"set mirror_bytes=(\d+)") as refused:
        supply.check(plan.settings, rows_per_step=1)
    bound = int(str(refused.value).partition("mirror_bytes=")[2].split(",")[0].split()[0])
    assert bound <= sum(entry.num_bytes for store in own for entry in store.manifest.shards)
    for store in own:
        store.cache.budget = bound
    assert supply.check(plan.settings, rows_per_step=1) == plan.settings
