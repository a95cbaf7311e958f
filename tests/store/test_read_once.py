"""Processes that prepare one file on one cache read it twice in all: once for its lines, once for its shards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import penstock as ps
from penstock.cache import Cache
from penstock.store.digests import forget_digests, recall_digest, remember_digest

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
    # a large file also loads fastokens, and each process reads the shards that the others made
    assert 1.9 * size < sum(read - base for _, read in found) < 3.5 * size
    store = ps.prepare(
        str(large),
        tokenizer=str(tokenizer_path),
        template="text",
        cache_dir=tmp_path / "other",
        num_proc=1,
    )
    assert store.fingerprint == found[0][0]  # the same bytes as alone
    assert len(store) == 4000


def test_a_damaged_shard_that_no_manifest_names_is_made_again(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    path, cache = tmp_path / "data.jsonl", tmp_path / "cache"
    path.write_text(
        "".join(json.dumps({"text": f"row {row} the quick brown fox"}) + "\n" for row in range(100))
    )
    [(name, _)] = prepare(path, tokenizer_path, cache, 1)
    for manifest in (cache / "stores").rglob("*.json"):
        manifest.unlink()
    (shard,) = (cache / "shards").rglob("*.arrow")
    good = shard.read_bytes()
    damaged = bytearray(good)
    damaged[len(good) // 2] ^= 1
    shard.write_bytes(damaged)
    [(again, _)] = prepare(path, tokenizer_path, cache, 1)
    assert again == name and shard.read_bytes() == good


def test_digests_of_single_ranges_are_forgotten_after_a_day(tmp_path: Path) -> None:
    """They would become as many as all shards that were ever made."""
    cache = Cache(tmp_path)
    for digest in ("old", "new"):
        remember_digest(0, 1, digest, digest, cache)
        if digest == "old":
            (file,) = (path for path in (tmp_path / "memo").rglob("*") if path.is_file())
            os.utime(file, (1, cache.now() - 90_000))
    forget_digests(cache)
    assert recall_digest(0, 1, "old", cache) is None
    assert recall_digest(0, 1, "new", cache) == "new"
