"""Is the next task the right one?"""

import time

import pytest

from penstock.cache.claims import Held
from penstock.store.build import ShardQueue
from penstock.store.counts import Counts
from penstock.store.shards import ShardEntry
from penstock.store.work import MadeShard, ShardTask

ENTRY = ShardEntry(
    key="0" * 32, num_bytes=1, counts=Counts(rows=1, tokens=1, trained=1), digest="0" * 32
)


def tasks(count: int) -> list[ShardTask]:
    return [ShardTask(shard=shard, start=shard, stop=shard + 1) for shard in range(count)]


def order(queue: ShardQueue) -> list[int]:
    given = []
    for task in queue:
        assert task is not None
        given.append(task.shard)
        queue.add_result(MadeShard(shard=task.shard, digest="d", entry=ENTRY))
    return given


def test_the_order_on_disk_is_kept_but_for_what_is_much_larger() -> None:
    sizes = [100, 104, 98, 100, 900, 110, 250]
    assert order(ShardQueue(tasks(7), sizes=sizes)) == [4, 6, 0, 1, 2, 3, 5]
    assert order(ShardQueue(tasks(3))) == [0, 1, 2]
    assert order(ShardQueue([])) == []


def test_what_is_wanted_comes_first_and_the_latest_request_before_older_ones() -> None:
    queue = ShardQueue(tasks(8), sizes=[9, 1, 1, 1, 1, 1, 1, 1])
    queue.want([5, 3])
    queue.want([6, 3, 99])
    assert order(queue) == [6, 3, 5, 0, 1, 2, 4, 7]


def test_a_shard_that_another_process_makes_is_tried_again_after_a_pause_and_then_found() -> None:
    queue = ShardQueue(tasks(2))
    given = iter(queue)
    assert next(given) == ShardTask(shard=0, start=0, stop=1)
    queue.add_result(MadeShard(shard=0, digest="d", held=Held("someone 0 elsewhere")))
    time.sleep(0.1)  # its pause is over, but others are not tried yet
    assert next(given) == ShardTask(shard=1, start=1, stop=2)
    while (again := next(iter(queue))) is None:
        time.sleep(0.001)
    assert (again.shard, again.digest, again.take_over) == (0, "d", False)
    for shard in (0, 1):
        queue.add_result(MadeShard(shard=shard, digest="d", entry=ENTRY))
    assert list(queue) == [] and queue.digests == {0: "d", 1: "d"}


def test_a_claim_that_shows_no_beat_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    queue = ShardQueue(tasks(1))

    def next_try(held: str) -> bool:
        """Whether the next try takes the claim over."""
        queue.add_result(MadeShard(shard=0, digest="d", held=Held(held)))
        now[0] += 40
        task = next(iter(queue))
        assert task is not None and task.claim == Held(held)
        return task.take_over

    assert next(iter(queue)) is not None
    assert [next_try(text) for text in ("beat 1", "beat 1", "beat 2", "beat 2", "beat 2")] == [
        False
    ] * 4 + [True]
