"""One version of an object, open: ranges of it, read ahead, and the errors that say that it was replaced."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from penstock.errors import SourceChanged, SourceError
from penstock.extras.remote.requests import Changed, Missing, RemoteError
from penstock.places.place import FileId

# bytes read ahead: times 4 if a read goes on where the last one ended
AHEAD = 1 << 16
_MAX_AHEAD = 1 << 22
_MAX_MAP = 1 << 26  # bytes of an object that `map` holds in memory
_PROVEN_SECONDS = 10.0  # so long a read of a version proves that it is the present one


class ObjectFile:
    """One version of an object.  Reads ahead where it is read from front to back.  Pickles as its identity."""

    on_disk = False

    def __init__(self, place: Any, identity: FileId) -> None:
        self.identity = identity
        self._place = place
        self._held: tuple[int, memoryview] = (
            0,
            memoryview(b""),
        )  # replaced as a whole: threads may read at once
        self._ahead = AHEAD
        self._proven = 0.0
        self.check()
        self._proven = 0.0  # what was found when it was opened says nothing about later

    def read(self, start: int, stop: int) -> bytes:
        size = self.identity.size
        if stop > size:
            raise SourceChanged(
                f"{self.identity.path}: ends at byte {size}, asked for {start}..{stop}; open the source again"
            )
        return bytes(self._bytes(start, stop))

    def readinto(self, buffer: bytearray | memoryview, start: int) -> int:
        stop = min(start + len(buffer), self.identity.size)
        count = max(0, stop - start)
        if count:
            memoryview(buffer)[:count] = self._bytes(start, stop)
        return count

    def map(self) -> bytes:
        """Return a small object as a whole.  Sources copy a large one to the cache instead."""
        size = self.identity.size
        if size > _MAX_MAP:
            raise SourceError(
                f"{self.identity.path}: {size:,} bytes, too many to hold in memory; download the file"
            )
        return self.read(0, size)

    def check(self) -> None:
        """Ask for the present version, unless a read or a check has proven it a moment ago."""
        if time.monotonic() - self._proven < _PROVEN_SECONDS and self._proven:
            return
        with changes_named(self.identity):
            found = self._place.stat(self.identity.path)
        if found != self.identity:
            raise _changed(self.identity, f"has {found.size} bytes, ETag {found.etag or 'none'}")
        self._proven = time.monotonic()

    def _bytes(self, start: int, stop: int) -> bytes | memoryview:
        at, held = self._held
        end = at + len(held)
        if at <= start and stop <= end:
            return held[start - at : stop - at]
        goes_on = bool(held) and at <= start <= end
        self._ahead = min(_MAX_AHEAD, self._ahead * 4) if goes_on else AHEAD
        kept = held[start - at :] if goes_on else memoryview(b"")
        until = min(self.identity.size, max(stop, start + self._ahead))
        with changes_named(self.identity):
            data = memoryview(
                b"".join([kept, *self._place.pieces(self.identity, start + len(kept), until)])
            )
        self._proven = time.monotonic()
        if len(data) <= _MAX_AHEAD:
            self._held = (start, data)
        return data[: stop - start]

    def __reduce__(self) -> tuple[Any, tuple[Any, FileId]]:
        return ObjectFile, (self._place, self.identity)


@contextlib.contextmanager
def changes_named(known: FileId) -> Iterator[None]:
    """Turn a change, a removal or another failure of a request into SourceChanged or SourceError."""
    try:
        yield
    except (Changed, Missing) as error:
        raise _changed(
            known, "was removed" if isinstance(error, Missing) else str(error.strerror)
        ) from error
    except RemoteError as error:
        raise SourceError(f"{known.path}: {error.strerror}") from error


def _changed(known: FileId, found: str) -> SourceChanged:
    expected = f"expected {known.size} bytes, ETag {known.etag or 'none'}"
    return SourceChanged(
        f"{known.path}: changed while open: {found}, {expected}; open the source again"
    )
