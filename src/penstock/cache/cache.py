"""Publish and read derived files.  A file under its final name is complete and never changes.

Names say what a file is made of, so two writers of one name write the same bytes, and correctness needs no lock.  Nothing records who
reads a file: what was used within a day is kept, and who keeps a file open for longer renews it.

Environment, read when a Cache is made; arguments come first:
PENSTOCK_CACHE               the folder, or a URL in a bucket
PENSTOCK_MIRROR              for a cache in a bucket, the folder of local copies; PENSTOCK_MIRROR_BYTES limits its shards
PENSTOCK_CACHE_MAX           how many bytes it may hold, such as 200G; the least recently used files go first
PENSTOCK_ALLOW_SHARED_CACHE  1: use a folder that others own or can write to
PENSTOCK_VERIFY              1: check the digest of a shard whenever it is opened; 0: never; else at its first use in a process
"""

import contextlib
import errno
import os
import re
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, Protocol, TypeVar

from penstock import plugins
from penstock.cache.owner import Owner, clock, remove_dead
from penstock.errors import StoreError
from penstock.places.files import is_remote, with_home
from penstock.places.folder import Folder
from penstock.places.place import Explained, FileId

_Data = TypeVar("_Data")

_TEMPORARY = "penstock-"

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(([kmgt])(i?)|)b?\s*", flags=re.IGNORECASE)
_LIKE_URL = re.compile(r"(^|/)(s3|gs|az|https?|hf):/", flags=re.IGNORECASE)
_VERIFY_MODES = ("first", "always", "never")
_YES = {"1", "true", "yes", "on"}
_NO = {"", "0", "false", "no", "off"}

OTHER_CONTENT = "exists with other content than Penstock just made; it is damaged or was edited: remove it, or pass refresh=True"
_ELSEWHERE = "choose another folder with cache_dir= or PENSTOCK_CACHE"
_ADVICE = {
    errno.ENOSPC: f"free some space there (`penstock cache prune`), or {_ELSEWHERE}",
    errno.EDQUOT: f"your quota there is used up: free some space (`penstock cache prune`), or {_ELSEWHERE}",
    errno.EIO: "the disk reports a fault: check it before anything else is written there",
    errno.EMFILE: "this process has too many files open: raise the limit (`ulimit -n`)",
    errno.ENFILE: "this machine has too many files open: close some programs",
    errno.ESTALE: "the network file system lost it: run again",
    errno.EROFS: f"nothing can be written there: {_ELSEWHERE}",
    errno.EACCES: f"check the permissions there, or {_ELSEWHERE}",
    errno.EPERM: f"check the permissions there, or {_ELSEWHERE}",
    errno.ENOENT: "prepare the store again, only what is missing is made",
}


class Entry(NamedTuple):
    """A published file."""

    name: str
    num_bytes: int
    used: float  # when it was made or last used: seconds, by the clock of the file system


class Fetch(NamedTuple):
    """A published file that is needed on this machine, with what is known of its content."""

    name: str
    size: int | None = None
    check: Callable[[memoryview], None] | None = None  # raises StoreError for other bytes


