"""CSV tables: one scan finds where records end, then a record is read and cut into cells.

Cells are those of Python's csv module, with two differences: a quote that is never closed makes a bad row instead of a cell with the rest
of the file in it, and the size of a cell has no limit.
"""

import contextlib
import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.fingerprint import fingerprint
from penstock.places.place import File
from penstock.settings import setting
from penstock.sources.bad import not_utf8
from penstock.sources.files import Files
from penstock.sources.index import Bytes, Index, blocks, index
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.parse import has_long_digits, parse_value
from penstock.sources.rows import FileRecords
from penstock.sources.text import TextOptions, TextReader, TextRows, after_bom
from penstock.types import BadRow, Bools, Ints, Record
from penstock.words import shortened

_LF, _CR, _QUOTE = b'\n\r"'
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SHOWN = 40  # names of columns in an error, and characters of one name
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class _RecordScanner:
    """Finds where records end.  Between blocks it keeps whether quotes are open, and the unfinished record.

    Quotes are taken in runs of neighbours.  Inside quotes an odd run closes them.  Outside, an odd run opens them at the start of a cell,
    and is plain text anywhere else.  An even run changes nothing.  So the state behind each run is the parity of the opening-or-closing
    runs since the last one that can only close, and no byte is tested in Python.
    """

    def __init__(self, delimiter: str, *, quotes: bool, begin: int) -> None:
        self._starters = (ord(delimiter), _LF, _CR)  # bytes before the start of a cell
        self._quotes = quotes
        self._inside = False
        self._at_start = True  # of a cell, so that a quote opens
        self._row = (begin, 1)  # byte and line of the unfinished record
        self._empty = True  # it has no bytes yet, a carriage return aside
        self._line = 1

    def take(self, position: int, block: Bytes, *, next_byte: bytes) -> Ints:
        """Return (byte, line) of the records that end in this block."""
        ends = np.flatnonzero(block == _LF)
        returns = np.flatnonzero(block == _CR)
        if len(returns):
            behind = np.append(block, np.frombuffer(next_byte or b"\0", dtype=np.uint8))[
                returns + 1
            ]
            alone = returns[behind != _LF]  # such a one ends a line, too
            if len(alone):
                ends = np.sort(np.concatenate([ends, alone]))
        closing = np.flatnonzero(self._outside(block, ends))
        last = ends[closing]  # of each record, its last byte
        first = np.concatenate(
            [[0], last + 1]
        )  # within the block; the first record may have begun earlier
        table = np.stack(
            [position + first, self._line + np.concatenate([[0], closing + 1])], axis=1
        )
        table[0] = self._row
        blank = (last == first[:-1]) | ((last == first[:-1] + 1) & (block[first[:-1]] == _CR))
        if len(blank):
            blank[0] &= self._empty
        self._empty = (self._empty or len(last) > 0) and block[first[-1] :].tobytes() in (
            b"",
            b"\r",
        )
        self._row = tuple(table[-1].tolist())
        self._line += len(ends)
        rows: Ints = table[:-1][~blank]
        return rows

    def finish(self, size: int) -> Ints:
        """Return the last record, if no newline ends it, and the end of the file."""
        return np.array([*([] if self._empty else [self._row]), (size, self._line)], dtype=np.int64)

    def _outside(self, block: Bytes, ends: Ints) -> Bools:
        """Return for each line end whether it is outside quotes."""
        quotes = np.flatnonzero(block == _QUOTE) if self._quotes else ends[:0]
        if not len(quotes):
            self._at_start = int(block[-1]) in self._starters
            return np.full(len(ends), not self._inside)
        begins = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
        runs = quotes[begins]  # the first quote of each run
        odd = np.diff(begins, append=len(quotes)) % 2 == 1
        opens = np.isin(block[runs - 1], self._starters)
        if runs[0] == 0:
            opens[0] = self._at_start
        toggles = np.cumsum(odd & opens)
        closer = np.maximum.accumulate(
            np.where(odd & ~opens, np.arange(len(runs)), -1)
        )  # the last that can only close
        since = np.where(closer >= 0, toggles[closer], -int(self._inside))
        inside = np.concatenate([[self._inside], (toggles - since) % 2 == 1])
        self._inside = bool(inside[-1])
        if quotes[-1] == len(block) - 1:  # the run may continue: it stays plain text if it is
            self._at_start = bool(inside[-2] or opens[-1])
        else:
            self._at_start = int(block[-1]) in self._starters
        outside: Bools = ~inside[np.searchsorted(runs, ends)]
        return outside


