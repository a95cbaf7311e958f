"""A store on this machine (moto), a fault proxy in front of it, and the environment that points there and nowhere else."""

import contextlib
import json
import logging
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api import choose_template
from penstock.cache import open_cache
from penstock.engines import LocalEngine
from penstock.extras.remote import requests
from penstock.extras.remote.object_store import place_of
from penstock.store import Store, build
from tests.extras.remote.fault_proxy import FaultProxy

_SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"

URL = "s3://bkt/cache"
SHARED = ("shards", "stores", "digests", "facts", "offsets", "memo")

Put = Callable[[str, bytes], str]
Become = Callable[[str], Path]
Build = Callable[..., Store]


def ask(port: int, path: str, method: str, data: bytes | None = None) -> bytes:
    url = f"http://127.0.0.1:{port}{path}"
    headers = {"Authorization": _SIGNED, "Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(
        urllib.request.Request(url, data, headers, method=method)
    ) as answer:
        return bytes(answer.read())


@pytest.fixture(autouse=True)
def forget_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each test, this process counts as one that has made no request: later tests fork workers for local files."""
    monkeypatch.setattr(requests, "_process", None)


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that moto imports
        from moto.server import ThreadedMotoServer
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@contextlib.contextmanager
def proxied(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy in front of a store, with the environment of a user who has access to it."""
    proxy = FaultProxy(port)
    for name, value in {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "PENSTOCK_REMOTE_TIMEOUT": "20",
        "PENSTOCK_REMOTE_WAIT": "0.005",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    place_of.cache_clear()
    yield proxy
    place_of.cache_clear()
    proxy.stop()


@pytest.fixture
def proxy(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """An empty bucket `bkt` behind a proxy."""
    ask(s3_port, "/moto-api/reset", "POST")
    ask(s3_port, "/bkt", "PUT")
    with proxied(s3_port, monkeypatch) as proxy:
        yield proxy


@pytest.fixture
def put(proxy: FaultProxy) -> Put:
    """Write an object past the proxy and past Penstock; return its URL."""

    def write(key: str, data: bytes) -> str:
        ask(proxy.upstream, f"/bkt/{urllib.request.quote(key)}", "PUT", data)
        return f"s3://bkt/{key}"

    return write


def write_data(path: Path, rows: int) -> Path:
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
    lines = (
        json.dumps({"text": " ".join(words[: 1 + n % 9] * (1 + n % 5)), "n": n})
        for n in range(rows)
    )
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Become:
    """Become a machine of this name: with a mirror of its own."""

    def become(name: str) -> Path:
        monkeypatch.setenv("PENSTOCK_MIRROR", str(tmp_path / f"mirror-{name}"))
        return tmp_path / f"mirror-{name}"

    become("a")
    return become


@pytest.fixture
def built(tmp_path: Path, tokenizer_path: Path) -> Build:
    """Build a store of 1,000 rows in a cache; 50 rows a shard."""
    data = write_data(tmp_path / "data.jsonl", 1000)

    def make(where: Any, **options: Any) -> Store:
        source = ps.open(str(data), cache_dir=where)
        template = choose_template(source, "text", tokenizer_path, {}, facts=None)
        return build(
            source,
            template,
            engine=LocalEngine(1),
            cache=open_cache(where),
            **{"shard_rows": 50, **options},
        )

    return make


@pytest.fixture
def there(built: Build, put: Put, tmp_path: Path, machine: Become) -> Build:
    """The same store in a bucket that another machine has filled: a local cache, copied object by object."""
    built(tmp_path / "local")
    upload(tmp_path / "local", put)
    return lambda **options: built(URL, **options)


def upload(local: Path, put: Put) -> None:
    for path in sorted(local.rglob("*")):
        if path.is_file() and path.relative_to(local).parts[0] in SHARED:
            put(f"cache/{path.relative_to(local)}", path.read_bytes())


def objects(folder: str) -> dict[str, bytes]:
    bucket = open_cache(URL).bucket  # type: ignore[attr-defined]
    return {file.path[len(URL) + 1 :]: bucket.place.read(file.path) for file in bucket.scan(folder)}


def files(root: Path, folder: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / folder).rglob("*")
        if path.is_file()
    }
