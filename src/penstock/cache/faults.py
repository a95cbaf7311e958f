"""What does a failing disk tell the user?  One line: what was tried, where, why it failed, what to do."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from penstock.errors import StoreError

_Answer = TypeVar("_Answer")
_TRIES = 100  # a call that is interrupted this often is not interrupted by chance

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


def refuse(error: OSError, path: Path, doing: str) -> NoReturn:
    is_gone = (
        error.errno == errno.ENOENT and doing == "write"
    )  # the folder was removed under us, or is a link to nowhere
    advice = _ADVICE.get(0 if is_gone else error.errno or 0, f"check the folder, or {_ELSEWHERE}")
    raise StoreError(f"cannot {doing} {path}: {error.strerror or error}; {advice}") from error


def again(call: Callable[[], _Answer]) -> _Answer:
    """Repeat a system call that a signal interrupted; Python does so itself for reads and writes, not for names."""
    for _ in range(_TRIES):
        try:
            return call()
        except InterruptedError:
            continue
    return call()


def again_if_stale(call: Callable[[], _Answer]) -> _Answer:
    """Read once more, by name, where a network file system says that the file behind a handle has gone."""
    try:
        return call()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return call()
