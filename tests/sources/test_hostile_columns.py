"""Does a cut, flipped or invented file of columns ever do worse than one line of error?  Children read, so that a crash is seen."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from tests.policy import SOAK

CHILD = """
import faulthandler, json, sys
faulthandler.enable()
from pathlib import Path
from penstock.cache import Cache
from penstock.errors import PenstockError
from penstock.sources import open_source

cache = Cache(sys.argv[1])
for path in sys.stdin.read().splitlines():
    try:
        if Path(path).is_dir():
            source = open_source([path], cache=cache)
        else:
            source = open_source(path, cache=cache)
        rows = len(list(source))
        if rows:
            source[rows - 1]
        print(json.dumps([path, "read", ""]), flush=True)
    except PenstockError as error:
        print(json.dumps([path, "refused", str(error)]), flush=True)
    except BaseException as error:
        print(json.dumps([path, "escaped", repr(error)]), flush=True)
"""

NUM_CUTS = 30 if SOAK else 10
NUM_FLIPS = 150 if SOAK else 37


def outcomes(paths: list[Path], cache: Path) -> dict[str, tuple[str, str]]:
    """Path → (read | refused | escaped, message), from a child that must live to the end."""
    result = subprocess.run(
        [sys.executable, "-c", CHILD, str(cache)],
        input="\n".join(map(str, paths)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found = {
        path: (outcome, message)
        for path, outcome, message in map(json.loads, result.stdout.splitlines())
    }
    assert len(found) == len(paths)
    return found


def table() -> pa.Table:
    rows = range(60)
    return pa.table(
        {
            "row": pa.array(rows, type=pa.int64()),
            "text": [f"some text of row {row}" for row in rows],
            "word": pa.array([f"w{row % 4}" for row in rows]).dictionary_encode(),
            "messages": [[{"role": "user", "content": "x" * row}] * (row % 3) for row in rows],
        }
    )


def write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, table().schema) as writer:
        writer.write_table(table(), max_chunksize=20)


def write_file(path: Path) -> None:
    with pa.ipc.new_file(path, table().schema) as writer:
        writer.write_table(table(), max_chunksize=20)


def write_chunk(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra penstock[torch] is not installed")
    columns = {name: torch.arange(600).reshape(60, 10) for name in ("a", "b")}
    torch.save((columns, *(torch.arange(60) for _ in range(4))), path)


KINDS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "parquet": (".parquet", lambda path: pq.write_table(table(), path, row_group_size=20)),
    "stream": (".arrow", write_stream),
    "file": (".arrow", write_file),
    "feather": (
        ".feather",
        lambda path: feather.write_feather(table(), str(path), compression="lz4", chunksize=20),
    ),
    "pt": (".pt", write_chunk),
}
EVERY_KIND = [
    pytest.param(kind, marks=pytest.mark.extra("formats")) if kind == "pt" else kind
    for kind in KINDS
]


def place(kind: str, folder: Path, name: str, content: bytes) -> Path:
    """A file to open, or for chunks the folder around it."""
    suffix = KINDS[kind][0]
    if kind != "pt":
        (folder / f"{name}{suffix}").write_bytes(content)
        return folder / f"{name}{suffix}"
    (folder / name).mkdir()
    (folder / name / "0.pt").write_bytes(content)
    metadata = {"total_samples": 60, "batch_files": [{"path": "0.pt", "samples": 60}]}
    (folder / name / "metadata.json").write_text(json.dumps(metadata))
    return folder / name


def whole(kind: str, folder: Path) -> bytes:
    path = folder / f"whole{KINDS[kind][0]}"
    KINDS[kind][1](path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_file_cut_anywhere_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    content = whole(kind, tmp_path)
    sizes = sorted(
        {number * len(content) // NUM_CUTS for number in range(NUM_CUTS)}
        | {1, 4, 8, len(content) - 1}
    )
    paths = [place(kind, tmp_path, f"cut-{size}", content[:size]) for size in sizes]
    good = place(kind, tmp_path, "good", content)
    found = outcomes([*paths, good], tmp_path / "cache")
    assert found[str(good)] == ("read", "")
    for path in paths:
        outcome, message = found[str(path)]
        assert outcome == "refused" and message.startswith(str(path)) and "\n" not in message, (
            path,
            outcome,
            message,
        )


def boundaries(content: bytes) -> list[int]:
    """Where messages of a stream end: 8 bytes of prefix, the header, and a body whose length pyarrow knows."""
    reader = pa.BufferReader(content)
    ends = []
    while reader.tell() < len(content) - 8:
        pa.ipc.read_message(reader)
        ends.append(reader.tell())
    return ends


def test_a_stream_cut_between_two_messages_is_refused(tmp_path: Path) -> None:
    content = whole("stream", tmp_path)
    ends = boundaries(content)
    assert len(ends) == 5  # schema, dictionary, three batches
    found = outcomes(
        [place("stream", tmp_path, f"cut-{end}", content[:end]) for end in ends], tmp_path / "cache"
    )
    for outcome, message in found.values():
        assert outcome == "refused" and "no end mark" in message
    more = place("stream", tmp_path, "more", content + content)
    ((outcome, message),) = outcomes([more], tmp_path / "cache").values()
    assert outcome == "refused" and "bytes follow the end of the stream" in message


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_flipped_bytes_never_crash_and_never_escape(kind: str, tmp_path: Path) -> None:
    content = whole(kind, tmp_path)
    chance = random.Random(kind)
    paths = []
    for number in range(NUM_FLIPS):
        changed = bytearray(content)
        # half of them in the last part, where footers are
        begin = len(content) * 3 // 4 if number % 2 else 0
        for _ in range(chance.choice([1, 1, 4])):
            changed[chance.randrange(begin, len(content))] = chance.randrange(256)
        paths.append(place(kind, tmp_path, f"flip-{number}", bytes(changed)))
    found = outcomes(paths, tmp_path / "cache")
    assert {path: result for path, result in found.items() if result[0] == "escaped"} == {}
    assert {
        message for outcome, message in found.values() if outcome == "refused" and "\n" in message
    } == set()
    assert any(outcome == "refused" for outcome, _ in found.values())  # the flips were felt


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_is_no_such_file_is_refused(kind: str, tmp_path: Path) -> None:
    contents = [
        b"",
        b"\0" * 100,
        b"\xff" * 100,
        b"PAR1",
        b"PAR1" * 30,
        b"ARROW1",
        b"ARROW1\0\0" * 9 + b"ARROW1",
        b"{}",
    ]
    contents += [
        b"\xff\xff\xff\xff\0\0\0\0" * 2,
        b"PK\x05\x06" + bytes(18),
        random.Random(0).randbytes(5000),
    ]
    if kind == "pt":
        whole(kind, tmp_path)  # skips where there is no torch
    paths = [
        place(kind, tmp_path, f"other-{number}", content) for number, content in enumerate(contents)
    ]
    for path, (outcome, message) in outcomes(paths, tmp_path / "cache").items():
        assert outcome == "refused" and message.startswith(path) and "\n" not in message, (
            path,
            outcome,
            message,
        )
