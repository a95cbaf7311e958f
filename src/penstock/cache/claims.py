"""Claims: which process makes what, so that other processes make something else, or wait for it.

Claims only save work: two processes that make the same file write the same bytes.  A claim is a small file in `claims/` with
its owner, a beat and the host.  A place creates it whole, and fails where there is one, also on network file systems.  Its owner
counts up the beat while the work goes on; a process that waits compares texts, never clocks, and takes over a claim whose text
stays the same.
"""

import contextlib
import logging
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from penstock.cache.cache import Cache, ClaimPlace
from penstock.cache.owner import Owner
from penstock.errors import StoreError
from penstock.places.folder import Folder

STALE_SECONDS = 60.0  # without a beat, the claim of another machine counts for nothing
_BEAT_SECONDS = 5.0
# seconds until a claim is looked at again
_FIRST_PAUSE = 0.02
_MAX_PAUSE = 1.0
_LOG_SECONDS = 5.0  # a process that waits longer for a claim says so
_FOLDER = "claims"

# of a waiting room
_FIRST_WAIT = 0.05
_LONGEST_WAIT = 2.0
_MAX_WAIT = 600.0  # seconds; then a task is done here, although its owner still works on it
_LOG_WAIT_SECONDS = 30.0

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Held:
    """A claim, as it was when it was read."""

    text: str

    @property
    def owner(self) -> Owner | None:
        return Owner.parse(self.text.partition(" ")[0])

    @property
    def is_dead(self) -> bool:
        return self.owner is not None and self.owner.is_dead

    def __str__(self) -> str:
        if self.owner is None:
            return "an unknown process"
        host = self.text.split(" ", 3)[-1]
        return f"process {self.owner.pid} on {host}"


class Claim:
    """What this process makes.  Without a name where no file could be created: then others may make it, too."""

    def __init__(self, cache: Cache | None = None, name: str = "") -> None:
        self._place = None if cache is None else cache.claims
        self._name = name
        self._beat = 0
        self._last_beat = time.monotonic()

    def beat(self) -> None:
        """Renew the claim; cheap enough to be called often."""
        now = time.monotonic()
        if self._place is None or not self._name or now - self._last_beat < _BEAT_SECONDS:
            return
        self._beat += 1
        self._last_beat = now
        with contextlib.suppress(OSError, StoreError):
            _write(self._place, self._name, beat=self._beat, replace=True)

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *error: object) -> None:
        """Release the claim, unless another process has taken it over."""
        if self._place is None or not self._name:
            return
        with contextlib.suppress(OSError, StoreError):
            if _read(self._place, self._name).owner == Owner.me():
                self._place.remove(self._name)


def take_claim(key: str, cache: Cache, *, stale: Held | None = None) -> Claim | Held:
    """Claim what a key names, or return the claim of another process.  One that is dead, or still as `stale`, is taken over."""
    name = f"{_FOLDER}/{key}"
    place = cache.claims
    if place is None:
        return Claim()
    while True:
        try:
            _write(place, name)
            return Claim(cache, name)
        except FileExistsError:
            pass
        except (OSError, StoreError) as error:
            _log.debug("%s: claims cannot be made there (%s)", cache.where, error)
            return Claim()
        try:
            held = _read(place, name)
            if not held.is_dead and held != stale:
                return held
            _write(place, name, replace=True)
            return Claim(cache, name)
        except FileNotFoundError:  # it was released meanwhile
            continue
        except (OSError, StoreError) as error:
            _log.debug("%s: claims cannot be read there (%s)", cache.where, error)
            return Claim()


def wait_for_claim(key: str, cache: Cache, is_made: Callable[[], object], *, what: str) -> Claim:
    """Claim what a key names.  While another process makes it, wait until `is_made`, or until that process gives no sign of life."""
    pause = _FIRST_PAUSE
    last: Held | None = None
    is_logged = False
    begun = time.monotonic()
    changed = begun
    while True:
        is_silent = time.monotonic() - changed > STALE_SECONDS
        claim = take_claim(key, cache, stale=last if is_silent else None)
        if isinstance(claim, Claim):
            return claim
        if is_made():
            return Claim()
        if claim != last:
            last = claim
            changed = time.monotonic()
        if not is_logged and time.monotonic() - begun > _LOG_SECONDS:
            is_logged = True
            _log.info("waiting for %s, which makes %s", claim, what)
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE)


