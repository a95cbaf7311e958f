"""Which rows come at a position: a pure function of the sources, the settings and the position.

`plan.step(position, rows)` is all that a loader needs; it looks up the lengths of one block.  The exact number of steps needs the rows of
every block (`table`), which costs one packing of all lengths and is made only when needed.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, cast

import numpy as np

from penstock import words
from penstock.errors import PlanError, PlanMismatch, UnevenTail
from penstock.fingerprint import fingerprint
from penstock.notebook import shown_in_notebooks
from penstock.plan.block import BlockMaker
from penstock.plan.budget import Budget, BudgetCounter, StepTokens
from penstock.plan.counters import NOTHING, Counters
from penstock.plan.order import PlanSource
from penstock.plan.rows import PackedBlock, Rows
from penstock.plan.segments import (
    Blocks,
    Mixture,
    Segment,
    Start,
    check_mixtures,
    mixed_segment,
)
from penstock.plan.settings import DEFAULTS, PlanSettings
from penstock.plan.stream import PlannedStream, StreamedOrder
from penstock.reasons import LAST_STEP, SKIPPED
from penstock.types import Ints, Lengths, Objective, SeveralSequences, Targets
from penstock.words import plural

__all__ = ["ORDER_VERSION", "Plan", "PlanSource", "Position", "Step"]

# Part of every fingerprint: a change of order is a change of this number, breaks a golden file and is announced.
ORDER_VERSION = 3

_MOST_EMPTY_EPOCHS = 16  # an endless plan stops with an error after so many epochs without a step
_OF_ANOTHER_MIXTURE = (
    "; penstock state --changes, or load_state_dict(state, changes=True), changes the mixture"
)
ALL_SOURCES = "(all together)"  # the one entry of a summary whose sources are too many to list


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far all ranks together have come.  `rows` counts delivered rows, without padding."""

    epoch: int = 0
    block: int = 0
    row: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class RowRange:
    """Consecutive rows of a block, which may be none."""

    block: PackedBlock
    start: int
    stop: int

    @property
    def begins(self) -> bool:
        """Whether the block begins here: then what it drops is counted.  A resume inside a block does not count it again."""
        return self.start == 0

    @property
    def rows(self) -> Rows:
        return self.block.rows.slice(self.start, self.stop)

    def count(self) -> Counters:
        """Count these rows as delivered, and what the block drops if it begins here."""
        delivered = self.block.delivered(self.start, self.stop)
        return self.block.dropped + delivered if self.begins else delivered

    def count_left_out(self, reason: str) -> Counters:
        """Count these rows as dropped, and what the block drops if it begins here."""
        left_out = self.block.left_out(self.start, self.stop, reason)
        return self.block.dropped + left_out if self.begins else left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One global batch: always the requested number of rows; the last ones are empty where an epoch's last_step is padded."""

    rows: Rows
    epoch: int
    num_real: int  # rows that are not padding
    num_repeated: int = 0  # rows delivered before in this epoch (last_step="repeat")
    after: Position
    ranges: tuple[RowRange, ...]  # the rows that it delivers, without repeated ones
    passed: tuple[
        RowRange, ...
    ] = ()  # rows before it that are in no step: the last step of an epoch

    @property
    def filling(self) -> Counters:
        """Count the rows that fill up the step."""
        return Counters(
            rows_repeated=self.num_repeated, rows_padded=self.rows.num_rows - self.num_real
        )

    def count(self) -> Counters:
        """Count what this step delivers, and what is dropped with it."""
        return _count(self.ranges) + _count_left_out(self.passed, LAST_STEP) + self.filling

    def count_skipped(self) -> Counters:
        """Count this step if it is left out: what its rows hold is dropped."""
        return _count_left_out(self.ranges, SKIPPED) + _count_left_out(self.passed, LAST_STEP)


@dataclass(frozen=True, slots=True)
class NumberedStep:
    """A step by its number in the run, after steps that were left out."""

    number: int
    step: Step
    skipped: tuple[Step, ...] = ()


