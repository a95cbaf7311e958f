"""Claims: which process makes what, so that other processes make something else, or wait for it.

Claims only save work: two processes that make the same file write the same bytes.  A claim is a small file in `claims/` with
its owner, a beat and the host.  A place creates it whole, and fails where there is one, also on network file systems.  Its owner
counts up the beat while the work goes on; a process that waits compares texts, never clocks, and takes over a claim whose text
stays the same.

Results only save reading: a process publishes what it knows of a file that it has made, and processes of the same machine believe it as
long as it runs.
"""

import contextlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.cache.cache import Cache
from penstock.cache.locks import Owner
from penstock.errors import StoreError
from penstock.fingerprint import fingerprint

STALE_SECONDS = 60.0  # without a beat, the claim of another machine counts for nothing
_BEAT_SECONDS = 5.0
# seconds until a claim is looked at again
_FIRST_PAUSE = 0.02
_MAX_PAUSE = 1.0
_LOG_SECONDS = 5.0  # a process that waits longer for a claim says so
_FOLDER = "claims"
RESULTS = "results"  # what processes that prepare the same data at the same time tell each other
_RESULT_SECONDS = 86400.0  # after which a result is removed

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
        return (
            f"process {self.owner.pid} on {self.text.split(' ', 3)[-1]}"
            if self.owner
            else "an unknown process"
        )


class Claim:
    """What this process makes.  Without a name where no file could be created: then others may make it, too."""

    def __init__(self, cache: Cache, name: str = "") -> None:
        self._cache = cache
        self._name = name
        self._beat = 0
        self._last_beat = time.monotonic()

    def beat(self) -> None:
        """Renew the claim; cheap enough to be called often."""
        if self._name and time.monotonic() - self._last_beat > _BEAT_SECONDS:
            self._beat, self._last_beat = self._beat + 1, time.monotonic()
            with contextlib.suppress(OSError, StoreError):
                _write(self._cache, self._name, beat=self._beat, replace=True)

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *error: object) -> None:
        if self._name:
            with contextlib.suppress(OSError, StoreError):
                if (
                    held := _read(self._cache, self._name)
                ) is not None and held.owner == Owner.me():  # not taken over
                    self._cache.claims.remove(self._name)


def take_claim(key: str, cache: Cache, *, stale: Held | None = None) -> Claim | Held:
    """Claim what a key names, or return the claim of another process.  One that is dead, or still as `stale`, is taken over."""
    name = f"{_FOLDER}/{key}"
    try:
        if cache.claims is None:
            return Claim(cache)
        while True:
            with contextlib.suppress(FileExistsError):
                _write(cache, name)
                return Claim(cache, name)
            held = _read(cache, name)
            if held is not None and (held.is_dead or held == stale):
                _write(cache, name, replace=True)
                return Claim(cache, name)
            if held is not None:  # else it was released meanwhile
                return held
    except (OSError, StoreError) as error:
        _log.debug("%s: claims cannot be made there (%s)", cache.where, error)
        return Claim(cache)


def wait_for_claim(key: str, cache: Cache, is_made: Callable[[], object], *, what: str) -> Claim:
    """Claim what a key names.  While another process makes it, wait until `is_made`, or until that process gives no sign of life."""
    pause = _FIRST_PAUSE
    last = None
    is_logged = False
    begun = changed = time.monotonic()
    while True:
        stale = last if time.monotonic() - changed > STALE_SECONDS else None
        found = take_claim(key, cache, stale=stale)
        if isinstance(found, Claim):
            return found
        if is_made():
            return Claim(cache)
        if found != last:
            last = found
            changed = time.monotonic()
        if not is_logged and time.monotonic() - begun > _LOG_SECONDS:
            is_logged = True
            _log.info("waiting for %s, which makes %s", found, what)
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE)


def holders(keys: Iterable[str], cache: Cache) -> dict[str, Held]:
    """The claims of running processes on some keys, by key."""
    found = {}
    with contextlib.suppress(OSError, StoreError):
        claimed = {name.rpartition("/")[2] for name in cache.names(_FOLDER)}
        for key in claimed.intersection(keys):
            held = _read(cache, f"{_FOLDER}/{key}")
            if held is not None and not held.is_dead:
                found[key] = held
    return found


def sees_claim(key: str, cache: Cache) -> bool:
    """Whether there is a claim of this name, for which this machine has never looked: then a network file system has no old answer."""
    return cache.size(f"{_FOLDER}/{key}", hold=False) is not None


def publish_result(key: str, value: Any, cache: Cache) -> None:
    """Tell other processes of this machine what this one has made, so that they need not read it, as long as this one runs."""
    text = f"{Owner.me()} {fingerprint(value)} {json.dumps(value)}"
    with contextlib.suppress(StoreError):
        cache.publish(
            f"{RESULTS}/{key}", lambda file: file.write(text.encode()), replace=True, hold=False
        )


def recall_result(key: str, cache: Cache) -> Any:
    """What another process has published about a key; None unless that process is seen to run, here and now.

    It is not known whether a process of another machine runs, nor one of this machine before its last start: files may have been damaged
    since.  Objects of a bucket do not change, and are checked when they are fetched: there every result counts.
    """
    with contextlib.suppress(OSError, StoreError, ValueError):
        held = Held(cache.read(f"{RESULTS}/{key}").decode())
        is_running = (
            held.owner not in (None, Owner.me()) and held.owner.is_here and not held.is_dead
        )
        if is_running or cache.claims is not cache.place:
            _, check, text = held.text.split(" ", 2)
            if fingerprint(value := json.loads(text)) == check:
                return value
    return None


def sweep_claims(cache: Cache) -> None:
    """Remove the claims of dead processes, and old results."""
    with contextlib.suppress(OSError, StoreError):
        if cache.claims is None:
            return
        for name in cache.names(_FOLDER):
            with contextlib.suppress(FileNotFoundError):
                if Held(cache.claims.read(name).decode(errors="replace")).is_dead:
                    cache.claims.remove(name)
    with contextlib.suppress(OSError, StoreError):
        oldest = cache.now() - _RESULT_SECONDS
        for entry in cache.entries(RESULTS):
            if entry.used < oldest:
                cache.claims.remove(entry.name)


def _read(cache: Cache, name: str) -> Held | None:
    """None where it was released meanwhile.  The listing makes a network file system forget what it knew of the file."""
    try:
        if cache.claims is cache.place:
            cache.place.entries(_FOLDER)
        return Held(cache.claims.read(name).decode(errors="replace"))
    except FileNotFoundError:
        return None


def _write(cache: Cache, name: str, *, beat: int = 0, replace: bool = False) -> None:
    """Write a claim.  No two have the same text, so that two threads of a process cannot both create one."""
    text = f"{Owner.me()} {beat} {os.urandom(4).hex()} {platform.node()}"
    cache.claims.create(name, lambda file: file.write(text.encode()), replace=replace)
