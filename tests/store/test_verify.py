"""Does `verify` find every damage, and does none ever give a wrong token, or end a process by a signal?"""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import digest
from penstock.store import Store
from penstock.store.manifest import lengths_name, load, manifest_name, map_lengths
from penstock.store.shards import FORMAT_VERSION, Schema, encode_shard, open_shard, shard_name
from penstock.store.verify import verify, verify_all
from tests.policy import SOAK

from .shelves import Numbers, make, records, shard_paths

FLIPS = 5000 if SOAK else 200
KINDS = ("shard", "manifest", "lengths")
SCHEMA = Schema(Numbers.vocab_size)


@pytest.fixture
def store(cache: Cache) -> Store:
    return make(records(250), cache)


def file_of(store: Store, kind: str) -> Path:
    named = {
        "manifest": manifest_name(store.fingerprint),
        "lengths": lengths_name(store.fingerprint),
    }
    return shard_paths(store)[1] if kind == "shard" else store.cache.path(named[kind])


def flipped(data: bytes, chance: random.Random) -> bytes:
    """One bit, or one whole byte, is another."""
    place = chance.randrange(len(data))
    change = 1 << chance.randrange(8) if chance.random() < 0.5 else chance.randrange(1, 256)
    return data[:place] + bytes([data[place] ^ change]) + data[place + 1 :]


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Cut, filled with zeros, longer, empty."""
    step = 256 if SOAK else 1024
    for size in (*range(0, len(data), step), len(data) - 1):
        yield f"cut to {size} bytes", data[:size]
        yield f"zeros from byte {size}", data[:size] + bytes(len(data) - size)
    yield "one byte longer", data + b"\0"
    yield "twice", data + data
    yield "zeros", bytes(len(data))


def test_a_whole_store_is_found_whole(store: Store) -> None:
    report = verify(store)
    assert report.is_whole and report.problems == () and report.num_files == 5
    files = [*shard_paths(store), file_of(store, "manifest"), file_of(store, "lengths")]
    assert report.num_bytes == sum(path.stat().st_size for path in files)
    assert str(report) == f"{store.fingerprint[:8]}: whole ({report.num_bytes:,} bytes read)"
    assert verify(store.fingerprint, store.cache) == report
    assert list(verify_all(store.cache)) == [report]


def test_a_store_that_is_not_there_is_a_problem(cache: Cache) -> None:
    (problem,) = verify("0" * 32, cache).problems
    assert "No such file" in problem.reason and problem.file == manifest_name("0" * 32)
    assert list(verify_all(cache)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_flip_is_found(store: Store, kind: str) -> None:
    path = file_of(store, kind)
    whole = path.read_bytes()
    chance = random.Random(kind)
    for _ in range(FLIPS):
        path.write_bytes(damaged := flipped(whole, chance))
        report = verify(store)
        place = next(place for place in range(len(whole)) if whole[place] != damaged[place])
        assert not report.is_whole, f"byte {place}: {whole[place]} → {damaged[place]}"
        assert {problem.file for problem in report.problems} == {
            str(path.relative_to(store.cache.root))
        }
    path.write_bytes(whole)
    assert verify(store).is_whole


def test_every_byte_of_a_small_manifest_and_of_its_lengths_is_guarded_on_opening(
    cache: Cache,
) -> None:
    """Not only by `verify`: a store with a damaged manifest, or wrong lengths, does not open."""
    store = make(records(30), cache)
    for kind in ("manifest", "lengths"):
        path = file_of(store, kind)
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(StoreError, match=str(path)):
                load(store.fingerprint, cache)
                map_lengths(store.fingerprint, 30, cache)
        path.write_bytes(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_and_every_run_of_zeros_is_found(store: Store, kind: str) -> None:
    path = file_of(store, kind)
    whole = path.read_bytes()
    for what, damaged in damages(whole):
        path.write_bytes(damaged)
        assert verify(store).is_whole == (damaged == whole), what


def test_swapped_and_missing_files_are_found(store: Store) -> None:
    first, second, third = shard_paths(store)
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    third.unlink()
    report = verify(store)
    assert [Path(problem.file).name for problem in report.problems] == [
        first.name,
        second.name,
        third.name,
    ]
    assert "No such file" in report.problems[2].reason
    assert str(report).endswith(
        f"3 of 5 files are damaged or missing ({report.num_bytes:,} bytes read)"
    )


def test_a_store_whose_files_are_whole_but_do_not_fit_is_found(store: Store) -> None:
    """Lengths with a digest that fits them, but not the shards."""
    lengths = np.array([1] * 250, dtype="<i4")
    path = file_of(store, "lengths")
    path.unlink()
    path.write_bytes(lengths.tobytes() + bytes.fromhex(digest(lengths.tobytes())))
    report = verify(store)
    assert len(report.problems) == 3 and "samples of other lengths" in report.problems[0].reason


def test_a_shard_that_stands_in_a_store_twice_is_read_once(cache: Cache) -> None:
    store = make([{"ids": [1, 2, 3]}] * 300, cache)
    assert store.num_shards == 3 and verify(store).num_files == 3
    (path,) = set(shard_paths(store))
    path.write_bytes(b"")
    assert len(verify(store).problems) == 1


def test_a_shard_under_the_name_of_another_does_not_open(cache: Cache) -> None:
    """Also with as many rows: a shard says what it is."""
    keys = ["0" * 32, "1" * 32]
    for key, start in zip(keys, (0, 23), strict=True):
        samples = Numbers().encode(records(50, start))
        data, _ = encode_shard(samples, SCHEMA, key)
        cache.publish(shard_name(key), lambda file, data=data: file.write(data))  # type: ignore[misc]
    one, two = (cache.path(shard_name(key)) for key in keys)
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    for key, other in (keys, keys[::-1]):
        with pytest.raises(StoreError, match=f"damaged .it is shard {other}, expected {key}"):
            open_shard(key, cache, SCHEMA, num_rows=50)


def test_swapped_shards_of_a_store_do_not_open(store: Store) -> None:
    first, second, _ = shard_paths(store)
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    for shard in (0, 1):
        with pytest.raises(StoreError, match=r"\d+ bytes, expected \d+"):
            store.tokens(shard)
        # Of a store under way no size is known yet, and each has a hundred rows: only what they say they are tells them apart.
        with pytest.raises(StoreError, match="it is shard"):
            open_shard(store._keys[shard], store.cache, SCHEMA, num_rows=100)


def test_a_size_that_is_expected_is_held_to(store: Store) -> None:
    key, size = store._keys[0], shard_paths(store)[0].stat().st_size
    assert open_shard(key, store.cache, SCHEMA, num_rows=100, num_bytes=size).counts.rows == 100
    with pytest.raises(StoreError, match=f"{size} bytes, expected {size + 1}"):
        open_shard(key, store.cache, SCHEMA, num_rows=100, num_bytes=size + 1)


OPEN_DAMAGED = """
import collections, hashlib, json, pathlib, random, sys
from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store.shards import Schema, open_shard
from tests.store.test_verify import damages, flipped
root, key, seed, flips, verify = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "1"
cache = Cache(root, verify=verify)
path = pathlib.Path(root, "shards", key[:2], key + ".arrow")
whole = path.read_bytes()

