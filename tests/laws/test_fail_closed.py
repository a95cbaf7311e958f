"""Law 8: another dataset, option or version is refused by name.  And golden files: the order of 17 recipes, pinned."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import PlanError, PlanMismatch, UnevenTail
from penstock.fingerprint import digest
from penstock.plan import Plan, PlanSettings, PlanSource, Position
from penstock.plan import plan as plan_module
from penstock.plan.settings import BALANCE, weights_as_text

GOLDEN = Path(__file__).parent.parent / "golden" / "orders.json"
SIZES = np.array([400, 350, 0, 600], np.int64)


def make(settings: PlanSettings, *, names=("chat", "math"), key="k", sizes=SIZES) -> Plan:
    """Lengths by arithmetic, so that golden orders depend on nothing but the plan."""
    sources = [PlanSource(name=name, key=f"{key}-{name}", shard_sizes=sizes) for name in names]
    return Plan(
        sources,
        lambda source, samples: (samples * 7919 + source * 31) % 257,
        settings,
        targets=targets,
    )


def targets(source: int, samples: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Every third sample is trained in its last tokens only."""
    return (samples % 3 > 0) | (stops > 150)


BASE = PlanSettings(max_length=512)
CHANGES = {
    "max_length": 1024,
    "packing": "first_fit",
    "on_overlong": "split",
    "overlap": True,  # against a plan with packing: concat
    "shuffle": False,
    "shuffle_window": 3,
    "seed": 1,
    "last_step": "drop",
    "weights": ("1", "2"),
    "mix_by": "tokens",  # these two against a weighted plan
    "stopping_strategy": "all_exhausted",
    "block": 100,
    "align": 8,
    "max_per_row": 4,
    "balance": "block",
    "balance_rows": 100,  # these three against a plan with balance: block
    "cost_attention": 2,
    "cost_linear": 100,
    "objective": "fim",
}
OF_EXTRAS = {"objective": "objectives"}
FIELDS = [
    pytest.param(name, marks=[pytest.mark.extra(OF_EXTRAS[name])] if name in OF_EXTRAS else [])
    for name in CHANGES
]


@pytest.mark.parametrize("field", FIELDS)
def test_every_setting_is_part_of_the_fingerprint_and_named_in_the_refusal(field):
    assert set(CHANGES) == set(PlanSettings.__slots__), "a new setting needs a line in CHANGES"
    base = (
        replace(BASE, weights=("1", "3"))
        if field in ("weights", "mix_by", "stopping_strategy")
        else BASE
    )
    base = replace(BASE, balance="block") if field in BALANCE[1:] else base
    base = replace(BASE, packing="concat") if field == "overlap" else base
    mine, other = make(base), make(replace(base, **{field: CHANGES[field]}))
    assert mine.fingerprint != other.fingerprint
    for a, b in ((mine, other), (other, mine)):
        with pytest.raises(
            PlanMismatch, match=rf"{field} .*belongs to plan {a.fingerprint[:8]}"
        ) as caught:
            b.check_summary(a.fingerprint, json.loads(json.dumps(a.summary())))
        assert str(caught.value).count(" → ") == 1  # nothing else is blamed


def test_how_ranks_share_a_step_is_not_part_of_the_fingerprint():
    """It moves no row of the global order: a run may change it at any step, and states of releases before it resume."""
    for other in (
        {"balance": "none"},
        {"cost_linear": 9},
        {"cost_attention": 2},
        {"balance_rows": 3},
    ):
        assert make(replace(BASE, **other)).identity == make(BASE).identity
    assert not set(BALANCE) & set(make(BASE).identity)


def test_other_data_is_refused_by_the_name_of_its_source():
    mine = make(BASE)
    summary = json.loads(json.dumps(mine.summary()))
    for other, reason in [
        (make(BASE, key="changed"), r"content of source 'chat' \"\w{8}\" → \"\w{8}\""),
        (make(BASE, sizes=SIZES + 1), r"content of source 'math' \"\w{8}\" → \"\w{8}\""),
        (
            make(BASE, names=("chat", "code")),
            r"source 'code' absent → \"\w{8}\"; content of source 'math' \"\w{8}\" → absent",
        ),
        (make(BASE, names=("math", "chat")), r'sources \["chat", "math"\] → \["math", "chat"\]'),
    ]:
        with pytest.raises(PlanMismatch, match=reason):
            other.check_summary(mine.fingerprint, summary)
    make(BASE).check_summary(mine.fingerprint, summary)  # the same plan, built again


def test_a_new_order_version_is_refused(monkeypatch):
    mine = make(BASE)
    fingerprint, summary = mine.fingerprint, mine.summary()
    monkeypatch.setattr(plan_module, "ORDER_VERSION", plan_module.ORDER_VERSION + 1)
    with pytest.raises(PlanMismatch, match="order_version 3 → 4"):
        make(BASE).check_summary(fingerprint, summary)


def test_a_hundred_sources_still_fit_into_a_small_state():
    names = tuple(f"source number {i} with a long name" for i in range(100))
    weights = weights_as_text([0.1 + i / 7 for i in range(100)])
    plan = make(replace(BASE, weights=weights), names=names)
    assert len(json.dumps(plan.summary())) < 700
    other = make(replace(BASE, weights=weights), names=names, key="other")
    with pytest.raises(PlanMismatch, match=r"content of source '\(all together\)' "):
        other.check_summary(plan.fingerprint, json.loads(json.dumps(plan.summary())))


