"""What reaches the terminal?  Text that cannot steer it: everything that is printed goes through `escape`, here.

On a terminal, tables have columns and colours; in a pipe they are lines of fields between tabs.
"""

import contextlib
import json
import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TextIO

from penstock.report.escape import escape
from penstock.report.text import Part, Piece

INTERRUPTED = 130
_LEAST_TEXT = 18  # columns on the screen that a column of text is given; what is longer goes on in the next line


def say(text: object = "", *, style: str | None = None) -> None:
    """One line of output."""
    _write(sys.stdout, f"{escape(text)}\n", style)


def show(pieces: Sequence[Piece]) -> None:
    """What report/text.py lays out: titles, lines, tables, text with styles."""
    for piece in pieces:
        if piece.columns:
            table(piece.columns, piece.rows)
        elif piece.parts:
            _line(piece.parts, indent=piece.indent)
        else:
            say(piece.text, style=piece.style)


def width() -> int:
    """Columns to draw in: those of the terminal, at most 120; 100 where the output goes to a file or a pipe."""
    return max(min(shutil.get_terminal_size((100, 24)).columns, 120), 20) if sys.stdout.isatty() else 100


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
    """Columns whose names begin with # are numbers, which never break; what is too wide becomes several tables."""
    titles = [column.removeprefix("#") for column in columns]
    cells = [[escape(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in (titles, *cells) if any(titles) else cells:
            _write(sys.stdout, "\t".join(line) + "\n", None)
        return
    needed = [_least_width(column, [row[place] for row in cells]) for place, column in enumerate(columns)]
    for places in _column_groups(needed, width()):
        _rich_table([columns[place] for place in places], [[row[place] for place in places] for row in cells])


def _rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for column in columns:
        is_number = column.startswith("#")
        justify: Literal["right", "left"] = "right" if is_number else "left"
        made.add_column(column.removeprefix("#"), justify=justify, overflow="fold", no_wrap=is_number)
    for row in cells:
        made.add_row(*(Text(cell) for cell in row))
    Console(highlight=False, markup=False, emoji=False, width=width()).print(made)


def _least_width(column: str, cells: Sequence[str]) -> int:
    """Columns on the screen that a column of a table needs: a number in one piece, text at least some of it."""
    widest = max((len(cell) for cell in cells), default=0)
    return max(len(column.removeprefix("#")), widest if column.startswith("#") else min(widest, _LEAST_TEXT))


def _column_groups(needed: Sequence[int], room: int) -> list[list[int]]:
    """Columns that fit beside each other.  The first column, which says what a row is about, comes again in each group."""
    groups, used = [[0]], needed[0]
    for place in range(1, len(needed)):
        if used + 2 + needed[place] > room and len(groups[-1]) > 1:
            groups.append([0])
            used = needed[0]
        groups[-1].append(place)
        used += 2 + needed[place]
    return groups


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


def _line(parts: Sequence[Part], *, indent: int = 0) -> None:
    """One or more lines in which each part has its style.  In a pipe, what is trained stands between ⟦ and ⟧.

    indent: on a terminal, a line that is too long goes on in the next, this far to the right.
    """
    if not sys.stdout.isatty():
        plain = "".join(f"⟦{part.text}⟧" if part.is_marked else part.text for part in parts)
        _write(sys.stdout, escape(plain, keep="\n") + "\n", None)
        return
    from rich.console import Console
    from rich.text import Text

    made = Text()
    for part in parts:
        made.append(_encodable(sys.stdout, escape(part.text, keep="\n")), style=part.style or "")
    console = Console(
        highlight=False, markup=False, emoji=False, soft_wrap=not indent, width=width() if indent else None
    )
    if not indent:
        console.print(made)
        return
    first, room = made[:indent], max(width() - indent, 20)
    for number, piece in enumerate(made[indent:].wrap(console, room)):
        piece.rstrip()
        console.print(first if number == 0 else Text(" " * indent), piece, sep="", soft_wrap=True)


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
