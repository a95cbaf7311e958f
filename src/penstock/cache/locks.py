"""Record which process uses which files.  Nothing waits for a lock: leases only tell `prune` which files to keep.

Each process has one lease, a file in the cache with a line for each name that it began (+) or ended (-) to use.  The lease
of a dead process is ignored.  A process of another machine cannot be checked, so its lease counts for a month after its last
line.  A cache that cannot be written to is used without a lease.
"""

import atexit
import contextlib
import functools
import os
import platform
import re
import threading
import weakref
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import StoreError
from penstock.fingerprint import fingerprint
from penstock.places.folder import Folder

LEASES = "leases"

_OWNER = re.compile(r"([0-9a-f]{12})-([0-9]{1,10})-([0-9]{1,20})")
_TEMPORARY = re.compile(r"\.(.+)-[0-9a-f]{16}\.tmp")
_READS = (
    1000  # of a lease that ends in the middle of a line; after that, its writer was stopped there
)
_FOREIGN_SECONDS = 30 * 86400


@dataclass(frozen=True, slots=True)
class Owner:
    """One process among all that ever ran on any machine."""

    place: str  # 12 hex digits: a host, its boot and a namespace of process numbers
    pid: int
    start: int  # ticks after boot, as process numbers are used again; 0 if the system does not tell

    @classmethod
    def me(cls) -> "Owner":
        return _owner(os.getpid())

    @classmethod
    def parse(cls, text: str) -> "Owner | None":
        parts = _OWNER.fullmatch(text)
        return cls(parts[1], int(parts[2]), int(parts[3])) if parts else None

    @property
    def is_here(self) -> bool:
        """Whether this process can tell if that one is alive."""
        return self.place == _place()

    @property
    def is_dead(self) -> bool:
        """Whether it is proved dead.  False if this process cannot tell."""
        return self in _reported_dead or (self.is_here and _start(self.pid) not in (self.start, 0))

    def __str__(self) -> str:
        return f"{self.place}-{self.pid}-{self.start}"


_reported_dead: set[Owner] = set()


def report_dead(owners: Iterable[str], folder: Folder) -> None:
    """Count processes as dead, as an engine does that started them on other machines; remove their leases."""
    _reported_dead.update(owner for text in owners if (owner := Owner.parse(text)) is not None)
    _live_leases(folder)


@functools.cache
def _owner(pid: int) -> Owner:  # by number: a forked child is another process
    return Owner(_place(), pid, _start(pid) or 0)


def _start(pid: int) -> int | None:
    """Return when a living process started; None if there is none, 0 if the system does not tell."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:  # of another user, so it exists
        pass
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = text[text.rindex(")") + 2 :].split()  # the name, before that, may contain anything
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


@functools.cache
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = (
            Path("/proc/self/ns/pid").stat().st_ino
        )  # two containers of one kernel both count from 1
    except OSError:
        boot = ""
        namespace = 0
    return fingerprint([platform.node(), boot, namespace])[:12]


class Lease:
    """The files of one cache that this process uses."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._owner = Owner.me()
        self._name = f"{LEASES}/{self._owner}"
        self._counts: Counter[str] = Counter()  # name → how many hold it
        self._kept: set[str] = set()  # names held until they are released, or this process ends
        self._lock = threading.RLock()  # a finalizer may run while the same thread writes a line
        self._is_off = False
        self._has_file = False

    def hold(self, names: Collection[str], holder: object = None) -> list[str]:
        """Hold names until `holder` is gone, or this process; return the new ones, if they could be written down."""
        with self._lock:
            if holder is None:
                names = set(names) - self._kept
                self._kept |= names
            else:
                weakref.finalize(holder, self._drop, names).atexit = False
            new = [name for name in names if not self._counts[name]]
            self._counts.update(names)
            self._write("+", new)
            return [] if self._is_off else new

    def holds(self, name: str) -> bool:
        return self._counts[name] > 0

    def release(self, names: Iterable[str]) -> None:
        """Release what this process holds itself; objects keep holding it."""
        with self._lock:
            kept = self._kept.intersection(names)
            self._kept -= kept
            self._drop(kept)

    def _drop(self, names: Collection[str]) -> None:
        with self._lock:
            self._counts.subtract(names)
            self._write("-", [name for name in names if not self._counts[name]])

    def _write(self, sign: str, names: Iterable[str]) -> None:
        if (
            self._is_off or not names or os.getpid() != self._owner.pid
        ):  # a fork copies holders, but not the lease
            return
        head = ""
        try:
            if not self._has_file:
                if (
                    not self._folder.can_write()
                ):  # raises FileNotFoundError if there is no cache yet
                    raise PermissionError
                _live_leases(self._folder)  # removes the others
                head = f"# {platform.node()} process {self._owner.pid}\n"
                sign = "+"
                names = sorted(+self._counts)
            elif sign == "-":
                self._folder.stat(
                    self._name
                )  # raises if the cache was removed: it must not come back
            self._folder.append(
                self._name, (head + "".join(f"{sign} {name}\n" for name in names)).encode()
            )
        except (OSError, StoreError) as error:
            # Reading must not fail because nothing can be written.  A cache that does not exist yet gets its lease later.
            self._is_off = self._has_file or not isinstance(error, FileNotFoundError)
        else:
            if not self._has_file:
                self._has_file = True
                atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() == self._owner.pid:
            with contextlib.suppress(OSError, StoreError):
                self._folder.remove(self._name)


_leases: dict[tuple[int, str], Lease] = {}


def my_lease(folder: Folder) -> Lease:
    """Return the lease of this process; a forked child begins its own."""
    return _leases.setdefault(
        (os.getpid(), str(folder.root)), Lease(folder)
    )  # one step, so threads need no lock


def held_names(folder: Folder) -> set[str]:
    """Return the names that a process uses, as far as this one can tell."""
    names: set[str] = set()
    for lease in _live_leases(folder):
        with contextlib.suppress(FileNotFoundError):
            for _ in range(_READS):
                text = folder.read(lease)
                if not text or text.endswith(b"\n"):
                    break
            lines = text.decode(errors="replace").splitlines()
            uses = Counter(line[2:] for line in lines if line.startswith("+ "))
            uses.subtract(line[2:] for line in lines if line.startswith("- "))
            names |= set(+uses)
    return names


def _live_leases(folder: Folder) -> set[str]:
    try:
        names = {f"{LEASES}/{name}" for name, _ in folder.entries(LEASES) if Owner.parse(name)}
    except FileNotFoundError:
        return set()
    return names - remove_dead(folder, names)


def remove_dead(folder: Folder, names: Iterable[str]) -> set[str]:
    """Remove leases and temporary files of dead processes, and those of other machines after a month; return their names."""
    found = set()
    now = functools.cache(lambda: clock(folder))
    for name in names:
        last = name.rpartition("/")[2]
        temporary = _TEMPORARY.fullmatch(last)
        owner = Owner.parse(temporary[1] if temporary else last)
        with contextlib.suppress(OSError):
            if owner and (
                owner.is_dead
                or (not owner.is_here and folder.stat(name).mtime < now() - _FOREIGN_SECONDS)
            ):
                found.add(name)
                folder.remove(name)
    return found


def clock(folder: Folder) -> float:
    """Return the time by the file system, as machines may have different clocks; 0 if this process cannot write there."""
    name = folder.temporary_name()
    try:
        folder.append(name, b"")
        return folder.stat(name).mtime
    except (OSError, StoreError):
        return 0
    finally:
        with contextlib.suppress(OSError, StoreError):
            folder.remove(name)
