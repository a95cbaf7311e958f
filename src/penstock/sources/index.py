"""What the cache keeps of a file: where its rows begin, found by one scan and used as long as it is true.

An index is stored under the file's size and a probe of its content, with a digest of all of the content.  A note under the file's path
records the file's metadata when its index was last confirmed.

| the file | what happens |
|---|---|
| small | it is scanned, which is faster than looking up and publishing; nothing is kept |
| as noted: size, times of the last write and the last change, inode, probe | the index is mapped; nothing else is read |
| touched, moved, copied, or written so lately that its time cannot tell | one pass for the digest, several times faster than a scan |
| longer than noted | one pass for the digest of the old part; if it is the same, only the new part is scanned |
| anything else | a scan |

A probe alone never proves an old part unchanged: a line rewritten in the middle, at equal length, moves none of it, and offsets that are
off by one row give wrong records.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from penstock.cache import Cache
from penstock.cache.checked import Loaded, fault, load, publish
from penstock.cache.claims import Claim, wait_for_claim
from penstock.cache.memo import find_damage
from penstock.errors import PenstockError, SourceError, StoreError
from penstock.fingerprint import Digest, fingerprint
from penstock.places.files import settled
from penstock.places.local import buffer
from penstock.places.place import File, FileId
from penstock.types import Ints
from penstock.words import ProgressLog, size

_log = logging.getLogger("penstock")


def mapped(file: File, cache: Cache) -> Any:
    """Return a whole file as memory: a map, or of an object a copy in the cache, which one process makes for all."""
    known = file.identity
    if file.on_disk:
        return file.map()
    if not known.has_strong_etag:  # a copy could be of an older version
        raise SourceError(
            f"{known.path}: the server gives no strong ETag, so a copy cannot be distinguished from a newer file; download it"
        )
    key = fingerprint([known.path, known.size, known.mtime_ns, known.etag])
    name = f"spools/{key[:2]}/{key}.unpacked"
    if (found := load(cache, name)) is None:

        def write(out: IO[bytes]) -> None:
            for _, block in blocks(file, 0, known.size):
                out.write(block.tobytes())

        publish(cache, name, write)
        found = load(cache, name)
    if found is None or len(found.payload) != known.size:
        raise StoreError(
            f"{cache.path(name)}: not the copy of {known.path} that was just made; remove it and run again"
        )
    return found.payload


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file of a cache, checked in full."""

    name: str
    num_bytes: int
    problem: str | None  # what is wrong with it, and what to do


def verify_files(cache: Cache) -> Iterator[CheckedFile]:
    """Check offset indexes, row counts, unpacked text and chunks of spooled streams, one after another."""
    from penstock.sources.memory import chunk_fault  # memory.py needs this module

    for name, num_bytes, problem in find_damage(cache):
        yield CheckedFile(name, num_bytes, problem)
    for folder in ("offsets", "spools", "iterables"):
        for entry in cache.entries(folder):
            try:
                if entry.name.endswith(".jsonl"):
                    problem = chunk_fault(entry.name.rpartition("/")[2], cache.read(entry.name))
                elif entry.name.endswith((".rows", ".unpacked")):
                    problem = fault(
                        cache.map(entry.name, size=entry.num_bytes, hold=False), full=True
                    )
                else:
                    continue
                if problem is not None:
                    problem = (
                        f"{cache.path(entry.name)}: {problem}; remove it, it will be made again"
                    )
            except PenstockError as error:
                problem = str(error)
            yield CheckedFile(entry.name, entry.num_bytes, problem)


SMALL = (
    1 << 16
)  # bytes of a file without an index: publishing ten thousand of them would cost minutes
_READ = 1 << 20
_PROBE = 1 << 14
MANY = 64  # files whose row counts are kept together; fewer are counted faster than looked up
_VERSION = 4  # of indexes and counts: part of their names

WORD = np.dtype("<i8")
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Index:
    """Row i is at bytes starts[i]..starts[i + 1] and begins in line lines[i], counted from 1."""

    size: int  # bytes of the file
    content: str  # digest of all of them
    starts: Ints  # (num_rows + 1,)
    lines: Ints  # (num_rows + 1,)


# Calls its first argument with (byte, line) pairs of rows, the last pair is the end of the last row, and returns the digest of the content.
# The second argument is the index of a file that may be the beginning of this one.
Scan = Callable[[Callable[[Ints], object], Index | None], str]


def index(file: File, cache: Cache, *, kind: str, scan: Scan) -> Index:
    """Return the index of a file: from the cache, or made and left there.  `kind` names the scan with all its settings."""
    known = file.identity
    if known.size <= SMALL:
        tables = [np.zeros((0, 2), WORD)]
        content = scan(tables.append, None)
        file.check()
        return _index(known.size, content, np.concatenate(tables))
    is_settled = settled(known)  # before any byte is read
    probe = _probe(file)
    note_name = _name("notes", [kind, known.path], "json")
    name = _name("index", [kind, known.size, probe], "rows")

    def confirmed() -> Index | None:
        """The index in the cache, if its note says that it belongs to this version of the file."""
        found = _load(cache, name, known.size)
        matches = found is not None and _read_note(cache, note_name) == _note(
            known, probe, found.content, settled=True
        )
        return found if matches else None

    if (found := confirmed()) is not None:
        return found
    claim = Claim(
        cache
    )  # of nothing: what is kept about a file that was just written helps no other process
    if is_settled:
        key = f"index-{fingerprint([name, known.path])}"
        claim = wait_for_claim(key, cache, confirmed, what=f"the index of {known.path}")
    with claim:
        if (found := confirmed()) is not None:  # another process has made it
            return found
        found = _load(cache, name, known.size)
        if found is None or digest_of(file) != found.content:
            found = _make(file, cache, name, scan, _read_note(cache, note_name), kind, claim)
        text = json.dumps(_note(known, probe, found.content, settled=is_settled)).encode()
        with contextlib.suppress(
            StoreError
        ):  # it only saves time, and a shared cache may be read-only
            cache.publish(note_name, lambda out: out.write(text), replace=True)
    return found


