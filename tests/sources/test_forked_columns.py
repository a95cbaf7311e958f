"""Do forked processes read columns while threads of the parent read them, too?  A child does it all, so that a deadlock ends."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

CHILD = """
import json, multiprocessing, os, random, sys, threading
from penstock.cache import Cache
from penstock.sources import open_source
import penstock.sources.columnar as columnar
columnar.SLICE_BYTES = 2000  # many small slices: the cache's lock is taken all the time

source = open_source(sys.argv[1], cache=Cache.temporary(), cache_bytes=20_000)
expected = [{"row": row, "text": f"row {row} " * (row % 9)} for row in range(2000)]
stop = threading.Event()

def busy(seed):
    chance = random.Random(seed)
    while not stop.is_set():
        row = chance.randrange(2000)
        assert source[row] == expected[row]
        list(source.records(row, min(row + 50, 2000)))

def work(seed):
    chance = random.Random(seed)
    rows = [chance.randrange(2000) for _ in range(20)]
    good = all(source[row] == expected[row] for row in rows)
    start = chance.randrange(1500)
    return good and list(source.records(start, start + 400)) == expected[start : start + 400]

threads = [threading.Thread(target=busy, args=(seed,)) for seed in range(3)]
for thread in threads:
    thread.start()
context = multiprocessing.get_context("fork")
results = []
for round in range(6):
    with context.Pool(3) as pool:
        results += pool.map(work, range(round * 6, round * 6 + 6))
stop.set()
for thread in threads:
    thread.join()
whole = list(source) == expected
print(json.dumps([results.count(True), len(results), whole]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_forks_read_while_threads_read(kind: str, tmp_path: Path) -> None:
    table = pa.table(
        {"row": range(2000), "text": [f"row {row} " * (row % 9) for row in range(2000)]}
    )
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=500)
    else:
        make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with make(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip() == "[36, 36, true]"
