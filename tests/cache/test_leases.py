"""Does everybody know what is in use, and does nothing of the dead stay behind?"""

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cache import Cache, Owner, parse_size
from penstock.errors import StoreError
from tests.cache.people import NOBODY, as_root, run

ELSEWHERE = Owner("0" * 12, 1, 1)
LONG_AGO = 1_000_000_000


class Holder:
    """Something that can be let go."""


def put(cache: Cache, name: str) -> None:
    cache.publish(name, lambda file: file.write(b"x"))


def dead() -> Owner:
    """A process that was, on this machine."""
    script = "from penstock.cache import Owner\nprint(Owner.me())"
    made = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    owner = Owner.parse(made.stdout.strip())
    assert owner is not None
    return owner


def test_a_process_knows_whether_another_lives() -> None:
    me = Owner.me()
    assert Owner.parse(str(me)) == me and not me.is_dead and me.is_here
    assert dead().is_dead
    assert Owner(me.place, me.pid, me.start + 1).is_dead  # the number was given out again
    assert Owner(me.place, 1 << 40, 1).is_dead
    assert not ELSEWHERE.is_here and not ELSEWHERE.is_dead  # who can tell?
    for mark in ("", "x", f"{me}-1", f"{me.place}-{me.pid}", f"../{me}"):
        assert Owner.parse(mark) is None


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "from penstock.cache import Owner\nprint(Owner.me(), flush=True)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    owner = Owner.parse(child.stdout.readline().strip())
    assert owner is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not waited for yet
    assert owner.is_dead
    child.communicate()


@as_root
def test_a_process_of_another_user_lives_too() -> None:
    found = run(
        f"from penstock.cache import Owner\nprint(Owner.parse({str(Owner.me())!r}).is_dead)",
        uid=NOBODY,
    )
    assert found.stdout == "False\n", found.stderr


def test_what_is_used_is_held_until_it_is_let_go(cache: Cache) -> None:
    put(cache, "a/one")
    put(cache, "a/two")
    holder, other = Holder(), Holder()
    cache.hold("a/three", "a/four", holder=holder)
    cache.hold("a/three", holder=other)
    assert cache.held() == {"a/one", "a/two", "a/three", "a/four"}
    del holder
    gc.collect()
    assert cache.held() == {"a/one", "a/two", "a/three"}
    cache.release(
        "a/three", "a/two", "a/never"
    )  # an object holds the first, nothing holds the last
    assert cache.held() == {"a/one", "a/three"}
    del other
    gc.collect()
    assert cache.held() == {"a/one"}
    cache.hold("a/two")
    assert cache.held() == {"a/one", "a/two"}


def test_looking_and_reading_hold_only_where_it_says_so(cache: Cache) -> None:
    """In a process of its own, which did not write the files."""
    put(cache, "a/looked")
    put(cache, "a/mapped")
    put(cache, "a/read")
    put(cache, "a/seen")
    script = (
        "import os\nfrom penstock.cache import Cache, Owner\n"
        f"cache = Cache({str(cache.root)!r})\n"
        "cache.size('a/looked'); cache.map('a/mapped', size=1); cache.read('a/read'); cache.size('a/seen', hold=False)\n"
        "cache.size('a/missing'); cache.entries()\n"
        "print((cache.root / 'leases' / str(Owner.me())).read_text())"
    )
    lines = run(script).stdout.split("\n")
    assert [line for line in lines if line[:1] in ("+", "-")] == ["+ a/looked", "+ a/mapped"]
    assert len(list((cache.root / "leases").iterdir())) == 1  # the child took its own away


def test_taking_up_says_when(cache: Cache) -> None:
    put(cache, "a/b")
    os.utime(cache.path("a/b"), (LONG_AGO, LONG_AGO))
    (before,) = [entry for entry in cache.entries() if entry.name == "a/b"]
    run(f"from penstock.cache import Cache\nCache({str(cache.root)!r}).size('a/b')")
    (after,) = [entry for entry in cache.entries() if entry.name == "a/b"]
    assert before.used == LONG_AGO and abs(after.used - cache.now()) < 60


def test_a_lease_ends_with_its_process_however_it_ends(cache: Cache) -> None:
    put(cache, "a/b")
    script = (
        "import os, signal\nfrom penstock.cache import Cache\n"
        f"cache = Cache({str(cache.root)!r})\ncache.hold('a/killed')\nassert 'a/killed' in cache.held()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert run(script).returncode == -signal.SIGKILL
    assert len(list((cache.root / "leases").iterdir())) == 2
    assert cache.held() == {"a/b"}
    assert [path.name for path in (cache.root / "leases").iterdir()] == [str(Owner.me())]


def test_a_lease_of_another_machine_counts_for_a_month(cache: Cache) -> None:
    put(cache, "a/b")
    lease = cache.root / "leases" / str(ELSEWHERE)
    lease.write_text("# there\n+ a/far\n")
    now = cache.now()
    for days, counts in ((0, True), (29, True), (31, False)):
        os.utime(lease, (now - days * 86400,) * 2)
        assert ("a/far" in cache.held()) is counts
    assert not lease.exists()


def test_a_damaged_lease_holds_what_can_be_read_of_it(cache: Cache) -> None:
    put(cache, "a/b")
    (cache.root / "leases" / str(ELSEWHERE)).write_bytes(
        b"\xff\xfe\n+ a/far\n+\n- a/other\nnonsense"
    )
    (cache.root / "leases" / "README").write_text("+ a/nobody")
    assert cache.held() == {"a/b", "a/far"}


def test_a_hold_on_a_cache_that_is_not_there_yet_is_written_when_it_is(cache: Cache) -> None:
    cache.hold("shards")
    assert not cache.root.exists() and cache.held() == set()
    put(cache, "a/b")
    assert cache.held() == {"shards", "a/b"}


def in_child(cache: Cache, name: str, answers: "multiprocessing.Queue[set[str]]") -> None:
    put(cache, name)
    answers.put(cache.held())


def test_a_forked_child_has_a_lease_of_its_own(cache: Cache) -> None:
    holder = Holder()
    put(cache, "a/parent")
    cache.hold("a/object", holder=holder)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=in_child, args=(cache, "a/child", answers))
    child.start()
    assert answers.get() == {"a/parent", "a/object", "a/child"}
    child.join()
    assert cache.held() == {"a/parent", "a/object"}  # the child's copy of the holder let nothing go


