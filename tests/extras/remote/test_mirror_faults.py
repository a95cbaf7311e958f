"""A mirror under bad conditions: mixtures, several readers, damaged copies, killed processes, a full disk, an outage, images."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.api import choose_template
from penstock.cache import open_cache
from penstock.engines import LocalEngine
from penstock.errors import StoreError
from penstock.extras.remote import cache as remote_cache
from penstock.extras.remote.cache import RemoteCache
from penstock.store import Store, build
from tests.extras.media import vlm
from tests.extras.remote.conftest import URL, Become, Build, Put, upload
from tests.extras.remote.fault_proxy import FaultProxy

OPTIONS: dict[str, Any] = {
    "max_dropped": 1.0,
    "batch_size": 4,
    "max_length": 64,
    "output": "numpy",
    "shuffle_window": 2,
    "block": 64,
}

Pair = Callable[[Any], tuple[Store, Store]]


def size_of(*stores: Store) -> int:
    return sum(entry.num_bytes for store in stores for entry in store.manifest.shards)  # type: ignore[union-attr]


def held(cache: Any) -> int:
    return sum(cache.in_mirror().values())


def ids(loader: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in loader]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Two stores of samples of which some are longer than a row; only the last tenth of a sample is trained."""
    chance = np.random.default_rng(0)
    for name, rows in (("one", 480), ("two", 240)):
        with (tmp_path / f"{name}.jsonl").open("w") as file:
            for length in chance.choice([10, 20, 30, 200], rows).tolist():
                numbers, mask = (
                    chance.integers(0, 999, length).tolist(),
                    [n >= 0.9 * length for n in range(length)],
                )
                file.write(
                    json.dumps({"input_ids": numbers, "loss_mask": [*map(int, mask)]}) + "\n"
                )

    def make(where: Any) -> tuple[Store, Store]:
        def one(name: str) -> Store:
            source = ps.open(str(tmp_path / f"{name}.jsonl"), cache_dir=where)
            template = choose_template(
                source, "pretokenized", None, {"vocab_size": 1000}, facts=None
            )
            return build(
                source, template, engine=LocalEngine(1), cache=open_cache(where), shard_rows=24
            )

        return one("one"), one("two")

    return make


@pytest.mark.parametrize("on_overlong", ["drop", "split", "truncate"])
def test_a_mixture_with_weights_keeps_to_one_budget_and_never_waits_for_itself(
    pair: Pair, put: Put, tmp_path: Path, machine: Become, on_overlong: str
) -> None:
    """Which pieces of a cut sample count is known from its shard: a look ahead that fetched shards would wait for its own lock."""
    here = pair(tmp_path / "local")
    upload(tmp_path / "local", put)
    there = pair(URL)  # each with a cache of its own
    options = {**OPTIONS, "on_overlong": on_overlong, "epochs": 2}
    most = size_of(*there) * 7 // 10
    expected = ps.Loader({"a": (here[0], 0.6), "b": (here[1], 0.4)}, **options)
    loader = ps.Loader({"a": (there[0], 0.6), "b": (there[1], 0.4)}, mirror_bytes=most, **options)
    for mine, other in zip(expected, loader, strict=True):
        assert mine["input_ids"].tolist() == other["input_ids"].tolist()
        assert held(there[0].cache) <= most
    assert there[0].cache.shared.plans == []  # type: ignore[attr-defined]


def test_a_loader_for_evaluation_inside_the_training_loop_shares_the_mirror(
    there: Build, machine: Become
) -> None:
    expected, evaluated = (ids(ps.Loader(there(), **OPTIONS, seed=seed)) for seed in (0, 1))
    machine("cold")
    train, other = there(), there()
    most = size_of(train) * 8 // 10
    loader, found = ps.Loader(train, mirror_bytes=most, **OPTIONS), []
    for batch in loader:
        found.append(batch["input_ids"].tolist())
        if batch.step in (3, 30):
            assert ids(ps.Loader(other, **OPTIONS, seed=1)) == evaluated
            assert len(train.cache.shared.plans) == 1  # type: ignore[attr-defined]  # the loop's own is still known
        assert held(train.cache) <= most
    assert found == expected


