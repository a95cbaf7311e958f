"""Which rank gets which row of a step.  A step is a slice of the global order, a rank takes some rows of the step.

This module alone knows how rows are divided among ranks.  Rows are dealt in turns: in each, every rank gets one row.  With balance, the
costliest rows go first, and in each turn the rank with the least work so far gets the costliest row; without, rank r gets row r of each
turn.  A rank whose first row is so costly that even the cheapest other rows bring it above the mean gets these.  After that, pairs of ranks
exchange rows.  Ranks are numbered by their first row, and a rank's rows stay in the global order.  So rows of equal cost, or one row per
rank, are dealt as without balance.  The rows of padding, which cost nothing, go last, and a step with padding has no exchanges: its ranks
have equally many of the others, or one more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import PlanError
from penstock.plan.block import Rows
from penstock.plan.settings import PlanSettings
from penstock.types import Ints, World

_EXCHANGES = 2  # more gain less than 0.1 %
_MOST_TURNS = 16  # with exchanges: they look at all pairs of rows, and with more rows dealing alone comes within 1 %


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity of a step over its ranks."""

    min: int
    mean: float
    max: int

    @property
    def slowest(self) -> float:
        """The largest as a multiple of the mean; 1 for a step without rows."""
        return self.max / self.mean if self.mean else 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of a step that one rank gets, and what all ranks get."""

    rows: Rows
    places: Ints  # of these rows in the step
    tokens: Spread
    cost: Spread


def deal(costs: Ints, world_size: int, settings: PlanSettings) -> Ints:
    """Return which rows of each step each rank gets, from the costs of its rows.

    costs: (num_steps, rows per step).  Returns (num_steps, world_size, rows per rank).
    """
    num_steps, num_rows = costs.shape
    if num_rows % world_size:
        raise PlanError(
            f"a step of {num_rows} rows does not divide among {world_size} ranks; choose a multiple"
        )
    turns = num_rows // world_size
    if settings.balance == "none" or world_size == 1 or turns == 1:
        in_turn = np.arange(num_rows).reshape(turns, world_size).T
        return np.broadcast_to(in_turn, (num_steps, world_size, turns))
    step = np.arange(num_steps)[:, None]
    by_cost = np.argsort(-costs, axis=1, kind="stable")
    rows = by_cost[step, _turns(costs[step, by_cost], world_size)]
    costs_in_turn = costs[step, rows]
    dealt = np.empty((num_steps, world_size, turns), np.int64)
    work = np.zeros((num_steps, world_size), np.int64)
    for turn in range(turns):
        ranks = np.argsort(work, axis=1, kind="stable")
        places = slice(turn * world_size, (turn + 1) * world_size)
        dealt[step, ranks, turn] = rows[:, places]
        work[step, ranks] += costs_in_turn[:, places]
    for number in range(_EXCHANGES if turns <= _MOST_TURNS else 0):
        _exchange(dealt, costs, number)
    dealt.sort(axis=2)
    return np.asarray(dealt[step, np.argsort(dealt[:, :, 0], axis=1)])


def _turns(costs: Ints, world_size: int) -> Ints:
    """Return the rows of all turns, one turn after the other, as places in `costs`, which fall from row to row.

    The places stay as they are, unless some of the first ranks exceed the mean even if the first gets the cheapest rows, the second the
    cheapest after these, and so on.  Then each turn but the first ends with some of these rows.
    """
    num_rows = costs.shape[1]
    places = np.arange(num_rows)
    least = (
        costs[:, : world_size - 1 : -1]
        .reshape(-1, world_size, num_rows // world_size - 1)
        .sum(axis=2)
    )
    is_over = costs[:, :world_size] + least > costs.sum(axis=1, keepdims=True) // world_size
    is_over &= costs[:, -1:] > 0  # a step with padding is dealt in turns
    over = is_over.argmin(axis=1)[:, None]  # how many ranks
    if not over.any():
        return places[None]
    turn, place = np.divmod(places, world_size)
    cheapest = num_rows - (num_rows // world_size - turn) * over + place - (world_size - over)
    is_cheap = (turn > 0) & (place >= world_size - over)
    return np.asarray(np.where(is_cheap, cheapest, places - (turn - 1).clip(0) * over))


def _exchange(dealt: Ints, costs: Ints, number: int) -> None:
    """Let the ranks with the most and the least work, then the next two, and so on, exchange the rows that bring them closest together.

    number: of the exchange.  Each pairs the ranks anew: those with the least work move on by one.
    """
    num_steps, world_size, turns = dealt.shape
    step = np.arange(num_steps)[:, None]
    half = world_size // 2
    mine = costs[step[:, :, None], dealt]
    work = mine.sum(axis=2)
    by_work = np.argsort(work, axis=1, kind="stable")
    most = by_work[:, ::-1][:, :half]
    least = np.roll(by_work[:, :half], -number, axis=1)
    is_full = (costs > 0).all(
        axis=1, keepdims=True
    )  # else the gap counts as 0, and nothing comes closer
    gap = (work[step, most] - work[step, least]) * is_full
    after = np.abs(
        gap[:, :, None, None]
        - 2 * (mine[step, most][:, :, :, None] - mine[step, least][:, :, None])
    )
    after = after.reshape(*gap.shape, turns * turns)
    first, second = np.divmod(after.argmin(axis=2), turns)
    given = dealt[step, most, first]
    taken = dealt[step, least, second]
    is_closer = after.min(axis=2) < gap
    dealt[step, most, first] = np.where(is_closer, taken, given)
    dealt[step, least, second] = np.where(is_closer, given, taken)


def dealt_rows(step: Rows, world_size: int, settings: PlanSettings) -> Ints:
    """Return which rows of one step each rank gets: (world_size, rows per rank)."""
    dealt: Ints = deal(row_sums(step, settings)[1][None], world_size, settings)[0]
    return dealt


def rank_shares(steps: Sequence[Rows], world: World, settings: PlanSettings) -> list[Share]:
    """Return what a rank gets of each of these steps, which have one size.  All ranks' rows together are the step."""
    tokens, costs = (
        sums.reshape(len(steps), -1) for sums in row_sums(Rows.join(list(steps)), settings)
    )
    dealt = deal(costs, world.size, settings)
    spreads = zip(_spreads(tokens, dealt), _spreads(costs, dealt), strict=True)
    return [
        Share(step if world.size == 1 else step.take(places), places, *spread)
        for step, places, spread in zip(steps, dealt[:, world.rank], spreads, strict=True)
    ]


