"""Does this saved state fit this plan, and where does it stand?"""

from dataclasses import dataclass
from typing import Any

from penstock.errors import PlanMismatch
from penstock.loader import Loader


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFit:
    """`why` names what differs, or where the run stands and what is left of it."""

    fits: bool
    why: str
    step: int | None = None
    epoch: int | None = None
    steps_left: int | None = None  # under this batch and world size


def compare(loader: Loader, state: dict[str, Any]) -> StateFit:
    """Loads the state into the loader; a state of another plan is an answer, not an error."""
    try:
        loader.load_state_dict(state)
    except PlanMismatch as error:
        return StateFit(fits=False, why=str(error))
    now = loader.state_dict()
    step, epoch = int(now["step"]), int(now["epoch"])
    left = loader.steps_left
    rest = "" if left is None else f", {left:,} steps left"
    return StateFit(
        fits=True, why=f"fits: goes on at step {step:,} in epoch {epoch}{rest}", step=step, epoch=epoch, steps_left=left
    )
