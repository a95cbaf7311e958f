"""Is a file under its final name always whole, and never changed?"""

import errno
import os
import pickle
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cache import Cache, default_root
from penstock.errors import StoreError


def leftovers(cache: Cache) -> list[Path]:
    return [path for path in cache.root.rglob("*") if path.is_file() and path.name.endswith(".tmp")]


def test_what_is_published_can_be_read_mapped_and_measured(cache: Cache) -> None:
    assert cache.size("a/b.bin") is None
    assert cache.publish("a/b.bin", lambda file: file.write(b"hello")) == 5
    assert cache.read("a/b.bin") == b"hello"
    assert bytes(cache.map("a/b.bin", size=5)) == b"hello"
    assert cache.size("a/b.bin") == 5
    assert leftovers(cache) == []


def test_an_empty_file_maps_to_nothing(cache: Cache) -> None:
    cache.publish("empty", lambda file: None)
    assert bytes(cache.map("empty", size=0)) == b""


def test_equal_content_is_no_news_and_other_content_is_refused(cache: Cache) -> None:
    cache.publish("a", lambda file: file.write(b"one"))
    before = cache.path("a").stat().st_ino
    cache.publish("a", lambda file: file.write(b"one"))
    assert cache.path("a").stat().st_ino == before
    for other in (b"two", b"longer"):
        with pytest.raises(StoreError, match=r"cache/a: exists with other content.*refresh=True"):
            cache.publish("a", lambda file, other=other: file.write(other))
    assert cache.read("a") == b"one"
    cache.publish("a", lambda file: file.write(b"two"), replace=True)
    assert cache.read("a") == b"two"
    assert leftovers(cache) == []


def test_a_map_outlives_the_replacement_of_its_file(cache: Cache) -> None:
    cache.publish("a", lambda file: file.write(b"one"))
    mapped = cache.map("a", size=3)
    cache.publish("a", lambda file: file.write(b"two"), replace=True)
    assert bytes(mapped) == b"one"


def test_a_writer_that_fails_leaves_nothing(cache: Cache) -> None:
    def write(file: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        StoreError, match=r"cannot write .*cache/a: No space left on device; free some space"
    ):
        cache.publish("a", write)
    assert cache.size("a") is None
    assert leftovers(cache) == []


def test_a_size_that_is_not_expected_is_named(cache: Cache) -> None:
    cache.publish("a", lambda file: file.write(b"one"))
    with pytest.raises(StoreError, match=r"cache/a: 3 bytes, expected 4"):
        cache.map("a", size=4)


def test_what_is_not_there_is_named(cache: Cache) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*cache/a: No such file"):
        cache.read("a")


@pytest.mark.parametrize(
    "name", ["../a", "/etc/passwd", "a/../../b", "", "a//b", ".", "a\0b", "a\\..\\b"]
)
def test_no_name_leads_out_of_the_cache(cache: Cache, name: str) -> None:
    with pytest.raises(StoreError, match="is not a name in a cache"):
        cache.path(name)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot write .*file/cache/a: Not a directory"):
        Cache(tmp_path / "file" / "cache").publish("a", lambda file: None)


def test_the_folder_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "here"))
    assert default_root() == tmp_path / "here" == Cache().root
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert default_root() == tmp_path / "xdg" / "penstock"


def test_a_temporary_cache_is_gone_with_its_last_user() -> None:
    cache = Cache.temporary()
    cache.publish("a", lambda file: file.write(b"x"))
    root = cache.root
    other_user = cache
    del cache
    assert root.exists()
    del other_user
    assert not root.exists()


def test_a_cache_pickles_as_its_folder(cache: Cache) -> None:
    assert pickle.loads(pickle.dumps(cache)).root == cache.root


def test_a_kill_in_the_middle_of_writing_leaves_no_file_under_the_name(cache: Cache) -> None:
    script = (
        "import os, signal\nfrom penstock.cache import Cache\n"
        "def write(file):\n    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        f"Cache({str(cache.root)!r}).publish('a/b', write)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert cache.size("a/b") is None
    cache.publish("a/b", lambda file: file.write(b"whole"))
    assert cache.read("a/b") == b"whole"


def test_a_home_folder_that_is_not_known_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`~nobody`, and a user without HOME or entry in the password file, ended in a raw RuntimeError."""

    def find_no_user(uid: int) -> None:
        raise KeyError(uid)

    with pytest.raises(StoreError, match=r"home folder ~no-such-user; choose another folder"):
        Cache("~no-such-user/cache")
    monkeypatch.setattr(pwd, "getpwuid", find_no_user)
    for name in ("HOME", "PENSTOCK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match=r"home folder ~; choose another folder"):
        default_root()


def test_the_platforms_folder_stays_where_it_is_when_the_process_changes_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A relative XDG_CACHE_HOME gave a relative root, which moved with the current folder."""
    monkeypatch.delenv("PENSTOCK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.chdir(tmp_path)
    assert default_root() == tmp_path / "relative" / "penstock"


def test_a_file_in_use_keeps_its_name_while_others_are_removed(tmp_path: Path) -> None:
    """A rename changes the time of a file's status: a job that opens the file at this moment would miss it."""
    cache = Cache(tmp_path)
    cache.publish("shards/ab/one", lambda out: out.write(b"1"))
    before = cache.path("shards/ab/one").stat()
    assert not cache.remove_unused("shards/ab/one", since=before.st_mtime - 1)
    assert cache.path("shards/ab/one").stat().st_ctime_ns == before.st_ctime_ns
    assert cache.remove_unused("shards/ab/one", since=before.st_mtime + 1)
    assert not cache.path("shards/ab/one").exists()
    assert cache.remove_unused("shards/ab/one", since=before.st_mtime + 1), "it is gone already"
