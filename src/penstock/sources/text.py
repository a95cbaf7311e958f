r"""Text files, plain or compressed: an index finds the records, and any record is one read of its bytes.

Plain text has one record per line, per paragraph, per file, or between separators.  Only the byte \n ends a line; U+2028, U+0085 and a
lone \r are text.  A \r just before \n belongs to the line end.  A paragraph is a run of lines that are not blank.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.fingerprint import Digest
from penstock.places.files import open_file, read_file
from penstock.places.place import File, FileId
from penstock.settings import setting
from penstock.sources.bad import IS_UTF_16, UTF_16, not_utf8
from penstock.sources.compressed import is_compressed, unpacked
from penstock.sources.files import Files, HeldFile
from penstock.sources.index import SMALL, WORD, Bytes, Index, blocks, index
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.rows import FileReader, FileRecords
from penstock.types import BadRow, Ints, Record

SPACE = b" \t\r\n"
TOO_LONG = b"\xfftoo_long\n"  # in a digest: with another limit the row is a record; not UTF-8, as every good row is

_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"\n[ \t\r\n]")  # the start of a line that may be blank
_BLOCK = 1 << 20
_LEAD = 1 << 12  # whitespace skipped at once
_MOST_HELD = 128 << 20  # bytes of rows that are kept in memory while a shard is made of them
_ROWS = 1 << 14  # looked up at once; more short rows than a block holds


def index_lines(file: File, cache: Cache) -> Index:
    """Return the index of lines.  Blank lines are not records, but count as lines."""
    return index(file, cache, kind="lines", scan=lambda: _scan_lines(file))


def after_bom(file: File) -> int:
    """Return the byte at which the text begins.  Refuse UTF-16: most of its lines would pass as UTF-8 with NUL bytes."""
    begin = file.read(0, min(file.identity.size, len(_BOM)))
    if begin[:2] in UTF_16:
        raise SourceError(f"{file.identity.path}:1: {IS_UTF_16}; only UTF-8 is read")
    return len(_BOM) if begin == _BOM else 0


def count_lines(raw: bytes) -> int | None:
    """Count the records of a small file if it begins with plain text and no line is blank; None: use `index_lines`."""
    if not raw:
        return 0
    if not 32 < raw[0] < 127 or _BLANK.search(raw):
        return None
    return raw.count(b"\n") + (not raw.endswith(b"\n"))


def _scan_lines(file: File) -> Iterator[Ints]:
    """Yield (byte, line) of each line that is not blank, and of the file's end."""
    size = file.identity.size
    begin = len(_BOM) if file.read(0, min(size, len(_BOM))) == _BOM else 0
    scan = LineScan(begin)
    for position, block in blocks(file, begin, size):
        yield scan.take(block, position)
    yield scan.finish(size)


class LineScan:
    """Finds lines that are not blank.  Between blocks it keeps the unfinished line."""

    def __init__(self, begin: int, line: int = 1) -> None:
        self.begin = begin
        self._line = line
        self._blank = True  # so far

    def take(self, block: Bytes, position: int) -> Ints:
        """Return (byte, line) of the records that end in this block."""
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


class RowDecoder(Protocol):
    """What the bytes of a record mean.

    mark: settings under which equal bytes are another record; part of the digest.
    are_lines: records are lines, and their digest is that of the bytes as they are, with their line ends.
    skips_space: a record begins behind the whitespace at its start.
    """

    mark: bytes
    are_lines: bool
    skips_space: bool

    def trim(self, raw: bytes) -> bytes:
        """Return one record without what separates it from the next."""

    def decode(self, raw: bytes) -> Record | BadRow:
        """Parse one record; `raw` ends with what separates it from the next."""

    def decode_all(self, raw: bytes, edges: list[int]) -> Iterator[Record | BadRow]:
        """Yield neighbouring records: record i is raw[edges[i]:edges[i + 1]]."""


