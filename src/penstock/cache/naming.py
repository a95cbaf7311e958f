"""How does a finished file get its name?  By a link, which fails where the name is taken, on any file system and network."""

import errno
import os
from pathlib import Path

from penstock.cache.faults import again
from penstock.cache.folder import Folder, lookup, sync_folder
from penstock.errors import StoreError
from penstock.fingerprint import Digest

_BLOCK = 1 << 20
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def give_name(folder: Folder, fd: int, temporary: str, name: str, path: Path, *, replace: bool) -> None:
    """In the open folder `fd`, from a temporary name to the final one, durably."""
    if replace:
        _rename(fd, temporary, name)
    else:
        while not (_link(fd, temporary, name, path) or _is_same(folder, fd, temporary, name, path)):
            pass  # the name was taken, and free again when we looked: each turn needs somebody who removes it just then
    sync_folder(fd)  # also where the name was there: its writer may have been stopped before this


def _link(fd: int, temporary: str, name: str, path: Path) -> bool:
    """Whether the name was free and is ours now."""
    try:
        # not a rename: that would pull the file from under whoever has mapped it over a network
        again(lambda: os.link(temporary, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False))
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if lookup(fd, name, path) is not None:
            return False
        _rename(fd, temporary, name)
    return True


def _rename(fd: int, temporary: str, name: str) -> None:
    again(lambda: os.replace(temporary, name, src_dir_fd=fd, dst_dir_fd=fd))


def _is_same(folder: Folder, fd: int, temporary: str, name: str, path: Path) -> bool:
    """Whether the name stands for what we made; no longer taken: False; StoreError where it holds anything else."""
    with folder.reading(fd, temporary, path) as made:
        try:
            with folder.reading(fd, name, path) as published:
                if os.fstat(published).st_size == os.fstat(made).st_size and _content(published) == _content(made):
                    return True
        except FileNotFoundError:
            return False
    raise StoreError(
        f"{path}: already there with other content than was just made for this name; "
        f"the file is damaged or was edited: remove it, or pass refresh=True"
    )


def _content(fd: int) -> str:
    content = Digest()
    while block := os.read(fd, _BLOCK):
        content.extend(block)
    return content.hexdigest()
