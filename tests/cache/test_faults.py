"""What if the disk fails?  One line with path, reason and advice; nothing half under a final name; nothing left over."""

import errno
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cache import Cache
from penstock.cache.claims import take_claim
from penstock.cache.memo import CONTENT, memo, memo_file
from penstock.errors import StoreError
from penstock.places.local import again
from tests.cache.people import run, with_strace
from tests.policy import SOAK, first_in_short_runs

ERRORS = ["ENOSPC", "EDQUOT", "EIO", "EACCES", "EROFS", "EMFILE", "ESTALE", "EINTR"]
CALLS = "openat,mkdir,mkdirat,write,fsync,linkat,renameat,unlinkat,newfstatat,fchmod,utimensat"
OPTIONAL = {"unlinkat", "fchmod", "utimensat"}  # their failure is no reason to fail
# strace is attached to a child that has imported everything: what the interpreter opens for imports is not counted.
SCRIPT = """
import os, subprocess, sys, tempfile, time
from pathlib import Path
from penstock.cache import Cache
from penstock.errors import StoreError
with tempfile.TemporaryDirectory() as folder:
    Cache(folder).publish("a/b", lambda file: file.write(b"x"))
cache = Cache({root!r})
gate, opener = os.pipe()
child = os.fork()
if child:
    status = Path("/proc") / str(child) / "status"
    with subprocess.Popen([*{strace!r}, "-p", str(child)]) as tracer:
        while tracer.poll() is None and "TracerPid:\\t0\\n" in status.read_text():
            time.sleep(0.001)
        os.write(opener, b"go")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.read(gate, 2)
try:
    cache.publish("a/b", lambda file: file.write(b"x" * 100_000))
except StoreError as error:
    print(error)
    sys.exit(3)
"""


