"""What the cache keeps of files: where their records begin, how many there are, and copies of what cannot be read in place.

All of it is remembered by `memo` for one version of a file: its path, size, inode and times.  A file that was written to, moved or touched
is another version, and is scanned again, which takes a third of a second for each GB.  Nothing is kept of a small file, which is scanned
faster than it is looked up, nor of a version that the system's clock cannot tell from the next one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from penstock.cache import Cache
from penstock.cache.checked import Json, Loaded, fault
from penstock.cache.memo import find_damage, memo_file
from penstock.errors import PenstockError, SourceError
from penstock.fingerprint import Digest
from penstock.places.files import settled
from penstock.places.local import buffer
from penstock.places.place import File, FileId
from penstock.types import Ints
from penstock.words import ProgressLog, size

SMALL = (
    1 << 16
)  # bytes of a file without an index: publishing ten thousand of them would cost minutes
MANY = 64  # files whose row counts are kept together; fewer are counted faster than looked up
WORD = np.dtype("<i8")
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_READ = 1 << 20
_VERSION = 5  # raise when a scan finds other rows in the same bytes


@dataclass(frozen=True, slots=True)
class Index:
    """Record i is at bytes starts[i]..starts[i + 1] and begins in line lines[i], counted from 1."""

    starts: Ints  # (num_rows + 1,)
    lines: Ints  # (num_rows + 1,)


# Yields tables of (byte, line), a pair for each row; the last pair of the last table is the end of the last row.
Scan = Callable[[], Iterator[Ints]]


def index(file: File, cache: Cache, *, kind: str, scan: Scan) -> Index:
    """Return the index of a file: from the cache, or made and left there.  kind: names the scan with all its settings."""
    if file.identity.size <= SMALL:
        table = np.concatenate([np.zeros((0, 2), WORD), *scan()])
        file.check()
    else:

        def write(out: IO[bytes]) -> None:
            for some in scan():
                out.write(some.astype(WORD).tobytes())
            file.check()  # a file that grew or shrank meanwhile has no index

        path = file.identity.path
        loaded = memo_file(
            "index",
            [_VERSION, kind, path],
            version_of([file.identity]),
            write,
            cache,
            what=f"the index of {path}",
        )
        table = np.frombuffer(loaded.payload, WORD).reshape(-1, 2)
    return Index(starts=table[:, 0], lines=table[:, 1])


def version_of(files: Sequence[FileId]) -> Json:
    """Return what changes when one of these files is written to; None if one was written so lately that its time cannot tell."""
    if not all(map(settled, files)):  # before any byte is read
        return None
    return [
        [file.path, file.size, file.inode, file.mtime_ns, file.ctime_ns, file.etag]
        for file in files
    ]


def known_of(
    files: Sequence[FileId], cache: Cache, *, kind: str, find: Callable[[], tuple[memoryview, Json]]
) -> Loaded:
    """Return the payload and JSON value that `find` finds out about files: from the cache, or made and left there."""

    def write(out: IO[bytes]) -> Json:
        payload, value = find()
        out.write(payload)
        return value

    return memo_file("counts", [_VERSION, kind], version_of(files), write, cache)


def row_counts(
    files: Sequence[FileId], cache: Cache, *, kind: str, count: Callable[[int], int]
) -> list[int]:
    """Return the records of each of many files, from one file of the cache, or by `count` of each file's number.

    Reading thousands of small files takes most of the time of opening them.
    """

    def find() -> tuple[memoryview, None]:
        counts = np.array([count(number) for number in range(len(files))], WORD)
        return memoryview(counts.tobytes()), None

    loaded = known_of(files, cache, kind=kind, find=find)
    counts: list[int] = np.frombuffer(loaded.payload, WORD).tolist()
    return counts


def mapped(file: File, cache: Cache) -> memoryview | bytes:
    """Return a whole file as memory: a map, or of an object a copy in the cache, which one process makes for all."""
    known = file.identity
    if file.on_disk:
        content: memoryview | bytes = file.map()
        return content
    if not known.has_strong_etag:  # a copy could be of an older version
        raise SourceError(
            f"{known.path}: the server gives no strong ETag, so a copy cannot be distinguished from a newer file; download it"
        )

    def write(out: IO[bytes]) -> None:
        for _, block in blocks(file, 0, known.size):
            out.write(block.tobytes())

    return memo_file(
        "copies", known.path, version_of([known]), write, cache, what=f"a copy of {known.path}"
    ).payload


def digest_of(file: File) -> str:
    """Return the digest of a whole file."""
    content = Digest()
    for _, block in blocks(file, 0, file.identity.size):
        content.extend(block.data)
    return content.hexdigest()


def blocks(file: File, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
    """Yield (position, bytes) over a range.  All blocks share one buffer: use a block before asking for the next."""
    room = buffer(_READ)
    progress = ProgressLog(f"reading {file.identity.path}", stop, size)
    while start < stop:
        count = min(file.readinto(room, start), stop - start)
        if not count:
            break
        yield start, np.frombuffer(room, dtype=np.uint8, count=count)
        start += count
        progress(start)
    file.check()


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file of a cache, checked in full."""

    name: str
    num_bytes: int
    problem: str | None  # what is wrong with it, and what to do


def verify_files(cache: Cache) -> Iterator[CheckedFile]:
    """Check everything that is remembered, and the spools of streams, one after another."""
    for name, num_bytes, problem in find_damage(cache):
        yield CheckedFile(name, num_bytes, problem)
    for entry in cache.entries("iterables"):
        try:
            problem = fault(cache.map(entry.name, size=entry.num_bytes), full=True)
            if problem is not None:
                problem = f"{cache.path(entry.name)}: {problem}; remove it, it will be made again"
        except PenstockError as error:
            problem = str(error)
        yield CheckedFile(entry.name, entry.num_bytes, problem)