def _count(ranges: Sequence[RowRange]) -> Counters:
    return sum((rows.count() for rows in ranges), start=NOTHING)


def _count_left_out(ranges: Sequence[RowRange], reason: str) -> Counters:
    return sum((rows.count_left_out(reason) for rows in ranges), start=NOTHING)


class _Part(NamedTuple):
    """The part of a run's steps that comes from one epoch."""

    epoch: int
    base: int  # block from which its rows are counted
    first: int  # row
    num_rows: int
    carried: int  # rows of the epochs before in the first step that ends here
    steps: int  # that end here
    is_spent: bool = False  # the budget ends in this epoch


@shown_in_notebooks
class Plan:
    """The whole run as a pure function.  Its only state is a cache of values that it can compute again."""

    def __init__(
        self,
        sources: Sequence[PlanSource] | Sequence[PlannedStream],
        lengths: Lengths,
        settings: PlanSettings,
        *,
        targets: Targets | None = None,
        objective: Objective | None = None,
        sequences: SeveralSequences | None = None,
        mixtures: Sequence[Mixture] = (),
        start: Start | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Without `targets`, every piece of a sample is taken to hold a target.

        sources: one PlannedStream, or any number of others.
        objective: what `settings.objective` names, opened for these sources.
        sequences: of samples that are several, such as pairs.
        mixtures: those of a run that changes; then `sources` are all that the run has had, and `settings` have the last weights.
        start: of the segment of a saved state; without it the run is counted from its beginning.
        budget: how far a pass follows the order: steps end there.  What is said about whole epochs (`count`, `table`) does not change.
        """
        self.settings = settings
        self.budget = budget
        first = sources[0] if sources else None
        self.stream = StreamedOrder(first, settings) if isinstance(first, PlannedStream) else None
        # A PlannedStream has the attributes of a PlanSource that a plan of one segment uses.
        self.sources = cast(tuple[PlanSource, ...], tuple(sources))
        self._lengths = lengths
        self._targets = targets
        self.objective = objective
        self.sequences = sequences
        self.start = start
        only = Mixture(
            sources=self.sources,
            weights=settings.weights,
            mix_by=settings.mix_by,
            stopping_strategy=settings.stopping_strategy,
        )
        self.mixtures = tuple(mixtures) or (only,)
        self._numbers = check_mixtures(self.mixtures)
        self.blocks = Blocks(self.mixtures, self._make_segment, settings, start)
        # Four are kept: the block in use, the one read ahead, and those that a last step repeats.
        self.pack = lru_cache(maxsize=4)(self.blocks.pack)
        self._num_rows: dict[tuple[int, int], int] = {}
        self.table = lru_cache(maxsize=8)(self._make_table)
        self._counted_steps: dict[tuple[Position, int, int], int] = {}  # of steps of tokens
        self._limit: BudgetCounter | None = None
        if budget is not None and (budget.tokens is not None or budget.share is not None):
            self._limit = BudgetCounter(budget, self.pack, self.table)

    def _make_segment(self, mixture: Mixture, start: Start) -> Segment:
        if self.stream is not None:
            names = [source.name for source in mixture.sources]
            maker = BlockMaker(
                names, self._lengths, self.settings, self._targets, self.sequences, self.objective
            )
            return self.stream.segment(start, maker)
        return mixed_segment(
            mixture,
            start,
            numbers=self._numbers,
            lengths=self._lengths,
            settings=self.settings,
            targets=self._targets,
            objective=self.objective,
            sequences=self.sequences,
        )

    @property
    def is_stream(self) -> bool:
        """Whether this run is over a stream: how many rows there are is known at its end only."""
        return self.stream is not None

    @property
    def row_capacity(self) -> int:
        """Tokens that a row has at most: max_length, for each sequence of a sample."""
        return self.settings.max_length * (1 if self.sequences is None else self.sequences.count)

    @property
    def has_changes(self) -> bool:
        """Whether the mixture of this run changes, or has changed."""
        return len(self.mixtures) > 1

    def changed(self, **settings: Any) -> "Plan":
        """Return a plan of the same sources with other settings."""
        if self.stream is not None:
            raise PlanError("a stream has one plan: open it again, and make another Loader")
        changed = replace(self.settings, **settings)
        mixtures = self.mixtures if self.has_changes else ()
        return Plan(
            self.sources,
            self._lengths,
            changed,
            targets=self._targets,
            objective=self.objective,
            sequences=self.sequences,
            mixtures=mixtures,
            budget=self.budget,
        )

    def with_budget(self, budget: Budget | None) -> "Plan":
        """Return the same order, followed so far."""
        if budget == self.budget:
            return self
        return Plan(
            cast(Any, self.sources),
            self._lengths,
            self.settings,
            targets=self._targets,
            objective=self.objective,
            sequences=self.sequences,
            mixtures=self.mixtures if self.has_changes else (),
            start=self.start,
            budget=budget,
        )

    def first_epoch_of_pass(self, epoch: int) -> int:
        """Return the epoch in which a pass begins that only its tokens end."""
        assert self._limit is not None
        return self._limit.first_epoch(epoch)

    def end_of_pass(self, epoch: int) -> int:
        """Return the epoch before which such a pass ends; looks up all lengths up to there."""
        assert self._limit is not None
        return self._limit.end_of_pass(epoch)

    def predicted(self) -> "Plan":
        """Return this plan as if every piece held a target: it looks up lengths only, and is exact without weights and changes."""
        if self.stream is not None:
            return self
        return Plan(
            self.sources,
            self._lengths,
            self.settings,
            objective=self.objective,
            sequences=self.sequences,
            mixtures=self.mixtures,
            start=self.start,
            budget=self.budget,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the plan was made of: its caches are made again."""
        make = partial(
            Plan,
            targets=self._targets,
            objective=self.objective,
            sequences=self.sequences,
            mixtures=self.mixtures,
            start=self.start,
            budget=self.budget,
        )
        return make, (self.sources, self._lengths, self.settings)

    # Identity

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything the order depends on, as plain values."""
        if self.has_changes:
            shared = replace(
                self.settings, weights=None, mix_by=None, stopping_strategy=None
            ).of_order()
            return {
                "order_version": ORDER_VERSION,
                **shared,
                "mixtures": [each.identity() for each in self.mixtures],
            }
        sources = [source.identity() for source in self.sources]
        return {"order_version": ORDER_VERSION, **self.settings.of_order(), "sources": sources}

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.identity)

    def __repr__(self) -> str:
        sources = ", ".join(
            f"{source.name} ({plural(source.num_samples, 'sample')})" for source in self.sources
        )
        settings = self.settings
        return (
            f"Plan({sources}; rows of {settings.max_length:,} tokens, packing {settings.packing}, "
            f"seed {settings.seed}, {self.fingerprint[:8]})"
        )

    def summary(self) -> dict[str, Any]:
        """Return `identity`, small enough for every saved state, so that a refusal can say what differs.  Defaults are left out."""
        summary = dict(self.identity)
        summary.pop("mixtures", None)  # a state holds them next to its summary
        if not self.has_changes:
            # a list: their order counts, and a dict may come back from a file with its keys sorted
            content = [[source.name, source.digest] for source in self.sources]
            if len(json.dumps(content)) > 400:
                content = [[ALL_SOURCES, fingerprint(summary["sources"])[:16]]]
            summary["sources"] = content
            if self.settings.weights is not None and len(str(self.settings.weights)) > 200:
                summary["weights"] = fingerprint(list(self.settings.weights))[:16]
        return {
            key: value
            for key, value in summary.items()
            if key not in DEFAULTS or value != DEFAULTS[key]
        }

    def check_summary(self, fingerprint: str, summary: dict[str, Any]) -> None:
        """Refuse the state of another plan and say what differs."""
        if fingerprint == self.fingerprint:
            return
        differences = self.differences(summary)
        advice = _OF_ANOTHER_MIXTURE if any(map(_is_of_mixture, differences)) else ""
        raise PlanMismatch(
            f"cannot resume: this run differs from the saved run: {'; '.join(differences) or 'the state was altered'}; "
            f"resume with the settings and data of the saved run, or start a new run{advice} "
            f"(the state belongs to plan {fingerprint[:8]}, this is plan {self.fingerprint[:8]})"
        )

    def differences(self, summary: dict[str, Any]) -> list[str]:
        """Return what differs between another plan's summary and this plan."""
        return words.differences(
            flat_summary(summary), flat_summary(json.loads(json.dumps(self.summary())))
        )

    # Steps

    def step(self, position: Position, num_rows: int, *, epochs: int | None = 1) -> Step | None:
        """Return the next `num_rows` rows of all ranks together, and the position after them; None when `epochs` are over."""
        return self._next(position, num_rows, epochs)[0]

    def count_rest(self, position: Position, num_rows: int, *, epochs: int | None = 1) -> Counters:
        """Count the samples after the last step of a run: blocks of which nothing is kept, and the rows that last_step="drop" drops."""
        return _count_left_out(self._next(position, num_rows, epochs)[1], LAST_STEP)

    def _next(
        self, position: Position, num_rows: int, epochs: int | None
    ) -> tuple[Step | None, Sequence[RowRange]]:
        """Return the next step; or None, and what comes after the last step."""
        assert num_rows > 0
        if self._step_tokens is not None:
            return self._next_of_tokens(position, num_rows, epochs)
        last_step = self.settings.last_step
        epoch = position.epoch
        after = position
        ranges: list[RowRange] = []
        passed: list[RowRange] = []
        missing = num_rows
        empty = 0
        while missing and (epochs is None or after.epoch < epochs):
            has_rows = missing < num_rows
            if has_rows and last_step != "wrap":
                break
            if not has_rows:
                epoch = after.epoch
            taken, next_position, is_spent = self._take(after, missing)
            count = next_position.rows - after.rows
            if count < missing and last_step == "drop":
                passed += taken
                count = 0
                next_position = replace(next_position, rows=position.rows)
            else:
                ranges += taken
            after = next_position
            missing -= count
            if is_spent:
                break
            empty = 0 if count else empty + 1
            self._refuse_endless(empty, num_rows, epochs)
        if missing == num_rows:
            return None, [*passed, *ranges]
        if missing and last_step == "error":
            raise self._uneven(epoch, num_rows - missing, num_rows)
        rows = [taken_rows.rows for taken_rows in ranges if taken_rows.stop > taken_rows.start]
        repeated = 0
        if missing and last_step == "repeat":
            first = self.blocks.first_block(epoch, position.block if position.epoch == epoch else 0)
            rows += self._repeated(Position(epoch=epoch, block=first), missing)
            repeated = missing
            missing = 0
        if missing:
            rows.append(Rows.empty(missing))
        step = Step(
            rows=Rows.join(rows),
            epoch=epoch,
            num_real=num_rows - missing,
            num_repeated=repeated,
            after=after,
            ranges=tuple(ranges),
            passed=tuple(passed),
        )
        return step, ()

    @property
    def _step_tokens(self) -> StepTokens | None:
        return None if self.budget is None else self.budget.step

    def _next_of_tokens(
        self, position: Position, most_rows: int, epochs: int | None
    ) -> tuple[Step | None, Sequence[RowRange]]:
        """Return the next step of as many rows as its tokens allow, as `_next`.

        Its rows are a multiple of what all ranks need.  Only the rest of an epoch that is less than that is padded, or dropped.
        """
        step_tokens = self._step_tokens
        assert step_tokens is not None
        after = position
        passed: list[RowRange] = []
        empty = 0
        while epochs is None or after.epoch < epochs:
            epoch = after.epoch
            candidates, next_position, is_spent = self._take(after, most_rows)
            found = next_position.rows - after.rows
            count = 0
            if found:
                rows = Rows.join([taken.rows for taken in candidates])
                lengths = self.row_lengths(rows, is_padded=step_tokens.is_padded)
                count = step_tokens.num_rows(lengths)
            missing = -count % step_tokens.multiple
            if missing and self.settings.last_step == "error":
                raise self._uneven(epoch, count, step_tokens.multiple)
            if count and not (missing and self.settings.last_step == "drop"):
                taken = candidates
                if count < found:
                    taken, next_position, _ = self._take(after, count)
                parts = [each.rows for each in taken if each.stop > each.start]
                if missing:
                    parts.append(Rows.empty(missing))
                step = Step(
                    rows=Rows.join(parts),
                    epoch=epoch,
                    num_real=count,
                    after=next_position,
                    ranges=tuple(taken),
                    passed=tuple(passed),
                )
                return step, ()
            passed += candidates
            after = replace(next_position, rows=position.rows)
            if is_spent:
                break
            empty += 1
            self._refuse_endless(empty, step_tokens.multiple, epochs)
        return None, passed

    def row_lengths(self, rows: Rows, *, is_padded: bool) -> Ints:
        """Return the tokens of each row; with padding, samples of several sequences count as if each were their longest."""
        spans = rows.spans
        sizes = spans["stop"] - spans["start"]
        if self.sequences is not None and is_padded:
            longest = np.zeros(len(spans), np.int64)
            for source in np.unique(spans["source"]).tolist():
                chosen = spans["source"] == source
                samples = np.ascontiguousarray(spans["sample"][chosen])
                longest[chosen] = self.sequences.longest(source, samples)
            sizes = longest * self.sequences.count
        running = np.concatenate(([0], np.cumsum(sizes)))
        lengths: Ints = np.diff(running[rows.starts])
        return lengths

    def _uneven(self, epoch: int, rows: int, num_rows: int) -> UnevenTail:
        return UnevenTail(
            f"epoch {epoch} ends with a step of {rows} of {num_rows} rows; choose a batch size that divides the "
            f"epoch, or last_step='pad', 'drop', 'repeat' or 'wrap'"
        )

    def _repeated(self, start: Position, num_rows: int) -> Iterator[Rows]:
        """Yield rows from the epoch's start, and again from there if the epoch has less than so many."""
        while num_rows:
            taken, after, _ = self._take(start, num_rows)
            num_rows -= after.rows - start.rows
            for taken_rows in taken:
                yield taken_rows.rows

    def steps(
        self, *, start: Position | None = None, num_rows: int, epochs: int | None = 1
    ) -> Iterator[Step]:
        """Yield every step from `start` on."""
        position = start or Position()
        while (step := self.step(position, num_rows, epochs=epochs)) is not None:
            yield step
            position = step.after

    def _refuse_endless(self, empty: int, num_rows: int, epochs: int | None) -> None:
        if epochs is None and empty >= _MOST_EMPTY_EPOCHS:
            raise PlanError(
                f"{empty} epochs in a row gave no step of {num_rows} rows: every sample is empty or dropped, or last_step='drop' "
                f"drops all rows; see the counters, lower the batch size or choose last_step='pad'"
            )

    def _take(self, position: Position, num_rows: int) -> tuple[list[RowRange], Position, bool]:
        """Return up to `num_rows` rows of this epoch, the position after them, and whether the budget is spent.

        Fewer rows only when the epoch ends, or the budget.
        """
        taken: list[RowRange] = []
        epoch = position.epoch
        number = position.block
        row = position.row
        missing = num_rows
        is_spent = False
        while missing and (block := self.pack(epoch, number)) is not None:
            end = block.rows.num_rows
            if self._limit is not None:
                end = self._limit.rows(epoch, number, end)
            count = min(missing, max(end - row, 0))
            is_spent = count < missing and end < block.rows.num_rows
            if count or not is_spent:
                taken.append(RowRange(block, row, row + count))
            missing -= count
            row += count
            if is_spent:
                break
            if row >= block.rows.num_rows:
                number = number + 1
                row = 0
        is_over = not is_spent and (
            missing > 0 or (row == 0 and not self.blocks.has(epoch, number))
        )
        if is_over:
            epoch = epoch + 1
            number = 0
        after = Position(
            epoch=epoch, block=number, row=row, rows=position.rows + num_rows - missing
        )
        return taken, after, is_spent

    # Sizes

    def _make_table(self, epoch: int, first: int = 0) -> Ints:
        """Return the rows before each block of an epoch from block `first` on, and in all: (num_blocks + 1,)."""
        counts = [0]
        while (rows := self.blocks.num_rows(epoch, first + len(counts) - 1)) is not None:
            counts.append(rows)
        return np.cumsum(np.array(counts, np.int64))

    def num_rows(self, epoch: int, first: int = 0) -> int:
        """Return the rows of an epoch from block `first` on.  Kept for all epochs; tables, which hold a number per block, are not."""
        if (epoch, first) not in self._num_rows:
            self._num_rows[epoch, first] = int(self.table(epoch, first)[-1])
        return self._num_rows[epoch, first]

    def rows_within(self, epoch: int) -> tuple[int, bool]:
        """Return how many rows of an epoch the budget holds, and whether it ends there."""
        if self._limit is None:
            return self.num_rows(epoch), False
        return self._limit.rows_of_epoch(epoch)

    def num_steps(
        self,
        num_rows: int,
        *,
        epochs: int | None,
        start: Position | None = None,
        at_most: int | None = None,
    ) -> int:
        """Return the number of steps of `num_rows` rows from `start` to the end of `epochs`.

        at_most: count no further; without an end of `epochs`, it is needed.
        """
        if self.stream is not None:
            self.stream.require_end()
        start = start or Position()
        if self._step_tokens is not None:
            return self._count_steps(num_rows, epochs, start, at_most)
        steps = 0
        for part in self.parts(num_rows, epochs, start):
            if part.num_rows % num_rows and self.settings.last_step == "error":
                raise UnevenTail(
                    f"epoch {part.epoch} has {part.num_rows} rows, which do not divide into steps of {num_rows}; choose another batch "
                    f"size or last_step"
                )
            steps += part.steps
            if not steps:
                self._refuse_endless(part.epoch + 1 - start.epoch, num_rows, epochs)
            if at_most is not None and steps >= at_most:
                return at_most
        return steps

    def _count_steps(
        self, num_rows: int, epochs: int | None, start: Position, at_most: int | None
    ) -> int:
        """Count steps of tokens, of which each depends on the lengths of its rows."""
        if epochs is not None and (start, num_rows, epochs) in self._counted_steps:
            steps = self._counted_steps[start, num_rows, epochs]
            return steps if at_most is None else min(steps, at_most)
        steps = 0
        for _ in self.steps(start=start, num_rows=num_rows, epochs=epochs):
            if steps == at_most:
                return steps
            steps += 1
        if epochs is not None:
            self._counted_steps[start, num_rows, epochs] = steps
        return steps

    def seek(
        self, step: int, num_rows: int, *, epochs: int | None = 1, start: Position | None = None
    ) -> Position:
        """Return the position before step `step` of a run that takes `num_rows` rows per step, counted from `start`."""
        if step < 0:
            raise PlanError(f"cannot seek to step {step}: steps are counted from 0")
        start = start or Position()
        if not step:
            return start
        if self.stream is not None or self._step_tokens is not None:
            return self._walk(step, num_rows, epochs, start)
        left = step
        delivered = start.rows
        for part in self.parts(num_rows, epochs, start):
            if left <= part.steps:
                rows = left * num_rows - part.carried
                if (
                    rows > part.num_rows
                ):  # a short last step ends with its epoch, or with the budget
                    if part.is_spent:
                        last = part.first + part.num_rows
                        return self._position(part, last, delivered + part.num_rows)
                    return Position(epoch=part.epoch + 1, rows=delivered + part.num_rows)
                return self._position(part, part.first + rows, delivered + rows)
            left -= part.steps
            if self.settings.last_step == "drop":
                delivered += part.steps * num_rows
            else:
                delivered += part.num_rows
            if delivered == start.rows:
                self._refuse_endless(part.epoch + 1 - start.epoch, num_rows, epochs)
        raise PlanError(
            f"cannot seek to step {step}: the run has {step - left} steps of {num_rows} rows"
        )

    def _walk(self, step: int, num_rows: int, epochs: int | None, start: Position) -> Position:
        """Seek step by step: in a stream, of which no more is read, and among steps of tokens."""
        position = start
        for _ in range(step):
            planned = self.step(position, num_rows, epochs=epochs)
            if planned is None:
                raise PlanError(f"cannot seek to step {step}: the run ends before it")
            position = planned.after
        return position

    def parts(self, num_rows: int, epochs: int | None, start: Position) -> "Iterator[_Part]":
        """Yield what each epoch from `start` on gives to steps of `num_rows` rows."""
        carried = 0
        numbers = itertools.count(start.epoch) if epochs is None else range(start.epoch, epochs)
        for epoch in numbers:
            base = 0
            first = 0
            if epoch == start.epoch and (start.block or start.row):
                # blocks of segments before this one are not counted
                base = self.blocks.first_block(epoch, start.block)
                first = int(self.table(epoch, base)[start.block - base]) + start.row
            rows = self.num_rows(epoch, base) - first
            is_spent = False
            if self._limit is not None:
                within, is_spent = self._limit.rows_of_epoch(epoch, base)
                rows = max(within - first, 0)
            steps, rest = divmod(carried + rows, num_rows)
            goes_on = self.settings.last_step == "wrap" and epoch + 1 != epochs and not is_spent
            if rest and not goes_on and self.settings.last_step != "drop":
                steps += 1
            yield _Part(
                epoch=epoch,
                base=base,
                first=first,
                num_rows=rows,
                carried=carried,
                steps=steps,
                is_spent=is_spent,
            )
            if is_spent:
                return
            carried = rest if goes_on else 0

    def _position(self, part: _Part, row: int, rows: int) -> Position:
        """Return the position right after `row` rows of an epoch from the part's base on, as `step` leaves it."""
        rows_before = self.table(part.epoch, part.base)
        block = int(np.searchsorted(rows_before, row, side="left"))
        if rows_before[block] > row:  # the place is inside the block before
            block -= 1
        if block == rows_before.size - 1:
            return Position(epoch=part.epoch + 1, rows=rows)
        return Position(
            epoch=part.epoch,
            block=part.base + block,
            row=row - int(rows_before[block]),
            rows=rows,
        )

    # Counts

    def count(self, epoch: int, num_rows: int | None = None) -> Counters:
        """Count what happens to every sample and token of an epoch; with `num_rows` per step, also to its last step."""
        last_step = self.settings.last_step
        rows_in_steps: int | None = None  # all
        if num_rows is not None and last_step == "drop":
            rows_in_steps = self.num_rows(epoch) // num_rows * num_rows
        counters = NOTHING
        for number in itertools.count():
            block = self.pack(epoch, number)
            if block is None:
                break
            end = block.rows.num_rows
            stop = end
            if rows_in_steps is not None:
                stop = min(max(0, rows_in_steps - counters.rows), end)
            counters += RowRange(block, 0, stop).count() + block.left_out(stop, end, LAST_STEP)
        missing = 0 if num_rows is None else -counters.rows % num_rows
        if last_step == "pad":
            return counters + Counters(rows_padded=missing)
        if last_step == "repeat":
            return counters + Counters(rows_repeated=missing)
        return counters


def _is_of_mixture(difference: str) -> bool:
    """Return whether an entry of `differences` is about sources or weights, which a change of mixture may change."""
    return difference.startswith(("sources ", "content of source ", "weights "))


def flat_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary with defaults, and with an entry for each source, to compare it with another."""
    flat = DEFAULTS | {"balance": "rank or none"} | summary
    sources = summary.get("sources")
    is_listed = isinstance(sources, list) and all(
        isinstance(pair, list) and len(pair) == 2 for pair in sources
    )
    if sources and is_listed:  # else of a run whose mixture changes, or damaged
        flat |= {f"content of source {name!r}": content for name, content in sources}
        flat |= {"sources": [name for name, _ in sources]}
    return flat
