r"""Cut text files into records: one per line, per paragraph, per file, or at a separator of the user's choice.

Only the byte \n ends a line; U+2028, U+0085 and a lone \r are text.  A \r just before \n belongs to the line end.
A paragraph is a run of lines that are not blank; it ends at a line of nothing but spaces and tabs.
At a separator, the text between two of them is the record, to the last space.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.files import RangeFile
from penstock.sources.bad import not_utf8
from penstock.sources.offsets import Lines, lines
from penstock.sources.parts import Part
from penstock.sources.rows import Index, RowsPart, RowsSource
from penstock.sources.spans import SPACE, after_bom, blocks, spans
from penstock.types import BadRow, Ints, Record

_RECORDS = "'line', 'paragraph', 'file'"
_AT_ONCE = 1 << 18  # blank lines looked at together


class TextPart(RowsPart):
    """Records {"text": …} of one file.  A row ends with its separator and the blank ones behind it."""

    def __init__(self, file: RangeFile, index: Index, *, max_row_bytes: int, separator: bytes, record: str) -> None:
        super().__init__(file, index, max_row_bytes=max_row_bytes)
        self._separator = separator  # empty: the whole file
        self._is_line = record == "line"
        self._is_paragraph = record == "paragraph"

    def trim(self, raw: bytes) -> bytes:
        if self._is_paragraph:
            text = raw.rstrip(SPACE)  # without its line end and the blank lines behind it
            spaces = raw[len(text) :].partition(b"\n")[0]  # that end its last line: they are text, as in a line
            return text + spaces.removesuffix(b"\r")
        if self._separator:
            raw, ended, _ = raw.partition(self._separator)
            if self._is_line and ended:
                raw = raw.removesuffix(b"\r")
        return raw

    def decode(self, raw: bytes) -> Record | BadRow:
        raw = self.trim(raw)
        try:
            return {"text": raw.decode()}
        except UnicodeDecodeError as error:
            return not_utf8(raw, error)


class TextSource(RowsSource):
    """Text as records {"text": …}, over one or more files."""

    shape = "text"
    OPTIONS = (*RowsSource.OPTIONS, "record", "keep_blank")

    def __init__(self, paths: Sequence[str], *, record: str = "line", keep_blank: bool = False, **rest: Any) -> None:
        """`record`: "line", "paragraph", "file", or the text that separates records, such as an end-of-text mark.
        `keep_blank`: records of nothing but spaces, tabs and line ends are records, too; by default they are not.
        """
        if not isinstance(record, str) or not record:
            raise SourceError(f"record is {record!r}, expected {_RECORDS} or the text between two records")
        if record == "paragraph" and keep_blank:
            raise SourceError(
                "keep_blank has no use with record='paragraph': blank lines separate paragraphs; leave it out"
            )
        self.record = record
        self.keep_blank = keep_blank
        super().__init__(paths, **rest)

    def rows(self, file: RangeFile, path: str) -> Part:
        begin = after_bom(file)
        is_line = self.record == "line"
        whole = self.record in ("file", "paragraph")
        separator = b"\n" if is_line else b"" if whole else self.record.encode()
        if is_line and not self.keep_blank:
            index: Index = lines(file, self.cache)
        elif self.record == "paragraph":
            index = spans(
                file, self.cache, kind="text paragraph", scan=lambda file: _paragraphs(lines(file, self.cache), file)
            )
        else:
            kind = f"text {separator!r} {self.keep_blank}"
            index = spans(file, self.cache, kind=kind, scan=lambda file: _scan(file, separator, self.keep_blank, begin))
        return TextPart(file, index, max_row_bytes=self.max_row_bytes, separator=separator, record=self.record)


def _paragraphs(index: Lines, file: RangeFile) -> Iterator[Ints]:
    """(byte, line) of each paragraph, a bounded number of blank lines at a time.

    `index.blanks` holds, for every blank line, how many lines with text stand before it: a paragraph begins at that line.
    """
    first, num_lines = 0, index.num_rows
    if num_lines:
        yield np.array([(index.starts.item(0), index.line(0))], dtype=np.int64)
    for at in range(0, len(index.blanks), _AT_ONCE):
        begins = np.unique(index.blanks[at : at + _AT_ONCE])
        begins = begins[(begins > first) & (begins < num_lines)]
        if begins.size:
            numbers = begins + 1 + np.searchsorted(index.blanks, begins, side="right")
            yield np.stack([index.starts[begins], numbers], axis=1).astype(np.int64)
            first = int(begins[-1])
    yield np.array([(file.identity.size, num_lines + len(index.blanks) + 1)], dtype=np.int64)


def _scan(file: RangeFile, separator: bytes, keep_blank: bool, begin: int) -> Iterator[Ints]:
    scan = _Scan(separator, keep_blank, begin=begin)
    for _, block in blocks(file, scan.start, file.identity.size):
        yield scan.take(block.tobytes())
    yield scan.finish()


class _Scan:
    """The record under way when a block ends: where it began, and whether it was blank so far."""

    def __init__(self, separator: bytes, keep_blank: bool, *, begin: int) -> None:
        self.start = begin
        self._separator = separator
        self._keep_blank = keep_blank
        self._line = self._start_line = 1
        self._blank = True
        self._position = begin  # of what comes next
        self._held = b""  # the last bytes of the block before: a separator may begin in them

    def take(self, block: bytes) -> Ints:
        """(byte, line) of the records that end in this block."""
        text = self._held + block
        rows, seen, found = [], 0, -1
        while self._separator and (found := text.find(self._separator, seen)) >= 0:
            self._see(text[seen:found])
            if self._keep_blank or not self._blank:
                rows.append((self.start, self._start_line))
            seen = found + len(self._separator)
            self._line += self._separator.count(b"\n")
            self.start, self._start_line, self._blank = self._position + seen, self._line, True
        keep = max(seen, len(text) - max(0, len(self._separator) - 1))
        self._see(text[seen:keep])
        self._held = text[keep:]
        self._position += keep
        return np.array(rows, dtype=np.int64).reshape(-1, 2)

    def finish(self) -> Ints:
        """The last record, if no separator ends it, and the end of the file."""
        self._see(self._held)
        size = self._position + len(self._held)
        is_row = size > self.start if self._keep_blank else not self._blank
        rows = [(self.start, self._start_line)] if is_row else []
        return np.array([*rows, (size, self._line)], dtype=np.int64)

    def _see(self, text: bytes) -> None:
        self._line += text.count(b"\n")
        self._blank = self._blank and not text.strip(SPACE)
