"""Worker processes, by `multiprocessing`.  Imported only where processes start: it takes 20 ms."""

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any

from penstock.errors import StoreError
from penstock.types import PAUSE, OnNote, run_task

_POLL_SECONDS = 0.5  # between checks whether the results were closed, or the parent has died
_GRACE_SECONDS = 3.0  # for a worker to clean up before it is killed
_NO_MORE = object()
_CLOSED = (EOFError, BrokenPipeError, ConnectionResetError)


@dataclass(slots=True)
class _Worker:
    """One process, its pipe, and its current task."""

    process: BaseProcess
    pipe: connection.Connection
    task: tuple[Any] | None = None
    note: Any = None  # the last one about its task


class TaskResults(Iterator[Any]):
    """Results of tasks, as workers finish them.  Subclasses set `_stop`, which ends the workers, when all is set up."""

    def __init__(
        self, work: Callable[[Any], Any], tasks: Iterator[Any], on_note: OnNote[Any] | None
    ) -> None:
        self._work = work
        self._tasks = tasks
        self._on_note = on_note
        self._has_more = True
        self._is_closed = False
        self._done: deque[Any] = deque()
        self._lock = threading.Lock()  # held by a thread that waits for a result

    def __next__(self) -> Any:
        with self._lock:
            try:
                while self._is_closed or not self._done:
                    if self._is_closed or not self._advance():
                        raise StopIteration
                return self._done.popleft()
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """End the workers, from any thread."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):  # else the thread that waits for a result ends them
            try:
                self._end()
            finally:
                self._lock.release()

    def _advance(self) -> bool:
        """Give tasks, and wait for messages of workers; return False if all tasks are done."""
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def _describe(self, task: Any, note: Any) -> str:
        return str(getattr(self._work, "describe", lambda task, note: f"task {task!r}")(task, note))


class Results(TaskResults):
    """Start workers, give each idle one a task, and yield results.  Deleting this ends the workers; so does `close`."""

    def __init__(
        self,
        work: Callable[[Any], Any],
        tasks: Iterator[Any],
        on_note: OnNote[Any] | None,
        start_method: str,
        num_proc: int,
    ) -> None:
        super().__init__(work, tasks, on_note)
        self._workers: list[_Worker] = []
        self._stop = weakref.finalize(self, _stop, self._workers, os.getpid())
        atexit.register(self._stop)  # before multiprocessing waits for its children
        try:
            sent = work if start_method == "fork" else _pickled(work)
            for _ in range(num_proc):
                self._workers.append(_start_worker(sent, start_method))
        except BaseException:
            self._end()
            raise

    def _advance(self) -> bool:
        has_none = self._give_tasks()
        if not self._has_more and all(each.task is None for each in self._workers):
            return False
        self._receive(PAUSE if has_none else _POLL_SECONDS)
        return True

    def _end(self) -> None:
        self._is_closed = True
        self._stop()
        atexit.unregister(self._stop)

    def _give_tasks(self) -> bool:
        """Give tasks to idle workers; return whether one stays idle because no task is ready."""
        for each in self._workers:
            if each.task is None and self._has_more and not self._is_closed:
                task = next(self._tasks, _NO_MORE)
                if task is None:
                    return True
                self._has_more = task is not _NO_MORE
                if self._has_more:
                    each.task = (task,)
                    each.note = None
                    with contextlib.suppress(*_CLOSED):  # it has died; `_receive` finds out why
                        each.pipe.send(each.task)
        return False

    def _receive(self, timeout: float) -> None:
        """Wait for messages of workers; raise the error of a task, and StoreError if a worker has died."""
        ready = connection.wait([each.pipe for each in self._workers], timeout)
        for each in self._workers:
            # A pipe stays open while another process holds a copy of its end, so ask for the process as well.
            if each.pipe not in ready and (
                ready or each.process.exitcode is None or each.pipe.poll(0)
            ):
                continue
            try:
                kind, value = each.pipe.recv() if each.pipe in ready else ("died", None)
            except _CLOSED:
                kind = "died"
                value = None
            if kind == "note":
                each.note = value
                if self._on_note is not None and each.task is not None:
                    self._on_note(each.task[0], value)
            elif kind == "done":
                each.task = None
                self._done.append(value)
            else:
                raise value or self._death(each)

    def _death(self, dead: _Worker) -> StoreError:
        dead.process.join(_GRACE_SECONDS)  # its pipe closes before it has ended
        task = "nothing yet" if dead.task is None else self._describe(dead.task[0], dead.note)
        return StoreError(
            f"a worker process {_cause_of_death(dead.process.exitcode)} while it worked on {task}; what is finished is "
            f"kept: run again, with a smaller num_proc if memory ran out, or with num_proc=1 to see it happen in this process",
            code="worker_died",
        )


def _start_worker(work: Any, start_method: str) -> _Worker:
    context: Any = multiprocessing.get_context(start_method)
    ours, theirs = context.Pipe(duplex=True)
    process = context.Process(target=_main, args=(theirs, work, os.getpid()), daemon=False)
    with (
        warnings.catch_warnings(),
        contextlib.nullcontext() if start_method == "fork" else _hidden_main(),
    ):
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # fork next to threads: the worker uses none of them
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _stop(workers: list[_Worker], owner: int) -> None:
    """End all workers: ask first, then kill those that still run."""
    if os.getpid() != owner:  # a forked process has a copy of the list, not of the workers
        return
    ended = [*workers]
    workers.clear()
    try:
        for each in ended:
            with contextlib.suppress(OSError):
                each.pipe.send(None)
            each.process.terminate()
        until = time.monotonic() + _GRACE_SECONDS
        for each in ended:
            each.process.join(max(0, until - time.monotonic()))
    finally:  # also at a second Ctrl-C
        for each in ended:
            each.process.kill()
            each.process.join()
            each.pipe.close()


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Keep `multiprocessing` from running the user's script again in a spawned worker: it needs no `__main__` guard."""
    names = vars(sys.modules["__main__"])
    kept: dict[str, Any] = {
        name: names.pop(name) for name in ("__spec__", "__file__") if name in names
    }
    names["__spec__"] = None
    try:
        yield
    finally:
        names.update(kept)


