"""A flipped byte of a store is found before it is trained: each file is compared with its digest at its first map in a process."""

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store import Store
from penstock.store import manifest as manifests
from penstock.store.manifest import lengths_name
from penstock.store.shards import shard_name
from tests.policy import SOAK


def prepared(folder: Path, *, rows: int = 600) -> Store:
    path = folder / "ids.jsonl"
    if not path.exists():
        chance = random.Random(3)
        lines = [
            {"input_ids": chance.choices(range(900), k=chance.randint(4, 60))} for _ in range(rows)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options: dict[str, Any] = {"template": "pretokenized", "vocab_size": 1000, "num_proc": 1}
    return ps.prepare(path, cache_dir=folder / "cache", progress="none", **options)


def flip(path: Path, place: int) -> None:
    """Flip one bit, in a new file: the old one may be mapped by this process."""
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.unlink()
    path.write_bytes(data)


def delivered(store: Store) -> list[np.ndarray]:
    loader = ps.Loader(store, batch_size=2, max_length=64, output="numpy", prefetch=0)
    return [batch["input_ids"] for batch in loader]


def token_place(store: Store, path: Path) -> int:
    """Where in the file the middle of the ids stands."""
    ids = store.tokens(0).input_ids.tobytes()
    return path.read_bytes().index(ids) + len(ids) // 2


def test_a_loader_refuses_a_store_with_a_flipped_token_before_it_delivers_one(
    tmp_path: Path,
) -> None:
    """A12: flipped token bytes in a shard were found by `penstock verify` only."""
    store = prepared(tmp_path)
    path = store.cache.path(shard_name(store._keys[0]))
    flip(path, token_place(store, path))
    fresh = prepared(tmp_path)  # a hit: sizes and header are right
    assert fresh.fingerprint == store.fingerprint
    with pytest.raises(StoreError, match=r"\.arrow: damaged .*pass refresh=True") as caught:
        delivered(fresh)
    assert str(path) in str(caught.value) and "penstock verify" in str(caught.value)
    with pytest.raises(
        StoreError, match="damaged"
    ):  # and again: a refused file is not taken as checked
        delivered(prepared(tmp_path))


def test_every_flip_of_a_shard_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    store = prepared(tmp_path, rows=60)
    expected = [sample.input_ids.tolist() for sample in store]
    path = store.cache.path(shard_name(store._keys[0]))
    whole = path.read_bytes()
    chance = random.Random(5)
    count = len(whole) if SOAK else 60
    for place in chance.sample(range(len(whole)), count):
        flip(path, place)
        with pytest.raises(StoreError, match=r"damaged|cannot be read"):
            [sample.input_ids.tolist() for sample in prepared(tmp_path)]
        path.write_bytes(whole)
    assert [sample.input_ids.tolist() for sample in prepared(tmp_path)] == expected


def test_a_file_of_lengths_that_was_changed_is_refused(tmp_path: Path) -> None:
    store = prepared(tmp_path)
    path = store.cache.path(lengths_name(store.fingerprint))
    flip(path, 40)
    with pytest.raises(StoreError, match=r"\.lengths: damaged"):
        delivered(prepared(tmp_path))


def test_a_large_file_of_lengths_is_compared_with_each_shard_that_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading gigabytes of lengths would delay the start of a run, so shards and lengths are compared piece by piece."""
    monkeypatch.setattr(manifests, "_CHECKED_BYTES", 100)
    store = prepared(tmp_path)
    assert len(delivered(store))
    path = store.cache.path(lengths_name(store.fingerprint))
    flip(path, 40)
    with pytest.raises(StoreError, match="it lists other lengths than the samples of a shard have"):
        delivered(prepared(tmp_path))


def test_a_file_is_compared_once_in_a_process_and_again_when_it_was_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = prepared(tmp_path)
    delivered(store)
    path = store.cache.path(shard_name(store._keys[0]))
    place = token_place(store, path)
    status = path.stat()
    read = []
    monkeypatch.setattr(
        "penstock.store.shards._is_whole", lambda data, _: read.append(len(data)) or False
    )
    delivered(prepared(tmp_path))
    assert not read  # another Store and another Loader of this process: the file is known
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(StoreError, match="damaged"):
        delivered(prepared(tmp_path))
    assert read == [status.st_size]
    monkeypatch.undo()
    flip(path, place)
    monkeypatch.setenv("PENSTOCK_VERIFY", "0")
    assert delivered(prepared(tmp_path))


@pytest.mark.parametrize(("given", "mode"), [("", "first"), ("1", "always"), ("0", "never")])
def test_the_environment_chooses_when_shards_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, mode: str
) -> None:
    monkeypatch.setenv("PENSTOCK_VERIFY", given)
    assert Cache(tmp_path).verify == mode
    assert Cache(tmp_path, verify=True).verify == "always"
    with pytest.raises(StoreError, match="verify is 'sometimes', expected one of first, always"):
        Cache(tmp_path, verify="sometimes")
