"""Who runs the tasks?  Processes of this machine; whoever is free gets the next one, so nobody waits for the slowest.

The work is sent once per process (or inherited, where it forks); a task and its result are a few numbers.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from operator import length_hint
from typing import Any

from penstock.engines.cores import num_cores
from penstock.engines.pool import Pool
from penstock.engines.worker import do
from penstock.errors import StoreError
from penstock.types import Task

_PAUSE = 0.05  # seconds until somebody who had no task for us is asked again

_BEGUN, _NO_MORE = object(), object()

START_METHODS = ("fork", "spawn")


class LocalEngine:
    """`num_proc` processes (None: the cores there are).  One process is this one, unless `inline` is False."""

    def __init__(self, num_proc: int | None = None, *, start_method: str | None = None, inline: bool = True) -> None:
        if num_proc is not None and (not hasattr(num_proc, "__index__") or isinstance(num_proc, bool) or num_proc < 1):
            raise StoreError(f"num_proc is {num_proc!r}, expected a whole number of at least 1 (or None for all cores)")
        # fork starts in milliseconds and shares the loaded tokenizer; elsewhere it is unsafe or missing
        self.start_method = start_method or ("fork" if sys.platform == "linux" else "spawn")
        if self.start_method not in START_METHODS:
            raise StoreError(f"start_method is {start_method!r}, expected one of {', '.join(START_METHODS)}")
        self.num_proc = num_proc or num_cores()
        self.inline = inline

    def run(
        self,
        work: Callable[[Task], Any],
        tasks: Iterable[Task | None],
        *,
        told: Callable[[Task, Any], object] | None = None,
    ) -> Iterator[Any]:
        """Results as they finish.  The first error stops the rest and is raised here.

        tasks: asked for one at a time, when a process is free; None means nothing just now, ask again.
        told: hears the notes of work that is a generator.
        Processes start before this returns, so in the caller's thread.
        """
        num_proc = min(self.num_proc, length_hint(tasks, self.num_proc))
        if self.inline and num_proc <= 1:
            return _here(work, tasks, told)
        pool = Pool(work, start_method=self.start_method)
        try:
            for _ in range(max(1, num_proc)):
                pool.grow()
        except BaseException:
            pool.stop()
            raise
        return Results(pool, _there(pool, iter(tasks), told))

    def __repr__(self) -> str:
        return f"LocalEngine({self.num_proc})"


class Results(Iterator[Any]):
    """Results as they come.  Letting go of them stops the pool, and so does `close`, from any thread."""

    def __init__(self, pool: Pool, results: Generator[Any, None, None]) -> None:
        self._pool, self._results = pool, results
        next(results)  # up to the first `yield`: from here on, its end is the pool's

    def __next__(self) -> Any:
        return next(self._results)

    def close(self) -> None:
        self._pool.is_halted = True
        with contextlib.suppress(ValueError):  # another thread waits for a result just now, and will stop there
            self._results.close()


def _here(work: Callable[[Any], Any], tasks: Iterable[Any], told: Callable[[Any, Any], object] | None) -> Iterator[Any]:
    for task in tasks:
        if task is None:
            time.sleep(_PAUSE)
            continue
        yield do(work, task, partial(told, task) if told is not None else _nobody)


def _nobody(note: Any) -> None: ...


def _there(pool: Pool, tasks: Iterator[Any], told: Callable[[Any, Any], object] | None) -> Generator[Any, None, None]:
    """Feed idle workers, hand out what they bring back."""
    more = True
    try:
        yield _BEGUN
        while not pool.is_halted:
            asked = None
            while more and (worker := pool.idle()) is not None:
                asked = next(tasks, _NO_MORE)
                more = asked is not _NO_MORE
                if asked is None or not more:
                    break
                pool.give(worker, asked)
            busy = any(worker.task is not None for worker in pool.workers)
            if not busy and not more:
                return
            for worker, kind, value in pool.hear(_PAUSE if more and asked is None and pool.idle() else None):
                if kind == "note" and told is not None and worker.task is not None:
                    told(worker.task[0], value)
                elif kind == "error":
                    raise value
                elif kind == "done":
                    yield value
    finally:
        pool.stop()
