"""Batches made by worker processes, in one order: worker w of W makes steps w, w + W, …; torch's DataLoader takes turns with them.

Every worker walks the whole plan, which is cheap, and reads only the tokens of its own steps.  What was made and not handed over is
not counted anywhere, so it is made again after a resume.
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
from penstock.loader.batch import Batch
from penstock.loader.passes import Cursor
from penstock.loader.state import make_state, read_state
from penstock.loader.torch import pin
from penstock.plan.plan import Position, Step

if TYPE_CHECKING:
    from penstock.loader.loader import Loader

_COLUMNS = ("seed", "loops", "epoch", "block", "row", "rows", "step", "pass_step", "set_epoch")
_LOOK = 1.0  # seconds between a worker's looks at whether its parent is still there
_LEFT_TO_PARENT = (signal.SIGTERM, signal.SIGINT)


def _refuse_stacking(batches: list[Batch], **_: Any) -> Any:
    """What torch's default collate function does with batches of ours, when a DataLoader has a batch_size."""
    raise PlanError(
        f"the DataLoader would stack {len(batches)} batches into one: pass batch_size=None, and set the Loader's batch_size"
    )


default_collate_fn_map[Batch] = _refuse_stacking


class Steps(IterableDataset):  # type: ignore[misc]  # torch is not looked into
    """The batches of a loader as a data set, for torch's DataLoader (batch_size=None) and torchdata's StatefulDataLoader.

    The first iteration goes on where the loader stood when this was made; each one after it is the next pass, or the epoch that
    `set_epoch` chose, also in workers that stay alive.
    """

    def __init__(self, loader: "Loader") -> None:
        self.loader = _unpinned(loader)
        self._start = loader.start_of_next_loop()
        self._epoch = torch.full((2,), -1, dtype=torch.int64).share_memory_()  # (epoch, calls of set_epoch less one)
        # The iteration that any worker began last: what names it, where it begins, and the calls of set_epoch it has seen.
        self._begun = torch.full((len(_COLUMNS),), -1, dtype=torch.int64).share_memory_()
        self._lock = multiprocessing.get_context().Lock()
        self._loops = 0  # iterations begun in this process

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch."""
        self._epoch += torch.tensor([epoch - int(self._epoch[0]), 1])

    def __len__(self) -> int:
        """Batches of the iteration that was begun last, or of the first one."""
        left = self.loader._passes.steps_left(self._last() or self._start)
        if left is None:
            raise TypeError("a data set of an endless loader (epochs=None) has no length")
        return left

    def __iter__(self) -> "_Pass":
        return _Pass(self)

    def begin(self) -> Cursor:
        """Where the iteration begins that this process begins now.

        The first worker to begin it decides; the others join, however late they are.  An iteration is named by the seed that torch draws
        for it, and, as workers that stay alive keep theirs, by how many this process has begun.
        """
        info = get_worker_info()
        seed, self._loops = (info.seed - info.id if info else -1), self._loops + 1
        with self._lock:
            known_seed, known_loops, *_, seen_calls = self._begun.tolist()
            last = self._last()
            if last is not None and seed == known_seed and self._loops <= known_loops:
                return last
            passes = self.loader._passes
            cursor = self._start if last is None else passes.after(last)
            epoch, calls = self._epoch.tolist()
            if calls > seen_calls and epoch != cursor.position.epoch:
                cursor = passes.begin(epoch, cursor)
            self._write(seed, cursor)
        return cursor

    def note(self, cursor: Cursor) -> None:
        """The iteration under way goes on at `cursor`, as a state says."""
        with self._lock:
            self._write(int(self._begun[0]), cursor)

    def _write(self, seed: int, cursor: Cursor) -> None:
        here = cursor.position
        place = [here.epoch, here.block, here.row, here.rows, cursor.step, cursor.pass_step]
        self._begun.copy_(torch.tensor([seed, self._loops, *place, int(self._epoch[1])]))

    def _last(self) -> Cursor | None:
        _, _, epoch, block, row, rows, step, pass_step, _ = self._begun.tolist()
        position = Position(epoch=max(epoch, 0), block=block, row=row, rows=rows)
        return None if epoch < 0 else Cursor(position=position, step=step, pass_step=pass_step)

    def __getstate__(self) -> dict[str, Any]:
        """A lock travels to a process that is being started, and nowhere else: a copy gets its own."""
        state = self.__dict__.copy()
        if multiprocessing.context.get_spawning_popen() is None:
            del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__.setdefault("_lock", multiprocessing.get_context().Lock())


class _Pass(Iterator[Any]):
    """One worker's share of an iteration.  Its state is what torchdata keeps for each worker."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        info = get_worker_info()
        self._worker: int = info.id if info else 0
        self._workers: int = info.num_workers if info else 1
        begin = make_state(steps.loader.plan, steps.begin())
        self._state: dict[str, Any] = {**self._whose(), "passed": self._worker, "loader": begin}
        self._made: Iterator[tuple[Batch, Step]] | None = None

    def __next__(self) -> Batch:
        return self.make()[0]

    def make(self) -> tuple[Batch, Step]:
        """The next batch of this worker and its step, which keeps this rank's rows only: both travel between processes."""
        loader, state = self._steps.loader, self._state
        if self._made is None:
            cursor = read_state(state["loader"], loader.plan)
            self._made = loader._batches(cursor, passed=state["passed"], every=self._workers)
        batch, step = next(self._made)
        after = Cursor(position=step.after, step=batch.step + 1, pass_step=state["loader"]["pass_step"])
        self._state = {**self._whose(), "passed": self._workers - 1, "loader": make_state(loader.plan, after)}
        return batch, replace(step, rows=batch.rows)

    def _whose(self) -> dict[str, Any]:
        return {"worker": self._worker, "workers": self._workers}

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (state["worker"], state["workers"]) != (self._worker, self._workers):
            raise PlanError(
                f"the state is of worker {state['worker']} of {state['workers']}, this is worker {self._worker} of "
                f"{self._workers}; resume with as many workers, or save the state of the Loader, which knows of none"
            )
        self._steps.note(read_state(state["loader"], self._steps.loader.plan))
        self._state, self._made = state, None


