"""How evenly the cost of a step is spread over ranks, counted over the rows of an epoch."""

from dataclasses import dataclass, replace

import numpy as np

from penstock.plan.ranks import deal, row_sums, work_of_ranks
from penstock.plan.rows import Rows
from penstock.plan.settings import PlanSettings
from penstock.types import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """How much longer the slowest rank of a step works than the mean rank, by the cost of its rows: a mean over full steps.

    None if the epoch has no full step.
    """

    balance: str
    steps: int  # full steps
    slowest_in_turn: float | None  # with balance: none
    slowest: float | None

    def __str__(self) -> str:
        if self.slowest is None:
            return "not known: the epoch has no full step"
        before = "" if self.balance == "none" else f"; without balance {self.slowest_in_turn:.3f} ×"
        return f"{self.slowest:.3f} × the mean cost of a rank (balance: {self.balance}{before})"


class BalanceCounter:
    """Adds up how evenly the rows of an epoch are assigned to ranks; `add` takes them in order."""

    def __init__(self, settings: PlanSettings, world_size: int, rows_per_step: int) -> None:
        self._settings = settings
        self._in_turn = replace(settings, balance="none")
        self._world_size = world_size
        self._rows_per_step = rows_per_step
        self._waiting = np.empty(0, np.int64)  # costs of rows that do not fill a step yet
        self._steps = 0
        # Sums over steps of what the slowest rank works, as a multiple of the mean rank.
        self._sum_in_turn = 0.0
        self._sum = 0.0

    def add(self, rows: Rows) -> None:
        """Count the epoch's next rows."""
        _, new_costs = row_sums(rows, self._settings)
        costs = np.concatenate((self._waiting, new_costs))
        num_steps = costs.size // self._rows_per_step
        num_costs = num_steps * self._rows_per_step
        self._waiting = costs[num_costs:]
        steps = costs[:num_costs].reshape(num_steps, self._rows_per_step)
        self._steps += num_steps
        self._sum_in_turn += self._sum_of_slowest(steps, self._in_turn)
        self._sum += self._sum_of_slowest(steps, self._settings)

    def add_step(self, rows: Rows) -> None:
        """Count one step, of a size of its own; one that is padded is not a full one."""
        _, costs = row_sums(rows, self._settings)
        if (costs > 0).all():
            self._steps += 1
            self._sum_in_turn += self._sum_of_slowest(costs[None], self._in_turn)
            self._sum += self._sum_of_slowest(costs[None], self._settings)

    def _sum_of_slowest(self, costs: Ints, settings: PlanSettings) -> float:
        work = work_of_ranks(costs, deal(costs, self._world_size, settings))
        slowest = work.max(axis=1) / work.mean(axis=1)
        return float(slowest.sum())

    def result(self) -> Balance:
        """Return the means over all full steps."""
        has_steps = self._steps > 0
        return Balance(
            balance=self._settings.balance,
            steps=self._steps,
            slowest_in_turn=self._sum_in_turn / self._steps if has_steps else None,
            slowest=self._sum / self._steps if has_steps else None,
        )
