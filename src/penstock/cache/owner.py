"""Which process is this, and does that one still live?  Claims and unfinished files name their process, so that others can tell."""

import contextlib
import functools
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import StoreError
from penstock.fingerprint import fingerprint
from penstock.places.folder import Folder

_OWNER = re.compile(r"([0-9a-f]{12})-([0-9]{1,10})-([0-9]{1,20})")
_TEMPORARY = re.compile(r"\.(.+)-[0-9a-f]{16}\.tmp")
_FOREIGN_SECONDS = 30 * 86400  # an unfinished file of another machine may be as old


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
        if self in _reported_dead:
            return True
        return self.is_here and _start(self.pid) not in (self.start, 0)

    def __str__(self) -> str:
        return f"{self.place}-{self.pid}-{self.start}"


_reported_dead: set[Owner] = set()


def report_dead(owners: Iterable[str]) -> None:
    """Count processes as dead, as an engine does that started them on other machines."""
    for text in owners:
        owner = Owner.parse(text)
        if owner is not None:
            _reported_dead.add(owner)


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
    boot = ""
    namespace = 0
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # two containers of one kernel both count processes from 1
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    return fingerprint([platform.node(), boot, namespace])[:12]


def remove_dead(folder: Folder, names: Iterable[str]) -> set[str]:
    """Remove unfinished files of dead processes, and those of other machines after a month; return their names."""
    removed = set()
    now = functools.cache(lambda: clock(folder))
    for name in names:
        temporary = _TEMPORARY.fullmatch(name.rpartition("/")[2])
        owner = Owner.parse(temporary[1]) if temporary else None
        if owner is None:
            continue
        with contextlib.suppress(OSError):
            is_old = not owner.is_here and folder.stat(name).mtime < now() - _FOREIGN_SECONDS
            if owner.is_dead or is_old:
                removed.add(name)
                folder.remove(name)
    return removed


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