class _WithSteps(Steps):
    """Batches together with their steps, so that the process that gets them knows how far it is."""

    def __init__(self, loader: "Loader") -> None:
        super().__init__(loader)
        self._start = loader._cursor  # the loader has begun its loop

    def __iter__(self) -> Iterator[tuple[Batch, Step]]:  # type: ignore[override]
        share = _Pass(self)
        while True:
            try:
                made = share.make()
            except StopIteration:
                return
            yield made


def make_in_processes(loader: "Loader", *, workers: int, ahead: int) -> Generator[tuple[Batch, Step], None, None]:
    """The batches from the loader's position on, made by `workers` processes that are each `ahead` steps ahead."""
    made = DataLoader(
        _WithSteps(loader),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=max(ahead, 1),
        worker_init_fn=partial(settle, owner=os.getpid()),
        collate_fn=_as_is,
        generator=torch.Generator(),  # the seeds it deals out are not taken from the trainer's own chance
    )
    # A worker inherits what is blocked, and so is not killed by a signal to all before it has settled.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_PARENT)
    try:
        turns = iter(made)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        for batch, step in turns:
            if loader.form.pin_memory:
                batch.update({name: pin(value) for name, value in batch.items() if torch.is_tensor(value)})
            yield batch.of(loader.stores), step
    finally:
        del turns  # its last reference: the workers are told to stop, and waited for


def _unpinned(loader: "Loader") -> "Loader":
    """Memory is pinned by the process that uses it: a worker has no device."""
    if not loader.form.pin_memory:
        return loader
    loader = copy(loader)
    loader.form = replace(loader.form, pin_memory=False)
    return loader


def settle(worker: int, *, owner: int) -> None:
    """What a worker does first: leave signals to its owner, which may still want to save, and go when that is gone or tells it to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    can_ask = hasattr(signal, "sigtimedwait")
    if can_ask:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # for the thread below to look at
    parent = os.getppid()  # the owner, or a server that forks for it

    def watch() -> None:
        while os.getppid() == parent:
            if not can_ask:
                time.sleep(_LOOK)
            elif (told := signal.sigtimedwait([signal.SIGTERM], _LOOK)) and told.si_pid == owner:
                os._exit(0)  # as it is told at the owner's exit, which would else wait for it without end
        os._exit(1)

    threading.Thread(target=watch, name=f"penstock-worker-{worker}", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, *([] if can_ask else [signal.SIGTERM])])


def _as_is(made: Any) -> Any:
    """torch would take a batch apart and put it together again as a plain dict."""
    return made
