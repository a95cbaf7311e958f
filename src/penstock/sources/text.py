r"""Text files, plain or compressed: an index finds the rows, and any row is one read of its bytes.

Plain text has one record per line, per paragraph, per file, or between separators.  Only the byte \n ends a line; U+2028, U+0085 and a
lone \r are text.  A \r just before \n belongs to the line end.  A paragraph is a run of lines that are not blank.
"""

import re
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.fingerprint import Digest
from penstock.places.files import open_file, read_file
from penstock.places.place import File, FileId
from penstock.sources.bad import IS_UTF_16, UTF_16, not_utf8
from penstock.sources.compressed import is_compressed, unpacked
from penstock.sources.file_source import FilesSource, HeldFile, Part
from penstock.sources.index import SMALL, WORD, Bytes, Index, blocks, digest_of, extend, index
from penstock.types import BadRow, Ints, Record

SPACE = b" \t\r\n"
TOO_LONG = b"\xfftoo_long\n"  # in a digest: with another limit the row is a record; not UTF-8, as every good row is

_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"\n[ \t\r\n]")  # the start of a line that may be blank
_BLOCK = 1 << 20
_MOST_HELD = 128 << 20  # bytes of rows that are kept in memory while a shard is made of them
_ROWS = 1 << 14  # looked up at once; more short rows than a block holds


def index_lines(file: File, cache: Cache) -> Index:
    """Return the index of lines.  Blank lines are not rows, but count as lines."""
    return index(file, cache, kind="lines", scan=lambda add, old: _scan_lines(file, add, old))


def index_rows(file: File, cache: Cache, *, kind: str, scan: Callable[[], Iterable[Ints]]) -> Index:
    """Return the index of rows that are not lines; `scan` yields their (byte, line) pairs."""

    def scan_all(add: Callable[[Ints], object], _: Index | None) -> str:
        for table in scan():
            add(table)
        return digest_of(file)

    return index(file, cache, kind=kind, scan=scan_all)


def after_bom(file: File) -> int:
    """Return the byte at which the text begins.  Refuse UTF-16: most of its lines would pass as UTF-8 with NUL bytes."""
    begin = file.read(0, min(file.identity.size, len(_BOM)))
    if begin[:2] in UTF_16:
        raise SourceError(f"{file.identity.path}:1: {IS_UTF_16}; only UTF-8 is read")
    return len(_BOM) if begin == _BOM else 0


def count_lines(raw: bytes) -> int | None:
    """Count the rows of a small file if it begins with plain text and no line is blank; None: use `index_lines`."""
    if not raw:
        return 0
    if not 32 < raw[0] < 127 or _BLANK.search(raw):
        return None
    return raw.count(b"\n") + (not raw.endswith(b"\n"))


def _scan_lines(file: File, add: Callable[[Ints], object], old: Index | None) -> str:
    """Find lines.  Of a file that begins as it did for the `old` index, only the rest is scanned."""
    size = file.identity.size
    content = Digest()
    digested = 0
    bom = len(_BOM) if file.read(0, min(size, len(_BOM))) == _BOM else 0
    start = 0
    scan = LineScan(bom)
    if old is not None:
        extend(content, file, old.size)
        if content.hexdigest() == old.content:
            digested = old.size
            kept = max(
                0, len(old.starts) - 2
            )  # all rows but the last: the appended text may continue that line
            for first in range(0, kept, _BLOCK):
                some = slice(first, min(first + _BLOCK, kept))
                add(np.stack([old.starts[some], old.lines[some]], axis=1))
            if kept:
                start = old.starts.item(kept)
                scan = LineScan(old.starts.item(kept), old.lines.item(kept))
        else:
            content = Digest()
    for position, block in blocks(file, start, size):
        content.extend(block.data[max(0, digested - position) :])
        skipped = max(0, bom - position)
        add(scan.take(block[skipped:], position + skipped))
    add(scan.finish(size))
    return content.hexdigest()


