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
        try:
            # not a rename: that would pull the file from under whoever has mapped it over a network
            again(lambda: os.link(temporary, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False))
        except FileExistsError:
            _expect_same(folder, fd, temporary, name, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if lookup(fd, name, path) is None:
                _rename(fd, temporary, name)
            else:
                _expect_same(folder, fd, temporary, name, path)
    sync_folder(fd)  # also where the name was there: its writer may have been stopped before this


def _rename(fd: int, temporary: str, name: str) -> None:
    again(lambda: os.replace(temporary, name, src_dir_fd=fd, dst_dir_fd=fd))


def _expect_same(folder: Folder, fd: int, temporary: str, name: str, path: Path) -> None:
    with folder.reading(fd, name, path) as published, folder.reading(fd, temporary, path) as made:
        if os.fstat(published).st_size == os.fstat(made).st_size and _content(published) == _content(made):
            return
    raise StoreError(
        f"{path}: already there with other content than was just made for this name; "
        f"the file is damaged or was edited: remove it, or pass refresh=True"
    )


def _content(fd: int) -> str:
    content = Digest()
    while block := os.read(fd, _BLOCK):
        content.extend(block)
    return content.hexdigest()
