"""Which rows come at a position: a pure function of the sources, the settings and the position.

`plan.step(position, rows)` is all that a loader needs; it looks up the lengths of one block.  The exact number of steps needs the rows of
every block (`table`), which costs one packing of all lengths and is made only when needed.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from penstock import words
from penstock.errors import PlanError, PlanMismatch, UnevenTail
from penstock.fingerprint import fingerprint
from penstock.plan.block import Blocks, PlanSource, Rows
from penstock.plan.counters import NOTHING, Counters
from penstock.plan.segments import Mixture, Segments, Start
from penstock.plan.settings import DEFAULTS, PlanSettings
from penstock.reasons import TAIL
from penstock.types import Ints, Lengths, Targets

__all__ = ["ORDER_VERSION", "Plan", "PlanSource", "Position", "Step"]

# Part of every fingerprint: a change of order is a change of this number, breaks a golden file and is announced.
ORDER_VERSION = 2

_MOST_EMPTY_EPOCHS = 16  # an endless plan stops with an error after so many epochs without a step
ALL_SOURCES = "(all together)"  # the one entry of a summary whose sources are too many to list


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far all ranks together have come.  `rows` counts delivered rows, without padding."""

    epoch: int = 0
    block: int = 0
    row: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One global batch: always the requested number of rows; the last ones are empty where an epoch's tail is padded."""

    rows: Rows
    epoch: int
    num_real: int  # rows that are not padding
    num_repeated: int = 0  # rows delivered before in this epoch (tail="repeat")
    after: Position
    counters: Counters  # of the blocks that begin in this step


class _Part(NamedTuple):
    """The part of a run's steps that comes from one epoch."""

    epoch: int
    base: int  # block from which its rows are counted
    first: int  # row
    num_rows: int
    carried: int  # rows of the epochs before in the first step that ends here
    steps: int  # that end here


