"""A Loader as a dataset: of W processes of torch's DataLoader, worker w makes steps w, w + W, …, so the order is that of one process.

Every worker follows the whole plan, which is cheap, and reads only the tokens of its steps.  Batches that were made but not delivered are
not counted anywhere, so they are made again after a resume.
"""

import multiprocessing
import multiprocessing.context
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from penstock.errors import PlanError
from penstock.loader.batch import Batch
from penstock.loader.state import Cursor, make_state, read_state
from penstock.loader.world import check_rank
from penstock.plan.plan import NumberedStep

if TYPE_CHECKING:
    from penstock.loader.loader import Loader


def _refuse_stacking(batches: list[Batch], **_: Any) -> Any:
    """What torch's default collate function does with our batches, when a DataLoader has a batch_size."""
    raise PlanError(
        f"the DataLoader would stack {len(batches)} batches into one: pass batch_size=None, and set the Loader's batch_size"
    )


default_collate_fn_map[Batch] = _refuse_stacking


def start_method(loader: "Loader") -> str | None:
    """How workers start: without a fork where what brings shards here would not work after one; None is torch's choice."""
    is_safe = all(supply.fork_safe for supply in loader.parts.supplies)
    return None if is_safe else "spawn"


class Steps(IterableDataset):  # type: ignore[misc]  # torch is not type-checked
    """The batches of a loader as a dataset, for torch's DataLoader (batch_size=None) and torchdata's StatefulDataLoader.

    The first iteration starts where the loader was when this was made; each one after it is the next pass, or the epoch that
    `set_epoch` chose, also in workers that stay alive.
    """

    def __init__(self, loader: "Loader") -> None:
        self.loader = loader
        # the process that uses the memory pins it: a worker has no device
        self.form = replace(loader.form, pin_memory=False)
        self._start = loader.run.start_of_next_loop()
        # Shared by all workers: (epoch, calls of set_epoch less one), and the iteration that any worker began last: its torch seed, its
        # number in that worker, the calls of set_epoch before it, and its cursor (epoch, block, row, rows, step, pass_step).
        self._epoch = torch.full((2,), -1, dtype=torch.int64).share_memory_()
        self._begun = torch.full((9,), -1, dtype=torch.int64).share_memory_()
        self._lock = multiprocessing.get_context(start_method(loader)).Lock()
        self._is_sendable = start_method(loader) is not None  # the lock, to a spawned process
        self._loops = 0  # iterations begun in this process
        self._received_by = 0  # the process that this was sent to as it started; 0: it was not

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch."""
        self._epoch += torch.tensor([epoch - int(self._epoch[0]), 1])

    def __len__(self) -> int:
        """Batches of the iteration that was begun last, or of the first one."""
        left = self.loader.run.steps_after(self._last() or self._start)
        if left is None:
            raise TypeError("a dataset of an endless loader (epochs=None) has no length")
        return left

    def __iter__(self) -> Iterator[Any]:
        return _Share(self)

    def begin(self) -> Cursor:
        """Return where the iteration begins that this process begins now.

        The first worker to begin it decides; the others join, however late they are.  An iteration is known by the seed that torch draws
        for it and, as workers that stay alive keep theirs, by how many this process has begun.
        """
        info = get_worker_info()
        is_spawned_worker = info is not None and self._received_by == os.getpid()
        if (
            not is_spawned_worker
        ):  # it has no process group; the process that started it has checked
            check_rank(self.loader.rank_info)
        seed = info.seed - info.id if info else -1
        self._loops = self._loops + 1
        with self._lock:
            known_seed, known_loops, known_calls = self._begun[:3].tolist()
            last = self._last()
            if last is not None and seed == known_seed and self._loops <= known_loops:
                return last
            cursor = self._start if last is None else self.loader.run.next_loop(last)
            epoch, calls = self._epoch.tolist()
            if calls > known_calls and epoch != cursor.position.epoch:
                cursor = cursor.begin_pass(epoch)
            self._write(seed, cursor)
        return cursor

    def resume(self, cursor: Cursor) -> None:
        """Continue the current iteration at `cursor`, as a state says."""
        with self._lock:
            self._write(int(self._begun[0]), cursor)

    def _write(self, seed: int, cursor: Cursor) -> None:
        self._begun.copy_(
            torch.tensor([seed, self._loops, int(self._epoch[1]), *cursor.numbers().values()])
        )

    def _last(self) -> Cursor | None:
        numbers = self._begun[3:].tolist()
        return None if numbers[0] < 0 else Cursor.of(*numbers)

    def __getstate__(self) -> dict[str, Any]:
        """A lock is sent only to a process that is being started: a copy gets its own.

        A lock for forked processes cannot be sent to spawned ones.  Only they show that they are spawned (multiprocessing_context= of
        the DataLoader), so the first one that is sent this exchanges the lock, before any of them uses it.
        """
        is_sent = multiprocessing.context.get_spawning_popen() is not None
        if not is_sent:
            return {**self.__dict__, "_lock": None, "_received_by": 0}
        check_rank(self.loader.rank_info)
        if not self._is_sendable:
            self._lock = multiprocessing.get_context("spawn").Lock()
            self._is_sendable = True
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._lock is None:
            self._lock = multiprocessing.get_context(start_method(self.loader)).Lock()
            self._is_sendable = start_method(self.loader) is not None
        else:
            self._received_by = os.getpid()


class _Share(Iterator[Any]):
    """One worker's share of an iteration.  Its state is what torchdata keeps for each worker."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        info = get_worker_info()
        self._worker: int = info.id if info else 0
        self._workers: int = info.num_workers if info else 1
        # the next batch comes so many steps after the cursor
        self._cursor = steps.begin()
        self._passed = self._worker
        self._made: Iterator[tuple[Batch, NumberedStep]] | None = None

    def __next__(self) -> Any:
        """Return this worker's next batch."""
        if self._made is None:
            loader = self._steps.loader
            run = replace(loader.run, cursor=self._cursor)
            pipeline = loader.parts.pipeline(
                run, loader.world, loader.added_stages, form=self._steps.form
            )
            self._made = pipeline.batches(run, prefetch=0, passed=self._passed, every=self._workers)
        batch, numbered = next(self._made)
        self._cursor = Cursor(
            position=numbered.step.after, step=batch.step + 1, pass_step=self._cursor.pass_step
        )
        self._passed = self._workers - 1
        return batch.delivered

    def state_dict(self) -> dict[str, Any]:
        state = make_state(self._steps.loader.plan, self._cursor)
        return {
            "worker": self._worker,
            "workers": self._workers,
            "passed": self._passed,
            "loader": state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (state["worker"], state["workers"]) != (self._worker, self._workers):
            raise PlanError(
                f"the state is of worker {state['worker']} of {state['workers']}, this is worker {self._worker} of "
                f"{self._workers}; resume with as many workers, or save the state of the Loader, which does not depend on workers"
            )
        self._cursor, self._passed = (
            read_state(state["loader"], self._steps.loader.plan),
            state["passed"],
        )
        self._steps.resume(self._cursor)
        self._made = None
