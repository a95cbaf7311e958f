"""The saved state of a run: a cursor as a small JSON value, the same on every rank; and the refusal of anything else."""

import json
from typing import Any

from penstock.errors import PlanError, PlanMismatch
from penstock.fingerprint import fingerprint
from penstock.loader.passes import Cursor
from penstock.plan.plan import Plan, Position
from penstock.plan.settings import whole_number

VERSION = 2  # 2: pass_step

_NUMBERS = ("epoch", "block", "row", "rows", "step", "pass_step")
_FIELDS = {"version", "plan", "settings", *_NUMBERS}
_LARGEST = 1 << 62  # of any number here: what is counted with them fits into 64 bits


def make_state(plan: Plan, cursor: Cursor) -> dict[str, Any]:
    """`epoch`, `block` and `row` say what comes next; `rows` and `step` count what was handed over, `pass_step` the part of `step` that
    came before the pass under way."""
    position = cursor.position
    state = {
        "version": VERSION,
        "plan": plan.fingerprint,
        "settings": plan.summary(),
        "epoch": position.epoch,
        "block": position.block,
        "row": position.row,
        "rows": position.rows,
        "step": cursor.step,
        "pass_step": cursor.pass_step,
    }
    return {**state, "check": _check(state)}


def read_state(state: Any, plan: Plan) -> Cursor:
    """The cursor of a state that belongs to `plan`; anything else is refused by field.  `check_place` looks at what may need lengths."""
    content = _plain(state)
    plan.check_summary(content["plan"], content["settings"])
    position = Position(epoch=content["epoch"], block=content["block"], row=content["row"], rows=content["rows"])
    if content["pass_step"] > content["step"]:
        raise _damaged("pass_step", content["pass_step"], f"at most step, which is {content['step']}")
    samples = max(1, sum(int(source.shard_sizes.sum()) for source in plan.sources))
    if position.epoch > _LARGEST // samples:
        raise _damaged("epoch", position.epoch, f"at most {_LARGEST // samples:_}")
    return Cursor(position=position, step=content["step"], pass_step=content["pass_step"])


def check_place(plan: Plan, position: Position) -> None:
    """Refuse a block that its epoch does not have, and a row that its block does not have.

    Counts the rows of one block.
    """
    if (position.block or position.row) and plan.blocks.shards(position.epoch, position.block) is None:
        raise _damaged("block", position.block, f"a block that epoch {position.epoch} has")
    rows = (plan.blocks.num_rows(position.epoch, position.block) or 0) if position.row else 1
    if position.row >= rows:
        raise _damaged("row", position.row, f"less than {rows}, the rows of block {position.block}")


def _plain(state: Any) -> dict[str, Any]:
    """The fields of a state, each of its type, as state_dict() returned them."""
    if not isinstance(state, dict) or "version" not in state or "plan" not in state:
        raise PlanMismatch("this is not a Penstock state: expected the dict that state_dict() returned")
    if type(state["version"]) is not int or state["version"] != VERSION:
        raise PlanMismatch(f"the state has version {_short(state['version'])}, this release reads version {VERSION}")
    if state.keys() != {*_FIELDS, "check"}:
        other = sorted(map(str, state.keys() ^ {*_FIELDS, "check"}))
        raise PlanMismatch(f"the state is damaged: field {other[0]!r} is missing or unknown; take an older checkpoint")
    content = {name: state[name] for name in _FIELDS}
    for name, kind, words in (("plan", str, "text"), ("check", str, "text"), ("settings", dict, "a dict")):
        if not isinstance(state[name], kind):
            raise _damaged(name, state[name], words)
    for name in _NUMBERS:
        try:
            content[name] = whole_number(name, state[name], least=0)
        except PlanError:
            raise _damaged(name, state[name], "a whole number ≥ 0") from None
        if content[name] > _LARGEST:
            raise _damaged(name, content[name], f"at most {_LARGEST:_}")
    try:
        content["settings"] = json.loads(json.dumps(state["settings"], allow_nan=False))  # keys become text
        check = _check(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanMismatch(
            f"the state is damaged: settings is not plain JSON: {error}; take an older checkpoint"
        ) from None
    if state["check"] != check:
        raise PlanMismatch("the state is damaged: it is not as state_dict() returned it; take an older checkpoint")
    return content


def _damaged(name: str, value: Any, expected: str) -> PlanMismatch:
    return PlanMismatch(
        f"the state is damaged: {name} is {_short(value)}, expected {expected}; take an older checkpoint"
    )


def _short(value: Any) -> str:
    """A value in a message; Python refuses to print integers of more than a few thousand digits."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _check(content: dict[str, Any]) -> str:
    """A changed digit would be a position, too, only another one: the state carries its own digest."""
    return fingerprint(content)[:16]
