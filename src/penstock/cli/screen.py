"""What reaches the terminal?  Text that cannot steer it: everything that is printed goes through `escape`, here.

On a terminal, tables have columns and colours; in a pipe they are lines of fields between tabs.
"""

import contextlib
import json
import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from penstock.report.escape import escape
from penstock.report.text import Part, Piece

INTERRUPTED = 130


def say(text: object = "", *, style: str | None = None) -> None:
    """One line of output."""
    _write(sys.stdout, f"{escape(text)}\n", style)


def show(pieces: Sequence[Piece]) -> None:
    """What report/text.py lays out: titles, lines, tables, text with styles."""
    for piece in pieces:
        if piece.columns:
            table(piece.columns, piece.rows)
        elif piece.parts:
            _line(piece.parts)
        else:
            say(piece.text, style=piece.style)


def width() -> int:
    """Columns to draw in."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120) if sys.stdout.isatty() else 100


def complain(text: object) -> None:
    """One line about what went wrong, where errors go."""
    _write(sys.stderr, f"penstock: {escape(' '.join(str(text).splitlines()))}\n", "red")


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C in the middle of work that knows how far it came: that is said, where typer would say nothing."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if not str(stop):
            raise
        complain(f"interrupted; {stop}")
        raise SystemExit(INTERRUPTED) from stop


def note(text: object) -> None:
    """What is under way, or where it happened: not part of the answer."""
    _write(sys.stderr, f"{escape(text)}\n", "dim")


def text_block(text: str) -> None:
    """Several lines of our own words, such as help or a traceback, where errors go."""
    _write(sys.stderr, escape(text, keep="\n\t").rstrip("\n") + "\n", None)


def as_json(value: Any) -> None:
    """For scripts: ASCII, so that nothing in it can steer a terminal either."""
    _write(sys.stdout, json.dumps(value, indent=2, ensure_ascii=True) + "\n", None)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns whose names begin with # are numbers."""
    titles = [column.removeprefix("#") for column in columns]
    cells = [[escape(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in (titles, *cells):
            _write(sys.stdout, "\t".join(line) + "\n", None)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in zip(columns, titles, strict=True):
        made.add_column(title, justify="right" if column.startswith("#") else "left", overflow="fold")
    for row in cells:
        made.add_row(*(Text(cell) for cell in row))
    Console(highlight=False, markup=False, emoji=False).print(made)


def num_bytes(number: int) -> str:
    """For people: 1.4 GB."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def listen(*, json: bool) -> None:
    """From now on the library's log is shown: a line for each finished stage and warnings; with --json, warnings alone."""
    logger = logging.getLogger("penstock")
    level = logging.WARNING if json else logging.INFO
    logger.addHandler(LogLines(level, skip="build"))  # its line is part of the answer
    logger.setLevel(level)


def listen_no_more() -> None:
    """As it was before `listen`."""
    logger = logging.getLogger("penstock")
    for handler in [handler for handler in logger.handlers if isinstance(handler, LogLines)]:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


class LogLines(logging.Handler):
    """The library's log, as notes: a line for each finished stage, and warnings; but none of the module `skip`."""

    def __init__(self, level: int, *, skip: str = "") -> None:
        super().__init__(level)
        self.addFilter(lambda record: record.module != skip or record.levelno >= logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def _line(parts: Sequence[Part]) -> None:
    """One or more lines in which each part has its style.  In a pipe, what is trained stands between ⟦ and ⟧."""
    if not sys.stdout.isatty():
        plain = "".join(f"⟦{part.text}⟧" if part.is_marked else part.text for part in parts)
        _write(sys.stdout, escape(plain, keep="\n") + "\n", None)
        return
    from rich.console import Console
    from rich.text import Text

    made = Text()
    for part in parts:
        made.append(_encodable(sys.stdout, escape(part.text, keep="\n")), style=part.style or "")
    Console(highlight=False, markup=False, emoji=False, soft_wrap=True).print(made)


def _write(stream: TextIO, text: str, style: str | None) -> None:
    """`text` is escaped already."""
    plain = _encodable(stream, text)
    if style is None or not stream.isatty():
        stream.write(plain)
        return
    from rich.console import Console

    Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True).print(plain, style=style, end="")


def _encodable(stream: TextIO, text: str) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)  # a terminal of another alphabet
