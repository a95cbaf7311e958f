"""Is every task done once, wherever it runs, and is a dead worker an error instead of a wait?"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from typing import Any

import pytest

from penstock.engines import LocalEngine, num_cores
from penstock.errors import StoreError, TemplateError

METHODS = pytest.mark.parametrize("start_method", ["fork", "spawn"])


def double(task: int) -> tuple[int, int]:
    return 2 * task, os.getpid()


def uneven(task: int) -> tuple[int, int]:
    time.sleep(0.5 if task == 0 else 0.005)
    return task, os.getpid()


def sleep(task: float) -> None:
    time.sleep(task)


def fail_at_three(task: int) -> int:
    if task == 3:
        raise TemplateError("row 3 is bad", record=3)
    return task


def die_of(task: str) -> str:
    match task:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            faulthandler.disable()
            ctypes.string_at(0)
        case "exit":
            os._exit(123)
        case "system exit":
            sys.exit(5)
    return task


class Leave:
    """Work with a state of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, task: int) -> int:
        (self.folder / str(task)).touch()
        return task


class Notes:
    """Work that says how far it is, and dies at one place."""

    def __init__(self, fatal: int = -1) -> None:
        self.fatal = fatal

    def __call__(self, task: int) -> Generator[int, None, int]:
        for step in range(3):
            yield 10 * task + step
            if 10 * task + step == self.fatal:
                os._exit(9)
        return -task

    def describe(self, task: int, note: Any) -> str:
        return f"number {task} at {note}"


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("alone")


def fail_oddly(task: int) -> Any:
    if task == 1:
        raise Unpicklable(1, 2)
    return (lambda: task) if task == 2 else task


@METHODS
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 50])
def test_every_task_is_done_once(num_tasks: int, start_method: str, tmp_path: Path) -> None:
    engine = LocalEngine(3, start_method=start_method)
    assert sorted(engine.run(Leave(tmp_path), range(num_tasks))) == list(range(num_tasks))
    assert len(list(tmp_path.iterdir())) == num_tasks


def test_one_process_is_this_process_unless_that_must_stay_free() -> None:
    assert list(LocalEngine(1).run(double, [1, 2])) == [(2, os.getpid()), (4, os.getpid())]
    (result,) = LocalEngine(1, inline=False).run(double, [1])
    assert result[0] == 2 and result[1] != os.getpid()
    assert list(LocalEngine(2, inline=False).run(double, [])) == []


def test_a_slow_task_does_not_hold_up_the_others() -> None:
    results = list(LocalEngine(2).run(uneven, range(40)))
    slow = next(pid for task, pid in results if task == 0)
    assert sum(pid == slow for _, pid in results) < 10
    assert sorted(task for task, _ in results) == list(range(40))


@pytest.mark.parametrize("num_proc", [1, 2])
def test_a_task_may_come_of_a_result(num_proc: int) -> None:
    """Tasks are asked for when a worker is free, and again a little later after None."""
    waiting, seen, results = [1], [], 0

    def tasks() -> Iterator[int | None]:
        while results < 5:
            yield waiting.pop() if waiting else None

    for result, _ in LocalEngine(num_proc).run(double, tasks()):
        seen.append(result)
        results += 1
        waiting.append(result)
    assert seen == [2, 4, 8, 16, 32]


@pytest.mark.parametrize("num_proc", [1, 2])
def test_notes_are_heard_on_the_way(num_proc: int) -> None:
    heard: list[tuple[int, int]] = []
    results = LocalEngine(num_proc).run(
        Notes(), [1, 2, 3], on_note=lambda task, note: heard.append((task, note))
    )
    assert sorted(results) == [-3, -2, -1]
    assert sorted(heard) == [(task, 10 * task + step) for task in (1, 2, 3) for step in range(3)]


@METHODS
@pytest.mark.parametrize("num_proc", [1, 2])
def test_an_error_in_a_task_is_raised_as_it_is(num_proc: int, start_method: str) -> None:
    with pytest.raises(TemplateError, match="row 3 is bad") as caught:
        list(LocalEngine(num_proc, start_method=start_method).run(fail_at_three, range(10)))
    assert caught.value.record == 3
    if num_proc > 1:
        assert "in fail_at_three" in caught.value.__notes__[0]  # where it was raised, over there


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_proc", [1, 2])
def test_after_an_error_there_are_no_more_results(num_proc: int) -> None:
    results = LocalEngine(num_proc).run(fail_at_three, range(10))
    with pytest.raises(TemplateError, match="row 3 is bad"):
        list(results)
    assert list(results) == []


