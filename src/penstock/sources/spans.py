"""Where does row i begin, where a row is not simply a line?  One scan with a bounded buffer; afterwards a memory map.

The sidecar holds the byte and the line at which each row begins, then the same for the end of the last row: pair by pair,
so that a scan can write as it reads.  When a sidecar is still true: sidecar.py.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import RangeFile, buffer
from penstock.sources.bad import IS_UTF_16, UTF_16
from penstock.sources.sidecar import Index, digest_of, index
from penstock.types import Ints

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Scan = Callable[[RangeFile], Iterable[Ints]]  # blocks of (num_rows, 2): byte, line; the last pair is the end

BOM = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"

_WORD = np.dtype("<i8")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Spans:
    """Row i lies at bytes starts[i]..starts[i + 1], with what separates it from the next."""

    starts: Ints  # (num_rows + 1,)
    lines: Ints  # (num_rows + 1,) counted from 1

    @property
    def num_rows(self) -> int:
        return len(self.starts) - 1

    def line(self, row: int) -> int:
        return self.lines.item(row)


def spans(file: RangeFile, cache: Cache, *, kind: str, scan: Scan) -> Spans:
    """The index of a file: from the cache, or by a scan that leaves it there.  `kind` names the scan and its settings."""

    def write(file: RangeFile, out: IO[bytes], _: Index | None) -> tuple[tuple[int, int], str]:
        num_words = 0
        for rows in scan(file):
            out.write(rows.astype(_WORD).tobytes())
            num_words += rows.size
        return (num_words // 2 - 1, 0), digest_of(file)  # the last pair is no row

    found = index(file, cache, kind=kind, write=write)
    table = found.words.reshape(-1, 2)
    return Spans(starts=table[:, 0], lines=table[:, 1])


def after_bom(file: RangeFile) -> int:
    """The byte at which the text begins.  UTF-16 is refused here: most of its lines are UTF-8, too, of letters and NUL bytes."""
    begin = file.read(0, min(file.identity.size, len(BOM)))
    if begin[:2] in UTF_16:
        raise SourceError(f"{file.identity.path}:1: {IS_UTF_16}, and only UTF-8 is read")
    return len(BOM) if begin == BOM else 0


def blocks(file: RangeFile, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
    """(position, bytes) over a range.  One buffer serves all blocks, so a block is gone when the next one is asked for."""
    room = buffer(_BLOCK)
    while start < stop and (count := min(file.readinto(room, start), stop - start)):
        yield start, np.frombuffer(room, dtype=np.uint8, count=count)
        start += count
    file.check()  # a file that grew or shrank meanwhile has no index
