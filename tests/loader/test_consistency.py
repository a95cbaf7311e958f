"""Ranks that are about to train different things find out before the first batch, and never wait without end."""

import threading
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PlanError, PlanMismatch
from penstock.loader.consistency import agree

from .arrays import Loader

RECORDS = [{"n": n} for n in range(40)]


def board() -> Any:
    """A key-value store as torch.distributed has one, without processes."""
    torch = pytest.importorskip("torch", reason="ranks meet in torch's store")
    return torch.distributed.HashStore()


def plan_of(**changes: Any) -> dict[str, Any]:
    """What a rank publishes before it begins."""
    options = {"batch_size": 2, "rank": 0, "world_size": 2, **changes}
    loader = Loader(ps.open(options.pop("records", RECORDS)), **options)
    loop = {"epochs": loader.epochs, "per_epoch": loader.settings.per_epoch, "check": ""}
    skipped = {"skip_steps": sorted(loader.run.loop.skipped)}
    return {**loader.state_dict(), **loader.run.dealing(loader.world.size), **loop, **skipped}


def compare(*plans: dict[str, Any]) -> list[str]:
    """What each rank finds out; each in a thread, as ranks are side by side."""
    meeting = board()
    found = [""] * len(plans)

    def run(rank: int) -> None:
        try:
            agree(plans[rank], rank=rank, others=range(len(plans)), board=meeting, patience=60)
            found[rank] = "agreed"
        except PlanMismatch as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(plans))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ranks_of_one_plan_agree():
    assert compare(plan_of(), plan_of(), plan_of()) == ["agreed"] * 3


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 5}, "seed 0 → 5"),
        ({"batch_size": 3}, "batch_size 2 → 3"),
        ({"epochs": 2}, "epochs 1 → 2"),
        ({"skip_steps": [4]}, "skip_steps [] → [4]"),
        ({"records": RECORDS[1:]}, "content of source 'data'"),
        ({"last_step": "drop"}, 'last_step "pad" → "drop"'),
        # not in the plan's fingerprint, and rows would be lost
        ({"balance": "none"}, 'balance "rank" → "none"'),
        ({"balance": "block"}, 'balance "rank" → "block"'),
        ({"cost_linear": 7}, "cost_linear 24576 → 7"),
    ],
)
def test_a_rank_that_differs_is_named_with_what_differs(change, field):
    first, second = compare(plan_of(), plan_of(**change))
    assert f"rank 0 → rank 1: {field}" in first
    assert "rank 1 → rank 0" in second


def test_a_rank_that_resumed_elsewhere_is_named():
    assert "step 0 → 3" in compare(plan_of(), {**plan_of(), "step": 3})[0]


def test_a_rank_that_does_not_come_is_an_error_that_names_it():
    with pytest.raises(PlanMismatch, match=r"rank 0 has waited 0 s for ranks \[1, 2\]"):
        agree(plan_of(), rank=0, others=range(3), board=board(), patience=0.1)


def test_without_torch_distributed_ranks_are_told_that_they_are_not_compared(caplog):
    """Once: two loaders of one process say it together."""
    for _ in range(2):
        loader = Loader(ps.open(RECORDS), batch_size=2, rank=0, world_size=2, run_id="a run")
        assert next(iter(loader)).step == 0
    assert caplog.text.count("ranks do not compare their plans before they begin") <= 1


def test_a_mesh_says_it_alone():
    with pytest.raises(PlanError, match="leave out rank, world_size and model_parallel_size"):
        Loader(ps.open(RECORDS), batch_size=2, mesh="dp", rank=0, world_size=2)
