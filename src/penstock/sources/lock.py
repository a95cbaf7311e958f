"""Which threads wait for each other?  Those of one process: a forked copy begins unlocked, as whoever held it was not forked."""

import os
import threading


class ProcessLock:
    """A lock among the threads of one process.  A pickled copy is a new one."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def __enter__(self) -> None:
        if self._owner != os.getpid():
            self._begin()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["ProcessLock"], tuple[()]]:
        return ProcessLock, ()
