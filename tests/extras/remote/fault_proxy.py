"""A proxy in front of a store that fails on request, or at random: errors, cut bodies, stalls, wrong lengths, lost replies,
old listings."""

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_CODES = {
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "OperationAborted",
    500: "InternalError",
    503: "SlowDown",
}
_HOP = ("content-length", "transfer-encoding", "connection", "date", "server")

Fault = int | str  # a status, or one of the words in `FaultProxy._answer`
READ_FAULTS: tuple[Fault, ...] = (503, 500, 429, 409, "reset", "cut", "short-length", "long-length")
WRITE_FAULTS: tuple[Fault, ...] = (503, 500, 429, 409, "reset", "lost-reply")


@dataclass
class Rule:
    do: Fault
    match: str = ""
    method: str = "*"
    times: int = 1


class FaultProxy:
    """Forwards to a port of this machine.  `fault` makes single requests fail; `chance` makes a share of all fail."""

    def __init__(self, port: int) -> None:
        self.upstream, self.rules, self.log = (
            port,
            list[Rule](),
            list[tuple[str, str, str | None, Fault | None]](),
        )
        self.injected: Counter[Fault] = Counter()
        self._lock, self._share, self._random = threading.Lock(), 0.0, random.Random(0)
        self._stalls = 0
        self._seen: dict[
            str, tuple[int, list[tuple[str, str]], bytes]
        ] = {}  # the first answer to each request for a list
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                proxy._serve(self)

            do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that went away
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault(self, do: Fault, match: str = "", *, method: str = "*", times: int = 1) -> None:
        self.rules.append(Rule(do, match, method, times))

    def chance(self, share: float, *, seed: int = 0, stalls: int = 0) -> None:
        """Let a share of all requests fail; `stalls` of them get no answer at all."""
        self._share, self._random, self._stalls = share, random.Random(seed), stalls

    def _pick(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for rule in self.rules:
                if rule.times > 0 and rule.method in ("*", method) and rule.match in path:
                    rule.times -= 1
                    return rule.do
            if self._random.random() >= self._share:
                return None
            if self._stalls and self._random.random() < 0.02:
                self._stalls -= 1
                do: Fault = "stall"
            else:
                do = self._random.choice(READ_FAULTS if method == "GET" else WRITE_FAULTS)
            self.injected[do] += 1
            return do

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = _body(handler)
        do = self._pick(handler.command, handler.path)
        self.log.append((handler.command, handler.path, handler.headers.get("Range"), do))
        if do == "reset":
            return _reset(handler)
        if do == "stall":
            time.sleep(2.5)
            return _reset(handler)
        if isinstance(do, int):
            text = f'<?xml version="1.0"?><Error><Code>{_CODES.get(do, "Error")}</Code></Error>'.encode()
            return _send(handler, do, [], text, len(text))
        status, headers, data = self._forward(handler, body)
        if "list-type" in handler.path:
            first = self._seen.setdefault(handler.path, (status, headers, data))
            status, headers, data = first if do == "stale" else (status, headers, data)
        if do == "lost-reply":  # the server has done it; the client never hears
            return _reset(handler)
        told = {name.lower(): value for name, value in headers}.get("content-length", "0")
        length = len(data) if handler.command != "HEAD" else int(told)
        length += {"long-length": 10, "short-length": -min(10, length)}.get(str(do), 0)
        kept = [pair for pair in headers if pair[0].lower() not in _HOP]
        _send(
            handler, status, kept, data[: len(data) // 2] if do == "cut" else data[:length], length
        )
        handler.close_connection = handler.close_connection or do is not None
        return None

    def _forward(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {
            name: value for name, value in handler.headers.items() if name.lower() not in _HOP
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            connection.request(
                handler.command, handler.path, body, headers | {"Content-Length": str(len(body))}
            )
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if "chunked" not in handler.headers.get("Transfer-Encoding", ""):
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    body = b""
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: list[tuple[str, str]],
    data: bytes,
    length: int,
) -> None:
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(length))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)


def _reset(handler: Any) -> None:
    """End the connection with a reset."""
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
