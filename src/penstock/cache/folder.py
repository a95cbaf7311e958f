"""How are files touched in a folder that others may write to?  Step by step from an open folder, never through a link.

Every folder on the way and every file is looked at after it is opened, so that nothing can be exchanged between the look
and the use.  The way to the cache itself is the user's and may lead through links.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from penstock.cache.faults import again
from penstock.errors import StoreError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # non-blocking: a fifo must not hold us up
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}  # of file systems that have nothing to do there

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}
_NOT_FILES = {
    errno.ELOOP: "a link",
    errno.EMLINK: "a link",
    errno.ENXIO: "a socket",
}  # what opening says; EMLINK: on BSD


@dataclass(frozen=True, slots=True)
class Folder:
    """The root of a cache, and who may have a hand in it."""

    root: Path
    allow_shared: bool = False

    @contextlib.contextmanager
    def within(self, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[int]:
        """A folder below the root, open.  `make`: where it is missing."""
        fd = self._open_root(make)
        try:
            mode = folder_mode(os.fstat(fd))
            path = self.root
            for part in parts:
                path = path / part
                inner = self._step(fd, part, path, mode if make else None)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def reading(self, fd: int, name: str, path: Path) -> Iterator[int]:
        """A file in an open folder, open for reading; StoreError where it is anything else."""
        try:
            file = again(lambda: os.open(name, _READ, dir_fd=fd))
        except OSError as error:
            if error.errno in _NOT_FILES:
                _wrong_kind(path, _NOT_FILES[error.errno])  # not looked at again: it may have been exchanged since
            raise
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                _wrong_kind(path, _kind(status))
            self._trust(path, status)
            yield file
        finally:
            os.close(file)

    def _open_root(self, make: bool) -> int:
        try:
            fd = again(lambda: os.open(self.root, _FOLDER))
        except FileNotFoundError:
            if not make:
                raise
            self.root.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                again(lambda: os.mkdir(self.root, 0o700))  # noqa: PTH102 - as below
            fd = again(lambda: os.open(self.root, _FOLDER))
        return self._trusted(fd, self.root)

    def _step(self, fd: int, part: str, path: Path, mode: int | None) -> int:
        """Open a folder inside a folder; make it with this mode where it is missing."""
        try:
            inner = _enter(fd, part, path)
        except FileNotFoundError:
            if mode is None:
                raise
            with contextlib.suppress(FileExistsError):  # somebody else was quicker
                again(lambda: os.mkdir(part, mode, dir_fd=fd))
            inner = _enter(fd, part, path)
            with contextlib.suppress(OSError):  # a umask may have taken the group's rights, which the root gives
                if stat.S_IMODE(os.fstat(inner).st_mode) & 0o777 != mode & 0o777:
                    os.fchmod(inner, mode)
            sync_folder(fd)
        return self._trusted(inner, path)

    def _trusted(self, fd: int, path: Path) -> int:
        try:
            self._trust(path, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _trust(self, path: Path, status: os.stat_result) -> None:
        """Whoever can write here decides what a model is trained on."""
        if self.allow_shared:
            return
        me = os.geteuid()
        if status.st_uid not in (me, 0):
            _distrust(path, f"belongs to user {status.st_uid}, expected you (user {me}) or root")
        is_guarded = (
            stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        )  # as /tmp: names belong to their makers
        if status.st_mode & stat.S_IWOTH and not is_guarded:
            _distrust(path, f"anybody can write to it (mode {stat.S_IMODE(status.st_mode):o})")


def folder_mode(root: os.stat_result) -> int:
    """The mode of folders below: what the root gives its group goes on, what it gives everybody to write does not."""
    mode = stat.S_IMODE(root.st_mode) & 0o2777
    return mode & ~0o022 if mode & stat.S_IWOTH else mode


def file_mode(folder: os.stat_result) -> int:
    return folder_mode(folder) & 0o666


def write_new(fd: int, name: str, write: Callable[[IO[bytes]], object]) -> int:
    """A new file in an open folder, durable; its size."""
    mode = file_mode(os.fstat(fd))
    file_fd = again(lambda: os.open(name, _NEW, mode, dir_fd=fd))
    with os.fdopen(file_fd, "wb") as file:
        with contextlib.suppress(OSError):  # where modes mean nothing
            os.fchmod(file_fd, mode)
        write(file)
        file.flush()
        os.fsync(
            file_fd
        )  # once: after a failure the kernel forgets what it could not write, and a second call succeeds
        return os.fstat(file_fd).st_size


def read_whole(fd: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read()


def lstat(fd: int, name: str) -> os.stat_result:
    return again(lambda: os.stat(name, dir_fd=fd, follow_symlinks=False))


def lookup(fd: int, name: str, path: Path) -> os.stat_result | None:
    """What lies under a name: a file, or nothing; StoreError where it is anything else."""
    try:
        status = lstat(fd, name)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        _wrong_kind(path, _kind(status))
    return status


def sync_folder(fd: int) -> None:
    """Names in this folder survive a power cut."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def _enter(fd: int, part: str, path: Path) -> int:
    try:
        return again(lambda: os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=fd))
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):
            with contextlib.suppress(FileNotFoundError):  # gone since: the first error says enough
                _wrong_kind(path, _kind(lstat(fd, part)), expected="a folder")
        raise


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "something else")


def _wrong_kind(path: Path, found: str, expected: str = "a file") -> None:
    advice = "; to keep the cache elsewhere, let its whole folder be a link" if found == "a link" else ""
    raise StoreError(f"{path}: {found}, expected {expected}; penstock did not put it there: remove it{advice}")


def _distrust(path: Path, found: str) -> None:
    raise StoreError(
        f"{path}: {found}; whoever can write there decides what you train on: choose another folder, or allow this one "
        f"with PENSTOCK_ALLOW_SHARED_CACHE=1 or Cache(allow_shared=True)"
    )
