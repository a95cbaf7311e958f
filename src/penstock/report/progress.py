"""Show progress: a bar on a terminal or in a notebook, a line every few seconds in a log, or nothing; and measure speed.

Progress goes to stderr, because stdout belongs to the program.  Work of less than a second shows nothing; work that takes more than
three shows something within the first.
"""

import contextlib
import html
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import StoreError
from penstock.store.progress import Progress, Show, clock
from penstock.words import escape, progress_shown, short_number, shortened, size

if TYPE_CHECKING:  # `prepare` needs this module, not the loader
    from penstock.loader import Loader
    from penstock.store import Store

_FIRST_SECONDS = 0.8  # shorter work shows nothing
_LONG_SECONDS = 3.0  # a log gets no line about work that will take less
_LINE_SECONDS = 10.0
_BAR_SECONDS = 0.1
_NOTEBOOK_SECONDS = 0.25
_NOTEBOOK_STYLE = "font-family:monospace;display:flex;gap:.8em;align-items:center"
# columns of a line with a bar
_LEAST_NAME = 8
_MOST_NAME = 20
_LEAST_BAR = 8
_MOST_BAR = 40

HOW = ("auto", "plain", "none")


class TerminalLine:
    """Whether the terminal shows a line of this module now, so that nothing else is drawn over it."""

    is_drawn = False


@contextlib.contextmanager
def showing(how: str | Callable[[Progress], object]) -> Iterator[Show | None]:
    """Yield a function to call with the progress, or None; clear the screen at the end."""
    if callable(how):
        yield how
    elif how not in HOW:
        raise StoreError(
            f"progress is {how!r}, expected one of {', '.join(map(repr, HOW))}, or a function"
        )
    elif how == "none":
        yield None
    elif how == "auto" and _notebook() is not None:
        with _notebook_bar() as show:
            yield show
    elif how == "auto" and _is_terminal():
        with _bar() as show:
            yield show
    else:
        yield _lines()


@contextlib.contextmanager
def lines_shown(how: object) -> Iterator[None]:
    """While the block runs, show in a notebook what the library logs about its progress: nothing else would."""
    if how != "auto" or _notebook() is None or progress_shown.get() is not None:
        yield
        return
    shown = _NotebookLine()

    def show(line: str) -> None:
        shown.draw(html.escape(escape(line)))

    token = progress_shown.set(show)
    try:
        yield
    finally:
        progress_shown.reset(token)
        shown.draw("")


class _NotebookLine:
    """One place in the output of a cell that is drawn again and again; it begins to exist with the first drawing."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, page: str) -> None:
        """Draw HTML in place of what was there; nothing is drawn before there is something to draw."""
        from IPython.display import HTML, display

        if self._handle is not None:
            self._handle.update(HTML(page))
        elif page:
            self._handle = display(HTML(page), display_id=True)


def _notebook() -> object | None:
    """Return the shell of the notebook that this process runs, if it does.  IPython is not imported for that."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if shell is not None and hasattr(shell, "kernel") else None


@contextlib.contextmanager
def _notebook_bar() -> Iterator[Show]:
    """Yield a function that draws a bar in the output of the cell; at the end, a line says what was done."""
    next_drawn = time.monotonic() + _FIRST_SECONDS
    shown = _NotebookLine()
    has_drawn = False

    def show(progress: Progress) -> None:
        nonlocal next_drawn, has_drawn
        now = time.monotonic()
        if now < next_drawn and not (progress.is_done and has_drawn):
            return
        next_drawn = now + _NOTEBOOK_SECONDS
        has_drawn = True
        share = progress.rows / progress.num_rows if progress.num_rows else 1.0
        name = html.escape(escape(progress.name))
        bar = f'<progress max="1" value="{share:.4f}" aria-label="{name}"></progress>'
        words = html.escape(escape(progress))
        shown.draw(f'<div style="{_NOTEBOOK_STYLE}">{bar}<span>{words}</span></div>')

    yield show


@contextlib.contextmanager
def stages(how: str) -> Iterator[Callable[[str], object]]:
    """Yield a function to call with the name of each stage of work that has no records to count.

    On a terminal the stage is shown until the next one begins; in a log each stage is a line with the seconds so far.
    """
    begun = time.monotonic()
    is_terminal = _is_terminal()

    def show(stage: str) -> None:
        seconds = round(time.monotonic() - begun)
        TerminalLine.is_drawn = is_terminal
        _write(f"\r\x1b[K{stage} …" if is_terminal else f"{stage} … ({seconds} s)\n")

    try:
        yield str if how == "none" else show
    finally:
        TerminalLine.is_drawn = False
        if is_terminal and how != "none":
            _write("\r\x1b[K")


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _write(text: str) -> None:
    with contextlib.suppress(
        OSError, ValueError, AttributeError
    ):  # a closed stream must not stop the work
        sys.stderr.write(text)
        sys.stderr.flush()


