"""When the disk fails, is there one line that says so, is nothing half there, and does the next run complete?"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.policy import SOAK

from .builders import (
    STRACE,
    CacheFolder,
    Call,
    Outcome,
    Server,
    Yard,
    mutating_calls,
    traced,
    verified,
)

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EACCES", "EROFS", "EMFILE", "EINTR")
# What each call can say; the others are not in its manual page.
POSSIBLE = {
    "write": ("ENOSPC", "EDQUOT", "EIO", "EINTR"),
    "fsync": ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EINTR"),
    "openat": ERRORS,
    "mkdir": ("ENOSPC", "EDQUOT", "EIO", "EACCES", "EROFS", "EINTR"),
    "link": ("ENOSPC", "EDQUOT", "EIO", "EACCES", "EROFS", "EINTR"),
    "rename": ("ENOSPC", "EDQUOT", "EIO", "EACCES", "EROFS", "EINTR"),
}
POSSIBLE |= {
    "mkdirat": POSSIBLE["mkdir"],
    "linkat": POSSIBLE["link"],
    "pwrite64": POSSIBLE["write"],
}
POSSIBLE |= {"renameat": POSSIBLE["rename"], "renameat2": POSSIBLE["rename"]}
REASONS = {
    "ENOSPC": "No space left on device",
    "EDQUOT": "Disk quota exceeded",
    "EIO": "Input/output error",
    "EACCES": "Permission denied",
    "EROFS": "Read-only file system",
    "EMFILE": "Too many open files",
}
RUNS = 10**6 if SOAK else 28
NUM_FILES = 2
SPREAD = 4  # files that one run opens and another does not

needs_strace = pytest.mark.skipif(
    STRACE is None, reason="strace is not installed: failing system calls not tested"
)


def is_needed(call: Call) -> bool:
    """Whether a store cannot be right without this call; a lease, or the use of a file noted down, it can do without."""
    return "/shards" in call.text or "/stores" in call.text


def check(cache: CacheFolder, outcome: Outcome, whole: dict[str, str], what: str) -> None:
    """One line with path and reason, nothing half, and the next run completes."""
    if outcome.status:
        lines = outcome.error.splitlines()
        assert outcome.status == 1 and len(lines) == 1, f"{what}: {outcome}"
        assert str(cache.root) in lines[0], f"{what}: {lines[0]}"
    else:
        assert cache.published() == whole, what
    assert cache.published().items() <= whole.items(), f"{what}: half a file under a final name"
    again = cache.prepare()
    assert (again.status, again.error) == (0, ""), f"{what}: {again}"
    assert cache.published() == whole and not verified(cache), what


def some(pairs: list[tuple[Call, str]], count: int) -> list[tuple[Call, str]]:
    """About `count` pairs spread over all, so that every error has its turn."""
    step = max(1, -(-len(pairs) // count))
    step += step % 2 == 0 or step % 7 == 0
    return pairs[step // 2 :: step]


@needs_strace
def test_every_call_may_fail(server: Server, memory_path: Path, tokenizer_path: Path) -> None:
    yard = Yard(server, memory_path, tokenizer_path, num_files=NUM_FILES)
    reference = yard.cache()
    calls = [call for call in mutating_calls(reference) if call.name in POSSIBLE]
    whole = reference.published()
    assert len(whole) == NUM_FILES + 2 and sum(map(is_needed, calls)) > 15
    pairs = [(call, error) for call in calls for error in POSSIBLE[call.name]]
    needed, others = (
        [pair for pair in pairs if is_needed(pair[0]) == want] for want in (True, False)
    )
    last_opened = max(call.number for call in calls if call.name == "openat")
    tried, num_needed = set(), 0
    for call, error in [*some(needed, RUNS // 2), *some(others, RUNS // 2)]:
        cache = yard.cache()
        inject = f"inject={call.name}:error={error}:when={call.number}"
        with traced(cache, "-e", f"trace={call.name}", "-e", inject) as builder:
            outcome = builder.wait()
        failed = [
            line
            for line in Path(f"{cache.root}.trace").read_text().splitlines()
            if "(INJECTED)" in line
        ]
        if not failed:
            # modules and threads open a file more or less: the last ones of the reference may be too many
            is_among_the_last = last_opened - call.number < SPREAD
            assert call.name == "openat" and is_among_the_last, f"{error} at {call} not reached"
            assert (outcome.status, outcome.error) == (0, ""), f"{call}: {outcome}"
            cache.remove()
            continue
        what = f"{error} at {call}: {failed[0][:200]}"
        tried.add((call.name, error))
        # What a process opens before its work, by modules and threads, may differ by a call: what counts is the one that failed.
        met = Call(call.name, call.number, failed[0])
        if error == "EINTR":
            assert (outcome.status, outcome.error) == (0, ""), f"{what}: {outcome}"
        elif is_needed(met) and (call.name != "openat" or "O_CREAT" in met.text):
            num_needed += 1
            assert outcome.status == 1 and REASONS[error] in outcome.error, f"{what}: {outcome}"
        check(cache, outcome, whole, what)
        cache.remove()
    assert len({error for _, error in tried}) >= 5 and len({name for name, _ in tried}) >= 4, tried
    assert num_needed >= 5


@pytest.mark.soak
@needs_strace
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_disk_that_stays_bad(
    server: Server, memory_path: Path, tokenizer_path: Path, error: str
) -> None:
    """Not one call fails but all of a kind, and the cleaning up as well."""
    yard = Yard(server, memory_path, tokenizer_path, num_files=NUM_FILES)
    reference = yard.cache()
    assert reference.prepare().status == 0
    cache = yard.cache()
    broken = "fsync,unlinkat,unlink"
    with traced(cache, "-e", f"trace={broken}", "-e", f"inject={broken}:error={error}") as builder:
        outcome = builder.wait()
    assert outcome.status == 1 and REASONS[error] in outcome.error
    check(cache, outcome, reference.published(), f"every fsync is {error}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """120 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=120k,mode=0700", "none", str(place)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("num_proc", [1, 2])
