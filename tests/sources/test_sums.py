"""Indexes, unpacked text and spooled chunks in the cache that are not what was written."""

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from penstock.cache import Cache
from penstock.cache.checked import BLOCK, fault, load, publish
from penstock.sources import RowAccess, open_source
from penstock.sources.index import verify_files

ROWS = [{"row": row, "text": "x" * (row % 50)} for row in range(12_000)]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write(folder: Path, kind: str) -> Callable[[Cache], RowAccess]:
    """How to open 12,000 rows of which the cache keeps something."""
    if kind == "iterable":
        return lambda cache: open_source(lambda: iter(ROWS), cache=cache, name="rows", version=1)
    path = (
        folder
        / {"lines": "a.jsonl", "compressed": "a.jsonl.gz", "table": "a.csv", "text": "a.txt"}[kind]
    )
    table = "row,text\n" + "".join(f"{row['row']},{row['text']}\n" for row in ROWS)
    content = {"compressed": gzip.compress(TEXT), "table": table.encode()}
    path.write_bytes(content.get(kind, TEXT))
    return lambda cache: open_source(path, cache=cache)


KEPT = [
    ("lines", "memo/index"),
    ("table", "memo/index"),
    ("text", "memo/index"),
    ("compressed", "memo/unpacked"),
    ("compressed", "memo/index"),
    ("iterable", "iterables"),
]


def kept(cache: Cache, below: str) -> list[Path]:
    return [cache.path(entry.name) for entry in cache.entries(below) if entry.num_bytes]


@pytest.mark.parametrize(("kind", "below"), KEPT)
def test_flips_in_what_the_cache_keeps_never_give_other_rows(
    tmp_path: Path, kind: str, below: str
) -> None:
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
            assert list(make(Cache(tmp_path / "cache"))) == expected
            path.write_bytes(whole)


def test_unpacked_text_that_was_cut_at_a_line_is_unpacked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = write(tmp_path, "compressed")
    make(Cache(tmp_path / "cache"))
    (text,) = kept(Cache(tmp_path / "cache"), "memo/unpacked")
    text.write_bytes(b"".join(text.read_bytes().splitlines(keepends=True)[:6_000]))
    assert list(make(Cache(tmp_path / "cache"))) == ROWS
    assert "Penstock makes it again" in caplog.text


@pytest.mark.parametrize(("kind", "below"), KEPT)
def test_verify_all_reads_indexes_and_spools_and_names_the_damaged_file(
    tmp_path: Path, kind: str, below: str
) -> None:
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


def test_a_large_file_is_checked_in_some_blocks_at_open_and_in_all_of_them_by_verify(
    tmp_path: Path,
) -> None:
    def write(out: IO[bytes]) -> str:
        for number in range(256):
            out.write(bytes([number]) * (BLOCK // 2))
        return "value"

    cache = Cache(tmp_path / "cache")
    publish(cache, "spools/large.unpacked", write)
    found = load(cache, "spools/large.unpacked")
    assert found is not None and len(found.payload) == 128 * BLOCK and found.value == "value"
    data = memoryview(bytearray(cache.path("spools/large.unpacked").read_bytes()))
    assert fault(data) is None and fault(data, full=True) is None
    last = 127
    noticed = {}
    for block in (0, 1, 2, last):
        data[block * BLOCK + 5] ^= 1
        assert f"bytes {block * BLOCK}.." in str(fault(data, full=True))
        noticed[block] = fault(data) is not None
        data[block * BLOCK + 5] ^= 1
    assert noticed[0] and noticed[last] and not (noticed[1] and noticed[2])
    assert fault(data[:-1]) is not None and fault(data[1:]) is not None and fault(b"") is not None
    for place in range(128 * BLOCK, len(data), 7):  # digests, value and footer
        data[place] ^= 1
        assert fault(data) is not None
        data[place] ^= 1
