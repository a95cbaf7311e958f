"""How are batches made ahead?  A thread runs an iterator up to `depth` turns in advance; order is the iterator's own."""

import os
import queue
import threading
import time
from collections.abc import Generator, Iterator
from typing import TypeVar

from penstock.errors import PlanError

Made = TypeVar("Made")

_AWAY = 1e-3  # seconds: what two threads lose by waking each other, on two cores with a cache each


def growing(values: Iterator[Made], most: int) -> Iterator[list[Made]]:
    """Values in lists of 1, 2, 4 … up to `most`; an error comes behind what came before it."""
    size = 1
    while True:
        found: list[Made] = []
        try:
            for _ in range(size):
                found.append(next(values))
        except StopIteration:
            if found:
                yield found
            return
        except Exception:
            if found:
                yield found
            raise
        yield found
        size = min(2 * size, most)


def one_by_one(lists: Generator[list[Made], None, None]) -> Generator[Made, None, None]:
    """Values of lists; closing it closes where they come from."""
    try:
        for values in lists:
            values.reverse()
            while values:
                yield values.pop()  # the consumer's alone now: what it lets go of can be used again
    finally:
        lists.close()


def read_ahead(made: Iterator[Made], depth: int) -> Generator[Made, None, None]:
    """`made`, computed ahead by a thread that ends with the consumer; an error appears where it would have without the thread.

    A consumer that comes back at once waits for the thread anyway, and the two hinder each other: then it is computed as it is asked
    for, until the consumer takes its time again.
    """
    if depth < 1:
        yield from made
        return
    ready: queue.SimpleQueue[tuple[bool, Made | BaseException | None]] = queue.SimpleQueue()
    wishes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: one more is wanted; False: nobody wants any more
    stopped = threading.Event()

    def run() -> None:
        try:
            while wishes.get() and not stopped.is_set():
                value = next(made)
                ready.put((True, value))
                del value  # the consumer's alone now: what it lets go of can be used again
        except StopIteration:
            ready.put((False, None))
        except BaseException as error:  # handed to the consumer, who raises it
            ready.put((False, error))

    owner = os.getpid()
    thread = threading.Thread(target=run, name="penstock-read-ahead", daemon=True)
    thread.start()
    asked, pays = (
        0,
        True,
    )  # how many the thread was asked for and has not been taken from it; it alone uses `made` meanwhile
    try:
        while True:
            if os.getpid() != owner:  # a forked process has no such thread, and would wait for it without end
                raise PlanError(
                    "this iteration was begun before the process forked; begin one in the child: iter(loader)"
                )
            while pays and asked < depth:
                wishes.put(True)
                asked += 1
            if asked:
                more, value = ready.get()
                asked -= 1
                if isinstance(value, BaseException):
                    raise value
                if not more:
                    return
            else:
                try:
                    value = next(made)
                except StopIteration:
                    return
            if pays:  # while the consumer is away
                wishes.put(True)
                asked += 1
            begun = time.perf_counter()
            yield value  # type: ignore[misc]  # `more` says that it is a Made
            del value
            pays = time.perf_counter() - begun > _AWAY
    finally:
        stopped.set()  # wishes that are still there are not granted
        wishes.put(False)
        if os.getpid() == owner:
            thread.join()
