"""Print to the terminal.  Everything goes through `escape`, so that no text can steer it.

On a terminal, tables have columns and colours; in a pipe they are lines of fields between tabs.
"""

import contextlib
import json
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from penstock.errors import PenstockError
from penstock.words import escape, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.report.text import StyledText, TextBlock

_LEAST_TEXT = (
    18  # columns of the screen for a column of text; a longer text goes on in the next line
)
_PROGRESS_SECONDS = 10.0  # between lines of progress in a file
_SILENT_SECONDS = 0.8  # after which a terminal shows that the command is at work
_log = logging.getLogger("penstock")


class OutputLost(PenstockError):
    """The output cannot be written."""


@contextlib.contextmanager
def explaining_output() -> Iterator[None]:
    """Turn an error of the output, such as a full disk, into OutputLost; a closed pipe stays one."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(f"the output cannot be written: {error.strerror or error}") from error


def discard_output() -> None:
    """Discard what is left of the output, also when the process ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def open_closed_streams() -> None:
    """Replace a standard stream that the caller closed, so that no file of ours takes its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nothing = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the end
            setattr(sys, name, nothing)


def say(text: object = "", *, style: str | None = None) -> None:
    """Print one line of output."""
    _write(sys.stdout, f"{escape(text)}\n", style)


def complain(text: object) -> None:
    """Print one line about what went wrong, to stderr."""
    _write(sys.stderr, f"penstock: {escape(' '.join(str(text).splitlines()))}\n", "red")


def note(text: object) -> None:
    """Print one line that is not part of the answer, to stderr."""
    if _Shown.notes:
        _write(sys.stderr, f"{escape(text)}\n", "dim")


def progress(*, as_json: bool) -> str:
    """How the library says what it does: not next to a JSON value, and not with --quiet."""
    return "auto" if _Shown.notes and not as_json else "none"


def text_block(text: str) -> None:
    """Print several lines, such as help or a traceback, to stderr."""
    _write(sys.stderr, escape(text, keep="\n\t").rstrip("\n") + "\n", None)


def as_json(value: Any) -> None:
    """Print a value for scripts.  It is ASCII, so that nothing in it can steer a terminal either; a number that is not finite is null."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=True, allow_nan=False)
    _write(sys.stdout, text + "\n", None)


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not have, such as the loss of a run that diverged."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value


def show(pieces: "Iterable[TextBlock]") -> None:
    """Print what report/text.py lays out: titles, lines, tables, text with styles."""
    for piece in pieces:
        if piece.columns:
            table(piece.columns, piece.rows)
        elif piece.parts:
            _line(piece.parts, indent=piece.indent)
        else:
            say(piece.text, style=piece.style)