def _scan(file: File, delimiter: str, quotes: bool) -> Iterator[Ints]:
    begin = after_bom(file)
    size = file.identity.size
    scanner = _RecordScanner(delimiter, quotes=quotes, begin=begin)
    for position, block in blocks(file, begin, size):
        after = position + len(block)
        yield scanner.take(position, block, next_byte=file.read(after, min(after + 1, size)))
    yield scanner.finish(size)


def _cells(raw: bytes, delimiter: str, quotes: bool) -> list[str] | BadRow:
    """Cut a record into cells."""
    raw = raw.rstrip(b"\r\n")  # line ends inside quotes stay: the closing quote is behind them
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return not_utf8(raw, error)
    if not quotes or '"' not in text:
        return text.split(delimiter)
    if (
        len(text) > csv.field_size_limit()
    ):  # a user may have set any limit; threads that raise it never lower it
        csv.field_size_limit(max(len(text), (1 << 31) - 1))
    reader = csv.reader((text, ""), delimiter=delimiter)
    cells = next(reader)
    if reader.line_num > 1:  # it has asked for another line
        return BadRow(reason="open_quote", message="a quote is opened and never closed")
    return cells


def _int(text: str) -> Any:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        return _unfit("a whole number")
    try:
        return int(text)
    except ValueError as error:  # more digits than int() takes
        return _unfit(f"fewer digits: {error}")


def _float(text: str) -> Any:
    value = float(text) if _FLOAT.fullmatch(text) else math.inf
    return value if math.isfinite(value) else _unfit("a finite number")


def _bool(text: str) -> Any:
    return _BOOLS.get(text.lower(), _unfit("true, false, 1 or 0"))


def _json(text: str) -> Any:
    raw = text.encode()
    return parse_value(raw, exact=has_long_digits(raw))


def _unfit(expected: str) -> BadRow:
    return BadRow(reason="bad_value", message=f"expected {expected}")


_TYPES: dict[str, Callable[[str], Any]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "json": _json,
}


