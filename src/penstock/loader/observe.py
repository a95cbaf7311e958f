"""What looks on while batches are delivered.  Observers never change a batch or the order.

In the core: metrics, counters, the status file, the agreement of ranks.  Others are plugins of the group `observers`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock import plugins
from penstock.loader.batch import Batch
from penstock.loader.run import Run
from penstock.plan.plan import NumberedStep

if TYPE_CHECKING:
    from penstock.loader.loader import Loader


class Observer(Protocol):
    """Looks on.  A plugin is a function without arguments that returns one."""

    def attach(self, loader: "Loader") -> None:
        """A Loader is made, or gives its rows to another one's loop; some trainers have to be prepared then."""

    def begin(self, run: Run) -> None:
        """A loop begins here, or goes on here after a change of its mixture; may raise."""

    def step(self, run: Run, step: NumberedStep, batch: Batch) -> None:
        """A step was delivered, with this rank's rows; `run` is the run after it."""

    def end(self, run: Run) -> None:
        """A loop has delivered its last step."""


def observers_of_plugins() -> list[Observer]:
    """Return an observer of every plugin."""
    makers: list[Callable[[], Observer]] = [make for _, make in plugins.every("observers")]
    return [make() for make in makers]
