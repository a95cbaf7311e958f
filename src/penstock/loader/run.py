"""Where a run is: its plan, its stores and its cursor, as one immutable value.

Moving returns another Run, so a call that is refused leaves everything as it was.  A pass is one loop over a Loader: `epochs` epochs, or
one epoch with per_epoch=True.  With shuffle, pass p of E epochs covers epochs p·E … (p + 1)·E - 1.  Without shuffle, every pass covers
epochs 0 … E - 1: the same rows in the same order.  All of it follows from the cursor, which is what a saved state holds.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import Any

from penstock.errors import PlanError, PlanMismatch
from penstock.loader.journal import (
    KnownStores,
    MixtureEntry,
    changed_words,
    check_source,
    mixture_entry,
    mixture_from,
    named,
    read_journal,
    shares_of,
    undated,
)
from penstock.loader.plans import make_plan, plan_source
from penstock.loader.state import Cursor, check_position, checked, make_state, read_state
from penstock.plan.budget import Budget
from penstock.plan.counters import NOTHING, Counters
from penstock.plan.plan import NumberedStep, Plan, Position, Step
from penstock.plan.segments import Mixture, Start, check_mixtures
from penstock.plan.settings import BALANCE, PlanSettings, weights_as_text
from penstock.plan.stream import NO_LENGTH
from penstock.reasons import EMPTY, NOTHING_TO_TRAIN, OVERLONG
from penstock.settings import whole_number
from penstock.words import differences

_log = logging.getLogger("penstock")

_REPEATED = (
    "cannot change the mixture after the first pass of a run with shuffle=False: each pass repeats the same epochs, and the journal "
    "would not say which of them came before; give the Loader more epochs, or start a new run"
)
_BEGAN_EARLIER = (
    "cannot restart: this pass began at step {step}, before the state that was loaded, and max_steps alone ends its passes, so the state "
    "does not say where that was; give the Loader epochs=, or load a state that was saved before the pass"
)
_NOTHING_LEFT = (
    "no batch is left: the loaded state was saved at the end of a pass, at step %d; iterate again for the next pass, or give the Loader "
    "more epochs"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What one loop over a run covers."""

    epochs: int | None = 1  # of a pass; None never ends
    per_epoch: bool = False  # a loop ends with its epoch
    skipped: frozenset[int] = frozenset()  # steps that are left out
    max_steps: int | None = None  # of a pass, also skipped ones


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMixture:
    """The sources that a run shall have from a change on: complete stores by name, and their weights."""

    stores: Mapping[str, Any]
    weights: Sequence[Any] | None