def width() -> int:
    """Return the width to draw in: that of the terminal, at most 120 columns; 100 if the output is a file or a pipe."""
    return (
        max(min(shutil.get_terminal_size((100, 24)).columns, 120), 20)
        if sys.stdout.isatty()
        else 100
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table.  Columns whose names begin with # are numbers, which never break; what is too wide becomes several tables."""
    titles = [column.removeprefix("#") for column in columns]
    cells = [[escape(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in (titles, *cells) if any(titles) else cells:
            _write(sys.stdout, "\t".join(line) + "\n", None)
        return
    from rich.table import Table
    from rich.text import Text

    _remove_progress(is_answer=True)
    for places in _column_groups(columns, cells):
        made = Table(box=None, pad_edge=False, header_style="bold", show_header=any(titles))
        for place in places:
            is_number = columns[place].startswith("#")
            made.add_column(
                titles[place],
                justify="right" if is_number else "left",
                overflow="fold",
                no_wrap=is_number,
            )
        for row in cells:
            made.add_row(*(Text(row[place]) for place in places))
        _console(sys.stdout, width=width()).print(made)


def _column_groups(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[list[int]]:
    """Group columns that fit next to each other.  The first column, which names the row, is repeated in each group."""
    needed = []
    for place, column in enumerate(columns):
        widest = max((len(row[place]) for row in cells), default=0)
        least = widest if column.startswith("#") else min(widest, _LEAST_TEXT)
        needed.append(max(len(column.removeprefix("#")), least))
    groups = [[0]]
    used = needed[0]
    for place in range(1, len(needed)):
        if used + 2 + needed[place] > width() and len(groups[-1]) > 1:
            groups.append([0])
            used = needed[0]
        groups[-1].append(place)
        used += 2 + needed[place]
    return groups


@contextlib.contextmanager
def library_log(level: int, *, notes: bool = True) -> Iterator[None]:
    """Print the library's log as notes.  notes: whether commands print notes of their own."""
    handler = _LogLines(level)
    _log.addHandler(handler)
    _log.setLevel(level)
    _Shown.notes = notes
    try:
        with _signs_of_life() if level <= logging.INFO else contextlib.nullcontext():
            yield
    finally:
        _Shown.notes = True
        _log.removeHandler(handler)
        _log.setLevel(logging.NOTSET)


def quiet() -> None:
    """From now on, print only warnings of the library's log."""
    _log.setLevel(logging.WARNING)


@contextlib.contextmanager
def _signs_of_life() -> Iterator[None]:
    """On a terminal, show the seconds while the command has printed nothing yet and says nothing about its progress.

    A timer interrupts the work for that, not a thread: worker processes are forked from this one.
    """
    can_interrupt = threading.current_thread() is threading.main_thread()
    if not (can_interrupt and hasattr(signal, "setitimer") and sys.stderr.isatty()):
        yield
        return
    begun = time.monotonic()
    _Shown.last = begun
    _Shown.has_answered = False

    def show(number: int, frame: object) -> None:
        now = time.monotonic()
        # the module may be half imported: a signal comes between any two lines of the program
        progress = sys.modules.get("penstock.report.progress")
        terminal_line = None if progress is None else vars(progress).get("TerminalLine")
        if terminal_line is not None and terminal_line.is_drawn:
            _Shown.last = now
        elif not _Shown.has_answered and now - _Shown.last >= _SILENT_SECONDS:
            words = f"{_Shown.stage or 'working …'} ({now - begun:.0f} s)"
            width = shutil.get_terminal_size().columns - 1
            line = _encodable(sys.stderr, shortened(words, width))
            # not by sys.stderr: what is interrupted may be writing to it
            with contextlib.suppress(OSError):
                os.write(2, f"\r\x1b[K{line}\r".encode(sys.stderr.encoding, "replace"))
            _Shown.progress = True

    before = signal.signal(signal.SIGALRM, show)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if _Shown.progress:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            _Shown.progress = False


class _LogLines(logging.Handler):
    """Prints the library's log, except what commands print as their answer.

    A terminal shows the latest line of progress until the next output; in a file it is a line every few seconds.
    """

    _next_progress = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "is_answer", False):
            return
        if record.levelno >= logging.WARNING:
            _write(sys.stderr, f"{escape(record.getMessage())}\n", "dim")
        elif not getattr(record, "is_progress", False):
            note(record.getMessage())
        elif sys.stderr.isatty():
            text = _encodable(sys.stderr, escape(record.getMessage()))
            sys.stderr.write(f"\r\x1b[K{shortened(text, shutil.get_terminal_size().columns - 1)}\r")
            sys.stderr.flush()
            _Shown.progress = True
            _Shown.last = time.monotonic()
            _Shown.stage = text if text.endswith("…") else ""
        elif record.created >= self._next_progress or getattr(record, "is_end", False):
            self._next_progress = record.created + _PROGRESS_SECONDS
            note(record.getMessage())


class _Shown:
    """What the terminal shows now."""

    progress = False
    notes = True
    last = 0.0  # when something was shown, by time.monotonic()
    stage = ""  # what is at work and cannot be counted
    has_answered = False


def _line(parts: "Sequence[StyledText]", *, indent: int = 0) -> None:
    """Print parts, each in its style, or in a pipe with the marks for it.

    indent: on a terminal, a line that is too long goes on in the next, this far to the right.
    """
    if not sys.stdout.isatty():
        plain = "".join(part.text if part.plain is None else part.plain for part in parts)
        _write(sys.stdout, escape(plain, keep="\n") + "\n", None)
        return
    from rich.text import Text

    _remove_progress(is_answer=True)
    made = Text()
    for part in parts:
        made.append(_encodable(sys.stdout, escape(part.text, keep="\n")), style=part.style or "")
    console = _console(sys.stdout, soft_wrap=True)
    if not indent:
        console.print(made)
        return
    first = made[:indent]
    room = max(width() - indent, 20)
    for number, piece in enumerate(made[indent:].wrap(console, room)):
        piece.rstrip()
        console.print(first if number == 0 else Text(" " * indent), piece, sep="")


def _console(stream: TextIO, **options: Any) -> "Console":
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False, **options)


def _remove_progress(*, is_answer: bool) -> None:
    """Remove the line of progress before something else is printed; none is drawn by itself once the answer has begun."""
    _Shown.last = time.monotonic()
    _Shown.has_answered = _Shown.has_answered or is_answer
    if _Shown.progress:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
        _Shown.progress = False


def _write(stream: TextIO, text: str, style: str | None) -> None:
    """Write text that is escaped already, over a line of progress."""
    _remove_progress(is_answer=stream is sys.stdout)
    plain = _encodable(stream, text)
    if style is None or not stream.isatty():
        with explaining_output():
            stream.write(plain)
    else:
        _console(stream, soft_wrap=True).print(plain, style=style, end="")


def _encodable(stream: TextIO, text: str) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(
        encoding
    )  # a terminal of another alphabet
