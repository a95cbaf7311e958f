"""Does what was used longest ago go first, and does what is in use never go?"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.sources import open_source
from penstock.store import inventory
from penstock.store import store as store_module
from penstock.store.inventory import (
    find_store,
    list_stores,
    load_origin,
    prune,
    remove,
    save_origin,
    survey,
)
from penstock.store.manifest import lengths_name, manifest_name
from penstock.store.verify import verify
from tests.policy import SOAK

from .shelves import make, records

DAY = 86400


def made_elsewhere(spans: list[tuple[int, int]], cache: Cache) -> list[str]:
    """Stores that another process made, of these rows, and that are not in use."""
    script = (
        "import sys\nfrom tests.store.shelves import make, records\nfrom penstock.cache import Cache\n"
        f"for start, stop in {spans}: print(make(records(stop - start, start), Cache(sys.argv[1])).fingerprint)"
    )
    made = subprocess.run(
        [sys.executable, "-c", script, str(cache.root)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.split()


def last_used(store: str, days: float, cache: Cache) -> None:
    at = cache.now() - days * DAY
    os.utime(cache.path(manifest_name(store)), (at, at))


def age(cache: Cache, days: float = 100) -> None:
    """Everything was written long ago."""
    at = cache.now() - days * DAY
    for entry in cache.entries():
        os.utime(cache.path(entry.name), (at, at))


def there(cache: Cache) -> set[str]:
    return {info.store for info in list_stores(cache).stores}


@pytest.fixture
def three(cache: Cache) -> list[str]:
    """Stores of other processes, used 4, 3 and 2 days ago; the first two share a shard."""
    stores = made_elsewhere([(0, 200), (100, 300), (500, 700)], cache)
    age(cache)
    for days, store in zip((4, 3, 2), stores, strict=True):
        last_used(store, days, cache)
    return stores


def test_the_least_recently_used_goes_first(cache: Cache, three: list[str]) -> None:
    total = survey(cache).total
    assert prune(cache, max_bytes=total).stores == []
    assert prune(cache, max_bytes=total - 1).stores == three[:1] and there(cache) == set(three[1:])
    pruned = prune(cache, max_bytes=0)
    assert (
        pruned.stores == three[1:]
        and pruned.num_left == 0 == survey(cache).total
        and pruned.num_recent == 0
    )


def test_a_shard_stays_as_long_as_one_store_needs_it(cache: Cache, three: list[str]) -> None:
    before = survey(cache)
    pruned = prune(cache, max_bytes=before.total - 1)
    assert (
        pruned.stores == three[:1] and pruned.num_files == 3
    )  # manifest, lengths, the one shard that is its own
    assert pruned.num_bytes == before.total - survey(cache).total
    assert verify(three[1], cache).is_whole and verify(three[2], cache).is_whole


def test_what_was_not_used_for_long_goes(cache: Cache, three: list[str]) -> None:
    assert prune(cache, older_than=5 * DAY).stores == []
    assert prune(cache, older_than=2.5 * DAY).stores == three[:2]
    assert there(cache) == {three[2]}


def test_using_a_store_makes_it_young(cache: Cache, three: list[str]) -> None:
    assert made_elsewhere([(0, 200)], cache) == three[:1]
    assert prune(cache, older_than=2.5 * DAY).stores == [three[1]]


def test_what_was_used_within_a_day_stays(cache: Cache, three: list[str]) -> None:
    last_used(three[0], 0.9, cache)
    pruned = prune(cache, max_bytes=0, older_than=0)
    assert pruned.stores == three[1:] and pruned.num_recent == 1
    assert verify(three[0], cache).is_whole
    last_used(three[0], 1.1, cache)
    assert prune(cache, max_bytes=0).stores == three[:1]


def test_an_open_store_is_renewed_whichever_store_is_read(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, read = make(records(250), cache), make(records(250, 250), cache)
    for store in (idle, read):
        last_used(store.fingerprint, 100, cache)
    monkeypatch.setattr(store_module._OPEN_STORES, "_next_renewal", time.monotonic() + 60)
    read.tokens(0)
    assert prune(cache, older_than=50 * DAY).stores != []
    idle, read = make(records(250), cache), make(records(250, 250), cache)
    for store in (idle, read):
        last_used(store.fingerprint, 100, cache)
    monkeypatch.setattr(store_module._OPEN_STORES, "_next_renewal", 0.0)  # an hour later
    read.tokens(0)
    assert prune(cache, older_than=50 * DAY).stores == []
    assert verify(idle).is_whole and verify(read).is_whole


def test_a_store_that_may_be_open_is_removed_only_by_force(cache: Cache) -> None:
    store = make(records(250), cache)
    name = store.fingerprint
    tokens = store.tokens(0).input_ids
    with pytest.raises(StoreError, match=r"it was used 0 minutes ago.*pass --force"):
        remove(name, cache)
    assert remove(name, cache, force=True)[0] == name
    assert len(tokens)  # a view of a file outlives its name
    again = make(records(250), cache).fingerprint
    age(cache, days=0.1)
    assert remove(again, cache)[0] == again and survey(cache).total == 0


def test_shards_of_a_store_under_way_stay(cache: Cache, three: list[str]) -> None:
    """No manifest names them yet; they were written, or found, within a day."""
    key = survey(cache).manifests[three[0]].shards[0].key  # type: ignore[union-attr]
    cache.path(manifest_name(three[0])).unlink()
    cache.path(lengths_name(three[0])).unlink()
    cache.renew(f"shards/{key[:2]}/{key}.arrow")
    pruned = prune(cache, max_bytes=0)
    assert set(pruned.stores) == set(three[1:]) and pruned.num_recent == 1
    assert list_stores(cache).num_unfinished == 1
    age(cache)
    assert prune(cache, max_bytes=0).num_left == 0


UNDER_WAY = """
import sys
from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.sources import ListSource
from penstock.store import build
from tests.store.shelves import Numbers, records

