"""The contract of an engine: it does every task once, passes on notes and errors, and asks again after an idle None."""

from collections.abc import Generator, Iterator
from typing import Any

from penstock.testing.same import same
from penstock.types import Engine


def check_engine(engine: Engine) -> None:
    """Run small tasks and compare the results.  The tasks are functions of this module, so that other processes find them."""
    same(sorted(engine.run(_double, range(40))), list(range(0, 80, 2)), "every task is done once")
    same(list(engine.run(_double, [])), [], "no tasks give no results")
    same(sorted(engine.run(_double, iter(range(5)))), [0, 2, 4, 6, 8], "tasks may be an iterator")
    notes: list[tuple[Any, Any]] = []
    found = sorted(
        engine.run(_noted, range(4), on_note=lambda task, note: notes.append((task, note)))
    )
    same(found, [-3, -2, -1, 0], "a task that is a generator gives its return value")
    for task in range(4):
        same(
            [note for other, note in notes if other == task],
            [0, 1, 2],
            f"the notes of task {task} arrive in order",
        )
    same(sorted(engine.run(_noted, range(2))), [-1, 0], "notes without a listener are not an error")
    results: list[int] = []
    for result in engine.run(_double, _late_tasks(results)):
        results.append(result)
    same(results, [2, 4], "a task that comes late, after None, is done")
    try:
        list(engine.run(_fail, range(6)))
    except ValueError as error:
        assert "task 3 is bad" in str(error), (
            f"the error of a task says {error}, expected its own words"
        )
    else:
        raise AssertionError("a task that raises must raise where the results are read")
    same(sorted(engine.run(_double, range(3))), [0, 2, 4], "an engine works again after an error")
    unread: Any = engine.run(_double, range(1000))
    next(iter(unread))
    getattr(unread, "close", lambda: None)()
    del unread
    same(
        sorted(engine.run(_double, range(3))),
        [0, 2, 4],
        "an engine works again after its results were left unread",
    )


def _late_tasks(results: list[int]) -> Iterator[int | None]:
    """None means that no task is ready yet: the last task exists only after the first result."""
    yield 1
    while not results:
        yield None
    yield 2


def _double(task: int) -> int:
    return 2 * task


def _noted(task: int) -> Generator[int, None, int]:
    yield from range(3)
    return -task


def _fail(task: int) -> int:
    if task == 3:
        raise ValueError("task 3 is bad")
    return task
