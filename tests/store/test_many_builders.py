"""Eight processes prepare one store at once: is there no error, one content, and little double work?"""

import time
from pathlib import Path

import pytest

from tests.policy import SOAK

from .builders import Server, Yard, verified

ROUNDS = 50 if SOAK else 3
NUM_FILES = 40
NUM_BUILDERS = 8


@pytest.mark.parametrize("no_flock", [False, True], ids=["flock", "no flock"])
def test_eight_builders_of_one_store(
    server: Server, memory_path: Path, tokenizer_path: Path, no_flock: bool
) -> None:
    yard = Yard(server, memory_path, tokenizer_path, num_files=NUM_FILES, pause=0.02)
    reference = yard.cache()
    assert reference.prepare().status == 0
    whole = reference.published()
    assert len(whole) == NUM_FILES + 2
    for turn in range(
        1 if no_flock and not SOAK else ROUNDS
    ):  # nothing here locks today; that must stay so
        cache = yard.cache()
        server.ask(do="gate")
        builders = [cache.start(no_flock=no_flock) for _ in range(NUM_BUILDERS)]
        server.ask(do="go")
        outcomes = [builder.wait() for builder in builders]
        assert [outcome.error for outcome in outcomes] == [""] * NUM_BUILDERS, f"round {turn}"
        assert [outcome.status for outcome in outcomes] == [0] * NUM_BUILDERS, f"round {turn}"
        assert cache.published() == whole and not cache.leftovers(), f"round {turn}"
        begun = cache.begun()
        assert set(begun) == set(range(NUM_FILES))
        assert len(begun) <= 1.2 * NUM_FILES, (
            f"round {turn}: {len(begun)} shards were made, expected {NUM_FILES}"
        )
        assert verified(cache) == []
        cache.remove()


def test_the_work_of_a_killed_builder_is_taken_over(
    server: Server, memory_path: Path, tokenizer_path: Path
) -> None:
    """Whatever the dead one had claimed, the living ones make it and do not wait."""
    yard = Yard(server, memory_path, tokenizer_path, num_files=12, pause=0.05)
    reference = yard.cache()
    assert reference.prepare().status == 0
    cache = yard.cache()
    first = cache.start(num_proc=2)
    while len(cache.begun()) < 3 and first.is_running():
        time.sleep(0.001)
    others = [cache.start(), cache.start()]
    first.kill()
    first.wait()
    assert [(outcome.status, outcome.error) for outcome in (other.wait() for other in others)] == [
        (0, ""),
        (0, ""),
    ]
    assert cache.published() == reference.published() and not verified(cache)
