r"""Where does a text become records?  At line ends, at a separator, or nowhere: a file may be one record.

Only the byte \n ends a line; U+2028, U+0085 and a lone \r are text.  A \r just before \n belongs to the line end.
At a separator, the text between two of them is the record, to the last space.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.files import RangeFile
from penstock.sources.bad import not_utf8
from penstock.sources.offsets import lines
from penstock.sources.parts import Part
from penstock.sources.rows import Index, RowsPart, RowsSource
from penstock.sources.spans import SPACE, after_bom, blocks, spans
from penstock.types import BadRow, Ints, Record


class TextPart(RowsPart):
    """Records {"text": …} of one file.  A row ends with its separator and the blank ones behind it."""

    def __init__(self, file: RangeFile, index: Index, *, max_row_bytes: int, separator: bytes, is_line: bool) -> None:
        super().__init__(file, index, max_row_bytes=max_row_bytes)
        self._separator = separator  # empty: the whole file
        self._is_line = is_line

    def trim(self, raw: bytes) -> bytes:
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
        """`record`: "line", "file", or the text that separates records, such as a blank line or an end-of-text mark.
        `keep_blank`: records of nothing but spaces, tabs and line ends are records, too; by default they are not.
        """
        if not record:
            raise SourceError("record is empty, expected 'line', 'file' or the text between two records")
        self.record_is = record
        self.keep_blank = keep_blank
        super().__init__(paths, **rest)

    def rows(self, file: RangeFile, path: str) -> Part:
        begin = after_bom(file)
        is_line = self.record_is == "line"
        separator = b"\n" if is_line else b"" if self.record_is == "file" else self.record_is.encode()
        if is_line and not self.keep_blank:
            index: Index = lines(file, self.cache)
        else:
            kind = f"text {separator!r} {self.keep_blank}"
            index = spans(file, self.cache, kind=kind, scan=lambda file: _scan(file, separator, self.keep_blank, begin))
        return TextPart(file, index, max_row_bytes=self.max_row_bytes, separator=separator, is_line=is_line)


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
