"""Is a cache safe where others can write?  Links, fifos and foreign owners are refused by name, and never followed."""

import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cache import Cache
from penstock.errors import StoreError
from tests.cache.people import NOBODY, as_root, command, run

WRITE = "from penstock.cache import Cache\nCache({root!r}).publish('a/b', lambda file: file.write(b'mine'))\n"
READ = "from penstock.cache import Cache\nprint(Cache({root!r}).read('a/b').decode())\n"


def put(cache: Cache, name: str = "a/b", data: bytes = b"whole") -> None:
    cache.publish(name, lambda file: file.write(data))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_we_make_is_ours_alone(cache: Cache) -> None:
    before = os.umask(0)
    try:
        put(cache)
    finally:
        os.umask(before)
    assert [mode(path) for path in (cache.root, cache.root / "a", cache.root / "a" / "b")] == [
        0o700,
        0o700,
        0o600,
    ]


@pytest.mark.parametrize(
    ("given", "folder", "file"),
    [(0o755, 0o755, 0o644), (0o2770, 0o770, 0o660), (0o700, 0o700, 0o600)],
)
def test_a_folder_that_is_there_says_who_else_may(
    tmp_path: Path, given: int, folder: int, file: int
) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(given)
    before = os.umask(0o077)
    try:
        put(Cache(root))
    finally:
        os.umask(before)
    assert (
        mode(root) == given
        and mode(root / "a") & 0o777 == folder
        and mode(root / "a" / "b") == file
    )


def test_a_folder_that_anybody_can_write_to_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    put(Cache(root))
    root.chmod(0o777)
    for act in (
        put,
        lambda cache: cache.read("a/b"),
        lambda cache: cache.size("a/b"),
        lambda cache: cache.entries(),
    ):
        with pytest.raises(
            StoreError,
            match=r"cache: anybody can write to it \(mode 777\).*PENSTOCK_ALLOW_SHARED_CACHE=1",
        ):
            act(Cache(root))
    assert Cache(root, allow_shared=True).read("a/b") == b"whole"
    monkeypatch.setenv("PENSTOCK_ALLOW_SHARED_CACHE", "1")
    assert Cache(root).read("a/b") == b"whole"
    monkeypatch.setenv("PENSTOCK_ALLOW_SHARED_CACHE", "maybe")
    with pytest.raises(StoreError, match="PENSTOCK_ALLOW_SHARED_CACHE is 'maybe', expected 1 or 0"):
        Cache(root)
    monkeypatch.delenv("PENSTOCK_ALLOW_SHARED_CACHE")
    root.chmod(0o1777)  # as /tmp: others may put names there that Penstock would find
    with pytest.raises(StoreError, match=r"anybody can write to it \(mode 1777\)"):
        Cache(root).read("a/b")


