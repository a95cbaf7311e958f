"""A web server redirects a request only to the same kind of address, and never from https to http."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import penstock as ps
from penstock.errors import SourceError
from penstock.extras.remote import web
from penstock.extras.remote.addresses import address_kind, check_kinds, name_kind, redirected

ROWS = b"".join(b'{"n": %d}\n' % row for row in range(50))


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("0.0.0.0", "loopback"),
        ("::1", "loopback"),
        ("::", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("64:ff9b::7f00:1", "loopback"),
        ("2002:7f00:1::", "loopback"),
        ("169.254.169.254", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("fd00::1", "private"),
        ("224.0.0.1", "private"),
        ("255.255.255.255", "private"),
        ("8.8.8.8", "public"),
        ("1.1.1.1", "public"),
        ("2606:4700:4700::1111", "public"),
        ("::ffff:8.8.8.8", "public"),
    ],
)
def test_addresses_are_of_one_kind(address: str, kind: str) -> None:
    if address == "::ffff:8.8.8.8":
        assert address_kind(address) in ("public", "private")  # Python's versions disagree
        return
    assert address_kind(address) == kind


def test_names_that_need_no_look_up() -> None:
    assert (
        name_kind("localhost") == name_kind("LOCALHOST.") == name_kind("a.localhost") == "loopback"
    )
    assert name_kind("10.0.0.1") == "private"
    assert name_kind("example.org") is None
    with pytest.raises(ValueError):
        address_kind("example.org")


@pytest.mark.parametrize(
    ("url", "location", "why"),
    [
        ("https://a.org/x", "http://a.org/x", "from https to http"),
        ("http://a.org/x", "file:///etc/passwd", "not a web server"),
        ("http://a.org/x", "ftp://b.org/x", "not a web server"),
        ("http://a.org/x", "gopher://127.0.0.1:6379/_x", "not a web server"),
        ("http://a.org/x", "http://user:word@b.org/x", "a user or password"),
        ("http://a.org/x", "http://b.org:99999/x", "port"),
    ],
)
def test_a_redirect_to_another_kind_of_place_is_refused(url: str, location: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        redirected(url, location)


def test_redirects_on_one_server_and_to_https_are_followed() -> None:
    assert redirected("https://a.org/x/y", "../z?q=1").geturl() == "https://a.org/z?q=1"
    assert redirected("http://a.org/x", "https://b.org/x").geturl() == "https://b.org/x"
    assert redirected("https://a.org/x", "//cdn.org/x").geturl() == "https://cdn.org/x"


def test_kinds_of_two_hosts_are_compared() -> None:
    check_kinds(frozenset(["public"]), frozenset(["public"]), "b.org")
    check_kinds(frozenset(["loopback"]), frozenset(["loopback"]), "localhost")
    for target in ("loopback", "private", "link-local"):
        with pytest.raises(ValueError, match=f"to b.org, which has a {target} address"):
            check_kinds(frozenset(["public"]), frozenset(["public", target]), "b.org")
    with pytest.raises(
        ValueError, match="public address, and the server that was asked has a loop"
    ):
        check_kinds(frozenset(["loopback"]), frozenset(["public"]), "b.org")


class Redirects(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    locations: ClassVar[dict[str, str]] = {}
    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        location = self.locations.get(self.path)
        if location is not None:
            self.send_response(302)
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = ROWS
        status = 200
        given = self.headers.get("Range")
        if given:
            first, _, last = given.removeprefix("bytes=").partition("-")
            data = ROWS[int(first) : int(last) + 1]
            status = 206
        self.send_response(status)
        if given:
            end = int(first) + len(data) - 1
            self.send_header("Content-Range", f"bytes {first}-{end}/{len(ROWS)}")
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[int]:
    server = http.server.ThreadingHTTPServer((host, 0), Redirects)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Ports of two servers of this machine, that redirect as `Redirects.locations` says."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "1")
    monkeypatch.setattr(Redirects, "locations", {})
    monkeypatch.setattr(Redirects, "requests", [])
    with serving() as one, serving() as other:
        yield one, other


def test_a_redirect_between_servers_of_one_kind_is_followed_and_remembered(
    servers: tuple[int, int], tmp_path: Path
) -> None:
    one, other = servers
    Redirects.locations["/a.jsonl"] = "/b.jsonl"
    Redirects.locations["/b.jsonl"] = f"http://localhost:{other}/c.jsonl?token=1"
    source = ps.open(f"http://127.0.0.1:{one}/a.jsonl", cache_dir=tmp_path)
    assert [record["n"] for record in source] == list(range(50))
    asked = [each.partition(" ")[2] for each in Redirects.requests]
    assert asked[:3] == ["/a.jsonl", "/b.jsonl", "/c.jsonl?token=1"]
    assert set(asked[3:]) == {"/c.jsonl?token=1"}  # not asked again for each range


def test_a_remembered_redirect_that_has_expired_is_asked_for_again(
    servers: tuple[int, int], tmp_path: Path
) -> None:
    one, other = servers
    Redirects.locations["/a.jsonl"] = f"http://127.0.0.1:{other}/signed"
    client = web.WebClient(f"http://127.0.0.1:{one}", seconds=10)
    assert client.head(client, "a.jsonl")["size"] == len(ROWS)
    assert list(client._moved) == ["a.jsonl"]
    Redirects.locations["/a.jsonl"] = f"http://127.0.0.1:{other}/signed-again"
    Redirects.locations["/signed"] = "gone://"  # a failure of the old address
    with pytest.raises(OSError, match="not a web server"):
        client.head(client, "a.jsonl")
    del Redirects.locations["/signed"]
    client._moved.clear()
    answer = client.get(client, "a.jsonl", {"range": (0, 5)})
    assert answer.bytes() == ROWS[:5] and answer.range == (0, 5)


def test_a_public_server_does_not_lead_to_this_machine_or_its_network(
    servers: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A12: HTTP sources followed redirects to loopback.  The server here is taken for a public one."""
    one, other = servers
    look_up = web._look_up

    def public(url: Any) -> list[str]:
        return ["93.184.215.14"] if url.port == one else look_up(url)

    monkeypatch.setattr(web, "_look_up", public)
    for location in (
        f"http://127.0.0.1:{other}/b.jsonl",
        f"http://localhost:{other}/b.jsonl",
        f"http://[::ffff:127.0.0.1]:{other}/b.jsonl",
        f"http://2130706433:{other}/b.jsonl",  # 127.0.0.1 as one number
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/b.jsonl",
    ):
        Redirects.locations["/a.jsonl"] = location
        with pytest.raises(
            SourceError, match=r"the server redirects to .* Penstock does not follow"
        ):
            ps.open(f"http://127.0.0.1:{one}/a.jsonl", cache_dir=tmp_path)
    assert all(each.endswith("/a.jsonl") for each in Redirects.requests)


