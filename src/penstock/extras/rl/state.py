"""The saved state of Prompts: which ordinals are not settled, as a small JSON value that is tied to a plan."""

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from penstock.errors import PlanError, PlanMismatch
from penstock.extras.rl.leases import Leases, Returned
from penstock.fingerprint import fingerprint
from penstock.plan.plan import Plan
from penstock.settings import whole_number
from penstock.words import shortened

VERSION = 1
MOST_NOTE_BYTES = 4096

_FIELDS = {
    "version",
    "kind",
    "plan",
    "settings",
    "frontier",
    "next",
    "done",
    "dropped",
    "open",
    "notes",
    "check",
}
_KIND = "prompts"
_OLDER = "use an older checkpoint"


def make_state(plan: Plan, leases: Leases, used: list[Any] | None = None) -> dict[str, Any]:
    """Return the state.  `open` lists, for every ordinal that is not settled, its distance from the one before and its next attempt.

    used: of a stream, which of its records the run has used.
    """
    unsettled = leases.unsettled()
    before = leases.frontier
    pairs = []
    for ordinal, each in unsettled.items():
        pairs += [ordinal - before, each.attempt]
        before = ordinal
    state: dict[str, Any] = {
        "version": VERSION,
        "kind": _KIND,
        "plan": plan.fingerprint,
        "settings": plan.summary(),
        "frontier": leases.frontier,
        "next": leases.next,
        "done": leases.done,
        "dropped": dict(leases.dropped),
        "open": pairs,
        "notes": {
            str(ordinal): each.note for ordinal, each in unsettled.items() if each.note is not None
        },
    }
    if used is not None:
        state["stream"] = used
    return {**state, "check": _check(state)}


def read_state(state: Any, plan: Plan, *, total: int | None) -> dict[str, Any]:
    """Return the arguments of `Leases.restore`; refuse the state of another plan and a damaged one, by name."""
    if not isinstance(state, dict) or state.get("kind") != _KIND:
        raise PlanMismatch(
            "this is not a state of Prompts: expected the dict that state_dict() of Prompts returned"
        )
    if state.get("version") != VERSION:
        raise PlanMismatch(
            f"the state has version {state.get('version')!r}, this release reads version {VERSION}"
        )
    fields = set(_FIELDS)
    if plan.is_stream:
        fields.add("stream")
    if isinstance(state.get("plan"), str) and isinstance(state.get("settings"), dict):
        plan.check_summary(state["plan"], state["settings"])
    if other := sorted(map(str, state.keys() ^ fields)):
        raise PlanMismatch(
            f"the state is damaged: field {other[0]!r} is missing or unknown; {_OLDER}"
        )
    try:
        is_whole = (
            _check({name: value for name, value in state.items() if name != "check"})
            == state["check"]
        )
    except (TypeError, ValueError) as error:
        raise PlanMismatch(
            f"the state is damaged: it is not plain JSON: {error}; {_OLDER}"
        ) from None
    if not is_whole:
        raise PlanMismatch(
            f"the state is damaged: its content does not have the digest in its check; {_OLDER}"
        )
    if plan.stream is not None:
        plan.stream.check_journal(state)
    return _read_fields(state, total)


def _read_fields(state: dict[str, Any], total: int | None) -> dict[str, Any]:
    numbers = {name: _number(name, state[name]) for name in ("frontier", "next", "done")}
    pairs = state["open"]
    notes = state["notes"]
    dropped = state["dropped"]
    if not isinstance(pairs, list) or len(pairs) % 2:
        raise _damaged("open", pairs, "a list of distances and attempts")
    gaps, attempts = ([_number("open", each) for each in pairs[start::2]] for start in (0, 1))
    if not isinstance(notes, Mapping) or not isinstance(dropped, Mapping):
        raise _damaged("notes", notes, "a dict, as `dropped`")
    ordinals = [numbers["frontier"] + distance for distance in accumulate(gaps)]
    unsettled = {
        ordinal: Returned(attempt=attempt, note=notes.get(str(ordinal)))
        for ordinal, attempt in zip(ordinals, attempts, strict=True)
    }
    counts = {str(why): _number("dropped", count) for why, count in dropped.items()}
    settled = numbers["done"] + sum(counts.values())
    if settled + len(unsettled) != numbers["next"] or len(unsettled) < len(ordinals):
        expected = f"next ({numbers['next']:,}) to be done ({settled:,} with dropped) and open ({len(unsettled):,}) together"
        raise _damaged("next", numbers["next"], expected)
    if total is not None and numbers["next"] > total:
        raise PlanMismatch(
            f"cannot resume: the state has given {numbers['next']:,} prompts, and this run has {total:,}; raise epochs"
        )
    return {
        "next": numbers["next"],
        "done": numbers["done"],
        "dropped": counts,
        "unsettled": unsettled,
    }


def _number(name: str, value: Any) -> int:
    try:
        return whole_number(name, value, least=0)
    except PlanError:
        raise _damaged(name, value, "a whole number ≥ 0") from None


def _damaged(name: str, value: Any, expected: str) -> PlanMismatch:
    return PlanMismatch(
        f"the state is damaged: {name} is {shortened(repr(value), 60)}, expected {expected}; {_OLDER}"
    )


def _check(state: Mapping[str, Any]) -> str:
    return fingerprint(json.loads(json.dumps(state, allow_nan=False)))[:16]
