"""Ranks that finish together: how rows are assigned by cost, against a dealer in plain Python, and the goals in numbers."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from penstock.errors import PlanError
from penstock.plan import Plan, PlanSettings, PlanSource, Position, rank_shares
from penstock.plan.ranks import Spread, deal
from penstock.report.balance import BalanceCounter
from penstock.types import World

MAX_LENGTH = 16_384
RANK = PlanSettings(max_length=MAX_LENGTH)


@cache
def lengths() -> np.ndarray:
    """With next_fit, rows of these vary as much as those of the measurements that the goals come from."""
    return np.clip(np.random.default_rng(0).lognormal(6, 1.2, 60_000), 1, MAX_LENGTH).astype(
        np.int64
    )


def make(**settings) -> Plan:
    source = PlanSource(name="lognormal", key="k", shard_sizes=np.full(60, 1000))
    return Plan(
        [source],
        lambda _, samples: lengths()[samples],
        PlanSettings(max_length=MAX_LENGTH, **settings),
    )


def slowest(plan: Plan, ranks: int, batch_size: int) -> tuple[float, float]:
    """Slowest over mean rank, mean over full steps: assigned in turn, and as the plan says.  Counted from lengths, row by row."""
    in_turn, found, per_step = [], [], ranks * batch_size
    steps = [step.rows for step in plan.steps(num_rows=per_step) if step.num_real == per_step]
    shares = [
        rank_shares(steps, World(rank=rank, size=ranks), plan.settings) for rank in range(ranks)
    ]
    for step, *mine in zip(steps, *shares, strict=True):
        sizes = (step.spans["stop"] - step.spans["start"]).tolist()
        costs = [
            sum(n * n + 6 * 4096 * n for n in sizes[a:b]) for a, b in pairwise(step.starts.tolist())
        ]
        mean = sum(costs) / ranks
        in_turn.append(max(sum(costs[rank::ranks]) for rank in range(ranks)) / mean)
        work = [sum(costs[place] for place in share.places.tolist()) for share in mine]
        found.append(max(work) / mean)
        assert {share.cost for share in mine} == {Spread(min(work), sum(work) / ranks, max(work))}
    return sum(in_turn) / len(in_turn), sum(found) / len(found)


@pytest.mark.parametrize(
    ("packing", "ranks", "batch_size", "balance", "before", "goal"),
    [
        ("next_fit", 8, 4, "rank", 1.12, 1.02),
        ("next_fit", 64, 4, "rank", 1.20, 1.02),
        ("next_fit", 64, 1, "rank", 1.55, 1.60),
        ("next_fit", 64, 1, "block", 1.0, 1.06),
        ("best_fit", 8, 4, "rank", 1.09, 1.04),
        ("best_fit", 64, 4, "rank", 1.16, 1.05),
    ],
)
def test_goals_on_lognormal_lengths(packing, ranks, batch_size, balance, before, goal):
    in_turn, found = slowest(plan := make(packing=packing, balance=balance), ranks, batch_size)
    assert before < in_turn and found <= goal
    counter = BalanceCounter(plan.settings, ranks, ranks * batch_size)
    rows = plan.blocks.pack(0, 0).rows
    for start in range(0, rows.num_rows, 100):  # as reports count, some rows at a time
        counter.add(rows.slice(start, min(start + 100, rows.num_rows)))
    result = counter.result()
    assert plan.blocks.pack(0, 1) is None and result.steps == rows.num_rows // (ranks * batch_size)
    assert (result.slowest_in_turn, result.slowest) == (
        pytest.approx(in_turn),
        pytest.approx(found),
    )


def deal_by_hand(costs: list[int], ranks: int) -> list[list[int]]:
    """The definition in words, row by row."""
    rows = sorted(range(len(costs)), key=lambda row: (-costs[row], row))
    turns, per_rank, over = (
        [rows[at : at + ranks] for at in range(0, len(rows), ranks)],
        len(rows) // ranks,
        0,
    )
    while (
        all(costs) and over < ranks and per_rank > 1
    ):  # ranks that exceed the mean even with the cheapest rows
        cheapest = rows[::-1][over * (per_rank - 1) : (over + 1) * (per_rank - 1)]
        if ranks * sum(costs[row] for row in [rows[over], *cheapest]) <= sum(costs):
            break
        over += 1
    if over:
        middle, cheap = (
            rows[ranks : len(rows) - over * (per_rank - 1)],
            rows[len(rows) - over * (per_rank - 1) :],
        )
        rest = ranks - over
        for turn in range(1, per_rank):
            turns[turn] = (
                middle[(turn - 1) * rest : turn * rest] + cheap[(turn - 1) * over : turn * over]
            )
    hands = [(0, number, []) for number in range(ranks)]  # work, number, rows
    for turn in turns:
        hands = [
            (work + costs[row], n, [*mine, row])
            for (work, n, mine), row in zip(sorted(hands), turn, strict=True)
        ]
    hands = [mine for _, _, mine in sorted(hands, key=lambda hand: hand[1])]
    for number in range(2 if all(costs) else 0):
        by_work, half = sorted(hands, key=lambda mine: sum(costs[row] for row in mine)), ranks // 2
        for place in range(half):
            exchange_by_hand(by_work[-1 - place], by_work[(place + number) % half], costs)
    return sorted(map(sorted, hands))


def exchange_by_hand(most: list[int], least: list[int], costs: list[int]) -> None:
    """Exchange the first pair of rows after which the two lists cost most nearly the same."""
    gap = sum(costs[row] for row in most) - sum(costs[row] for row in least)
    pairs = [(a, b) for a in range(len(most)) for b in range(len(least))]
    a, b = min(
        pairs, key=lambda pair: abs(gap - 2 * (costs[most[pair[0]]] - costs[least[pair[1]]]))
    )
    if abs(gap - 2 * (costs[most[a]] - costs[least[b]])) < gap:
        most[a], least[b] = least[b], most[a]


def least_of_the_slowest(costs: list[int], ranks: int) -> float:
    """A bound for every deal of a step: the n costliest rows have n ranks for themselves, or two of them share one."""
    falling, per_rank = sorted(costs, reverse=True), len(costs) // ranks
    bounds = [sum(costs) / ranks]
    for n in range(1, ranks + 1):
        apart = (sum(falling[:n]) + sum(falling[::-1][: n * (per_rank - 1)])) / n
        together = (
            falling[n - 2] + falling[n - 1] + sum(falling[::-1][: per_rank - 2]) if n > 1 else apart
        )
        bounds.append(min(apart, together))
    return max(bounds)


def test_rows_of_the_default_packing_are_dealt_within_half_a_percent_of_the_best_deal():
    """With best_fit all rows have the same number of tokens, and a few cost much more: no deal makes up for these."""
    plan, bounds = make(), []
    for step in plan.steps(num_rows=256):
        sizes = (step.rows.spans["stop"] - step.rows.spans["start"]).tolist()
        costs = [
            sum(n * n + 24_576 * n for n in sizes[a:b])
            for a, b in pairwise(step.rows.starts.tolist())
        ]
        bounds += (
            [64 * least_of_the_slowest(costs, 64) / sum(costs)] if step.num_real == 256 else []
        )
    assert sum(bounds) / len(bounds) <= slowest(plan, 64, 4)[1] < 1.005 * sum(bounds) / len(bounds)


@pytest.mark.parametrize(
    ("ranks", "batch_size"), [(1, 5), (2, 1), (2, 3), (3, 4), (5, 3), (8, 4), (64, 2)]
)
def test_rows_are_dealt_as_the_definition_says_also_many_steps_at_once(ranks, batch_size):
    rng = np.random.default_rng(ranks)
    costs = rng.integers(1, 9, (40, ranks * batch_size)) ** rng.integers(
        1, 20, (40, 1)
    )  # ties and huge numbers
    costs[:10] = rng.integers(
        100, 120, (10, ranks * batch_size)
    )  # as rows of best_fit: a few cost much more
    costs[:10, :3] *= 2
    costs[20:] *= rng.integers(0, 9, (20, ranks * batch_size)) > 0  # steps with padding
    dealt = deal(costs, ranks, RANK)
    assert dealt.tolist() == [deal_by_hand(step, ranks) for step in costs.tolist()]
    for step in range(40):  # a step alone is assigned as among others
        assert (deal(costs[step : step + 1], ranks, RANK)[0] == dealt[step]).all()


@pytest.mark.parametrize("batch_size", [1, 4])
def test_rows_of_equal_cost_are_dealt_in_turn(batch_size):
    dealt = deal(np.full((2, 8 * batch_size), 7), 8, RANK)
    assert dealt.tolist() == [[list(range(rank, 8 * batch_size, 8)) for rank in range(8)]] * 2


def test_one_row_per_rank_stays_where_it_was():
    assert deal(np.arange(16)[None], 16, RANK).tolist() == [[[rank] for rank in range(16)]]


def test_block_keeps_the_rows_of_a_block_and_brings_alike_ones_together():
    plain, grouped = make(balance="rank"), make(balance="block", balance_rows=50)
    for epoch in range(2):
        a, b = plain.blocks.pack(epoch, 0).rows, grouped.blocks.pack(epoch, 0).rows
        assert sorted(row.tolist() for row in a) == sorted(row.tolist() for row in b)
        costs = [int((n * (n + 24_576)).sum()) for n in (row["stop"] - row["start"] for row in b)]
        runs = [costs[at : at + 50] for at in range(0, len(costs), 50)]
        assert all(run == sorted(run) for run in runs)
        ends = sorted((run[0], run[-1]) for run in runs)
        assert all(left[1] <= right[0] for left, right in pairwise(ends))  # runs do not overlap
        assert [run[0] for run in runs] != [low for low, _ in ends]  # and come in random order
    assert (
        make(balance="none").step(Position(), 64).rows.spans.tolist()
        == plain.step(Position(), 64).rows.spans.tolist()
    )


def test_rows_of_equal_cost_are_shuffled_under_block_too():
    """Else best_fit would hand them over with the longest samples first."""
    options = {"packing": "best_fit", "cost_attention": 0, "cost_linear": 1}
    longest = [
        row["stop"].max()
        for row in make(balance="block", balance_rows=4096, **options).blocks.pack(0, 0).rows
    ]
    middle = len(longest) // 2
    assert abs(np.mean(longest[:middle]) - np.mean(longest[middle:])) < 0.3 * np.mean(longest)


def test_settings_that_contradict_balance_are_refused():
    with pytest.raises(
        PlanError, match="balance='block' orders rows by their cost, and shuffle=False"
    ):
        PlanSettings(max_length=8, balance="block", shuffle=False)
    with pytest.raises(
        PlanError, match="balance='block' orders rows by their cost, and packing='group_8'"
    ):
        PlanSettings(max_length=8, balance="block", packing="group_8")
    with pytest.raises(
        PlanError,
        match="cost_attention 0 and cost_linear 0 make a row of 8 tokens cost 0; expected more",
    ):
        PlanSettings(max_length=8, cost_attention=0, cost_linear=0)
    with pytest.raises(PlanError, match=r"cost 288230.*less than 2⁵⁰"):
        PlanSettings(max_length=1 << 20, cost_attention=1 << 18)
    with pytest.raises(PlanError, match="balance is 'ranks', expected one of none, rank, block"):
        PlanSettings(max_length=8, balance="ranks")
    assert PlanSettings(max_length=1 << 40).balance == "rank"  # a max_length that means no limit