class LineScan:
    """Finds lines that are not blank.  Between blocks it keeps the unfinished line."""

    def __init__(self, begin: int, line: int = 1) -> None:
        self.begin = begin
        self._line = line
        self._blank = True  # so far

    def take(self, block: Bytes, position: int) -> Ints:
        """Return (byte, line) of the rows that end in this block."""
        ends = newlines(block)
        if not len(ends):
            self._blank = self._blank and not _text(block)
            return np.zeros((0, 2), WORD)
        begins = np.concatenate(
            [[0], ends[:-1] + 1]
        )  # within the block; the first line may have begun earlier
        blank = ends == begins
        odd = block[begins] <= 32  # a space, or the line end itself
        for line in np.flatnonzero(odd & ~blank) if odd.any() else ():
            blank[line] = not _text(block[begins[line] : ends[line]])
        blank[0] &= self._blank
        table = np.empty((len(ends), 2), WORD)
        table[:, 0] = begins + position
        table[:, 1] = np.arange(self._line, self._line + len(ends))
        table[0, 0] = self.begin
        self.begin = position + int(ends[-1]) + 1
        self._line += len(ends)
        self._blank = not _text(block[ends[-1] + 1 :])
        return table[~blank] if blank.any() else table

    def finish(self, size: int) -> Ints:
        """Return the last line, if it has no newline, and the end of the file."""
        last = [(self.begin, self._line)] if self.begin < size and not self._blank else []
        return np.array([*last, (size, self._line)], WORD)


def newlines(block: Bytes) -> Ints:
    """Find line ends.  Most words of eight bytes hold none, so words are tested first: twice as fast."""
    hits = block == ord("\n")
    whole = len(hits) & ~7
    words = hits[:whole].view("<u8")
    places = np.flatnonzero(words != 0)
    found = words[places]
    if (found & (found - 1)).any():  # a word with two
        return np.flatnonzero(hits)
    ends = places * 8 + (
        np.bitwise_count(found - 1) >> 3
    )  # one bit is set, with eight bits below it for each byte
    return np.concatenate([ends, whole + np.flatnonzero(hits[whole:])])


def _text(block: Bytes) -> bytes:
    return block.tobytes().strip(SPACE)


