"""Which samples, where, when?  Pure index mathematics: numpy only; no files, no clock, no environment, no global random state."""

from penstock.plan.counters import Counters
from penstock.plan.order import PlanSource
from penstock.plan.plan import Plan, Position, Step
from penstock.plan.ranks import data_parallel, rank_rows, rank_shares
from penstock.plan.rows import Rows
from penstock.plan.segments import Mixture, Start
from penstock.plan.settings import PlanSettings

__all__ = [
    "Counters",
    "Mixture",
    "Plan",
    "PlanSettings",
    "PlanSource",
    "Position",
    "Rows",
    "Start",
    "Step",
    "data_parallel",
    "rank_rows",
    "rank_shares",
]