def test_a_mirror_smaller_than_a_shard_is_said_and_read_nevertheless(
    there: Build, caplog: pytest.LogCaptureFixture
) -> None:
    store = there()
    store.cache.mirror_bytes = 100  # type: ignore[attr-defined]
    assert len({int(store[row].input_ids.sum()) for row in range(0, 1000, 50)}) > 1
    assert "more than its budget of 100 B are needed at once; set mirror_bytes=" in caplog.text
    assert held(store.cache) == store.manifest.shards[-1].num_bytes  # type: ignore[union-attr]  # and no other


@pytest.mark.parametrize("verify", [False, True])
def test_a_damaged_copy_is_said_and_fetched_again(
    there: Build, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    expected = ids(ps.Loader(there(), **OPTIONS))
    monkeypatch.setenv("PENSTOCK_VERIFY", str(int(verify)))
    store = there()
    copies = [store.cache.path(name) for name in sorted(store.cache.in_mirror())]  # type: ignore[attr-defined]
    good = [copy.read_bytes() for copy in copies]
    copies[0].write_bytes(good[0][:-9])  # cut
    copies[1].write_bytes(b"")
    copies[2].write_bytes(good[2][:-100] + bytes(100))  # of its size, without its end
    middle = len(good[3]) // 2
    changed = bytes([255 - good[3][middle]])
    copies[3].write_bytes(
        good[3][:middle]
        + (changed if verify else good[3][middle : middle + 1])
        + good[3][middle + 1 :]
    )
    assert ids(ps.Loader(store, **OPTIONS)) == expected
    assert [copy.read_bytes() for copy in copies] == good
    assert caplog.text.count("fetched again") == (4 if verify else 3)


def test_what_a_killed_process_was_fetching_is_removed(there: Build) -> None:
    store = there()
    words = [sys.executable, "-c", "from penstock.cache import Owner; print(Owner.me())"]
    dead = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    left = store.cache.path("shards/00") / f".{dead}-0123456789abcdef.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(1000))
    store.tokens(0)
    assert not left.exists()


def test_what_other_processes_fetch_now_counts(there: Build) -> None:
    store = there()
    sizes = [entry.num_bytes for entry in store.manifest.shards]  # type: ignore[union-attr]
    store.cache.mirror_bytes = sum(sizes)  # type: ignore[attr-defined]
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(store.cache.root)], stdin=-1, stdout=-1, text=True
    ) as other:
        assert other.stdout and other.stdin and other.stdout.readline() == "begun\n"
        for shard in range(store.num_shards):
            store.tokens(shard)
            assert held(store.cache) + 5000 <= sum(sizes)
        other.stdin.close()


_HOLDS = """
import sys
from pathlib import Path
from penstock.cache import Owner, open_cache
file = Path(sys.argv[1], "shards", "00", f".{Owner.me()}-0123456789abcdef.tmp")
file.parent.mkdir(parents=True)
file.write_bytes(bytes(5000))
print("begun", flush=True)
sys.stdin.read()
"""

_FULL = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import penstock as ps
from penstock.cache import Cache, open_cache
from penstock.errors import StoreError
from penstock.store.kept import kept_store
store = kept_store("data", sys.argv[2], open_cache(sys.argv[3]))
store.lengths
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    store.tokens(0)
except StoreError as error:
    print(error)