class Cache:
    """One local folder of published files.  A name is a relative path such as `shards/9c/9c1e….arrow`.

    max_bytes: what it may hold, enforced when a store is finished.
    verify: compare a shard with its digest: "first", when this process maps it for the first time, "always", whenever it is mapped, or
    "never"; True and False mean always and never.
    allow_shared: use the folder although others own it or can write to it.  None: as the environment says.
    """

    where: str  # the folder or URL, to be shown, and to open the same cache in another process
    is_remote = False

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int | None = None,
        allow_shared: bool | None = None,
        verify: bool | str | None = None,
    ) -> None:
        self.root = _in_home(root) if root is not None else default_root()
        self.where = str(self.root)
        if root is not None and is_remote(root):
            raise StoreError(f"{root}: a URL, expected a folder; open it with open_cache({root!r})")
        if _LIKE_URL.search(self.where):
            raise StoreError(
                f"{root or self.where}: a folder with the name of a URL; write a URL as text, with two slashes and in small letters, such "
                f"as s3://bucket/folder (a pathlib.Path drops a slash)"
            )
        most = os.environ.get("PENSTOCK_CACHE_MAX", "").strip()
        self.max_bytes = parse_size(most) if max_bytes is None and most else max_bytes
        self.verify = _verify_mode(verify)
        if allow_shared is None:
            allow_shared = _environment_flag("PENSTOCK_ALLOW_SHARED_CACHE")
        self.place = Folder(self.root, allow_shared=allow_shared, owner=Owner.me)
        self._swept: set[str] = set()  # folders in which this process has looked for leftovers

    @classmethod
    def temporary(cls) -> "Cache":
        """Create a cache that is removed with its last reference; if its process was killed, the next such call removes it."""
        import tempfile  # only here: it imports random and hashlib

        _sweep_temporary(Path(tempfile.gettempdir()))
        cache = cls(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{Owner.me()}-"))
        weakref.finalize(cache, _remove, cache.root, os.getpid())
        return cache

    def path(self, name: str) -> Path:
        """The path of a name, which is always inside the cache."""
        return Path(self.place.absolute(name))

    # Read

    def size(self, name: str) -> int | None:
        """Return the bytes of a published file; None if there is none."""
        with (
            explained("look up", self.path(name)),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            return self.place.stat(name).size
        return None

    def sizes(self, names: Collection[str]) -> dict[str, int | None]:
        """Return the bytes of several files, None for those that are missing."""
        return {name: self.size(name) for name in names}

    def names(self, folder: str) -> list[str]:
        """Return the published files of a folder, sorted.  On a network, a listing is fresh where a lookup may not be."""
        with (
            explained("list", self.path(folder)),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            names = [name for name, _ in self.place.entries(folder)]
            return sorted(f"{folder}/{name}" for name in names if name[0] != ".")
        return []

    def entries(self, below: str = "") -> list[Entry]:
        """Return all published files of the cache, or below one of its folders, sorted."""
        with explained("list", self.root), contextlib.suppress(FileNotFoundError):
            files = [(self._name(file), file) for file in self.place.scan(below)]
            published = [(name, file) for name, file in files if "/." not in f"/{name}"]
            return sorted(Entry(name, file.size, file.mtime) for name, file in published)
        return []

    def read(self, name: str) -> bytes:
        """Return all bytes of a small published file."""
        return self.reading(name, self.place.read)

    def read_start(self, name: str, num_bytes: int) -> bytes:
        """Return the first bytes of a published file, all of them if it has fewer."""

        def read(name: str) -> bytes:
            with self.place.opened(name) as fd:
                return os.pread(fd, num_bytes, 0)

        return self.reading(name, read)

    def map(self, name: str, *, size: int | None) -> memoryview:
        """Memory-map a published file, which must have `size` bytes, if that is known."""
        data = self.reading(name, self.place.map, size=size)
        if size not in (None, len(data)):
            raise StoreError(
                f"{self.path(name)}: {len(data)} bytes, expected {size}; remove the file, it will be made again"
            )
        return data

    def reading(self, name: str, read: Callable[[str], _Data], *, size: int | None = None) -> _Data:
        """Return `read(name)`, with errors that say what to do.  size: of the file, if it is known: then a bucket is not asked for it."""
        with explained("read", self.path(name)):
            return read(name)

    # Write

    def publish(
        self,
        name: str,
        write: Callable[[IO[bytes]], object],
        *,
        replace: bool = False,
        durable: bool = True,
    ) -> int:
        """Write a file next to its place, sync it, give it its name; return its size.

        A file that has the name already stays.  If its bytes differ, that is an error, unless `replace`.
        durable: False for what only saves time, and is made again where it is missing or damaged: it is not synced.
        """
        path = self.path(name)
        with explained("write", path):
            self._sweep(name.rpartition("/")[0])
            try:
                return self.place.create(name, write, replace=replace, durable=durable)
            except FileExistsError as error:
                raise StoreError(f"{path}: {OTHER_CONTENT}") from error

    def renew(self, name: str) -> None:
        """Mark a file as used now, so that it is kept for another day, unless it is missing or only others may write to the cache."""
        with contextlib.suppress(OSError, StoreError):
            if self.place.can_write():
                self.place.touch(name)

    def remove(self, name: str) -> None:
        """Remove a published file that is not needed; one that is missing is not an error."""
        with explained("remove", self.path(name)):
            self.place.remove(name)

    def remove_unused(self, name: str, *, since: float) -> bool:
        """Remove a file unless it was used after `since`; return whether it is gone.

        A file that is in use keeps its name, so that a job next to it never misses it.  The name of another file is taken away before its
        time is compared again: a process that renews the file in between is noticed, and the file gets its name back.
        """
        taken = self.place.temporary_name()  # so that it is swept if this process is killed now
        with explained("remove", self.path(name)):
            try:
                if self.place.stat(name).mtime > since:
                    return False
                self.place.move(name, taken)
            except FileNotFoundError:
                return True
            if self.place.stat(taken).mtime <= since:
                self.place.remove(taken)
                return True
            self.place.move(taken, name)
            return False

    def now(self) -> float:
        """Return the time by the clock of the file system, as in `Entry.used`."""
        return clock(self.place) or time.time()

    def tidy(self) -> int:
        """Remove what killed processes left behind; return the number of files."""
        with explained("tidy", self.root), contextlib.suppress(FileNotFoundError):
            return len(remove_dead(self.place, map(self._name, self.place.scan(""))))
        return 0

    # What a cache in a bucket does in another way

    @property
    def claims(self) -> "ClaimPlace | None":
        """The place where processes claim what they make; None where a claim means nothing."""
        return self.place

    def fetch_all(self, files: Collection[Fetch]) -> None:
        """Bring published files to this machine.  Those of a local cache are here."""

    def keep_open(self, name: str, holder: object) -> None:
        """Keep a file of the mirror from removal until `holder` is gone; a local cache has no mirror."""

    def reads(self, reader: "ShardReader") -> None:
        """Note who keeps shards open; a local cache never asks for them to be closed."""

    def published(self) -> "Cache":
        """Return this cache as other machines see it, without a mirror."""
        return self

    @property
    def here(self) -> "Cache":
        """The cache in a folder of this machine, for what concerns no other."""
        return self

    def _sweep(self, folder: str) -> None:
        """Remove leftovers of a folder when this process first writes to it."""
        if folder not in self._swept:
            self._swept.add(folder)
            with contextlib.suppress(OSError, StoreError):
                names = [f"{folder}/{name}".lstrip("/") for name, _ in self.place.entries(folder)]
                remove_dead(self.place, names)

    def _name(self, file: FileId) -> str:
        return file.path[len(str(self.root)) + 1 :]

    def __reduce__(self) -> tuple[Callable[..., "Cache"], tuple[str]]:
        make = partial(
            Cache,
            max_bytes=self.max_bytes,
            allow_shared=self.place.allow_shared,
            verify=self.verify,
        )
        return make, (str(self.root),)

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"


class ClaimPlace(Protocol):
    """Where claims are made: small files, created whole, by one process of several that try.  Raises OSError."""

    def read(self, name: str) -> bytes: ...

    def create(
        self,
        name: str,
        write: Callable[[IO[bytes]], object],
        *,
        replace: bool = False,
        durable: bool = True,
    ) -> int: ...

    def remove(self, name: str) -> None: ...


class ShardReader(Protocol):
    """Who keeps shards open, such as a store."""

    def close_shards(self, *, keep: Callable[[str], bool]) -> None:
        """Close shards, except those whose keys are kept."""


def open_cache(
    root: str | os.PathLike[str] | None = None,
    *,
    max_bytes: int | None = None,
    allow_shared: bool | None = None,
    verify: bool | str | None = None,
) -> Cache:
    """Open the cache in a folder or at a URL; None: PENSTOCK_CACHE, or the platform's folder for caches.

    The scheme of a URL chooses the kind of cache: a plugin of the group `caches`, which is called as Cache is.
    """
    where = os.fspath(root or os.environ.get("PENSTOCK_CACHE", ""))
    make: Callable[..., Cache] = Cache
    if is_remote(where):
        scheme = where.partition("://")[0]
        if scheme not in plugins.names("caches"):
            schemes = ", ".join(f"{name}://" for name in plugins.names("caches")) or "no URL"
            hint = plugins.not_installed("caches", scheme)
            raise StoreError(f"{where}: a cache is a local folder, or at one of: {schemes}{hint}")
        make = plugins.load("caches", scheme)
    return make(root, max_bytes=max_bytes, allow_shared=allow_shared, verify=verify)


@contextlib.contextmanager
def explained(doing: str, path: Path | str) -> Iterator[None]:
    """Turn an OSError into a StoreError: what was tried, where, why it failed, what to do."""
    try:
        yield
    except Explained as error:  # its text says what to do
        raise StoreError(f"cannot {doing} {path}: {error.strerror}") from error
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        is_gone = error.errno == errno.ENOENT and doing == "write"  # or a link to nowhere
        if advice is None or is_gone:
            advice = f"check the folder, or {_ELSEWHERE}"
        raise StoreError(f"cannot {doing} {path}: {error.strerror or error}; {advice}") from error


def default_root() -> Path:
    """PENSTOCK_CACHE if it is a local folder, else the platform's folder for caches."""
    folder = os.environ.get("PENSTOCK_CACHE")
    if folder and not is_remote(folder):
        return _in_home(folder)
    if sys.platform == "darwin":
        return _in_home("~/Library/Caches/penstock")
    return _in_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "penstock"


def _in_home(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path with `~` expanded; raise StoreError if the home folder is not known."""
    expanded = with_home(path)
    if expanded.parts[:1] and expanded.parts[0].startswith("~"):
        raise StoreError(
            f"{os.fspath(path)}: this machine does not know the home folder {expanded.parts[0]}; {_ELSEWHERE}"
        )
    return expanded.absolute()


def parse_size(text: str) -> int:
    """Bytes: "4096", "200G", "1.5 TiB"."""
    parts = _SIZE.fullmatch(text)
    if parts is None:
        raise StoreError(
            f"{text!r} is not a size, expected a number of bytes such as 4096, 200G or 1.5TiB"
        )
    power = "kmgt".index(parts[3].lower()) + 1 if parts[3] else 0
    return int(float(parts[1]) * (1024 if parts[4] else 1000) ** power)


def _verify_mode(given: bool | str | None) -> str:
    """When shards are compared with their digests: first, always or never."""
    if given is None:
        if not os.environ.get("PENSTOCK_VERIFY", "").strip():
            return "first"
        given = _environment_flag("PENSTOCK_VERIFY")
    if isinstance(given, bool):
        return "always" if given else "never"
    if given not in _VERIFY_MODES:
        raise StoreError(f"verify is {given!r}, expected one of {', '.join(_VERIFY_MODES)}")
    return given


def _environment_flag(variable: str) -> bool:
    given = os.environ.get(variable, "").strip().lower()
    if given not in _YES | _NO:
        raise StoreError(f"{variable} is {given!r}, expected 1 or 0")
    return given in _YES


def _sweep_temporary(folder: Path) -> None:
    """Remove temporary caches of this user whose processes are dead."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_TEMPORARY}*-*"):
            owner = Owner.parse(path.name.removeprefix(_TEMPORARY).rpartition("-")[0])
            if owner is not None and owner.is_dead and path.lstat().st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)  # follows no links


def _remove(root: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of the object, not of the folder
        shutil.rmtree(root, ignore_errors=True)
