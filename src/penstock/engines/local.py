"""Who runs the tasks?  Processes of this machine that take the next small task when they are done with one."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any

from penstock.errors import StoreError
from penstock.types import Result, Task

_AHEAD = 2  # tasks handed out per process: one under way, one waiting, so that nobody idles and nobody hoards


class LocalEngine:
    """`num_proc` processes; 1 runs in this one.  The work is sent once per process, a task is a few numbers."""

    def __init__(self, num_proc: int | None = None, *, start_method: str | None = None) -> None:
        if num_proc is not None and num_proc < 1:
            raise StoreError(f"num_proc is {num_proc}, expected at least 1 (or None for all cores)")
        self.num_proc = num_proc or num_cores()
        # fork starts in milliseconds and shares the loaded tokenizer; elsewhere it is unsafe or missing
        self.start_method = start_method or ("fork" if sys.platform == "linux" else "spawn")

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Results as they finish.  The first error stops the rest and is raised here."""
        if self.num_proc == 1 or len(tasks) <= 1:
            yield from map(work, tasks)
            return
        pool = ProcessPoolExecutor(
            max_workers=min(self.num_proc, len(tasks)),
            mp_context=multiprocessing.get_context(self.start_method),
            initializer=_begin,
            initargs=(work,),
        )
        try:
            yield from _finished(pool, tasks, self.num_proc * _AHEAD)
        except BrokenProcessPool as error:
            raise StoreError(
                "a worker process died (killed, out of memory, or crashed) before its task was done; "
                "what is finished is kept: run again, with a smaller num_proc if memory ran out"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def __repr__(self) -> str:
        return f"LocalEngine({self.num_proc})"


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _finished(pool: ProcessPoolExecutor, tasks: Sequence[Any], ahead: int) -> Iterator[Any]:
    rest = iter(tasks)
    running: set[Future[Any]] = {pool.submit(_do, task) for task in islice(rest, ahead)}
    while running:
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()
            running.update(pool.submit(_do, task) for task in islice(rest, 1))


_work: Callable[[Any], Any] | None = None  # in a worker process: what it does with each task


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work


def _do(task: Any) -> Any:
    assert _work is not None
    return _work(task)
