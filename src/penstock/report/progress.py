"""Show work under way: a bar on a terminal, a line every few seconds in a log, or nothing.

Always on stderr, so that stdout stays the program's own; and nothing for work that takes only a moment.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.errors import StoreError
from penstock.report.escape import escape
from penstock.store.progress import Progress, Show

if TYPE_CHECKING:
    from rich.progress import TaskID

_FIRST_SECONDS = 2.0  # nobody wants to be told about what takes less
_LINE_SECONDS = 10.0
_BAR_SECONDS = 0.1

HOW = ("auto", "plain", "none")


@contextlib.contextmanager
def showing(how: str | Callable[[Progress], object]) -> Iterator[Show | None]:
    """What to call with the progress; what is on the screen is cleared up at the end."""
    if callable(how):
        yield how
        return
    if how not in HOW:
        raise StoreError(f"progress is {how!r}, expected one of {', '.join(map(repr, HOW))}, or a function")
    if how == "none":
        yield None
    elif how == "auto" and sys.stderr is not None and sys.stderr.isatty():
        bar = _Bar()
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield _Lines()


@contextlib.contextmanager
def stages(how: str) -> Iterator[Callable[[str], object]]:
    """What to call with the name of each stage of work that has no rows to count.

    On a terminal the stage is shown until the next one begins; in a log each stage is a line with the seconds so far.
    """
    if how == "none":
        yield lambda stage: None
        return
    begun, is_terminal = time.monotonic(), sys.stderr is not None and sys.stderr.isatty()

    def show(stage: str) -> None:
        seconds = round(time.monotonic() - begun)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a closed stream must not stop the work
            sys.stderr.write(f"\r\x1b[K{stage} …" if is_terminal else f"{stage} … ({seconds} s)\n")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if is_terminal:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


class _Lines:
    """For logs: plain text, not more often than somebody would read it."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._next = self._begun + _FIRST_SECONDS
        self._said = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now < self._next and not (progress.is_done and self._said):
            return
        self._next, self._said = now + _LINE_SECONDS, True
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a closed stream must not stop the work
            sys.stderr.write(f"{escape(progress)}\n")
            sys.stderr.flush()


class _Bar:
    """For terminals."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=Console(file=sys.stderr),
            auto_refresh=False,
            transient=True,
        )
        self._begun = time.monotonic()
        self._drawn = 0.0
        self._task: TaskID | None = None

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._begun < _FIRST_SECONDS / 4 or now - self._drawn < _BAR_SECONDS:
            return
        self._drawn = now
        numbers = str(progress).removeprefix(f"{progress.name}: ")
        if self._task is None:
            self._bars.start()
            self._task = self._bars.add_task(escape(progress.name), total=progress.num_rows, numbers=numbers)
        self._bars.update(self._task, completed=progress.rows, numbers=numbers, refresh=True)

    def close(self) -> None:
        if self._task is not None:
            self._bars.stop()
