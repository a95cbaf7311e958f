"""Batches made by worker processes, in one order: worker w of W makes steps w, w + W, …; torch's DataLoader takes turns with them.

Every worker follows the whole plan, which is cheap, and reads only the tokens of its steps.  Batches that were made but not delivered are
not counted anywhere, so they are made again after a resume.
"""

import multiprocessing
import multiprocessing.context
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from penstock.errors import PlanError
from penstock.extras.remote.mirror import is_mirrored
from penstock.loader.batch import Batch
from penstock.loader.layout import pin
from penstock.loader.state import Cursor, make_state, read_state
from penstock.loader.world import check_rank
from penstock.plan.plan import Step

if TYPE_CHECKING:
    from penstock.loader.loader import Loader

_PARENT_CHECK = 1.0  # seconds between a worker's checks whether its parent is still there
_LEFT_TO_PARENT = (signal.SIGTERM, signal.SIGINT)


def _refuse_stacking(batches: list[Batch], **_: Any) -> Any:
    """What torch's default collate function does with our batches, when a DataLoader has a batch_size."""
    raise PlanError(
        f"the DataLoader would stack {len(batches)} batches into one: pass batch_size=None, and set the Loader's batch_size"
    )


default_collate_fn_map[Batch] = _refuse_stacking


def start_method(loader: "Loader") -> str | None:
    """How workers start; None is torch's choice.  This process has made requests to a bucket, so a forked worker could make none."""
    return "spawn" if any(map(is_mirrored, loader.stores)) else None


class Steps(IterableDataset):  # type: ignore[misc]  # torch is not type-checked
    """The batches of a loader as a dataset, for torch's DataLoader (batch_size=None) and torchdata's StatefulDataLoader.

    The first iteration starts where the loader was when this was made; each one after it is the next pass, or the epoch that
    `set_epoch` chose, also in workers that stay alive.
    """

    def __init__(
        self, loader: "Loader", *, start: Cursor | None = None, with_steps: bool = False
    ) -> None:
        """`with_steps`: batches come with their steps, so that the process that gets them knows how far it is."""
        self.loader = loader
        self.with_steps = with_steps
        if (
            loader.form.pin_memory
        ):  # the process that uses the memory pins it: a worker has no device
            self.loader = copy(loader)
            self.loader.form = replace(loader.form, pin_memory=False)
        self._start = start or loader.start_of_next_loop()
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
        left = self.loader.steps_after(self._last() or self._start)
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
            cursor = self._start if last is None else self.loader.next_loop(last)
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
        self._made: Iterator[tuple[Batch, Step]] | None = None

    def __next__(self) -> Any:
        """Return this worker's next batch, or it and its step with this rank's rows only: both are sent between processes."""
        if self._made is None:
            loader = self._steps.loader
            self._made = loader.made_by_worker(
                self._cursor, passed=self._passed, every=self._workers
            )
        batch, step = next(self._made)
        self._cursor = Cursor(
            position=step.after, step=batch.step + 1, pass_step=self._cursor.pass_step
        )
        self._passed = self._workers - 1
        if self._steps.with_steps:
            return batch, replace(step, rows=batch.rows)
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


def make_in_processes(
    loader: "Loader", *, workers: int, ahead: int
) -> Generator[tuple[Batch, Step], None, None]:
    """Yield the batches from the loader's position on, made by `workers` processes that are each `ahead` steps ahead."""
    made = DataLoader(
        Steps(loader, start=loader._cursor, with_steps=True),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=max(ahead, 1),
        multiprocessing_context=start_method(loader),
        worker_init_fn=partial(settle, owner=os.getpid()),
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # its seeds are not taken from the trainer's random numbers
    )
    # A worker inherits blocked signals, so a signal to all processes does not kill it before `settle` runs.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_PARENT)
    try:
        turns = iter(made)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        for batch, step in turns:
            arrays = batch.arrays
            if loader.form.pin_memory and arrays is batch:  # what a user's collate made is theirs
                arrays = pin(batch)
            yield Batch(arrays, batch.share, loader.stores, batch.step, batch.trained), step
    finally:
        del turns  # the last reference: the workers stop and are waited for


def settle(worker: int, *, owner: int) -> None:
    """Prepare a worker: leave signals to its owner, which may still need to save, and exit when the owner is gone or ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    can_wait = hasattr(signal, "sigtimedwait")
    if can_wait:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # the thread below receives it
    parent = os.getppid()  # the owner, or a server that forks for it

    def watch() -> None:
        while os.getppid() == parent:
            if not can_wait:
                time.sleep(_PARENT_CHECK)
            elif (
                received := signal.sigtimedwait([signal.SIGTERM], _PARENT_CHECK)
            ) and received.si_pid == owner:
                os._exit(0)  # the owner sends this at its exit, and would otherwise wait for ever
        os._exit(1)

    threading.Thread(target=watch, name=f"penstock-worker-{worker}", daemon=True).start()
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK, [signal.SIGINT, *([] if can_wait else [signal.SIGTERM])]
    )


def _as_it_is(made: Any) -> Any:
    """Return the batch unchanged: torch's own function would rebuild it as a plain dict."""
    return made
