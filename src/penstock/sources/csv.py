"""Which bytes are record i of a table, and what do its cells say?  One scan that knows quotes, then a memory map.

It reads what Python's own csv module reads, cell for cell, with two differences: a quote that is never closed makes a bad
row instead of a cell with the rest of the file in it, and a cell has no largest size.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.files import RangeFile
from penstock.fingerprint import fingerprint
from penstock.sources.bad import not_utf8
from penstock.sources.parse import has_long_digits, parse_value
from penstock.sources.parts import Part
from penstock.sources.rows import RowsPart, RowsSource
from penstock.sources.spans import Bytes, Spans, after_bom, blocks, spans
from penstock.types import BadRow, Bools, Ints, Record

_LF, _CR, _QUOTE = b'\n\r"'
_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class Scanner:
    """Finds where records end.  Between blocks it remembers whether quotes are open, and the record under way.

    Quotes are taken in runs of neighbours.  Inside quotes an odd run closes them.  Outside, an odd run opens them at the
    start of a cell, and is plain text anywhere else.  An even run changes nothing.  So the state behind each run is the
    parity of the opening-or-closing runs since the last one that can only close, and no byte is looked at in Python.
    """

    def __init__(self, delimiter: str, *, quotes: bool, begin: int) -> None:
        self._delimiter = ord(delimiter)
        self._quotes = quotes
        self._inside = False
        self._at_start = True  # of a cell, so that a quote opens
        self._row = (begin, 1)  # byte and line of the record under way
        self._empty = True  # nothing of it was seen yet, a carriage return aside
        self._line = 1

    def take(self, position: int, block: Bytes, *, next_byte: bytes) -> Ints:
        """(byte, line) of the records that end in this block."""
        ends = np.flatnonzero(block == _LF)
        returns = np.flatnonzero(block == _CR)
        if len(returns):  # a lone one ends a line, too
            following = np.append(block, np.frombuffer(next_byte or b"\0", dtype=np.uint8))[returns + 1]
            ends = np.union1d(ends, returns[following != _LF])
        closing = np.flatnonzero(self._outside(block, ends))
        last = ends[closing]  # of each record, its last byte
        first = np.concatenate([[0], last + 1])  # within the block; the first record may have begun earlier
        table = np.stack([position + first, self._line + np.concatenate([[0], closing + 1])], axis=1)
        table[0] = self._row
        blank = (last == first[:-1]) | ((last == first[:-1] + 1) & (block[first[:-1]] == _CR))
        if len(blank):
            blank[0] &= self._empty
        rest = block[first[-1] :].tobytes()
        self._empty = (self._empty or len(last) > 0) and rest in (b"", b"\r")
        self._row = tuple(table[-1].tolist())
        self._line += len(ends)
        rows: Ints = table[:-1][~blank]
        return rows

    def finish(self, size: int) -> Ints:
        """The last record, if no newline ends it, and the end of the file."""
        rows = [] if self._empty else [self._row]
        return np.array([*rows, (size, self._line)], dtype=np.int64)

    def _outside(self, block: Bytes, ends: Ints) -> Bools:
        """For each line end, whether it lies outside quotes."""
        starters = (self._delimiter, _LF, _CR)
        quotes = np.flatnonzero(block == _QUOTE) if self._quotes else ends[:0]
        if not len(quotes):
            self._at_start = int(block[-1]) in starters
            return np.full(len(ends), not self._inside)
        begins = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
        runs = quotes[begins]  # the first quote of each run
        odd = np.diff(begins, append=len(quotes)) % 2 == 1
        opens = np.isin(block[runs - 1], starters)
        if runs[0] == 0:
            opens[0] = self._at_start
        toggles = np.cumsum(odd & opens)
        closer = np.maximum.accumulate(np.where(odd & ~opens, np.arange(len(runs)), -1))  # the last that can only close
        since = np.where(closer >= 0, toggles[closer], -int(self._inside))
        inside = np.concatenate([[self._inside], (toggles - since) % 2 == 1])
        self._inside = bool(inside[-1])
        if quotes[-1] == len(block) - 1:  # the run may go on: it stays plain text if it is
            self._at_start = bool(inside[-2] or opens[-1])
        else:
            self._at_start = int(block[-1]) in starters
        outside: Bools = ~inside[np.searchsorted(runs, ends)]
        return outside


class Cells:
    """Cuts a record into cells."""

    def __init__(self, delimiter: str, *, quotes: bool) -> None:
        self.delimiter = delimiter
        self.quotes = quotes
        plain = f"[^{re.escape(delimiter)}]*+"
        self._cell = re.compile(rf'"((?:[^"]++|"")*+)(?:"({plain})|\Z)|({plain})')

    def cut(self, text: str) -> list[str] | None:
        """None where a quote is never closed.  `text` has no line end behind it."""
        if not self.quotes or '"' not in text:
            return text.split(self.delimiter)
        cells, position = [], 0
        while True:
            found = self._cell.match(text, position)
            assert found is not None  # the pattern takes any text
            quoted, rest, plain = found.groups()
            if quoted is not None and rest is None:
                return None
            cells.append(plain if quoted is None else quoted.replace('""', '"') + rest)
            if found.end() == len(text):
                return cells
            position = found.end() + 1  # behind the delimiter


def _int(text: str) -> Any:
    return int(text) if _INT.fullmatch(text) else _unfit("a whole number")


def _float(text: str) -> Any:
    value = float(text) if _FLOAT.fullmatch(text) else math.inf
    return value if math.isfinite(value) else _unfit("a finite number")


def _bool(text: str) -> Any:
    value = _BOOLS.get(text.lower())
    return _unfit("true, false, 1 or 0") if value is None else value


def _json(text: str) -> Any:
    raw = text.encode()
    return parse_value(raw, exact=has_long_digits(raw))


def _unfit(expected: str) -> BadRow:
    return BadRow(reason="bad_value", message=f"expected {expected}")


TYPES: dict[str, Callable[[str], Any]] = {"int": _int, "float": _float, "bool": _bool, "json": _json}


class CsvPart(RowsPart):
    """The records of one file, with names for their cells."""

    def __init__(
        self,
        file: RangeFile,
        index: Spans,
        *,
        max_row_bytes: int,
        cells: Cells,
        names: Sequence[str],
        types: Mapping[str, str],
    ) -> None:
        super().__init__(file, index, max_row_bytes=max_row_bytes)
        self._cells = cells
        self._names = names
        self._types = {name: TYPES[kind] for name, kind in types.items()}
        settings = [list(names), dict(types), cells.delimiter, cells.quotes]
        self.mark = fingerprint(settings).encode()

    def trim(self, raw: bytes) -> bytes:
        # Line ends inside quotes stay: behind them stands at least the closing quote.
        return raw.rstrip(b"\r\n")

    def decode(self, raw: bytes) -> Record | BadRow:
        cells = cut(self.trim(raw), self._cells)
        if isinstance(cells, BadRow):
            return cells
        if len(cells) != len(self._names):
            expected = f"expected {len(self._names)} ({', '.join(self._names)})"
            return BadRow(reason="wrong_width", message=f"the row has {len(cells)} cells, {expected}")
        record: Record = dict(zip(self._names, cells, strict=True))
        for name, convert in self._types.items():
            text = record[name].strip(" ")
            try:
                value = convert(text) if text else None
            except ValueError as error:  # more digits than int() takes
                value = _unfit(f"fewer digits: {error}")
            if type(value) is BadRow:
                return BadRow(reason="bad_value", message=f"column {name!r} is {text[:40]!r}: {value.message}")
            record[name] = value
        return record


def cut(raw: bytes, cells: Cells) -> list[str] | BadRow:
    """The cells of a record without its line end."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return not_utf8(raw, error)
    found = cells.cut(text)
    return found if found is not None else BadRow(reason="open_quote", message="a quote is opened and never closed")