class TextRows(FileRecords):
    """One file of text with an index.  A record beyond `max_row_bytes` is never decoded."""

    def __init__(self, file: File, index: Index, max_row_bytes: int, decoder: RowDecoder) -> None:
        self.file = file
        self.num_bytes = file.identity.size
        self._lines = index.lines
        self._starts = index.starts
        self._start = index.starts.data  # indexing a memoryview gives a plain int in half the time
        self._num_rows = len(index.starts) - 1
        self._max_row_bytes = max_row_bytes
        self._decoder = decoder

    def __len__(self) -> int:
        return self._num_rows

    def record(self, row: int) -> Record | BadRow:
        starts = self._start
        start = starts[row]
        stop = starts[row + 1]
        if stop - start > self._max_row_bytes:
            return self._too_long(stop - start)
        file = self.file
        raw = file.read(start, stop)
        file.check()
        return self._decoder.decode(raw)

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for raw, edges in self._chunks(first, last):
            if raw is None:
                yield self._too_long(edges[-1])
            else:
                yield from self._decoder.decode_all(raw, edges)

    def _chunks(self, first: int, last: int) -> Iterator[tuple[bytes | None, list[int]]]:
        """Yield neighbouring records and their edges, a block at a time but at least one record; None for a record that is too long."""
        block = min(_BLOCK, self._max_row_bytes)
        while first < last:
            edges = self._starts[first : min(first + _ROWS, last) + 1]
            count = max(1, int(np.searchsorted(edges, edges[0] + block, side="right")) - 1)
            begin = edges.item(0)
            end = edges.item(count)
            is_too_long = count == 1 and end - begin > self._max_row_bytes
            raw = None if is_too_long else self.file.read(begin, end)
            yield raw, (edges[: count + 1] - begin).tolist()
            first += count

    def locate(self, row: int) -> tuple[int, int]:
        line = self._lines.item(row)
        byte = self._starts.item(row)
        if not self._decoder.skips_space:
            return line, byte
        lead = self.file.read(byte, min(byte + _LEAD, self._starts.item(row + 1)))
        space = lead[: len(lead) - len(lead.lstrip(SPACE))]
        return line + space.count(b"\n"), byte + len(space)

    def raw(self, row: int) -> bytes:
        """Empty if the record is too long: the quarantine then holds its place alone."""
        start = self._starts.item(row)
        stop = self._starts.item(row + 1)
        return self.file.read(start, stop) if stop - start <= self._max_row_bytes else b""

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add each record as it is written, without what separates records."""
        if self._decoder.are_lines:
            self._add_lines(content, first, last)
            return
        for raw, edges in self._chunks(first, last):
            if raw is None:
                content.update(TOO_LONG)
                continue
            for start, stop in pairwise(edges):
                content.update(self._decoder.mark + self._decoder.trim(raw[start:stop]))

    def _add_lines(self, content: Digest, first: int, last: int) -> None:
        """Add the lines as they are: a newline frames a line, so borders of files and blocks do not matter."""
        sizes = np.diff(self._starts[first : last + 1])
        for row in (first + np.flatnonzero(sizes > self._max_row_bytes)).tolist():
            self._add_bytes(content, first, row + 1)
            content.extend(TOO_LONG)
            first = row + 1
        self._add_bytes(content, first, last)

    def _add_bytes(self, content: Digest, first: int, last: int) -> None:
        begin = self._starts.item(first)
        end = self._starts.item(last)
        piece = b"\n"
        for position in range(begin, end, _BLOCK):
            piece = self.file.read(position, min(position + _BLOCK, end))
            content.extend(piece)
        if not piece.endswith(b"\n"):
            content.extend(b"\n")

    def snapshot(self, first: int, last: int) -> "TextRows | None":
        start = self._starts.item(first)
        stop = self._starts.item(last)
        if stop - start > _MOST_HELD:
            return None
        self.file.check()
        raw = self.file.read(start, stop)
        self.file.check()
        held = copy(self)
        held.file = HeldFile(self.file.identity, start, raw, self.file.check)
        return held

    def borders(self, num_bytes: int) -> Ints:
        # bisect: numpy would first copy starts that are not contiguous
        rows = [
            bisect_left(self._starts, byte, hi=self._num_rows)
            for byte in range(0, self.num_bytes, num_bytes)
        ]
        return np.array(rows, dtype=np.int64)

    def _too_long(self, num_bytes: int) -> BadRow:
        limit = f"expected at most max_row_bytes={self._max_row_bytes:,}"
        return BadRow(reason="too_long", message=f"the record has {num_bytes:,} bytes, {limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """Options of all files of text, plain or compressed."""

    max_row_bytes: int = setting(
        "the largest record that is read, in bytes, with its line end and the blank lines that follow",
        256 << 20,
    )
    max_expansion: int = setting(
        "how many times its size a compressed file may have when it is unpacked", 100
    )

    def __post_init__(self) -> None:
        for name, value in (
            ("max_row_bytes", self.max_row_bytes),
            ("max_expansion", self.max_expansion),
        ):
            if not isinstance(value, int) or value < 1:
                raise SourceError(f"{name} is {value!r}, expected a number ≥ 1")


class OpensText(Protocol):
    """Opens files of plain text of one format."""

    def open_text(self, file: File, path: str) -> FileRecords:
        """Index a file.  `path` is its name for the user."""


class TextReader(FileReader):
    """Opens files of text, plain or compressed."""

    def __init__(self, format: str, options: TextOptions, cache: Cache, text: OpensText) -> None:
        self.format = format
        self.options: TextOptions = options
        self.cache = cache
        self._text = text
        self._kept: dict[FileId, bytes] | None = None  # small files that were read, of `keeping`

    def open_rows(self, file: FileId) -> FileRecords:
        if is_compressed(file.path):
            plain = unpacked(file, self.cache, max_expansion=self.options.max_expansion)
            return self._text.open_text(plain, file.path)
        if self._kept is not None and self.is_kept(file):
            return self._text.open_text(HeldFile(file, 0, self._read_small(file)), file.path)
        return self._text.open_text(open_file(file), file.path)

    def weight(self, file: FileId) -> int | None:
        return None if is_compressed(file.path) else file.size

    def is_kept(self, file: FileId) -> bool:
        most = min(SMALL, self.options.max_row_bytes)
        return file.size <= most and not is_compressed(file.path)

    def keeping(self) -> "TextReader":
        reader = copy(self)
        reader._kept = {}
        return reader

    def read_small(self, file: FileId) -> bytes | None:
        """Read a small file of plain text whole; None for any other file."""
        return self._read_small(file) if self.is_kept(file) else None

    def _read_small(self, file: FileId) -> bytes:
        if self._kept is None:
            return read_file(file)
        if file not in self._kept:
            self._kept[file] = read_file(file)
        return self._kept[file]


_AT_ONCE = 1 << 18  # lines that are taken together


class PlainDecoder:
    """Records {"text": …}.  A record ends with its separator and the blank ones that follow."""

    mark = b""
    are_lines = False
    skips_space = False

    def __init__(self, record: str) -> None:
        self._record = record
        self._separator = _separator(record)

    def trim(self, raw: bytes) -> bytes:
        if self._record == "paragraph":
            return _without_line_end(raw)
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

    def decode_all(self, raw: bytes, edges: list[int]) -> Iterator[Record | BadRow]:
        for start, stop in pairwise(edges):
            yield self.decode(raw[start:stop])


def _without_line_end(paragraph: bytes) -> bytes:
    """Return a paragraph without its line end and the blank lines that follow.

    Spaces at the end of its last line are text, as in a line.
    """
    text = paragraph.rstrip(SPACE)
    spaces = paragraph[len(text) :].partition(b"\n")[0]
    return text + spaces.removesuffix(b"\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOptions(TextOptions):
    """Text as records {"text": …}."""

    record: str = setting(
        "for text: line, paragraph, file, or the text that separates records, such as an end-of-text mark",
        "line",
    )
    keep_blank: bool = setting("for text: records of nothing but whitespace are records too", False)

    def __post_init__(self) -> None:
        TextOptions.__post_init__(self)
        if not isinstance(self.record, str) or not self.record:
            kinds = "'line', 'paragraph', 'file'"
            raise SourceError(
                f"record is {self.record!r}, expected {kinds} or the text between two records"
            )
        if self.record == "paragraph" and self.keep_blank:
            raise SourceError(
                "keep_blank cannot be used with record='paragraph': blank lines separate paragraphs"
            )


class PlainTextFiles:
    """Opens files of plain text."""

    def __init__(self, options: PlainOptions, cache: Cache) -> None:
        self._options = options
        self._cache = cache

    def open_text(self, file: File, path: str) -> FileRecords:
        return TextRows(
            file,
            self._index(file),
            self._options.max_row_bytes,
            PlainDecoder(self._options.record),
        )

    def _index(self, file: File) -> Index:
        record = self._options.record
        keep_blank = self._options.keep_blank
        begin = after_bom(file)
        if record == "line" and not keep_blank:
            return index_lines(file, self._cache)
        if record == "paragraph":
            return index(
                file,
                self._cache,
                kind="text paragraph",
                scan=lambda: _paragraphs(file, self._cache),
            )
        separator = _separator(record)
        return index(
            file,
            self._cache,
            kind=f"text {separator!r} {keep_blank}",
            scan=lambda: _scan(file, begin, separator, keep_blank),
        )


def open_text(request: OpenRequest) -> Files:
    """Open text as records {"text": …}, over one or more files."""
    text = PlainTextFiles(request.options, request.cache)
    return open_files(request, TextReader("text", request.options, request.cache, text))


TEXT = Opener(PlainOptions, open_text)


def _separator(record: str) -> bytes:
    """The bytes that end a record; empty if no fixed bytes do."""
    return {"line": b"\n", "paragraph": b"", "file": b""}.get(record, record.encode())


def _paragraphs(file: File, cache: Cache) -> Iterator[Ints]:
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
        while separator and (separator_start := text.find(separator, done)) >= 0:
            line += text.count(b"\n", done, separator_start)
            if keep_blank or not blank or text[done:separator_start].strip(SPACE):
                rows.append((start, start_line))
            done = separator_start + len(separator)
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


def record_unit(source: object) -> str:
    """Return what is a record of a source of plain text ("line", "paragraph", "file" or a separator), or "" for other sources."""
    if isinstance(source, Files) and isinstance(source.reader.options, PlainOptions):
        return source.reader.options.record
    return ""
