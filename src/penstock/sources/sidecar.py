"""Is what we once learned about this file still true?  A quick look where that is safe, its content where it is not.

An index (where rows begin) lies in the cache under the file's size and a probe of its content, and holds a digest of all of
it.  A note under the file's path says what that file looked like when its index was last found true.

| the file | what happens |
|---|---|
| small | it is scanned, in less time than looking up and publishing takes; nothing is kept |
| as noted: size, times of the last write and the last change, inode, probe | the index is mapped; nothing else is read |
| touched, moved, copied, or written so lately that its time cannot tell | one pass for the digest, several times faster than a scan |
| longer than noted | one pass for the digest of the old part; if it is still the same, only the new part is scanned |
| anything else | a scan |

An index carries checksums (sums.py): one that is not what was written is made again.

Probes alone never prove an old part unchanged: a line rewritten in the middle, at equal length, moves none of them, and
offsets that are off by one row give wrong records without a word.
"""

import contextlib
import io
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, cast

import numpy as np

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.files import FileId, RangeFile, buffer
from penstock.fingerprint import Digest, digest, fingerprint
from penstock.sources.sums import Summed, damaged, once
from penstock.types import Ints

_log = logging.getLogger("penstock")

# magic, file size, number of words behind the header, two of the kind's own, two of digest, two of probe, two of checksum
_HEADER = 11
_OWN = 9  # words of the header that its checksum covers, with the digests of all blocks, which stand at the end
_WORD = np.dtype("<i8")
_BLOCK = 1 << 20
_PROBE = 1 << 14
SMALL = 1 << 16  # bytes of a file not worth a sidecar: ten thousand of them would cost minutes of waiting for the disk
_MAGIC = int.from_bytes(b"PSSIDE03", "little")


@dataclass(frozen=True, slots=True)
class Index:
    """A published index.  `counts` are two numbers of the kind's own, `words` what it wrote, memory-mapped."""

    size: int  # bytes of the file
    content: str  # digest of all of them
    counts: tuple[int, int]
    words: Ints


