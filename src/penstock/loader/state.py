"""Where is this run?  A position as a small JSON value, the same on every rank; and the refusal of any other run's."""

from typing import Any

from penstock.errors import PlanMismatch
from penstock.fingerprint import fingerprint
from penstock.plan.plan import Plan, Position

VERSION = 1


def make_state(plan: Plan, position: Position, step: int) -> dict[str, Any]:
    state = {
        "version": VERSION,
        "plan": plan.fingerprint,
        "settings": plan.summary(),
        "epoch": position.epoch,
        "block": position.block,
        "row": position.row,
        "rows": position.rows,
        "step": step,
    }
    return {**state, "check": _check(state)}


def read_state(state: dict[str, Any], plan: Plan) -> tuple[Position, int]:
    """(position, step) of a state that belongs to `plan`; anything else is refused by name."""
    if not isinstance(state, dict) or not isinstance(state.get("version"), int):
        raise PlanMismatch("this is not a Penstock state: expected the dict that state_dict() returned")
    if state["version"] != VERSION:
        raise PlanMismatch(f"the state has version {state['version']}, this release reads version {VERSION}")
    content = {key: value for key, value in state.items() if key != "check"}
    if content.keys() != make_state(plan, Position(), 0).keys() - {"check"} or state.get("check") != _check(content):
        raise PlanMismatch("the state is damaged: it is not as state_dict() returned it; take an older checkpoint")
    plan.check_summary(state["plan"], state["settings"])
    position = Position(epoch=state["epoch"], block=state["block"], row=state["row"], rows=state["rows"])
    return position, state["step"]


def _check(content: dict[str, Any]) -> str:
    """A changed digit would be a position, too, only another one: the state carries its own digest."""
    return fingerprint(content)[:16]