"""


def test_a_disk_that_is_full_names_the_folder_of_the_mirror(there: Build, tmp_path: Path) -> None:
    key = there().fingerprint
    words = [sys.executable, "-c", _FULL, str(Path(__file__).parents[3]), key, URL]
    environment = {**os.environ, "PENSTOCK_MIRROR": str(tmp_path / "full")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert "cannot write" in done.stdout, done.stderr
    assert str(tmp_path / "full") in done.stdout and "File too large" in done.stdout
    assert "lower mirror_bytes, or choose another folder with PENSTOCK_MIRROR" in done.stdout
    assert [*(tmp_path / "full").rglob("*.tmp")] == []


def test_after_an_outage_shards_are_fetched_ahead_again(
    there: Build,
    proxy: FaultProxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "1")
    store, other = there(), there()
    expected = ids(ps.Loader(other, **OPTIONS))
    for name in store.cache.in_mirror():  # type: ignore[attr-defined]
        store.cache.place.remove(name)
    turns = iter(ps.Loader(store, prefetch=0, **OPTIONS))
    found = [next(turns)["input_ids"].tolist()]
    proxy.fault(503, "/shards/", times=10**6)
    found.append(next(turns)["input_ids"].tolist())  # of the same block; now the threads begin
    wait_for(lambda: "shards are not fetched ahead until the next block" in caplog.text)
    proxy.rules.clear()
    found += ids(islice(turns, 8))  # the next block begins
    wait_for(lambda: len(store.cache.in_mirror()) == store.num_shards)  # type: ignore[attr-defined]  # though nothing asks for them
    assert found + ids(turns) == expected
    assert caplog.text.count("not fetched ahead") == 1


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that this process downloads into a mirror, in order."""
    names: list[str] = []
    download = RemoteCache._download

    def noted(cache: RemoteCache, file: Any, *others: Any, **options: Any) -> None:
        names.append(file.name)
        download(cache, file, *others, **options)

    monkeypatch.setattr(RemoteCache, "_download", noted)
    return names


def test_a_full_mirror_fetches_as_many_shards_ahead_as_there_are_threads(
    there: Build, downloads: list[str]
) -> None:
    """One round trip after the other would leave the reader waiting; more would take the place of what the next epoch finds."""
    store = there()
    sizes = [entry.num_bytes for entry in store.manifest.shards]  # type: ignore[union-attr]
    options = {**OPTIONS, "shuffle_window": 1, "block": 50, "packing": "none"}
    loader = ps.Loader(store, prefetch=0, mirror_bytes=13 * max(sizes), **options)
    downloads.clear()
    turns = iter(loader)
    while loader.state_dict()["block"] < 15:
        next(turns)
    next(turns)
    shards_read = loader.state_dict()["block"] + 1
    wait_for(lambda: len(downloads) == min(shards_read + 4, store.num_shards))
    time.sleep(0.1)
    assert len(downloads) == len(set(downloads)) == shards_read + 4
    assert held(store.cache) <= 13 * max(sizes)