class Plan:
    """The whole run as a pure function.  Its only state is a cache of values that it can compute again."""

    def __init__(
        self,
        sources: Sequence[PlanSource],
        lengths: Lengths,
        settings: PlanSettings,
        *,
        targets: Targets | None = None,
        mixtures: Sequence[Mixture] = (),
        start: Start | None = None,
    ) -> None:
        """Without `targets`, every piece of a sample is taken to hold a target.

        mixtures: those of a run that changes; then `sources` are all that the run has had, and `settings` have the last weights.
        start: of the segment of a saved state; without it the run is counted from its beginning.
        """
        self.settings = settings
        self.sources = tuple(sources)
        self._lengths, self._targets = lengths, targets
        self.mixtures, self.start = tuple(mixtures), start
        self.blocks: Blocks | Segments = (
            Segments(self.mixtures, lengths, settings, targets, start)
            if mixtures
            else Blocks(self.sources, lengths, settings, targets)
        )
        self.pack = lru_cache(maxsize=4)(self.blocks.pack)  # the one in use, the one read ahead, and a tail's first
        self._num_rows: dict[tuple[int, int], int] = {}
        self.table = lru_cache(maxsize=8)(self._make_table)

    def changed(self, **settings: Any) -> "Plan":
        """Return a plan of the same sources with other settings."""
        changed = replace(self.settings, **settings)
        return Plan(self.sources, self._lengths, changed, targets=self._targets, mixtures=self.mixtures)

    def predicted(self) -> "Plan":
        """Return this plan as if every piece held a target: it looks up lengths only, and is exact without weights and changes."""
        return Plan(self.sources, self._lengths, self.settings, mixtures=self.mixtures, start=self.start)

    # Identity

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything the order depends on, as plain values."""
        if self.mixtures:
            shared = replace(self.settings, weights=None, mix_by=None, stop=None).of_order()
            return {"order_version": ORDER_VERSION, **shared, "mixtures": [each.identity() for each in self.mixtures]}
        sources = [[s.name, s.key, fingerprint([int(n) for n in s.shard_sizes])[:16]] for s in self.sources]
        return {"order_version": ORDER_VERSION, **self.settings.of_order(), "sources": sources}

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.identity)

    def summary(self) -> dict[str, Any]:
        """Return `identity`, small enough for every saved state, so that a refusal can say what differs.  Defaults are left out."""
        if self.mixtures:  # the state holds them beside its summary
            return {
                k: v for k, v in self.identity.items() if k != "mixtures" and (k not in DEFAULTS or v != DEFAULTS[k])
            }
        sources = self.identity["sources"]
        content = {entry[0]: fingerprint(entry)[:8] for entry in sources}
        if len(json.dumps(content)) > 400:
            content = {ALL_SOURCES: fingerprint(sources)[:16]}
        summary = {**self.identity, "sources": content}
        if self.settings.weights is not None and len(str(self.settings.weights)) > 200:
            summary["weights"] = fingerprint(list(self.settings.weights))[:16]
        return {key: value for key, value in summary.items() if key not in DEFAULTS or value != DEFAULTS[key]}

    def check_summary(self, fingerprint: str, summary: dict[str, Any]) -> None:
        """Refuse the state of another plan and say what differs."""
        if fingerprint != self.fingerprint:
            raise PlanMismatch(
                f"cannot resume: the state belongs to plan {fingerprint[:8]}, this is plan {self.fingerprint[:8]}; "
                f"{'; '.join(self.differences(summary)) or 'the state was altered'}; resume with the settings and data of the saved "
                f"run, or start a new run; penstock resume --changes, or load_state_dict(state, changes=True), changes the mixture"
            )

    def differences(self, summary: dict[str, Any]) -> list[str]:
        """Return what differs between another plan's summary and this plan."""
        return words.differences(flat_summary(summary), flat_summary(json.loads(json.dumps(self.summary()))))

    # Steps

    def step(self, position: Position, num_rows: int, *, epochs: int | None = 1) -> Step | None:
        """Return the next `num_rows` rows of all ranks together, and the position after them; None when `epochs` are over."""
        return self._next(position, num_rows, epochs)[0]

    def undelivered(self, position: Position, num_rows: int, *, epochs: int | None = 1) -> Counters:
        """Count the samples after the last step of a run: blocks of which nothing is kept, and the rows that tail="drop" drops."""
        return self._next(position, num_rows, epochs)[1]

    def _next(self, position: Position, num_rows: int, epochs: int | None) -> tuple[Step | None, Counters]:
        """Return the next step, whose counters include the samples passed over before it; or None and those counters."""
        assert num_rows > 0
        tail, epoch, after, counters = self.settings.tail, position.epoch, position, NOTHING
        parts: list[Rows] = []
        missing, repeated, empty = num_rows, 0, 0
        while missing and (epochs is None or after.epoch < epochs) and (not parts or tail == "wrap"):
            epoch = epoch if parts else after.epoch
            rows, after, begun = self._take(after, missing)
            counters = begun if counters is NOTHING else counters + begun
            if 0 < rows.num_rows < missing and tail == "drop":
                counters += _dropped_tail(rows, self.settings.max_length)
                rows, after = Rows.empty(0), replace(after, rows=position.rows)
            parts += [rows] if rows.num_rows else []
            missing -= rows.num_rows
            empty = 0 if rows.num_rows else empty + 1
            self._refuse_endless(empty, num_rows, epochs)
        if not parts:
            return None, counters
        if missing and tail == "error":
            raise UnevenTail(
                f"epoch {epoch} ends with a step of {num_rows - missing} of {num_rows} rows; choose a batch size that divides the "
                f"epoch, or tail='pad', 'drop', 'repeat' or 'wrap'"
            )
        while (
            missing and tail == "repeat"
        ):  # from the epoch's start, and again if the epoch is shorter than what is missing
            first = self.blocks.first_block(epoch, position.block if position.epoch == epoch else 0)
            parts.append(self._take(Position(epoch=epoch, block=first), missing)[0])
            missing, repeated = missing - parts[-1].num_rows, repeated + parts[-1].num_rows
        if missing or repeated:
            parts.append(Rows.empty(missing))
            counters += Counters(rows_repeated=repeated, rows_padded=missing)
        step = Step(
            rows=Rows.join(parts),
            epoch=epoch,
            num_real=num_rows - missing,
            num_repeated=repeated,
            after=after,
            counters=counters,
        )
        return step, NOTHING

    def steps(self, *, start: Position | None = None, num_rows: int, epochs: int | None = 1) -> Iterator[Step]:
        """Yield every step from `start` on."""
        position = start or Position()
        while (step := self.step(position, num_rows, epochs=epochs)) is not None:
            yield step
            position = step.after

    def _refuse_endless(self, empty: int, num_rows: int, epochs: int | None) -> None:
        if epochs is None and empty >= _MOST_EMPTY_EPOCHS:
            raise PlanError(
                f"{empty} epochs in a row gave no step of {num_rows} rows: every sample is empty or dropped, or tail='drop' "
                f"drops all rows; see the counters, lower the batch size or choose tail='pad'"
            )

    def _take(self, position: Position, num_rows: int) -> tuple[Rows, Position, Counters]:
        """Return up to `num_rows` rows of this epoch and the position after them; fewer only when the epoch ends."""
        parts: list[Rows] = []
        epoch, number, row = position.epoch, position.block, position.row
        missing, counters = num_rows, NOTHING
        while missing and (block := self.pack(epoch, number)) is not None:
            rows = block[0]
            if row == 0:
                counters += block[1]
            count = min(missing, rows.num_rows - row)
            if count:
                parts.append(rows.slice(row, row + count))
            missing -= count
            row += count
            if row >= rows.num_rows:
                number, row = number + 1, 0
        if row == 0 and self.blocks.shares(epoch, number) is None:
            epoch, number = epoch + 1, 0
        after = Position(epoch=epoch, block=number, row=row, rows=position.rows + num_rows - missing)
        return Rows.join(parts), after, counters

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

    def num_steps(self, num_rows: int, *, epochs: int, start: Position | None = None) -> int:
        """Return the number of steps of `num_rows` rows from `start` to the end of `epochs`."""
        steps = 0
        for part in self.parts(num_rows, epochs, start or Position()):
            if part.num_rows % num_rows and self.settings.tail == "error":
                raise UnevenTail(
                    f"epoch {part.epoch} has {part.num_rows} rows, which do not divide into steps of {num_rows}; choose another batch "
                    f"size or tail"
                )
            steps += part.steps
        return steps

    def seek(self, step: int, num_rows: int, *, epochs: int | None = 1, start: Position | None = None) -> Position:
        """Return the position before step `step` of a run that takes `num_rows` rows per step, counted from `start`."""
        if step < 0:
            raise PlanError(f"cannot seek to step {step}: steps are counted from 0")
        start = start or Position()
        left, delivered = step, start.rows
        for part in self.parts(num_rows, epochs, start) if step else ():
            if left <= part.steps:
                rows = left * num_rows - part.carried
                if rows > part.num_rows:  # a short last step ends with its epoch
                    return Position(epoch=part.epoch + 1, rows=delivered + part.num_rows)
                return self._position(part, part.first + rows, delivered + rows)
            left -= part.steps
            delivered += part.steps * num_rows if self.settings.tail == "drop" else part.num_rows
            if delivered == start.rows:
                self._refuse_endless(part.epoch + 1 - start.epoch, num_rows, epochs)
        if left:
            raise PlanError(f"cannot seek to step {step}: the run has {step - left} steps of {num_rows} rows")
        return start

    def parts(self, num_rows: int, epochs: int | None, start: Position) -> "Iterator[_Part]":
        """Yield what each epoch from `start` on gives to steps of `num_rows` rows."""
        tail, carried = self.settings.tail, 0
        for epoch in itertools.count(start.epoch) if epochs is None else range(start.epoch, epochs):
            is_within = epoch == start.epoch and (start.block or start.row)
            base = self.blocks.first_block(epoch, start.block) if is_within else 0  # earlier blocks are not counted
            first = int(self.table(epoch, base)[start.block - base]) + start.row if is_within else 0
            rows = self.num_rows(epoch, base) - first
            steps, rest = divmod(carried + rows, num_rows)
            goes_on = tail == "wrap" and epoch + 1 != epochs
            yield _Part(epoch, base, first, rows, carried, steps + (rest > 0 and tail != "drop" and not goes_on))
            carried = rest if goes_on else 0

    def _position(self, part: _Part, row: int, rows: int) -> Position:
        """Return the position right after `row` rows of an epoch from the part's base on, as `step` leaves it."""
        table = self.table(part.epoch, part.base)
        block = int(np.searchsorted(table, row, side="left"))
        block -= int(table[block]) > row
        if block == table.size - 1:
            return Position(epoch=part.epoch + 1, rows=rows)
        return Position(epoch=part.epoch, block=part.base + block, row=row - int(table[block]), rows=rows)

    def count(self, epoch: int, num_rows: int | None = None) -> Counters:
        """Count what happens to every sample and token of an epoch; with `num_rows` per step, also to its tail."""
        counters, number, last = Counters(), 0, Rows.empty(0)
        while (block := self.blocks.pack(epoch, number)) is not None:
            counters, number = counters + block[1], number + 1
            last = Rows.join([last, block[0]])
            last = last.slice(last.num_rows - last.num_rows % (num_rows or 1), last.num_rows)
        if not last.num_rows or num_rows is None:
            return counters
        if self.settings.tail == "drop":
            return counters + _dropped_tail(last, self.settings.max_length)
        missing = num_rows - last.num_rows
        is_padded, is_repeated = self.settings.tail == "pad", self.settings.tail == "repeat"
        return counters + Counters(rows_padded=missing * is_padded, rows_repeated=missing * is_repeated)


