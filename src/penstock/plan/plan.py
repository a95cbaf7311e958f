"""Which rows come at this position?  The law book: composes seeds, shuffle, mix, pack and tail into one pure function.

`plan.step(position, rows)` is all that a loader needs; it looks at the lengths of one block.  The exact number of steps needs the rows of
every block (`table`), which costs one packing of all lengths and is made only when asked for.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from penstock.errors import PlanError, PlanMismatch, UnevenTail
from penstock.fingerprint import fingerprint
from penstock.plan.block import BlockSamples, Rows, contribution, count_block, pack_block
from penstock.plan.counters import NOTHING, Counters
from penstock.plan.differences import ALL, differences
from penstock.plan.mix import RowMix, Shares, Targets, TokenClock, TokenMix
from penstock.plan.settings import PlanSettings
from penstock.plan.shuffle import SourceOrder
from penstock.types import Ints, Lengths

ORDER_VERSION = (
    1  # part of every fingerprint: a change of order is a change of this number, breaks a golden file and is announced
)

_BARREN_EPOCHS = 16  # an endless plan gives up after so many epochs without a single step


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """What the plan knows of a source: names, counts and a key; never bytes."""

    name: str
    key: str  # the store's fingerprint
    shard_sizes: Ints  # samples per shard

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", str.__str__(self.name))  # a subclass of str prints, and so seeds, differently


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far all ranks together have come.  `rows` counts what was handed over, without padding."""

    epoch: int = 0
    block: int = 0
    row: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One global batch: always the asked number of rows, the last ones empty where an epoch's tail is padded."""

    rows: Rows
    epoch: int
    num_real: int  # rows that are not padding
    num_repeated: int  # rows handed over before in this epoch (tail="repeat")
    after: Position
    counters: Counters  # of the blocks that begin in this step


