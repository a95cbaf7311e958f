"""Killed at any moment, is a store never wrong, and is finished work never done again?

PENSTOCK_KILLS=1000 python -m pytest tests/store/test_faults_kill.py -k random -o timeout=7200
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from penstock.cache import Cache
from tests.policy import SOAK

from .builders import STRACE, CacheFolder, Server, Yard, mutating_calls, traced, verified

KILLS = int(os.environ.get("PENSTOCK_KILLS", 100 if SOAK else 12))
STRACED_KILLS = 10**6 if SOAK else 12

needs_strace = pytest.mark.skipif(
    STRACE is None, reason="strace is not installed: kills at chosen system calls not tested"
)


def finish(
    cache: CacheFolder, whole: dict[str, str], num_files: int, what: str, **more: int
) -> None:
    """After a kill: what is published is right, and the next build makes the rest, and only the rest."""
    left = cache.published()
    assert left.items() <= whole.items(), f"{what}: a file under a final name has other bytes"
    before, num_begun = cache.shards(), len(cache.begun())
    outcome = cache.prepare(**more)
    assert (outcome.status, outcome.error) == (0, ""), f"{what}: {outcome}"
    assert cache.published() == whole, what
    after, made = cache.shards(), cache.begun()[num_begun:]
    assert len(made) == len(set(made)) == num_files - len(before), (
        f"{what}: {made} made after {len(before)} were there"
    )
    assert before.items() <= after.items(), f"{what}: a finished shard was replaced"
    assert verified(cache) == [], what


def test_killed_at_random_moments(server: Server, memory_path: Path, tokenizer_path: Path) -> None:
    yard = Yard(server, memory_path, tokenizer_path, num_files=10, pause=0.02)
    uninterrupted = yard.cache()
    assert uninterrupted.prepare(num_proc=2).status == 0
    whole = uninterrupted.published()
    assert len(whole) == 12 and sorted(uninterrupted.begun()) == list(range(10))
    rng = random.Random(7)
    stages = set()
    for kill in range(KILLS):
        cache = yard.cache()
        builder = cache.start(num_proc=2)
        wanted = rng.randrange(
            11
        )  # shards begun; a clock alone would hit the same stage again and again
        while len(cache.begun()) < wanted and builder.is_running():
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        builder.kill()
        assert builder.wait().status in (-signal.SIGKILL, 0)
        stages.add(len(cache.shards()))
        finish(cache, whole, 10, f"kill {kill}", num_proc=2)
        cache.remove()
    assert len(stages) > 3, f"the kills all fell into one stage of the build: {stages}"


@pytest.mark.soak
def test_killed_again_and_again(server: Server, memory_path: Path, tokenizer_path: Path) -> None:
    """A build that never gets more than a moment still comes to its end."""
    yard = Yard(server, memory_path, tokenizer_path, num_files=6, pause=0.02)
    reference = yard.cache()
    assert reference.prepare().status == 0
    cache = yard.cache()
    rng, seconds = random.Random(8), 0.1
    for _ in range(100):
        builder = cache.start(num_proc=2)
        time.sleep(rng.uniform(0.5, 1) * seconds)
        builder.kill()
        if builder.wait().status == 0:
            break
        assert cache.published().items() <= reference.published().items()
        seconds *= 1.1  # a loaded machine may need more than a moment to do anything at all
    finish(cache, reference.published(), 6, "many kills", num_proc=2)
    # What killed processes leave is swept by the next that writes there.  A second name of a finished shard may stay, where the
    # kill fell between its two names, since no process needs to write there again; it goes when the cache is tidied.
    finished = set(cache.shards().values())
    assert {(cache.root / left).stat().st_ino for left in cache.leftovers()} <= finished
    Cache(cache.root).tidy()
    assert not cache.leftovers()


@needs_strace
def test_killed_at_every_change_it_makes_on_disk(
    server: Server, memory_path: Path, tokenizer_path: Path
) -> None:
    yard = Yard(server, memory_path, tokenizer_path, num_files=3)
    reference = yard.cache()
    calls = mutating_calls(reference)
    whole = reference.published()
    assert (
        len(whole) == 5 and {"write", "fsync"} <= {call.name for call in calls} and len(calls) > 30
    )
    step = max(1, -(-len(calls) // STRACED_KILLS))
    for call in calls[step // 2 :: step]:
        cache = yard.cache()
        inject = f"inject={call.name}:signal=SIGKILL:when={call.number}"
        with traced(cache, "-e", f"trace={call.name}", "-e", inject) as builder:
            outcome = builder.wait()
            assert outcome.status == -signal.SIGKILL, f"{call} was not reached: {outcome}"
        finish(cache, whole, 3, f"killed at {call}: {call.text[:200]}")
        cache.remove()