def test_plans_that_cannot_be_are_refused():
    with pytest.raises(PlanError, match="distinct names"):
        make(BASE, names=("a", "a"))
    with pytest.raises(PlanError, match="1 weights for 2 sources"):
        make(replace(BASE, weights=("1",)))
    with pytest.raises(PlanError, match="'chat' has a weight but no samples"):
        make(replace(BASE, weights=("1", "1")), sizes=np.zeros(3, np.int64))
    with pytest.raises(
        PlanError, match="shuffle_window is None, expected a whole number ≥ 1 or auto or all"
    ):
        replace(BASE, shuffle_window=None)


@pytest.mark.parametrize("mix_by", ["samples", "tokens"])
def test_a_source_of_which_everything_is_dropped_cannot_give_its_share(mix_by):
    settings = replace(BASE, weights=("1", "1"), mix_by=mix_by, max_length=16)
    dead = Plan(
        make(settings).sources, lambda source, samples: np.full(samples.size, 100), settings
    )
    with pytest.raises(PlanError, match="'chat': all 1,350 samples are empty or dropped"):
        dead.step(Position(), 4)


def test_an_uneven_tail_is_an_error_when_asked_for():
    plan = make(replace(BASE, last_step="error"))
    rows = plan.num_rows(0)
    assert plan.num_steps(rows, epochs=1) == 1
    with pytest.raises(
        UnevenTail, match=f"epoch 0 has {rows} rows, which do not divide into steps of {rows - 1}"
    ):
        plan.num_steps(rows - 1, epochs=1)
    with pytest.raises(UnevenTail, match=r"epoch 0 ends with a step of 1 of"):
        list(plan.steps(num_rows=rows - 1, epochs=1))


def test_an_endless_plan_of_nothing_stops_with_a_reason():
    nothing = Plan(
        make(BASE).sources, lambda source, samples: np.zeros(samples.size, np.int64), BASE
    )
    assert nothing.step(Position(), 4, epochs=3) is None
    assert nothing.num_steps(4, epochs=3) == 0
    for last_step in ("pad", "wrap", "drop", "repeat"):
        endless = Plan(nothing.sources, nothing._lengths, replace(BASE, last_step=last_step))
        with pytest.raises(PlanError, match="epochs in a row gave no step"):
            endless.step(Position(), 4, epochs=None)
        with pytest.raises(PlanError, match="epochs in a row gave no step"):
            endless.seek(3, 4, epochs=None)


GOLDEN_RECIPES = {
    "mixed fit": BASE,
    "mixed fit, seed 1": replace(BASE, seed=1),
    "best fit": replace(BASE, packing="best_fit"),
    "full shuffle": replace(BASE, shuffle_window="all"),
    "no shuffle": replace(BASE, shuffle=False),
    "one shard at a time": replace(BASE, shuffle_window=1),
    "first fit": replace(BASE, packing="first_fit"),
    "next fit": replace(BASE, packing="next_fit"),
    "window of 50": replace(BASE, packing="window_50"),
    "concat, aligned": replace(BASE, packing="concat", align=8),
    "concat, overlap": replace(BASE, packing="concat", overlap=True),
    "concat, rows shorter than samples": replace(BASE, packing="concat", max_length=40),
    "truncated": replace(BASE, on_overlong="truncate", max_length=100),
    "grouped by length": replace(BASE, packing="group_16"),
    "unpacked, wrapped": replace(BASE, packing="none", last_step="wrap"),
    "split, small blocks": replace(
        BASE, on_overlong="split", max_length=100, block=200, max_per_row=3
    ),
    "weighted by rows": replace(
        BASE, weights=("0.7", "0.3"), stopping_strategy="all_exhausted", last_step="repeat"
    ),
    "rows of similar cost together": replace(BASE, balance="block", balance_rows=20),
    "weighted by tokens": replace(BASE, weights=("0.7", "0.3"), mix_by="tokens", last_step="drop"),
}


def order_digest(settings: PlanSettings) -> dict:
    steps = list(make(settings).steps(num_rows=8, epochs=2))
    content = b"".join(step.rows.spans.tobytes() + step.rows.starts.tobytes() for step in steps)
    return {
        "fingerprint": make(settings).fingerprint,
        "steps": len(steps),
        "order": digest(content),
    }


@pytest.mark.parametrize("name", GOLDEN_RECIPES)
def test_golden_orders_stay(name):
    """If this fails, a saved run would go on with other data: raise ORDER_VERSION, announce it under "Data order", pin again."""
    golden = json.loads(GOLDEN.read_text())
    assert golden["order_version"] == plan_module.ORDER_VERSION
    assert set(golden["recipes"]) == set(GOLDEN_RECIPES)
    assert order_digest(GOLDEN_RECIPES[name]) == golden["recipes"][name]


if __name__ == "__main__":  # python -m tests.laws.test_fail_closed pins the orders again
    GOLDEN.parent.mkdir(exist_ok=True)
    recipes = {name: order_digest(settings) for name, settings in GOLDEN_RECIPES.items()}
    GOLDEN.write_text(
        json.dumps({"order_version": plan_module.ORDER_VERSION, "recipes": recipes}, indent=1)
        + "\n"
    )
