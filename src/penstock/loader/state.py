"""Where a run is, which pass that belongs to, and the saved state: a small JSON value, the same on every rank.

A pass is one loop over a Loader: `epochs` epochs, or one epoch with per_epoch=True.  With shuffle, pass p of a Loader with E epochs covers
epochs p·E … (p + 1)·E - 1.  Without shuffle, every pass covers epochs 0 … E - 1: the same rows in the same order.  All of it follows from
the cursor, which is what a state holds.
"""

import contextlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.errors import PlanError, PlanMismatch
from penstock.fingerprint import fingerprint
from penstock.loader.counting import Counting
from penstock.plan.counters import Counters
from penstock.plan.plan import Plan, Position, Step
from penstock.plan.settings import whole_number
from penstock.types import World
from penstock.words import shortened

VERSION = 3  # 2: pass_step; 3: sources as a list, whose order sorted keys do not change

_NUMBERS = ("epoch", "block", "row", "rows", "step", "pass_step")
_FIELDS = sorted({"version", "plan", "settings", *_NUMBERS})
_JOURNAL = "journal"  # only of a run whose mixture changes
_DIGITS = 4  # of the digest of one field
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
    elif plan.is_stream:
        state["journal"] = plan.journal_at(cursor.position)
    return {**state, "check": _check(state)}


def read_state(state: Any, plan: Plan) -> Cursor:
    """Return the cursor of a state of `plan`; refuse anything else and name the field.  `check_position` checks what needs lengths."""
    content = checked(state, plan)
    if content.get(_JOURNAL) is not None and not plan.has_changes and not plan.is_stream:
        raise PlanMismatch(
            "the mixture of the state's run changed; load the state into the Loader, load_state_dict(state), before making a dataset of it"
        )
    plan.check_summary(content["plan"], content["settings"])
    plan.check_journal(content.get(_JOURNAL))
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
        names = sorted(content)
        places = range(0, _DIGITS * len(names), _DIGITS)
        changed = [state["check"][at : at + _DIGITS] != check[at : at + _DIGITS] for at in places]
        name = names[changed.index(True)] if any(changed) else "check"
        expected = "the value that state_dict() returned, whose digest is in its check"
        if name == "settings" and (found := plan.differences(content["settings"])):
            expected += f" (in the state → in this Loader: {'; '.join(found)})"
        raise _damaged(name, state[name], expected)
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
    """Digests of each field and of all fields: a changed number would be another valid position."""
    digests = [fingerprint([name, content[name]])[:_DIGITS] for name in sorted(content)]
    return "".join([*digests, fingerprint(content)[:16]])