@as_root
def test_a_cache_that_cannot_be_written_to_is_used_without_a_lease(public_path: Path) -> None:
    root = public_path / "cache"
    root.mkdir()
    root.chmod(0o755)
    put(Cache(root), "a/b")
    script = f"cache = penstock.cache.Cache({str(root)!r})\nprint(cache.size('a/b'), bytes(cache.map('a/b', size=1)))"
    found = run(script, uid=NOBODY)
    assert found.stdout == "1 b'x'\n", found.stderr
    assert [path.name for path in (root / "leases").iterdir()] == [str(Owner.me())]


@pytest.mark.parametrize("act", ["publish", "tidy"])
def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(cache: Cache, act: str) -> None:
    put(cache, "a/b")
    folder = cache.root / "a"
    now = cache.now()
    mine, theirs, old = (
        f".{owner}-{'0' * 15}{digit}.tmp"
        for owner, digit in (
            (Owner.me(), 1),
            (ELSEWHERE, 2),
            (ELSEWHERE, 3),
        )
    )
    foreign = ["notes.tmp", ".hidden", ".nfs0001", ".x-0000000000000000.tmp"]
    for name in (f".{dead()}-{'0' * 16}.tmp", mine, theirs, old, *foreign):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (LONG_AGO, LONG_AGO))
    os.utime(folder / theirs, (now, now))
    fresh = Cache(cache.root)
    if act == "tidy":
        assert fresh.tidy() == 2
    else:
        put(fresh, "a/c")
    left = {path.name for path in folder.iterdir()} - {"b", "c"}
    assert left == {mine, theirs, *foreign}


def test_a_temporary_name_is_never_used_twice(cache: Cache) -> None:
    assert len({cache.place.temporary_name() for _ in range(100)}) == 100


def test_a_discarded_file_can_come_back(cache: Cache) -> None:
    put(cache, "a/b")
    taken = cache.discard("a/b")
    assert (
        cache.size("a/b") is None
        and [entry.name for entry in cache.entries() if entry.name[0] != "l"] == []
    )
    taken.restore()
    assert cache.read("a/b") == b"x"
    taken = cache.discard("a/b")
    cache.publish("a/b", lambda file: file.write(b"new"))
    taken.restore()
    assert cache.read("a/b") == b"new"
    cache.discard("a/b").empty()
    cache.discard("a/never").empty()
    cache.discard("a/never").restore()
    assert cache.size("a/b") is None and list((cache.root / "trash").iterdir()) == []


def test_names_are_listed_without_what_is_under_way(cache: Cache) -> None:
    assert cache.names("a") == []
    for name in ("a/2", "a/1"):
        cache.publish(name, lambda file: file.write(b""))
    (cache.root / "a" / ".nfs00001").touch()
    seen: list[list[str]] = []
    cache.publish("a/3", lambda file: seen.append(cache.names("a")))
    assert seen == [["a/1", "a/2"]] and cache.names("a") == ["a/1", "a/2", "a/3"]


def test_settings_travel_with_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_MAX", "1.5k")
    monkeypatch.setenv("PENSTOCK_VERIFY", "yes")
    cache = Cache(tmp_path)
    assert (cache.max_bytes, cache.verify) == (1500, "always")
    copy = pickle.loads(pickle.dumps(Cache(tmp_path, max_bytes=7, verify=False, allow_shared=True)))
    assert (copy.max_bytes, copy.verify, copy.place.allow_shared) == (7, "never", True)


def test_sizes_are_read_as_people_write_them() -> None:
    found = [parse_size(text) for text in ("0", "4096", "200G", "1.5 TiB", "3kB", "2 mib", "7b")]
    assert found == [0, 4096, 200 * 10**9, 3 << 39, 3000, 2 << 20, 7]
    for text in ("", "G", "-1", "1e3", "10X", "ten"):
        with pytest.raises(StoreError, match="is not a size, expected a number of bytes such as"):
            parse_size(text)


@as_root
def test_who_may_only_read_sees_what_others_hold(public_path: Path) -> None:
    """To tell the time by the file system's clock one must write to it; to read who holds what, one need not."""
    root = public_path / "cache"
    root.mkdir()
    root.chmod(0o755)
    cache = Cache(root)
    cache.publish("a/b", lambda file: file.write(b"mine"))
    result = run(
        f"from penstock.cache import Cache\nprint(Cache({str(root)!r}).held())", uid=NOBODY
    )
    assert result.stdout == "{'a/b'}\n", result.stderr