def tokens():
    shard = open_shard(key, cache, Schema(50_000), num_rows=100)
    parts = (shard.offsets, shard.input_ids, shard.mask_bits, shard.loss_mask(0, len(shard.input_ids)))
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

right = tokens()
outcomes = collections.Counter()
chance = random.Random(seed)
cases = [("flip", flipped(whole, chance)) for _ in range(flips)] + [("cut", data) for _, data in damages(whole) if data != whole]
for kind, damaged in cases:
    path.unlink()
    path.write_bytes(damaged)
    try:
        outcomes[f"{kind} {'right' if tokens() == right else 'wrong'}"] += 1
    except StoreError:
        outcomes[f"{kind} refused"] += 1
print(json.dumps(outcomes))
"""


@pytest.mark.parametrize("verified", [True, False])
def test_no_damage_of_a_shard_ends_a_process_and_none_gives_a_wrong_token_where_it_is_verified(
    store: Store, verified: bool
) -> None:
    arguments = [str(store.cache.root), store._keys[1], "seed", str(5 * FLIPS), str(int(verified))]
    result = subprocess.run(
        [sys.executable, "-c", OPEN_DAMAGED, *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    outcomes = json.loads(result.stdout)
    assert outcomes["flip refused"] > 0 and outcomes["cut refused"] > 0
    if verified:
        assert "flip wrong" not in outcomes and "cut wrong" not in outcomes
    assert sum(outcomes.values()) > 5 * FLIPS


TRUNCATE_MAPPED = """
import sys
from penstock.cache import Cache
from penstock.errors import StoreError
cache = Cache(sys.argv[1])
path = cache.path(sys.argv[2])
size = path.stat().st_size
with path.open("r+b") as file:
    file.truncate(size // 2)
try:
    bytes(cache.map(sys.argv[2], size=size))
except StoreError as error:
    print(error)
"""


def test_a_cut_file_is_refused_before_it_is_mapped(store: Store) -> None:
    name = shard_name(store._keys[0])
    result = subprocess.run(
        [sys.executable, "-c", TRUNCATE_MAPPED, str(store.cache.root), name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0 and "bytes, expected" in result.stdout, result.stderr


def test_verification_on_read_is_turned_on_and_off(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shard_paths(store)[0]
    whole = path.read_bytes()
    ids = store.tokens(0).input_ids.tobytes()
    place = whole.index(ids) + 2
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])

    def read(cache: Cache) -> bytes:
        return open_shard(store._keys[0], cache, SCHEMA, num_rows=100).input_ids.tobytes()

    assert read(Cache(store.cache.root, verify=False)) != ids
    with pytest.raises(
        StoreError,
        match=r"damaged \(its bytes are not those that were written.*pass refresh=True",
    ):
        read(Cache(store.cache.root, verify=True))
    monkeypatch.setenv("PENSTOCK_VERIFY", "1")
    with pytest.raises(StoreError, match="its bytes are not those that were written"):
        read(Cache(store.cache.root))


def test_a_damaged_shard_that_lies_there_is_not_taken_into_a_new_store(cache: Cache) -> None:
    """Its file is as long as it should be and has a good header; only its digest can tell."""
    store = make(records(250), cache)
    path = shard_paths(store)[0]
    whole = path.read_bytes()
    place = whole.index(store.tokens(0).input_ids.tobytes()) + 2
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    other = make(records(200), cache)  # shares both of its shards with the first
    assert [sample.input_ids.tolist() for sample in other] == [
        record["ids"] for record in records(200)
    ]
    assert path.read_bytes() == whole and verify(store).is_whole


HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    "a" * 4096,
    "A" * 32,
    "0" * 31,
    "0" * 33,
    "\0" * 32,
    7,
    None,
    ["0" * 32],
    "0" * 30 + "/x",
    "..%2f" + "0" * 27,
    "é" * 32,
    "0" * 32 + "\n",
    "\\" * 32,
    " " * 32,
]


@pytest.mark.parametrize("key", HOSTILE, ids=lambda key: repr(key)[:20])
def test_no_manifest_can_name_a_file_outside(store: Store, key: object) -> None:
    path = file_of(store, "manifest")
    value = json.loads(path.read_text())
    value["shards"][0]["key"] = key
    path.write_text(json.dumps(value, indent=1, sort_keys=True))
    with pytest.raises(StoreError, match=r"is not a shard key|damaged"):
        load(store.fingerprint, store.cache)
    assert not verify(store).is_whole


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda value: value["shards"][0].update(num_bytes=-1), "its digest does not match"),
        (lambda value: value["shards"][0].update(num_bytes=True), "its digest does not match"),
        (lambda value: value["shards"][0].update(digest="x"), "its digest does not match"),
        (lambda value: value["shards"][0]["counts"].update(rows="7"), "damaged"),
        (lambda value: value.update(template=[1]), "damaged"),
        (lambda value: value.update(vocab_size=1.5), "its digest does not match"),
        (lambda value: value.update(counts={}), "its digest does not match"),
        (lambda value: value.pop("shards"), "damaged .KeyError"),
        (lambda value: value.pop("digest"), "its digest does not match"),
    ],
)
def test_a_manifest_is_read_as_if_anybody_had_written_it(
    store: Store, change: Callable[[dict[str, object]], object], reason: str
) -> None:
    path = file_of(store, "manifest")
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=1, sort_keys=True))
    with pytest.raises(StoreError, match=reason):
        load(store.fingerprint, store.cache)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "7",
        '"x"',
        "[" * 100_000,
        "9" * 5000,
        "\xff",
        f'{{"format": {FORMAT_VERSION}}}',
    ],
)
def test_what_is_no_manifest_at_all_is_damaged(store: Store, text: str) -> None:
    file_of(store, "manifest").write_text(text)
    with pytest.raises(StoreError, match=r"damaged|format"):
        load(store.fingerprint, store.cache)
