"""An S3 server on this machine, with the latency of a real one.  Not a benchmark itself.

moto runs in a process of its own, behind a proxy that adds milliseconds to every request and counts them.

    with bucket(latency=0.02) as server:      # the environment names it meanwhile
        server.put("cache/file", b"…")
        server.sent()                         # {"bytes": …, "requests": …} until now
"""

import http.client
import json
import logging
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from stand import environment

BUCKET = "bkt"
_SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@dataclass(frozen=True, slots=True)
class Server:
    """The bucket, by HTTP."""

    port: int

    def put(self, name: str, data: bytes) -> None:
        self._ask(f"/{BUCKET}/{name}", "PUT", data)

    def put_folder(self, name: str, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{name}/{path.relative_to(folder)}", path.read_bytes())

    def sent(self) -> dict[str, int]:
        """Bytes and requests until now."""
        return dict(json.loads(self._ask("/sent")))

    def _ask(self, path: str, method: str = "GET", data: bytes | None = None) -> bytes:
        headers = {
            "Authorization": _SIGNED,
            "x-amz-acl": "public-read",
            "Content-Type": "application/octet-stream",
        }
        address = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(address, data, headers, method=method)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())


@contextmanager
def bucket(*, latency: float) -> Iterator[Server]:
    """Start the server, and name it in the environment."""
    from penstock.extras.remote.object_store import place_of  # peers import this module without it

    process = subprocess.Popen(
        [sys.executable, __file__, str(latency)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    server = Server(int(process.stdout.readline()))
    try:
        with environment(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.port}",
            S3_ENDPOINT_URL=f"http://127.0.0.1:{server.port}",
            AWS_REGION="us-east-1",
            AWS_ACCESS_KEY_ID="x",
            AWS_SECRET_ACCESS_KEY="x",
            AWS_EC2_METADATA_DISABLED="true",
            NO_PROXY="127.0.0.1",
        ):
            server._ask(f"/{BUCKET}", "PUT")
            place_of.cache_clear()  # a tiny run asks several servers from one process
            yield server
    finally:
        process.communicate("")


def serve(latency: float) -> None:
    """Run moto and the proxy in front of it, until the parent is gone; print the proxy's port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    upstream, sent = moto.get_host_and_port()[1], {"bytes": 0, "requests": 0}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/sent":
                return self._reply(200, [], json.dumps(sent).encode())
            time.sleep(latency)
            skipped = ("content-length", "connection", "transfer-encoding")
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in skipped
            }
            connection = http.client.HTTPConnection("127.0.0.1", upstream)
            connection.request(
                self.command, self.path, body, headers | {"Content-Length": str(len(body))}
            )
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            sent["bytes"] += len(data)
            sent["requests"] += 1
            kept = [
                pair
                for pair in answer.getheaders()
                if pair[0].lower() not in (*skipped, "date", "server")
            ]
            told = (
                answer.getheader("Content-Length", "0")
                if self.command == "HEAD"
                else str(len(data))
            )
            return self._reply(answer.status, kept, data, told)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def _reply(
            self, status: int, headers: list[tuple[str, str]], data: bytes, told: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", told or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that went away
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(float(sys.argv[1]))
