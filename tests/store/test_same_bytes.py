"""Does the store say the same, byte for byte, for any number of builders and stops?"""

import time
from pathlib import Path

import pytest

from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.sources import concat, open_source
from penstock.store import build
from penstock.templates import TextTemplate, open_tokenizer
from tests.policy import first_in_short_runs

from .builders import ROWS, CacheFolder, Server, Yard


def test_processes_leave_no_trace(server: Server, memory_path: Path, tokenizer_path: Path) -> None:
    yard = Yard(server, memory_path, tokenizer_path, num_files=9)
    found = []
    for num_proc in (1, 2, 3, 8):
        cache = yard.cache()
        assert cache.prepare(num_proc=num_proc).status == 0
        found.append(cache.published())
    assert found[1:] == found[:1] * 3 and len(found[0]) == 11


def test_interruptions_leave_no_trace(
    server: Server, memory_path: Path, tokenizer_path: Path
) -> None:
    yard = Yard(server, memory_path, tokenizer_path, num_files=9, pause=0.02)
    reference, cache = yard.cache(), yard.cache()
    assert reference.prepare().status == 0
    for num_proc, wanted in ((1, 2), (3, 5), (2, 8)):  # by another number of processes each time
        builder = cache.start(num_proc=num_proc)
        while len(set(cache.begun())) < wanted and builder.is_running():
            time.sleep(0.001)
        builder.kill()
        builder.wait()
    assert cache.prepare(num_proc=8).status == 0
    assert cache.published() == reference.published()


@pytest.mark.parametrize("num_proc", first_in_short_runs([2, 1, 3, 8]))
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_the_start_of_processes_leaves_no_trace(
    server: Server, memory_path: Path, tokenizer_path: Path, start_method: str, num_proc: int
) -> None:
    yard = Yard(server, memory_path, tokenizer_path, num_files=9)
    template = TextTemplate(open_tokenizer(tokenizer_path))
    found = []
    for engine in (LocalEngine(1), LocalEngine(num_proc, start_method=start_method, inline=False)):
        folder = yard.cache()
        cache = Cache(folder.root)
        source = concat([open_source(file, cache=cache) for file in sorted(yard.data.iterdir())])
        store = build(source, template, engine=engine, cache=cache)
        assert store.num_shards == 9 and len(store) == 9 * ROWS
        found.append(CacheFolder(yard, folder.root).published())
    assert found[0] == found[1] and len(found[0]) == 11
