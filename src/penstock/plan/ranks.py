"""Which rank gets which row of a step.  A step is a slice of the global order, a rank takes some rows of the step.

This module alone knows how rows are divided among ranks.  Rows are assigned in turns: in each, every rank gets one row.  With balance, the
costliest rows go first, and in each turn the rank with the least work so far gets the costliest row; without, rank r gets row r of each
turn.  If the first row of a rank is so costly that the rank exceeds the mean in any case, it gets the cheapest other rows.  After that,
pairs of ranks exchange rows.  Ranks are numbered by their first row, and a rank's rows stay in the global order.  So rows of equal cost, or
one row per rank, are assigned as without balance.  The rows of padding, which cost nothing, go last, and a step with padding has no
exchanges: its ranks have equally many of the others, or one more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import PlanError
from penstock.plan.rows import Rows
from penstock.plan.settings import PlanSettings
from penstock.types import Ints, World

_EXCHANGES = 2  # more gain less than 0.1 %
_MOST_TURNS = 16  # with exchanges: they look at all pairs of rows, and with more rows assigning alone comes within 1 %


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
    rows_per_rank = num_rows // world_size
    if settings.balance == "none" or world_size == 1 or rows_per_rank == 1:
        in_turn = np.arange(num_rows).reshape(rows_per_rank, world_size).T
        return np.broadcast_to(in_turn, (num_steps, world_size, rows_per_rank))
    dealt = _deal_by_cost(costs, world_size)
    if rows_per_rank <= _MOST_TURNS:
        for number in range(_EXCHANGES):
            _exchange(dealt, costs, number)
    dealt.sort(axis=2)
    by_first_row = np.argsort(dealt[:, :, 0], axis=1)
    return np.take_along_axis(dealt, by_first_row[:, :, None], axis=1)


def _deal_by_cost(costs: Ints, world_size: int) -> Ints:
    """Deal the rows of each step in turns, from the costliest row down; the rank with the least work so far comes first."""
    num_steps, num_rows = costs.shape
    num_turns = num_rows // world_size
    step = np.arange(num_steps)[:, None]
    by_cost = np.argsort(-costs, axis=1, kind="stable")
    rows = by_cost[step, _turns(costs[step, by_cost], world_size)]
    costs_in_turn = costs[step, rows]
    dealt = np.empty((num_steps, world_size, num_turns), np.int64)
    work = np.zeros((num_steps, world_size), np.int64)
    for turn in range(num_turns):
        ranks = np.argsort(work, axis=1, kind="stable")
        places = slice(turn * world_size, (turn + 1) * world_size)
        dealt[step, ranks, turn] = rows[:, places]
        work[step, ranks] += costs_in_turn[:, places]
    return dealt


def _turns(costs: Ints, world_size: int) -> Ints:
    """Return the rows of all turns, one turn after the other, as places in `costs`, which fall from row to row.

    The places stay as they are, unless some of the first ranks exceed the mean even if the first gets the cheapest rows, the second the
    cheapest after these, and so on.  Then each turn but the first ends with some of these rows.
    """
    num_rows = costs.shape[1]
    rows_per_rank = num_rows // world_size
    places = np.arange(num_rows)
    # What a rank has at least: its first row, and rows from the cheap end.
    from_cheapest = costs[:, : world_size - 1 : -1]
    cheapest_rest = from_cheapest.reshape(-1, world_size, rows_per_rank - 1).sum(axis=2)
    mean = costs.sum(axis=1, keepdims=True) // world_size
    has_padding = costs[:, -1:] == 0  # such a step is assigned in turns
    is_over = (costs[:, :world_size] + cheapest_rest > mean) & ~has_padding
    num_over = is_over.argmin(axis=1)[:, None]  # ranks
    if not num_over.any():
        return places[None]
    turn, place_in_turn = np.divmod(places, world_size)
    from_end = (rows_per_rank - turn) * num_over - (place_in_turn - (world_size - num_over))
    is_cheap = (turn > 0) & (place_in_turn >= world_size - num_over)
    # The other rows move up by the cheap ones that the turns before have taken from the end.
    others = places - (turn - 1).clip(0) * num_over
    return np.asarray(np.where(is_cheap, num_rows - from_end, others))


def _exchange(dealt: Ints, costs: Ints, number: int) -> None:
    """Let the ranks with the most and the least work, then the next two, and so on, exchange the rows that bring them closest together.

    number: of the exchange.  Each pairs the ranks again: those with the least work move on by one.
    """
    _, world_size, rows_per_rank = dealt.shape
    step = np.arange(len(dealt))[:, None]
    costs_of_ranks = costs[step[:, :, None], dealt]
    work = costs_of_ranks.sum(axis=2)
    by_work = np.argsort(work, axis=1, kind="stable")
    num_pairs = world_size // 2
    most = by_work[:, ::-1][:, :num_pairs]
    least = np.roll(by_work[:, :num_pairs], -number, axis=1)
    # A step with padding has no exchanges: its gaps count as 0, and nothing comes closer.
    is_full = (costs > 0).all(axis=1, keepdims=True)
    gap = (work[step, most] - work[step, least]) * is_full
    # (step, pair, row of the one rank, row of the other)
    moved = costs_of_ranks[step, most][:, :, :, None] - costs_of_ranks[step, least][:, :, None]
    gap_after = np.abs(gap[:, :, None, None] - 2 * moved)
    gap_after = gap_after.reshape(*gap.shape, rows_per_rank * rows_per_rank)
    first, second = np.divmod(gap_after.argmin(axis=2), rows_per_rank)
    rows_of_most = dealt[step, most, first]
    rows_of_least = dealt[step, least, second]
    is_closer = gap_after.min(axis=2) < gap
    dealt[step, most, first] = np.where(is_closer, rows_of_least, rows_of_most)
    dealt[step, least, second] = np.where(is_closer, rows_of_most, rows_of_least)


def dealt_rows(step: Rows, world_size: int, settings: PlanSettings) -> Ints:
    """Return which rows of one step each rank gets: (world_size, rows per rank)."""
    dealt: Ints = deal(row_sums(step, settings)[1][None], world_size, settings)[0]
    return dealt


def rank_shares(steps: Sequence[Rows], world: World, settings: PlanSettings) -> list[Share]:
    """Return what a rank gets of each of these steps, which have one size.  All ranks' rows together are the step."""
    tokens, costs = row_sums(Rows.join(list(steps)), settings)
    tokens = tokens.reshape(len(steps), -1)
    costs = costs.reshape(len(steps), -1)
    dealt = deal(costs, world.size, settings)
    return [
        Share(
            rows=step if world.size == 1 else step.take(places),
            places=places,
            tokens=spread_of_tokens,
            cost=spread_of_cost,
        )
        for step, places, spread_of_tokens, spread_of_cost in zip(
            steps,
            dealt[:, world.rank],
            _spreads(tokens, dealt),
            _spreads(costs, dealt),
            strict=True,
        )
    ]


