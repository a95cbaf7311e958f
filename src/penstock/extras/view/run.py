"""The plan of a run for the page: steps as a strip, the rows of a step, where a sample is trained, and other settings."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import reasons
from penstock.errors import PlanError
from penstock.extras.view.facts import Facts, Job, number, whole
from penstock.loader import Loader
from penstock.loader.columns import batch_columns
from penstock.plan.plan import Plan
from penstock.plan.ranks import deal
from penstock.plan.rows import Rows
from penstock.plan.settings import weights_as_text
from penstock.report.numbers import EpochNumbers, epoch, plain, stores
from penstock.report.trace import Positions, epoch_steps, outcome, step
from penstock.store import Store
from penstock.types import Ints

COLOURS = 7  # sources with a colour of their own; the others are counted together
_MOST_SPANS = 32_000_000  # kept of one epoch, 32 bytes each
_MOST_BINS = 1_000
_MOST_CUT = 20_000  # samples whose masks are read to count trained tokens that a cut loses

Floats = npt.NDArray[np.float64]


class Epoch:
    """The rows of one epoch, kept in memory, and sums of each step."""

    def __init__(self, loader: Loader, number: int) -> None:
        if loader.run.has_steps_of_tokens:
            raise PlanError(
                f"with tokens_per_step={loader.settings.tokens_per_step:,} each step has a number of rows of its own, which this page "
                f"does not draw; use penstock plan, penstock show and penstock trace"
            )
        self._loader = loader
        self.number = number
        self._per_step = loader.batch_size * loader.world.size
        self._world = loader.world.size
        self.num_colours = min(len(loader.plan.sources), COLOURS + 1)
        self._num_rows = 0
        self._num_spans = 0
        self.is_kept = True
        self._kept: list[Rows] = []
        self._sums: list[tuple[int, Floats, Floats]] = []  # first step, tokens by source, spans
        self._of_rows: list[tuple[Ints, Ints]] = []  # tokens and costs of rows
        self.job: Job[EpochNumbers] = Job(self._read, 0)

    def _read(self, job: Job[EpochNumbers]) -> EpochNumbers:
        loader = self._loader
        job.total = self._loader.plan.num_rows(self.number)
        self.first, carried, num_steps = epoch_steps(loader, self.number)
        if carried:  # rows of the epoch before in the first step
            self._count(loader.look_up(self.first).rows.slice(0, carried))
        found = epoch(loader, self.number, visit=lambda rows: self._add(rows, job))
        if (
            rest := num_steps * self._per_step - self._num_rows
        ) > 0:  # of the next epoch, repeated or empty ones
            self._count(
                loader.look_up(self.first + num_steps - 1).rows.slice(
                    self._per_step - rest, self._per_step
                )
            )
        self.tokens, self.spans = (
            np.zeros((-(-self._num_rows // self._per_step), n)) for n in (self.num_colours, 1)
        )
        for first, *parts in self._sums:
            for sums, part in zip((self.tokens, self.spans), parts, strict=True):
                sums[first : first + len(part)] += part
        self.tokens, self.spans = (
            self.tokens[:num_steps],
            self.spans[:num_steps],
        )  # without rows that last_step="drop" drops
        self.ranks = self._by_rank(num_steps)
        self._sums.clear()
        self._of_rows.clear()
        return found

    def _by_rank(self, num_steps: int) -> Ints:
        """Return the tokens of each rank in each step: (num_steps, world_size)."""
        sums = [
            np.concatenate(each)[: num_steps * self._per_step]
            for each in zip(*self._of_rows, strict=True)
        ]
        shape = (num_steps, self._per_step)
        tokens, costs = (
            (each.reshape(shape) for each in sums) if sums else np.zeros((2, *shape), np.int64)
        )
        dealt = deal(costs, self._world, self._loader.plan.settings)
        of_rank = (
            np.take_along_axis(tokens, dealt.reshape(shape), axis=1)
            .reshape(dealt.shape)
            .sum(axis=2)
        )
        return np.asarray(of_rank, np.int64)

    def _add(self, rows: Rows, job: Job[EpochNumbers]) -> None:
        self._num_spans += len(rows.spans)
        self.is_kept = self._num_spans <= _MOST_SPANS
        if self.is_kept:
            self._kept.append(rows)
        else:
            self._kept.clear()
        self._count(rows)
        job.done += rows.num_rows

    def _count(self, rows: Rows) -> None:
        """Add the next rows to the sums of their steps."""
        row = self._num_rows + np.repeat(
            np.arange(rows.num_rows), np.diff(rows.starts)
        )  # of each span
        first = self._num_rows // self._per_step
        steps = -(-(self._num_rows + rows.num_rows) // self._per_step) - first
        size = rows.spans["stop"] - rows.spans["start"]
        place = row // self._per_step - first
        source = np.minimum(rows.spans["source"], self.num_colours - 1)

        def summed(kinds: Any, num_kinds: int, weights: Any) -> Floats:
            flat = np.bincount(place * num_kinds + kinds, weights, minlength=steps * num_kinds)
            return flat.reshape(steps, num_kinds).astype(np.float64)

        self._sums.append((first, summed(source, self.num_colours, size), summed(0, 1, None)))
        cost = self._loader.plan.settings.cost(size)
        sums = (
            np.diff(np.concatenate(([0], np.cumsum(each)))[rows.starts]) for each in (size, cost)
        )
        self._of_rows.append((next(sums), next(sums)))
        self._num_rows += rows.num_rows

    def strip(self, first: int, last: int, most: int) -> dict[str, Any]:
        """Return sums over at most `most` groups of neighbouring steps; steps are counted in the epoch."""
        total = len(self.tokens)
        first, last = max(min(first, total - 1), 0), min(max(last, first + 1), total)
        each = max(-(-(last - first) // most), 1)
        starts = np.arange(first, max(last, first + 1), each) if total else np.zeros(0, np.int64)
        if not starts.size:
            return {"steps": 0, "each": each, "starts": []}
        tokens, spans = (np.add.reduceat(part[:last], starts) for part in (self.tokens, self.spans))
        mean = self.ranks[:last].mean(axis=1)
        worst = np.divide(self.ranks[:last].max(axis=1), mean, out=np.ones(last), where=mean > 0)
        sizes = np.diff([*starts, last])
        capacity = sizes * self._per_step * self._loader.plan.row_capacity
        return {
            "steps": total,
            "each": each,
            "starts": starts.tolist(),
            "tokens": tokens.tolist(),
            "fill": (tokens.sum(axis=1) / capacity).tolist(),
            "mean_length": (tokens.sum(axis=1) / np.maximum(spans[:, 0], 1)).tolist(),
            "balance": np.maximum.reduceat(worst, starts).tolist(),
        }

    def positions(self, source: int, row: int, store: Store) -> dict[str, Any]:
        """Return every place of a sample in this epoch."""
        if not self.is_kept:
            raise PlanError(
                f"epoch {self.number} has more than {_MOST_SPANS:,} pieces of samples, too many to keep here; use penstock show"
            )
        found = Positions(self._loader, [(source, row)], self.number)
        for rows in self._kept:
            found.add(rows)
        landings = found.of(source, row)
        what = outcome(self._loader.plan.settings, store[row], landings, self.number)
        return {"landings": plain(landings), "outcome": what}


class RunView:
    """The plan of a loader, as the page asks about it."""

    def __init__(self, loader: Loader, facts: Facts, lock: threading.Lock) -> None:
        """lock: held while sources are read."""
        self._loader = loader
        self._facts = facts
        self._lock = lock
        self._own = threading.Lock()
        self._epochs: OrderedDict[int, Epoch] = OrderedDict()
        self._steps_of_jobs: dict[tuple[int, int], Job[int]] = {}

    def epoch(self, asked: Mapping[str, str]) -> Epoch:
        """Return an epoch, whose rows may still be packed in the background.  The last two are kept."""
        chosen = whole(asked.get("epoch", "0"), "epoch")
        most = self._loader.epochs
        if most is not None and chosen >= max(most, 1):
            raise PlanError(f"epoch {chosen} does not exist: the run has {most}, counted from 0")
        with self._own:
            if chosen not in self._epochs:
                self._epochs[chosen] = Epoch(self._loader, chosen)
                while len(self._epochs) > 2:
                    self._epochs.popitem(last=False)
            self._epochs.move_to_end(chosen)
            return self._epochs[chosen]

    def run(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return the numbers of an epoch and its steps as a strip; only the progress while it is packed."""
        found = self.epoch(asked)
        numbers = found.job.wait(0.2)
        if numbers is None:
            return {"progress": found.job.state}
        first, last = (
            whole(asked.get(name) or default, name)
            for name, default in (("from", "0"), ("to", "1e15"))
        )
        bins = whole(asked.get("bins") or "300", "bins", least=1)
        before = found.first
        shown = {name: value for name, value in plain(numbers).items() if name != "mixing"}
        shown["counters"]["samples_by_source"] = {}
        return {
            "progress": found.job.state,
            "numbers": shown,
            "first_step": before,
            "strip": found.strip(first - before, last - before, min(bins, _MOST_BINS)),
        }

    def steps_of_job(self, rows_per_step: int, epochs: int | None) -> int | None:
        """Return the steps of a running job of this plan; None for an endless one, and while they are counted, in the background.

        The job has its own batch size, ranks and epochs: the recipe that is shown may name others.
        """
        if epochs is None:
            return None
        asked = (rows_per_step, epochs)
        with self._own:
            if asked not in self._steps_of_jobs:
                self._steps_of_jobs[asked] = Job(
                    lambda job: self._loader.plan.num_steps(rows_per_step, epochs=epochs), 1
                )
            counted = self._steps_of_jobs[asked]
        return counted.wait(0.2)

    def step(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return the rows of a step on each rank."""
        with self._lock:
            return dict(plain(step(self._loader, whole(asked.get("step", "0"), "step"))))

    def positions(
        self, asked: Mapping[str, str], source: int, row: int, store: Store
    ) -> dict[str, Any]:
        """Return where a sample is trained in an epoch."""
        found = self.epoch(asked)
        if found.job.wait(0.2) is None:
            return {"progress": found.job.state}
        with self._lock:
            places = found.positions(source, row, store)
        return {
            "progress": found.job.state,
            "epoch": found.number,
            "epochs": self._loader.epochs,
            **places,
        }

    # Other settings

    def what_if(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return what the first epoch becomes under other settings; problems are part of the answer."""
        changes: dict[str, Any] = {"last_step": "pad"}
        if "max_length" in asked:
            changes["max_length"] = whole(asked["max_length"], "max_length", least=1)
        changes |= {name: asked[name] for name in ("packing", "on_overlong") if name in asked}
        if "weights" in asked and self._loader.plan.has_changes:
            return {
                "problem": "the recipe has a table of weights, which is not compared with other weights here"
            }
        if "weights" in asked:
            changes["weights"] = weights_as_text(
                [float(number(w, "weights")) for w in asked["weights"].split(",")]
            )
        try:
            plan = self._loader.plan.changed(**changes)
            batch_columns(
                list(stores(self._loader)), self._loader.stores, plan.settings
            )  # refuses to cut samples with media
            return self._numbers_under(plan)
        except PlanError as error:
            return {"problem": str(error)}

    def _numbers_under(self, plan: Plan) -> dict[str, Any]:
        """Return what the first epoch becomes under a plan that was not asked for: its rows, and what is dropped, cut or lost."""
        counts = plan.blocks.count_dropped(0, with_rows=True)
        per_step = self._loader.batch_size * self._loader.world.size
        num_steps = counts.rows // per_step
        has_rest = counts.rows % per_step > 0
        if has_rest and self._loader.plan.settings.last_step != "drop":
            num_steps += 1  # the last step, which is not full
        dropped = {
            reason: count
            for reason, count in counts.samples_dropped.items()
            if count and reason != reasons.EMPTY
        }
        lost = self._lost_targets(plan) if self._facts.is_complete else None
        return {
            "max_length": plan.settings.max_length,
            "packing": plan.settings.packing,
            "on_overlong": plan.settings.on_overlong,
            "rows": counts.rows,
            "steps": num_steps,
            "fill": counts.fill,
            "tokens": counts.tokens_out,
            "samples": counts.samples_out,
            "samples_dropped": dropped,
            "samples_cut": counts.samples_truncated + counts.samples_split,
            "tokens_lost": counts.tokens_dropped.total(),
            "targets_lost": lost,
            "targets": int(self._facts.targets.sum(dtype=np.int64)),
            "samples_by_source": [counts.samples_by_source[n] for n in range(len(plan.sources))],
        }

    def _lost_targets(self, plan: Plan) -> int | None:
        """Count targets of all prepared samples that do not reach a row; None if that needs too many masks, or every row."""
        settings = plan.settings
        facts = self._facts
        if settings.method.cuts:
            return None
        overlong: Ints = np.flatnonzero(facts.longest > settings.capacity)
        if settings.on_overlong == "drop":
            return int(facts.targets[overlong].sum(dtype=np.int64))
        if overlong.size > _MOST_CUT:
            return None
        found = list(facts.stores.values())
        lost = 0
        for row in overlong.tolist():
            source = int(np.searchsorted(facts.starts, row, side="right")) - 1
            mask = found[source][row - int(facts.starts[source])].loss_mask
            starts = (
                range(0, len(mask), settings.capacity) if settings.on_overlong == "split" else (0,)
            )
            kept = sum(
                int(np.count_nonzero(mask[at + 1 : at + settings.capacity])) for at in starts
            )
            lost += int(facts.targets[row]) - kept
        return lost
