"""Indexes, unpacked text and spooled chunks in the cache that are not what was written."""

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.sources import RowAccess, open_source
from penstock.sources.sums import BLOCK, Summed, damaged, from_file, to_file
from penstock.sources.verify import verify_files

ROWS = [{"row": row, "text": "x" * (row % 50)} for row in range(12_000)]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write(folder: Path, kind: str) -> Callable[[Cache], RowAccess]:
    """How to open 12,000 rows of which the cache keeps something."""
    if kind == "iterable":
        return lambda cache: open_source(lambda: iter(ROWS), cache=cache, name="rows", version=1)
    path = folder / {"lines": "a.jsonl", "compressed": "a.jsonl.gz", "table": "a.csv", "text": "a.txt"}[kind]
    table = "row,text\n" + "".join(f"{row['row']},{row['text']}\n" for row in ROWS)
    content = {"compressed": gzip.compress(TEXT), "table": table.encode()}
    path.write_bytes(content.get(kind, TEXT))
    return lambda cache: open_source(path, cache=cache)


KEPT = [
    ("lines", "offsets/index"),
    ("table", "offsets/index"),
    ("text", "offsets/index"),
    ("compressed", "spools"),
    ("compressed", "offsets/index"),
    ("iterable", "iterables"),
]


def kept(cache: Cache, below: str) -> list[Path]:
    return [cache.path(entry.name) for entry in cache.entries(below) if entry.num_bytes]


@pytest.mark.parametrize(("kind", "below"), KEPT)
def test_flips_in_what_the_cache_keeps_never_give_other_rows(tmp_path: Path, kind: str, below: str) -> None:
    cache = Cache(tmp_path / "cache")
    make = write(tmp_path, kind)
    expected = list(make(cache))
    chance = random.Random(kind)
    for path in kept(cache, below):
        whole = path.read_bytes()
        for _ in range(15):
            flipped = bytearray(whole)
            flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
            path.write_bytes(flipped)
            try:
                assert list(make(Cache(tmp_path / "cache"))) == expected
            except SourceError as error:
                assert kind == "iterable" and path.name in str(error)
            path.write_bytes(whole)


def test_a_flip_in_a_small_chunk_of_a_spooled_stream_is_noticed(tmp_path: Path) -> None:
    def make() -> RowAccess:
        rows = [{"row": row} for row in range(10)]
        return open_source(lambda: iter(rows), cache=Cache(tmp_path / "cache"), name="few", version=1)

    assert len(list(make())) == 10
    (chunk,) = kept(Cache(tmp_path / "cache"), "iterables")
    chunk.write_bytes(chunk.read_bytes().replace(b"3", b"4"))
    for read in (list, lambda source: source.digest(0, 10), lambda source: source[3]):
        with pytest.raises(SourceError, match="not what was written, by the digest in its name"):
            read(make())


def test_unpacked_text_that_was_cut_at_a_line_is_unpacked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = write(tmp_path, "compressed")
    make(Cache(tmp_path / "cache"))
    (text,) = [path for path in kept(Cache(tmp_path / "cache"), "spools") if path.suffix == ".text"]
    text.write_bytes(b"".join(text.read_bytes().splitlines(keepends=True)[:6_000]))
    assert list(make(Cache(tmp_path / "cache"))) == ROWS
    assert "it is unpacked again" in caplog.text


@pytest.mark.parametrize(("kind", "below"), KEPT)
def test_verify_all_reads_indexes_and_spools_and_names_the_damaged_file(tmp_path: Path, kind: str, below: str) -> None:
    cache = Cache(tmp_path / "cache")
    list(write(tmp_path, kind)(cache))
    assert [file for file in verify_files(cache) if file.problem] == []
    command = [sys.executable, "-m", "penstock", "verify", "--all", "--cache-dir", str(cache.root)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0 and "sources: whole" in run.stdout
    path = max(kept(cache, below), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    (found,) = [file for file in verify_files(cache) if file.problem]
    assert str(path) in str(found.problem)
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1 and path.name in run.stdout.replace("\n", "")


def test_a_large_file_is_checked_in_some_blocks_at_open_and_in_all_of_them_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as out:
        summed = Summed(out)
        for number in range(256):
            summed.write(bytes([number]) * (BLOCK // 2))
        sums = summed.sums()
    data = bytearray(path.read_bytes())
    size = len(data)

    def read(start: int, stop: int) -> bytes:
        return bytes(data[start:stop])

    assert size == 128 * BLOCK and damaged(read, size, sums) is None and damaged(read, size, sums, full=True) is None
    last = size // BLOCK - 1
    found = {}
    for block in (0, 1, 2, last):
        data[block * BLOCK + 5] ^= 1
        assert f"bytes {block * BLOCK}.." in str(damaged(read, size, sums, full=True))
        found[block] = damaged(read, size, sums) is not None
        data[block * BLOCK + 5] ^= 1
    assert found[0] and found[last] and not (found[1] and found[2])
    assert damaged(read, size - 1, sums) is not None
    assert from_file(to_file(size, sums), size) == sums and from_file(to_file(size, sums), size - 1) is None