def _dropped_tail(rows: Rows, max_length: int) -> Counters:
    """Return what dropping these rows changes in the counters of an epoch."""
    tokens = int((rows.spans["stop"] - rows.spans["start"]).sum())
    # A sample may be there in several pieces, and several times when its source repeats: count its most frequent piece.
    pieces, times = np.unique(rows.spans[["source", "sample", "start"]], return_counts=True)
    kinds, first = np.unique(pieces[["source", "sample"]], return_index=True)
    by_source: Counter[int] = Counter()
    for source, count in zip(kinds["source"].tolist(), np.maximum.reduceat(times, first).tolist(), strict=True):
        by_source[source] += count
    samples = by_source.total()
    return Counters(
        samples_out=-samples,
        samples_by_source=Counter({source: -count for source, count in by_source.items()}),
        tokens_out=-tokens,
        samples_dropped=Counter({TAIL: samples}),
        tokens_dropped=Counter({TAIL: tokens}),
        rows=-rows.num_rows,
        tokens_capacity=-rows.num_rows * max_length,
    )


def flat_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary with defaults, and with an entry for each source, to compare it with another."""
    flat, sources = DEFAULTS | {"balance": "rank or none"} | summary, summary.get("sources")
    if isinstance(sources, dict):
        flat |= {f"content of source {name!r}": content for name, content in sources.items()} | {
            "sources": list(sources)
        }
    return flat
