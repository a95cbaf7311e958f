"""Is a compressed file the file that was compressed, and is one that is not whole always refused?"""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock.sources.compressed as compressed
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.sources import open_source

NewFolder = Callable[[], Path]
Compress = Callable[[bytes], bytes]


def zstd(content: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(content)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


COMPRESS: dict[str, Compress] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}
SUFFIXES = pytest.mark.parametrize("suffix", COMPRESS)

RECORDS = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.integers() | st.text(max_size=20), max_size=3),
    max_size=20,
)


def as_csv(records: list[dict[str, Any]]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerows([["row"], *([json.dumps(record)] for record in records)])
    return out.getvalue().encode()


SHAPES: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    ".jsonl": lambda records: "".join(json.dumps(record) + "\n" for record in records).encode(),
    ".json": lambda records: json.dumps(records).encode(),
    ".csv": as_csv,
    ".txt": lambda records: "".join(json.dumps(record) + "\n" for record in records).encode(),
}


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80
)
@given(
    records=RECORDS,
    suffix=st.sampled_from(list(COMPRESS)),
    shape=st.sampled_from(list(SHAPES)),
    cuts=st.lists(st.integers(0, 500), max_size=3),
    read=st.sampled_from([1, 7, 1 << 16]),
    piece=st.sampled_from([1, 5, 1 << 20]),
)
def test_a_compressed_file_reads_like_the_plain_one(
    new_folder: NewFolder,
    monkeypatch: pytest.MonkeyPatch,
    records: list[Any],
    suffix: str,
    shape: str,
    cuts: list[int],
    read: int,
    piece: int,
) -> None:
    monkeypatch.setattr(compressed, "_READ", read)
    monkeypatch.setattr(compressed, "_PIECE", piece)
    folder = new_folder()
    content = SHAPES[shape](records)
    edges = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    members = [COMPRESS[suffix](content[start:stop]) for start, stop in pairwise(edges)]
    (folder / f"a{shape}").write_bytes(content)
    (folder / f"a{shape}{suffix}").write_bytes(b"".join(members))
    cache = Cache(folder / "cache")
    plain = open_source(folder / f"a{shape}", cache=cache)
    packed = open_source(folder / f"a{shape}{suffix}", cache=cache)
    assert list(packed) == list(plain)
    assert list(packed[::-2]) == list(plain[::-2])
    assert packed.digest(0, len(packed)) == plain.digest(0, len(plain))
    places = [(plain.locate(row).line, plain.locate(row).byte) for row in range(len(plain))]
    assert [
        (packed.locate(row).line, packed.locate(row).byte) for row in range(len(packed))
    ] == places


def refuse(path: Path, content: bytes, cache: Cache) -> str:
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        open_source(path, cache=cache)
    assert str(caught.value).startswith(f"{path}: not a complete {path.suffix} stream, after ")
    assert "download or make the file again" in str(caught.value)
    return str(caught.value)


LINES = b"".join(b'{"row": %d, "text": "some more text"}\n' % row for row in range(20))


@SUFFIXES
def test_a_stream_cut_anywhere_is_refused(new_folder: NewFolder, suffix: str) -> None:
    folder = new_folder()
    cache = Cache(folder / "cache")
    one = COMPRESS[suffix](LINES)
    for cut in range(len(one)):
        refuse(folder / f"a.jsonl{suffix}", one[:cut], cache)
    two = one + one
    for cut in range(len(one) + 1, len(two)):
        refuse(folder / f"a.jsonl{suffix}", two[:cut], cache)
    assert not list(cache.entries("memo/unpacked"))
    (folder / f"a.jsonl{suffix}").write_bytes(two)
    assert len(open_source(folder / f"a.jsonl{suffix}", cache=cache)) == 40