class Plan:
    """The whole run as a function.  Holds no state but caches of what can be computed again."""

    def __init__(self, sources: Sequence[PlanSource], lengths: Lengths, settings: PlanSettings) -> None:
        self.settings = settings
        self.sources = tuple(sources)
        self._lengths = lengths
        self._names = names = tuple(source.name for source in self.sources)
        if len(set(names)) < len(names):
            raise PlanError(f"sources {list(names)} do not have distinct names; names seed each source's shuffle")
        self._orders = [
            SourceOrder(
                source.name,
                source.shard_sizes,
                seed=settings.seed,
                shuffle=settings.shuffle,
                window=settings.window_shards,
            )
            for source in self.sources
        ]
        self._mix = self._make_mix()
        self._block = lru_cache(maxsize=4)(self._make_block)  # the one in use, the one read ahead, and a tail's first
        self._num_rows: dict[int, int] = {}
        self.table = lru_cache(maxsize=8)(self._make_table)

    # What it is

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything the order depends on, as plain values."""
        sources = [[s.name, s.key, fingerprint([int(n) for n in s.shard_sizes])[:16]] for s in self.sources]
        return {"order_version": ORDER_VERSION, **self.settings.as_dict(), "sources": sources}

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.identity)

    def summary(self) -> dict[str, Any]:
        """`identity` small enough to travel in every saved state, so that a refusal can say what differs."""
        content = {
            s.name: fingerprint(entry)[:8] for s, entry in zip(self.sources, self.identity["sources"], strict=True)
        }
        if len(json.dumps(content)) > 400:
            content = {ALL: fingerprint(self.identity["sources"])[:16]}
        summary = {**self.identity, "sources": content}
        if self.settings.weights is not None and len(str(self.settings.weights)) > 200:
            summary["weights"] = fingerprint(list(self.settings.weights))[:16]
        default = PlanSettings(max_length=1).as_dict()  # what is at its default need not travel
        return {
            key: value
            for key, value in summary.items()
            if key not in default or value != default[key] or key == "max_length"
        }

    def check_summary(self, fingerprint: str, summary: dict[str, Any]) -> None:
        """Refuse a state of another plan, by name of what differs."""
        if fingerprint == self.fingerprint:
            return
        found = differences(summary, self.summary())
        raise PlanMismatch(
            f"cannot resume: the state belongs to plan {fingerprint[:8]}, this is plan {self.fingerprint[:8]}; "
            f"{'; '.join(found) or 'the state was altered'}; resume with the settings and data of the saved run, or start a new run"
        )

    # What comes

    def step(self, position: Position, num_rows: int, *, epochs: int | None = 1) -> Step | None:
        """The next `num_rows` rows of all ranks together, and the position after them; None when `epochs` are over."""
        assert num_rows > 0
        barren = 0
        while epochs is None or position.epoch < epochs:
            taken, after, counters = self._take(position, num_rows)
            missing = num_rows - taken.num_rows
            if not missing:
                return Step(
                    rows=taken, epoch=position.epoch, num_real=num_rows, num_repeated=0, after=after, counters=counters
                )
            if taken.num_rows and (step := self._tail_step(taken, position, after, missing, epochs)):
                return replace(step, counters=counters + step.counters)
            barren += 1
            if epochs is None and barren >= _BARREN_EPOCHS:
                raise self._nothing_left(barren, num_rows)
            position = replace(after, rows=after.rows - (taken.num_rows if self.settings.tail == "drop" else 0))
        return None

    def _nothing_left(self, barren: int, num_rows: int) -> PlanError:
        return PlanError(
            f"{barren} epochs in a row gave no step of {num_rows} rows: every sample is empty or dropped, or tail='drop' "
            f"drops all there is; look at the counters, lower the batch size or choose tail='pad'"
        )

    def _tail_step(
        self, taken: Rows, position: Position, after: Position, missing: int, epochs: int | None
    ) -> Step | None:
        """A step that reaches the epoch's end; None when its rows are dropped."""
        epoch, tail = position.epoch, self.settings.tail
        if tail == "drop":
            return None
        if tail == "error":
            raise UnevenTail(
                f"epoch {epoch} ends with a step of {taken.num_rows} of {taken.num_rows + missing} rows; choose a batch size that "
                f"divides the epoch, or tail='pad', 'drop', 'repeat' or 'wrap'"
            )
        if tail == "repeat":
            parts, wanted = [taken], missing
            while wanted:  # from the epoch's start, and again if it is shorter than what is missing
                parts.append(self._take(Position(epoch=epoch), wanted)[0])
                wanted -= parts[-1].num_rows
            rows = Rows.join(parts)
            return Step(
                rows=rows, epoch=epoch, num_real=rows.num_rows, num_repeated=missing, after=after, counters=Counters()
            )
        parts, barren, counters = [taken], 0, Counters()
        while tail == "wrap" and missing and (epochs is None or after.epoch < epochs):
            more, after, begun = self._take(after, missing)
            counters += begun
            missing -= more.num_rows
            parts.append(more)
            barren = 0 if more.num_rows else barren + 1
            if epochs is None and barren >= _BARREN_EPOCHS:
                raise self._nothing_left(barren, taken.num_rows + missing)
        num_real = sum(part.num_rows for part in parts)
        return Step(
            rows=Rows.join([*parts, Rows.empty(missing)]),
            epoch=epoch,
            num_real=num_real,
            num_repeated=0,
            after=after,
            counters=counters,
        )

    def _take(self, position: Position, num_rows: int) -> tuple[Rows, Position, Counters]:
        """Up to `num_rows` rows of this epoch and the position after them; fewer only when the epoch ends."""
        parts: list[Rows] = []
        epoch, number, row = position.epoch, position.block, position.row
        missing, counters = num_rows, NOTHING
        while missing and (block := self._block(epoch, number)) is not None:
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
        if row == 0 and self._mix.shares(epoch, number) is None:
            epoch, number = epoch + 1, 0
        after = Position(epoch=epoch, block=number, row=row, rows=position.rows + num_rows - missing)
        return Rows.join(parts), after, counters

    # How much there is

    def _make_table(self, epoch: int) -> Ints:
        """Rows before each block of an epoch, and in all: (num_blocks + 1,)."""
        counts = [0]
        while (shares := self._mix.shares(epoch, len(counts) - 1)) is not None:
            counts.append(count_block(self._samples(shares), self.settings, names=self._names))
        return np.cumsum(np.array(counts, np.int64))

    def num_rows(self, epoch: int) -> int:
        """Rows of an epoch.  Kept for all epochs, which tables are not: they hold a number per block."""
        if epoch not in self._num_rows:
            self._num_rows[epoch] = int(self.table(epoch)[-1])
        return self._num_rows[epoch]

    def num_steps(self, num_rows: int, *, epochs: int, start: Position | None = None) -> int:
        """Steps of `num_rows` rows from `start` to the end of `epochs`."""
        start = start or Position()
        left, steps = 0, 0
        for epoch in range(start.epoch, epochs):
            left += self.num_rows(epoch) - (self._row_in_epoch(start) if epoch == start.epoch else 0)
            if self.settings.tail == "wrap" and epoch < epochs - 1:
                continue
            full, rest = divmod(left, num_rows)
            if rest and self.settings.tail == "error":
                raise UnevenTail(
                    f"epoch {epoch} has {left} rows, which do not divide into steps of {num_rows}; choose another batch size or tail"
                )
            steps += full + (rest > 0 and self.settings.tail != "drop")
            left = 0
        return steps

    def seek(self, step: int, num_rows: int, *, epochs: int | None = 1, start: Position | None = None) -> Position:
        """The position before step `step` of a run that takes `num_rows` rows per step, counted from `start`."""
        if step < 0:
            raise PlanError(f"cannot seek to step {step}: steps are counted from 0")
        start = start or Position()
        if not step:
            return start
        tail, epoch, left, handed = self.settings.tail, start.epoch, step, 0  # rows handed over since `start`
        while epochs is None or epoch < epochs:
            first = self._row_in_epoch(start) if epoch == start.epoch else 0
            rows = self.num_rows(epoch) - first
            if tail == "wrap":  # one stream over all epochs
                if step * num_rows <= handed + rows:
                    return self.position(epoch, first + step * num_rows - handed, start.rows + step * num_rows)
            else:
                here = rows // num_rows if tail == "drop" else -(-rows // num_rows)
                if left <= here:
                    if left * num_rows > rows:  # a short last step has looked for more, and so came to the epoch's end
                        return Position(epoch=epoch + 1, rows=start.rows + handed + rows)
                    return self.position(epoch, first + left * num_rows, start.rows + handed + left * num_rows)
                left -= here
                rows = here * num_rows if tail == "drop" else rows
            handed += rows
            epoch += 1
            if epochs is None and not handed and epoch >= start.epoch + _BARREN_EPOCHS:
                raise PlanError(
                    f"cannot seek: {_BARREN_EPOCHS} epochs gave no step of {num_rows} rows; look at the counters"
                )
        total = self.num_steps(num_rows, epochs=epoch, start=start)
        if step > total:
            raise PlanError(f"cannot seek to step {step}: the run has {total} steps of {num_rows} rows")
        return Position(epoch=epoch, rows=start.rows + handed)

    def position(self, epoch: int, row: int, rows: int) -> Position:
        """The position after the first `row` rows of an epoch: right behind the last of them, as `step` leaves it."""
        table = self.table(epoch)
        block = int(np.searchsorted(table, row, side="left")) - 1 if row else 0
        if row and row == table[block + 1]:
            block += 1
        if block == table.size - 1:
            return Position(epoch=epoch + 1, rows=rows)
        return Position(epoch=epoch, block=block, row=row - int(table[block]), rows=rows)

    def _row_in_epoch(self, position: Position) -> int:
        return int(self.table(position.epoch)[position.block]) + position.row

    def count(self, epoch: int, num_rows: int | None = None) -> Counters:
        """What happens to every sample and token of an epoch; with `num_rows` per step, also to its tail."""
        counters, number, last = Counters(), 0, Rows.empty(0)
        while (block := self._make_block(epoch, number)) is not None:
            counters += block[1]
            number += 1
            if num_rows:
                last = Rows.join([last, block[0]])
                last = last.slice(last.num_rows // num_rows * num_rows, last.num_rows)
        if not last.num_rows or num_rows is None or self.settings.tail in ("wrap", "error"):
            return counters
        if self.settings.tail == "drop":
            return counters + _dropped_tail(last, self.settings.max_length)
        missing = num_rows - last.num_rows
        return counters + (
            Counters(rows_repeated=missing) if self.settings.tail == "repeat" else Counters(rows_padded=missing)
        )

    def shards(self, epoch: int, block: int) -> list[tuple[int, int]] | None:
        """(source, shard) pairs that a block needs, in the order in which a background builder should make them; None past the end."""
        shares = self._mix.shares(epoch, block)
        if shares is None:
            return None
        return [
            (number, int(shard))
            for number, order in enumerate(self._orders)
            for shard in order.shards(shares.starts[number], shares.stops[number])
        ]

    def rows_of_block(self, epoch: int, block: int) -> int:
        """Rows that a block is packed into; 0 past the epoch's end."""
        made = self._block(epoch, block)
        return 0 if made is None else made[0].num_rows

    def walk(self, *, start: Position | None = None, num_rows: int, epochs: int | None = 1) -> Iterator[Step]:
        """Every step from `start` on."""
        position = start or Position()
        while (step := self.step(position, num_rows, epochs=epochs)) is not None:
            yield step
            position = step.after

    # How a block is made

    def _make_mix(self) -> RowMix | TokenMix:
        settings, weights = self.settings, self.settings.exact_weights()
        num_samples = [order.num_samples for order in self._orders]
        if weights is not None:
            if len(weights) != len(self.sources):
                raise PlanError(f"{len(weights)} weights for {len(self.sources)} sources")
            for source, count in zip(self.sources, num_samples, strict=True):
                if not count:
                    raise PlanError(
                        f"source {source.name!r} has a weight but no samples, so its share cannot be given; leave it out"
                    )
        if weights is not None and settings.mix_by == "tokens":
            clocks = [TokenClock(order, self._contribution(number)) for number, order in enumerate(self._orders)]
            return TokenMix(clocks, weights, block=settings.block, ramp=settings.ramps, stop=settings.stop or "first")
        targets = Targets(num_samples, weights, settings.stop or "first")
        return RowMix(targets, block=settings.block, ramp=settings.ramps)

    def _contribution(self, number: int) -> Callable[[Ints], Ints]:
        return lambda samples: contribution(self._asked(number, samples), self.settings)

    def _asked(self, number: int, samples: Ints) -> Ints:
        lengths = np.asarray(self._lengths(number, samples))
        assert lengths.shape == samples.shape and lengths.dtype.kind in "iu", "one whole number for every sample"
        return lengths.astype(np.int64, copy=False)

    def _make_block(self, epoch: int, number: int) -> tuple[Rows, Counters] | None:
        shares = self._mix.shares(epoch, number)
        if shares is None:
            return None
        return pack_block(self._samples(shares), self.settings, names=self._names, epoch=epoch, number=number)

    def _samples(self, shares: Shares) -> BlockSamples:
        samples = [order.samples(a, b) for order, a, b in zip(self._orders, shares.starts, shares.stops, strict=True)]
        lengths = [self._asked(number, ids) for number, ids in enumerate(samples) if ids.size]
        counts = [ids.size for ids in samples]
        sources = np.repeat(np.arange(len(samples), dtype=np.int64), counts)
        if not lengths:
            return BlockSamples(sources, np.empty(0, np.int64), np.empty(0, np.int64))
        block = BlockSamples(sources, np.concatenate(samples), np.concatenate(lengths))
        if len(lengths) == 1:
            return block
        # Spread each source evenly over the block: also a short run of samples then holds the sources in their shares.
        turn = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count])
        order = np.argsort(turn, kind="stable")
        return BlockSamples(block.sources[order], block.samples[order], block.lengths[order])


def _dropped_tail(rows: Rows, max_length: int) -> Counters:
    """Rows taken out of the epoch again, as numbers to add to its counters."""
    tokens = int((rows.spans["stop"] - rows.spans["start"]).sum())
    # A sample may be there in several pieces, and several times when its source repeats: count its most frequent piece.
    pieces, times = np.unique(rows.spans[["source", "sample", "start"]], return_counts=True)
    _, first = np.unique(pieces[["source", "sample"]], return_index=True)
    samples = int(np.maximum.reduceat(times, first).sum()) if first.size else 0
    return Counters(
        samples_out=-samples,
        tokens_out=-tokens,
        samples_dropped=Counter(tail=samples),
        tokens_dropped=Counter(tail=tokens),
        rows=-rows.num_rows,
        tokens_capacity=-rows.num_rows * max_length,
    )
