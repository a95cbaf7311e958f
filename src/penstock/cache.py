"""Where do derived files live, and when is one whole?  A file under its final name is whole and never changes.

Names say what a file is made of, so two writers of one name write the same bytes and nobody needs a lock.
"""

import contextlib
import mmap
import os
import secrets
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

from penstock.errors import StoreError
from penstock.fingerprint import Digest

_BLOCK = 1 << 20


def default_root() -> Path:
    """PENSTOCK_CACHE, else the platform's folder for caches."""
    if given := os.environ.get("PENSTOCK_CACHE"):
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "penstock"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "penstock"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


class Cache:
    """One folder of published files.  A name is a relative path such as `shards/9c/9c1e….arrow`."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root).expanduser().absolute() if root is not None else default_root()

    @classmethod
    def temporary(cls) -> "Cache":
        """A cache that is gone when the last user of this object is."""
        cache = cls(tempfile.mkdtemp(prefix="penstock-"))
        weakref.finalize(cache, _remove, cache.root, os.getpid())
        return cache

    def path(self, name: str) -> Path:
        """Where a name lies; a name never leads out of the cache."""
        parts = name.split("/")
        if not all(parts) or any(part in (".", "..") or "\\" in part or "\0" in part for part in parts):
            raise StoreError(f"{name!r} is no name in a cache; the file that holds it is damaged, remove it")
        return self.root.joinpath(*parts)

    def size(self, name: str) -> int | None:
        """Bytes of a published file, or None where there is none."""
        path = self.path(name)
        try:
            return path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _refuse(error, path, "look up")

    def read(self, name: str) -> bytes:
        """A small published file, whole."""
        path = self.path(name)
        try:
            return path.read_bytes()
        except OSError as error:
            _refuse(error, path, "read")

    def map(self, name: str, *, size: int) -> memoryview:
        """A published file of exactly `size` bytes, memory-mapped."""
        path = self.path(name)
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno()).st_size
                if found != size:
                    raise StoreError(f"{path}: {found} bytes, expected {size}; remove the file, it will be made again")
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        except OSError as error:
            _refuse(error, path, "map")

    def publish(self, name: str, write: Callable[[IO[bytes]], object], *, replace: bool = False) -> int:
        """Write a file beside its place, make it durable, give it its name; its size.

        A name that is taken keeps its file: equal bytes are no news, other bytes are an error unless `replace`.
        """
        path = self.path(name)
        mark = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(8)}"
        temporary = path.with_name(f".{path.name}.{mark}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("xb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                    size = os.fstat(file.fileno()).st_size
                if path.exists() and not replace:
                    _expect_same(path, temporary)
                else:
                    temporary.replace(path)
                    _fsync_folder(path.parent)  # a name that survives a power cut
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
        except OSError as error:
            _refuse(error, path, "write")
        return size

    def __reduce__(self) -> tuple[type["Cache"], tuple[str]]:
        return Cache, (str(self.root),)

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"


def _remove(root: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of the object, not of the folder
        shutil.rmtree(root, ignore_errors=True)


def _expect_same(published: Path, temporary: Path) -> None:
    if published.stat().st_size != temporary.stat().st_size or _content(published) != _content(temporary):
        raise StoreError(
            f"{published}: already there with other content than was just made for this name; "
            f"the file is damaged or was edited: remove it, or pass refresh=True"
        )


def _content(path: Path) -> str:
    content = Digest()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            content.extend(block)
    return content.hexdigest()


def _fsync_folder(folder: Path) -> None:
    if sys.platform == "win32":  # folders cannot be opened there, and rename is durable
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse(error: OSError, path: Path, doing: str) -> NoReturn:
    raise StoreError(
        f"cannot {doing} {path}: {error.strerror or error}; "
        f"check space and permissions there, or choose another folder with cache_dir= or PENSTOCK_CACHE"
    ) from error