@as_root
def test_what_belongs_to_somebody_else_is_refused_unless_allowed(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    put(Cache(root))
    os.chown(root, NOBODY, NOBODY)
    with pytest.raises(
        StoreError, match=rf"{root}: belongs to user {NOBODY}, expected you \(user 0\) or root"
    ):
        Cache(root).read("a/b")
    assert Cache(root, allow_shared=True).read("a/b") == b"whole"


def test_the_root_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    put(cache)
    checked: list[str] = []
    monkeypatch.setattr("penstock.places.folder._check_trust", lambda path, _: checked.append(path))
    other = Cache(cache.root)
    for _ in range(3):
        assert other.read("a/b") == b"whole"
    assert checked == [str(cache.root)]


@as_root
def test_another_user_reads_a_cache_of_root_and_writes_nothing(public_path: Path) -> None:
    root = public_path / "cache"
    root.mkdir()
    root.chmod(0o755)
    put(Cache(root))
    before = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    found = run(READ.format(root=str(root)), uid=NOBODY)
    assert (found.returncode, found.stdout) == (0, "whole\n"), found.stderr
    refused = run(WRITE.format(root=str(root)), uid=NOBODY)
    assert refused.returncode and "Permission denied; check the permissions there" in refused.stderr
    after = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    assert before.keys() == after.keys()
    assert all(before[path].st_mtime_ns == after[path].st_mtime_ns for path in before)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def bound_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def link(path: Path) -> None:
    path.symlink_to(path.parents[2] / "target")


PLANTS = {"a fifo": fifo, "a folder": folder, "a socket": bound_socket, "a link": link}


@pytest.mark.parametrize("kind", PLANTS)
def test_what_is_planted_at_the_name_of_a_file_is_named_and_not_touched(
    cache: Cache, kind: str
) -> None:
    put(cache, "a/other")
    target = cache.root.parent / "target"
    target.write_text("precious")
    PLANTS[kind](cache.root / "a" / "b")
    acts: list[Callable[[], object]] = [
        lambda: cache.read("a/b"),
        lambda: cache.size("a/b"),
        lambda: cache.map("a/b", size=8),
        lambda: put(cache),
    ]
    for act in acts:
        with pytest.raises(
            StoreError,
            match=rf"a/b: {kind}, expected a file; penstock did not put it there: remove it",
        ):
            act()
    assert target.read_text() == "precious"
    assert [entry.name for entry in cache.entries() if entry.name.startswith("a/")] == ["a/other"]


def test_a_link_is_replaced_not_followed_where_a_file_is_made_anew(cache: Cache) -> None:
    put(cache, "a/other")
    target = cache.root.parent / "target"
    target.write_text("precious")
    link(cache.root / "a" / "b")
    cache.publish("a/b", lambda file: file.write(b"new"), replace=True)
    assert target.read_text() == "precious" and cache.read("a/b") == b"new"


@pytest.mark.parametrize("plant", [fifo, lambda path: path.touch()])
def test_what_is_planted_at_the_name_of_a_folder_is_named(
    cache: Cache, plant: Callable[[Path], None]
) -> None:
    cache.root.mkdir()
    plant(cache.root / "a")
    with pytest.raises(StoreError, match=r"cannot write .*cache/a/b: Not a directory"):
        put(cache)
    with pytest.raises(StoreError, match=r"cannot read .*cache/a/b: Not a directory"):
        cache.read("a/b")


def test_the_cache_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "big")
    put(Cache(tmp_path / "cache"))
    assert (tmp_path / "big" / "a" / "b").read_bytes() == b"whole"


def test_a_folder_swapped_for_a_link_in_the_middle_of_writing_gets_nothing(cache: Cache) -> None:
    """The folder was opened before; what happens to its name later leads nowhere."""
    outside = cache.root.parent / "outside"
    outside.mkdir()

    def swap(file: object) -> None:
        (cache.root / "a").rename(cache.root / "moved")
        (cache.root / "a").symlink_to(outside)

    cache.publish("a/b", swap)
    assert list(outside.iterdir()) == [] and [
        path.name for path in (cache.root / "moved").iterdir()
    ] == ["b"]


def test_nothing_is_written_under_a_name_that_can_be_guessed(cache: Cache) -> None:
    seen = []
    for number in range(3):
        cache.publish(f"a/{number}", lambda file: seen.append(os.listdir(cache.root / "a")))  # noqa: PTH208
    names = [name for names in seen for name in names if name.endswith(".tmp")]
    assert len(set(names)) == 3 and all(len(name.rsplit("-", 1)[1]) == 20 for name in names)


@as_root
def test_an_attacker_who_plants_links_all_the_time_gets_nothing(public_path: Path) -> None:
    """In a folder like /tmp another user may add names; no file of ours ends up behind one, and no process waits."""
    root = public_path / "cache"
    root.mkdir()
    root.chmod(0o1777)
    target = public_path / "target"
    target.write_text("precious")
    attack = (
        f"os.chdir({str(root)!r})\n"
        "for number in range(10**9):\n"
        "    with contextlib.suppress(OSError):\n"
        f"        os.symlink({str(target)!r}, f'f{{number % 200}}')\n"
        "    with contextlib.suppress(OSError):\n"
        "        os.unlink(f'f{(number + 7) % 200}')\n"
    )
    attacker = subprocess.Popen(command(attack, uid=NOBODY))
    try:
        outcomes = set()
        while not any(path.is_symlink() for path in root.iterdir()):
            assert attacker.poll() is None
        for number in range(200):
            try:
                put(Cache(root, allow_shared=True), f"f{number}", b"ours")
                outcomes.add("written")
            except StoreError as error:
                assert "a link, expected a file" in str(error)
                outcomes.add("refused")
    finally:
        attacker.kill()
        attacker.wait()
    assert target.read_text() == "precious" and "written" in outcomes
    for path in root.iterdir():
        assert path.is_symlink() or path.is_dir() or path.read_bytes() == b"ours"