def _listed(names: Sequence[str]) -> str:
    """Return names for an error.  A table may have thousands, and each bad row an error."""
    return shortened(", ".join(names[:_SHOWN]), 10 * _SHOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions(TextOptions):
    """One record per line of a table, of files with the same columns.  Cells are strings unless `types` converts them."""

    delimiter: str | None = setting(
        "of CSV: what separates columns; else a comma, or a tab in .tsv files", None
    )
    names: Sequence[str] | None = setting("of CSV: the columns, if the file has no header", None)
    types: Mapping[str, str] | None = setting(
        "of CSV: column → int, float, bool or json; an empty cell is then null", None
    )
    quotes: bool = setting("of CSV: false makes a quote a character like any other", True)

    def __post_init__(self) -> None:
        TextOptions.__post_init__(self)
        mark = self.delimiter
        if mark is not None and (len(mark) != 1 or not mark.isascii() or mark in '"\r\n'):
            raise SourceError(
                f"delimiter is {mark!r}, expected one ASCII character, no quote or line end"
            )
        for kind in (self.types or {}).values():
            if kind not in _TYPES:
                raise SourceError(f"types has {kind!r}, expected one of {', '.join(_TYPES)}")
        if self.names is not None:
            self.check_names(self.names, "names=")

    def check_names(self, names: Sequence[str], where: str) -> None:
        """Raise SourceError unless columns can have these names."""
        if len(set(names)) < len(names):
            twice = min(name for name, times in Counter(names).items() if times > 1)
            raise SourceError(
                f"{where}: column {twice[:_SHOWN]!r} is named twice; rename one, or pass names="
            )
        for name in self.types or ():
            if name not in names:
                raise SourceError(
                    f"{where}: types names the column {name!r}, expected one of {_listed(names)}"
                )


class CsvDecoder:
    """Rows of cells, with names for them."""

    are_lines = False
    skips_space = False

    def __init__(self, options: CsvOptions, names: list[str], delimiter: str) -> None:
        types = dict(options.types or {})
        self._names = names
        self._delimiter = delimiter
        self._quotes = options.quotes
        self._converts = {name: _TYPES[kind] for name, kind in types.items()}
        self.mark = fingerprint([names, types, delimiter, options.quotes]).encode()

    def trim(self, raw: bytes) -> bytes:
        return raw.rstrip(b"\r\n")

    def decode(self, raw: bytes) -> Record | BadRow:
        cells = _cells(raw, self._delimiter, self._quotes)
        return cells if isinstance(cells, BadRow) else self._record(cells)

    def decode_all(self, raw: bytes, edges: list[int]) -> Iterator[Record | BadRow]:
        """Cut rows by one reader, and from the first that it cannot read on one by one."""
        rows = [raw[start:stop] for start, stop in pairwise(edges)]
        texts = chain((self.trim(row).decode() for row in rows), [""])
        reader = csv.reader(texts if self._quotes else [], delimiter=self._delimiter)
        cut: list[list[str]] = []
        with contextlib.suppress(UnicodeDecodeError, csv.Error):
            for _, cells in zip(rows, reader, strict=False):
                if reader.line_num > len(cut) + 1:  # a quote that is never closed
                    break
                cut.append(cells)
        yield from map(self._record, cut)
        yield from map(self.decode, rows[len(cut) :])

    def _record(self, cells: list[str]) -> Record | BadRow:
        if len(cells) != len(self._names):
            expected = f"expected {len(self._names)} ({_listed(self._names)})"
            return BadRow(
                reason="wrong_width", message=f"the row has {len(cells)} cells, {expected}"
            )
        record: Record = dict(zip(self._names, cells, strict=True))
        for name, convert in self._converts.items():
            text = record[name].strip(" ")
            value = convert(text) if text else None
            if type(value) is BadRow:
                return BadRow(
                    reason="bad_value", message=f"column {name!r} is {text[:40]!r}: {value.message}"
                )
            record[name] = value
        return record


class CsvTables:
    """Opens tables, and checks that all have the columns of the first one."""

    def __init__(self, options: CsvOptions, cache: Cache) -> None:
        self._options = options
        self._cache = cache
        self._first: tuple[str, list[str]] | None = (
            None  # the first file with a header, and its columns
        )

    def open_text(self, file: File, path: str) -> FileRecords:
        options = self._options
        is_tsv = re.search(r"\.tsv(\.[a-z0-9]+)?$", path, re.IGNORECASE)
        delimiter = options.delimiter or ("\t" if is_tsv else ",")
        rows = index(
            file,
            self._cache,
            kind=f"csv {delimiter!r} {options.quotes}",
            scan=lambda: _scan(file, delimiter, options.quotes),
        )
        if options.names is not None:
            names = list(options.names)
        elif len(rows.starts) > 1:
            names = self._header(file, path, rows, delimiter)
            rows = replace(rows, starts=rows.starts[1:], lines=rows.lines[1:])
        else:
            names = []
        decoder = CsvDecoder(options, names, delimiter)
        return TextRows(file, rows, options.max_row_bytes, decoder)

    def _header(self, file: File, path: str, rows: Index, delimiter: str) -> list[str]:
        """Read the columns from the first record."""
        options = self._options
        start, stop = rows.starts[:2].tolist()
        where = f"{path}:{rows.lines[0]}"
        if stop - start > options.max_row_bytes:
            raise SourceError(
                f"{where}: the header has {stop - start:,} bytes; is this a table? see also quotes=False"
            )
        names = _cells(file.read(start, stop), delimiter, options.quotes)
        if isinstance(names, BadRow):
            raise SourceError(f"{where}: no header: {names.message}; fix the line, or pass names=")
        other_delimiter = next((mark for mark in ";\t|" if mark in names[0]), None)
        if options.delimiter is None and len(names) == 1 and other_delimiter is not None:
            raise SourceError(
                f"{where}: the header is one column, {names[0][:80]!r}; set the option delimiter to {other_delimiter!r} "
                f"if that separates cells, else to {delimiter!r}"
            )
        options.check_names(names, where)
        self._expect_same(names, path, where)
        return names

    def _expect_same(self, names: list[str], path: str, where: str) -> None:
        if self._first is None:
            self._first = (path, names)
        first_path, first_names = self._first
        only_in_one = set(names) ^ set(first_names)
        if only_in_one:
            listed = _listed([repr(name) for name in sorted(only_in_one)])
            raise SourceError(
                f"{where}: other columns than in {first_path}: only one of them has {listed}; "
                f"open each file by itself and join them with concat"
            )


def open_csv(request: OpenRequest) -> Files:
    """Open tables as one source."""
    tables = CsvTables(request.options, request.cache)
    return open_files(request, TextReader("csv", request.options, request.cache, tables))


CSV = Opener(CsvOptions, open_csv)
