"""Who holds the worker processes?  One pipe each; who dies is noticed, and nobody outlives the pool."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe as make_pipe
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from penstock.engines.worker import Pipe, Stop, serve, settle
from penstock.errors import StoreError

_LOOK = 0.5  # seconds between looks at processes whose pipe is silent
_SILENT = 60.0  # seconds without a word from a worker until a warning
_GRACE = 3.0  # seconds that a worker has for leaving things tidy

_log = logging.getLogger("penstock")


@dataclass(slots=True)
class Worker:
    """One process: its pipe, and what it is doing."""

    pid: int
    pipe: Pipe
    program: "subprocess.Popen[bytes] | None"  # None where it was forked
    task: tuple[Any] | None = None
    note: Any = None  # the last one it sent about its task
    heard: float = 0.0
    status: int | None = None  # exit code, or minus the signal, once it is gone

    def gone(self) -> bool:
        """Whether the process has ended; then `status` says how."""
        if self.status is None and self.program is not None:
            self.status = self.program.poll()
        elif self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else waits for all children of this process
                self.status = 255
            else:
                self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def signal(self, number: int) -> None:
        if not self.gone():  # a number of a process that we have not waited for is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Pool:
    """Worker processes that all do the same work.  To be used by one thread at a time."""

    def __init__(self, work: Callable[[Any], Any], *, start_method: str) -> None:
        self._work = work
        self._start_method = start_method
        self._owner = os.getpid()
        self._parcel: Any = None  # the work, ready to be sent
        self.workers: list[Worker] = []
        self.is_halted = False  # set by any thread: nobody wants more results

    def grow(self) -> None:
        """One more worker."""
        worker = self._fork() if self._start_method == "fork" else self._spawn()
        worker.heard = time.monotonic()
        self.workers.append(worker)

    def idle(self) -> Worker | None:
        return next((worker for worker in self.workers if worker.task is None), None)

    def give(self, worker: Worker, task: Any) -> None:
        worker.task, worker.note, worker.heard = (task,), None, time.monotonic()
        try:
            worker.pipe.send(("task", task))
        except (BrokenPipeError, ConnectionResetError):
            while worker.pipe.poll(0):  # it may have said why
                self._receive(worker)
            raise self._died(worker) from None

    def hear(self, timeout: float | None = None) -> list[tuple[Worker, str, Any]]:
        """Messages of the workers that have any, within `timeout` seconds; StoreError where one has died."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
            ready = connection.wait([worker.pipe for worker in self.workers], max(0.0, left))
            heard = [(worker, *self._receive(worker)) for worker in self.workers if worker.pipe in ready]
            if heard or self.is_halted or (until is not None and time.monotonic() >= until):
                return heard
            self._look()

    def _receive(self, worker: Worker) -> tuple[str, Any]:
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._died(worker) from None
        worker.heard = time.monotonic()
        if kind == "note":
            worker.note = value
        elif kind == "refused":
            raise _unsendable(value)
        elif kind in ("done", "error"):
            worker.task = None
        return kind, value

    def _look(self) -> None:
        """At processes whose pipe says nothing: its end is not seen while some other process holds a copy."""
        for worker in self.workers:
            if not worker.pipe.poll(0) and worker.gone():
                raise self._died(worker)
            if worker.task is not None and time.monotonic() - worker.heard > _SILENT:
                _log.warning(
                    "worker process %d has said nothing for %.0f s; it works on %s",
                    worker.pid, time.monotonic() - worker.heard, self._describe(worker),
                )  # fmt: skip
                worker.heard = time.monotonic()

    def _died(self, worker: Worker) -> StoreError:
        until = time.monotonic() + _GRACE
        while not worker.gone() and time.monotonic() < until:  # its pipe closes a moment before it has ended
            time.sleep(0.01)
        return StoreError(
            f"a worker process {_how(worker.status)} while it worked on {self._describe(worker)}; what is finished is kept: "
            f"run again, with a smaller num_proc if memory ran out, or with num_proc=1 to see it happen in this process"
        )

    def _describe(self, worker: Worker) -> str:
        if worker.task is None:
            return "nothing yet"
        describe = getattr(self._work, "describe", None)
        if describe is None:
            return f"task {worker.task[0]!r}"
        return str(describe(worker.task[0], worker.note))

    # Starting

    def _fork(self) -> Worker:
        ours, theirs = make_pipe(duplex=True)
        sys.stdout.flush()  # or the child would write it again
        sys.stderr.flush()
        parent, main = os.getpid(), threading.current_thread() is threading.main_thread()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: `settle` and the work see to it
            pid = os.fork()
        if pid:
            theirs.close()
            return Worker(pid=pid, pipe=ours, program=None)
        code = 1
        try:
            settle(parent, die_with_parent=main)
            ours.close()
            for worker in self.workers:  # copies would hide the end of the others' pipes
                worker.pipe.close()
            with contextlib.suppress(Exception):
                sys.stdin.close()
            sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as the process lives
            serve(theirs, self._work, parent)
            code = 0
        except Stop:
            code = 0
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # nothing of the parent's stack may go on here

    def _spawn(self) -> Worker:
        if self._parcel is None:
            try:
                self._parcel = ForkingPickler.dumps(self._work)
            except Exception as error:
                raise _unsendable(error) from error
        ours, theirs = make_pipe(duplex=True)
        main = threading.current_thread() is threading.main_thread()
        arguments = [str(theirs.fileno()), str(os.getpid()), str(int(main))]
        program = subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock.engines", *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        worker = Worker(pid=program.pid, pipe=ours, program=program)
        try:
            ours.send(sys.path)
            ours.send_bytes(self._parcel)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died(worker) from None
        return worker

    # Stopping

    def stop(self) -> None:
        """End all workers: in peace if they follow at once, and by force if they do not."""
        if os.getpid() != self._owner:  # a forked process has a copy of the object, not of the workers
            return
        workers, self.workers = self.workers, []
        try:
            for worker in workers:
                with contextlib.suppress(OSError):
                    worker.pipe.send(("end", None))
                worker.signal(signal.SIGTERM)
            until = time.monotonic() + _GRACE
            while not all(worker.gone() for worker in workers) and time.monotonic() < until:
                time.sleep(0.005)
        finally:  # also when Ctrl-C comes twice
            for worker in workers:
                worker.signal(signal.SIGKILL)
                worker.pipe.close()
            while not all(worker.gone() for worker in workers):
                time.sleep(0.005)


def _unsendable(reason: object) -> StoreError:
    return StoreError(
        f"the work cannot be sent to a worker process: {reason}; functions and classes that a script or a notebook defines "
        f"itself stay there: put them into a module of their own, use start_method='fork', or pass num_proc=1"
    )


def _how(status: int | None) -> str:
    if status is None:
        return "closed its pipe"
    if status >= 0:
        return f"ended with exit code {status}"
    if -status == signal.SIGKILL:
        return "was killed by signal 9, probably out of memory,"
    names = {known.value: known.name for known in signal.Signals}
    return f"crashed with signal {-status} ({names.get(-status, 'no name')})"