def test_what_cannot_be_sent_back_is_an_error_with_its_text() -> None:
    with pytest.raises(
        StoreError, match=r"a task failed with Unpicklable: alone\n(.|\n)*in fail_oddly"
    ):
        list(LocalEngine(2).run(fail_oddly, [0, 1]))
    with pytest.raises(
        StoreError, match=r"a result cannot be sent from its worker process: .*lambda"
    ):
        list(LocalEngine(2).run(fail_oddly, [0, 2]))


@METHODS
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "kill",
            "was killed by signal 9, probably out of memory, while it worked on task 'kill'; .* run again",
        ),
        ("segfault", r"crashed with signal 11 \(SIGSEGV\) while it worked on task 'segfault'"),
        ("exit", "ended with exit code 123 while it worked on task 'exit'"),
        ("system exit", "a task failed with SystemExit: 5"),
    ],
)
def test_a_dead_worker_is_an_error_that_names_its_task(
    start_method: str, how: str, words: str
) -> None:
    with pytest.raises(StoreError, match=words):
        list(LocalEngine(2, start_method=start_method).run(die_of, [*"abc", how, *"def"]))
    assert no_children()


def test_the_work_puts_a_death_into_words() -> None:
    with pytest.raises(StoreError, match="exit code 9 while it worked on number 2 at 21;"):
        list(LocalEngine(2).run(Notes(fatal=21), [1, 2, 3]))


def test_letting_go_of_the_results_ends_the_workers() -> None:
    for taken in (0, 1):
        results = LocalEngine(2).run(uneven, range(100))
        for _ in range(taken):
            next(results)
        del results
        assert no_children()


@pytest.mark.timeout(60)
def test_another_thread_can_end_it() -> None:
    results = LocalEngine(2).run(sleep, [100, 100])
    waiting = threading.Thread(target=lambda: list(results))
    waiting.start()
    results.close()  # type: ignore[attr-defined]
    waiting.join()
    assert no_children() and list(results) == []


@pytest.mark.timeout(60)
def test_a_stopped_worker_is_ended_too() -> None:
    results = LocalEngine(2).run(double, iter(range(1000)))
    os.kill(next(results)[1], signal.SIGSTOP)
    results.close()
    assert no_children()


def test_threads_of_the_parent_do_not_matter() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    found: list[tuple[int, int]] = []
    inside = threading.Thread(target=lambda: found.extend(LocalEngine(2).run(double, range(20))))
    inside.start()  # the workers of a thread that is not the main one
    inside.join()
    stop.set()
    assert sorted(value for value, _ in found) == list(range(0, 40, 2)) and no_children()


def pids_of_tasks(answers: Any) -> None:
    answers.put(
        (os.getpid(), {pid for _, pid in LocalEngine(2, inline=False).run(double, range(4))})
    )


@pytest.mark.timeout(60)
def test_a_daemonic_process_which_may_have_no_children_does_the_tasks_itself() -> None:
    answers = get_context("fork").SimpleQueue()
    child = get_context("fork").Process(
        target=pids_of_tasks, args=(answers,), daemon=True
    )  # as torch starts its workers
    child.start()
    pid, pids = answers.get()
    child.join()
    assert pids == {pid}


def test_results_that_are_never_closed_do_not_keep_a_script_from_ending(tmp_path: Path) -> None:
    script = "import os\nfrom penstock.engines import LocalEngine\nresults = LocalEngine(2).run(abs, range(100))\nnext(results)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_what_cannot_be_sent_is_said_clearly() -> None:
    with pytest.raises(
        StoreError, match=r"the work cannot be sent to a worker process: .*lambda.*num_proc=1"
    ):
        list(LocalEngine(2, start_method="spawn").run(lambda task: task, [1, 2]))
    assert list(LocalEngine(2, start_method="fork").run(lambda task: task, [1, 1])) == [1, 1]


def test_settings_are_checked() -> None:
    for wrong in (0, -1, 2.5, "2", True):
        with pytest.raises(
            StoreError, match=f"num_proc is {wrong!r}, expected a whole number of at least 1"
        ):
            LocalEngine(wrong)
    with pytest.raises(
        StoreError, match="start_method is 'forkserver', expected one of fork, spawn"
    ):
        LocalEngine(2, start_method="forkserver")
    assert LocalEngine().num_proc == num_cores() >= 1


def no_children() -> bool:
    """Whether every child of this process is gone and waited for; multiprocessing keeps one helper of its own."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(
            FileNotFoundError
        ):  # a thread that has ended since the folder was listed
            found.update(int(pid) for pid in (thread / "children").read_text().split())
    return found <= {resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
