"""Do Google's buckets and Azure's containers serve as S3's do: files, and a cache that a second machine loads from?"""

import base64
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

import penstock as ps
from penstock.extras.remote.object_store import place_of
from tests.extras.remote.loose_store import LooseStore

_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # of every emulator


@pytest.fixture
def gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    store = LooseStore()
    account = {"gcs_base_url": f"http://127.0.0.1:{store.port}", "disable_oauth": True}
    account |= {"client_email": "", "private_key": "", "private_key_id": ""}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    yield "gs://bkt"
    store.stop()


@pytest.fixture
def az(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Microsoft's emulator, from npm: `npm install -g azurite`."""
    if (program := shutil.which("azurite-blob")) is None:
        pytest.skip("azurite is not installed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    words = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    words += ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    with subprocess.Popen(
        [program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        _create_container(port)
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{port}")
        yield "az://bkt"
        server.terminate()


def _create_container(port: int) -> None:
    date, version = formatdate(usegmt=True), "2021-08-06"
    signed = f"x-ms-date:{date}\nx-ms-version:{version}\n/devstoreaccount1/devstoreaccount1/bkt\nrestype:container"
    digest = hmac.new(
        base64.b64decode(_AZURITE_KEY), ("PUT" + "\n" * 12 + signed).encode(), hashlib.sha256
    ).digest()
    headers = {"x-ms-date": date, "x-ms-version": version, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey devstoreaccount1:{base64.b64encode(digest).decode()}"
    url = f"http://127.0.0.1:{port}/devstoreaccount1/bkt?restype=container"
    for _ in range(600):  # it takes seconds to listen
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)):
                return
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError("azurite did not answer")


@pytest.fixture(params=["gs", "az"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("PENSTOCK_REMOTE_WAIT", "0.005")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    place_of.cache_clear()
    yield request.getfixturevalue(request.param)
    place_of.cache_clear()


def test_objects_are_created_read_listed_and_removed(bucket: str) -> None:
    place, name = place_of(bucket), f"{bucket}/a/b é #%.txt"
    assert place.create(name, lambda file: file.write(b"hello")) == 5
    assert (
        place.create(name, lambda file: file.write(b"hello")) == 5
    )  # as if the answer to the first had been lost
    with pytest.raises(FileExistsError, match="already there with other content"):
        place.create(name, lambda file: file.write(b"HELLO"))
    version = place.stat(name)
    assert b"".join(place.pieces(version, 1, 3)) == b"el"
    assert place.read(name) == place.read_now(name) == b"hello"
    place.create(f"{bucket}/empty", lambda file: None)
    assert place.read(f"{bucket}/empty") == place.read_now(f"{bucket}/empty") == b""
    assert place.glob(f"{bucket}/**/*.txt") == [name]
    for _ in range(2):
        place.remove(name)
    with pytest.raises(FileNotFoundError, match=r"nothing found \(404\)"):
        place.stat(name)


def test_a_second_machine_loads_the_batches_of_a_local_cache(
    bucket: str, tokenizer_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(
        json.dumps({"text": f"record {n} " * (n % 7 + 1)}) + "\n" for n in range(300)
    ).encode()
    (tmp_path / "data.jsonl").write_bytes(lines)
    place_of(bucket).create(f"{bucket}/data.jsonl", lambda file: file.write(lines))

    def batches(data: str, cache: str) -> list[list[list[int]]]:
        store = ps.prepare(
            data, tokenizer=tokenizer_path, cache_dir=cache, num_proc=1, progress="none"
        )
        loader = ps.Loader(store, batch_size=4, max_length=64, output="numpy", epochs=1)
        return [batch["input_ids"].tolist() for batch in loader]

    expected = batches(str(tmp_path / "data.jsonl"), str(tmp_path / "cache"))
    for machine in "ab":
        monkeypatch.setenv("PENSTOCK_MIRROR", str(tmp_path / machine))
        assert batches(f"{bucket}/data.jsonl", f"{bucket}/cache") == expected
