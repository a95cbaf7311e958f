"""Whether worker processes of this process may be forked; and one forked process that computes a value.

A library with threads of its own, such as a client of remote places, breaks in a forked child: the child would wait for threads that it
does not have.  Code that starts such threads calls `forbid_forks`, and the engine starts its workers without a fork from then on.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_is_allowed = True


def forbid_forks() -> None:
    """Have the engine spawn its workers from now on; forked children of this process inherit that."""
    global _is_allowed
    _is_allowed = False


def may_fork() -> bool:
    """Return whether forks are still allowed in this process, or in one that it was forked from."""
    return _is_allowed


@contextmanager
def computed_beside(compute: Callable[[], Any]) -> Iterator[Callable[[], Any] | None]:
    """Compute a JSON value in a forked process while the block runs, where a second core is free to do it.

    Gives a function that waits for the value and returns it: None if it could not be computed there, for whatever reason.  Gives None where
    forks are not possible, or one core would do both.
    """
    num_cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if not may_fork() or num_cores < 2:
        yield None
        return
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork next to threads: it uses none
        child = os.fork()
    if child == 0:
        _answer(compute, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:

        def wait() -> Any:
            text = answers.read()
            return json.loads(text) if text else None

        try:
            yield wait
        finally:
            with suppress(ChildProcessError):  # others may have waited for it
                os.waitpid(child, 0)


def _answer(compute: Callable[[], Any], writer: int) -> None:
    """Write the value, and end this process without a trace of the one that it was forked from."""
    try:
        text = json.dumps(compute()).encode()
        with os.fdopen(writer, "wb") as out:
            out.write(text)
    finally:
        os._exit(0)
