"""Where a loader is: its position, state and steps, and how it goes elsewhere.  What it hands over is in loader.py."""

from bisect import bisect_right
from typing import Any

from penstock.errors import PlanError
from penstock.loader.passes import Cursor, Passes
from penstock.loader.state import check_place, make_state, read_state
from penstock.plan.plan import Plan, Step
from penstock.plan.settings import whole_number
from penstock.store import Store
from penstock.types import World


class Run:
    """The part of a Loader that knows where it is."""

    plan: Plan
    stores: list[Any]
    world: World
    batch_size: int

    def __init__(self, *, epochs: int | None, per_epoch: bool, skip: frozenset[int]) -> None:
        self.epochs, self.per_epoch, self._skip = epochs, per_epoch, skip
        self._cursor = Cursor()
        self._anchors = [self._cursor]  # where this loader began, and where each pass after that began
        self._is_loaded = False  # a state was loaded, and nothing was iterated over since
        self._is_at_end = False  # of the epoch that set_epoch asked for after that: nothing is left of it
        self._walks = 0  # iterations begun; an older one must not go on beside a newer

    @property
    def _rows_per_step(self) -> int:
        return self.batch_size * self.world.size

    @property
    def _passes(self) -> Passes:
        return Passes(
            plan=self.plan,
            epochs=self.epochs,
            per_epoch=self.per_epoch,
            num_rows=self._rows_per_step,
            skip=self._skip,
        )

    @property
    def _is_under_way(self) -> bool:
        """Whether some store is still being made."""
        return any(isinstance(store, Store) and store.manifest is None for store in self.stores)

    def __len__(self) -> int:
        """Steps of the pass under way; after a resume, those before it and those that are left with this batch and world size.

        With per_epoch, steps of the epoch under way.  A pass that has ended is under way until the next one begins.
        """
        if self.epochs == 0:
            return 0
        if self.per_epoch:
            return self._passes.epoch_length(self._cursor)
        if self.epochs is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        return self._passes.length(self._anchors[-1])

    @property
    def first_step(self) -> int:
        """Where this loader began: step 0, or the step of the state that was loaded."""
        return self._anchors[0].step

    @property
    def finished(self) -> bool:
        """Whether the loop under way has handed over its last step; the next loop then is the next pass.

        True after the state of a finished pass was loaded, too.  Then the first loop hands over nothing, since nothing is left of that
        pass, and the second is the next pass.
        """
        return self._passes.is_over(self._cursor)

    @property
    def steps_left(self) -> int | None:
        """Steps that the loop under way has still to hand over, without those that skip passes over; None where there is no end."""
        return self._passes.steps_left(self._cursor)

    def state_dict(self) -> dict[str, Any]:
        """How far all ranks together have come; small, plain JSON, the same on every rank."""
        return make_state(self.plan, self._cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken, under whatever ranks and batch size.

        The next loop hands over what is left of the pass in which it was taken: nothing, if that had ended.
        """
        cursor = read_state(state, self.plan)
        if not self._is_under_way:
            check_place(self.plan, cursor.position)
        self._go_to(cursor, is_loaded=True)
        self._anchors = [cursor]
        self._refuse_uneven()

    def seek(self, step: int) -> None:
        """Go to step `step` of the run, counted with this loader's batch and world size; the next iteration starts there.

        As far as the end of the pass under way; `set_epoch` goes to a later one.
        """
        step = whole_number("step", step, least=0)
        self._go_to(self._find(step, f"cannot seek to step {step}"))
        self._anchors = [anchor for anchor in self._anchors if anchor.step <= step]

    def restart(self) -> None:
        """Go back to the start of the pass under way, for an evaluation that sees the same batches each time."""
        self._start_at(self._passes.first(self._cursor))

    def set_epoch(self, epoch: int) -> None:
        """The next iteration starts with this epoch; a loader in the middle of it stays where it is.

        After a state of the end of this epoch was loaded, the next iteration hands over nothing.
        """
        epoch, here = whole_number("epoch", epoch, least=0), self._cursor.position
        at_start = not (here.block or here.row)
        if self._is_loaded and at_start and here.epoch == epoch + 1 and self._cursor.has_begun:
            self._is_at_end = True
        elif here.epoch != epoch or (self._passes.is_over(self._cursor) and (at_start or not self._is_loaded)):
            self._start_at(self._passes.begin(epoch, self._cursor))

    def _start_at(self, cursor: Cursor) -> None:
        """The next iteration begins a pass at `cursor`."""
        self._go_to(cursor)
        self._anchors = [*(anchor for anchor in self._anchors if anchor.step < cursor.step), cursor]

    def _go_to(self, cursor: Cursor, *, is_loaded: bool = False) -> None:
        """The next iteration begins at `cursor`; one that is under way must not go on."""
        self._cursor, self._is_loaded, self._is_at_end = cursor, is_loaded, False
        self._walks += 1

    def look_up(self, step: int) -> Step:
        """What all ranks are handed at `step`: any step since this loader began, up to the end of the pass under way."""
        step = whole_number("step", step, least=0)
        cursor = self._find(step, f"step {step} is not there")
        found = self.plan.step(cursor.position, self._rows_per_step, epochs=self._passes.end(cursor))
        if found is None:
            raise PlanError(f"step {step} is not there: the run has {step} steps, counted from 0")
        return found

    def _find(self, step: int, wrong: str) -> Cursor:
        """The cursor before a step of a pass that has begun; `wrong` begins the error if there is no such step."""
        place = bisect_right(self._anchors, step, key=lambda anchor: anchor.step) - 1
        if place < 0:
            raise PlanError(
                f"step {step} lies before step {self.first_step}, where this loader resumed, and steps may have had another "
                f"size then; ask a loader that starts where that run started"
            )
        anchor, end = self._anchors[place], self._passes.end(self._anchors[place])
        if end is not None and step > anchor.step:
            total = self.plan.num_steps(self._rows_per_step, epochs=end, start=anchor.position)
            if step > anchor.step + total:
                raise PlanError(
                    f"{wrong}: the run has {anchor.step + total} steps of {self._rows_per_step} rows, counted from 0"
                )
        position = self.plan.seek(step - anchor.step, self._rows_per_step, epochs=end, start=anchor.position)
        return Cursor(position=position, step=step, pass_step=anchor.pass_step)

    def start_of_next_loop(self) -> Cursor:
        """Where the next loop over this loader begins."""
        return self._cursor if self._is_loaded else self._next()

    def _next(self) -> Cursor:
        passes, cursor = self._passes, self._cursor
        while passes.is_over(cursor):  # more than once where an epoch of a per_epoch loader holds nothing
            cursor = passes.next(cursor)
        return cursor

    def _begin(self) -> bool:
        """Go on to the next pass if the one under way has ended.  False where nothing is left of the pass of a loaded state."""
        if self._is_loaded:
            check_place(self.plan, self._cursor.position)
            is_over = self._is_at_end or self._passes.is_over(self._cursor)
            self._is_loaded = self._is_at_end = False
            return not is_over
        cursor = self._next()
        if cursor.pass_step != self._cursor.pass_step:
            self._anchors.append(cursor)
            self._refuse_uneven()
        self._cursor = cursor
        return True

    def _refuse_uneven(self) -> None:
        """Under tail="error", say now what would fail at the epoch's end."""
        anchor = self._anchors[-1]
        epochs = self._passes.end(anchor)
        if epochs is None:  # the first epoch of many, unless that would wait for a store that is being made
            epochs = anchor.position.epoch + (not self._is_under_way)
        if self.plan.settings.tail == "error":
            self.plan.num_steps(self._rows_per_step, epochs=epochs, start=anchor.position)
