"""Checksums of what sources keep in the cache: offset indexes, row counts, unpacked text, spooled streams.

A file is digested in blocks of 1 MiB as it is written.  When it is opened, all blocks are checked up to 64 of them (64 MiB, a few
milliseconds); of a larger file its size, the table of digests, the first block, the last and 62 between.  `penstock verify --all` checks
every block.  A file that fails is made again where its source is at hand, and is an error where it is not.
"""

import os
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from penstock.fingerprint import Digest, digest

BLOCK = 1 << 20
_SPREAD = 64  # blocks checked at open
_MAGIC = b"PSSUMS01"
_SUM = 16  # bytes of a digest

Read = Callable[[int, int], bytes | memoryview]  # the bytes start..stop of a file


class Summed:
    """A file that is digested block by block while it is written from front to back."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._sums: list[bytes] = []
        self._block = Digest()
        self.num_bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        start = 0
        while start < len(view):
            room = BLOCK - self.num_bytes % BLOCK
            piece = view[start : start + room]
            self._block.extend(piece)
            self.num_bytes += len(piece)
            start += len(piece)
            if self.num_bytes % BLOCK == 0:
                self._close()
        return self._out.write(data)

    def tell(self) -> int:
        return self.num_bytes

    def _close(self) -> None:
        self._sums.append(bytes.fromhex(self._block.hexdigest()))
        self._block = Digest()

    def sums(self) -> bytes:
        """The digests of all blocks; nothing may be written after this."""
        if self.num_bytes % BLOCK:
            self._close()
        return b"".join(self._sums)


def sums_size(num_bytes: int) -> int:
    """Bytes of the digests of a file of this size."""
    return -(-num_bytes // BLOCK) * _SUM


def damaged(read: Read, num_bytes: int, sums: bytes | memoryview, *, full: bool = False) -> str | None:
    """What is wrong with a file's content, or None: of all blocks if `full` or if they are few, else of some spread over it."""
    if len(sums) != sums_size(num_bytes):
        return f"{len(sums)} bytes of checksums, expected {sums_size(num_bytes)}"
    count = len(sums) // _SUM
    blocks = range(count) if full or count <= _SPREAD else np.linspace(0, count - 1, _SPREAD).astype(int).tolist()
    for block in blocks:
        start, stop = block * BLOCK, min((block + 1) * BLOCK, num_bytes)
        if bytes.fromhex(digest(read(start, stop))) != sums[block * _SUM : (block + 1) * _SUM]:
            return f"bytes {start}..{stop} are not what was written"
    return None


_CHECKED: set[tuple[str, int, int, int]] = (
    set()
)  # files that this process found whole: path, inode, size, time of the last write


def once(path: str, check: Callable[[], str | None]) -> str | None:
    """What a check says of a file, asked once for each version of it: a process may open it many times."""
    status = os.stat(path)  # noqa: PTH116
    version = (path, status.st_ino, status.st_size, status.st_mtime_ns)
    if version in _CHECKED:
        return None
    fault = check()
    if fault is None:
        _CHECKED.add(version)
    return fault


def to_file(num_bytes: int, sums: bytes) -> bytes:
    """Checksums as a file beside the one they are of."""
    body = _MAGIC + num_bytes.to_bytes(8, "little") + sums
    return body + bytes.fromhex(digest(body))


def from_file(data: bytes, num_bytes: int) -> bytes | None:
    """The checksums of a file of this size; None where they are of another file, or damaged."""
    body, own = data[:-_SUM], data[-_SUM:]
    if len(data) < 16 + _SUM or bytes.fromhex(digest(body)) != own or body[:16] != to_file(num_bytes, b"")[:16]:
        return None
    return body[16:]
