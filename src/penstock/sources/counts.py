"""Remember how many rows each of many small files has, in one file of the cache.

A small file has no index of its own: scanning it is quicker than looking one up.  Of thousands of them, opening and reading each still
takes most of the time.  So their counts are kept together, under the paths, sizes, inodes and times of all files.  Where one of these
differs, or a file was written so lately that its time cannot tell, all are counted again.  Counts never name content: whoever reads a
file holds it to its count.
"""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import digest, fingerprint
from penstock.sources.sidecar import settled

if TYPE_CHECKING:
    from penstock.sources.parts import FilesSource

_MANY = 64  # files; fewer are counted sooner than looked up
_MAGIC = b"PSCOUNT1"
_WORD = np.dtype("<i8")


def row_counts(source: "FilesSource", count_all: Callable[[], list[int]], count: Callable[[int], int]) -> list[int]:
    """The rows of each file: from the cache, or by `count` of each; by `count_all` where there are few files."""
    files = source.identities
    if len(files) < _MANY:
        return count_all()
    is_settled = all(map(settled, files))  # asked before any byte is read
    looks = [[known.path, known.size, known.inode, known.mtime_ns, known.ctime_ns] for known in files]
    key = fingerprint([type(source).__name__, repr(sorted(source.options.items())), looks])
    name = f"offsets/counts/{key[:2]}/{key}.i64"
    if is_settled and (found := _load(source.cache, name, len(files))) is not None:
        return found
    counts = [count(index) for index in range(len(files))]
    if is_settled:
        words = np.array(counts, dtype=_WORD).tobytes()
        with contextlib.suppress(
            StoreError
        ):  # it only saves time, and a cache that is shared may not be ours to write to
            source.cache.publish(name, lambda out: out.write(_MAGIC + words + _sum(words)), replace=True)
    return counts


def _load(cache: Cache, name: str, num_files: int) -> list[int] | None:
    if cache.size(name) is None:
        return None
    with contextlib.suppress(StoreError):
        data = cache.read(name)
        if counts_fault(data) is None and len(data) == 24 + num_files * _WORD.itemsize:
            counts: list[int] = np.frombuffer(data[8:-16], dtype=_WORD).tolist()
            return counts
    return None


def counts_fault(data: bytes) -> str | None:
    """What is wrong with a file of counts, or None."""
    if data[:8] != _MAGIC or data[-16:] != _sum(data[8:-16]):
        return "its counts are not what was written"
    return None


def _sum(words: bytes) -> bytes:
    return bytes.fromhex(digest(_MAGIC + words))
