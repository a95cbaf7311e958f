"""Who uses what?  A file per process, in the cache, with a line for each name it took up (+) and laid down (-).

Nobody waits for a lease.  They only tell whoever wants to remove files which ones to leave alone.  The lease of a dead
process counts for nothing; the lease of another machine, where nobody here can tell, counts for a month after its last line.
A cache that cannot be written to is used without a lease: nobody can be expected to write in order to read.
"""

import atexit
import contextlib
import os
import re
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.cache.faults import again
from penstock.cache.folder import Folder, file_mode, lookup, write_new
from penstock.cache.owner import Owner
from penstock.errors import StoreError

FOLDER = "leases"
TEMPORARY = re.compile(r"\.(.+)-[0-9a-f]{16}\.tmp")

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOOKS = 1000  # at a lease that ends in the middle of a line; then its writer was stopped there
_FOREIGN_SECONDS = 30 * 86400  # both ends by the clock of the file system


class Lease:
    """What this process uses of one cache."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._owner = Owner.me()
        self._holders: Counter[str] = Counter()  # name → objects that hold it
        self._kept: set[str] = set()  # names held until they are released, or this process ends
        self._lock = threading.RLock()  # a finalizer may run while the same thread writes a line
        self._is_off = False
        self._has_file = False

    def hold(self, names: Sequence[str], holder: object = None) -> list[str]:
        """Until `holder` is gone, or else this process.  Those that are news, where this could be written down."""
        with self._lock:
            new = [name for name in names if not self._is_held(name)]
            if holder is None:
                self._kept.update(names)
            else:
                self._holders.update(names)
                weakref.finalize(holder, self._drop, names).atexit = False
            self._write("+", new)
            return [] if self._is_off else new

    def holds(self, name: str) -> bool:
        with self._lock:
            return self._is_held(name)

    def release(self, names: Sequence[str]) -> None:
        """What this process held by itself; objects go on holding it."""
        with self._lock:
            ended = [name for name in names if name in self._kept]
            self._kept.difference_update(ended)
            self._write("-", [name for name in ended if not self._is_held(name)])

    def _drop(self, names: Sequence[str]) -> None:
        if os.getpid() != self._owner.pid:  # a forked child has a copy of the holder, not the lease
            return
        with self._lock:
            self._holders.subtract(names)
            self._write("-", [name for name in names if not self._is_held(name)])

    def _is_held(self, name: str) -> bool:
        return name in self._kept or self._holders[name] > 0

    def _write(self, sign: str, names: Sequence[str]) -> None:
        if self._is_off or not names:
            return
        try:
            text = "".join(f"{sign} {name}\n" for name in names) if self._has_file else self._begin()
            with self._folder.within([FOLDER]) as fd:
                file = again(lambda: os.open(str(self._owner), _APPEND, file_mode(os.fstat(fd)), dir_fd=fd))
                try:
                    with os.fdopen(os.dup(file), "wb") as out:
                        out.write(text.encode())
                finally:
                    os.close(file)
        except (OSError, StoreError) as error:
            # Reading must not fail because nothing can be noted down.  A cache that is still to be made will hear it later.
            self._is_off = self._has_file or not isinstance(error, FileNotFoundError)
        else:
            if not self._has_file:
                self._has_file = True
                atexit.register(self._end)

    def _begin(self) -> str:
        """A folder to write to, and all that there is to be said."""
        with self._folder.within() as fd:
            if not may_write(fd):
                raise PermissionError
        with self._folder.within([FOLDER], make=True) as fd:
            live_leases(fd, now=None)
        names = [f"+ {name}\n" for name in sorted(self._kept | set(+self._holders))]
        return f"# {socket.gethostname()} process {self._owner.pid}\n{''.join(names)}"

    def _end(self) -> None:
        if os.getpid() == self._owner.pid:
            with contextlib.suppress(OSError, StoreError), self._folder.within([FOLDER]) as fd:
                os.unlink(str(self._owner), dir_fd=fd)


_leases: dict[tuple[int, Path], Lease] = {}
_making = threading.Lock()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()  # the other thread that held it is not here


os.register_at_fork(after_in_child=_after_fork)


def my_lease(folder: Folder) -> Lease:
    """The one of this process; a forked child begins its own."""
    key = (os.getpid(), folder.root)
    with _making:
        if key not in _leases:
            _leases[key] = Lease(folder)
        return _leases[key]


def held(folder: Folder) -> set[str]:
    """Names that some process uses, as far as anybody can tell."""
    try:
        with folder.within([FOLDER]) as fd:
            names: set[str] = set()
            now = (
                clock(fd) if may_write(fd) else None
            )  # who may only read cannot tell the time, and takes old leases as they are
            for lease in live_leases(fd, now=now):
                with (
                    contextlib.suppress(FileNotFoundError),
                    folder.reading(fd, lease, folder.root / FOLDER / lease) as file,
                ):
                    names |= _names(_read_lines(file))
            return names
    except FileNotFoundError:
        return set()


def _read_lines(fd: int) -> bytes:
    """A lease, when no line of it is half written."""
    for _ in range(_LOOKS):
        text = os.pread(fd, os.fstat(fd).st_size, 0)
        if not text or text.endswith(b"\n"):
            break
    return text


def _names(text: bytes) -> set[str]:
    uses: Counter[str] = Counter()
    for line in text.decode(errors="replace").splitlines():
        if line.startswith("+ "):
            uses[line[2:]] += 1
        elif line.startswith("- "):
            uses[line[2:]] -= 1
    return {name for name, count in uses.items() if count > 0}


def live_leases(fd: int, *, now: float | None) -> list[str]:
    """Leases in the open folder; those of dead processes are removed on the way, and old ones of other machines."""
    live = []
    for name in os.listdir(fd):
        owner = Owner.parse(name)
        if owner is None:
            continue
        if owner.is_dead or (now is not None and not owner.is_here and _is_older(fd, name, now - _FOREIGN_SECONDS)):
            _unlink(fd, name)
        else:
            live.append(name)
    return live


def sweep(fd: int, *, now: Callable[[], float]) -> list[str]:
    """Remove temporary files whose writers were killed; what was removed."""
    removed = []
    for name in os.listdir(fd):
        parts = TEMPORARY.fullmatch(name)
        owner = Owner.parse(parts[1]) if parts else None
        if owner is None:
            continue
        if owner.is_dead or (not owner.is_here and _is_older(fd, name, now() - _FOREIGN_SECONDS)):
            _unlink(fd, name)
            removed.append(name)
    return removed


def may_write(fd: int) -> bool:
    """Into the open folder."""
    return os.access(".", os.W_OK, dir_fd=fd, effective_ids=os.access in os.supports_effective_ids)


def clock(fd: int) -> float:
    """What time it is for the file system: of two machines that share a folder, neither clock is right."""
    name = temporary_name()
    write_new(fd, name, lambda file: None)
    try:
        return os.stat(name, dir_fd=fd).st_mtime
    finally:
        _unlink(fd, name)


def temporary_name() -> str:
    """Names its process, and cannot be guessed."""
    return f".{Owner.me()}-{os.urandom(8).hex()}.tmp"


def _is_older(fd: int, name: str, than: float) -> bool:
    status = lookup(fd, name, Path(name))
    return status is not None and status.st_mtime < than


def _unlink(fd: int, name: str) -> None:
    with contextlib.suppress(OSError):
        again(lambda: os.unlink(name, dir_fd=fd))