@SUFFIXES
def test_garbage_is_refused(new_folder: NewFolder, suffix: str) -> None:
    folder = new_folder()
    cache = Cache(folder / "cache")
    whole = COMPRESS[suffix](LINES)
    for tail in (b"\0", b"\0" * 4, b"x", b"garbage behind the end", LINES):
        refuse(folder / f"a.jsonl{suffix}", whole + tail, cache)
    refuse(folder / f"a.jsonl{suffix}", LINES, cache)  # never was compressed
    refuse(folder / f"a.jsonl{suffix}", b"", cache)
    for other in COMPRESS:
        if other != suffix:
            refuse(folder / f"a.jsonl{suffix}", COMPRESS[other](LINES), cache)


@pytest.mark.parametrize(
    "suffix", [".gz", ".bz2", ".xz"]
)  # a frame of zstd has a checksum only if its writer wanted one
def test_a_damaged_stream_is_refused(new_folder: NewFolder, suffix: str) -> None:
    folder = new_folder()
    whole = COMPRESS[suffix](LINES)
    for place in range(20, len(whole) - 1, 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        refuse(folder / f"a.jsonl{suffix}", bytes(damaged), Cache(folder / "cache"))


@SUFFIXES
def test_the_second_open_does_not_expand_again(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](LINES))
    assert len(open_source(path, cache=cache)) == 20
    moved = tmp_path / f"b.jsonl{suffix}"
    moved.write_bytes(path.read_bytes())
    monkeypatch.setattr(compressed, "_expand", lambda *_: pytest.fail("expanded again"))
    assert open_source(path, cache=cache)[19]["row"] == 19
    assert open_source(moved, cache=cache)[19]["row"] == 19  # the same content elsewhere


def test_a_file_of_the_same_name_size_and_time_is_noticed(tmp_path: Path, cache: Cache) -> None:
    def stored(content: bytes) -> bytes:
        packer = zlib.compressobj(level=0, wbits=31)
        return packer.compress(content) + packer.flush()

    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(stored(b'{"a": 1}\n'))
    before = path.stat()
    assert list(open_source(path, cache=cache)) == [{"a": 1}]
    path.write_bytes(stored(b'{"a": 2}\n'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert list(open_source(path, cache=cache)) == [{"a": 2}]


def test_a_compressed_file_that_changes_while_open_is_refused(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES))
    source = open_source(path, cache=cache)
    with path.open("ab") as file:
        file.write(gzip.compress(LINES))
    for read in (lambda: list(source), lambda: source[0], lambda: source.digest(0, 1)):
        with pytest.raises(SourceChanged, match=r"a\.jsonl\.gz: changed while open"):
            read()


def test_a_bad_row_is_named_by_the_compressed_file_and_the_line_of_its_text(
    tmp_path: Path, cache: Cache
) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd(b'{"a": 1}\n\n{"a": \n'))
    with pytest.raises(BadRecord) as caught:
        list(open_source(path, cache=cache))
    assert str(caught.value).startswith(f"{path}:3: not JSON")


@SUFFIXES
def test_a_bomb_stops_at_the_limit(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(compressed, "_GRACE", 1 << 16)
    path = tmp_path / f"bomb.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"\n" * (8 << 20)))
    size = path.stat().st_size
    assert size * 200 < 8 << 20
    limit = max(1 << 16, size * 100)
    message = f"{path}: {size:,} bytes expand to more than {limit:,}; if it is not a decompression bomb, raise max_expansion (now 100)"
    with pytest.raises(SourceError) as caught:
        open_source(path, cache=cache)
    assert str(caught.value) == message
    assert not list(cache.entries("memo/unpacked"))
    assert len(open_source(path, cache=cache, max_expansion=1_000_000)) == 0


@pytest.mark.soak
def test_memory_stays_bounded_while_a_bomb_is_expanded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.txt.gz"
    packer = zlib.compressobj(level=9, wbits=31)
    with path.open("wb") as file:
        for _ in range(512):
            file.write(packer.compress(bytes(1 << 20)))
        file.write(packer.flush())
    script = f"""
import resource, sys
from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.sources import open_source
try:
    open_source({str(path)!r}, cache=Cache({str(tmp_path / "cache")!r}))
except SourceError as error:
    assert "max_expansion" in str(error), error
    sys.exit(17)
"""
    # address space, not resident memory: whatever is asked for beyond it fails at once
    limit = 1 << 30
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 17, result.stderr
