"""How are batches made ahead?  A thread runs an iterator up to `depth` steps in advance; order is the iterator's own."""

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

Made = TypeVar("Made")

_POLL = 0.2  # seconds between looks at whether anybody still wants the next one


def read_ahead(made: Iterator[Made], depth: int) -> Generator[Made, None, None]:
    """`made`, computed ahead by a thread that ends with the consumer; an error appears where it would have without the thread."""
    if depth < 1:
        yield from made
        return
    ready: queue.Queue[tuple[bool, Made | BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[bool, Made | BaseException | None]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=_POLL)
            except queue.Full:
                continue
            return True
        return False

    def run() -> None:
        try:
            for value in made:
                if not put((True, value)):
                    return
            put((False, None))
        except BaseException as error:  # handed to the consumer, who raises it
            put((False, error))

    thread = threading.Thread(target=run, name="penstock-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            more, value = ready.get()
            if not more:
                if isinstance(value, BaseException):
                    raise value
                return
            yield value  # type: ignore[misc]  # `more` says that it is a Made
    finally:
        stopped.set()
        thread.join()
