"""Local files: find, identify, read and create them."""

import contextlib
import errno
import fcntl
import fnmatch
import functools
import mmap
import os
import re
import resource
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import numpy as np

from penstock.errors import SourceChanged, SourceError
from penstock.places.place import FileId

_Answer = TypeVar("_Answer")

_READ = os.O_RDONLY | os.O_CLOEXEC
_MAGIC = re.compile(r"[*?[]")
_CACHE_LINE = 64  # bytes
_BLOCK = 1 << 20
_MAX_OPEN = 64  # files
_MAX_INTERRUPTS = 100  # of one call
_NO_SYNC = {
    errno.EINVAL,
    errno.ENOTSUP,
    errno.ENOSYS,
}  # file systems that have no such call, or need none
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalPlace:
    """All files of this machine.  Names are paths; links are followed."""

    def temporary_name(self) -> str:
        """Return a name for a file that is being written; it cannot be guessed."""
        return f".{os.urandom(8).hex()}.tmp"

    def absolute(self, name: str) -> str:
        return str(Path(name).absolute())

    def _folder(self, name: str) -> str:
        """Return the path of a folder."""
        return name

    def _path(self, name: str, *, make: bool = False, durable: bool = True) -> str:
        """Return the path of a file.  `make`: create the folders above it, so that they survive a power cut if `durable`."""
        if make:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
        return name

    def kind(self, name: str) -> Literal["file", "folder", "other", ""]:
        try:
            mode = os.stat(self._path(name)).st_mode  # noqa: PTH116
        except (OSError, ValueError):  # ValueError: a NUL byte
            return "other" if os.path.lexists(self.absolute(name)) else ""
        return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        with os.scandir(self._folder(folder)) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries]

    def scan(self, folder: str) -> Iterator[FileId]:
        """Yield all files below a folder; links are not followed."""
        for above, _, names in os.walk(self._folder(folder), onerror=_raise_unless_missing):
            for name in names:
                path = os.path.join(above, name)  # noqa: PTH118
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(path)
                    if stat.S_ISREG(status.st_mode):
                        yield file_id(path, status)

    def stat(self, name: str) -> FileId:
        status = os.stat(name)  # noqa: PTH116
        if not stat.S_ISREG(status.st_mode):
            needed = "not a regular file, and random access needs one; copy it to a file first"
            raise OSError(errno.EINVAL, needed, name)
        return file_id(name, status)

    def open(self, name: str, version: FileId) -> "LocalFile":
        return LocalFile(version)

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open a file as a descriptor."""
        fd = self._open(self._path(name, make=bool(flags & os.O_CREAT)), flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, path: str, flags: int) -> int:
        return again(os.open, path, flags | os.O_CLOEXEC, 0o666)

    def read(self, name: str, version: FileId | None = None) -> bytes:
        """Return all of a file.  Four system calls for a known version: a source may have 20,000 small files."""
        if version is None:
            with self.opened(name) as fd, os.fdopen(fd, "rb", closefd=False) as file:
                return file.read()
        size = version.size
        try:
            fd = os.open(version.path, _READ)
        except FileNotFoundError as error:
            raise _changed(version, "was removed") from error
        try:
            data = os.read(fd, size + 1)
            while len(data) < size and (
                more := os.read(fd, size + 1 - len(data))
            ):  # a network reads in pieces
                data += more
            status = os.fstat(fd)  # after reading: a write in between has changed its time
        finally:
            os.close(fd)
        found = (status.st_ino, status.st_size, status.st_mtime_ns, len(data))
        if found != (version.inode, size, version.mtime_ns, size):
            raise _changed(
                version, f"has {status.st_size} bytes, last written at {status.st_mtime_ns} ns"
            )
        return data

    def map(self, name: str) -> memoryview:
        """Memory-map a file."""
        with self.opened(name) as fd:
            return memoryview(
                mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if os.fstat(fd).st_size else b""
            )

    def create(
        self,
        name: str,
        write: Callable[[IO[bytes]], object],
        *,
        replace: bool = False,
        durable: bool = True,
    ) -> int:
        """Write a file next to its place, sync it, and link it to its name.

        durable: False for what may be lost or empty after a power cut, because its readers notice.  A sync takes milliseconds.
        """
        folder, last = os.path.split(self._path(name, make=True, durable=durable))
        temporary = self.temporary_name()
        fd = again(os.open, folder, _READ | os.O_DIRECTORY)  # stays the same if the folder is moved
        try:
            size = _write_new(fd, temporary, write, durable=durable)
            if replace:
                again(os.replace, temporary, last, src_dir_fd=fd, dst_dir_fd=fd)
            else:
                self._link(fd, temporary, last, name)
            if durable:  # also if the file was there: its writer may have been stopped before this
                sync_folder(fd)
        finally:
            with contextlib.suppress(OSError):
                again(os.unlink, temporary, dir_fd=fd)
            os.close(fd)
        return size

    def append(self, name: str, data: bytes) -> None:
        """Add to a small file, or begin it."""
        with self.opened(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as fd:
            os.write(fd, data)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            again(os.unlink, self._path(name))

    def move(self, name: str, new: str) -> None:
        """Give a file another name; a file that has it is removed."""
        again(os.rename, self._path(name), self._path(new, make=True))

    def touch(self, name: str) -> None:
        """Set the time of a file to now."""
        os.utime(self._path(name), follow_symlinks=False)

    def _link(self, fd: int, temporary: str, last: str, name: str) -> None:
        """Give a file its name, unless another one has it; raise FileExistsError if that one has other bytes.

        A rename would remove a file that another machine has mapped over a network.
        """
        while True:
            try:
                return again(
                    os.link, temporary, last, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False
                )
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if last not in os.listdir(fd):
                    return again(os.replace, temporary, last, src_dir_fd=fd, dst_dir_fd=fd)
            with (
                contextlib.suppress(FileNotFoundError),
                self.opened(name) as found,
            ):  # missing: removed since
                if _is_same(again(os.open, temporary, _READ, dir_fd=fd), found):
                    return None
                raise FileExistsError(errno.EEXIST, "already there with other content", name)

    def glob(self, pattern: str) -> list[str]:
        """Find the files that match, each once, although `**` follows links to folders.

        Folders of exactly that name come first: brackets in their names are not a pattern.
        """
        whole = Path(self.absolute(pattern))
        folder = next((parent for parent in whole.parents if parent.is_dir()), None)
        if folder is None:
            return []
        real = functools.cache(os.path.realpath)
        found: dict[str, str] = {}
        for path in sorted(_glob(str(folder), whole.relative_to(folder).parts, ()), key=len):
            above, name = os.path.split(path)
            found.setdefault(os.path.join(real(above), name), path)  # noqa: PTH118
        return list(found.values())


LOCAL = LocalPlace()


class LocalFile:
    """An open local file.  Reads share no cursor, so threads and forked processes can read at once.  Pickles as its identity."""

    on_disk = True

    def __init__(self, identity: FileId) -> None:
        self.identity = identity
        self._fd = -1
        self._fd = os.open(identity.path, _READ)
        if os.fstat(self._fd).st_ino != identity.inode:  # opened again, later or elsewhere
            raise _changed(identity, "another file has taken its place")
        self.check()

    def read(self, start: int, stop: int) -> bytes:
        try:
            data = os.pread(self._fd, stop - start, start)
            while len(data) < stop - start:  # Linux gives at most 2 GiB at once
                more = os.pread(self._fd, stop - start - len(data), start + len(data))
                if not more:
                    raise _changed(self.identity, f"ends at byte {start + len(data)}")
                data += more
        except OSError as error:
            raise SourceError(
                f"{self.identity.path}: cannot read bytes {start}..{stop}: {error.strerror}"
            ) from error
        return data

    def readinto(self, buffer: bytearray | memoryview, start: int) -> int:
        try:
            return os.preadv(self._fd, [buffer], start)
        except OSError as error:
            raise SourceError(
                f"{self.identity.path}: cannot read at byte {start}: {error.strerror}"
            ) from error

    def map(self) -> mmap.mmap | bytes:
        """Memory-map the file.  Check it before each use: reading a page behind a new, earlier end kills the process."""
        return (
            mmap.mmap(self._fd, self.identity.size, access=mmap.ACCESS_READ)
            if self.identity.size
            else b""
        )

    def check(self) -> None:
        status = os.fstat(self._fd)
        known = self.identity
        if (
            status.st_nlink
            and status.st_size == known.size
            and status.st_mtime_ns == known.mtime_ns
        ):
            return
        if not status.st_nlink:
            raise _changed(known, "was removed or replaced")
        raise _changed(
            known, f"has {status.st_size} bytes, last written at {status.st_mtime_ns} ns"
        )

    def __reduce__(self) -> tuple[type["LocalFile"], tuple[FileId]]:
        return LocalFile, (self.identity,)

    def __del__(
        self, close: Callable[[int], None] = os.close
    ) -> None:  # `os` may be gone when the interpreter ends
        if getattr(self, "_fd", -1) >= 0:
            close(self._fd)


def file_id(path: str, status: os.stat_result) -> FileId:
    """Return the identity of a file with this status."""
    return FileId(path, status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def max_open() -> int:
    """Return how many data files to keep open: a small share of the process's limit, as other code needs files, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if soft < 0 else max(1, min(_MAX_OPEN, soft // 8))  # below 0: no limit


