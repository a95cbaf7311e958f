"""Where does line i begin?  One scan of the file at about 1 GB/s with a bounded buffer; afterwards a memory map.

The sidecar lies in the cache: 8 int64 of header, then the byte at which each row begins and the file's size, then for
each blank line the number of rows before it.  Blank lines are no rows, but they count as lines.
"""

from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.files import RangeFile
from penstock.fingerprint import Digest, fingerprint
from penstock.types import Ints

_MAGIC = int.from_bytes(b"PSOFFS01", "little")
_HEADER = 8  # magic, file size, rows, blank lines, two words of probe, two spare
_WORD = np.dtype("<i8")
_BLOCK = 1 << 20
_PROBE = 1 << 14
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Lines:
    """Row i lies at bytes starts[i]..starts[i + 1], line end and blank lines behind it included."""

    starts: Ints  # (num_rows + 1,)
    blanks: Ints  # (num_blanks,) rows before each blank line

    @property
    def num_rows(self) -> int:
        return len(self.starts) - 1

    def line(self, row: int) -> int:
        """Line number from 1, as an editor counts."""
        return row + 1 + int(np.searchsorted(self.blanks, row, side="right"))


def lines(file: RangeFile, cache: Cache) -> Lines:
    """The index of a file: from the cache, or by a scan that leaves it there."""
    known = file.identity
    # Path, size, time and inode find the sidecar; the probe of its content, inside, says whether it speaks of this file.
    key = fingerprint(["offsets", known.path, known.size, known.mtime_ns, known.inode])
    name = f"offsets/{key[:2]}/{key}.i64"
    probe = _probe(file)
    size = cache.size(name)
    if size is not None:
        found = _load(cache, name, size, probe)
        if found is not None:
            return found
    size = cache.publish(name, lambda out: _scan(file, out, probe), replace=True)
    made = _load(cache, name, size, probe)
    if made is None:
        raise StoreError(f"{cache.path(name)}: not what was just written; is another program writing to this folder?")
    return made


def _load(cache: Cache, name: str, size: int, probe: Ints) -> Lines | None:
    """None where the sidecar belongs to other content (or to nothing we know) and must be made again."""
    if size % _WORD.itemsize or size < _HEADER * _WORD.itemsize:
        return None
    words = np.frombuffer(cache.map(name, size=size), dtype=_WORD)
    magic, _, num_rows, num_blanks = words[:4].tolist()
    if magic != _MAGIC or len(words) != _HEADER + num_rows + 1 + num_blanks or not np.array_equal(words[4:6], probe):
        return None
    starts = words[_HEADER : _HEADER + num_rows + 1]
    return Lines(starts=starts, blanks=words[_HEADER + num_rows + 1 :])


def _probe(file: RangeFile) -> Ints:
    """A digest of the head, the middle and the tail: catches a rewrite within one tick of the clock."""
    size = file.identity.size
    content = Digest()
    for start in (0, max(0, (size - _PROBE) // 2), max(0, size - _PROBE)):
        content.update(file.read(start, min(size, start + _PROBE)))
    return np.frombuffer(bytes.fromhex(content.hexdigest()), dtype=_WORD)


def _scan(file: RangeFile, out: IO[bytes], probe: Ints) -> None:
    size = file.identity.size
    out.write(bytes(_HEADER * _WORD.itemsize))
    begin = len(_BOM) if file.read(0, min(size, len(_BOM))) == _BOM else 0
    scan = _Scan(begin)
    buffer = bytearray(_BLOCK)
    position = begin
    while position < size and (count := file.readinto(buffer, position)):
        out.write(scan.take(np.frombuffer(buffer, dtype=np.uint8, count=count), position).tobytes())
        position += count
    file.check()  # a file that grew or shrank meanwhile has no index
    out.write(scan.finish(size).tobytes())
    blanks = np.concatenate([*scan.blanks, np.zeros(0, dtype=_WORD)])
    out.write(blanks.tobytes())
    out.seek(0)
    out.write(np.array([_MAGIC, size, scan.num_rows, len(blanks), *probe, 0, 0], dtype=_WORD).tobytes())
    out.seek(0, 2)


class _Scan:
    """The line under way when a block ends: where it began, and whether it was blank so far."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.blank = True
        self.num_rows = 0
        self.blanks: list[Ints] = []

    def take(self, block: np.ndarray[Any, np.dtype[np.uint8]], position: int) -> Ints:
        """Starts of the rows that end in this block."""
        ends = np.flatnonzero(block == 10)
        if not len(ends):
            self.blank = self.blank and not _text(block)
            return np.zeros(0, dtype=_WORD)
        begins = np.concatenate([[0], ends[:-1] + 1])  # within the block; the first line may have begun earlier
        blank = ends == begins
        for line in np.flatnonzero((block[begins] <= 32) & ~blank):
            blank[line] = not _text(block[begins[line] : ends[line]])
        blank[0] &= self.blank
        starts: Ints = begins.astype(_WORD) + position
        starts[0] = self.begin
        rows_before: Ints = self.num_rows + np.cumsum(~blank)  # with the line itself, which is none if blank
        self.blanks.append(rows_before[blank].astype(_WORD))
        self.num_rows = int(rows_before[-1])
        self.begin = position + int(ends[-1]) + 1
        self.blank = not _text(block[ends[-1] + 1 :])
        rows: Ints = starts[~blank]
        return rows

    def finish(self, size: int) -> Ints:
        """The last line, if it has no newline, and the end of the file."""
        if self.begin < size and not self.blank:
            self.num_rows += 1
            return np.array([self.begin, size], dtype=_WORD)
        return np.array([size], dtype=_WORD)


def _text(block: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return block.tobytes().strip(_SPACE)
