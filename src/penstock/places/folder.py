"""A local folder that Penstock writes to, and that other users may be able to write to as well.

No link inside it is followed, and a file or folder that another user could have changed is refused, unless the user allows that.
"""

import contextlib
import errno
import itertools
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

    def temporary_name(self) -> str:
        return f".{self._owner()}-{os.urandom(8).hex()}.tmp"

    def absolute(self, name: str) -> str:
        return str(self.root.joinpath(*_parts(name)))

    def _folder(self, name: str, *, make: bool = False) -> str:
        """Check each folder of a path: what others cannot write to, they cannot exchange after this check."""
        mode = 0
        for path in itertools.accumulate(
            [str(self.root), *(_parts(name) if name else [])], os.path.join
        ):
            try:
                status = again(os.stat, path, follow_symlinks=not mode)  # the root may be a link
            except FileNotFoundError:
                if not make:
                    raise
                status = _make_folder(path, mode)
            if not stat.S_ISDIR(status.st_mode):
                raise _not_ours(path, _kind(status), expected="a folder")
            self._check_trust(path, status)
            mode = mode or mode_below(status)
        return path

    def _path(self, name: str, *, make: bool = False) -> str:
        folder, last = os.path.split(self.absolute(name))
        self._folder(name.rpartition("/")[0], make=make)
        return f"{folder}/{last}"

    def can_write(self) -> bool:
        """Whether this process may create files in the root, which must exist."""
        return os.access(
            self._folder(""), os.W_OK, effective_ids=os.access in os.supports_effective_ids
        )

    def stat(self, name: str) -> FileId:
        path = self._path(name)
        status = again(os.lstat, path)
        if not stat.S_ISREG(status.st_mode):
            raise _not_ours(path, _kind(status))
        return file_id(path, status)

    def _open(self, path: str, flags: int) -> int:
        """Open a file; raise StoreError if it is anything else, or if others can write to it."""
        mode = mode_below(Path(path).parent.stat()) & 0o666 if flags & os.O_CREAT else 0
        try:
            fd = again(os.open, path, flags | _FILE, mode)
        except OSError as error:
            if error.errno in _NOT_FILES:  # not by asking again: it may have been exchanged since
                raise _not_ours(path, _NOT_FILES[error.errno]) from error
            raise
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise _not_ours(path, _kind(status))
            self._check_trust(path, status)
        except StoreError:
            os.close(fd)
            raise
        return fd

    def _check_trust(self, path: str, status: os.stat_result) -> None:
        """Raise StoreError if another user can write there: that user could change what a model is trained on."""
        is_sticky = (
            stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        )  # as /tmp: names have their owners
        if self.allow_shared:
            return
        if status.st_uid not in (os.geteuid(), 0):
            found = f"belongs to user {status.st_uid}, expected you (user {os.geteuid()}) or root"
        elif status.st_mode & stat.S_IWOTH and not is_sticky:
            found = f"anybody can write to it (mode {stat.S_IMODE(status.st_mode):o})"
        else:
            return
        raise StoreError(
            f"{path}: {found}; users who can write there decide what you train on: choose another folder, or allow this "
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


def _make_folder(path: str, mode: int) -> os.stat_result:
    """Create a folder, durably.  mode: 0 for the root."""
    above, name = os.path.split(path)
    if not mode:
        Path(above).mkdir(parents=True, exist_ok=True)
    fd = again(os.open, above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileExistsError):  # another process was faster
            again(os.mkdir, name, mode or 0o700, dir_fd=fd)
            with contextlib.suppress(
                OSError
            ):  # the umask may have removed the group's rights, which the root grants
                os.chmod(name, mode or 0o700, dir_fd=fd)
        sync_folder(fd)
    finally:
        os.close(fd)
    return again(os.stat, path, follow_symlinks=not mode)


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.filemode(status.st_mode)[0], "a thing of unknown kind")


def _not_ours(path: str, found: str, expected: str = "a file") -> StoreError:
    advice = (
        "; to keep the cache elsewhere, let its whole folder be a link" if found == "a link" else ""
    )
    return StoreError(
        f"{path}: {found}, expected {expected}; penstock did not put it there: remove it{advice}"
    )
