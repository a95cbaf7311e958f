"""What does a worker process do?  Waits for a task, does it, answers; ends when its parent says so or is gone.

Forked, it begins with `serve`.  Otherwise it is `python -m penstock.engines`, which never imports the user's script: a
script needs no `__main__` guard, but what the script itself defines cannot be sent.
"""

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any

from penstock.errors import StoreError

_POLL = 1.0  # seconds between looks at whether the parent is still there
_PR_SET_PDEATHSIG = 1

Pipe = Connection  # of (kind, value) pairs: "task" and "end" come, "note", "done" and "error" go


class Stop(BaseException):
    """Raised in the middle of a task when the parent wants no more; what is half written is cleaned up on the way out."""


def do(work: Callable[[Any], Any], task: Any, tell: Callable[[Any], object]) -> Any:
    """The result of one task.  Work that is a generator yields notes on its way, and returns the result."""
    made = work(task)
    if not isinstance(made, Generator):
        return made
    while True:
        try:
            note = next(made)
        except StopIteration as end:
            return end.value
        tell(note)


def serve(pipe: "Pipe", work: Callable[[Any], Any], parent: int) -> None:
    """Do tasks until the pipe says "end", or closes, or the parent is dead."""
    busy = False

    def stop(number: int, frame: FrameType | None) -> None:
        # A scheduler sends SIGTERM to the whole group: then it is the parent who decides.  While a task runs, nothing comes
        # through the pipe but the wish to stop.
        if busy and (pipe.poll(0) or os.getppid() != parent):
            raise Stop

    def tell(note: Any) -> None:
        if os.getppid() != parent:
            raise Stop
        pipe.send(("note", note))

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(Stop, EOFError, BrokenPipeError, ConnectionResetError):
        while (task := _receive(pipe, parent)) is not None:
            busy = True
            try:
                answer = ("done", do(work, task[0], tell))
            except (Stop, BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as error:  # SystemExit too: whatever ends a task is told, and the parent decides
                answer = ("error", _sendable(error))
            finally:
                busy = False
            _send(pipe, answer)


def _receive(pipe: "Pipe", parent: int) -> tuple[Any] | None:
    while not pipe.poll(_POLL):  # the end of the pipe is not seen while some forked process holds a copy of it
        if os.getppid() != parent:
            return None
    kind, value = pipe.recv()
    return (value,) if kind == "task" else None


def _send(pipe: "Pipe", answer: tuple[str, Any]) -> None:
    try:
        pipe.send(answer)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        pipe.send(("error", StoreError(f"a result cannot be sent from its worker process: {error}")))


def _sendable(error: BaseException) -> BaseException:
    """The error itself, with the worker's traceback as a note, or its words where it does not survive the way."""
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"in worker process {os.getpid()}:\n{text}")
        if not isinstance(error, Exception):
            raise TypeError("not an error that may end the parent")
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        error = StoreError(f"a task failed with {type(error).__name__}: {error}\n{text}")
    return error


def settle(parent: int, *, die_with_parent: bool) -> None:
    """Make this process a worker: signals are the parent's business, threads of libraries nobody's."""
    if die_with_parent and sys.platform == "linux":
        # The kernel means the parent's *thread*, so only a main thread's children may ask for it.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(0)
    signal.set_wakeup_fd(-1)  # an event loop of the parent must not hear of our signals
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # One process per core works already; and a thread pool does not survive a fork.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def main(arguments: list[str]) -> None:
    """Begin as a program of one's own: pipe, parent's number, whether to die with it."""
    pipe, parent = Pipe(int(arguments[0])), int(arguments[1])
    settle(parent, die_with_parent=arguments[2] == "1")
    sys.path[:] = pipe.recv()
    try:
        work = pipe.recv()
    except Exception as error:
        pipe.send(("refused", f"{type(error).__name__}: {error}"))
        return
    pipe.send(("ready", None))
    serve(pipe, work, parent)