class Phase(Enum):
    """What has happened to a run since its last loop."""

    IDLE = "nothing, or it was moved"
    LOADED = "a state was loaded: the next loop is the rest of the pass that it was taken in"
    LOADED_AT_END = "a state of the end of an epoch was loaded, and set_epoch named this epoch"
    OPEN = "a loop has delivered a step, and was not followed to its end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run is.  Law 3: the steps after `resumed(run.state())` are those after `run`, with any number of rows per step."""

    plan: Plan
    stores: tuple[Any, ...]
    rows_per_step: int  # of all ranks together
    loop: Loop = field(default_factory=Loop)
    cursor: Cursor = field(default_factory=Cursor)
    anchors: tuple[Cursor, ...] = (Cursor(),)  # where the run began, and each pass after that
    lineage: int = (
        0  # rises when the run is moved, not when its mixture changes or a step is delivered
    )
    phase: Phase = Phase.IDLE

    # Passes and loops, as functions of a cursor

    def pass_end(self, cursor: Cursor) -> int | None:
        """Return the epoch before which the pass ends.  A cursor at that epoch's start, after some steps, is at the end of its pass."""
        epochs = self.loop.epochs
        here = cursor.position
        if epochs is None and self._ends_with_tokens:
            first = self.plan.first_epoch_of_pass(here.epoch)
            end = self.plan.end_of_pass(here.epoch)
        elif not epochs:
            return epochs
        else:
            first = here.epoch // epochs * epochs
            end = first + epochs
        at_border = here.epoch == first and not (here.block or here.row)
        if at_border and here.epoch and cursor.has_begun:
            return here.epoch
        return end

    @property
    def _ends_with_tokens(self) -> bool:
        return self.plan.budget is not None and self.plan.budget.tokens is not None

    @property
    def is_endless(self) -> bool:
        """Whether no number of epochs, steps or tokens ends a pass."""
        loop = self.loop
        return loop.epochs is None and loop.max_steps is None and not self._ends_with_tokens

    @property
    def rows_of_full_step(self) -> int:
        """Rows of which every step is a multiple but the last one of an epoch, or of the budget."""
        budget = self.plan.budget
        if budget is None or budget.step is None:
            return self.rows_per_step
        return budget.step.multiple

    @property
    def has_steps_of_tokens(self) -> bool:
        """Whether tokens_per_step decides how many rows a step has."""
        return self.plan.budget is not None and self.plan.budget.step is not None

    @property
    def ends_with_epochs(self) -> bool:
        """Whether a pass is a whole number of epochs."""
        budget = self.plan.budget
        is_cut = budget is not None and (budget.tokens is not None or budget.share is not None)
        return self.loop.epochs is not None and self.loop.max_steps is None and not is_cut

    def whole_epochs(self) -> Plan:
        """Return the plan without what ends a pass within an epoch."""
        step = None if self.plan.budget is None else self.plan.budget.step
        return self.plan.with_budget(None if step is None else Budget(step=step))

    def _most_steps(self, cursor: Cursor) -> int | None:
        """Return how many steps max_steps leaves to the pass of a cursor; None without max_steps."""
        if self.loop.max_steps is None:
            return None
        return max(0, self.loop.max_steps - (cursor.step - cursor.pass_step))

    def loop_end(self, cursor: Cursor) -> int | None:
        """Return the epoch before which the current loop ends: that of the pass, or with per_epoch the next one."""
        end = self.pass_end(cursor)
        if not self.loop.per_epoch:
            return end
        after = cursor.position.epoch + 1
        return after if end is None else min(after, end)

    def steps_from(self, cursor: Cursor) -> Iterator[Step]:
        """Yield the steps of the loop from a cursor on, skipped ones too."""
        end = self.loop_end(cursor)
        steps = self.plan.steps(start=cursor.position, num_rows=self.rows_per_step, epochs=end)
        return islice(steps, self._most_steps(cursor))

    def is_over(self, cursor: Cursor) -> bool:
        """Whether the current loop has delivered all its steps.  A loop that has delivered none is not over."""
        return cursor.has_begun and self._skipped_rest(cursor) is not None

    def _skipped_rest(self, cursor: Cursor) -> int | None:
        """Return how many steps the loop has left if all of them are skipped; else None."""
        if self.loop_end(cursor) is None and self.loop.max_steps is None:
            return None
        count = 0
        for _ in self.steps_from(cursor):
            if cursor.step + count not in self.loop.skipped:
                return None
            count += 1
        return count

    def next_loop(self, cursor: Cursor) -> Cursor:
        """Return where the next loop begins, wherever in its loop the cursor is; in the middle, packs the lengths of the rest."""
        end = self.loop_end(cursor)
        if end is None and self.loop.max_steps is None:
            return cursor
        last = cursor.position
        steps = self._skipped_rest(cursor)
        if steps is None or end is None:
            steps = self._num_steps(cursor, end)
            last = self.plan.seek(steps, self.rows_per_step, epochs=end, start=cursor.position)
        if end is None:  # max_steps alone ends a pass: the next one goes on there
            return Cursor(position=last, step=cursor.step + steps, pass_step=cursor.step + steps)
        rows = last.rows
        done = Cursor(
            position=Position(epoch=end, rows=rows),
            step=cursor.step + steps,
            pass_step=cursor.pass_step,
        )
        if end != self.pass_end(cursor):
            return done
        repeats = not (self.plan.settings.shuffle or self.plan.has_changes)
        return done.begin_pass(0 if repeats else end)

    def _num_steps(self, cursor: Cursor, end: int | None) -> int:
        most = self._most_steps(cursor)
        return self.plan.num_steps(
            self.rows_per_step, epochs=end, start=cursor.position, at_most=most
        )

    def steps_of_loop(self, cursor: Cursor) -> int | None:
        """Return the steps from a cursor to the end of its loop, skipped ones too; None if it is endless."""
        end = self.loop_end(cursor)
        if end is None and self.loop.max_steps is None:
            return None
        return self._num_steps(cursor, end)

    def steps_after(self, cursor: Cursor) -> int | None:
        """Return the steps that a loop has still to deliver, without skipped ones; None if it is endless."""
        steps = self.steps_of_loop(cursor)
        if steps is None:
            return None
        return steps - sum(cursor.step <= step < cursor.step + steps for step in self.loop.skipped)

    def start_of_next_loop(self) -> Cursor:
        """Return where the next loop begins."""
        cursor = self.cursor
        if self.phase in (Phase.LOADED, Phase.LOADED_AT_END):
            return cursor
        while self.is_over(cursor):  # repeatedly if an epoch of a per_epoch loop is empty
            cursor = self.next_loop(cursor)
        return cursor

    # Where the run is

    @property
    def is_incomplete(self) -> bool:
        """Whether some store is still being made, or a stream still being read."""
        if self.plan.is_stream and not self.stores[0].source.has_ended:
            return True
        return any(store.manifest is None for store in self.stores)

    @property
    def names(self) -> list[str]:
        return [source.name for source in self.plan.sources]

    def dealing(self, world_size: int) -> dict[str, Any]:
        """Return the values that decide which rows of a step each rank gets."""
        balance = {name: getattr(self.plan.settings, name) for name in BALANCE}
        batch_size = self.rows_per_step // world_size
        return {"batch_size": batch_size, "world_size": world_size, **balance}

    @property
    def known_stores(self) -> KnownStores:
        return KnownStores(dict(zip(self.names, self.stores, strict=True)))

    def steps_of_pass(self) -> int:
        """Return the steps of the current pass, also those before a resume; with per_epoch, of the current epoch."""
        if self.loop.epochs == 0:
            return 0
        stream = self.plan.stream
        if stream is not None and not stream.has_ended:  # as `len` of something without a length
            raise TypeError(NO_LENGTH)
        if self.loop.per_epoch:  # at the end of a pass, of its last epoch
            epoch = self.cursor.position.epoch
            epoch -= epoch > 0 and self.pass_end(self.cursor) == epoch
            start = Position(epoch=epoch)
            return self.plan.num_steps(self.rows_per_step, epochs=epoch + 1, start=start)
        anchor = self.anchors[-1]
        end = self.pass_end(anchor)
        if end is None and self.loop.max_steps is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        steps = anchor.step - anchor.pass_step + self._num_steps(anchor, end)
        if anchor.pass_step != self.cursor.pass_step:
            return steps
        # a changed mixture may make an epoch so short that more than its part was delivered already
        return max(steps, self.cursor.step - self.cursor.pass_step)

    def steps_to_deliver(self) -> int:
        """Return the steps of the current pass without skipped ones."""
        steps = self.steps_of_pass()
        begun = self.anchors[-1]
        after = begun.pass_step + steps
        return steps - sum(begun.step <= step < after for step in self.loop.skipped)

    def steps(
        self,
        *,
        passed: int = 0,
        every: int = 1,
        begin: Callable[[Position], object] | None = None,
    ) -> Iterator[NumberedStep]:
        """Yield every `every`-th step of the loop from the cursor on, starting with the one after `passed` of them.

        begin: told the position of each step before it is looked up.
        """
        return islice(self._numbered(begin), passed, None, every)

    def _numbered(self, begin: Callable[[Position], object] | None) -> Iterator[NumberedStep]:
        end = self.loop_end(self.cursor)
        position = self.cursor.position
        number = self.cursor.step
        skipped: list[Step] = []
        most = self._most_steps(self.cursor)
        last = None if most is None else number + most
        while number != last:
            if begin is not None:
                begin(position)
            step = self.plan.step(position, self.rows_per_step, epochs=end)
            if step is None:
                return
            if number in self.loop.skipped:
                skipped.append(step)
            else:
                yield NumberedStep(number, step, tuple(skipped))
                skipped = []
            number += 1
            position = step.after

    def after(self, step: NumberedStep) -> "Run":
        """Return the run after a step of its loop."""
        cursor = Cursor(
            position=step.step.after, step=step.number + 1, pass_step=self.cursor.pass_step
        )
        # not with `replace`, which takes twice as long: this is done at every step
        return Run(
            plan=self.plan,
            stores=self.stores,
            rows_per_step=self.rows_per_step,
            loop=self.loop,
            cursor=cursor,
            anchors=self.anchors,
            lineage=self.lineage,
            phase=Phase.OPEN,
        )

    def count_rest(self) -> Counters:
        """Count what comes after the last step of the loop: skipped steps, and samples that no batch holds."""
        position = self.cursor.position
        counters = NOTHING
        skipped = 0
        if self.loop.skipped:
            for step in self.steps_from(self.cursor):
                counters += step.count_skipped()
                position = step.after
                skipped += 1
        end = self.loop_end(self.cursor)
        if self._most_steps(self.cursor) == skipped:
            # what comes after max_steps is not dropped; only an order that ends there, too, has a rest
            after = self.plan.step(position, self.rows_per_step, epochs=end)
            if after is not None:
                return counters
        return counters + self.plan.count_rest(position, self.rows_per_step, epochs=end)

    def epochs_done(self, *, of_pass: float | None, share: float | None) -> float:
        """Return how many epochs are done.

        of_pass: the epochs of a pass.  share: how much of the pass is done; None for an endless one, of which only whole epochs count.
        """
        here = self.cursor.position
        is_cut = self.loop.max_steps is not None or self._ends_with_tokens
        if share is not None and of_pass is not None and not is_cut:
            return of_pass * share
        if share is None or not (here.block or here.row):
            return float(here.epoch)
        before = self.plan.table(here.epoch)  # packs the lengths of the epoch, once
        return here.epoch + (int(before[here.block]) + here.row) / max(int(before[-1]), 1)

    def why_empty(self, *, can_cut: bool) -> tuple[Counters, PlanError]:
        """Return what is dropped, and an error that says why a pass has no step."""
        if self.loop.epochs == 0:
            return NOTHING, PlanError("the run has no step: epochs is 0", code="no_step")
        epoch = self.cursor.position.epoch
        budget = self.plan.budget
        number = self._num_steps(self.cursor, self.loop_end(self.cursor) or epoch + 1)
        if number:
            return NOTHING, PlanError(
                f"no batch is left: skip_steps= names every step of the run ({number:,} of them)",
                code="no_step",
            )
        counters = self.plan.count(epoch, self.rows_per_step)
        if budget is not None and budget.tokens is not None and counters.rows:
            return NOTHING, PlanError(
                f"the run has no step: max_tokens={budget.tokens:,} is less than its first step has; raise it",
                code="no_step",
            )
        dropped = counters.dropped_words()
        advice = "raise max_length; " if NOTHING_TO_TRAIN in dropped else ""
        if OVERLONG in dropped:
            cut = ", or choose on_overlong='split' or 'truncate'" if can_cut else ""
            advice = f"raise max_length{cut}; "
        empty = counters.samples_dropped[EMPTY]
        if not dropped and empty:
            stores = "; ".join(store.describe() for store in self.stores)
            dropped = f"all {empty:,} samples are empty ({stores})"
        why = dropped or "there are no samples"
        error = PlanError(
            f"the run has no step: {why}; {advice}see loader.counters", code="no_step"
        )
        return counters, error

    # Moves

    def begin_loop(self) -> "Run | None":
        """Return the run at the start of its next loop, which may be the next pass.

        None if a state was loaded and nothing is left of its pass; the loop after that is the next pass.
        """
        begun = replace(self, phase=Phase.IDLE, lineage=self.lineage + 1)
        if self.phase in (Phase.LOADED, Phase.LOADED_AT_END):
            check_position(self.plan, self.cursor.position)
            if self.phase is Phase.LOADED_AT_END or self.is_over(self.cursor):
                _log.warning(_NOTHING_LEFT, self.cursor.step)
                return None
            return begun
        cursor = self.start_of_next_loop()
        if cursor.pass_step == self.cursor.pass_step:
            return replace(begun, cursor=cursor)
        begun = replace(begun, cursor=cursor, anchors=(*self.anchors, cursor))
        begun.refuse_uneven()
        return begun

    def ended(self) -> "Run":
        """Return the run after a loop that was followed to its end."""
        return replace(self, phase=Phase.IDLE)

    def _moved(self, cursor: Cursor, anchors: Sequence[Cursor], phase: Phase = Phase.IDLE) -> "Run":
        return replace(
            self, cursor=cursor, anchors=tuple(anchors), phase=phase, lineage=self.lineage + 1
        )

    def _at_pass(self, cursor: Cursor) -> "Run":
        earlier = [anchor for anchor in self.anchors if anchor.step < cursor.step]
        return self._moved(cursor, [*earlier, cursor])

    def at_step(self, step: int) -> "Run":
        """Return the run before step `step`, counted with these rows per step, up to the end of the current pass."""
        step = whole_number("step", step, least=0)
        cursor = self._find(step, f"cannot seek to step {step}")
        return self._moved(cursor, [anchor for anchor in self.anchors if anchor.step <= step])

    def restarted(self) -> "Run":
        """Return the run at the start of its current pass."""
        return self._at_pass(self._begin_of_pass())

    def _begin_of_pass(self) -> Cursor:
        """Return where the current pass began."""
        cursor = self.cursor
        end = self.pass_end(cursor)
        if end is None and cursor.pass_step:  # max_steps alone ends passes: this one began anywhere
            for anchor in self.anchors:
                if anchor.step == anchor.pass_step == cursor.pass_step:
                    return anchor
            raise PlanError(_BEGAN_EARLIER.format(step=cursor.pass_step))
        epoch = 0
        if end is not None and self.loop.epochs is not None:
            epoch = end - self.loop.epochs
        elif end is not None:  # tokens end the pass
            epoch = self.plan.first_epoch_of_pass(max(end - 1, 0))
        return replace(cursor, step=cursor.pass_step).begin_pass(epoch)

    def at_epoch(self, epoch: int) -> "Run":
        """Return the run before this epoch; in the middle of it, the run stays where it is."""
        epoch = whole_number("epoch", epoch, least=0)
        here = self.cursor.position
        at_start_of_epoch = here.block == 0 and here.row == 0
        is_loaded = self.phase in (Phase.LOADED, Phase.LOADED_AT_END)
        # a state that was saved after the last step of `epoch` stands at the start of the next one
        ended_with_epoch = at_start_of_epoch and here.epoch == epoch + 1 and self.cursor.has_begun
        if is_loaded and ended_with_epoch:
            return replace(self, phase=Phase.LOADED_AT_END)
        if here.epoch != epoch:
            return self._at_pass(self.cursor.begin_pass(epoch))
        # a pass that is over begins again; only a state in the middle of its epoch has rows left
        has_rows_left = is_loaded and not at_start_of_epoch
        if self.is_over(self.cursor) and not has_rows_left:
            return self._at_pass(self.cursor.begin_pass(epoch))
        return self

    def look_up(self, step: int) -> Step:
        """Return what all ranks get at `step`: any step since this run began here, up to the end of the current pass."""
        step = whole_number("step", step, least=0)
        cursor = self._find(step, f"step {step} does not exist")
        end = self.pass_end(cursor)
        planned = None
        if self._most_steps(cursor) != 0:
            planned = self.plan.step(cursor.position, self.rows_per_step, epochs=end)
        if planned is None:
            raise PlanError(f"step {step} does not exist: the run has {step} steps, counted from 0")
        return planned

    def _find(self, step: int, problem: str) -> Cursor:
        """Return the cursor before a step of a pass that has begun; `problem` begins the error if the step does not exist."""
        anchor = self._anchor_before(step)
        end_epoch = self.pass_end(anchor)
        self._require_step(step, anchor, end_epoch, problem)
        steps = step - anchor.step
        position = self.plan.seek(
            steps, self.rows_per_step, epochs=end_epoch, start=anchor.position
        )
        return Cursor(position=position, step=step, pass_step=anchor.pass_step)

    def _anchor_before(self, step: int) -> Cursor:
        """Return the last anchor at or before a step: the start of its pass, or where the run began."""
        place = bisect_right(self.anchors, step, key=lambda anchor: anchor.step) - 1
        if place < 0:
            raise PlanError(
                f"step {step} is before step {self.anchors[0].step}, where this loader resumed, and steps may have had another "
                f"size then; ask a loader that starts where that run started"
            )
        return self.anchors[place]

    def _require_step(self, step: int, anchor: Cursor, end_epoch: int | None, problem: str) -> None:
        """Raise PlanError if the pass ends before a step.  The length of an endless pass, or of a stream, is not known."""
        is_endless = end_epoch is None and self.loop.max_steps is None
        if is_endless or self.plan.is_stream:
            return
        if step <= anchor.step:  # needs no counting, which packs the lengths
            return
        total = anchor.step + self._num_steps(anchor, end_epoch)
        if step > total:
            raise PlanError(
                f"{problem}: the run has {total} steps of {self.rows_per_step} rows, counted from 0"
            )

    def refuse_uneven(self) -> None:
        """With last_step="error", raise now what would be raised at the epoch's end."""
        if self.plan.settings.last_step != "error":
            return
        anchor = self.anchors[-1]
        end = self.pass_end(anchor)
        if end is None:  # the first epoch of many, unless that would wait for a store that is made
            end = anchor.position.epoch + (not self.is_incomplete)
        self._num_steps(anchor, end)

    # States

    def state(self) -> dict[str, Any]:
        """Return how far all ranks together have come: small, plain JSON, the same on every rank."""
        return make_state(self.plan, self.cursor)

    def resumed(self, state: Any, *, changes: bool = False) -> "Run":
        """Return the run where a state was taken, with any number of rows per step.

        changes: if the state's run has another mixture, change it to this one's from there on.
        """
        run = self._read(checked(state, self.plan), changes=changes)
        if not run.is_incomplete:
            check_position(run.plan, run.cursor.position)
        moved = run._moved(run.cursor, [run.cursor], Phase.LOADED)
        moved.refuse_uneven()
        return moved

    def replayed(self, state: Any) -> "Run":
        """Return the run of a state at its first step, with all mixtures that the state has had."""
        run = self._read(checked(state, self.plan), changes=False)
        return run._moved(Cursor(), [Cursor()])

    def _read(self, content: dict[str, Any], *, changes: bool) -> "Run":
        """Return the run of a checked state: with its mixtures, or with `changes` changed to this run's own."""
        journal = content.get("journal")
        if self.plan.is_stream:
            return replace(self, cursor=read_state(content, self.plan))
        own_mixtures = [mixture_entry(mixture.identity()) for mixture in self.plan.mixtures]
        if journal is None:
            is_same = self.plan.has_changes or content["plan"] == self.plan.fingerprint
            if not changes or is_same:
                return replace(self, cursor=read_state(content, self.plan))
            old = self.known_stores.old_mixture(content["settings"])
            return self._change_from(content, old, None)
        mixtures_of_state, start = read_journal(journal)
        own_undated = [undated(entry) for entry in own_mixtures]
        is_same = own_undated == [undated(entry) for entry in mixtures_of_state]
        is_last = len(own_mixtures) == 1 and own_mixtures[0].mix == mixtures_of_state[-1].mix
        if is_same or is_last:
            stores = self.known_stores.of_mixtures(mixtures_of_state, is_exact=False)
            mixtures = [mixture_from(entry, stores) for entry in mixtures_of_state]
            run = self._with_mixtures(mixtures, stores, self.plan.settings, start)
            return replace(run, cursor=read_state(content, run.plan))
        if changes and len(own_mixtures) == 1:
            return self._change_from(content, mixtures_of_state, start)
        before = named(mixtures_of_state[-1])
        different = differences(before, named(own_mixtures[-1])) or ["the table of weights"]
        raise PlanMismatch(
            f"cannot resume: the state's run has another mixture now: {'; '.join(different)}; build the Loader with the last mixture of "
            f"that run, or change it on purpose: penstock state --changes, or load_state_dict(state, changes=True)"
        )

    def _change_from(
        self, content: dict[str, Any], mixtures_of_state: list[MixtureEntry], start: Start | None
    ) -> "Run":
        """Return the run of a state of another mixture, changed to this run's own at once."""
        stores = self.known_stores.of_mixtures(mixtures_of_state, is_exact=True)
        mixtures = [mixture_from(entry, stores) for entry in mixtures_of_state]
        settings = mixtures[-1].settings(self.plan.settings)
        names = list(check_mixtures(mixtures))
        chosen = tuple(stores[name] for name in names)
        plan = make_plan(names, chosen, settings, mixtures if start else (), start)
        plan = plan.with_budget(self.plan.budget)
        cursor = read_state(content, plan)
        check_position(plan, cursor.position)
        before = replace(self, plan=plan, stores=chosen, cursor=cursor, phase=Phase.IDLE)
        own = self.known_stores.by_name
        return before._changed(own, self.plan.mixtures[-1])

    # Changes of the mixture

    @property
    def journal(self) -> list[dict[str, Any]]:
        """The mixtures of this run in order: how many rows come before each, and its sources with their weights."""
        journal = []
        for mixture in self.plan.mixtures:
            weights = mixture.weights or [None] * len(mixture.sources)
            names = [source.name for source in mixture.sources]
            journal.append(
                {"rows": mixture.rows, "sources": dict(zip(names, weights, strict=True))}
            )
        return journal

    def last_change(self) -> tuple[int, int, list[str]]:
        """Return the step and the rows before the last mixture, and in words what it changes; packs the lengths up to there."""
        before, last = self.plan.mixtures[-2:]
        blocks = self.plan.blocks
        assert self.plan.has_changes, "a run that never changed"
        rows = blocks.start_of_last().rows if last.at is not None else last.rows
        steps_until = max(rows - self.cursor.position.rows, 0) // self.rows_per_step
        if self.has_steps_of_tokens:
            steps_until = 0
            for planned in self.steps_from(self.cursor):
                if planned.after.rows > rows:
                    break
                steps_until += 1
        step = self.cursor.step + steps_until
        names_before = named(mixture_entry(before.identity()))
        names_after = named(mixture_entry(last.identity()))
        return step, rows, changed_words(names_before, names_after)

    def changed(self, mixture: CheckedMixture, at: int | None = None) -> "Run":
        """Return the run with another mixture from the next step on, or from step `at` on."""
        if self.plan.is_stream:
            raise PlanError(
                "change_mixture: the mixture of a run over a stream cannot change, because its number of samples is not known"
            )
        weights = weights_as_text(mixture.weights)
        mix_by = stopping_strategy = None
        for past in reversed(self.plan.mixtures):
            if weights and past.weights:
                mix_by = past.mix_by
                stopping_strategy = past.stopping_strategy
                break
        shares = Mixture(
            sources=(), weights=weights, mix_by=mix_by, stopping_strategy=stopping_strategy
        )
        changed = self._changed(mixture.stores, shares, at=at)
        changed.refuse_uneven()
        return changed

    def _changed(
        self, stores: Mapping[str, Any], mixture: Mixture, *, at: int | None = None
    ) -> "Run":
        """Return the run changed to these stores: of a running loader, and of a state that is loaded."""
        stores_so_far = self.known_stores.by_name
        for name, store in stores.items():
            if store.manifest is None:
                raise PlanError(
                    f"the store of {name!r} is still being made; wait for all of it: store.wait()"
                )
            check_source(name, store, stores_so_far)
        mixture = replace(mixture, sources=tuple(map(plan_source, stores, stores.values())))
        mixture.settings(self.plan.settings)  # refuses weights that are no weights
        next_loop, there = self._place_of_change(at)
        here = next_loop.position
        past = self.plan.mixtures
        start = None
        begun = 1
        blocks = self.plan.blocks
        if self.plan.has_changes:
            start = blocks.segment_of(here.epoch, here.block).start
            begun += blocks.segment_of(there.epoch, there.block).start.number
        num_planned = len(past) - begun
        if not num_planned and shares_of(past[-1]) == shares_of(mixture):
            return self  # a change would pack the rest of the block again
        mixture = replace(mixture, at=(there.epoch, there.block, there.row), rows=there.rows)
        mixtures = [*past[:begun], mixture]
        run = self._with_mixtures(mixtures, {**stores_so_far, **stores}, self.plan.settings, start)
        if num_planned:
            _log.warning(
                "%d planned changes of the mixture are dropped: the new one replaces them",
                num_planned,
            )
        return run._moved_to_change(here)

    def _place_of_change(self, at: int | None) -> tuple[Cursor, Position]:
        """Return where the next loop begins, and where the mixture changes: there, or before step `at`.

        A loop that is over stays as it was, also if its last rows were dropped: the change belongs to the next one.
        """
        next_loop = self.cursor
        while self.is_over(next_loop):
            next_loop = self.next_loop(next_loop)
        end = self.pass_end(next_loop)
        if next_loop.pass_step and not (self.plan.settings.shuffle or self.plan.has_changes):
            epochs = self.loop.epochs
            if self.cursor.pass_step or not epochs:
                raise PlanError(_REPEATED)
            next_loop = next_loop.begin_pass(epochs)
        step = next_loop.step if at is None else whole_number("at", at, least=0)
        if step < next_loop.step:
            raise PlanError(
                f"cannot change the mixture at step {step}: the run is at step {next_loop.step}"
            )
        ahead = step - next_loop.step
        try:
            there = self.plan.seek(ahead, self.rows_per_step, epochs=end, start=next_loop.position)
        except PlanError as error:
            raise PlanError(
                f"cannot change the mixture at step {step}: this pass ends before it"
            ) from error
        return next_loop, there

    def _with_mixtures(
        self,
        mixtures: Sequence[Mixture],
        stores: Mapping[str, Any],
        settings: PlanSettings,
        start: Start | None,
    ) -> "Run":
        names = list(check_mixtures(mixtures))
        chosen = tuple(stores[name] for name in names)
        plan = make_plan(names, chosen, mixtures[-1].settings(settings), mixtures, start)
        return replace(self, plan=plan.with_budget(self.plan.budget), stores=chosen)

    def _moved_to_change(self, here: Position) -> "Run":
        """Return the run in its new mixture, if that begins where the run is."""
        blocks = self.plan.blocks
        place = (here.epoch, here.block, here.row)
        if self.plan.mixtures[-1].at != place or self.cursor.position != here:
            return self
        start = blocks.start_of_last()
        if start.at != place:  # samples are cut: the change comes at the end of the block
            return self
        epoch, block = start.first
        if block and not blocks.has(epoch, block):  # nothing is left of this epoch
            epoch = epoch + 1
            block = 0
        position = Position(epoch=epoch, block=block, rows=here.rows)
        return replace(self, cursor=replace(self.cursor, position=position))

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out the caches of the plan."""
        plan = self.plan
        values = (plan.settings, plan.mixtures, plan.start)
        budget = plan.budget
        others = {
            "rows_per_step": self.rows_per_step,
            "loop": self.loop,
            "cursor": self.cursor,
            "anchors": self.anchors,
            "lineage": self.lineage,
            "phase": self.phase,
        }
        return _restored, (self.names, self.stores, values, budget, others)


def _restored(
    names: list[str],
    stores: tuple[Any, ...],
    plan: tuple[Any, ...],
    budget: Budget | None,
    others: dict[str, Any],
) -> Run:
    restored = make_plan(names, stores, *plan).with_budget(budget)
    return Run(plan=restored, stores=stores, **others)