def buffer(num_bytes: int) -> memoryview:
    """Return aligned memory for `readinto`: kernels copy several times slower to where malloc puts large blocks (AMD Zen)."""
    room = np.empty(num_bytes + _CACHE_LINE, dtype=np.uint8)
    first = -room.ctypes.data % _CACHE_LINE
    return room.data[first : first + num_bytes]


def _changed(known: FileId, found: str) -> SourceChanged:
    expected = f"expected {known.size} bytes written at {known.mtime_ns} ns"
    return SourceChanged(
        f"{known.path}: changed while open: {found}, {expected}; open the source again"
    )


def _glob(folder: str, parts: tuple[str, ...], above: tuple[str, ...]) -> Iterator[str]:
    """Find files below a folder that match, part by part.  `above`: real paths of the folders that `**` went through.

    Unlike the glob module, it raises for a folder that cannot be listed.
    """
    head = parts[0]
    rest = parts[1:]
    if head != "**" and not _MAGIC.search(head):
        path = os.path.join(folder, head)  # noqa: PTH118
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)
            if (LOCAL.kind(path) == "folder") == bool(rest):
                yield from _glob(path, rest, above) if rest else (path,)
        return
    if head == "**":
        above = (*above, os.path.realpath(folder))
        if rest:
            yield from _glob(folder, rest, above)
    with os.scandir(folder) as found:
        entries = [entry for entry in found if entry.name[0] != "." or head[0] == "."]
    for entry in entries:
        if head == "**" and entry.is_dir():
            if os.path.realpath(entry.path) not in above:
                yield from _glob(entry.path, parts, above)
        elif head == "**":
            yield from () if rest else (entry.path,)
        elif fnmatch.fnmatch(entry.name, head) and entry.is_dir() == bool(rest):
            yield from _glob(entry.path, rest, above) if rest else (entry.path,)


