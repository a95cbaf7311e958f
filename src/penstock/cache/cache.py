"""Publish and read derived files.  A file under its final name is complete and never changes.

Names say what a file is made of, so two writers of one name write the same bytes, and correctness needs no lock.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from penstock.cache import locks
from penstock.errors import StoreError
from penstock.extras.remote.requests import RemoteError
from penstock.places.files import is_remote, with_home
from penstock.places.folder import Folder
from penstock.places.place import FileId

_Data = TypeVar("_Data")

_TRASH = "trash"
_TEMPORARY = "penstock-"

_TRIES = 20
_TRY_SECONDS = 0.05

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
    digest: str | None = None


class Cache:
    """One folder of published files.  A name is a relative path such as `shards/9c/9c1e….arrow`.

    max_bytes: what it may hold, enforced when a store is finished.
    verify: compare a shard with its digest: "first", when this process maps it for the first time, "always", whenever it is mapped, or
    "never"; True and False mean always and never.
    allow_shared: use the folder although others own it or can write to it.  None: as the environment says.
    """

    where: str  # the folder or URL, to be shown, and to open the same cache in another process
    is_remote = False

    def __new__(cls, root: str | os.PathLike[str] | None = None, **_: Any) -> "Cache":
        """Of a URL, make a RemoteCache."""
        if cls is Cache and is_remote(root or os.environ.get("PENSTOCK_CACHE", "")):
            from penstock.extras.remote.cache import RemoteCache

            return super().__new__(RemoteCache)
        return super().__new__(cls)

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
        if _LIKE_URL.search(self.where):
            raise StoreError(
                f"{root or self.where}: a folder with the name of a URL; write a URL as text, with two slashes and in small letters, such "
                f"as s3://bucket/folder (a pathlib.Path drops a slash)"
            )
        given = os.environ.get("PENSTOCK_CACHE_MAX", "").strip()
        self.max_bytes = parse_size(given) if max_bytes is None and given else max_bytes
        self.verify = _verify_mode(verify)
        if allow_shared is None:
            allow_shared = _environment_flag("PENSTOCK_ALLOW_SHARED_CACHE")
        self.place = Folder(self.root, allow_shared=allow_shared, owner=locks.Owner.me)
        self._swept: set[str] = set()  # folders in which this process has looked for leftovers

    @classmethod
    def temporary(cls) -> "Cache":
        """Create a cache that is removed with its last reference; if its process was killed, the next such call removes it."""
        import tempfile  # only here: it imports random and hashlib

        _sweep_temporary(Path(tempfile.gettempdir()))
        cache = cls(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{locks.Owner.me()}-"))
        weakref.finalize(cache, _remove, cache.root, os.getpid())
        return cache

    def path(self, name: str) -> Path:
        """The path of a name, which is always inside the cache."""
        return Path(self.place.absolute(name))

    def size(self, name: str, *, hold: bool = True) -> int | None:
        """Return the bytes of a published file, which is held from now on; None if there is none."""
        with (
            explained("look up", self.path(name)),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            size = self.place.stat(name).size
            if hold:
                self.hold(name)
            return size
        return None

    def sizes(self, names: Collection[str]) -> dict[str, int | None]:
        """Return the bytes of several files, None for those that are missing; none is held."""
        return {name: self.size(name, hold=False) for name in names}

    @property
    def claims(self) -> Any:
        """The place where processes claim what they make; None where a claim means nothing."""
        return self.place

    def fetch_all(self, files: "Collection[Fetch]") -> None:
        """Bring published files to this machine.  Those of a local cache are here."""

    def keep_open(self, name: str, holder: object) -> None:
        """Keep a file of the mirror from removal until `holder` is gone; a local cache has no mirror."""

    def published(self) -> "Cache":
        """Return this cache as other machines see it, without a mirror."""
        return self

    def names(self, folder: str) -> list[str]:
        """Return the published files of a folder, sorted.  On a network, a listing is fresh where a lookup may not be."""
        with (
            explained("list", self.path(folder)),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            return sorted(
                f"{folder}/{name}" for name, _ in self.place.entries(folder) if name[0] != "."
            )
        return []

    def entries(self, below: str = "") -> list[Entry]:
        """Return all published files of the cache, or below one of its folders, sorted; none is held."""
        with explained("list", self.root), contextlib.suppress(FileNotFoundError):
            files = [(self._name(file), file) for file in self.place.scan(below)]
            return sorted(
                Entry(name, file.size, file.mtime) for name, file in files if "/." not in f"/{name}"
            )
        return []

    def read(self, name: str) -> bytes:
        """Return all bytes of a small published file."""
        return self.reading(name, self.place.read)

    def map(self, name: str, *, size: int | None, hold: bool = True) -> memoryview:
        """Memory-map a published file, which must have `size` bytes, if that is known."""
        data = self.reading(name, self.place.map)
        if size not in (None, len(data)):
            expected = f"{len(data)} bytes, expected {size}"
            raise StoreError(
                f"{self.path(name)}: {expected}; remove the file, it will be made again"
            )
        if hold:
            self.hold(name)
        return data

    def reading(self, name: str, read: Callable[[str], _Data]) -> _Data:
        """Return `read(name)`.  A file that we hold may be missing for a moment: `prune` moves it, finds our lease, and restores it."""
        with explained("read", self.path(name)):
            for _ in range(_TRIES if self._lease.holds(name) else 0):
                with contextlib.suppress(FileNotFoundError):
                    return read(name)
                time.sleep(_TRY_SECONDS)
            return read(name)

    def publish(
        self,
        name: str,
        write: Callable[[IO[bytes]], object],
        *,
        replace: bool = False,
        hold: bool = True,
    ) -> int:
        """Write a file beside its place, sync it, give it its name; return its size.

        A file that has the name already stays.  If its bytes differ, that is an error, unless `replace`.
        """
        path = self.path(name)

        def write_and_hold(file: IO[bytes]) -> None:
            write(file)
            if hold:
                self.hold(name)  # before others can see and remove it

        with explained("write", path):
            self._sweep(name.rpartition("/")[0])
            try:
                return self.place.create(name, write_and_hold, replace=replace)
            except FileExistsError as error:
                raise StoreError(f"{path}: {OTHER_CONTENT}") from error

    def hold(self, *names: str, holder: object = None) -> None:
        """Keep files from removal until `holder` is gone, or this process; also marks them as used now."""
        for name in self._lease.hold(names, holder):
            with contextlib.suppress(OSError, StoreError):
                self.place.touch(name)

    def release(self, *names: str) -> None:
        """End a hold of this process; objects that hold the same names keep holding them."""
        self._lease.release(names)

    def held(self) -> set[str]:
        """Return the names that a living process holds."""
        with explained("read", self.root / locks.LEASES):
            return locks.held_names(self.place)

    def now(self) -> float:
        """Return the time by the clock of the file system, as in `Entry.used`."""
        return locks.clock(self.place) or time.time()

    def discard(self, name: str) -> "Discarded":
        """Take a file's name away; `empty` removes it for good, `restore` brings it back."""
        trashed = f"{_TRASH}/{self.place.temporary_name()}"  # so that it is swept if this process is killed now
        with explained("remove", self.path(name)), contextlib.suppress(FileNotFoundError):
            self.place.move(name, trashed)
            return Discarded(self, name, trashed)
        return Discarded(self, name, None)

    def remove(self, name: str) -> None:
        """Remove a published file that nobody needs; one that is missing is not an error."""
        with explained("remove", self.path(name)):
            self.place.remove(name)

    def tidy(self) -> int:
        """Remove what killed processes left behind; return the number of files."""
        with explained("tidy", self.root), contextlib.suppress(FileNotFoundError):
            return len(locks.remove_dead(self.place, map(self._name, self.place.scan(""))))
        return 0

    def _sweep(self, folder: str) -> None:
        """Remove leftovers of a folder when this process first writes to it."""
        if folder not in self._swept:
            self._swept.add(folder)
            with contextlib.suppress(OSError, StoreError):
                names = [f"{folder}/{name}".lstrip("/") for name, _ in self.place.entries(folder)]
                locks.remove_dead(self.place, names)

    def _name(self, file: FileId) -> str:
        return file.path[len(str(self.root)) + 1 :]

    @property
    def _lease(self) -> locks.Lease:
        return locks.my_lease(self.place)

    def __reduce__(self) -> tuple[Callable[..., "Cache"], tuple[Any, ...]]:
        settings = {
            "max_bytes": self.max_bytes,
            "allow_shared": self.place.allow_shared,
            "verify": self.verify,
        }
        return partial(Cache, **settings), (str(self.root),)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"