def rank_rows(step: Rows, world: World, settings: PlanSettings) -> Rows:
    """Return the rows of a step that belong to this rank."""
    return rank_shares([step], world, settings)[0].rows


def row_sums(rows: Rows, settings: PlanSettings) -> tuple[Ints, Ints]:
    """Return the tokens and the cost of each row."""
    lengths = rows.spans["stop"] - rows.spans["start"]
    tokens, costs = (
        np.diff(np.concatenate(([0], np.cumsum(each)))[rows.starts])
        for each in (lengths, settings.cost(lengths))
    )
    return tokens, costs


def work_of_ranks(values: Ints, dealt: Ints) -> Ints:
    """Add up the rows of each rank: (num_steps, world_size)."""
    return np.asarray(values[np.arange(len(values))[:, None, None], dealt].sum(axis=2))


def _spreads(values: Ints, dealt: Ints) -> list[Spread]:
    found = work_of_ranks(values, dealt)
    return [
        Spread(*each)
        for each in zip(
            found.min(1).tolist(), found.mean(1).tolist(), found.max(1).tolist(), strict=True
        )
    ]


def data_parallel(rank: int, world_size: int, *, model_parallel_size: int = 1) -> World:
    """Return the data-parallel world when `model_parallel_size` neighbouring ranks share their rows.

    These ranks are tensor, context or pipeline parallel.
    """
    if model_parallel_size < 1 or world_size % model_parallel_size:
        raise PlanError(
            f"{world_size} ranks do not divide into groups of {model_parallel_size} that share their rows"
        )
    return World(rank=rank // model_parallel_size, size=world_size // model_parallel_size)