def test_a_server_of_this_machine_does_not_lead_elsewhere_or_in_circles(
    servers: tuple[int, int], tmp_path: Path
) -> None:
    one, _ = servers
    place = f"http://127.0.0.1:{one}/a.jsonl"
    for location, why in (
        ("http://8.8.8.8/a.jsonl", "which has a public address"),
        ("http://10.0.0.1/a.jsonl", "which has a private address"),
        ("file:///etc/passwd", "not a web server"),
        ("/a.jsonl", "redirects more than 5 times"),
    ):
        Redirects.locations["/a.jsonl"] = location
        with pytest.raises(SourceError, match=why):
            ps.open(place, cache_dir=tmp_path)


def test_the_address_that_was_checked_is_the_one_that_is_asked(
    servers: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second lookup of the same name could give another address."""
    one, other = servers
    Redirects.locations["/a.jsonl"] = f"http://rebound.example:{other}/b.jsonl"
    look_up = web._look_up
    answers = iter([["127.0.0.1"]])

    def once(url: Any) -> list[str]:
        return next(answers) if url.hostname == "rebound.example" else look_up(url)

    monkeypatch.setattr(web, "_look_up", once)
    client = web.WebClient(f"http://127.0.0.1:{one}", seconds=10)
    assert client.head(client, "a.jsonl")["size"] == len(ROWS)
