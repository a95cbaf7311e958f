"""Claims: which process makes which shard, so that other processes make other shards.

Claims only save work: two processes that make the same shard write the same bytes.  A claim is a small file in `claims/` with
its owner, a beat and the host.  A place creates it whole, and fails where there is one, also on network file systems.  Its owner
counts up the beat while the work goes on; a process that waits compares texts, never clocks, and takes over a claim whose text
stays the same.
"""

import contextlib
import logging
import os
import platform
import time
from dataclasses import dataclass

from penstock.cache import Cache, Owner
from penstock.errors import StoreError

_BEAT_SECONDS = 5.0
_FOLDER = "claims"

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
        return f"process {self.owner.pid} on {self.text.split(' ', 3)[-1]}" if self.owner else "an unknown process"


class Claim:
    """A shard that this process makes.  Without a name where no file could be created: then others may make it, too."""

    def __init__(self, cache: Cache, name: str = "") -> None:
        self._cache, self._name = cache, name
        self._beat, self._last_beat = 0, time.monotonic()

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
                if (held := _read(self._cache, self._name)) is not None and held.owner == Owner.me():  # not taken over
                    self._cache.place.remove(self._name)


def claim_shard(key: str, cache: Cache, *, stale: Held | None = None) -> Claim | Held:
    """Claim a shard, or return the claim of another process.  One that is dead, or still as `stale`, is taken over."""
    name = f"{_FOLDER}/{key}"
    try:
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
        _log.debug("%s: claims cannot be made there (%s)", cache.root, error)
        return Claim(cache)


def sweep_claims(cache: Cache) -> None:
    """Remove the claims of dead processes."""
    with contextlib.suppress(OSError, StoreError):
        for name in cache.names(_FOLDER):
            if (held := _read(cache, name)) is not None and held.is_dead:
                cache.place.remove(name)


def _read(cache: Cache, name: str) -> Held | None:
    """None where it was released meanwhile.  The listing makes a network file system forget what it knew of the file."""
    try:
        cache.place.entries(_FOLDER)
        return Held(cache.place.read(name).decode(errors="replace"))
    except FileNotFoundError:
        return None


def _write(cache: Cache, name: str, *, beat: int = 0, replace: bool = False) -> None:
    """Write a claim.  No two have the same text, so that two threads of a process cannot both create one."""
    text = f"{Owner.me()} {beat} {os.urandom(4).hex()} {platform.node()}"
    cache.place.create(name, lambda file: file.write(text.encode()), replace=replace)
