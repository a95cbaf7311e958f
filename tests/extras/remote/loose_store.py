"""A server of S3 and Google's XML API that takes conditional writes and ignores them, as some do: the last writer wins, silently."""

import hashlib
import re
import threading
import urllib.parse
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LooseStore:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}  # by bucket/key
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                store._serve(self)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.port = self._server.server_port

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(handler.path)
        name, query = (
            urllib.parse.unquote(url.path)[1:],
            urllib.parse.parse_qs(url.query, keep_blank_values=True),
        )
        if handler.command == "PUT":
            self.objects[name] = body  # whatever If-None-Match says
            return _send(handler, 200, b"", ETag=_etag(body))
        if handler.command == "DELETE":
            return _send(handler, 404 if self.objects.pop(name, None) is None else 204, b"")
        if "delete" in query:
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for key in keys:
                self.objects.pop(f"{name.rstrip('/')}/{key}", None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return _send(handler, 200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        if "list-type" in query:
            return _send(handler, 200, self._list(name.rstrip("/"), query))
        if (data := self.objects.get(name)) is None:
            return _send(handler, 404, b"<Error><Code>NoSuchKey</Code></Error>")
        headers, status = (
            {"ETag": _etag(data), "Last-Modified": formatdate(1_700_000_000, usegmt=True)},
            200,
        )
        if found := re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range") or ""):
            first, last = int(found[1]), min(int(found[2]), len(data) - 1)
            if first > last:
                return _send(handler, 416, b"<Error><Code>InvalidRange</Code></Error>")
            headers["Content-Range"], status = f"bytes {first}-{last}/{len(data)}", 206
            data = data[first : last + 1]
        return _send(handler, status, data, **headers)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        keys = sorted(
            name.partition("/")[2] for name in self.objects if name.startswith(f"{bucket}/{prefix}")
        )
        below = {
            key: key[len(prefix) :].partition(delimiter)[0] if delimiter else "" for key in keys
        }
        folders = {
            prefix + part
            for key, part in below.items()
            if delimiter and delimiter in key[len(prefix) :]
        }
        files = [key for key in keys if not delimiter or delimiter not in key[len(prefix) :]]
        text = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
            f"<ETag>{_etag(self.objects[f'{bucket}/{key}'])}</ETag><Size>{len(self.objects[f'{bucket}/{key}'])}</Size></Contents>"
            for key in files
        )
        text += "".join(
            f"<CommonPrefixes><Prefix>{folder}{delimiter}</Prefix></CommonPrefixes>"
            for folder in sorted(folders)
        )
        return (
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{text}</ListBucketResult>".encode()
        )


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _send(handler: BaseHTTPRequestHandler, status: int, data: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