@dataclass(frozen=True, slots=True)
class Note:
    """What a file looked like when its index was last found true."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    probe: str
    content: str
    settled: bool  # a later write would show in mtime_ns


# Writes the words of an index, given the old index of a file that may begin the same; returns (counts, digest of content).
Write = Callable[[RangeFile, IO[bytes], Index | None], tuple[tuple[int, int], str]]


def index(file: RangeFile, cache: Cache, *, kind: str, write: Write) -> Index:
    """The index of a file: from the cache, or made and left there.  `kind` names how it is made, with all settings."""
    known = file.identity
    if known.size <= SMALL:
        return _in_memory(file, write)
    is_settled = settled(known)  # asked before any byte is read
    mark = probe(file)
    note_name = _name(kind, "notes", [known.path], "json")
    note = _read_note(cache, note_name)
    name = _index_name(kind, known.size, mark)
    found = _load(cache, name, size=known.size, mark=mark)
    if note is not None and note.settled and found is not None and note == _note(known, mark, found.content, True):
        return found
    if found is None or digest_of(file) != found.content:
        old = None
        if note is not None and note.size < known.size:
            old = _load(cache, _index_name(kind, note.size, note.probe), size=note.size, mark=note.probe)
        cache.publish(name, lambda out: _write(file, out, write, old, mark), replace=True)
        found = _load(cache, name, size=known.size, mark=mark)
        if found is None:
            raise StoreError(
                f"{cache.path(name)}: not what was just written; is another program writing to this folder?"
            )
    text = json.dumps(asdict(_note(known, mark, found.content, is_settled))).encode()
    with contextlib.suppress(StoreError):  # it only saves time, and a cache that is shared may not be ours to write to
        cache.publish(note_name, lambda out: out.write(text), replace=True)
    return found


def probe(file: RangeFile) -> str:
    """A digest of the head, the middle and the tail: tells most files apart for the price of three small reads."""
    size = file.identity.size
    content = Digest()
    for start in (0, max(0, (size - _PROBE) // 2), max(0, size - _PROBE)):
        content.update(file.read(start, min(size, start + _PROBE)))
    return content.hexdigest()


def digest_of(file: RangeFile) -> str:
    """The digest of a whole file."""
    content = Digest()
    extend(content, file, file.identity.size)
    return content.hexdigest()


def extend(content: Digest, file: RangeFile, stop: int) -> None:
    """Add the first `stop` bytes of a file."""
    room = buffer(_BLOCK)
    position = 0
    while position < stop and (count := min(file.readinto(room, position), stop - position)):
        content.extend(room[:count])
        position += count
    file.check()


def _in_memory(file: RangeFile, write: Write) -> Index:
    out = io.BytesIO()
    counts, content = write(file, out, None)
    file.check()
    return Index(
        size=file.identity.size, content=content, counts=counts, words=np.frombuffer(out.getvalue(), dtype=_WORD)
    )


def _write(file: RangeFile, out: IO[bytes], write: Write, old: Index | None, mark: str) -> None:
    out.write(bytes(_HEADER * _WORD.itemsize))
    words = Summed(out)
    counts, content = write(file, cast(IO[bytes], words), old)
    file.check()  # a file that grew or shrank meanwhile has no index
    num_words = words.tell() // _WORD.itemsize
    sums = words.sums()
    out.write(sums)
    header = np.array([_MAGIC, file.identity.size, num_words, *counts, *_words(content), *_words(mark)], dtype=_WORD)
    out.seek(0)
    out.write(header.tobytes() + bytes.fromhex(digest(header.tobytes() + sums)))
    out.seek(0, 2)


def _load(cache: Cache, name: str, *, size: int, mark: str) -> Index | None:
    """None where there is no index, or none of such a file, or a damaged one, and it must be made."""
    num_bytes = cache.size(name)
    if num_bytes is None or num_bytes % _WORD.itemsize or num_bytes < _HEADER * _WORD.itemsize:
        return None
    data = cache.map(name, size=num_bytes)
    header = np.frombuffer(data, dtype=_WORD, count=_HEADER)
    if header[0] != _MAGIC or header[1] != size or header[7:9].tobytes().hex() != mark:
        return None
    if (fault := once(str(cache.path(name)), lambda: index_fault(data))) is not None:
        _log.warning("%s: %s; it is made again", cache.path(name), fault)
        return None
    one, two = header[3:5].tolist()
    words = np.frombuffer(data, dtype=_WORD, count=header.item(2), offset=_HEADER * _WORD.itemsize)
    return Index(size=size, content=header[5:7].tobytes().hex(), counts=(one, two), words=words)


def index_fault(data: bytes | memoryview, *, full: bool = False) -> str | None:
    """What is wrong with the bytes of an index, or None."""
    start = _HEADER * _WORD.itemsize
    if len(data) < start or len(data) % _WORD.itemsize:
        return f"{len(data)} bytes, which no index has"
    header = np.frombuffer(data, dtype=_WORD, count=_HEADER)
    stop = start + header.item(2) * _WORD.itemsize
    if header[0] != _MAGIC or not start <= stop <= len(data):
        return "not the header of an index"
    own, sums = header[:_OWN].tobytes(), bytes(data[stop:])
    if digest(own + sums) != header[_OWN:].tobytes().hex():
        return "its header and checksums are not what was written"
    return damaged(lambda first, last: data[start + first : start + last], stop - start, sums, full=full)


def _read_note(cache: Cache, name: str) -> Note | None:
    if cache.size(name) is None:
        return None
    try:
        return Note(**json.loads(cache.read(name)))
    except (ValueError, TypeError):  # damaged: made again
        return None


def _note(known: FileId, mark: str, content: str, settled: bool) -> Note:
    return Note(
        size=known.size,
        mtime_ns=known.mtime_ns,
        ctime_ns=known.ctime_ns,
        inode=known.inode,
        probe=mark,
        content=content,
        settled=settled,
    )


def settled(known: FileId) -> bool:
    """Whether the clock has moved on since the last write, so that another write would get another time.

    Kernels stamp in ticks of up to 10 ms; a time of whole seconds comes from a file system that counts in those.
    """
    now = time.time_ns()
    times = (known.mtime_ns, known.ctime_ns)
    return all(now - written > (2_000_000_000 if written % 1_000_000_000 == 0 else 20_000_000) for written in times)


def _index_name(kind: str, size: int, mark: str) -> str:
    return _name(kind, "index", [size, mark], "i64")


def _name(kind: str, what: str, parts: list[str | int], suffix: str) -> str:
    key = fingerprint([kind, *parts])
    return f"offsets/{what}/{key[:2]}/{key}.{suffix}"


def _words(digest: str) -> list[int]:
    words: list[int] = np.frombuffer(bytes.fromhex(digest), dtype=_WORD).tolist()
    return words