def _pickled(work: Callable[[Any], Any]) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(work))
    except Exception as error:
        raise _unsendable(error) from error


def _unsendable(reason: object) -> StoreError:
    return StoreError(
        f"the work cannot be sent to a worker process: {reason}; a worker does not run your script or notebook: move the "
        f"functions and classes that it needs into a module, use start_method='fork', or pass num_proc=1",
        code="not_sendable",
    )


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return "closed its pipe" if exit_code is None else f"ended with exit code {exit_code}"
    if -exit_code == signal.SIGKILL:
        return "was killed by signal 9, probably out of memory,"
    names = {known.value: known.name for known in signal.Signals}
    return f"crashed with signal {-exit_code} ({names.get(-exit_code, 'no name')})"


class _Stop(BaseException):
    """Raised during a task when the parent needs no more results, so that `finally` blocks clean up."""


def _main(pipe: connection.Connection, work: Any, parent: int) -> None:
    """Run as a worker.  `work` is pickled if the process was spawned."""

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.set_wakeup_fd(-1)  # belongs to an event loop of the parent
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # There is one process per core, and a thread pool of the parent does not survive a fork.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with contextlib.suppress(_Stop, *_CLOSED):
        try:
            work = ForkingPickler.loads(work) if isinstance(work, bytes) else work
        except Exception as error:
            pipe.send(("error", _unsendable(f"{type(error).__name__}: {error}")))
        else:
            _serve(pipe, work)


def _serve(pipe: connection.Connection, work: Callable[[Any], Any]) -> None:
    """Do tasks until the parent sends None."""
    is_busy = False

    def stop(number: int, frame: FrameType | None) -> None:
        # A scheduler sends SIGTERM to the whole group, and the parent may want to go on.  During a task the parent
        # sends nothing but None.
        if is_busy and pipe.poll(0):
            raise _Stop

    signal.signal(signal.SIGTERM, stop)
    while (task := pipe.recv()) is not None:
        is_busy = True
        try:
            answer = ("done", run_task(work, task[0], lambda task, note: pipe.send(("note", note))))
        except (_Stop, *_CLOSED):
            raise
        except BaseException as error:  # SystemExit too: the parent decides
            answer = ("error", picklable(error))
        finally:
            is_busy = False
        try:
            pipe.send(answer)
        except _CLOSED:
            raise
        except Exception as error:
            pipe.send(
                ("error", StoreError(f"a result cannot be sent from its worker process: {error}"))
            )


def picklable(error: BaseException) -> BaseException:
    """Return the error with the worker's traceback as a note, or a StoreError with its text if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"in worker process {os.getpid()}:\n{text}")
        if not isinstance(error, Exception):
            raise TypeError("would end the parent")
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return StoreError(f"a task failed with {type(error).__name__}: {error}\n{text}")
    return error
