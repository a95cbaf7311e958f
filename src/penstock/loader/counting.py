"""Count what a Loader delivers and drops: samples and pieces that are in no row when their block begins, rows when they are delivered.

Nothing is counted ahead, so nothing is ever taken back, wherever a loop is left.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import PlanError
from penstock.loader.batch import Batch
from penstock.loader.run import Run
from penstock.plan.counters import NOTHING, Counters
from penstock.plan.plan import NumberedStep, Plan, RowRange
from penstock.plan.rows import PackedBlock
from penstock.reasons import LAST_STEP
from penstock.words import plural

if TYPE_CHECKING:
    from penstock.loader.loader import Loader

_log = logging.getLogger("penstock")

_MOST_PENDING = 64  # ranges of rows that are counted together: the cost per step is then small
_COUNTED_AHEAD = 1 << 20  # samples of an epoch whose drops are counted for the warning in a second


class Counting:
    """Counts the steps of one Loader.  Sources have the numbers that they have in the plan of the last step."""

    def __init__(self) -> None:
        self._counted = Counters()
        self._names: list[str] = []
        self._plan: Plan | None = None  # of the last step
        self._pending: list[RowRange] = []  # delivered, and not counted yet
        self._current: PackedBlock | None = (
            None  # not counted yet: rows from `_start` to `_stop` of this block
        )
        self._start = 0
        self._stop = 0
        self._blocks = NOTHING  # counts of the blocks that have begun, until there is a warning
        self._has_warned = False

    def counters(self, names: Sequence[str]) -> Counters:
        """Return the counts so far, with the numbers that sources of these names have; those of other sources are left out."""
        self._add_up()
        if list(names) == self._names:
            return self._counted
        numbers = {old: names.index(name) for old, name in enumerate(self._names) if name in names}
        return self._counted.renumbered(numbers)

    def attach(self, loader: "Loader") -> None:
        """Nothing has to be known of the Loader."""

    def begin(self, run: Run) -> None:
        """Nothing is counted before a step is delivered."""

    def step(self, run: Run, step: NumberedStep, batch: Batch) -> None:
        """Count a step that was delivered, and the steps before it that were skipped."""
        if run.plan is not self._plan:
            self._name_sources(run)
        for skipped in step.skipped:
            self._counted += skipped.count_skipped()
        for rows in step.step.passed:
            self._counted += rows.count_left_out(LAST_STEP)
        for rows in step.step.ranges:
            self._add_rows(rows)
        if step.step.num_repeated or step.step.num_real < step.step.rows.num_rows:
            self._counted += step.step.filling
        if not self._has_warned and _may_drop(step):
            self._warn(step, run)
        if step.step.after.epoch > step.step.epoch:
            self._add_up()
            number = step.number + 1
            _log.info("epoch %d ends at step %d: %s", step.step.epoch, number, self._counted)

    def end(self, run: Run) -> None:
        """Count what comes after the last step of a loop."""
        self.add(run.count_rest(), run)

    def add(self, counters: Counters, run: Run) -> None:
        """Count what no step delivers."""
        self._name_sources(run)
        self._add_up()
        self._counted += counters
        if self._counted.dropped_words() and not self._has_warned:
            self._say(self._counted, plural(self._counted.samples, "sample"))

    def count_empty(self, run: Run, *, can_cut: bool) -> PlanError:
        """Count what is dropped by a pass without a step, and return the error that says why."""
        dropped, error = run.why_empty(can_cut=can_cut)
        self.add(dropped, run)
        return error

    def _name_sources(self, run: Run) -> None:
        names = run.names
        if names != self._names:
            self._counted = self.counters(names)
            self._names = names
        self._plan = run.plan

    def _add_rows(self, rows: RowRange) -> None:
        """Remember rows to be counted; the next rows of a block join those before them."""
        if rows.block is self._current and rows.start == self._stop:
            self._stop = rows.stop
            return
        self._close_range()
        if len(self._pending) >= _MOST_PENDING:
            self._add_up()
        self._current = rows.block
        self._start = rows.start
        self._stop = rows.stop

    def _close_range(self) -> None:
        if self._current is not None:
            self._pending.append(RowRange(self._current, self._start, self._stop))
            self._current = None

    def _add_up(self) -> None:
        self._close_range()
        for rows in self._pending:
            self._counted += rows.count()
        self._pending = []

    def _warn(self, numbered: NumberedStep, run: Run) -> None:
        """The first time that samples are dropped or cut, warn with the numbers of the epoch, or of its first blocks."""
        step = numbered.step
        for rows in (*step.passed, *step.ranges):
            if rows.begins:
                self._blocks += rows.block.counters
        dropped = self._blocks
        if not dropped.dropped_words() and (numbered.skipped or step.passed):
            self._add_up()
            dropped = self._counted
        if not dropped.dropped_words():
            return
        is_small = sum(source.num_samples for source in run.plan.sources) <= _COUNTED_AHEAD
        if is_small and not run.is_incomplete:
            of_epoch = run.plan.blocks.count_dropped(step.epoch)  # without the last step
            if of_epoch.dropped_words():
                samples_of_epoch = plural(of_epoch.samples, "sample")
                self._say(of_epoch, f"{samples_of_epoch} in epoch {step.epoch}")
                return
        self._say(dropped, f"the first {plural(dropped.samples, 'sample')}")

    def _say(self, counters: Counters, samples: str) -> None:
        self._has_warned = True
        settings = [f"{name}=" for name in counters.dropping_settings()]
        decided = ""
        if settings:
            verb = "decides" if len(settings) == 1 else "decide"
            decided = f"{' and '.join(settings)} {verb} this, "
        _log.warning(
            "%s (of %s); %ssee loader.counters", counters.dropped_words(), samples, decided
        )


def _may_drop(numbered: NumberedStep) -> bool:
    """Whether something may be dropped with a step: rows before it, or what a block that begins drops."""
    step = numbered.step
    # of several ranges, all but the first begin a block
    begins_block = len(step.ranges) > 1 or step.ranges[0].begins
    return begins_block or bool(numbered.skipped or step.passed)
