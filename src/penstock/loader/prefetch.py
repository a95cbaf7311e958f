"""Batches made ahead: a thread runs an iterator up to `depth` values in advance, in the iterator's own order."""

import os
import queue
import threading
import time
from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any, TypeVar

from penstock.errors import PlanError

Made = TypeVar("Made")

_AWAY = 1e-3  # seconds: what two threads lose by waking each other, on two cores with a cache each


def growing(values: Iterator[Made], most: int) -> Iterator[list[Made]]:
    """Yield values in lists of 1, 2, 4 … up to `most`; an error comes after the values before it."""
    size = 1
    is_last = False
    while not is_last:
        group: list[Made] = []
        try:
            group.extend(islice(values, size))
        except Exception:
            if group:
                yield group
            raise
        is_last = len(group) < size  # now: the consumer may empty the list
        if group:
            yield group
        size = min(2 * size, most)


def one_by_one(lists: Generator[list[Made], None, None]) -> Generator[Made, None, None]:
    """Yield the values of lists; closing this closes `lists`."""
    try:
        for values in lists:
            values.reverse()
            while values:
                yield values.pop()  # keep no reference: memory that the consumer releases can be used again
    finally:
        lists.close()


def read_ahead(values: Iterator[Made], depth: int) -> Generator[Made, None, None]:
    """Yield from `values`, computed ahead by a thread that ends with the consumer; errors come where they would without the thread.

    A consumer that comes back at once waits for the thread anyway, and the two slow each other down: then values are computed in the
    consumer's thread, until it takes its time again.
    """
    if depth < 1:
        yield from values
        return
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()  # (value, None) or (None, error)
    requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: make one more; False: stop
    stopped = threading.Event()

    def run() -> None:
        while requests.get() and not stopped.is_set():
            ready.put(_take(values))

    owner = os.getpid()
    thread = threading.Thread(target=run, name="penstock-read-ahead", daemon=True)
    thread.start()
    requests.put(True)
    # open requests, during which only the thread uses `values`; whether reading ahead pays
    asked = 1
    pays = True
    try:
        while True:
            refuse_fork(owner)
            value, error = ready.get() if asked else _take(values)
            asked -= asked > 0
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            while pays and asked < depth:  # for the time while the consumer is away
                requests.put(True)
                asked += 1
            begun = time.perf_counter()
            yield value
            del value  # keep no reference: memory that the consumer releases can be used again
            pays = time.perf_counter() - begun > _AWAY
    finally:
        stopped.set()
        requests.put(False)
        if os.getpid() == owner:
            thread.join()


def refuse_fork(owner: int) -> None:
    """Refuse to go on in another process than `owner`: a forked process does not have the threads, and would wait forever."""
    if os.getpid() != owner:
        raise PlanError(
            "this iteration was begun before the process forked; begin one in the child: iter(loader)"
        )


def _take(values: Iterator[Any]) -> tuple[Any, BaseException | None]:
    """Return the next value, or the error that came instead; StopIteration at the end."""
    try:
        return next(values), None
    except BaseException as error:  # the consumer raises it
        return None, error
