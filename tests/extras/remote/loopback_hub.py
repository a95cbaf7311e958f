"""A Hugging Face hub on this machine: datasets with commits and branches, private and gated ones, and faults on demand."""

import hashlib
import json
import re
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Repo:
    """Files of each commit, and which commit each branch is at."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str] = field(default_factory=dict)
    token: str | None = None  # that may see a private repository
    is_gated: bool = False

    @staticmethod
    def of(files: dict[str, bytes], **more: Any) -> "Repo":
        commit = commit_of(files)
        return Repo({commit: files}, {"main": commit}, **more)

    def push(self, files: dict[str, bytes], branch: str = "main") -> str:
        commit = commit_of(files)
        self.commits[commit], self.branches[branch] = files, commit
        return commit


def commit_of(files: dict[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class LoopbackHub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.log: list[tuple[str, str, str]] = []  # method, path, token
        self.faults: list[tuple[str, int, int]] = []  # part of a path, status, how often
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                hub._serve(self)

            do_HEAD = do_POST = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _fault(self, path: str) -> int | None:
        for number, (part, status, times) in enumerate(self.faults):
            if times > 0 and part in path:
                self.faults[number] = (part, status, times - 1)
                return status
        return None

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        parsed = urllib.parse.urlsplit(handler.path)
        path = urllib.parse.unquote(parsed.path)
        token = (handler.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.log.append((handler.command, path, token))
        if status := self._fault(path):
            return _send(handler, status, {"error": f"a fault: {status}"})
        found = re.match(
            r"/api/datasets/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/(.+))?)?$", path
        ) or re.match(r"/datasets/([^/]+/[^/]+)/(resolve)/([^/]+)/(.+)$", path)
        if found is None:
            return _send(handler, 404, {"error": "Not Found"})
        name, kind, revision = found[1], found[2], found[3] or "main"
        repo = self.repos.get(name)
        if repo is None or (repo.token and token != repo.token):
            return _send(
                handler,
                404 if token else 401,
                {"error": "Repository not found"},
                X_Error_Code="RepoNotFound",
            )
        if repo.is_gated and kind == "resolve":
            return _send(handler, 403, {"error": "gated"}, X_Error_Code="GatedRepo")
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            return _send(handler, 404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        files = repo.commits[commit]
        if kind == "tree":
            deep = (
                urllib.parse.parse_qs(parsed.query).get("recursive", ["false"])[0].lower() == "true"
            )
            listed = _tree(files, f"{found[4]}/" if found[4] else "", deep=deep)
            return _send(
                handler,
                200 if listed else 404,
                listed,
                **({} if listed else {"X_Error_Code": "EntryNotFound"}),
            )
        if kind != "resolve":
            facts = {
                "_id": "0",
                "id": name,
                "sha": commit,
                "private": bool(repo.token),
                "gated": False,
                "disabled": False,
            }
            siblings = [{"rfilename": path} for path in sorted(files)]
            return _send(
                handler,
                200,
                {**facts, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings},
            )
        return _send_file(handler, files.get(found[4]), commit)


def _tree(files: dict[str, bytes], above: str, *, deep: bool) -> list[dict[str, Any]]:
    """Files below a folder, and the folders among them."""
    below = {
        path: path[len(above) :].split("/") for path in sorted(files) if path.startswith(above)
    }
    folders = {
        above + "/".join(parts[:end])
        for parts in below.values()
        for end in range(1, len(parts) if deep else min(2, len(parts)))
    }
    listed = [
        {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
        for folder in sorted(folders)
    ]
    return listed + [
        _entry(path, files[path]) for path, parts in below.items() if deep or len(parts) == 1
    ]


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(data), "oid": _oid(data)}


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _send_file(handler: BaseHTTPRequestHandler, data: bytes | None, commit: str) -> None:
    if data is None:
        return _send(handler, 404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
    whole, status, more = data, 200, {}
    if asked := re.match(r"bytes=(\d+)-(\d*)$", handler.headers.get("Range") or ""):
        start, stop = int(asked[1]), int(asked[2] or len(whole) - 1)
        data, status = whole[start : stop + 1], 206
        more["Content_Range"] = f"bytes {start}-{start + len(data) - 1}/{len(whole)}"
    return _send(
        handler,
        status,
        data,
        ETag=f'"{_oid(whole)}"',
        X_Repo_Commit=commit,
        Accept_Ranges="bytes",
        **more,
    )


def _send(handler: BaseHTTPRequestHandler, status: int, body: Any, **headers: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header(
        "Content-Type",
        "application/octet-stream" if isinstance(body, bytes) else "application/json",
    )
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