class Pausing(LocalEngine):
    def run(self, work, tasks, **more):
        yield from super().run(work, tasks, **more)
        print("the workers have ended", flush=True)
        sys.stdin.readline()

source, cache, engine = ListSource(records(500)), Cache(sys.argv[1]), Pausing(2, inline=False)
store = build(source, Numbers(), engine=engine, cache=cache, shard_bytes=1 << 20, shard_rows=100)
assert [sample.input_ids.tolist() for sample in store] == [record["ids"] for record in records(500)]
print(store.fingerprint)
"""


@pytest.mark.parametrize(
    "others", [[], [(0, 200), (300, 500)]], ids=["an empty cache", "shards of other stores"]
)
def test_nobody_removes_shards_between_the_end_of_the_workers_and_the_manifest(
    cache: Cache, others: list[tuple[int, int]]
) -> None:
    made_elsewhere(others, cache)
    age(cache)
    builder = subprocess.Popen(
        [sys.executable, "-c", UNDER_WAY, str(cache.root)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert builder.stdout is not None and builder.stdout.readline() == "the workers have ended\n"
    shards = {name for name in survey(cache).entries if name.startswith("shards/")}
    pruned = prune(cache, max_bytes=0)
    assert len(pruned.stores) == len(others) and len(shards) == 5
    assert {name for name in survey(cache).entries if name.startswith("shards/")} == shards
    output, _ = builder.communicate("\n")
    assert builder.returncode == 0 and verify(output.strip(), cache).is_whole
    age(cache)
    assert prune(cache, max_bytes=0).num_left == 0


def test_a_cap_is_kept_whenever_a_store_is_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    free = Cache(tmp_path / "free")
    make(records(250), free)
    size = survey(free).total
    cache = Cache(tmp_path / "capped", max_bytes=int(2.5 * size))
    names = []
    for number in range(5):
        names.append(make(records(250, 250 * number), cache).fingerprint)
        assert survey(cache).total <= 2.5 * size and verify(names[-1], cache).is_whole
        for store in there(cache):
            last_used(store, 100 - number, cache)
        for entry in cache.entries("shards"):
            os.utime(cache.path(entry.name), (1, 1))
        last_used(names[-1], 50 - number, cache)
    assert there(cache) == set(names[-2:])
    for number in range(5, 8):
        make(records(250, 250 * number), cache)
    assert "what is left was used within a day, and is kept" in caplog.text


def test_other_files_have_their_turn_too(cache: Cache, three: list[str]) -> None:
    script = (
        "import sys\nfrom penstock.cache import Cache\ncache = Cache(sys.argv[1])\n"
        "cache.publish('spools/ab/x.text', lambda file: file.write(bytes(1000)))\n"
    )
    subprocess.run([sys.executable, "-c", script, str(cache.root)], check=True)
    old = cache.now() - 90 * DAY
    os.utime(cache.path("spools/ab/x.text"), (old, old))
    pruned = prune(cache, older_than=30 * DAY)
    assert pruned.num_bytes == 1000 and cache.size("spools/ab/x.text") is None


def test_a_stream_that_was_read_keeps_its_spool(cache: Cache) -> None:
    def records() -> Iterator[dict[str, int]]:
        return ({"row": row} for row in range(10))

    source = open_source(records, cache=cache, name="stream", version=1)
    assert len(source) == 10
    assert prune(cache, max_bytes=0).num_files == 0
    assert source[3] == {"row": 3}
    del source


def test_what_killed_processes_left_goes_too(cache: Cache, three: list[str]) -> None:
    script = "from penstock.cache import Cache\nprint(Cache('unused').place.temporary_name())"
    name = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()
    for folder in ("shards", "stores"):
        (cache.root / folder / name).write_bytes(b"half")
    assert prune(cache, older_than=10 * DAY).num_files == 0  # none of these is a file of the cache
    assert list(cache.root.rglob("*.tmp")) == []


def test_a_damaged_manifest_is_listed_and_can_be_removed(cache: Cache, three: list[str]) -> None:
    cache.path(manifest_name(three[0])).write_text("{")
    (info,) = [info for info in list_stores(cache).stores if info.store == three[0]]
    assert info.problem and "damaged" in info.problem and info.counts is None
    assert remove(three[0][:8], cache, force=True)[0] == three[0] and there(cache) == set(three[1:])
    assert all(verify(store, cache).is_whole for store in three[1:])
    assert list_stores(cache).num_unfinished == 1  # its own shard belongs to no store now


def test_a_list_says_what_is_there_and_what_is_missing(cache: Cache, three: list[str]) -> None:
    listing = list_stores(cache)
    assert [info.store for info in listing.stores] == three[::-1] and listing.num_unfinished == 0
    first = listing.stores[-1]
    assert first.counts is not None and first.counts.rows == 200 and first.num_shards == 2
    assert first.num_own < first.num_bytes and first.problem is None
    key = survey(cache).manifests[three[2]].shards[0].key  # type: ignore[union-attr]
    cache.path(f"shards/{key[:2]}/{key}.arrow").write_bytes(b"x")
    cache.path(lengths_name(three[1])).unlink()
    assert [info.problem for info in list_stores(cache).stores[:2]] == [
        "1 shards of another size",
        "its lengths are missing",
    ]
    cache.path(f"shards/{key[:2]}/{key}.arrow").unlink()
    assert list_stores(cache).stores[0].problem == "1 shards missing"


def test_stores_are_found_by_a_piece_of_their_name(cache: Cache) -> None:
    wiki, other = make(records(50), cache, name="wiki"), make(records(60), cache, name="wiki")
    save_origin(wiki)
    assert find_store(wiki.fingerprint[:6], cache) == find_store("wiki", cache) == wiki.fingerprint
    save_origin(other)
    with pytest.raises(
        StoreError, match=r"'wiki' matches 2 stores: .*give more digits of the fingerprint"
    ):
        find_store("wiki", cache)
    for wanted in ("", "zzz", wiki.fingerprint[:3], "../x"):
        with pytest.raises(
            StoreError, match=r"no such store in .*which has 2; `penstock cache ls`"
        ):
            find_store(wanted, cache)


def test_what_was_seen_is_a_note_and_no_more(cache: Cache) -> None:
    store = make(records(50), cache, name="wiki")
    before = cache.path(manifest_name(store.fingerprint)).read_bytes()
    assert load_origin(store.fingerprint, cache) is None
    save_origin(store)
    seen = load_origin(store.fingerprint, cache)
    assert (
        seen is not None
        and (seen.name, seen.places) == ("wiki", ("wiki",))
        and abs(seen.time - cache.now()) < 3600
    )
    assert (
        cache.path(manifest_name(store.fingerprint)).read_bytes() == before
        and verify(store).is_whole
    )
    for damage in ("", "[]", '{"name": 1}', "[" * 99999):
        cache.path(f"seen/{store.fingerprint}.json").write_text(damage)
        assert load_origin(store.fingerprint, cache) is None


@pytest.mark.soak  # it races real processes with a period of seconds for a day
def test_readers_and_a_pruner_at_once_never_meet_a_missing_file(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reader opens one of three stores, reads all of it, lets go; another process prunes what was not used for some seconds."""
    script = (
        "import gc, random, sys, time\nfrom tests.store.shelves import make, records\nfrom penstock.cache import Cache\n"
        "cache, chance = Cache(sys.argv[1]), random.Random(sys.argv[2])\n"
        "for _ in range(int(sys.argv[3])):\n"
        "    start = chance.choice([0, 100, 500])\n"
        "    store = make(records(200, start), cache)\n"
        "    found = [sample.input_ids.tolist() for sample in store]\n"
        "    assert found == [record['ids'] for record in records(200, start)]\n"
        "    assert store.lengths.sum() == store.counts.tokens\n"
        "    del store; gc.collect(); time.sleep(chance.random() * 12)\n"
    )
    rounds = "100" if SOAK else "3"
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(cache.root), str(seed), rounds],
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    # short, but longer than a build takes on a busy machine
    monkeypatch.setattr(inventory, "KEEP_SECONDS", 10.0)
    num_removed = 0
    while any(reader.poll() is None for reader in readers):
        num_removed += len(prune(cache, max_bytes=0).stores)
    errors = [reader.communicate()[1] for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0, 0], "\n".join(errors)
    assert num_removed or not SOAK
