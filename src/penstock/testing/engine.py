"""Does an engine keep the rules?  Every task is done once, notes arrive, an error comes out, and whoever has no task yet is asked again."""

from collections.abc import Generator, Iterator
from typing import Any

from penstock.types import Engine

_MANY = 40


def check_engine(engine: Engine) -> None:
    """Runs small tasks; what they do is in this file, so that other processes find it."""
    found = sorted(engine.run(_double, range(_MANY)))
    _same(found, [2 * task for task in range(_MANY)], "every task is done once")
    _same(list(engine.run(_double, [])), [], "no tasks give no results")
    _same(sorted(engine.run(_double, iter(range(5)))), [0, 2, 4, 6, 8], "tasks may be an iterator")
    _check_notes(engine)
    _check_waiting(engine)
    _check_error(engine)
    _same(sorted(engine.run(_double, range(3))), [0, 2, 4], "an engine works again after an error")
    _check_let_go(engine)


def _check_notes(engine: Engine) -> None:
    heard: list[tuple[Any, Any]] = []
    found = sorted(engine.run(_noted, range(4), told=lambda task, note: heard.append((task, note))))
    _same(found, [0, -1, -2, -3][::-1], "work that is a generator gives what it returns")
    for task in range(4):
        _same([note for other, note in heard if other == task], [0, 1, 2], f"the notes of task {task} arrive in order")
    _same(sorted(engine.run(_noted, range(2))), [-1, 0], "notes that nobody listens to are no error")


def _check_waiting(engine: Engine) -> None:
    """None means nothing just now: the last task is there only once the first result is."""
    results: list[int] = []

    def tasks() -> Iterator[int | None]:
        yield 1
        while not results:
            yield None
        yield 2

    for result in engine.run(_double, tasks()):
        results.append(result)
    _same(results, [2, 4], "a task that comes late, after None, is done")


def _check_error(engine: Engine) -> None:
    try:
        list(engine.run(_fail, range(6)))
    except ValueError as error:
        assert "task 3 is bad" in str(error), f"the error of a task says {error}, expected its own words"
        return
    raise AssertionError("a task that raises must raise where the results are read")


def _check_let_go(engine: Engine) -> None:
    results = engine.run(_double, range(1000))
    next(iter(results))
    close = getattr(results, "close", None)
    if callable(close):
        close()
    del results
    _same(sorted(engine.run(_double, range(3))), [0, 2, 4], "an engine works again after its results were let go")


def _double(task: int) -> int:
    return 2 * task


def _noted(task: int) -> Generator[int, None, int]:
    yield from range(3)
    return -task


def _fail(task: int) -> int:
    if task == 3:
        raise ValueError("task 3 is bad")
    return task


def _same(found: Any, known: Any, law: str) -> None:
    assert found == known, f"{law}: found {str(found)[:200]}, expected {str(known)[:200]}"
