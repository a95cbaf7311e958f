"""Where do derived files live, and when is one whole?  A file under its final name is whole and never changes.

Names say what a file is made of, so two writers of one name write the same bytes and nobody needs a lock.
"""

import contextlib
import mmap
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from penstock.cache import leases
from penstock.cache.faults import again, again_if_stale, refuse
from penstock.cache.folder import Folder, lookup, lstat, read_whole, write_new
from penstock.cache.naming import give_name
from penstock.cache.owner import Owner
from penstock.cache.settings import default_root, flag_from_environment, size_from_environment
from penstock.errors import StoreError

TRASH = "trash"
_TEMPORARY = "penstock-"

_LOOKS, _LOOK_SECONDS = 20, 0.05


@dataclass(frozen=True, slots=True)
class Entry:
    """A published file, as a look at it tells."""

    name: str
    num_bytes: int
    used: float  # seconds, by the clock of the file system: when it was made or last taken up


class Cache:
    """One folder of published files.  A name is a relative path such as `shards/9c/9c1e….arrow`.

    max_bytes: what it may hold; kept when a store is finished.  verify: check what is read against its digest.
    allow_shared: use the folder although others own it or can write to it.  Each is else taken from the environment.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int | None = None,
        allow_shared: bool | None = None,
        verify: bool | None = None,
    ) -> None:
        self.root = Path(root).expanduser().absolute() if root is not None else default_root()
        self.max_bytes = size_from_environment("PENSTOCK_CACHE_MAX") if max_bytes is None else max_bytes
        self.verify = flag_from_environment("PENSTOCK_VERIFY") if verify is None else verify
        if allow_shared is None:
            allow_shared = flag_from_environment("PENSTOCK_ALLOW_SHARED_CACHE")
        self._folder = Folder(self.root, allow_shared)
        self._swept: set[str] = set()  # folders in which leftovers were looked for

    @classmethod
    def temporary(cls) -> "Cache":
        """A cache that is gone when the last user of this object is; one whose process was killed goes with the next."""
        _sweep_temporary(Path(tempfile.gettempdir()))
        cache = cls(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{Owner.me()}-"))
        weakref.finalize(cache, _remove, cache.root, os.getpid())
        return cache

    def path(self, name: str) -> Path:
        """Where a name lies; a name never leads out of the cache."""
        return self.root.joinpath(*_parts(name))

    def size(self, name: str, *, hold: bool = True) -> int | None:
        """Bytes of a published file, or None where there is none.

        One that is there is held: whoever asks is about to use it.
        """
        *folders, last = _parts(name)
        path = self.path(name)

        def ask() -> int | None:
            with self._folder.within(folders) as fd:
                status = lookup(fd, last, path)
                return None if status is None else status.st_size

        try:
            size = again_if_stale(ask)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            refuse(error, path, "look up")
        if size is not None and hold:
            self.hold(name)
        return size

    def names(self, folder: str) -> list[str]:
        """Published files of a folder, sorted.  On a network this is truthful where asking for one name is not."""
        try:
            with self._folder.within(_parts(folder)) as fd:
                return sorted(f"{folder}/{name}" for name in os.listdir(fd) if not name.startswith("."))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            refuse(error, self.path(folder), "list")

    @contextlib.contextmanager
    def folder(self, name: str, *, make: bool = False) -> Iterator[int]:
        """A folder of the cache, open, for files that are not published but come and go."""
        with self._folder.within(_parts(name), make=make) as fd:
            yield fd

    def entries(self, below: str = "") -> list[Entry]:
        """Every published file of the cache, or below one of its folders; nothing is taken up by looking."""
        found: list[Entry] = []
        try:
            with self._folder.within(_parts(below) if below else ()) as fd:
                for folder, folders, files, inner in os.fwalk(".", dir_fd=fd):
                    folders[:] = [name for name in folders if not name.startswith(".")]
                    for file in files:
                        with contextlib.suppress(FileNotFoundError):
                            status = lstat(inner, file)
                            if stat.S_ISREG(status.st_mode) and not file.startswith("."):
                                name = os.path.normpath(f"{below or '.'}/{folder}/{file}")
                                found.append(Entry(name, status.st_size, status.st_mtime))
        except FileNotFoundError:
            return []
        except OSError as error:
            refuse(error, self.root, "list")
        return sorted(found, key=lambda entry: entry.name)

    @contextlib.contextmanager
    def opened(self, name: str, *, size: int | None = None) -> Iterator[int]:
        """A published file as an open descriptor; StoreError where it has not `size` bytes."""
        *folders, last = _parts(name)
        path = self.path(name)
        with contextlib.ExitStack() as stack:

            def enter() -> int:
                fd = stack.enter_context(self._folder.within(folders))
                return stack.enter_context(self._folder.reading(fd, last, path))

            try:
                file = self._patiently(name, enter)
                found = os.fstat(file).st_size
                if size is not None and found != size:
                    raise StoreError(f"{path}: {found} bytes, expected {size}; remove the file, it will be made again")
                yield file
            except OSError as error:
                refuse(error, path, "read")

    def _patiently(self, name: str, enter: Callable[[], int]) -> int:
        """A file that we hold may be away for a moment: whoever took it sees our lease next, and puts it back."""
        for _ in range(_LOOKS if leases.my_lease(self._folder).holds(name) else 0):
            with contextlib.suppress(FileNotFoundError):
                return again_if_stale(enter)
            time.sleep(_LOOK_SECONDS)
        return again_if_stale(enter)

    def read(self, name: str) -> bytes:
        """A small published file, whole."""
        with self.opened(name) as fd:
            return read_whole(fd)

    def map(self, name: str, *, size: int, hold: bool = True) -> memoryview:
        """A published file of exactly `size` bytes, memory-mapped."""
        with self.opened(name, size=size) as fd:
            if hold:
                self.hold(name)
            return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if size else b"")

    def publish(
        self, name: str, write: Callable[[IO[bytes]], object], *, replace: bool = False, hold: bool = True
    ) -> int:
        """Write a file beside its place, make it durable, give it its name; its size.

        A name that is taken keeps its file: equal bytes are no news, other bytes are an error unless `replace`.
        """
        *folders, last = _parts(name)
        path = self.path(name)
        temporary = leases.temporary_name()
        try:
            with self._folder.within(folders, make=True) as fd:
                self._sweep("/".join(folders), fd)
                try:
                    size = write_new(fd, temporary, write)
                    if hold:
                        self.hold(name)  # before it can be seen, so that nobody removes it in between
                    give_name(self._folder, fd, temporary, last, path, replace=replace)
                finally:
                    with contextlib.suppress(OSError):
                        again(lambda: os.unlink(temporary, dir_fd=fd))
        except OSError as error:
            refuse(error, path, "write")
        return size

    def hold(self, *names: str, holder: object = None) -> None:
        """Tell others that these are in use, until `holder` is gone or this process; they are also used just now."""
        for name in leases.my_lease(self._folder).hold(names, holder):
            *folders, last = _parts(name)
            with contextlib.suppress(OSError, StoreError), self._folder.within(folders) as fd:
                os.utime(last, dir_fd=fd, follow_symlinks=False)

    def release(self, *names: str) -> None:
        """This process needs these no longer, or an object holds them now."""
        leases.my_lease(self._folder).release(names)

    @property
    def is_writable(self) -> bool:
        """Whether it is worth trying; nothing is written to find out."""
        try:
            with self._folder.within() as fd:
                return leases.may_write(fd)
        except (OSError, StoreError):
            return False

    def held(self) -> set[str]:
        """Names that some living process holds."""
        try:
            return leases.held(self._folder)
        except OSError as error:
            refuse(error, self.root / leases.FOLDER, "read")

    def now(self) -> float:
        """The time by the clock of the file system, which also says when files were used."""
        try:
            with self._folder.within(make=True) as fd:
                return leases.clock(fd)
        except OSError as error:
            refuse(error, self.root, "write")

    def discard(self, name: str) -> "Discarded":
        """Take a file's name away; it is gone with `empty`, or comes back with `restore`."""
        *folders, last = _parts(name)
        aside = leases.temporary_name()  # so that it goes the way of all leftovers if this process is killed now
        try:
            with self._folder.within(folders) as fd, self._folder.within([TRASH], make=True) as trash:
                again(lambda: os.rename(last, aside, src_dir_fd=fd, dst_dir_fd=trash))
        except FileNotFoundError:
            return Discarded(self, name, None)
        except OSError as error:
            refuse(error, self.path(name), "remove")
        return Discarded(self, name, aside)

    def tidy(self) -> int:
        """Remove what killed processes left behind; how many files."""
        count = 0
        try:
            with self._folder.within() as fd:
                for _, _, _, inner in os.fwalk(".", dir_fd=fd):
                    count += len(leases.sweep(inner, now=self.now))
        except FileNotFoundError:
            pass
        except OSError as error:
            refuse(error, self.root, "tidy")
        return count

    def _sweep(self, folder: str, fd: int) -> None:
        """Leftovers of a folder go when this process first writes to it."""
        if folder not in self._swept:
            self._swept.add(folder)
            with contextlib.suppress(OSError, StoreError):
                leases.sweep(fd, now=lambda: leases.clock(fd))

    def __reduce__(self) -> tuple[Callable[..., "Cache"], tuple[Any, ...]]:
        return _again, (str(self.root), self.max_bytes, self._folder.allow_shared, self.verify)

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"


