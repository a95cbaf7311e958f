"""Who makes this shard just now?  A small file per shard under way, so that others turn to another one.

Claims save double work and nothing else: two who make the same shard write the same bytes.  A claim is taken by creating a file that must
not exist yet, which file systems answer truthfully also over a network.  Its owner adds a mark to it while the work goes on; whoever waits
compares what is in it with what was there a minute ago, and never compares clocks.  A claim is taken over by creating the next one of the
same key: nothing is renamed or removed under a living owner, and of two who try only one succeeds.
"""

import contextlib
import logging
import os
import re
import socket
import time
from dataclasses import dataclass
from types import TracebackType

from penstock.cache import Cache, Owner, leases
from penstock.errors import StoreError

STALE_SECONDS = 60.0  # without a new mark, the claim of another machine counts for nothing
_BEAT_SECONDS = 5.0
_FOLDER = "claims"
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9]{1,6})")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Held:
    """A claim of somebody else, as one look found it."""

    owner: Owner | None  # None where it cannot be read
    host: str
    value: str  # changes with every mark

    @property
    def is_dead(self) -> bool:
        return self.owner is not None and self.owner.is_dead

    def __str__(self) -> str:
        return f"process {self.owner.pid} on {self.host}" if self.owner else "an unknown process"


class Claim:
    """A shard of one's own, until it is released.  Without a file where none could be made: then others may make it, too."""

    def __init__(self, cache: Cache, names: tuple[str, ...] = ()) -> None:
        self._cache = cache
        self._names = names  # its own, and older ones that it took over
        self._beaten = time.monotonic()

    def beat(self) -> None:
        """Say that the work goes on; cheap enough to be called often."""
        if self._names and time.monotonic() - self._beaten > _BEAT_SECONDS:
            self._beaten = time.monotonic()
            with contextlib.suppress(OSError, StoreError), self._cache.folder(_FOLDER) as fd:
                file = os.open(self._names[0], os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                try:
                    os.write(file, b".")
                    os.fsync(file)  # or another machine would not see it
                finally:
                    os.close(file)

    def __enter__(self) -> "Claim":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._names:
            with contextlib.suppress(OSError, StoreError), self._cache.folder(_FOLDER) as fd:
                _unlink(fd, self._names)


def take(key: str, cache: Cache, *, stale: str = "") -> Claim | Held:
    """A claim, or whose it is.  One whose owner is proved dead is taken over, and one that is still as `stale` says."""
    try:
        with cache.folder(_FOLDER, make=True) as fd:
            while True:
                mine = sorted(number for found, number in _list(fd) if found == key)
                names = [f"{key}.{number}" for number in reversed(mine)]
                held = _read(fd, names[0]) if mine else None
                if held is not None and not held.is_dead and held.value != stale:
                    return held
                name = f"{key}.{mine[-1] + 1 if mine else 0}"
                with contextlib.suppress(FileExistsError):  # somebody was quicker: look again
                    _create(fd, name)
                    return Claim(cache, (name, *names))
    except (OSError, StoreError) as error:
        _log.debug("%s: no claims can be made there (%s)", cache.root, error)
        return Claim(cache)


def look(cache: Cache) -> dict[str, Held]:
    """All claims, by key.  Lists the folder: on a network, asking for one file by name may tell of the past."""
    newest: dict[str, int] = {}
    found: dict[str, Held] = {}
    with contextlib.suppress(OSError, StoreError), cache.folder(_FOLDER) as fd:
        for key, number in _list(fd):
            newest[key] = max(number, newest.get(key, 0))
        for key, number in newest.items():
            if (held := _read(fd, f"{key}.{number}")) is not None:
                found[key] = held
    return found


def sweep(cache: Cache) -> None:
    """Remove claims of the dead, and what they left half written."""
    with contextlib.suppress(OSError, StoreError), cache.folder(_FOLDER) as fd:
        for key, number in _list(fd):
            held = _read(fd, f"{key}.{number}")
            if held is not None and held.is_dead:
                _unlink(fd, (f"{key}.{number}",))


def _list(fd: int) -> list[tuple[str, int]]:
    names = [_NAME.fullmatch(name) for name in os.listdir(fd)]
    return [(parts[1], int(parts[2])) for parts in names if parts]


def _read(fd: int, name: str) -> Held | None:
    """None where it was released meanwhile."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    except FileNotFoundError:
        return None
    try:
        data = os.read(file, 1 << 16)
    finally:
        os.close(file)
    owner, _, rest = data.decode(errors="replace").partition(" ")
    return Held(owner=Owner.parse(owner), host=rest.partition("\n")[0][:80], value=f"{name} {len(data)} {owner}")


def _create(fd: int, name: str) -> None:
    """Whole from its first moment: a claim of somebody who was killed before saying who it is would be waited for."""
    temporary = leases.temporary_name()
    _write(fd, temporary)
    try:
        os.link(temporary, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        _write(fd, name)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=fd)


def _write(fd: int, name: str) -> None:
    file = os.open(name, _NEW, 0o644, dir_fd=fd)
    try:
        os.write(file, f"{Owner.me()} {socket.gethostname()}\n".encode())
    except OSError:  # such as a full disk: nothing that says nothing may stay
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=fd)
        raise
    finally:
        os.close(file)


def _unlink(fd: int, names: tuple[str, ...]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)
