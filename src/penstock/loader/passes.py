"""Where a loader is, which pass that belongs to, and what comes after the pass.

A pass is what one loop over a loader hands over: `epochs` epochs, or one epoch where the loader was made with per_epoch=True.  With
shuffle, pass p of a loader with E epochs covers epochs p·E … (p + 1)·E - 1.  Without shuffle, every pass covers epochs 0 … E - 1: the
same rows in the same order.  All of it follows from the cursor, which is what a saved state holds.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from penstock.plan.plan import Plan, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a run has come.  Steps are counted over all passes, so that a step has one number in the whole run."""

    position: Position = field(default_factory=Position)
    step: int = 0  # steps handed over since the run began
    pass_step: int = 0  # those of them that came before the pass under way

    @property
    def has_begun(self) -> bool:
        """Whether a step of the pass under way was handed over."""
        return self.step > self.pass_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The passes of one loader, as functions of a cursor."""

    plan: Plan
    epochs: int | None  # of a pass; None is one pass without an end
    per_epoch: bool
    num_rows: int  # of a step, over all ranks
    skip: Collection[int]  # steps that are not handed over

    def end(self, cursor: Cursor) -> int | None:
        """The epoch before which the pass ends.  A cursor at that epoch's start, with steps behind it, is at the end of its pass."""
        if not self.epochs:
            return self.epochs
        here = cursor.position
        passes, inside = divmod(here.epoch, self.epochs)
        at_border = not (inside or here.block or here.row)
        return here.epoch if at_border and here.epoch and cursor.has_begun else (passes + 1) * self.epochs

    def loop_end(self, cursor: Cursor) -> int | None:
        """The epoch before which the loop under way ends: that of the pass, or with per_epoch the next one."""
        end = self.end(cursor)
        if not self.per_epoch:
            return end
        after = cursor.position.epoch + 1
        return after if end is None else min(after, end)

    def is_over(self, cursor: Cursor) -> bool:
        """Whether the loop under way has handed over all its steps.  One that has not handed over any is not over."""
        return cursor.has_begun and self._last_step(cursor) is not None

    def next(self, cursor: Cursor) -> Cursor:
        """Where the loop after this one begins; this one is over."""
        end, epoch, step = self.end(cursor), cursor.position.epoch, self._last_step(cursor)
        assert step is not None, "this loop is not over"
        cursor = replace(cursor, step=step)
        if self.per_epoch and (end is None or epoch + 1 < end):
            return replace(cursor, position=Position(epoch=epoch + 1, rows=cursor.position.rows))
        assert end is not None, "a pass without an end is never over"
        return self.begin(end if self.plan.settings.shuffle else 0, cursor)

    def _last_step(self, cursor: Cursor) -> int | None:
        """The number of the step after this loop, where it has none left but those that are passed over; else None."""
        end, position, step = self.loop_end(cursor), cursor.position, cursor.step
        if end is None:
            return None
        while (found := self.plan.step(position, self.num_rows, epochs=end)) is not None:
            if step not in self.skip:
                return None
            position, step = found.after, step + 1
        return step

    def after(self, cursor: Cursor) -> Cursor:
        """Where the loop after this one begins, wherever in its loop the cursor is.  Packs the lengths of the rest of the loop."""
        end = self.loop_end(cursor)
        if end is None:
            return cursor
        steps = self.plan.num_steps(self.num_rows, epochs=end, start=cursor.position)
        rows = self.plan.seek(steps, self.num_rows, epochs=end, start=cursor.position).rows
        done = replace(cursor, position=Position(epoch=end, rows=rows), step=cursor.step + steps)
        if end != self.end(cursor):
            return done  # the next epoch of the same pass
        return self.begin(end if self.plan.settings.shuffle else 0, done)

    def first(self, cursor: Cursor) -> Cursor:
        """The start of the pass under way."""
        end = self.end(cursor)
        epoch = 0 if end is None or self.epochs is None else end - self.epochs
        return Cursor(
            position=Position(epoch=epoch, rows=cursor.position.rows), step=cursor.pass_step, pass_step=cursor.pass_step
        )

    def begin(self, epoch: int, cursor: Cursor) -> Cursor:
        """The start of a pass at `epoch`, behind all that the cursor has counted."""
        return Cursor(
            position=Position(epoch=epoch, rows=cursor.position.rows), step=cursor.step, pass_step=cursor.step
        )

    def steps_left(self, cursor: Cursor) -> int | None:
        """Steps that the loop under way has still to hand over; None where it has no end."""
        end = self.loop_end(cursor)
        if end is None:
            return None
        steps = self.plan.num_steps(self.num_rows, epochs=end, start=cursor.position)
        return steps - sum(cursor.step <= step < cursor.step + steps for step in self.skip)

    def length(self, anchor: Cursor) -> int:
        """Steps of the pass in which the anchor lies, with those before it, and those that skip passes over."""
        end = self.end(anchor)
        assert end is not None
        left = self.plan.num_steps(self.num_rows, epochs=end, start=anchor.position)
        return anchor.step - anchor.pass_step + left

    def epoch_length(self, cursor: Cursor) -> int:
        """Steps of the epoch under way; at the end of a pass, of its last epoch."""
        epoch = cursor.position.epoch - (self.end(cursor) == cursor.position.epoch and cursor.position.epoch > 0)
        return self.plan.num_steps(self.num_rows, epochs=epoch + 1, start=Position(epoch=epoch))
