"""Under thousands of faults of a store: no wrong byte, no lost object, and no object that is half written.

`make test` injects 2,000 faults, `make soak` 20,000.
"""

import hashlib
import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api import choose_template
from penstock.cache import open_cache
from penstock.engines import LocalEngine
from penstock.places import find, identify, open_file, open_place, read
from penstock.store import Store, build
from penstock.store.verify import verify
from tests.extras.remote.conftest import Put
from tests.extras.remote.fault_proxy import FaultProxy
from tests.policy import SOAK

OPTIONS: dict[str, Any] = {
    "batch_size": 2,
    "max_length": 32,
    "output": "numpy",
    "shuffle_window": 1,
    "block": 40,
}
FAULTS = 20_000 if SOAK else 500
THREADS = 12


def _until(proxy: FaultProxy, num_faults: int, work: Callable[[random.Random], int]) -> int:
    """Run `work` in threads until so many faults were injected; return the number of calls, and raise what any of them raised."""
    done, lock = 0, threading.Lock()

    def loop(seed: int) -> None:
        nonlocal done
        chance = random.Random(seed)
        while proxy.injected.total() < num_faults:
            count = work(chance)
            with lock:
                done += count

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(loop, range(THREADS)):
            pass
    return done


@pytest.mark.timeout(1800)
def test_no_byte_is_wrong_under_faults(
    put: Put, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "40")
    monkeypatch.setenv("PENSTOCK_REMOTE_TIMEOUT", "2")
    monkeypatch.setenv("PENSTOCK_REMOTE_WAIT", "0.001")
    content = [random.Random(number).randbytes(20_000 + 7_000 * number) for number in range(8)]
    urls = [put(f"data/{number}.bin", data) for number, data in enumerate(content)]
    proxy.chance(0.5, seed=1, stalls=20)

    def check(chance: random.Random) -> int:
        number = chance.randrange(len(urls))
        data = content[number]
        start = chance.randrange(len(data))
        stop = chance.randrange(start, len(data)) + 1
        match chance.randrange(4):
            case 0:
                assert read(urls[number]) == data
            case 1:
                assert find("s3://bkt/data/*.bin") == urls
            case _:
                file = open_file(identify(urls[number]))
                assert file.identity.size == len(data)
                assert file.read(start, stop) == data[start:stop]
        return 1

    assert _until(proxy, FAULTS * 6 // 10, check) > 25
    assert len(proxy.injected) > 5  # of many kinds


@pytest.mark.timeout(1800)
def test_no_object_is_lost_or_half_written_under_faults(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "40")
    monkeypatch.setenv("PENSTOCK_REMOTE_TIMEOUT", "2")
    monkeypatch.setenv("PENSTOCK_REMOTE_WAIT", "0.001")
    place = open_place("s3://bkt/shards")[0]
    proxy.chance(0.5, seed=2)
    written: dict[str, bytes] = {}

    def write(chance: random.Random) -> int:
        """As stores are written: a name says what the content is, and several writers may write it at once."""
        data = random.Random(chance.randrange(200)).randbytes(5_000)
        url = f"s3://bkt/shards/{hashlib.sha256(data).hexdigest()}"
        assert place.create(url, lambda file: file.write(data)) == len(data)
        written[url] = data
        return 1

    assert _until(proxy, FAULTS * 2 // 10, write) > 12
    proxy.chance(0)
    assert sorted(file.path for file in place.scan("s3://bkt/shards")) == sorted(written)
    assert all(place.read(url) == data for url, data in written.items())


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_shard_is_lost_or_wrong_when_a_store_is_made_and_read_under_faults(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "40")
    monkeypatch.setenv("PENSTOCK_REMOTE_TIMEOUT", "2")
    monkeypatch.setenv("PENSTOCK_REMOTE_WAIT", "0.001")
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"text": f"the fox jumps over {n} dogs"}) + "\n" for n in range(400))
    )

    def built(where: Any) -> Store:
        source = ps.open(str(data), cache_dir=where)
        template = choose_template(source, "text", tokenizer_path, {}, facts=None)
        return build(
            source, template, engine=LocalEngine(1), cache=open_cache(where), shard_rows=40
        )

    here, round_ = built(tmp_path / "local"), 0
    expected = [batch["input_ids"].tolist() for batch in ps.Loader(here, **OPTIONS)]
    proxy.chance(0.5, seed=3, stalls=4)
    while proxy.injected.total() < FAULTS * 2 // 10:
        round_ += 1
        url = f"s3://bkt/round-{round_}"
        for machine in ("makes", "reads"):
            monkeypatch.setenv("PENSTOCK_MIRROR", str(tmp_path / f"{machine}-{round_}"))
            store = built(url)
            assert store.fingerprint == here.fingerprint
        assert store.manifest is not None
        most = sum(entry.num_bytes for entry in store.manifest.shards) * 6 // 10
        assert [
            batch["input_ids"].tolist() for batch in ps.Loader(store, mirror_bytes=most, **OPTIONS)
        ] == expected
        assert verify(store).is_whole
    assert round_ > 1
