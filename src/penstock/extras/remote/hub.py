"""Files of datasets on the Hugging Face hub: `hf://datasets/org/name[@revision]/path`, by huggingface_hub.

A branch or tag is looked up once per process, and every path that comes back names the commit.  A lookup that fails is an error: the
cache may hold an older commit, and `huggingface_hub` would use that without a word.  Offline (HF_HUB_OFFLINE=1) the commit in the cache
counts, and the log says which.  Files are downloaded whole into the cache of `huggingface_hub` at their first use, with the token that it
finds.
"""

import errno
import logging
import re
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from penstock.errors import SourceError
from penstock.extras.remote.object_store import fits
from penstock.extras.remote.requests import (
    AccessRefused,
    Missing,
    RemoteError,
    passing,
    request,
    shorten,
)
from penstock.places.local import LOCAL, LocalFile
from penstock.places.place import FileId

_log = logging.getLogger("penstock")

_Answer = TypeVar("_Answer")

_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_URL = re.compile(
    rf"hf://datasets/(?P<repo>{_NAME})(?:@(?P<revision>[^/@\[]+))?(?:/(?P<path>.*))?", re.DOTALL
)
_HUB_NAME = re.compile(rf"(?P<repo>{_NAME})(?:@(?P<revision>[\w.%-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LOGIN = "log in with `hf auth login` or set HF_TOKEN"
_OFFLINE = (
    "OfflineModeIsEnabled",
    "CachedRepoTreeNotFoundError",
    "LocalEntryNotFoundError",
    "IncompleteSnapshotError",
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All files of one commit: path → (bytes, git's id of the content)."""

    commit: str
    files: dict[str, tuple[int, str]]


_KNOWN: dict[
    tuple[str, str], Snapshot
] = {}  # (repository, revision) → what was found in this process

_GUESSED: set[str] = (
    set()
)  # repositories that were named like a path: a failure may be a mistyped local path


def hub_url(name: str, revision: str | None = None) -> str | None:
    """Return the URL of `org/name` or `org/name@revision`; None if the text cannot be the name of a dataset on the hub."""
    found = _HUB_NAME.fullmatch(name)
    if found is None or ".." in name:
        return None
    _GUESSED.add(found["repo"])
    at = revision or found["revision"]
    return f"hf://datasets/{found['repo']}" + (f"@{urllib.parse.quote(at, safe='')}" if at else "")


def is_hub_name(name: str) -> bool:
    """Return whether a text can be the name `org/name` of a dataset on the hub."""
    return re.fullmatch(_NAME, name) is not None and ".." not in name


class HubPlace:
    """The files of one dataset at one revision.  They can only be read."""

    def __init__(self, repo: str, revision: str) -> None:
        self.repo = repo
        self.revision = revision

    @classmethod
    def of(cls, url: str) -> "HubPlace":
        """Return the place that a URL belongs to."""
        found = _URL.fullmatch(url)
        if found is None:
            raise SourceError(
                f"{url}: expected hf://datasets/org/name/path or hf://datasets/org/name@revision/path"
            )
        return cls(found["repo"], urllib.parse.unquote(found["revision"] or "main"))

    def snapshot(self) -> Snapshot:
        """Return the commit of the revision and its files: looked up once, so that one process sees one commit."""
        key = (self.repo, self.revision)
        if key not in _KNOWN:
            found = self._asked_first(self._look_up)
            _KNOWN[key] = _KNOWN.setdefault((self.repo, found.commit), found)
            _log.info("hub: %s at revision %s is commit %s", self.repo, self.revision, found.commit)
        return _KNOWN[key]

    def _asked_first(self, call: Callable[[], _Answer]) -> _Answer:
        """Make the first request; an error begins with the local path that may have been meant."""
        if self.repo not in _GUESSED:
            return self._ask(call)
        missing = f"no local file or folder {self.repo!r}, and no dataset on the hub could be read"
        try:
            return self._ask(call)
        except RemoteError as error:
            error.strerror = f"{missing}: {error.strerror}"
            raise
        except SourceError as error:
            raise SourceError(f"{missing}: {error}") from error

    def _look_up(self) -> Snapshot:
        """Find the commit of the revision, on the hub or offline in the cache, and list its files."""
        hub = hub_library()
        commit = self._commit_in_cache(hub) if hub.is_offline_mode() else self._commit_on_hub(hub)
        tree = hub.get_cached_repo_tree(self.repo, repo_type="dataset", revision=commit)
        return Snapshot(commit, {file.path: (file.size, file.blob_id) for file in tree})

    def _commit_in_cache(self, hub: Any) -> str:
        """Return the commit of the revision as the cache knows it; warn, since the hub may have a newer one."""
        if _COMMIT.fullmatch(self.revision):
            return self.revision
        commit = _cached_commit(hub, self.repo, self.revision)
        _log.warning(
            "hub: %s at revision %s is commit %s in the cache; %s",
            self.repo,
            self.revision,
            commit,
            "offline, so the hub was not asked for its present commit",
        )
        return commit

    def _commit_on_hub(self, hub: Any) -> str:
        """Return the present commit of the revision, and put the list of its files into the cache."""
        # This raises an error if the hub does not answer; snapshot_download would use the cache.
        commit: str = hub.HfApi().dataset_info(self.repo, revision=self.revision).sha
        # This notes the list of files and the revision in the cache, for work offline.
        folder = hub.snapshot_download(
            self.repo,
            repo_type="dataset",
            revision=self.revision,
            allow_patterns=["README.md", ".gitattributes"],
        )
        downloaded_commit = Path(folder).name
        if downloaded_commit != commit:
            raise passing(
                errno.EAGAIN, f"moved to {downloaded_commit} while it was looked up", self.root
            )
        return commit

    @property
    def root(self) -> str:
        at = (
            self._commit()
            if (self.repo, self.revision) in _KNOWN
            else urllib.parse.quote(self.revision, safe="")
        )
        return f"hf://datasets/{self.repo}@{at}"

    def _commit(self) -> str:
        return self.revision if _COMMIT.fullmatch(self.revision) else self.snapshot().commit

    def _path(self, name: str) -> str:
        found = _URL.fullmatch(name)
        return (found["path"] or "").strip("/") if found else ""

    def _ask(self, call: Callable[[], _Answer]) -> _Answer:
        return request(call, partial(explain, url=self.root, place=self))

    def absolute(self, name: str) -> str:
        """Return the URL with the commit instead of the branch."""
        path = self._path(name)
        return f"hf://datasets/{self.repo}@{self._commit()}" + (f"/{path}" if path else "")

    def kind(self, name: str) -> Literal["file", "folder", "other", ""]:
        path = self._path(name)
        files = self.snapshot().files
        if path in files:
            return "file"
        return "folder" if not path or any(file.startswith(f"{path}/") for file in files) else ""

    def stat(self, name: str) -> FileId:
        path = self._path(name)
        found = self.snapshot()
        if path not in found.files:
            names = ", ".join([*found.files][:5]) or "no files"
            raise Missing(
                errno.ENOENT,
                f"nothing found at commit {found.commit}; there are {names}; check the name",
                name,
            )
        size, content = found.files[path]
        return FileId(self.absolute(name), size, 0, etag=f'"{content}"')

    def scan(self, folder: str) -> Iterator[FileId]:
        path = self._path(folder)
        for file in self.snapshot().files:
            if not path or file.startswith(f"{path}/"):
                yield self.stat(f"{self.absolute('')}/{file}")

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        above = f"{path}/" if (path := self._path(folder)) else ""
        below = [
            file[len(above) :].split("/")
            for file in self.snapshot().files
            if file.startswith(above)
        ]
        return [*dict.fromkeys((parts[0], len(parts) > 1) for parts in below)]

    def glob(self, pattern: str) -> list[str]:
        parts = tuple(self._path(pattern).split("/"))
        root = self.absolute("")
        return [
            f"{root}/{file}"
            for file in self.snapshot().files
            if fits(tuple(file.split("/")), parts)
        ]

    def open(self, name: str, version: FileId) -> "HubFile":
        return HubFile(version)

    def read(self, name: str, version: FileId | None = None) -> bytes:
        version = version or self.stat(name)
        return HubFile(version).read(0, version.size)

    def download(self, version: FileId) -> str:
        """Return the local path of a file: in the cache, or downloaded."""
        hub = hub_library()
        path = self._path(version.path)
        commit = self._commit()
        local: str = self._ask(
            lambda: hub.hf_hub_download(self.repo, path, repo_type="dataset", revision=commit)
        )
        size = Path(local).stat().st_size
        if size != version.size:
            raise RemoteError(
                errno.EIO,
                f"{local} has {size} bytes, expected {version.size}; remove it and run again",
                version.path,
            )
        return local

    def create(
        self, name: str, write: Callable[[IO[bytes]], object], *, replace: bool = False
    ) -> int:
        raise RemoteError(
            errno.EROFS, "the hub is only read; write to a local folder or a bucket", name
        )

    def remove(self, name: str) -> None:
        raise RemoteError(
            errno.EROFS, "the hub is only read; write to a local folder or a bucket", name
        )


def open_hub_place(url: str) -> HubPlace:
    """Return the place that a URL of the hub belongs to."""
    return HubPlace.of(url)


class HubFile:
    """A file of the hub on the local disk.  Its commit never changes; the copy is checked like any local file.  Pickles as its identity."""

    on_disk = True

    def __init__(self, identity: FileId) -> None:
        self.identity = identity
        try:
            local = HubPlace.of(identity.path).download(identity)
        except RemoteError as error:
            raise SourceError(f"{identity.path}: {error.strerror}") from error
        self._file = LocalFile(LOCAL.stat(local))
        self.read = self._file.read
        self.readinto = self._file.readinto
        self.map = self._file.map
        self.check = self._file.check

    def __reduce__(self) -> tuple[type["HubFile"], tuple[FileId]]:
        return HubFile, (self.identity,)


def forget(repo: str) -> None:
    """Forget what this process knows of a dataset: its branches were changed."""
    branches = [key for key in _KNOWN if key[0] == repo and not _COMMIT.fullmatch(key[1])]
    for key in branches:
        del _KNOWN[key]


def hub_library() -> Any:
    """Return the package huggingface_hub; raise SourceError if it is not installed."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise SourceError(
            "datasets of the hub need huggingface_hub; run: pip install 'penstock[hf]'"
        ) from error
    return huggingface_hub


def _cached_commit(hub: Any, repo: str, revision: str) -> str:
    """Return the commit that the cache has for a branch or tag."""
    folder = Path(hub.constants.HF_HUB_CACHE).expanduser() / f"datasets--{repo.replace('/', '--')}"
    ref = folder / "refs" / revision
    if not ref.is_file():
        raise Missing(
            errno.ENOENT,
            f"offline, and {folder} has no revision {revision!r}; unset HF_HUB_OFFLINE, or copy the cache",
            repo,
        )
    return ref.read_text().strip()


def explain(error: Exception, *, url: str, place: HubPlace) -> RemoteError:
    """Return what an error of huggingface_hub means, by the names of its classes: httpx2 may be another package in another version."""
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, SourceError):
        raise error
    names = {base.__name__ for base in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if "GatedRepoError" in names:
        page = "accept its terms on its page of the hub"
        return AccessRefused(errno.EACCES, f"a gated dataset; {page} and {_LOGIN}", url)
    if "RepositoryNotFoundError" in names:
        private = f"if it is private, {_LOGIN}"
        return Missing(
            errno.ENOENT,
            f"the hub has no dataset {place.repo!r} that you may see; check the name, or the local path; {private}",
            url,
        )
    if "RevisionNotFoundError" in names:
        return Missing(
            errno.ENOENT,
            f"the dataset has no revision {place.revision!r}; check the branch, tag or commit",
            url,
        )
    if names & set(_OFFLINE):
        why = shorten(str(error))
        return Missing(
            errno.ENOENT,
            f"not in the cache of huggingface_hub, and the hub does not give it ({why}); work online once",
            url,
        )
    if "EntryNotFoundError" in names or status == 404:
        return Missing(errno.ENOENT, "nothing found (404); check the name", url)
    if status in (401, 403):
        return AccessRefused(errno.EACCES, f"access denied ({status}); {_LOGIN}", url)
    if status and status != 429 and status < 500:
        return RemoteError(errno.EIO, f"the hub answers {status}: {shorten(str(error))}", url)
    offline = "a cached commit is used only if you say so: set HF_HUB_OFFLINE=1, or name the commit"
    what = (
        f"the hub answers {status}"
        if status
        else f"the hub cannot be reached ({type(error).__name__}: {shorten(str(error))})"
    )
    return passing(errno.EAGAIN, f"{what}; {offline}", url)
