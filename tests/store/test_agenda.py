"""Is the next task the right one?"""

from penstock.cache import Cache
from penstock.store.agenda import Agenda
from penstock.store.make import Made, ShardTask
from penstock.store.manifest import ShardEntry
from penstock.store.schema import Counts

ENTRY = ShardEntry(key="0" * 32, num_bytes=1, counts=Counts(rows=1, tokens=1, trained=1))


def tasks(count: int) -> list[ShardTask]:
    return [ShardTask(shard=shard, start=shard, stop=shard + 1) for shard in range(count)]


def order(agenda: Agenda) -> list[int]:
    given = []
    for task in agenda:
        assert task is not None
        given.append(task.shard)
        agenda.take(Made(shard=task.shard, digest="d", entry=ENTRY))
    return given


def test_the_order_on_disk_is_kept_but_for_what_is_much_larger(cache: Cache) -> None:
    sizes = [100, 104, 98, 100, 900, 110, 250]
    assert order(Agenda(tasks(7), cache, sizes=sizes, digest_first=False)) == [4, 6, 0, 1, 2, 3, 5]
    assert order(Agenda(tasks(3), cache, digest_first=False)) == [0, 1, 2]
    assert order(Agenda([], cache, digest_first=False)) == []


def test_what_is_wanted_comes_first_and_the_last_wish_before_older_ones(cache: Cache) -> None:
    agenda = Agenda(tasks(8), cache, sizes=[9, 1, 1, 1, 1, 1, 1, 1], digest_first=False)
    agenda.want([5, 3])
    agenda.want([6, 3, 99])
    assert order(agenda) == [6, 3, 5, 0, 1, 2, 4, 7]


def test_digests_come_before_shards_where_that_is_asked(cache: Cache) -> None:
    mixed = [*tasks(3), ShardTask(shard=3, start=3, stop=4, digest="known")]
    agenda = Agenda(mixed, cache, digest_first=True)
    kinds = []
    for task in agenda:
        assert task is not None
        kinds.append((task.shard, task.only_digest))
        entry = None if task.only_digest else ENTRY
        agenda.take(Made(shard=task.shard, digest=task.digest or f"d{task.shard}", entry=entry))
        assert agenda.is_digested == (len(kinds) >= 3)
    assert kinds[:3] == [(0, True), (1, True), (2, True)] and sorted(kinds[3:]) == [(n, False) for n in range(4)]
    assert agenda.digests == {0: "d0", 1: "d1", 2: "d2", 3: "known"}
