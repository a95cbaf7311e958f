"""Where a run is, which pass that belongs to, and the saved state: a small JSON value, the same on every rank.

A pass is one loop over a Loader: `epochs` epochs, or one epoch with per_epoch=True.  With shuffle, pass p of a Loader with E epochs covers
epochs p·E … (p + 1)·E - 1.  Without shuffle, every pass covers epochs 0 … E - 1: the same rows in the same order.  All of it follows from
the cursor, which is what a state holds.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.errors import PlanError, PlanMismatch
from penstock.fingerprint import fingerprint
from penstock.plan.plan import Plan, Position
from penstock.settings import whole_number
from penstock.words import shortened

VERSION = 3  # 2: pass_step; 3: sources as a list, whose order sorted keys do not change

_NUMBERS = ("epoch", "block", "row", "rows", "step", "pass_step")
_FIELDS = sorted({"version", "plan", "settings", *_NUMBERS})
_JOURNAL = "journal"  # only of a run whose mixture changes
_LARGEST = 1 << 62  # of any number in a state: sums of them fit into 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a run has come.  Steps are counted over all passes: each has one number in the whole run."""

    position: Position = field(default_factory=Position)
    step: int = 0  # steps delivered since the run began
    pass_step: int = 0  # those of them before the current pass

    @staticmethod
    def of(epoch: int, block: int, row: int, rows: int, step: int, pass_step: int) -> "Cursor":
        return Cursor(
            position=Position(epoch=epoch, block=block, row=row, rows=rows),
            step=step,
            pass_step=pass_step,
        )

    def numbers(self) -> dict[str, int]:
        """The arguments of `of`, by name."""
        return {**asdict(self.position), "step": self.step, "pass_step": self.pass_step}

    @property
    def has_begun(self) -> bool:
        """Whether a step of the current pass was delivered."""
        return self.step > self.pass_step

    def begin_pass(self, epoch: int) -> "Cursor":
        """Return the start of a pass at `epoch`, after everything that this cursor has counted."""
        return Cursor(
            position=Position(epoch=epoch, rows=self.position.rows),
            step=self.step,
            pass_step=self.step,
        )


def make_state(plan: Plan, cursor: Cursor) -> dict[str, Any]:
    """Return the state: `epoch`, `block` and `row` say what comes next; `rows`, `step` and `pass_step` count what was delivered."""
    state = {
        "version": VERSION,
        "plan": plan.fingerprint,
        "settings": plan.summary(),
        **cursor.numbers(),
    }
    if plan.has_changes:
        here = cursor.position
        start = plan.blocks.segment_of(here.epoch, here.block).start
        state["journal"] = {"mixtures": plan.identity["mixtures"], "start": start.as_json()}
    elif plan.stream is not None:
        here = cursor.position
        state["journal"] = plan.stream.journal_at(here.epoch, here.block + (here.row > 0))
    return {**state, "check": _check(state)}


def read_state(state: Any, plan: Plan) -> Cursor:
    """Return the cursor of a state of `plan`; refuse anything else and name the field.  `check_position` checks what needs lengths."""
    content = checked(state, plan)
    if content.get(_JOURNAL) is not None and not plan.has_changes and not plan.is_stream:
        raise PlanMismatch(
            "the mixture of the state's run changed; load the state into the Loader, load_state_dict(state), before making a dataset of it"
        )
    plan.check_summary(content["plan"], content["settings"])
    if plan.stream is not None:
        plan.stream.check_journal(content.get(_JOURNAL))
    cursor = Cursor.of(*(content[name] for name in _NUMBERS))
    if cursor.pass_step > cursor.step:
        raise _damaged("pass_step", cursor.pass_step, f"at most step, which is {cursor.step}")
    most = _LARGEST // max(1, sum(source.num_samples for source in plan.sources))
    if cursor.position.epoch > most:
        raise _damaged("epoch", cursor.position.epoch, f"at most {most:,}")
    return cursor


def check_position(plan: Plan, position: Position) -> None:
    """Refuse a block that its epoch does not have, and a row that its block does not have.  Counts the rows of one block."""
    is_inside = position.block or position.row
    if is_inside and not plan.blocks.has(position.epoch, position.block):
        raise _damaged("block", position.block, f"a block that epoch {position.epoch} has")
    rows = (plan.blocks.num_rows(position.epoch, position.block) or 0) if position.row else 1
    if position.row >= rows:
        raise _damaged("row", position.row, f"less than {rows}, the rows of block {position.block}")


def window_of_state(state: Any) -> int | str | None:
    """Return the window with which a saved run began; None for anything but a state."""
    settings = state.get("settings") if isinstance(state, dict) else None
    window = settings.get("shuffle_window", "auto") if isinstance(settings, dict) else None
    return window if window == "auto" or type(window) is int else None


def checked(state: Any, plan: Plan) -> dict[str, Any]:
    """Return the fields of a state, each of its type, as state_dict() returned them."""
    if not isinstance(state, dict) or "version" not in state or "plan" not in state:
        raise PlanMismatch(
            "this is not a Penstock state: expected the dict that state_dict() returned"
        )
    if type(state["version"]) is not int or state["version"] != VERSION:
        raise PlanMismatch(
            f"the state has version {_short(state['version'])}, this release reads version {VERSION}"
        )
    if other := sorted(map(str, (state.keys() ^ {*_FIELDS, "check"}) - {_JOURNAL})):
        raise PlanMismatch(
            f"the state is damaged: field {other[0]!r} is missing or unknown; use an older checkpoint"
        )
    for name, kind, expected in (
        ("plan", str, "text"),
        ("check", str, "text"),
        ("settings", dict, "a dict"),
    ):
        if not isinstance(state[name], kind):
            raise _damaged(name, state[name], expected)
    content = {name: state[name] for name in sorted(state.keys() - {"check"})}
    for name in _NUMBERS:
        try:
            content[name] = whole_number(name, state[name], least=0)
        except PlanError:
            content[name] = _LARGEST + 1
        if content[name] > _LARGEST:
            raise _damaged(name, state[name], f"a whole number from 0 to {_LARGEST:,}")
    try:
        for name in ("settings", *([_JOURNAL] if _JOURNAL in state else [])):
            content[name] = json.loads(json.dumps(state[name], allow_nan=False))  # keys become text
        check = _check(content)
    except (TypeError, ValueError, RecursionError) as error:
        problem = (
            f"the state is damaged: settings is not plain JSON: {error}; use an older checkpoint"
        )
        raise PlanMismatch(problem) from None
    if state["check"] != check:
        changed = plan.differences(content["settings"])
        found = f" (in the state → in this Loader: {'; '.join(changed)})" if changed else ""
        raise PlanMismatch(
            f"the state is damaged: it was altered since it was saved{found}; use an older checkpoint"
        )
    return {**content, "check": check}


def _damaged(name: str, value: Any, expected: str) -> PlanMismatch:
    return PlanMismatch(
        f"the state is damaged: {name} is {_short(value)}, expected {expected}; use an older checkpoint"
    )


def _short(value: Any) -> str:
    """Return a value for a message; Python refuses to print integers of more than a few thousand digits."""
    if isinstance(value, int) and abs(value) >= 1 << 128:
        return f"an integer of {value.bit_length()} bits"
    return shortened(repr(value), 60)


def _check(content: dict[str, Any]) -> str:
    """The digest of all fields: a changed number would be another valid position."""
    return fingerprint(content)[:16]