@dataclass(frozen=True, slots=True)
class Discarded:
    """A file without a name.  Before it is removed for good, there is time to see whether a process began to use it."""

    cache: Cache
    name: str
    trashed: str | None  # its name in the trash; None if there was no such file

    def empty(self) -> None:
        if self.trashed is not None:
            with contextlib.suppress(OSError, StoreError):
                self.cache.place.remove(self.trashed)

    def restore(self) -> None:
        """Give the file its name again, unless a new one was published."""
        if self.trashed is not None and self.cache.size(self.name, hold=False) is None:
            with explained("restore", self.cache.path(self.name)):
                self.cache.place.move(self.trashed, self.name)
        self.empty()


@contextlib.contextmanager
def explained(doing: str, path: Path | str) -> Iterator[None]:
    """Turn an OSError into a StoreError: what was tried, where, why it failed, what to do."""
    try:
        yield
    except RemoteError as error:  # its text says what to do
        raise StoreError(f"cannot {doing} {path}: {error.strerror}") from error
    except OSError as error:
        is_gone = (
            error.errno == errno.ENOENT and doing == "write"
        )  # the folder was removed, or is a dangling link
        advice = _ADVICE.get(
            0 if is_gone else error.errno or 0, f"check the folder, or {_ELSEWHERE}"
        )
        raise StoreError(f"cannot {doing} {path}: {error.strerror or error}; {advice}") from error


def default_root() -> Path:
    """PENSTOCK_CACHE if it is a local folder, else the platform's folder for caches."""
    if (given := os.environ.get("PENSTOCK_CACHE")) and not is_remote(given):
        return _in_home(given)
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
            owner = locks.Owner.parse(path.name.removeprefix(_TEMPORARY).rpartition("-")[0])
            if owner is not None and owner.is_dead and path.lstat().st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)  # follows no links


def _remove(root: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of the object, not of the folder
        shutil.rmtree(root, ignore_errors=True)
