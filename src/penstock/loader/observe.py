"""What looks on while batches are delivered.  Observers never change a batch or the order.

In the core: metrics, counters, the status file, the agreement of ranks.  Others are plugins of the group `observers`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from penstock import plugins
from penstock.loader.batch import Batch, Metrics
from penstock.loader.consistency import RanksAgree
from penstock.loader.counting import Counting
from penstock.loader.run import Run
from penstock.loader.status import StatusObserver
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


class Observers:
    """All observers of a Loader: what one of them is told, all are told."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._observers)

    def append(self, observer: Observer) -> None:
        """Add one that is told what comes from now on; it knows the Loader already."""
        self._observers.append(observer)

    def attach(self, loader: "Loader") -> None:
        for observer in self._observers:
            observer.attach(loader)

    def begin(self, run: Run) -> None:
        for observer in self._observers:
            observer.begin(run)

    def step(self, run: Run, step: NumberedStep, batch: Batch) -> None:
        for observer in self._observers:
            observer.step(run, step, batch)

    def end(self, run: Run) -> None:
        for observer in self._observers:
            observer.end(run)


def observers_of(loader: "Loader", metrics: Metrics, counting: Counting) -> Observers:
    """Return what looks on at a new Loader: an observer of every plugin, then those of the core.  All know the Loader."""
    makers: list[Callable[[], Observer]] = [make for _, make in plugins.every("observers")]
    observers = [make() for make in makers]
    observers += [RanksAgree(), metrics, counting]
    if loader.settings.run_id is not None:
        observers.append(StatusObserver())
    together = Observers(observers)
    together.attach(loader)
    return together
