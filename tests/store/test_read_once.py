"""Processes that prepare one file on one cache read it twice in all: once for its lines, once for its shards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock.cache import Cache, Owner
from penstock.cache.claims import sweep_claims
from penstock.cache.locks import _owner

SCRIPT = """
import sys
import penstock
store = penstock.prepare(sys.argv[1], tokenizer=sys.argv[2], template="text", cache_dir=sys.argv[3], num_proc=1, progress="none")
counts = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
print(store.fingerprint, counts["rchar"])
"""


def prepare(file: Path, tokenizer: Path, cache: Path, processes: int) -> list[tuple[str, int]]:
    """The fingerprint of the store, and the bytes read, of each of some processes that start at once."""
    command = [sys.executable, "-c", SCRIPT, str(file), str(tokenizer), str(cache)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    answers = [each.communicate()[0].split() for each in started]
    assert all(each.returncode == 0 for each in started)
    return [(answer[-2], int(answer[-1])) for answer in answers]


def test_three_processes_together_read_a_file_twice(tmp_path: Path, tokenizer_path: Path) -> None:
    lines = [
        json.dumps({"text": f"row {row} " + "the quick brown fox " * 400}) + "\n"
        for row in range(4000)
    ]
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    small.write_text(lines[0])
    large.write_text("".join(lines))
    size = large.stat().st_size
    [(_, base)] = prepare(
        small, tokenizer_path, tmp_path / "cache of one row", 1
    )  # Python and its modules
    found = prepare(large, tokenizer_path, tmp_path / "cache", 3)
    assert len({name for name, _ in found}) == 1
    assert (
        1.9 * size < sum(read - base for _, read in found) < 2.5 * size
    )  # a large file also loads fastokens
    store = ps.prepare(
        str(large),
        tokenizer=str(tokenizer_path),
        template="text",
        cache_dir=tmp_path / "other",
        num_proc=1,
    )
    assert store.fingerprint == found[0][0]  # the same bytes as alone
    assert len(store) == 4000


@pytest.mark.parametrize(
    "owner", ["dead", "of another machine, or of this one before it was started again"]
)
def test_what_a_process_published_that_is_not_seen_to_run_is_not_believed(
    tmp_path: Path, tokenizer_path: Path, owner: str
) -> None:
    """A shard of a process that runs here is taken by its word; any other is read, and a damaged one is made again."""
    path, cache = tmp_path / "data.jsonl", tmp_path / "cache"
    path.write_text(
        "".join(json.dumps({"text": f"row {row} the quick brown fox"}) + "\n" for row in range(100))
    )
    [(name, _)] = prepare(path, tokenizer_path, cache, 1)
    for manifest in (cache / "stores").rglob("*.json"):
        manifest.unlink()
    (shard,) = (cache / "shards").rglob("*.arrow")
    good = shard.read_bytes()
    shard.write_bytes(
        good[: len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1 :]
    )
    (result,) = (path for path in (cache / "results").iterdir() if path.is_file())
    if owner != "dead":
        foreign = Owner("0" * 12, 1, 1)
        result.write_text(f"{foreign} {result.read_text().partition(' ')[2]}")
    [(again, _)] = prepare(path, tokenizer_path, cache, 1)
    assert again == name and shard.read_bytes() == good


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", '{"key": "", "num_bytes": 0, "counts": {}, "digest": "", "new": 1}'],
)
def test_a_result_that_cannot_be_read_is_no_result(
    tmp_path: Path, tokenizer_path: Path, text: str
) -> None:
    """Of another version of Penstock, say."""
    path, cache = tmp_path / "data.jsonl", tmp_path / "cache"
    path.write_text('{"text": "the quick brown fox"}\n')
    with subprocess.Popen(["sleep", "60"]) as living:
        try:
            [(name, _)] = prepare(path, tokenizer_path, cache, 1)
            for manifest in (cache / "stores").rglob("*.json"):
                manifest.unlink()
            (result,) = (path for path in (cache / "results").iterdir() if path.is_file())
            result.write_text(f"{_owner(living.pid)} {text}")
            assert [found for found, _ in prepare(path, tokenizer_path, cache, 1)] == [name]
        finally:
            living.kill()


def test_results_are_removed_after_a_day(tmp_path: Path) -> None:
    """Of any writer: they would become as many as all shards that were ever made."""
    cache = Cache(tmp_path)
    names = ["results/old", "results/rows/00/old.json", "results/new", "results/rows/00/new.json"]
    for name in names:
        cache.publish(name, lambda file: file.write(b"1"), hold=False)
    for name in names[:2]:
        os.utime(cache.path(name), (1, cache.now() - 90_000))
    sweep_claims(cache)
    assert [name for name in names if cache.path(name).exists()] == names[2:]
