"""Under thousands of faults of a store: no wrong byte, no lost object, and no object that is half written.

`make test` injects 2,000 faults, `make soak` 20,000.
"""

import hashlib
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.places.files import find, identify, open_file, open_place, read
from tests.remote.conftest import Put
from tests.remote.fault_proxy import FaultProxy

FAULTS = 20_000 if os.environ.get("PENSTOCK_SOAK") else 2_000
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
def test_no_byte_is_wrong_under_faults(put: Put, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
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

    assert _until(proxy, FAULTS * 3 // 4, check) > 100
    assert len(proxy.injected) > 5  # of many kinds


@pytest.mark.timeout(1800)
def test_no_object_is_lost_or_half_written_under_faults(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
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

    assert _until(proxy, FAULTS // 4, write) > 50
    proxy.chance(0)
    assert sorted(file.path for file in place.scan("s3://bkt/shards")) == sorted(written)
    assert all(place.read(url) == data for url, data in written.items())
