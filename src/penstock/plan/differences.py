"""What differs between two plans?  Their summaries compared, so that a refusal names what to put right."""

import json
from typing import Any

from penstock.plan.settings import PlanSettings

ALL = "(all together)"  # stands for many sources in a summary that must stay small


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Between summaries, in words; what is at its default is not in them."""
    mine, missing = _plain(ours), object()
    default = _plain(PlanSettings(max_length=1).as_dict())
    found = []
    for key in sorted({*mine, *theirs}):
        their, our = theirs.get(key, default.get(key, missing)), mine.get(key, default.get(key, missing))
        if key == "sources" and isinstance(their, dict):
            found += _source_differences(their, our)
        elif their != our:
            found.append(f"{key} {'absent' if their is missing else their!r} → {'absent' if our is missing else our!r}")
    return found


def _source_differences(theirs: dict[str, str], ours: dict[str, str]) -> list[str]:
    """Which sources are new, gone or changed in content."""
    found = []
    if (ALL in theirs) != (ALL in ours):
        return [
            f"another number of sources ({'many' if ALL in theirs else list(theirs)} → {'many' if ALL in ours else list(ours)})"
        ]
    for name in sorted({*theirs, *ours}):
        if name not in ours:
            found.append(f"source {name!r} is missing")
        elif name not in theirs:
            found.append(f"source {name!r} is new")
        elif theirs[name] != ours[name]:
            found.append(f"source {name!r} has other content ({theirs[name]} → {ours[name]})")
    return found or ([] if list(theirs) == list(ours) else [f"sources in another order: {list(theirs)} → {list(ours)}"])


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """As it looks after a trip through JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return plain
