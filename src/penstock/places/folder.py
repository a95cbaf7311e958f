"""A local folder that Penstock writes to.

Who can write to it decides what a model is trained on.  So its root must belong to this user or root, and others must not be able to write
to it, unless the user allows that.  This is checked once: what others cannot write to, they cannot exchange later.  What is found in place
of a file, such as a link, is refused by name.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from penstock.errors import StoreError
from penstock.places.local import LocalPlace, again, file_id, mode_below, sync_folder
from penstock.places.place import FileId

_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a fifo must not block

# By the first letter of `ls -l`.
_KINDS = {
    "l": "a link",
    "d": "a folder",
    "p": "a fifo",
    "s": "a socket",
    "c": "a device",
    "b": "a device",
    "-": "a file",
}
_NOT_FILES = {
    errno.ELOOP: "a link",
    errno.EMLINK: "a link",
    errno.ENXIO: "a socket",
}  # from os.open; EMLINK on BSD


class Folder(LocalPlace):
    """Files below one root, which may be a link.  Names are relative to it, such as `shards/9c/9c1e….arrow`.

    allow_shared: trust it although others own it or can write to it.
    owner: which process this is, as text, for the names of temporary files.
    """

    def __init__(
        self, root: Path, *, allow_shared: bool = False, owner: Callable[[], object] = os.getpid
    ) -> None:
        self.root = root
        self.allow_shared = allow_shared
        self._owner = owner
        self._mode = 0  # of folders in it; 0 until the root was checked

    def temporary_name(self) -> str:
        return f".{self._owner()}-{os.urandom(8).hex()}.tmp"

    def absolute(self, name: str) -> str:
        return str(self.root.joinpath(*_parts(name)))

    def _folder(self, name: str, *, make: bool = False, durable: bool = True) -> str:
        """Return the path of a folder in the root; make the missing ones."""
        if not self._mode:
            self._mode = self._checked_root(make=make)
        path = self.absolute(name) if name else str(self.root)
        if make and not _is_folder(path):
            self._make_folders(path, durable=durable)
        return path

    def _make_folders(self, path: str, *, durable: bool) -> None:
        above = os.path.dirname(path)  # noqa: PTH120
        if not _is_folder(above):
            self._make_folders(above, durable=durable)
        _make_folder(path, self._mode, durable=durable)

    def _path(self, name: str, *, make: bool = False, durable: bool = True) -> str:
        path = self.absolute(name)
        self._folder(name.rpartition("/")[0], make=make, durable=durable)
        return path

    def _checked_root(self, *, make: bool) -> int:
        """Check who can write to the root; return the mode of folders in it."""
        root = str(self.root)
        try:
            status = again(os.stat, root)
        except FileNotFoundError:
            if not make:
                raise
            self.root.parent.mkdir(parents=True, exist_ok=True)
            _make_folder(root, 0o700, durable=True)
            status = again(os.stat, root)
        if not stat.S_ISDIR(status.st_mode):
            raise _not_ours(root, _kind(status), expected="a folder")
        if not self.allow_shared:
            _check_trust(root, status)
        return mode_below(status)

    def can_write(self) -> bool:
        """Whether this process may create files in the root, which must exist."""
        root = self._folder("")
        return os.access(root, os.W_OK, effective_ids=os.access in os.supports_effective_ids)

    def stat(self, name: str) -> FileId:
        path = self._path(name)
        status = again(os.lstat, path)
        if not stat.S_ISREG(status.st_mode):
            raise _not_ours(path, _kind(status))
        return file_id(path, status)

    def _open(self, path: str, flags: int) -> int:
        """Open a file; raise StoreError if it is anything else."""
        try:
            fd = again(os.open, path, flags | _FILE, self._mode & 0o666)
        except OSError as error:
            if error.errno in _NOT_FILES:  # not by asking again: it may have been exchanged since
                raise _not_ours(path, _NOT_FILES[error.errno]) from error
            raise
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise _not_ours(path, _kind(status))
        return fd


def _check_trust(path: str, status: os.stat_result) -> None:
    """Raise StoreError if another user can write there: that user could change what a model is trained on."""
    if status.st_uid not in (os.geteuid(), 0):
        problem = f"belongs to user {status.st_uid}, expected you (user {os.geteuid()}) or root"
    elif status.st_mode & stat.S_IWOTH:
        problem = f"anybody can write to it (mode {stat.S_IMODE(status.st_mode):o})"
    else:
        return
    raise StoreError(
        f"{path}: {problem}; users who can write there decide what you train on: choose another folder, or allow this "
        f"one with PENSTOCK_ALLOW_SHARED_CACHE=1 or Cache(allow_shared=True)",
        code="folder_not_trusted",
    )


def _parts(name: str) -> list[str]:
    """Split a name; refuse one that leads out of the folder."""
    parts = name.split("/")
    if not all(parts) or any(part in (".", "..") or "\\" in part or "\0" in part for part in parts):
        raise StoreError(
            f"{name!r} is not a name in a cache; the file that contains it is damaged, remove it"
        )
    return parts


def _is_folder(path: str) -> bool:
    try:
        status = again(os.stat, path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISDIR(status.st_mode)


def _make_folder(path: str, mode: int, *, durable: bool) -> None:
    """Create a folder; `durable`: so that it survives a power cut."""
    above, name = os.path.split(path)
    fd = again(os.open, above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileExistsError):  # another process was faster
            again(os.mkdir, name, mode, dir_fd=fd)
            # the umask may have removed the group's rights, which the root grants
            with contextlib.suppress(OSError):
                os.chmod(name, mode, dir_fd=fd)
        if durable:
            sync_folder(fd)
    finally:
        os.close(fd)


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.filemode(status.st_mode)[0], "a thing of unknown kind")


def _not_ours(path: str, found: str, expected: str = "a file") -> StoreError:
    advice = (
        "; to keep the cache elsewhere, let its whole folder be a link" if found == "a link" else ""
    )
    return StoreError(
        f"{path}: {found}, expected {expected}; penstock did not put it there: remove it{advice}"
    )