class TextPart(Part):
    """One file of text with an index.  A row beyond `max_row_bytes` is never decoded."""

    mark = b""  # settings under which equal bytes are another record; part of the digest

    def __init__(self, file: File, index: Index, max_row_bytes: int) -> None:
        self.file = file
        self._lines = index.lines
        self._starts = index.starts
        self._start = index.starts.data  # indexing a memoryview gives a plain int in half the time
        self._max_row_bytes = max_row_bytes
        self.num_rows = len(index.starts) - 1
        self.num_bytes = file.identity.size

    @abstractmethod
    def decode(self, raw: bytes) -> Record | BadRow:
        """Return the record of one row; `raw` ends with what separates it from the next."""

    @abstractmethod
    def trim(self, raw: bytes) -> bytes:
        """Return one row without what separates it from the next."""

    def decode_all(self, raw: bytes, edges: list[int]) -> Iterator[Record | BadRow]:
        """Yield the records of neighbouring rows: row i is raw[edges[i]:edges[i + 1]]."""
        for start, stop in pairwise(edges):
            yield self.decode(raw[start:stop])

    def record(self, row: int) -> Record | BadRow:
        start = self._start[row]
        stop = self._start[row + 1]
        if stop - start > self._max_row_bytes:
            return self._too_long(stop - start)
        raw = self.file.read(start, stop)
        self.file.check()
        return self.decode(raw)

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for raw, edges in self._chunks(first, last):
            if raw is None:
                yield self._too_long(edges[-1])
            else:
                yield from self.decode_all(raw, edges)

    def _chunks(self, first: int, last: int) -> Iterator[tuple[bytes | None, list[int]]]:
        """Yield neighbouring rows and their edges, a block at a time but at least one row; None for a row that is too long."""
        block = min(_BLOCK, self._max_row_bytes)
        while first < last:
            edges = self._starts[first : min(first + _ROWS, last) + 1]
            count = max(1, int(np.searchsorted(edges, edges[0] + block, side="right")) - 1)
            begin = edges.item(0)
            end = edges.item(count)
            raw = (
                self.file.read(begin, end)
                if count > 1 or end - begin <= self._max_row_bytes
                else None
            )
            yield raw, (edges[: count + 1] - begin).tolist()
            first += count

    def place(self, row: int) -> tuple[int, int]:
        return self._lines.item(row), self._starts.item(row)

    def raw(self, row: int) -> bytes:
        """Empty if the row is too long: the quarantine then holds its place alone."""
        start = self._starts.item(row)
        stop = self._starts.item(row + 1)
        return self.file.read(start, stop) if stop - start <= self._max_row_bytes else b""

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add each row as it is written, without what separates rows."""
        for raw, edges in self._chunks(first, last):
            if raw is None:
                content.update(TOO_LONG)
                continue
            for start, stop in pairwise(edges):
                content.update(self.mark + self.trim(raw[start:stop]))

    def snapshot(self, first: int, last: int) -> "TextPart | None":
        start = self._starts.item(first)
        stop = self._starts.item(last)
        if stop - start > _MOST_HELD:
            return None
        self.file.check()
        held = self.file.read(start, stop)
        self.file.check()
        made = copy(self)
        made.file = HeldFile(self.file.identity, start, held, self.file.check)
        return made

    def borders(self, num_bytes: int) -> Ints:
        # bisect: numpy would first copy starts that are not contiguous
        found = [
            bisect_left(self._starts, byte, hi=self.num_rows)
            for byte in range(0, self.num_bytes, num_bytes)
        ]
        return np.array(found, dtype=np.int64)

    def _too_long(self, num_bytes: int) -> BadRow:
        limit = f"expected at most max_row_bytes={self._max_row_bytes:,}"
        return BadRow(reason="too_long", message=f"the row has {num_bytes:,} bytes, {limit}")


class TextFiles(FilesSource):
    """Files of text, plain or compressed.

    max_row_bytes: the largest row, with its line end and the blank lines that follow.
    max_expansion: how many times its own size a compressed file may grow.
    """

    OPTIONS: tuple[str, ...] = ("max_row_bytes", "max_expansion")
    max_row_bytes: int = 256 << 20
    max_expansion: int = 100
    _kept: dict[FileId, bytes] | None = None  # small files of a snapshot

    def check_options(self) -> None:
        for name in ("max_row_bytes", "max_expansion"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise SourceError(f"{name} is {value!r}, expected a number ≥ 1")

    @abstractmethod
    def text_part(self, file: File, path: str) -> Part:
        """Index one file of plain text.  `path` is the file's name for the user."""

    def part(self, identity: FileId) -> Part:
        if is_compressed(identity.path):
            return self.text_part(
                unpacked(identity, self.cache, max_expansion=self.max_expansion), identity.path
            )
        if self._kept is not None and self._is_small(identity):
            return self.text_part(HeldFile(identity, 0, self._read_small(identity)), identity.path)
        return self.text_part(open_file(identity), identity.path)

    def _weight(self, index: int) -> int:
        known = self.identities[index]
        return self._part(index).num_bytes if is_compressed(known.path) else known.size

    def snapshot(self, start: int, stop: int) -> "TextFiles | None":
        """Small files are read when they are first needed, and kept."""
        large = [
            piece
            for piece in self._pieces(start, stop)
            if not self._is_small(self.identities[piece[0]])
        ]
        made = self._with_held(large)
        if made is not None:
            made._kept = {}
        return made

    def _is_small(self, known: FileId) -> bool:
        return known.size <= min(SMALL, self.max_row_bytes) and not is_compressed(known.path)

    def _small(self, index: int) -> bytes | None:
        """Read a small file of plain text whole; None for any other file."""
        known = self.identities[index]
        return self._read_small(known) if self._is_small(known) else None

    def _read_small(self, known: FileId) -> bytes:
        if self._kept is None:
            return read_file(known)
        if known not in self._kept:
            self._kept[known] = read_file(known)
        return self._kept[known]


_AT_ONCE = 1 << 18  # lines that are taken together


class PlainPart(TextPart):
    """Records {"text": …} of one file.  A row ends with its separator and the blank ones that follow."""

    def __init__(self, file: File, index: Index, max_row_bytes: int, *, record: str) -> None:
        super().__init__(file, index, max_row_bytes)
        self._record = record
        self._separator = _separator(record)

    def trim(self, raw: bytes) -> bytes:
        if self._record == "paragraph":
            text = raw.rstrip(SPACE)  # without its line end and the blank lines that follow
            spaces = raw[len(text) :].partition(b"\n")[
                0
            ]  # at the end of its last line: they are text, as in a line
            return text + spaces.removesuffix(b"\r")
        if self._separator:
            raw, ended, _ = raw.partition(self._separator)
            if self._record == "line" and ended:
                raw = raw.removesuffix(b"\r")
        return raw

    def decode(self, raw: bytes) -> Record | BadRow:
        raw = self.trim(raw)
        try:
            return {"text": raw.decode()}
        except UnicodeDecodeError as error:
            return not_utf8(raw, error)