def holders(keys: Iterable[str], cache: Cache) -> dict[str, Held]:
    """The claims of running processes on some keys, by key."""
    place = cache.claims
    claims: dict[str, Held] = {}
    if place is None:
        return claims
    with contextlib.suppress(OSError, StoreError):
        claimed = {name.rpartition("/")[2] for name in cache.names(_FOLDER)}
        for key in claimed.intersection(keys):
            with contextlib.suppress(FileNotFoundError):
                held = _read(place, f"{_FOLDER}/{key}")
                if not held.is_dead:
                    claims[key] = held
    return claims


def sees_claim(key: str, cache: Cache) -> bool:
    """Whether there is a claim of this name, for which this machine has never looked: then a network file system has no old answer."""
    return cache.size(f"{_FOLDER}/{key}") is not None


def sweep_claims(cache: Cache) -> None:
    """Remove the claims of dead processes."""
    place = cache.claims
    if place is None:
        return
    with contextlib.suppress(OSError, StoreError):
        for name in cache.names(_FOLDER):
            with contextlib.suppress(FileNotFoundError):
                if _read(place, name).is_dead:
                    place.remove(name)


@dataclass(slots=True)
class _Visit:
    """A task that another process does."""

    held: Held
    begun: float
    changed: float  # when its owner last showed a sign of life
    pause: float = _FIRST_WAIT


class WaitingRoom:
    """Tasks that other processes do.  Each is due again after a pause, until it is done, or its owner shows no sign of life."""

    def __init__(self) -> None:
        self._visits: dict[int, _Visit] = {}
        self._due: list[tuple[float, int]] = []  # heap of (when, task)
        self._next_log = time.monotonic() + _LOG_WAIT_SECONDS

    def __contains__(self, task: int) -> bool:
        return task in self._visits

    def leave(self, task: int) -> None:
        """The task is done."""
        self._visits.pop(task, None)

    def next_due(self) -> int | None:
        """Return a task that may be tried again now."""
        if self._due and self._due[0][0] <= time.monotonic():
            return heappop(self._due)[1]
        return None

    def wait(self, task: int, held: Held) -> bool:
        """Have a task wait, as `held` was found in its way; return whether that claim is to be taken over now."""
        now = time.monotonic()
        visit = self._visits.setdefault(task, _Visit(held, begun=now, changed=now))
        if held != visit.held:
            visit.held = held
            visit.changed = now
        silent = now - visit.changed
        waited = now - visit.begun
        is_stale = silent > STALE_SECONDS or waited > _MAX_WAIT
        if is_stale:
            heappush(self._due, (0.0, task))
            text = "shard %d is claimed by %s, waited for %.0f s, last sign of life %.0f s ago; it is made here now"
            _log.warning(text, task, held, waited, silent)
            return True
        if now > self._next_log:
            self._next_log = now + _LOG_WAIT_SECONDS
            text = "waiting for %d shards that other processes make; shard %d by %s for %.0f s"
            _log.info(text, len(self._visits), task, held, waited)
        # thousands of tasks are tried less often, and not by all processes at once
        pause = max(visit.pause, _LONGEST_WAIT * len(self._visits) / 1000)
        visit.pause = min(2 * visit.pause, _LONGEST_WAIT)
        jitter = 0.5 + os.urandom(1)[0] / 256
        heappush(self._due, (now + pause * jitter, task))
        return False


def _read(place: ClaimPlace, name: str) -> Held:
    """Read a claim.  The listing makes a network file system forget what it knew of the file."""
    if isinstance(place, Folder):
        place.entries(_FOLDER)
    return Held(place.read(name).decode(errors="replace"))


def _write(place: ClaimPlace, name: str, *, beat: int = 0, replace: bool = False) -> None:
    """Write a claim.  No two have the same text, so that two threads of a process cannot both create one."""
    text = f"{Owner.me()} {beat} {os.urandom(4).hex()} {platform.node()}"
    # not durable: after a power cut no process could hold it
    place.create(name, lambda file: file.write(text.encode()), replace=replace, durable=False)
