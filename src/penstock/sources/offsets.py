"""Where does line i begin?  One scan of the file at about 1 GB/s with a bounded buffer; afterwards a memory map.

The sidecar holds the byte at which each row begins and the file's size, then for each blank line the number of rows before
it.  Blank lines are no rows, but they count as lines.  When a sidecar is still true: sidecar.py.
"""

from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from penstock.cache import Cache
from penstock.files import RangeFile, buffer
from penstock.fingerprint import Digest
from penstock.sources.sidecar import Index, extend, index
from penstock.types import Ints

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_WORD = np.dtype("<i8")
_HITS = np.dtype("<u8")  # eight bytes of 0 or 1
_BLOCK = 1 << 20
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_BLANK = tuple(b"\n" + bytes([space]) for space in _SPACE)  # how a line begins that may be blank


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
    return _lines(index(file, cache, kind="lines", write=_scan))


def count_lines(raw: bytes) -> int | None:
    """The number of rows of a small file, if no line of it is blank and it begins with plain text; else None, and `lines` knows."""
    if not raw:
        return 0
    if not 32 < raw[0] < 127 or any(blank in raw for blank in _BLANK):
        return None
    return raw.count(b"\n") + (not raw.endswith(b"\n"))


def _lines(found: Index) -> Lines:
    num_rows, num_blanks = found.counts
    return Lines(starts=found.words[: num_rows + 1], blanks=found.words[num_rows + 1 : num_rows + 1 + num_blanks])


def _scan(file: RangeFile, out: IO[bytes], old: Index | None) -> tuple[tuple[int, int], str]:
    """Write the index of a file, of which only what follows the `old` part is scanned if that still is what it was."""
    size = file.identity.size
    content, digested = Digest(), 0
    scan = _Scan(len(_BOM) if file.read(0, min(size, len(_BOM))) == _BOM else 0)
    if old is not None:
        extend(content, file, old.size)
        if content.hexdigest() == old.content:
            digested = old.size
            scan.go_on(_lines(old), out)
        else:
            content = Digest()
    if digested < scan.begin:
        content.extend(file.read(digested, scan.begin))
        digested = scan.begin
    room = buffer(_BLOCK)
    position = scan.begin
    while position < size and (count := file.readinto(room, position)):
        content.extend(room[max(0, digested - position) : count])
        out.write(scan.take(np.frombuffer(room, dtype=np.uint8, count=count), position).tobytes())
        position += count
        digested = max(digested, position)
    out.write(scan.finish(size).tobytes())
    blanks = np.concatenate([*scan.blanks, np.zeros(0, dtype=_WORD)])
    out.write(blanks.tobytes())
    return (scan.num_rows, len(blanks)), content.hexdigest()


class _Scan:
    """The line under way when a block ends: where it began, and whether it was blank so far."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.blank = True
        self.num_rows = 0
        self.blanks: list[Ints] = []

    def go_on(self, old: Lines, out: IO[bytes]) -> None:
        """Take over all rows but the last: what was appended may have begun in the middle of that line."""
        kept = old.num_rows - 1
        if kept < 1:
            return
        for first in range(0, kept, _BLOCK):
            out.write(old.starts[first : min(first + _BLOCK, kept)].tobytes())
        self.begin = old.starts.item(kept)
        self.num_rows = kept
        self.blanks = [old.blanks[: np.searchsorted(old.blanks, kept, side="right")]]

    def take(self, block: Bytes, position: int) -> Ints:
        """Starts of the rows that end in this block."""
        ends = newlines(block)
        if not len(ends):
            self.blank = self.blank and not _text(block)
            return np.zeros(0, dtype=_WORD)
        begins = np.concatenate([[0], ends[:-1] + 1])  # within the block; the first line may have begun earlier
        blank = ends == begins
        odd = block[begins] <= 32  # a space, or the line end itself
        for line in np.flatnonzero(odd & ~blank) if odd.any() else ():
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


def newlines(block: Bytes) -> Ints:
    """Places of the line ends.  Most words of eight bytes hold none, so words are looked at first: twice as fast."""
    hits = block == ord("\n")
    whole = len(hits) & ~7
    words = hits[:whole].view(_HITS)
    places = np.flatnonzero(words != 0)
    found = words[places]
    if (found & (found - 1)).any():  # a word with two
        return np.flatnonzero(hits)
    ends = places * 8 + (np.bitwise_count(found - 1) >> 3)  # one bit is set; below it lie eight times as many as bytes
    return np.concatenate([ends, whole + np.flatnonzero(hits[whole:])])


def _text(block: Bytes) -> bytes:
    return block.tobytes().strip(_SPACE)