def rank_rows(step: Rows, world: World, settings: PlanSettings) -> Rows:
    """Return the rows of a step that belong to this rank."""
    return rank_shares([step], world, settings)[0].rows


def row_sums(rows: Rows, settings: PlanSettings) -> tuple[Ints, Ints]:
    """Return the tokens and the cost of each row."""
    lengths = rows.spans["stop"] - rows.spans["start"]
    return _sum_of_rows(lengths, rows), _sum_of_rows(settings.cost(lengths), rows)


def _sum_of_rows(values: Ints, rows: Rows) -> Ints:
    """Add up a value of each span: a row without spans has 0."""
    running = np.concatenate(([0], np.cumsum(values)))
    return np.diff(running[rows.starts])


def work_of_ranks(values: Ints, dealt: Ints) -> Ints:
    """Add up the rows of each rank: (num_steps, world_size)."""
    step = np.arange(len(values))[:, None, None]
    return np.asarray(values[step, dealt].sum(axis=2))


def _spreads(values: Ints, dealt: Ints) -> list[Spread]:
    """Return the spread of a value of rows over the ranks, for each step."""
    by_rank = work_of_ranks(values, dealt)
    least = by_rank.min(axis=1).tolist()
    mean = by_rank.mean(axis=1).tolist()
    most = by_rank.max(axis=1).tolist()
    return [Spread(*each) for each in zip(least, mean, most, strict=True)]


def data_parallel(rank: int, world_size: int, *, model_parallel_size: int = 1) -> World:
    """Return the data-parallel world when `model_parallel_size` neighbouring ranks share their rows.

    These ranks are tensor, context or pipeline parallel.
    """
    if model_parallel_size < 1 or world_size % model_parallel_size:
        raise PlanError(
            f"{world_size} ranks do not divide into groups of {model_parallel_size} that share their rows"
        )
    return World(rank=rank // model_parallel_size, size=world_size // model_parallel_size)
