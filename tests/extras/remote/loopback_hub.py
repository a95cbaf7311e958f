"""A Hugging Face hub on this machine: datasets with commits and branches, private and gated ones, uploads, and faults on demand.

Uploads are what huggingface_hub 2.4 sends without the protocol of hf_xet: preupload, the batch and the objects of git LFS, and one commit.
"""

import base64
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
    is_private: bool = False
    messages: list[str] = field(default_factory=list)  # of commits
    large: set[str] = field(default_factory=set)  # files that were uploaded by git LFS

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
        self.writers: set[str] = set()  # tokens that may write
        self.objects: dict[str, bytes] = {}  # uploaded by git LFS, by their SHA-256
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                hub._serve(self)

            do_HEAD = do_POST = do_PUT = do_GET

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
        body = _body(handler)
        parsed = urllib.parse.urlsplit(handler.path)
        path = urllib.parse.unquote(parsed.path)
        token = (handler.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.log.append((handler.command, path, token))
        if status := self._fault(path):
            return _send(handler, status, {"error": f"a fault: {status}"})
        if self._take(handler, path, token, body):
            return None
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
            for entry in listed:
                if entry["path"] in repo.large:
                    content = files[entry["path"]]
                    entry["oid"] = _oid(_pointer(content))
                    entry["lfs"] = {
                        "oid": _sha256(content),
                        "size": len(content),
                        "pointerSize": 130,
                    }
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
            facts["private"] = facts["private"] or repo.is_private
            siblings = [{"rfilename": path} for path in sorted(files)]
            return _send(
                handler,
                200,
                {**facts, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings},
            )
        if found[4] in repo.large and found[4] in files:
            return _send_elsewhere(handler, files[found[4]], commit)
        return _send_file(handler, files.get(found[4]), commit)

    # Uploads

    def _take(self, handler: BaseHTTPRequestHandler, path: str, token: str, body: bytes) -> bool:
        """Answer a request of an upload, or of a large file; return whether it was one."""
        if stored := re.match(r"/objects/([0-9a-f]{64})$", path):
            if handler.command == "PUT":
                self.objects[stored[1]] = body
                _send(handler, 200, b"")
            else:
                _send_file(handler, self.objects.get(stored[1]), "")
            return True
        if handler.command != "POST":
            return False
        if path == "/api/validate-yaml":
            _send(handler, 200, {"errors": [], "warnings": []})
            return True
        if path == "/api/repos/create":
            self._create(handler, token, json.loads(body))
            return True
        found = re.match(
            r"/(?:api/)?datasets/([^/]+/[^/]+?)(?:\.git/info/lfs/objects)?/(preupload|commit|batch|branch)(?:/([^/]+))?$",
            path,
        )
        if found is None:
            return False
        repo = self.repos.get(found[1])
        if repo is None:
            _send(handler, 404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        elif token not in self.writers:
            _send(handler, 403, {"error": "you may not write"})
        elif found[2] == "preupload":
            files = [_mode(each, repo) for each in json.loads(body)["files"]]
            _send(handler, 200, {"files": files})
        elif found[2] == "batch":
            wanted = json.loads(body)["objects"]
            _send(handler, 200, {"transfer": "basic", "objects": [*map(self._slot, wanted)]})
        elif found[2] == "branch" and found[3] in repo.branches:
            _send(handler, 409, {"error": "Reference already exists"})
        elif found[2] == "branch":
            repo.branches[found[3]] = repo.branches["main"]
            _send(handler, 200, {})
        else:
            self._commit(handler, found[1], repo, found[3], body)
        return True

    def _create(self, handler: BaseHTTPRequestHandler, token: str, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if token not in self.writers:
            return _send(handler, 403, {"error": "you may not create in this organization"})
        if name in self.repos:
            return _send(handler, 409, {"error": "You already created this dataset repo"})
        is_private = asked.get("visibility") == "private"
        self.repos[name] = Repo.of({".gitattributes": b"*.arrow filter=lfs\n"})
        self.repos[name].is_private = is_private
        self.repos[name].token = token if is_private else None
        return _send(handler, 200, {"url": f"{self.url}/datasets/{name}", "name": name})

    def _slot(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if wanted["oid"] in self.objects:
            return wanted
        return {**wanted, "actions": {"upload": {"href": f"{self.url}/objects/{wanted['oid']}"}}}

    def _commit(
        self, handler: BaseHTTPRequestHandler, name: str, repo: Repo, branch: str, body: bytes
    ) -> None:
        head, *operations = map(json.loads, body.splitlines())
        parent = head["value"].get("parentCommit")
        if parent is not None and parent != repo.branches[branch]:
            return _send(handler, 412, {"error": "A commit has happened since"})
        files = dict(repo.commits[repo.branches[branch]])
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "deletedFile":
                del files[value["path"]]
            elif operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                content = self.objects.get(value["oid"])
                if content is None or _sha256(content) != value["oid"]:
                    return _send(handler, 422, {"error": f"no object {value['oid']}"})
                files[value["path"]] = content
                repo.large.add(value["path"])
        repo.messages.append(head["value"]["summary"])
        commit = repo.push(files, branch)
        url = f"{self.url}/datasets/{name}/commit/{commit}"
        return _send(handler, 200, {"commitUrl": url, "commitOid": commit, "success": True})


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    """Read what was sent; a file that is uploaded comes in chunks."""
    if handler.headers.get("Transfer-Encoding") != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    parts = []
    while size := int(handler.rfile.readline(), 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(parts)


def _mode(file: dict[str, Any], repo: Repo) -> dict[str, Any]:
    """Say how a file is uploaded: large kinds by git LFS.  oid: of the file that the dataset has."""
    is_large = file["path"].endswith((".arrow", ".lengths"))
    known = repo.commits[repo.branches["main"]].get(file["path"])
    oid = None
    if known is not None:
        oid = _sha256(known) if is_large else _oid(known)
    return {
        "path": file["path"],
        "uploadMode": "lfs" if is_large else "regular",
        "shouldIgnore": False,
        "oid": oid,
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _pointer(data: bytes) -> bytes:
    """The file that git keeps in place of a large one."""
    head = "version https://git-lfs.github.com/spec/v1"
    return f"{head}\noid sha256:{_sha256(data)}\nsize {len(data)}\n".encode()


def _send_elsewhere(handler: BaseHTTPRequestHandler, data: bytes, commit: str) -> None:
    """Send to where a large file is stored, as the hub does."""
    return _send(
        handler,
        302,
        b"",
        Location=f"/objects/{_sha256(data)}",
        X_Repo_Commit=commit,
        X_Linked_Size=str(len(data)),
        X_Linked_ETag=f'"{_sha256(data)}"',
    )


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
