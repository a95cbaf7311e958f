"""Read files of web servers, with the standard library.  Redirects are followed only where `addresses` allows it.

`WebClient` has the two calls of obstore that reading needs, `head` and `get`, with the same answers, so that the rest of a place does
not know which of the two it uses.  obstore itself follows every redirect.
"""

import base64
import contextlib
import email.utils
import errno
import http.client
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import SplitResult, urlsplit

from penstock.extras.remote.addresses import Kind, address_kind, check_kinds, name_kind, redirected
from penstock.extras.remote.requests import RemoteError

_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_KEPT_SECONDS = 60.0  # a redirect is remembered for so long: each range of a file needs a request
_MOST_IDLE = 16  # connections to one server that are kept for the next request
_READ = 1 << 20
_BROKEN = (http.client.RemoteDisconnected, ConnectionError, http.client.BadStatusLine)


class BadAnswer(Exception):
    """A server's answer that reports a failure; its text has the status, as `explain_obstore` looks for it."""


class RangeNotSupportedError(Exception):
    """A server sends the whole file when it is asked for a part of it; obstore's error has the same name."""


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """What obstore calls a GetResult."""

    meta: dict[str, Any]
    attributes: dict[str, str]
    range: tuple[int, int]
    data: bytes

    def bytes(self) -> bytes:
        return self.data


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a request goes: its address, and the IP address that was checked, if it came from a redirect."""

    url: SplitResult
    checked_ip: str | None = None


@dataclass(slots=True)
class _Answer:
    status: int
    headers: http.client.HTTPMessage
    data: bytes


_Idle = dict[tuple[str, str, str | None], list[http.client.HTTPConnection]]


def _close_all(idle: _Idle) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()


class WebClient:
    """All files of one web server, such as `https://host`."""

    def __init__(self, root: str, *, seconds: float) -> None:
        """seconds: for one request, all redirects and bytes included."""
        self._root = root
        self._seconds = seconds
        self._moved: dict[str, tuple[_Target, float]] = {}
        self._idle: _Idle = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)  # also when the process ends

    # The calls of obstore

    def head(self, client: Any, key: str) -> dict[str, Any]:
        answer = self._ask("HEAD", key, {}, most_bytes=0)
        return self._meta(key, answer, _length(answer, "Content-Length"))

    def get(self, client: Any, key: str, options: dict[str, Any]) -> WebAnswer:
        headers = {}
        start, stop = options.get("range", (0, None))
        if stop is not None:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        if options.get("if_match"):
            headers["If-Match"] = options["if_match"]
        answer = self._ask("GET", key, headers, most_bytes=None if stop is None else stop - start)
        if stop is None:
            size = len(answer.data)
            span = (0, size)
        elif answer.status == 206:
            span, size = _content_range(answer)
        else:
            raise RangeNotSupportedError(
                f"{self._root}/{key}: the server gives a non-partial answer to a request with Range"
            )
        names = {name.title(): value for name, value in answer.headers.items()}
        return WebAnswer(self._meta(key, answer, size), names, span, answer.data)

    def put(self, client: Any, key: str, *_: Any, **__: Any) -> NoReturn:
        raise RemoteError(errno.ENOTSUP, "a web server takes no files", f"{self._root}/{key}")

    def delete(self, client: Any, key: str) -> NoReturn:
        raise RemoteError(errno.ENOTSUP, "a web server removes no files", f"{self._root}/{key}")

    def _meta(self, key: str, answer: _Answer, size: int) -> dict[str, Any]:
        written = datetime.fromtimestamp(0, UTC)
        given = answer.headers.get("Last-Modified")
        if given:
            with contextlib.suppress(ValueError):  # what is not a date counts as none
                written = email.utils.parsedate_to_datetime(given)
        return {
            "path": key,
            "size": size,
            "last_modified": written,
            "e_tag": answer.headers.get("ETag"),
        }

    # Requests and redirects

    def _ask(
        self, method: str, key: str, headers: dict[str, str], *, most_bytes: int | None
    ) -> _Answer:
        until = time.monotonic() + self._seconds
        own = _Target(urlsplit(f"{self._root}/{urllib.parse.quote(key)}"))
        target, remembered_until = self._moved.get(key, (own, 0.0))
        is_remembered = time.monotonic() < remembered_until
        if not is_remembered:
            target = own
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._send(method, target, headers, most_bytes, until)
            if is_remembered and answer.status >= 400:  # a signed address may have expired
                is_remembered = False
                self._moved.pop(key, None)
                target = own
                continue
            if answer.status not in _REDIRECTS:
                break
            target = self._follow(own, target, answer.headers.get("Location", ""))
        else:
            raise RemoteError(
                errno.ELOOP,
                f"the server redirects more than {_MOST_REDIRECTS} times; name the address of the file itself",
                own.url.geturl(),
            )
        if answer.status not in (200, 206):
            shown = answer.data[:200].decode("utf-8", "replace")
            raise BadAnswer(f"the server answered with status code: {answer.status} {shown}")
        if target is not own:
            self._moved[key] = (target, time.monotonic() + _KEPT_SECONDS)
        return answer

    def _follow(self, own: _Target, target: _Target, location: str) -> _Target:
        """Return where a redirect leads, or refuse it by name."""
        try:
            url = redirected(target.url.geturl(), location)
            asked = _kinds(own.url)
            ips = _look_up(url)
            check_kinds(asked, _kinds_of(ips, url), str(url.hostname))
        except ValueError as error:
            raise RemoteError(
                errno.EPERM,
                f"the server redirects {error}, which Penstock does not follow; name the address of the file itself, or download it",
                own.url.geturl(),
            ) from error
        return _Target(url, ips[0] if ips else None)

    def _send(
        self,
        method: str,
        target: _Target,
        headers: dict[str, str],
        most_bytes: int | None,
        until: float,
    ) -> _Answer:
        """Send one request over a kept connection, or a new one."""
        where = (target.url.scheme, target.url.netloc, target.checked_ip)
        with self._lock:
            idle = self._idle.setdefault(where, [])
            connection = idle.pop() if idle else None
        is_kept = connection is not None
        try:
            connection = connection or _connect(target, self._left(until))
            answer = self._converse(connection, method, target, headers, most_bytes, until)
        except _BROKEN:
            if connection is not None:
                connection.close()
            if not is_kept:
                raise
            # a kept connection may have been closed by the server; a new one shows whether the server answers
            connection = _connect(target, self._left(until))
            answer = self._converse(connection, method, target, headers, most_bytes, until)
        with self._lock:
            if connection.sock is not None and len(idle) < _MOST_IDLE:
                idle.append(connection)
                return answer
        connection.close()
        return answer

    def _left(self, until: float) -> float:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no complete answer within {self._seconds:g} seconds")
        return left

    def _converse(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: _Target,
        headers: dict[str, str],
        most_bytes: int | None,
        until: float,
    ) -> _Answer:
        url = target.url
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        if getattr(connection, "asks_proxy", False):
            path = f"{url.scheme}://{url.netloc}{path}"
        sent = {"Accept-Encoding": "identity", "User-Agent": "penstock", "Accept": "*/*", **headers}
        try:
            if connection.sock is not None:
                connection.sock.settimeout(self._left(until))
            connection.request(method, path, headers=sent)
            response = connection.getresponse()
            # of a failure, the beginning says why; of a range, one byte more than was asked for shows a wrong answer
            most = most_bytes if response.status in (200, 206) else _READ
            data = bytearray()
            while most is None or len(data) <= most:
                if connection.sock is not None:
                    connection.sock.settimeout(self._left(until))
                part = response.read(_READ if most is None else min(_READ, most + 1 - len(data)))
                if not part:
                    break
                data += part
            expected = response.headers.get("Content-Length", "")
            if not response.isclosed():  # more than was asked for: the rest is not read
                connection.close()
            elif method != "HEAD" and expected.isdecimal() and len(data) < int(expected):
                raise http.client.IncompleteRead(bytes(data), int(expected) - len(data))
        except BaseException:
            connection.close()
            raise
        return _Answer(response.status, response.headers, bytes(data))


def _length(answer: _Answer, name: str) -> int:
    given = answer.headers.get(name, "")
    if not given.isdecimal():
        raise BadAnswer(f"Header missing: {name}")
    return int(given)


def _content_range(answer: _Answer) -> tuple[tuple[int, int], int]:
    """Return the range and the size of the whole file, of an answer with a part of it."""
    given = answer.headers.get("Content-Range", "")
    span, _, size = given.removeprefix("bytes ").partition("/")
    first, _, last = span.partition("-")
    if not (first.isdecimal() and last.isdecimal() and size.isdecimal()):
        raise BadAnswer(f"Header missing: Content-Range is {given[:60]!r}")
    return (int(first), int(last) + 1), int(size)


# Addresses and connections


def _look_up(url: SplitResult) -> list[str]:
    """Return the IP addresses of a host; none if a proxy looks it up."""
    if _proxy_of(url) is not None:
        return []
    host = str(url.hostname)
    port = url.port or (443 if url.scheme == "https" else 80)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def _kinds(url: SplitResult) -> frozenset[Kind]:
    return _kinds_of(_look_up(url), url)


def _kinds_of(ips: list[str], url: SplitResult) -> frozenset[Kind]:
    """Return the kinds of addresses that a host has.  Behind a proxy, a name that needs a lookup counts as public."""
    if ips:
        return frozenset(map(address_kind, ips))
    return frozenset([name_kind(str(url.hostname)) or "public"])


def _proxy_of(url: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment sets for an address."""
    given = urllib.request.getproxies().get(url.scheme)
    if not given or urllib.request.proxy_bypass(str(url.hostname)):
        return None
    return urlsplit(given if "://" in given else f"http://{given}")


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _connect(target: _Target, seconds: float) -> http.client.HTTPConnection:
    """Return a connection to the server, or to the proxy in front of it, that is not opened yet."""
    url = target.url
    host = str(url.hostname)
    limit = min(seconds, 10.0)  # to connect; each request sets its own
    proxy = _proxy_of(url)
    near, port = (host, url.port) if proxy is None else (str(proxy.hostname), proxy.port or 80)
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        connection = http.client.HTTPSConnection(near, port, timeout=limit, context=_tls())
    else:
        connection = http.client.HTTPConnection(near, port, timeout=limit)
    if proxy is not None:
        user = _proxy_user(proxy)
        if url.scheme == "https":
            connection.set_tunnel(host, url.port or 443, headers=user)
        else:
            connection.asks_proxy = True  # type: ignore[attr-defined]  # it takes whole addresses as paths
    elif target.checked_ip is not None:
        checked_ip = target.checked_ip

        def create(
            address: tuple[str, int], timeout: Any = None, source_address: Any = None
        ) -> socket.socket:
            # the address that was checked: a second lookup could give another one
            return socket.create_connection((checked_ip, address[1]), timeout, source_address)

        connection._create_connection = create  # type: ignore[attr-defined]  # TLS still checks the name of the host
    return connection


def _proxy_user(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    name = urllib.parse.unquote(proxy.username)
    password = urllib.parse.unquote(proxy.password or "")
    token = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {token}"}