class TextSource(TextFiles):
    """Text as records {"text": …}, over one or more files.

    record: "line", "paragraph", "file", or the text that separates records, such as an end-of-text mark.
    keep_blank: records of nothing but spaces, tabs and line ends are records, too.
    """

    shape = "text"
    OPTIONS = (*TextFiles.OPTIONS, "record", "keep_blank")
    record: str = "line"
    keep_blank: bool = False

    def check_options(self) -> None:
        super().check_options()
        if not isinstance(self.record, str) or not self.record:
            kinds = "'line', 'paragraph', 'file'"
            raise SourceError(
                f"record is {self.record!r}, expected {kinds} or the text between two records"
            )
        if self.record == "paragraph" and self.keep_blank:
            raise SourceError(
                "keep_blank cannot be used with record='paragraph': blank lines separate paragraphs"
            )

    def text_part(self, file: File, path: str) -> Part:
        begin = after_bom(file)
        if self.record == "line" and not self.keep_blank:
            index = index_lines(file, self.cache)
        elif self.record == "paragraph":
            index = index_rows(
                file, self.cache, kind="text paragraph", scan=lambda: _paragraphs(file, self.cache)
            )
        else:
            separator = _separator(self.record)
            kind = f"text {separator!r} {self.keep_blank}"
            index = index_rows(
                file,
                self.cache,
                kind=kind,
                scan=lambda: _scan(file, begin, separator, self.keep_blank),
            )
        return PlainPart(file, index, self.max_row_bytes, record=self.record)


def _separator(record: str) -> bytes:
    """The bytes that end a record; empty if no fixed bytes do."""
    return {"line": b"\n", "paragraph": b"", "file": b""}.get(record, record.encode())


def _paragraphs(file: File, cache: Any) -> Iterator[Ints]:
    """Yield (byte, line) of each paragraph: a line of text that does not follow the one before it directly."""
    index = index_lines(file, cache)
    line_before = -1
    for first in range(0, len(index.starts) - 1, _AT_ONCE):
        some = slice(first, min(first + _AT_ONCE, len(index.starts) - 1))
        begins = np.diff(index.lines[some], prepend=line_before) != 1
        yield np.stack([index.starts[some][begins], index.lines[some][begins]], axis=1)
        line_before = index.lines.item(some.stop - 1)
    yield np.array([(file.identity.size, index.lines.item(-1))], dtype=np.int64)


def _scan(file: File, begin: int, separator: bytes, keep_blank: bool) -> Iterator[Ints]:
    """Yield (byte, line) of each record that `separator` ends, and of the file's end."""
    # of what comes next; the last bytes of a block, in which a separator may begin
    position = begin
    held = b""
    # of the unfinished record
    start = begin
    start_line = 1
    line = 1
    blank = True
    for _, block in blocks(file, begin, file.identity.size):
        text = held + block.tobytes()
        rows = []
        done = 0
        while separator and (found := text.find(separator, done)) >= 0:
            line += text.count(b"\n", done, found)
            if keep_blank or not blank or text[done:found].strip(SPACE):
                rows.append((start, start_line))
            done = found + len(separator)
            line += separator.count(b"\n")
            start = position + done
            start_line = line
            blank = True
        keep = max(done, len(text) - max(0, len(separator) - 1))
        line += text.count(b"\n", done, keep)
        blank = blank and not text[done:keep].strip(SPACE)
        held = text[keep:]
        position = position + keep
        yield np.array(rows, dtype=np.int64).reshape(-1, 2)
    size = position + len(held)
    is_row = size > start if keep_blank else not blank or bool(held.strip(SPACE))
    yield np.array(
        [*([(start, start_line)] if is_row else []), (size, line + held.count(b"\n"))],
        dtype=np.int64,
    )
