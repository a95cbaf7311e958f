"""Is every task done once, wherever it runs, and is a dead worker an error instead of a wait?"""

import os
import signal
import time
from pathlib import Path

import pytest

from penstock.engines import LocalEngine
from penstock.engines.local import num_cores
from penstock.errors import StoreError, TemplateError


def double(task: int) -> tuple[int, int]:
    return 2 * task, os.getpid()


def uneven(task: int) -> tuple[int, int]:
    time.sleep(0.5 if task == 0 else 0.005)
    return task, os.getpid()


def fail_at_three(task: int) -> int:
    if task == 3:
        raise TemplateError("row 3 is bad", record=3)
    return task


def die_at_three(task: int) -> int:
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


class Leave:
    """Work with a state of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, task: int) -> int:
        (self.folder / str(task)).touch()
        return task


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 50])
def test_every_task_is_done_once(num_tasks: int, start_method: str, tmp_path: Path) -> None:
    engine = LocalEngine(3, start_method=start_method)
    assert sorted(engine.run(Leave(tmp_path), range(num_tasks))) == list(range(num_tasks))
    assert len(list(tmp_path.iterdir())) == num_tasks


def test_one_process_is_this_process() -> None:
    assert list(LocalEngine(1).run(double, [1, 2])) == [(2, os.getpid()), (4, os.getpid())]


def test_a_slow_task_does_not_hold_up_the_others() -> None:
    results = list(LocalEngine(2).run(uneven, range(40)))
    slow = next(pid for task, pid in results if task == 0)
    assert sum(pid == slow for _, pid in results) < 10
    assert sorted(task for task, _ in results) == list(range(40))


@pytest.mark.parametrize("num_proc", [1, 2])
def test_an_error_in_a_task_is_raised_as_it_is(num_proc: int) -> None:
    with pytest.raises(TemplateError, match="row 3 is bad") as caught:
        list(LocalEngine(num_proc).run(fail_at_three, range(10)))
    assert caught.value.record == 3


@pytest.mark.timeout(30)
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_dead_worker_is_an_error(start_method: str) -> None:
    with pytest.raises(StoreError, match=r"a worker process died .* run again"):
        list(LocalEngine(2, start_method=start_method).run(die_at_three, range(10)))


def test_the_number_of_processes_is_checked() -> None:
    with pytest.raises(StoreError, match="num_proc is 0, expected at least 1"):
        LocalEngine(0)
    assert LocalEngine().num_proc == num_cores() >= 1