def _make(
    file: File,
    cache: Cache,
    name: str,
    scan: Scan,
    note: dict[str, Any] | None,
    kind: str,
    claim: Claim,
) -> Index:
    """Scan a file, and publish its index.  If the note is of a shorter file, that one's index may be the beginning."""
    size = file.identity.size
    old = None
    if note is not None and note["size"] < size:
        old = _load(
            cache, _name("index", [kind, note["size"], note["probe"]], "rows"), note["size"]
        )

    def write(out: IO[bytes]) -> str:
        def add(table: Ints) -> None:
            out.write(table.astype(WORD).tobytes())
            claim.beat()

        content = scan(add, old)
        file.check()  # a file that grew or shrank meanwhile has no index
        return content

    publish(cache, name, write)
    found = _load(cache, name, size)
    if found is None:
        raise StoreError(
            f"{cache.path(name)}: not what was just written; does another program write to the cache?"
        )
    return found


def digest_of(file: File) -> str:
    """Return the digest of a whole file."""
    content = Digest()
    extend(content, file, file.identity.size)
    return content.hexdigest()


def extend(content: Digest, file: File, stop: int) -> None:
    """Add the first `stop` bytes of a file to a digest."""
    for _, block in blocks(file, 0, stop):
        content.extend(block.data)


def blocks(file: File, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
    """Yield (position, bytes) over a range.  All blocks share one buffer: use a block before asking for the next."""
    room = buffer(_READ)
    progress = ProgressLog(f"reading {file.identity.path}", stop, size)
    while start < stop and (count := min(file.readinto(room, start), stop - start)):
        yield start, np.frombuffer(room, dtype=np.uint8, count=count)
        start += count
        progress(start)
    file.check()


def _probe(file: File) -> str:
    """Return a digest of the first, middle and last bytes: it distinguishes most files at the cost of three small reads."""
    size = file.identity.size
    content = Digest()
    for start in (0, max(0, (size - _PROBE) // 2), max(0, size - _PROBE)):
        content.update(file.read(start, min(size, start + _PROBE)))
    return content.hexdigest()


def _index(size: int, content: str, table: Ints) -> Index:
    return Index(size, content, starts=table[:, 0], lines=table[:, 1])


def _load(cache: Cache, name: str, size: int) -> Index | None:
    found = load(cache, name)
    return (
        None
        if found is None
        else _index(size, found.value, np.frombuffer(found.payload, WORD).reshape(-1, 2))
    )


def _read_note(cache: Cache, name: str) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        note = None if cache.size(name) is None else json.loads(cache.read(name))
        if (
            isinstance(note, dict)
            and isinstance(note.get("size"), int)
            and isinstance(note.get("probe"), str)
        ):
            return note
    return None


def _note(known: FileId, probe: str, content: str, *, settled: bool) -> dict[str, Any]:
    times: dict[str, Any] = {
        "mtime_ns": known.mtime_ns,
        "ctime_ns": known.ctime_ns,
        "inode": known.inode,
    }
    if known.etag:
        times["etag"] = known.etag
    return {"size": known.size, **times, "probe": probe, "content": content, "settled": settled}


def _name(folder: str, parts: list[Any], suffix: str) -> str:
    key = fingerprint([_VERSION, *parts])
    return f"offsets/{folder}/{key[:2]}/{key}.{suffix}"


def known_of(
    files: list[FileId], cache: Cache, *, kind: str, find: Callable[[], tuple[memoryview, Any]]
) -> Loaded:
    """Return the payload and JSON value that `find` finds out about files: from the cache, or made and left there.

    The cache has it as long as path, size, inode and times of every file are the same.  Nothing is kept if one was written so lately that
    its time cannot tell.
    """
    is_settled = all(map(settled, files))  # before any byte is read
    stats = [
        [known.path, known.size, known.inode, known.mtime_ns, known.ctime_ns, known.etag]
        for known in files
    ]
    name = _name("counts", [kind, stats], "rows")
    with contextlib.suppress(StoreError):
        if is_settled and (found := load(cache, name)) is not None:
            return found
    payload, value = find()

    def write(out: IO[bytes]) -> Any:
        out.write(payload)
        return value

    with contextlib.suppress(StoreError):  # it only saves time, and a shared cache may be read-only
        if is_settled:
            publish(cache, name, write)
    return Loaded(payload, value)


def row_counts(
    files: list[FileId], cache: Cache, *, kind: str, count: Callable[[int], int]
) -> list[int]:
    """Return the rows of each of many files, from one file of the cache, or by `count` of each file's number.

    Reading thousands of small files takes most of the time of opening them.
    """

    def find() -> tuple[memoryview, Any]:
        return memoryview(
            np.array([count(number) for number in range(len(files))], WORD).tobytes()
        ), None

    found = known_of(files, cache, kind=kind, find=find)
    counts: list[int] = np.frombuffer(found.payload, WORD).tolist()
    return counts