class Run:
    """The part of a Loader that holds its position and moves it."""

    plan: Plan
    stores: list[Any]
    world: World
    batch_size: int
    metrics: Any
    _count_rest: Callable[[], None]
    _read: Callable[..., Cursor]

    def __init__(self, *, epochs: int | None, per_epoch: bool, skip: frozenset[int]) -> None:
        self.epochs = epochs
        self.per_epoch = per_epoch
        self._skip = skip
        self._cursor = Cursor()
        self._anchors = [
            self._cursor
        ]  # where this loader began, and where each pass after that began
        self._is_loaded = False  # a state was loaded, and nothing was iterated over since
        self._is_at_end = (
            False  # of the epoch that set_epoch chose after that: nothing is left of it
        )
        self._iterations = 0  # begun; an older one must not continue beside a newer
        self._changes = 0  # of the mixture
        self._counting = Counting()
        self._is_open = (
            False  # a step was delivered, and what comes after the last one is not counted
        )
        self._dataset = ""  # the method that returned this loader's rows as a dataset, which a change would not reach

    @property
    def _rows_per_step(self) -> int:
        """Rows of all ranks together."""
        return self.batch_size * self.world.size

    @property
    def _is_incomplete(self) -> bool:
        """Whether some store is still being made, or a stream still being read."""
        if self.plan.is_stream and not self.stores[0].source.has_ended:
            return True
        return any(store.manifest is None for store in self.stores)

    # Passes and loops, as functions of a cursor

    def pass_end(self, cursor: Cursor) -> int | None:
        """Return the epoch before which the pass ends.  A cursor at that epoch's start, after some steps, is at the end of its pass."""
        if not self.epochs:
            return self.epochs
        here = cursor.position
        passes, inside = divmod(here.epoch, self.epochs)
        at_border = not (inside or here.block or here.row)
        return (
            here.epoch
            if at_border and here.epoch and cursor.has_begun
            else (passes + 1) * self.epochs
        )

    def loop_end(self, cursor: Cursor) -> int | None:
        """Return the epoch before which the current loop ends: that of the pass, or with per_epoch the next one."""
        end = self.pass_end(cursor)
        after = cursor.position.epoch + 1
        if not self.per_epoch:
            return end
        return after if end is None else min(after, end)

    def is_over(self, cursor: Cursor) -> bool:
        """Whether the current loop has delivered all its steps.  A loop that has delivered none is not over."""
        return cursor.has_begun and self._skipped_rest(cursor) is not None

    def _skipped_rest(self, cursor: Cursor) -> int | None:
        """Return how many steps the loop has left if all of them are skipped; else None."""
        count = 0
        end = self.loop_end(cursor)
        if end is None:
            return None
        for _ in self.plan.steps(start=cursor.position, num_rows=self._rows_per_step, epochs=end):
            if cursor.step + count not in self._skip:
                return None
            count += 1
        return count

    def next_loop(self, cursor: Cursor) -> Cursor:
        """Return where the next loop begins, wherever in its loop the cursor is; in the middle, packs the lengths of the rest."""
        end = self.loop_end(cursor)
        steps = self._skipped_rest(cursor)
        rows = cursor.position.rows
        if end is None:
            return cursor
        if steps is None:
            steps = self.plan.num_steps(self._rows_per_step, epochs=end, start=cursor.position)
            rows = self.plan.seek(
                steps, self._rows_per_step, epochs=end, start=cursor.position
            ).rows
        done = Cursor(
            position=Position(epoch=end, rows=rows),
            step=cursor.step + steps,
            pass_step=cursor.pass_step,
        )
        repeats = not (self.plan.settings.shuffle or self.plan.has_changes)
        return done.begin_pass(0 if repeats else end) if end == self.pass_end(cursor) else done

    def steps_of_loop(self, cursor: Cursor) -> int | None:
        """Return the steps from a cursor to the end of its loop, skipped ones too; None if it is endless."""
        end = self.loop_end(cursor)
        return (
            None
            if end is None
            else self.plan.num_steps(self._rows_per_step, epochs=end, start=cursor.position)
        )

    def steps_after(self, cursor: Cursor) -> int | None:
        """Return the steps that a loop has still to deliver, without skipped ones; None if it is endless."""
        if (steps := self.steps_of_loop(cursor)) is None:
            return None
        return steps - sum(cursor.step <= step < cursor.step + steps for step in self._skip)

    # Where this loader is

    def __len__(self) -> int:
        """Steps of the current pass; after a resume, those before it and those that are left with this batch and world size.

        With per_epoch, steps of the current epoch.  A pass that has ended is current until the next one begins.
        """
        if self.epochs == 0:
            return 0
        self.plan.refuse_unknown_length()
        if self.per_epoch:  # at the end of a pass, of its last epoch
            epoch = self._cursor.position.epoch
            epoch -= epoch > 0 and self.pass_end(self._cursor) == epoch
            return self.plan.num_steps(
                self._rows_per_step, epochs=epoch + 1, start=Position(epoch=epoch)
            )
        anchor = self._anchors[-1]
        if (end := self.pass_end(anchor)) is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        steps = self.plan.num_steps(self._rows_per_step, epochs=end, start=anchor.position)
        return anchor.step - anchor.pass_step + steps

    @property
    def finished(self) -> bool:
        """Whether the current loop has delivered its last step; the next loop then is the next pass.

        Also True after the state of a finished pass was loaded.  Then the first loop delivers nothing, since nothing is left of that
        pass, and the second is the next pass.
        """
        return self.is_over(self._cursor)

    @property
    def steps_left(self) -> int | None:
        """Steps that the current loop has still to deliver, without skipped ones; None if it is endless."""
        return self.steps_after(self._cursor)

    def state_dict(self) -> dict[str, Any]:
        """How far all ranks together have come; small, plain JSON, the same on every rank."""
        return make_state(self.plan, self._cursor)

    def load_state_dict(self, state: dict[str, Any], *, changes: bool = False) -> None:
        """Go to where `state` was taken, with any number of ranks and any batch size.

        The next loop delivers what is left of the pass in which it was taken: nothing, if that had ended.
        changes: if the state's run has another mixture, change it to this loader's from here on.
        """
        with self._all_or_nothing():
            cursor = self._read(checked(state, self.plan), changes=changes)
            if not self._is_incomplete:
                check_position(self.plan, cursor.position)
            self._go_to(cursor, [cursor], is_loaded=True)
            self._refuse_uneven()

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Stay as before if an error is raised inside."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.update(before)
            raise
        self.metrics.name_sources([source.name for source in self.plan.sources])

    def seek(self, step: int) -> None:
        """Go to step `step` of the run, counted with this loader's batch and world size; the next iteration starts there.

        Up to the end of the current pass; `set_epoch` goes to a later one.
        """
        step = whole_number("step", step, least=0)
        cursor = self._find(step, f"cannot seek to step {step}")
        self._go_to(cursor, [anchor for anchor in self._anchors if anchor.step <= step])

    def restart(self) -> None:
        """Go back to the start of the current pass, for an evaluation that sees the same batches each time."""
        end = self.pass_end(self._cursor)
        here = self._cursor
        epoch = 0 if end is None or self.epochs is None else end - self.epochs
        self._start_pass(replace(here, step=here.pass_step).begin_pass(epoch))

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration with this epoch; a loader in the middle of it stays where it is.

        After a state of the end of this epoch was loaded, the next iteration delivers nothing.
        """
        epoch = whole_number("epoch", epoch, least=0)
        here = self._cursor.position
        at_start = not (here.block or here.row)
        if self._is_loaded and at_start and here.epoch == epoch + 1 and self._cursor.has_begun:
            self._is_at_end = True
        elif here.epoch != epoch or (
            self.is_over(self._cursor) and (at_start or not self._is_loaded)
        ):
            self._start_pass(self._cursor.begin_pass(epoch))

    def _start_pass(self, cursor: Cursor) -> None:
        self._go_to(
            cursor, [*(anchor for anchor in self._anchors if anchor.step < cursor.step), cursor]
        )

    def _go_to(self, cursor: Cursor, anchors: list[Cursor], *, is_loaded: bool = False) -> None:
        """Begin the next iteration at `cursor`; end one that is running."""
        self._is_open = False
        self._cursor = cursor
        self._anchors = anchors
        self._is_loaded = is_loaded
        self._is_at_end = False
        self._iterations = self._iterations + 1

    @property
    def counters(self) -> Counters:
        """What this loader has delivered so far, and what was dropped in the blocks that have begun."""
        return self._counting.counters([source.name for source in self.plan.sources])

    def look_up(self, step: int) -> Step:
        """Return what all ranks get at `step`: any step since this loader began, up to the end of the current pass."""
        step = whole_number("step", step, least=0)
        cursor = self._find(step, f"step {step} does not exist")
        found = self.plan.step(cursor.position, self._rows_per_step, epochs=self.pass_end(cursor))
        if found is None:
            raise PlanError(f"step {step} does not exist: the run has {step} steps, counted from 0")
        return found

    def _find(self, step: int, problem: str) -> Cursor:
        """Return the cursor before a step of a pass that has begun; `problem` begins the error if the step does not exist."""
        place = bisect_right(self._anchors, step, key=lambda anchor: anchor.step) - 1
        if place < 0:
            raise PlanError(
                f"step {step} is before step {self._anchors[0].step}, where this loader resumed, and steps may have had another "
                f"size then; ask a loader that starts where that run started"
            )
        anchor = self._anchors[place]
        end = self.pass_end(self._anchors[place])
        if end is not None and step > anchor.step and not self.plan.is_stream:
            total = anchor.step + self.plan.num_steps(
                self._rows_per_step, epochs=end, start=anchor.position
            )
            if step > total:
                raise PlanError(
                    f"{problem}: the run has {total} steps of {self._rows_per_step} rows, counted from 0"
                )
        position = self.plan.seek(
            step - anchor.step, self._rows_per_step, epochs=end, start=anchor.position
        )
        return Cursor(position=position, step=step, pass_step=anchor.pass_step)

    def start_of_next_loop(self) -> Cursor:
        """Return where the next loop over this loader begins."""
        cursor = self._cursor
        while not self._is_loaded and self.is_over(
            cursor
        ):  # repeatedly if an epoch of a per_epoch loader is empty
            cursor = self.next_loop(cursor)
        return cursor

    def _begin(self) -> bool:
        """Go on to the next pass if the current one has ended.  Return False if nothing is left of the pass of a loaded state."""
        if self._is_loaded:
            check_position(self.plan, self._cursor.position)
            is_over = self._is_at_end or self.is_over(self._cursor)
            self._is_loaded = self._is_at_end = False
            return not is_over
        before = self._cursor
        following = self.start_of_next_loop()
        if following != before and self._is_open:  # the last loop was broken off at its last step
            self._count_rest()
        self._cursor = following
        if self._cursor.pass_step != before.pass_step:
            self._anchors.append(self._cursor)
            self._refuse_uneven()
        return True

    def _refuse_uneven(self) -> None:
        """With last_step="error", raise now what would be raised at the epoch's end."""
        anchor = self._anchors[-1]
        epochs = self.pass_end(anchor)
        if (
            epochs is None
        ):  # the first epoch of many, unless that would wait for a store that is being made
            epochs = anchor.position.epoch + (not self._is_incomplete)
        if self.plan.settings.last_step == "error":
            self.plan.num_steps(self._rows_per_step, epochs=epochs, start=anchor.position)