def again(call: Callable[..., _Answer], *arguments: Any, **options: Any) -> _Answer:
    """Repeat a call that a signal interrupted, and once a call whose file a network file system has lost."""
    for _ in range(_MAX_INTERRUPTS):
        try:
            return call(*arguments, **options)
        except InterruptedError:  # Python repeats reads and writes itself, other calls not
            pass
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            break
    return call(*arguments, **options)


def sync_file(fd: int) -> None:
    """Wait until the bytes of an open file survive a power cut.

    Never repeated: after a failure the kernel drops the bytes, and a second call succeeds without them.
    """
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:  # macOS: fsync leaves the bytes in the disk's own cache
        try:
            fcntl.fcntl(fd, full_sync)
            return
        except OSError as error:  # a file system without it, such as a network share
            if error.errno not in _NO_SYNC:
                raise
    os.fsync(fd)


def sync_folder(fd: int) -> None:
    """Make the names in an open folder survive a power cut."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def mode_below(folder: os.stat_result) -> int:
    """Return the mode for what is made in a folder: as its own, but never writable by everybody."""
    mode = stat.S_IMODE(folder.st_mode) & 0o2777
    return mode & ~0o022 if mode & stat.S_IWOTH else mode


def _write_new(
    above: int, name: str, write: Callable[[IO[bytes]], object], *, durable: bool
) -> int:
    """Write a new file in an open folder; return its size."""
    mode = mode_below(os.fstat(above)) & 0o666
    fd = again(
        os.open,
        name,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        mode,
        dir_fd=above,
    )
    with os.fdopen(fd, "wb") as file:
        with contextlib.suppress(OSError):  # file systems without modes
            os.fchmod(fd, mode)
        write(file)
        file.flush()
        if durable:
            sync_file(fd)
        return os.fstat(fd).st_size


def _is_same(one: int, other: int) -> bool:
    """Whether two open files are equal; closes the first."""
    with os.fdopen(one, "rb") as a, os.fdopen(other, "rb", closefd=False) as b:
        while block := a.read(_BLOCK):
            if b.read(_BLOCK) != block:
                return False
        return not b.read(1)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