def _lines() -> Show:
    """Return a function that writes a line of plain text every few seconds, about work that takes more than three."""
    begun = time.monotonic()
    next_line = begun + _FIRST_SECONDS
    has_written = False

    def show(progress: Progress) -> None:
        nonlocal next_line, has_written
        now = time.monotonic()
        left = progress.seconds_left
        is_short = not has_written and left is not None and now - begun + left < _LONG_SECONDS
        if (now >= next_line and not is_short) or (progress.is_done and has_written):
            next_line = now + _LINE_SECONDS
            has_written = True
            _write(f"{escape(progress)}\n")

    return show


@contextlib.contextmanager
def _bar() -> Iterator[Show]:
    """Yield a function that draws a line with a bar; the line is removed at the end."""
    next_drawn = time.monotonic() + _FIRST_SECONDS / 2
    has_drawn = False

    def show(progress: Progress) -> None:
        nonlocal next_drawn, has_drawn
        now = time.monotonic()
        if now < next_drawn:
            return
        next_drawn = now + _BAR_SECONDS
        has_drawn = True
        TerminalLine.is_drawn = True
        # a column less: some terminals begin a new line when the last one is filled
        _write(f"\r\x1b[K{bar_line(progress, _columns() - 1, blocks=_draws_blocks())}")

    try:
        yield show
    finally:
        TerminalLine.is_drawn = False
        if has_drawn:
            _write("\r\x1b[K")


def bar_line(progress: Progress, width: int, *, blocks: bool = True) -> str:
    """Lay out progress in one line of at most `width` columns.

    Name, bar, share and time left are always there; numbers and speeds follow as far as there is room, the most useful first.
    blocks: draw the bar with block characters, which not every encoding has.
    """
    share = progress.rows / progress.num_rows if progress.num_rows else 1.0
    share_and_time = f"{share:4.0%}{_time_of(progress)}"
    room = width - len(share_and_time) - 3  # two spaces, and a column that stays free
    name_width = min(_MOST_NAME, max(room - _LEAST_BAR, _LEAST_NAME))
    name = shortened(escape(progress.name), name_width)
    room -= len(name)

    numbers = ""
    for number in _numbers(progress):
        longer = f"{numbers}  {number}"
        if len(longer) > room - _LEAST_BAR:
            break
        numbers = longer
    room -= len(numbers)

    bar_width = min(_MOST_BAR, room)
    bar = _drawn(share, bar_width, blocks=blocks)
    return f"{name} {bar} {share_and_time}{numbers}"[:width]


def _time_of(progress: Progress) -> str:
    """Return the time of finished work, or the time left if it is known."""
    if progress.is_done:
        return f"  {clock(progress.seconds)} in all"
    if progress.seconds_left is None:
        return ""
    return f"  {clock(progress.seconds_left)} left"


def _numbers(progress: Progress) -> list[str]:
    """Return counts and speeds, the most useful first."""
    numbers = [
        f"{progress.rows:,} of {progress.num_rows:,} records",
        f"{short_number(progress.tokens)} tokens",
        f"{progress.rows_per_second:,.0f} records/s",
    ]
    if progress.num_bytes:
        numbers.append(f"{size(progress.num_bytes / max(progress.seconds, 1e-9))}/s")
    return numbers


def _drawn(share: float, width: int, *, blocks: bool) -> str:
    """Return a bar of `width` characters, of which a share is full."""
    full, empty = ("━", "─") if blocks else ("#", "-")
    num_full = round(share * width)
    return full * num_full + empty * (width - num_full)


def _columns() -> int:
    """Return the width of the terminal that progress is drawn on."""
    try:
        return max(os.get_terminal_size(sys.stderr.fileno()).columns, 20)
    except (OSError, ValueError, AttributeError):
        return max(shutil.get_terminal_size().columns, 20)


def _draws_blocks() -> bool:
    try:
        "━─…".encode(sys.stderr.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second of one part.  `headroom`: this speed divided by that of the model."""

    what: str
    tokens: int
    seconds: float
    model_tokens_per_second: float | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def headroom(self) -> float | None:
        return (
            self.tokens_per_second / self.model_tokens_per_second
            if self.model_tokens_per_second
            else None
        )


def preparation_speed(make: "Callable[[], list[Store]]", *, model: float | None = None) -> Speed:
    """Measure `make`, which prepares part of the data without the cache."""
    begun = time.perf_counter()
    tokens = sum(store.counts.tokens for store in make())
    seconds = time.perf_counter() - begun
    return Speed(what="preparation", tokens=tokens, seconds=seconds, model_tokens_per_second=model)


def loading_speed(loader: "Loader", *, seconds: float, model: float | None = None) -> Speed:
    """Read batches for `seconds`, or to the end of the run; the first batch, which opens files, is not counted."""
    batches = iter(loader)
    next(batches)
    tokens = 0
    begun = time.perf_counter()
    for batch in batches:
        spans = batch.rows.spans
        tokens += int((spans["stop"] - spans["start"]).sum())
        if time.perf_counter() - begun > seconds:
            break
    return Speed(
        what="loader",
        tokens=tokens,
        seconds=time.perf_counter() - begun,
        model_tokens_per_second=model,
    )