def test_threads_of_one_process_wait_for_a_file_without_looking_at_its_claim(
    there: Build, downloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a claim sleeps between looks; a loop would lose that time at every shard."""
    store = there()
    inside: list[str] = []
    most: list[int] = []
    wait = remote_cache.wait_for_claim

    def counted(key: str, *others: Any, **options: Any) -> Any:
        inside.append(key)
        most.append(inside.count(key))
        time.sleep(0.05)  # so that the others come meanwhile
        claim = wait(key, *others, **options)
        inside.remove(key)
        return claim

    monkeypatch.setattr(remote_cache, "wait_for_claim", counted)
    downloads.clear()
    file = store.manifest.shards[3].file  # type: ignore[union-attr]
    threads = [threading.Thread(target=store.cache.fetch, args=(file,)) for _ in range(6)]  # type: ignore[attr-defined]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert downloads == [file.name]
    assert most == [1]
    assert store.cache.shared._fetches == {}  # type: ignore[attr-defined]


def test_a_run_that_access_was_denied_to_goes_on_where_it_stopped(
    there: Build, proxy: FaultProxy, machine: Become
) -> None:
    expected = ids(ps.Loader(there(), **OPTIONS))
    machine("cold")
    loader, found = ps.Loader(there(), **OPTIONS), []
    with pytest.raises(
        StoreError,
        match=r"cannot read s3://bkt/cache/shards/.*: access denied \(403.*AWS_ACCESS_KEY_ID",
    ):
        for batch in loader:
            found.append(batch["input_ids"].tolist())
            if batch.step == 5:
                proxy.fault(403, "/shards/", times=10**6)
    proxy.rules.clear()
    assert len(found) < len(expected)
    assert found + ids(loader) == expected


def test_credentials_that_may_only_read_are_enough_for_a_run(
    there: Build, proxy: FaultProxy, machine: Become
) -> None:
    expected = ids(ps.Loader(there(), **OPTIONS))
    machine("cold")
    for method in ("PUT", "POST", "DELETE"):
        proxy.fault(403, method=method, times=10**6)
    assert ids(ps.Loader(there(), **OPTIONS)) == expected


@pytest.mark.parametrize(
    "where", ["s3://bkt/my cache/ü", "s3://bkt/a#b%20?c", "s3://bkt/x*[1]/", "s3://bkt"]
)
def test_a_cache_may_have_any_name_in_a_bucket(
    built: Build, proxy: FaultProxy, machine: Become, tmp_path: Path, where: str
) -> None:
    assert (
        built(where, shard_rows=500).fingerprint
        == built(tmp_path / "local", shard_rows=500).fingerprint
    )
    machine("cold")
    proxy.log.clear()
    assert built(where, shard_rows=500)[999].input_ids.tolist()
    assert [path for method, path, *_ in proxy.log if method == "PUT"] == []


@pytest.mark.parametrize(
    "where", [Path("s3://bkt/cache"), "S3://bkt/cache", "gs:/bkt", "/data/s3:/bkt"]
)
def test_a_folder_with_the_name_of_a_url_is_refused(where: Any) -> None:
    with pytest.raises(StoreError, match="a folder with the name of a URL; write a URL as text"):
        open_cache(where)


def test_images_come_with_a_store_in_a_bucket_as_with_a_local_one(
    proxy: FaultProxy, machine: Become, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    vlm.make_data(tmp_path, "qwen2_5_vl", count=12)
    options: dict[str, Any] = {"batch_size": 2, "max_length": 256, "output": "numpy"}
    expected = list(ps.Loader(vlm.prepare(tmp_path), **options))
    vlm.prepare(tmp_path, cache_dir=URL)
    machine("cold")
    store = vlm.prepare(tmp_path, cache_dir=URL)
    found = list(ps.Loader(store, mirror_bytes=size_of(store), **options))
    assert [[*batch] for batch in found] == [[*batch] for batch in expected]
    assert any(len(batch["pixel_values"]) for batch in found if "pixel_values" in batch)
    for mine, other in zip(found, expected, strict=True):
        assert all(np.array_equal(mine[name], other[name]) for name in other)


_FORKS = """
import os, sys
import penstock as ps
from penstock.cache import Cache, open_cache
from penstock.store.kept import kept_store
store = kept_store("data", sys.argv[1], open_cache(sys.argv[2]))
loader = ps.Loader(store, batch_size=4, max_length=64, output="numpy", shuffle_window=2, block=64, prefetch=0)
assert len([*loader]) == len(loader)  # now the mirror has every shard
if not os.fork():
    try:
        next(iter(loader))
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_forked_process_is_refused_before_it_reads_whatever_the_mirror_has(there: Build) -> None:
    words = [sys.executable, "-c", _FORKS, there().fingerprint, URL]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert (
        "s3://bkt/cache: this process was forked from one that has read from a remote place"
        in done.stdout
    ), done


def test_no_thread_of_a_mirror_outlives_its_loop(there: Build) -> None:
    for number, _ in enumerate(ps.Loader(there(), **OPTIONS)):
        if number == 5:
            break
    wait_for(lambda: not any(thread.name == "penstock-mirror" for thread in threading.enumerate()))