@dataclass(frozen=True, slots=True)
class Discarded:
    """A file without a name.  Between losing it and being gone there is time to see whether somebody just took it up."""

    cache: Cache
    name: str
    aside: str | None  # its name in the trash; None where there was no such file

    def empty(self) -> None:
        if self.aside is not None:
            with contextlib.suppress(OSError, StoreError), self.cache._folder.within([TRASH]) as trash:
                again(lambda: os.unlink(str(self.aside), dir_fd=trash))

    def restore(self) -> None:
        """Back to its name, unless somebody has made it anew."""
        *folders, last = _parts(self.name)
        if self.aside is None:
            return
        try:
            with self.cache._folder.within(folders) as fd, self.cache._folder.within([TRASH]) as trash:
                if lookup(fd, last, self.cache.path(self.name)) is None:
                    again(lambda: os.rename(str(self.aside), last, src_dir_fd=trash, dst_dir_fd=fd))
        except OSError as error:
            refuse(error, self.cache.path(self.name), "restore")
        self.empty()


def _again(root: str, max_bytes: int | None, allow_shared: bool, verify: bool) -> Cache:
    return Cache(root, max_bytes=max_bytes, allow_shared=allow_shared, verify=verify)


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if not all(parts) or any(part in (".", "..") or "\\" in part or "\0" in part for part in parts):
        raise StoreError(f"{name!r} is no name in a cache; the file that holds it is damaged, remove it")
    return parts


def _sweep_temporary(folder: Path) -> None:
    """Remove temporary caches of our own whose processes are dead."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_TEMPORARY}*-*"):
            owner = Owner.parse(path.name.removeprefix(_TEMPORARY).rpartition("-")[0])
            if owner is not None and owner.is_dead and path.lstat().st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)  # which follows no links


def _remove(root: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of the object, not of the folder
        shutil.rmtree(root, ignore_errors=True)