def test_a_cache_that_is_a_link_to_nowhere_is_to_be_checked(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(
        StoreError, match=r"cannot write .*link/a/b: .*; check the folder, or choose another folder"
    ):
        Cache(tmp_path / "link").publish("a/b", lambda file: file.write(b"x"))


def leftovers(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*.tmp")]


def traced(root: Path, *rules: str) -> "tuple[subprocess.CompletedProcess[str], list[str]]":
    """Publish one file under the tracer; what it printed, and the calls it made."""
    log = root.parent / "strace.log"
    options = [part for rule in rules for part in ("-e", f"inject={rule}")]
    strace = ["strace", "-qq", "-y", "-o", str(log), "-e", f"trace={CALLS}", *options]
    return run(SCRIPT.format(root=str(root), strace=strace)), log.read_text().splitlines()


def our_calls(root: Path) -> list[tuple[str, int]]:
    """(call, which one of its kind in that process) of everything that is done to a new cache."""
    found, counts = [], Counter[str]()
    for line in traced(root)[1]:
        call = line.partition("(")[0]
        counts[call] += 1
        if str(root) in line:
            found.append((call, counts[call]))
    return found


@with_strace
@pytest.mark.parametrize("fault", first_in_short_runs(ERRORS))
def test_any_failing_call_is_one_line_and_leaves_nothing(tmp_path: Path, fault: str) -> None:
    calls = our_calls(tmp_path / "first")
    assert {"openat", "mkdirat", "write", "fsync", "linkat", "unlinkat"} <= {
        call for call, _ in calls
    }
    every = 1 if SOAK else 4
    num_refused = 0
    for number, (call, when) in enumerate(calls):
        if (number + ERRORS.index(fault)) % every:
            continue
        root = tmp_path / f"r{number:04}"  # as long as the first, so that all calls are the same
        result, lines = traced(root, f"{call}:error={fault}:when={when}")
        what = f"{call} {when}: {[line for line in lines if 'INJECTED' in line]}"
        assert "INJECTED" in what and str(root) in what, "another call was hit"
        if result.returncode:
            num_refused += 1
            reason = os.strerror(getattr(errno, fault))
            assert fault != "EINTR" and call not in OPTIONAL, what
            assert result.returncode == 3 and result.stdout.count("\n") == 1, what + result.stderr
            assert result.stdout.startswith(f"cannot write {root}/a/b: {reason}; "), what
        assert (
            not (root / "a" / "b").exists() or (root / "a" / "b").read_bytes() == b"x" * 100_000
        ), what
        assert leftovers(root) == [] or call == "unlinkat", what
        again, _ = traced(root)
        assert (
            again.returncode == 0 and Cache(root).size("a/b") == 100_000 and leftovers(root) == []
        ), what
    assert num_refused or fault == "EINTR"


@with_strace
def test_a_failed_fsync_is_not_tried_again(tmp_path: Path) -> None:
    """The kernel drops what it could not write and says so once; a second call would succeed and mean nothing."""
    root = tmp_path / "cache"
    (root / "a").mkdir(parents=True)  # else its making is synced first
    result, lines = traced(root, "fsync:error=EIO:when=1")
    assert result.returncode == 3 and "the disk reports a fault" in result.stdout
    assert len([line for line in lines if line.startswith("fsync(")]) == 1


@pytest.mark.parametrize(
    ("write", "is_synced"),
    [
        (lambda cache: cache.publish("a/b", lambda file: file.write(b"x")), True),
        (lambda cache: memo_file("index", "a", CONTENT, lambda out: out.write(b"x"), cache), True),
        (lambda cache: memo("rows", "a", CONTENT, lambda: 1, cache), False),
        (lambda cache: take_claim("a", cache), False),
    ],
    ids=["a file", "a remembered table", "a remembered answer", "a claim"],
)
def test_what_must_survive_a_power_cut_is_synced_with_its_folders_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Cache], object],
    is_synced: bool,
) -> None:
    """A sync takes milliseconds.  A remembered answer is checked whole whenever it is read, and made again where it is damaged."""
    cache = Cache(tmp_path / "cache")
    cache.publish("b", lambda file: file.write(b"x"))  # makes and syncs the root
    synced: list[str] = []
    sync = os.fsync

    def noted(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    write(cache)
    if not is_synced:
        assert synced == []
        return
    folders = [Path(path) for path in synced if not path.endswith(".tmp")]
    assert len(synced) == len(folders) + 1
    made = [folder for folder in cache.root.rglob("*") if folder.is_dir()]
    assert {cache.root, *(folder for folder in made if "claims" not in folder.parts)} == set(
        folders
    )


@with_strace
def test_where_no_links_can_be_made_a_rename_does(tmp_path: Path) -> None:
    for _ in range(2):  # the second time there is nothing to name
        result, lines = traced(tmp_path / "cache", "linkat:error=EPERM:when=1")
        assert result.returncode == 0 and "INJECTED" in "".join(lines), (
            result.stdout + result.stderr
        )
    assert leftovers(tmp_path) == [] and (tmp_path / "cache" / "a" / "b").stat().st_size == 100_000


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (
            errno.ENOSPC,
            r"free some space there \(`penstock cache prune`\), or choose another folder with cache_dir=",
        ),
        (errno.EDQUOT, "your quota there is used up"),
        (errno.EMFILE, r"this process has too many files open: raise the limit \(`ulimit -n`\)"),
        (errno.EROFS, "nothing can be written there: choose another folder"),
        (errno.EIO, "the disk reports a fault"),
    ],
)
def test_every_fault_has_its_advice(cache: Cache, number: int, advice: str) -> None:
    def write(file: object) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(
        StoreError, match=rf"^cannot write .*cache/a: {os.strerror(number)}; {advice}"
    ):
        cache.publish("a", write)
    assert cache.size("a") is None and leftovers(cache.root) == []


def test_calls_are_repeated_as_often_as_makes_sense() -> None:
    answers = iter([InterruptedError(), InterruptedError(), 7])

    def call() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert again(call) == 7
    answers = iter([OSError(errno.ESTALE, "stale"), 8])
    assert again(call) == 8
    answers = iter([OSError(errno.ESTALE, "stale"), OSError(errno.ESTALE, "stale")])
    with pytest.raises(OSError, match="stale"):
        again(call)
    answers = iter([InterruptedError()] * 1000)
    with pytest.raises(InterruptedError):
        again(call)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=30,mode=700", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_what_is_there_stays(small_disk: Path) -> None:
    cache = Cache(small_disk / "cache")
    cache.publish("a/small", lambda file: file.write(b"kept"))
    with pytest.raises(
        StoreError, match=r"cannot write .*a/big: No space left on device; free some space"
    ):
        cache.publish("a/big", lambda file: file.write(bytes(1 << 20)))
    assert (
        leftovers(cache.root) == []
        and cache.size("a/big") is None
        and cache.read("a/small") == b"kept"
    )
    cache.publish("a/b", lambda file: file.write(b"fits"))


def test_a_disk_out_of_inodes_is_named(small_disk: Path) -> None:
    cache = Cache(small_disk / "cache")
    with pytest.raises(StoreError, match=r"cannot write .*: No space left on device"):
        for number in range(40):
            cache.publish(f"{number}/a", lambda file: file.write(b"x"))
    assert leftovers(cache.root) == []
