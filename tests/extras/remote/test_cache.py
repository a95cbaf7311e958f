"""Is a store in a bucket the same store, byte for byte, on every machine that makes and reads it, and is nothing half there?"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cache import Cache, open_cache
from penstock.cli.main import run
from penstock.errors import PlanError, StoreError
from penstock.store.verify import verify
from tests.extras.remote.conftest import URL, Become, Build, Put, files, objects, proxied, upload
from tests.extras.remote.fault_proxy import FaultProxy
from tests.extras.remote.loose_store import LooseStore


def test_a_store_in_a_bucket_has_the_bytes_and_names_of_a_local_one(
    proxy: FaultProxy, built: Build, machine: Become, tmp_path: Path
) -> None:
    here, there = built(tmp_path / "local", shard_rows=200), built(URL, shard_rows=200)
    assert there.fingerprint == here.fingerprint
    for folder in ("shards", "stores"):
        assert objects(folder) == files(tmp_path / "local", folder), folder
        [mirror] = machine("a").iterdir()
        assert files(mirror, folder) == objects(folder)
    assert verify(there).is_whole
    machine("b")
    proxy.log.clear()
    again = built(URL, shard_rows=200)
    assert [
        method for method, *_ in proxy.log if method in ("PUT", "POST")
    ] == []  # nothing is made again
    assert np.array_equal(again.lengths, here.lengths)
    assert [again[row].input_ids.tolist() for row in (0, 999)] == [
        here[row].input_ids.tolist() for row in (0, 999)
    ]


def test_commands_work_with_a_cache_in_a_bucket(
    there: Build, tmp_path: Path, tokenizer_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"data: data.jsonl\ntokenizer: {tokenizer_path}\ntemplate: text\ncache_dir: {URL}\nmax_length: 64\nbatch_size: 4\n"
    )
    for words in (["prepare"], ["plan"], ["verify"], ["trace", "--step", "1"]):
        assert run([words[0], str(recipe), *words[1:]]) == 0, (words, capsys.readouterr())
    capsys.readouterr()
    assert run(["cache", "ls", "--cache-dir", URL]) == 0
    assert f"{URL}: 2 stores" in "".join(capsys.readouterr())
    assert run(["verify", "--all", "--cache-dir", URL]) == 0
    for words in (["rm", "data"], ["prune", "--max-bytes", "1"]):
        assert run(["cache", *words, "--cache-dir", URL]) != 0
    assert "Penstock removes nothing from a bucket" in capsys.readouterr().err
    assert len(objects("stores")) == 4  # two stores


def test_a_web_server_a_limit_and_a_damaged_object_are_refused_by_name(
    there: Build, put: Put, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        StoreError,
        match=r"https://example\.org/cache: a cache is a local folder, or at one of: s3://, gs://, az://",
    ):
        open_cache("https://example.org/cache")
    with pytest.raises(StoreError, match=r"a URL, expected a folder; open it with open_cache"):
        Cache(URL)
    monkeypatch.setenv("PENSTOCK_CACHE", URL)
    assert open_cache().where == URL
    monkeypatch.setenv("PENSTOCK_CACHE_MAX", "1G")
    with pytest.raises(StoreError, match="PENSTOCK_CACHE_MAX is for a local cache"):
        open_cache()
    monkeypatch.delenv("PENSTOCK_CACHE_MAX")
    store = there()
    assert store.manifest is not None
    name = store.manifest.shards[3].file.name
    data = bytearray(objects("shards")[name])
    data[len(data) // 2] ^= 1
    put(f"cache/{name}", bytes(data))
    with pytest.raises(
        StoreError,
        match=rf"{name}: its bytes are not those that were written; the object is damaged: pass refresh=True",
    ):
        store.tokens(3)
    assert not list(machine("a").rglob(name.rpartition("/")[2]))  # nothing wrong reaches the mirror
    assert [problem.file for problem in verify(store).problems] == [name]
    put(f"cache/{name}", bytes(data[:-1]))
    with pytest.raises(
        StoreError, match=rf"{name}: \d+ bytes, expected \d+; the object is damaged"
    ):
        store.tokens(3)


def test_a_lost_object_is_made_again_although_a_mirror_has_it(
    there: Build, machine: Become
) -> None:
    store = there()
    store.tokens(0)
    before = objects("shards")
    [lost] = [entry.file.name for entry in store.manifest.shards[:1]]  # type: ignore[union-attr]
    store.cache.bucket.remove(lost)  # type: ignore[attr-defined]
    there()
    assert objects("shards") == before


MACHINE = """
import sys, penstock as ps
from penstock.api import choose_template
from penstock.cache import Cache, open_cache
from penstock.engines import LocalEngine
from penstock.store import build
data, tokenizer, where = sys.argv[1:4]
source = ps.open(data, cache_dir=where)
template = choose_template(source, "text", tokenizer, {}, facts=None)
print("begins", flush=True)
store = build(source, template, engine=LocalEngine(1), cache=open_cache(where), shard_rows=50)
print(store.fingerprint)
"""


def test_machines_prepare_one_store_together_and_one_is_killed(
    proxy: FaultProxy, built: Build, tmp_path: Path, tokenizer_path: Path
) -> None:
    def start(name: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PENSTOCK_MIRROR": str(tmp_path / f"mirror-{name}")}
        words = [
            sys.executable,
            "-c",
            MACHINE,
            str(tmp_path / "data.jsonl"),
            str(tokenizer_path),
            URL,
        ]
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

    machines = [start(name) for name in "xyz"]
    deadline = time.monotonic() + 300
    while sum("/shards/" in path and method == "PUT" for method, path, *_ in proxy.log) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    machines[0].send_signal(signal.SIGKILL)
    said = [machine.communicate(timeout=300)[0] for machine in machines]
    here = built(tmp_path / "local")
    assert [machine.returncode for machine in machines] == [-signal.SIGKILL, 0, 0]
    assert [text.split()[-1] for text in said[1:]] == [here.fingerprint] * 2
    for folder in ("shards", "stores"):
        assert objects(folder) == files(tmp_path / "local", folder)
    uploads = [path for method, path, *_ in proxy.log if method == "PUT" and "/shards/" in path]
    assert (
        len(uploads) < 2 * here.num_shards
    )  # claims: each is made once, apart from what the killed machine was making


def test_a_cold_machine_resumes_at_90_percent_and_reads_only_what_its_first_batch_needs(
    there: Build, machine: Become, proxy: FaultProxy
) -> None:
    options: dict[str, Any] = {
        "batch_size": 4,
        "max_length": 64,
        "output": "numpy",
        "shuffle_window": 2,
        "block": 128,
    }
    loader = ps.Loader(there(), **options)
    state, expected = None, None
    for batch in loader:
        if expected is None and state is not None:
            expected = batch["input_ids"].tolist()
        if batch.step >= 0.9 * len(loader) and state is None:
            state = loader.state_dict()
    machine("cold")
    store = there()
    proxy.log.clear()
    resumed = ps.Loader(store, **options, prefetch=0)
    resumed.load_state_dict(state)
    batch = next(iter(resumed))
    assert batch["input_ids"].tolist() == expected
    needed = {
        store.manifest.shards[shard].file.name
        for shard in store.locate(batch.rows.spans["sample"])[0]
    }  # type: ignore[union-attr]
    fetched = [
        path.removeprefix("/bkt/cache/") for method, path, *_ in proxy.log if method == "GET"
    ]
    assert sorted(fetched) == sorted(
        [*needed, f"stores/{store.fingerprint[:2]}/{store.fingerprint}.lengths"]
    )
    assert len(proxy.log) == len(fetched)  # no HEAD: how long a file is, is known
    assert len(needed) < store.num_shards / 2
    traffic = resumed.metrics.as_dict()["remote"]
    assert (traffic["requests"], traffic["stalls"] > 0, traffic["stall_seconds"] > 0) == (
        len(proxy.log),
        True,
        True,
    )


def test_batches_and_their_order_are_those_of_a_local_store(
    there: Build, tmp_path: Path, built: Build
) -> None:
    options: dict[str, Any] = {
        "batch_size": 4,
        "max_length": 64,
        "shuffle_window": 2,
        "block": 128,
        "epochs": 2,
    }
    store = there()
    total = sum(entry.num_bytes for entry in store.manifest.shards)  # type: ignore[union-attr]
    here = ps.Loader(built(tmp_path / "local"), **options)
    loader = ps.Loader(store, **options, mirror_bytes=total * 2 // 3)
    for mine, other in zip(here, loader, strict=True):
        assert mine["input_ids"].tolist() == other["input_ids"].tolist()
        assert sum(store.cache.in_mirror().values()) <= total * 2 // 3  # type: ignore[attr-defined]
    assert here.state_dict() == loader.state_dict()


def test_auto_windows_fit_the_mirror_and_a_resumed_run_keeps_its_window(
    there: Build, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = there()
    total = sum(entry.num_bytes for entry in store.manifest.shards)  # type: ignore[union-attr]
    options: dict[str, Any] = {"batch_size": 2, "max_length": 64, "output": "numpy", "block": 64}
    assert ps.Loader(store, **options, mirror_bytes=total).plan.settings.shuffle_window == "auto"
    small = ps.Loader(store, **options, mirror_bytes=total // 2)
    assert small.plan.settings.shuffle_window == 2
    batches = [batch["input_ids"].tolist() for batch in small]
    for other in (None, total, total * 6 // 10):  # None: 10 % of the disk
        machine(f"with-{other}")
        begun = ps.Loader(there(), **options, mirror_bytes=total // 2)
        first = [batch["input_ids"].tolist() for batch in islice(begun, 7)]
        resumed = ps.Loader(there(), **options, mirror_bytes=other)
        resumed.load_state_dict(begun.state_dict())
        assert resumed.plan.fingerprint == small.plan.fingerprint
        assert first + [batch["input_ids"].tolist() for batch in resumed] == batches
    with pytest.raises(
        PlanError,
        match=r"up to .* of shards are needed at once with shuffle_window=8, .* set mirror_bytes=\d+",
    ):
        ps.Loader(store, **options, shuffle_window=8, mirror_bytes=total // 2)
    with pytest.raises(
        PlanError,
        match=r"with shuffle_window=1, and the mirror may hold 100 B; set mirror_bytes=(\d+) or more$",
    ):
        ps.Loader(store, **options, mirror_bytes=100)
    monkeypatch.setenv("PENSTOCK_MIRROR_BYTES", "50k")
    assert there().cache.budget == 50_000  # type: ignore[attr-defined]


def test_an_old_listing_does_not_make_a_store_incomplete(
    built: Build, put: Put, proxy: FaultProxy, machine: Become, tmp_path: Path
) -> None:
    assert open_cache(URL).entries("shards") == []  # the answer that is repeated
    built(tmp_path / "local")
    upload(tmp_path / "local", put)
    proxy.fault("stale", "list-type", times=9)
    proxy.log.clear()
    store = built(URL)
    assert store.manifest is not None
    assert [path for method, path, *_ in proxy.log if method == "PUT"] == []
    assert any(fault == "stale" for *_, fault in proxy.log)


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_an_epoch_fetches_about_what_the_mirror_does_not_hold(there: Build, share: float) -> None:
    store = there()
    total = sum(entry.num_bytes for entry in store.manifest.shards)  # type: ignore[union-attr]
    options: dict[str, Any] = {
        "max_length": 64,
        "output": "numpy",
        "shuffle_window": 1,
        "block": 50,
        "epochs": None,
        "prefetch": 0,
    }
    loader = ps.Loader(store, batch_size=1, mirror_bytes=int(total * share), **options)
    read = {}
    for batch in loader:
        epoch = loader.state_dict()["epoch"]
        read.setdefault(epoch, loader.metrics.as_dict()["remote"]["bytes"])
        if epoch == 4:
            break
        del batch
    per_epoch = (read[4] - read[1]) / 3 / total
    # Of 20 shards, up to 3 slots are for the present and the next block.  Least recently used would fetch 0.85 and 0.6 of the store.
    assert 1 - share - 0.1 < per_epoch < 1 - share + 0.2


@pytest.fixture(params=["rclone", "a server of our own"])
def loose(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultProxy]:
    """A store that ignores conditional writes."""
    if request.param != "rclone":
        store = LooseStore()
        with proxied(store.port, monkeypatch) as proxy:
            yield proxy
        store.stop()
        return
    (tmp_path / "served" / "bkt").mkdir(parents=True)
    words = [
        str(Path(sys.executable).with_name("rclone")),
        "serve",
        "s3",
        str(tmp_path / "served"),
        "--addr",
        "127.0.0.1:0",
    ]
    environment = {**os.environ, "RCLONE_CONFIG": os.devnull}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        found = next(
            found for line in server.stderr if (found := re.search(r"127\.0\.0\.1:(\d+)", line))
        )
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        with proxied(int(found[1]), monkeypatch) as proxy:
            yield proxy
        server.terminate()


def test_a_store_that_ignores_conditional_writes_is_noticed_once_and_still_right(
    loose: FaultProxy,
    built: Build,
    machine: Become,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    built(tmp_path / "local", shard_rows=200)
    with ThreadPoolExecutor(2) as pool:  # two builders at once, without claims
        stores = list(pool.map(lambda _: built(URL, shard_rows=200), range(2)))
    assert {store.fingerprint for store in stores} == {stores[0].fingerprint}
    for folder in ("shards", "stores"):
        assert objects(folder) == files(tmp_path / "local", folder)
    assert not any("/claims/" in path and ".probe" not in path for _, path, *_ in loose.log)
    caplog.clear()
    assert open_cache(URL).claims is None
    assert "overwrites objects" not in caplog.text  # said before
    machine("b")
    assert open_cache(URL).claims is None
    assert caplog.text.count("this store overwrites objects") == 1


def test_a_store_that_is_read_without_a_loader_keeps_to_the_budget(
    there: Build, built: Build, tmp_path: Path
) -> None:
    store, here = there(), built(tmp_path / "local")
    most = 3 * max(entry.num_bytes for entry in store.manifest.shards)  # type: ignore[union-attr]
    store.cache.mirror_bytes = most  # type: ignore[attr-defined]
    for row in range(0, 1000, 25):
        assert store[row].input_ids.tolist() == here[row].input_ids.tolist()
        assert sum(store.cache.in_mirror().values()) <= most  # type: ignore[attr-defined]


def test_a_state_that_does_not_fit_leaves_the_loader_as_it_was(there: Build) -> None:
    store = there()
    total = sum(entry.num_bytes for entry in store.manifest.shards)  # type: ignore[union-attr]
    options: dict[str, Any] = {"batch_size": 2, "max_length": 64, "output": "numpy", "block": 64}
    state = ps.Loader(store, **options, mirror_bytes=total).state_dict()
    small = ps.Loader(there(), **options, mirror_bytes=total // 2)
    before = small.plan.fingerprint
    with pytest.raises(PlanError, match="needed at once with shuffle_window='auto'"):
        small.load_state_dict(state)
    assert small.plan.fingerprint == before
    assert len(list(small)) == len(small)
