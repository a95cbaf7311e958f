"""Does a process know which others live, and does nothing of the dead stay behind?"""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cache import Cache, Owner, parse_size
from penstock.errors import StoreError
from tests.cache.people import NOBODY, as_root, run

ELSEWHERE = Owner("0" * 12, 1, 1)
LONG_AGO = 1_000_000_000


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


def test_what_is_renewed_is_young(cache: Cache) -> None:
    put(cache, "a/b")
    os.utime(cache.path("a/b"), (LONG_AGO, LONG_AGO))
    cache.renew("a/b")
    cache.renew("a/missing")
    (entry,) = cache.entries("a")
    assert abs(entry.used - cache.now()) < 60


def test_what_was_used_since_is_not_removed(cache: Cache) -> None:
    put(cache, "a/old")
    put(cache, "a/new")
    os.utime(cache.path("a/old"), (LONG_AGO, LONG_AGO))
    since = cache.now() - 60
    assert cache.remove_unused("a/old", since=since)
    assert not cache.remove_unused("a/new", since=since)
    assert cache.remove_unused("a/missing", since=since)
    assert cache.names("a") == ["a/new"] and cache.read("a/new") == b"x"


@as_root
def test_a_cache_that_cannot_be_written_to_can_be_used(public_path: Path) -> None:
    root = public_path / "cache"
    root.mkdir()
    root.chmod(0o755)
    put(Cache(root), "a/b")
    script = (
        f"from penstock.cache import Cache\ncache = Cache({str(root)!r})\ncache.renew('a/b')\n"
        "print(cache.size('a/b'), bytes(cache.map('a/b', size=1)))"
    )
    found = run(script, uid=NOBODY)
    assert found.stdout == "1 b'x'\n", found.stderr


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