class CsvSource(RowsSource):
    """One record per line of a table, over one or more files with the same columns.  Cells are strings unless `types` asks."""

    shape = "csv"
    OPTIONS = (*RowsSource.OPTIONS, "delimiter", "names", "types", "quotes")

    def __init__(
        self,
        paths: Sequence[str],
        *,
        delimiter: str | None = None,
        names: Sequence[str] | None = None,
        types: Mapping[str, str] | None = None,
        quotes: bool = True,
        **rest: Any,
    ) -> None:
        """`delimiter`: a comma, or a tab in `.tsv` files.  `names`: the columns, where no line of the file says them.
        `types`: what to make of a column's cells: int, float, bool or json; an empty cell is then None.
        `quotes=False`: a quote is a character like any other.
        """
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n'):
            raise SourceError(f"delimiter is {delimiter!r}, expected one ASCII character, no quote or line end")
        if unknown := [kind for kind in (types or {}).values() if kind not in TYPES]:
            raise SourceError(f"types has {unknown[0]!r}, expected one of {', '.join(TYPES)}")
        self.delimiter = delimiter
        self.names = None if names is None else list(names)
        self.types = dict(types or {})
        self.quotes = quotes
        self._columns: tuple[str, list[str]] | None = None  # the first file with a header, and what it says
        if self.names is not None:
            self._check_names(self.names, "names=")
        super().__init__(paths, **rest)

    def rows(self, file: RangeFile, path: str) -> Part:
        tabs = re.search(r"\.tsv(\.[a-z0-9]+)?$", path, re.IGNORECASE)
        cells = Cells(self.delimiter or ("\t" if tabs else ","), quotes=self.quotes)
        kind = f"csv {cells.delimiter!r} {cells.quotes}"
        index = spans(file, self.cache, kind=kind, scan=lambda file: _scan(file, cells))
        names = self.names
        if names is None:
            names = self._header(file, path, index, cells)
            index = Spans(starts=index.starts[1:], lines=index.lines[1:]) if index.num_rows else index
        return CsvPart(file, index, max_row_bytes=self.max_row_bytes, cells=cells, names=names, types=self.types)

    def _header(self, file: RangeFile, path: str, index: Spans, cells: Cells) -> list[str]:
        """Names from the first record; a file without any has no rows to name."""
        if not index.num_rows:
            return []
        start, stop = index.starts[:2].tolist()
        place = f"{path}:{index.line(0)}"
        if stop - start > self.max_row_bytes:
            raise SourceError(
                f"{place}: the header takes {stop - start:_} bytes; is this a table? see also quotes=False"
            )
        found = cut(file.read(start, stop).rstrip(b"\r\n"), cells)
        if isinstance(found, BadRow):
            raise SourceError(f"{place}: no header: {found.message}; fix the line, or pass names=")
        self._check_names(found, place)
        if self._columns is None:
            self._columns = (path, found)
        first, columns = self._columns
        if set(found) != set(columns):
            differing = ", ".join(repr(name) for name in sorted(set(found) ^ set(columns)))
            raise SourceError(
                f"{place}: other columns than in {first}: {differing} stand in one of them; open each file by itself "
                f"and join them with concat"
            )
        return found

    def _check_names(self, names: Sequence[str], place: str) -> None:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SourceError(f"{place}: column {twice[0]!r} is named twice; rename one, or pass names=")
        missing = [name for name in self.types if name not in names]
        if missing:
            raise SourceError(f"{place}: types names the column {missing[0]!r}, expected one of {', '.join(names)}")


def _scan(file: RangeFile, cells: Cells) -> Iterator[Ints]:
    begin, size = after_bom(file), file.identity.size
    scanner = Scanner(cells.delimiter, quotes=cells.quotes, begin=begin)
    for position, block in blocks(file, begin, size):
        after = position + len(block)
        yield scanner.take(position, block, next_byte=file.read(after, min(after + 1, size)))
    yield scanner.finish(size)
