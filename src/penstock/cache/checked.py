"""Files of the cache that check themselves: a payload, a digest for each MiB of it, a JSON value, and a footer.

Opening one checks the value and up to 64 blocks of the payload: all of a payload of 64 MiB, else the first, the last and 62 between.
`penstock verify --all` checks every block.
"""

import json
import logging
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeAlias, cast

import numpy as np

from penstock.cache.cache import Cache
from penstock.fingerprint import digest
from penstock.places.files import identify
from penstock.places.place import FileId

_log = logging.getLogger("penstock")

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

BLOCK = 1 << 20  # bytes of payload under one digest
_MAX_CHECKED = 64  # blocks checked when a file is opened
_DIGEST = 16  # bytes
# Magic, bytes of the payload and of the JSON value; a digest of all but the payload follows.
_FOOTER = struct.Struct("<8sQQ")
_MAGIC = b"PSSUMS02"

_CHECKED: set[FileId] = set()  # files that this process has found undamaged


@dataclass(frozen=True, slots=True)
class Loaded:
    """The payload of a file, memory-mapped, and its JSON value."""

    payload: memoryview
    value: Any


def publish(
    cache: Cache, name: str, write: Callable[[IO[bytes]], Json], *, durable: bool = True
) -> None:
    """Publish a file; `write` writes the payload front to back and returns the JSON value.

    durable: as in `Cache.publish`; a file without a payload is checked whole whenever it is opened, and needs no sync.
    """

    def write_all(out: IO[bytes]) -> None:
        payload = _Payload(out)
        value = write(cast(IO[bytes], payload))
        text = json.dumps(value, sort_keys=True, allow_nan=False).encode()
        payload.flush()
        tail = payload.digests + text + _FOOTER.pack(_MAGIC, payload.num_bytes, len(text))
        out.write(tail + bytes.fromhex(digest(tail)))

    cache.publish(name, write_all, replace=True, durable=durable)


def load(cache: Cache, name: str) -> Loaded | None:
    """Map a published file; return None if there is none or it is damaged."""
    num_bytes = cache.size(name)
    if num_bytes is None:
        return None
    data = cache.map(name, size=num_bytes)
    version = identify(str(cache.path(name)))
    if version not in _CHECKED:
        damage = fault(data)
        if damage is not None:
            _log.warning("%s: %s; Penstock makes it again", cache.path(name), damage)
            return None
        _CHECKED.add(version)
    cache.renew(name)
    start = num_bytes - _DIGEST - _FOOTER.size
    _, num_payload, num_text = _FOOTER.unpack_from(data, start)
    return Loaded(data[:num_payload], json.loads(bytes(data[start - num_text : start])))


def fault(data: memoryview | bytes, *, full: bool = False) -> str | None:
    """Return what is wrong with a file, or None.  `full` checks every block."""
    footer = len(data) - _DIGEST - _FOOTER.size
    if footer < 0:
        return "its footer is missing or damaged"
    magic, size, num_text = _FOOTER.unpack_from(data, footer)
    count = -(-size // BLOCK)
    if magic != _MAGIC or size + count * _DIGEST + num_text != footer:
        return "its footer is missing or damaged"
    if bytes.fromhex(digest(data[size:-_DIGEST])) != data[-_DIGEST:]:
        return "its checksums are not what was written"
    for block in _blocks_to_check(count, full=full):
        begin = block * BLOCK
        end = min(begin + BLOCK, size)
        expected = data[size + block * _DIGEST : size + (block + 1) * _DIGEST]
        if bytes.fromhex(digest(data[begin:end])) != expected:
            return f"bytes {begin}..{end} are not what was written"
    return None


def _blocks_to_check(count: int, *, full: bool) -> Iterator[int]:
    if full or count <= _MAX_CHECKED:
        return iter(range(count))
    return map(int, np.linspace(0, count - 1, _MAX_CHECKED).astype(int))


class _Payload:
    """A file that is written and digested block by block."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._unwritten = bytearray()
        self.digests = b""
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        self._unwritten += data
        while len(self._unwritten) >= BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write one block, or what is left of it."""
        with memoryview(self._unwritten) as unwritten, unwritten[:BLOCK] as block:
            if block:
                self.digests += bytes.fromhex(digest(block))
            self.num_bytes += self._out.write(block)
        del self._unwritten[:BLOCK]
