"""Numbers about the data for a trainer's log: what all ranks were given since the line before.

    log = DataLog(loader)                 # LoaderTrainer, LoaderSFTTrainer and LoaderModule have one
    tracker.log(log.take(), step=step)    # on every rank, every few steps

Rows of all ranks are known on each of them, because a step is a slice of one order.  Only the tokens that are trained and the waits are
asked of the other ranks, when `take` is called.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.extras.trainers.guards import expect_loader
from penstock.loader import Batch, Loader
from penstock.loader.run import Run
from penstock.loader.world import running
from penstock.plan.plan import NumberedStep

Gather = Callable[[list[float]], Sequence[Sequence[float]]]  # own numbers → those of every process


class DataLog:
    """Counts what a Loader delivers, between two lines of a log."""

    def __init__(self, loader: Loader) -> None:
        expect_loader(loader, call="DataLog")
        self._loader = loader
        self._trained_before = 0
        self._wait_before = 0.0
        self._trained = 0  # of this rank
        self._begin_line()
        loader.observers.append(self)

    def _begin_line(self) -> None:
        self._steps = 0
        self._tokens = np.zeros(0, np.int64)  # by source, of all ranks
        self._capacity = 0  # rows × max_length
        self._samples = 0
        self._shortest = 0  # tokens of one rank's batch
        self._longest = 0

    # As an observer

    def attach(self, loader: Loader) -> None:
        """The Loader is known already."""

    def begin(self, run: Run) -> None:
        """Steps count, not loops."""

    def end(self, run: Run) -> None:
        """What was delivered stays for the next line."""

    def step(self, run: Run, step: NumberedStep, batch: Batch) -> None:
        """Count the rows of all ranks, and the labels of this one."""
        rows = step.step.rows
        sizes = rows.spans["stop"] - rows.spans["start"]
        by_source = np.bincount(rows.spans["source"], weights=sizes, minlength=len(run.names))
        more = by_source.size - self._tokens.size  # a source was added
        self._tokens = np.pad(self._tokens, (0, more)) + by_source.astype(np.int64)
        self._capacity += rows.num_rows * run.plan.settings.max_length
        self._samples += int(np.count_nonzero(rows.spans["start"] == 0))
        of_ranks = batch.share.tokens
        self._shortest = of_ranks.min if self._steps == 0 else min(self._shortest, of_ranks.min)
        self._longest = max(self._longest, of_ranks.max)
        self._trained += batch.trained
        self._steps += 1

    # For a log

    def take(self, gather: Gather | None = None) -> dict[str, float]:
        """Return the numbers of the steps since the last call; {} if there was none.  Call it on every rank.

        gather: how the trainer exchanges numbers; without it, torch.distributed does, if it runs.
        """
        if self._steps == 0:
            return {}
        wait = self._loader.metrics.as_dict()["wait_seconds"]
        own = [float(self._trained - self._trained_before), wait - self._wait_before]
        self._trained_before = self._trained
        self._wait_before = wait
        of_processes = (gather or _gather)(own)
        waits = [each[1] for each in of_processes]
        numbers: dict[str, float] = {"data/epoch": self._epoch(), "data/wait_seconds": max(waits)}
        if self._loader.has_tokens:
            # processes that share their rows have the same labels
            of_all = sum(each[0] for each in of_processes)
            trained = of_all * self._loader.world.size / len(of_processes)
            numbers |= self._of_tokens(trained)
        else:
            numbers["data/records"] = float(self._samples)
        self._begin_line()
        return numbers

    def _of_tokens(self, trained: float) -> dict[str, float]:
        tokens = int(self._tokens.sum())
        names = self._loader.run.names
        shares = {
            f"data/share/{name}": number / max(tokens, 1)
            for name, number in zip(names, self._tokens.tolist(), strict=True)
        }
        return {
            "data/tokens": float(tokens),
            "data/trained_tokens": trained,
            "data/samples": float(self._samples),
            "data/fill": tokens / self._capacity,
            **shares,
            "perf/global_seq_len_avg": tokens / self._steps / self._loader.world.size,
            "perf/global_seq_len_min": float(self._shortest),
            "perf/global_seq_len_max": float(self._longest),
        }

    def _epoch(self) -> float:
        """Return how many epochs are done, as far as that is known: without an end, whole ones."""
        loader = self._loader
        if loader.run.is_endless:
            return float(loader.run.cursor.position.epoch)
        state = loader.state_dict()
        share = (state["step"] - state["pass_step"]) / max(len(loader), 1)
        return loader.run.epochs_done(of_pass=loader.epochs, share=share)


def _gather(own: list[float]) -> Sequence[Sequence[float]]:
    """Return the numbers of every process of torch.distributed; this one's own if it does not run."""
    group = running()
    if group is None or group[1] == 1:
        return [own]
    gathered: list[Any] = [None] * group[1]
    sys.modules["torch.distributed"].all_gather_object(gathered, own)
    return gathered
