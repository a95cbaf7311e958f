"""A worker dies in the middle of a template's function: is that an error that names the shard, soon, and nothing lost?"""

import time
from pathlib import Path

import pytest

from .builders import Server, Yard, verified


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("death", "words"),
    [("exit", "exit code 9"), ("kill", "killed by signal 9"), ("segfault", "signal 11")],
)
def test_a_dead_worker_is_an_error_that_names_the_shard(
    server: Server, memory_path: Path, tokenizer_path: Path, death: str, words: str
) -> None:
    yard = Yard(server, memory_path, tokenizer_path, num_files=8, pause=0.02)
    reference, cache = yard.cache(), yard.cache()
    assert reference.prepare().status == 0
    builder = cache.start(num_proc=2, death=death)
    while 3 not in cache.begun() and builder.is_running():
        time.sleep(0.001)
    begin = time.monotonic()
    outcome = builder.wait()
    assert time.monotonic() - begin < 20  # seconds on a machine that has other things to do
    assert outcome.status == 1 and words in outcome.error and len(outcome.error.splitlines()) == 1
    assert f"{yard.data}/003.jsonl" in outcome.error, outcome.error
    assert cache.published().items() <= reference.published().items() and not any(
        name.startswith("stores") for name in cache.published()
    )
    num_kept, num_begun = len(cache.shards()), len(cache.begun())
    assert num_kept >= 1
    assert cache.prepare(num_proc=2).status == 0
    assert len(cache.begun()) - num_begun == 8 - num_kept
    assert cache.published() == reference.published() and not verified(cache)
