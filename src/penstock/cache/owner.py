"""Is the process that left this file still alive?  Only a process of this very place can be proved dead.

A place is a host, a boot of it and a namespace of process numbers.  Of another place we know nothing, and clocks of two
machines are never compared.
"""

import os
import re
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.fingerprint import fingerprint

_MARK = re.compile(r"([0-9a-f]{12})-([0-9]{1,10})-([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class Owner:
    """One process, among all that ever ran on any machine."""

    place: str  # 12 hex digits
    pid: int
    start: int  # ticks after boot: the number of a dead process is given out again, with another start

    @classmethod
    def me(cls) -> "Owner":
        return _owner(os.getpid())

    @classmethod
    def parse(cls, mark: str) -> "Owner | None":
        parts = _MARK.fullmatch(mark)
        return None if parts is None else cls(parts[1], int(parts[2]), int(parts[3]))

    @property
    def is_here(self) -> bool:
        """Whether this process can tell if that one lives."""
        return self.place == _place()

    @property
    def is_dead(self) -> bool:
        """Proved dead.  False where it lives, and where nobody here can tell."""
        if not self.is_here:
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:  # somebody else's, so it is there
            pass
        status = _status(self.pid)
        return status is not None and (status[1] != self.start or status[0] in "ZX")

    def __str__(self) -> str:
        return f"{self.place}-{self.pid}-{self.start}"


@cache
def _owner(pid: int) -> Owner:  # by number: a forked child is another process
    status = _status(pid)
    return Owner(_place(), pid, status[1] if status else 0)


def _status(pid: int) -> tuple[str, int] | None:
    """(state, start) of a process; None where the system does not show it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = text[text.rindex(")") + 2 :].split()  # its name, before that, may hold anything
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


@cache
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - two containers of one kernel count from 1 each
    except OSError:
        boot, namespace = "", 0
    return fingerprint([socket.gethostname(), boot, namespace])[:12]
