"""A store on this machine (moto), a fault proxy in front of it, and the environment that points there and nowhere else."""

import contextlib
import logging
import urllib.request
import warnings
from collections.abc import Callable, Iterator

import pytest

from penstock.places import requests
from penstock.places.object_store import place_of
from tests.remote.fault_proxy import FaultProxy

_SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"

Put = Callable[[str, bytes], str]


def ask(port: int, path: str, method: str, data: bytes | None = None) -> bytes:
    url = f"http://127.0.0.1:{port}{path}"
    headers = {"Authorization": _SIGNED, "Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method)) as answer:
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