def test_a_disk_that_is_really_full(
    server: Server, memory_path: Path, tokenizer_path: Path, small_disk: Path, num_proc: int
) -> None:
    yard = Yard(server, memory_path, tokenizer_path, num_files=8)
    reference = yard.cache()
    assert reference.prepare().status == 0
    whole = reference.published()
    cache = CacheFolder(yard, small_disk / "cache")
    filler = small_disk / "filler"
    free = os.statvfs(small_disk).f_bavail * 4096
    filler.write_bytes(bytes(free - 48 * 1024))  # room for a few shards, their notes and folders
    outcome = cache.prepare(num_proc=num_proc)
    assert (
        outcome.status == 1
        and REASONS["ENOSPC"] in outcome.error
        and str(cache.root) in outcome.error
    )
    assert len(outcome.error.splitlines()) == 1
    assert cache.published().items() <= whole.items() and not cache.leftovers()
    kept = len(cache.shards())
    assert 0 < kept < 8
    filler.unlink()
    before = len(cache.begun())
    again = cache.prepare(num_proc=num_proc)
    assert (again.status, again.error) == (0, "") and len(cache.begun()) - before == 8 - kept
    assert cache.published() == whole and not verified(cache)


def test_a_cache_that_may_not_be_written_to(
    server: Server, memory_path: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    """A file stands where the folder should be."""
    yard = Yard(server, memory_path, tokenizer_path, num_files=NUM_FILES)
    root = memory_path / "taken"
    root.write_text("")
    outcome = CacheFolder(yard, root).prepare()
    assert (
        outcome.status == 1 and str(root) in outcome.error and len(outcome.error.splitlines()) == 1
    )
    assert root.read_text() == ""
    root.unlink()
    assert CacheFolder(yard, root).prepare().status == 0


@pytest.mark.soak
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
def test_signals_do_not_disturb(server: Server, memory_path: Path, tokenizer_path: Path) -> None:
    """A handler that runs again and again, as profilers and progress bars have them, interrupts calls but not the work."""
    yard = Yard(server, memory_path, tokenizer_path, num_files=NUM_FILES)
    outcome = yard.cache().prepare(timer=0.0005)
    assert (outcome.status, outcome.error) == (0, "")
