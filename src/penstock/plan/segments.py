"""A run as a list of segments.  A segment is one mixture, and where each source was when it began; a run that never changes has one.

A change takes effect after any row.  The samples of the cut block that no row delivered come first from their source in the next
segment.  Each source keeps its own place: a mixture without it leaves the place as it is.  Blocks of an epoch are numbered on, so that a
position names its segment.  Packings that cut samples (concat, on_overlong="split") change at the end of the block: a sample is then never
delivered in part by two segments.

Sources have one number in the whole run; spans and counters hold these numbers.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np

from penstock.errors import PlanError
from penstock.plan.block import Block, BlockMaker
from penstock.plan.counters import Counters
from penstock.plan.mix import Concatenation, Mix, Shares, WeightedMix
from penstock.plan.order import PlanSource, SourceCursor, check_numbers
from penstock.plan.rows import PackedBlock
from penstock.plan.settings import PlanSettings
from penstock.types import Bools, Ints, Lengths, Objective, SeveralSequences, Targets

Place = tuple[int, int, int]  # epoch, block, row
BlockNumber = tuple[int, int]  # epoch, block

_NEVER = 1 << 62  # an epoch that no run has


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The sources from one row of the run on.  `at` is None while it is only known that `rows` rows come before."""

    sources: tuple[PlanSource, ...]
    weights: tuple[str, ...] | None = None
    mix_by: str | None = None
    stopping_strategy: str | None = None
    at: Place | None = (0, 0, 0)
    rows: int = 0  # before it, counted in the order: dropped ones count
    # Of a table of weights: steps or tokens; `rows` follows from it when the run begins.
    point: int | None = None

    def identity(self) -> list[Any]:
        """Plain values that say exactly when what is mixed."""
        weights = self.weights or [None] * len(self.sources)
        sources = [
            [source.name, source.key, source.num_samples, weight]
            for source, weight in zip(self.sources, weights, strict=True)
        ]
        at = None if self.at is None else list(self.at)
        return [at, self.rows, self.point, self.mix_by, self.stopping_strategy, sources]

    def settings(self, settings: PlanSettings) -> PlanSettings:
        """Return the settings of a run, for this mixture."""
        return replace(
            settings,
            weights=self.weights,
            mix_by=self.mix_by,
            stopping_strategy=self.stopping_strategy,
        )


@dataclass(frozen=True, slots=True)
class Start:
    """Where a segment begins, and every source's cursor there: all that the rows after it depend on."""

    number: int = 0  # of the segment
    at: Place = (0, 0, 0)  # what comes before: row > 0 cuts a block
    first: BlockNumber = (0, 0)
    rows: int = 0
    cursors: Mapping[str, SourceCursor] = field(default_factory=dict)

    def as_json(self) -> list[Any]:
        cursors = {name: cursor.as_json() for name, cursor in self.cursors.items()}
        return [self.number, list(self.at), list(self.first), self.rows, cursors]

    @staticmethod
    def from_json(value: Any) -> "Start":
        number, at, first, rows, cursors = value
        epoch, block, row = at
        first_epoch, first_block = first
        check_numbers(number, epoch, block, row, first_epoch, first_block, rows)
        return Start(
            number,
            (epoch, block, row),
            (first_epoch, first_block),
            rows,
            {str(name): SourceCursor.from_json(cursor) for name, cursor in cursors.items()},
        )


@dataclass(frozen=True, slots=True)
class CutBlock:
    """A block in which the mixture changes: its rows before the change, and which of its samples the next segment gives."""

    block: Block
    packed: PackedBlock
    is_left: Bools

    def count_dropped(self) -> Counters:
        """Count the samples before the change, without rows."""
        return self.block.take(~self.is_left).count_dropped()


class Order(Protocol):
    """The sequence of a source's sample ids, epoch after epoch."""

    @property
    def num_first(self) -> int:
        """Samples of the first epoch."""

    def samples(self, start: int, stop: int) -> Ints:
        """Return the sample ids at places start..stop."""

    def passes(self, start: int, stop: int) -> Ints:
        """Return the pass that the sample at each of the places start..stop is of."""

    def shards(self, start: int, stop: int) -> Ints:
        """Return the shards that are needed for places start..stop, in the order in which they are first needed."""

    def pass_borders(self, start: int, stop: int) -> Ints:
        """Return the places after `start` and before `stop` at which a new pass over the source begins."""

    def cursor(self, start: int, stop: int, is_left: Bools | None) -> SourceCursor:
        """Return what is left after the places before `stop`; those of `is_left`, counted from `start` on, are left, too."""


class Segment:
    """The blocks of one mixture, from where it begins.  Blocks and sources have the numbers of the run."""

    def __init__(
        self,
        start: Start,
        numbers: Sequence[int],
        orders: Sequence[Order],
        mix: Mix,
        maker: BlockMaker,
    ) -> None:
        """numbers: of the sources that have these orders."""
        self.start = start
        self.orders = orders
        self._numbers = np.array(numbers, np.int64)
        self._mix = mix
        self._maker = maker

    def has(self, epoch: int, number: int) -> bool:
        """Whether an epoch has a block of this number."""
        return self._mix.has(*self._own_number(epoch, number))

    def shares(self, epoch: int, number: int) -> Shares | None:
        """Return what a block holds, by the sources of the segment; None past the epoch's end."""
        return self._mix.shares(*self._own_number(epoch, number))

    def _own_number(self, epoch: int, number: int) -> BlockNumber:
        """Return the epoch and the number of a block, counted from where the segment begins."""
        first_epoch, first_block = self.start.first
        return epoch - first_epoch, number - first_block if epoch == first_epoch else number

    def shards(self, epoch: int, number: int) -> list[tuple[int, int]] | None:
        """Return the (source, shard) pairs that a block needs, in the order in which a background builder should make them."""
        shares = self.shares(epoch, number)
        if shares is None:
            return None
        pairs = []
        for source, order, start, stop in zip(
            self._numbers.tolist(), self.orders, *shares, strict=True
        ):
            pairs += [(source, shard) for shard in order.shards(start, stop).tolist()]
        return pairs

    def block(self, epoch: int, number: int) -> Block | None:
        """Return a block, each source spread evenly over it: a short run of samples holds the sources in their shares."""
        shares = self.shares(epoch, number)
        if shares is None:
            return None
        ids = [
            order.samples(start, stop)
            for order, start, stop in zip(self.orders, *shares, strict=True)
        ]
        passes = None
        if self._maker.objective is not None:
            passes = [
                order.passes(start, stop)
                for order, start, stop in zip(self.orders, *shares, strict=True)
            ]
        block = self._maker.make(self._numbers.tolist(), ids, passes)
        begins_pass = self._begins_pass(shares)
        counts = [part.size for part in ids]
        if np.count_nonzero(counts) > 1:
            evenly = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
            spread = np.argsort(evenly, kind="stable")
            block = block.take(spread)
            begins_pass = None if begins_pass is None else begins_pass[spread]
        if begins_pass is None:
            return block
        return replace(block, sections=np.cumsum(begins_pass))

    def _begins_pass(self, shares: Shares) -> Bools | None:
        """Return which samples of a block, source by source, are the first of a new pass over their source; None for none."""
        places = []
        samples_before = 0
        for order, start, stop in zip(self.orders, *shares, strict=True):
            places.append(samples_before + order.pass_borders(start, stop) - start)
            samples_before += stop - start
        begins = np.concatenate(places)
        if not begins.size:
            return None
        begins_pass = np.zeros(samples_before, np.bool_)
        begins_pass[begins] = True
        return begins_pass

    # Where the next segment begins

    def cut_block(self, epoch: int, number: int, row: int) -> CutBlock:
        """Cut a block after so many of its rows."""
        block = self.block(epoch, number)
        assert block is not None
        packed = block.pack(epoch=epoch, number=number)
        if row >= packed.rows.num_rows:
            return CutBlock(block, packed, np.zeros(block.samples.size, np.bool_))
        before = packed.first_rows(row)
        return CutBlock(block, before, block.not_in(before.rows))

    def taken_before(self, place: Place) -> Ints:
        """Return how many samples each source of the run has given before a place, counted from the start of its order here."""
        epoch, number, row = place
        taken = np.zeros(len(self._maker.names), np.int64)
        taken[self._numbers] = self._places_before(epoch, number)
        if row:
            cut = self.cut_block(epoch, number, row)
            taken += np.bincount(cut.block.sources[~cut.is_left], minlength=taken.size)
        return taken

    def _places_before(self, epoch: int, number: int) -> tuple[int, ...]:
        """Return the place of each source of this segment before a block, which may be one past the end of its epoch."""
        if (epoch, number) > self.start.first and number:
            before = self.shares(epoch, number - 1)
            if before is not None:
                return before.stops
        here = self.shares(epoch, number)
        if here is not None:
            return here.starts
        # This epoch has no block.
        is_first = epoch == self.start.first[0]
        return tuple(0 if is_first else order.num_first for order in self.orders)

    def cursors_at(self, place: Place) -> dict[str, SourceCursor]:
        """Return the cursor of every source, also of those that are not in this mixture, after the rows before a place."""
        epoch, number, row = place
        cut = self.cut_block(epoch, number, row) if row else None
        shares = self.shares(epoch, number) if row else None
        places = self._places_before(epoch, number)
        starts, stops = shares if shares is not None else (places, places)
        cursors = dict(self.start.cursors)
        for source, order, start, stop in zip(
            self._numbers.tolist(), self.orders, starts, stops, strict=True
        ):
            is_left = None
            if cut is not None:
                # a block keeps each source's samples in the source's order
                is_left = cut.is_left[cut.block.sources == source]
            cursors[self._maker.names[source]] = order.cursor(start, stop, is_left)
        return cursors


def mixed_segment(
    mixture: Mixture,
    start: Start,
    *,
    numbers: Mapping[str, int],
    lengths: Lengths,
    settings: PlanSettings,
    targets: Targets | None,
    objective: Objective | None = None,
    sequences: SeveralSequences | None = None,
) -> Segment:
    """Return the segment of a mixture.  numbers: of all sources of the run, by name, in their order."""
    settings = mixture.settings(settings)
    # A pass that is over is followed by a whole one at an epoch's start, and always in a mixture with weights.
    is_full = mixture.weights is not None or start.first[1] == 0
    orders = []
    for source in mixture.sources:
        cursor = start.cursors.get(source.name, SourceCursor(source.num_samples))
        orders.append(cursor.order(source.name, source.shard_sizes, settings, is_full=is_full))
    own_numbers = [numbers[source.name] for source in mixture.sources]
    maker = BlockMaker(tuple(numbers), lengths, settings, targets, sequences, objective)
    mix: Mix
    if mixture.weights is None:
        mix = Concatenation(orders, settings)
    else:
        mix = WeightedMix(orders, settings, partial(_contribution, maker, own_numbers))
    return Segment(start, own_numbers, orders, mix, maker)


def _contribution(maker: BlockMaker, numbers: Sequence[int], source: int, samples: Ints) -> Ints:
    """Return how much samples add to the share of a source, which is given by its number in the mixture.

    Shares are of samples as they are stored: what an objective makes of them differs from pass to pass, and shares must not.
    """
    return maker.make([numbers[source]], [samples]).contributions()


class Blocks:
    """The blocks of a run, by epoch and number, each from the segment that it belongs to."""

    def __init__(
        self,
        mixtures: Sequence[Mixture],
        make_segment: Callable[[Mixture, Start], Segment],
        settings: PlanSettings,
        start: Start | None = None,
    ) -> None:
        """start: of the segment of a saved state; segments before it are made when asked for."""
        self._mixtures = tuple(mixtures)
        self._make_segment = make_segment
        self._cuts = settings.method.cuts or settings.on_overlong == "split"
        # The only memo of where segments begin.  Two threads may find the same segment: both write equal ones.
        self._segments: dict[int, Segment] = {0: make_segment(self._mixtures[0], Start())}
        if start is not None and start.number:
            self._segments[start.number] = make_segment(self._mixtures[start.number], start)
        # Of segments whose end is given in rows: the next block to be counted, and the rows of the run before it.
        self._counted: dict[int, tuple[BlockNumber, int]] = {}
        self._cut_block = lru_cache(maxsize=4)(self._make_cut_block)

    # Which segment a block belongs to

    def segment_of(self, epoch: int, number: int) -> Segment:
        """Return the segment that a block belongs to; a block that a change cuts belongs to the one before the change."""
        return self._find(epoch, number)[0]

    def _find(self, epoch: int, number: int) -> tuple[Segment, int | None]:
        """Return the segment of a block, and how many of its rows come before the next segment; None for all."""
        block = (epoch, number)
        # a copy: the thread that reads ahead finds segments, too
        segments = list(self._segments.values())
        begun = [segment for segment in segments if segment.start.first <= block]
        segment = max(begun, key=lambda segment: segment.start.number)
        while True:
            following = self._following(segment, block)
            if following is None:
                return segment, None
            if block < following.start.first:
                *cut, row = following.start.at
                return segment, row if row and tuple(cut) == block else None
            segment = following

    def _following(self, segment: Segment, upto: BlockNumber) -> Segment | None:
        """Return the segment after this one, or None if the change does not come before the end of the block `upto`."""
        number = segment.start.number + 1
        if number in self._segments or number == len(self._mixtures):
            return self._segments.get(number)
        mixture = self._mixtures[number]
        at = mixture.at
        if at is None:
            at = self._place_of_row(segment, mixture.rows, upto)
        if at is None or at[:2] > upto:
            return None
        self._segments[number] = self._make_segment(mixture, self._start_at(at, segment))
        return self._segments[number]

    def _start_at(self, at: Place, before: Segment) -> Start:
        """Return the start of the segment that follows `before` when the mixture changes at this place."""
        number = before.start.number + 1
        # A change at the same place may have delayed the segment before: then that one ends where it begins.
        at = max(at, (*before.start.first, 0))
        epoch, block, row = at
        first = (epoch, block)
        rows = self._mixtures[number].rows
        if row:
            first = (epoch, block + 1)
            if self._cuts:  # the change waits for the end of the block
                whole = before.block(epoch, block)
                assert whole is not None
                num_rows = whole.num_rows()
                rows += num_rows - row
                at = (epoch, block, num_rows)
                if before.shares(*first) is None:
                    first = (epoch + 1, 0)
        rows = max(rows, before.start.rows)
        return Start(number, at, first, rows, before.cursors_at(at))

    def _place_of_row(self, segment: Segment, row: int, upto: BlockNumber) -> Place | None:
        """Return the place after `row` rows of the run, found by counting the segment's rows; None if it is beyond the block `upto`."""
        start = segment.start
        (epoch, number), rows = self._counted.get(start.number, (start.first, start.rows))
        while True:
            if rows >= row:
                return epoch, number, 0
            if (epoch, number) > upto:
                return None
            block = segment.block(epoch, number)
            if block is not None:
                num_rows = block.num_rows()
                if rows + num_rows > row:
                    return epoch, number, row - rows
                rows += num_rows
                number += 1
            if segment.shares(epoch, number) is None:
                epoch += 1
                number = 0
            self._counted[start.number] = ((epoch, number), rows)

    def start_of_last(self) -> Start:
        """Return the start of the last segment, whose place is known."""
        assert self._mixtures[-1].at is not None
        segment = self._segments[max(self._segments)]
        while segment.start.number + 1 < len(self._mixtures):
            following = self._following(segment, (_NEVER, 0))
            assert following is not None
            segment = following
        return segment.start

    def first_block(self, epoch: int, number: int) -> int:
        """Return the first block of this epoch in the segment of this block."""
        first_epoch, first_block = self.segment_of(epoch, number).start.first
        return first_block if first_epoch == epoch else 0

    # What a block holds

    def has(self, epoch: int, number: int) -> bool:
        """Whether an epoch has a block of this number."""
        return self.segment_of(epoch, number).has(epoch, number)

    def shards(self, epoch: int, number: int) -> list[tuple[int, int]] | None:
        """Return the (source, shard) pairs that a block needs; None past the epoch's end."""
        return self.segment_of(epoch, number).shards(epoch, number)

    def pack(self, epoch: int, number: int) -> PackedBlock | None:
        """Return the rows of a block, and what they count; of a block that a change cuts, those before the change."""
        segment, row = self._find(epoch, number)
        if row is not None:
            return self._cut_block(segment.start.number, epoch, number, row)
        block = segment.block(epoch, number)
        return None if block is None else block.pack(epoch=epoch, number=number)

    def _make_cut_block(self, segment: int, epoch: int, number: int, row: int) -> PackedBlock:
        return self._segments[segment].cut_block(epoch, number, row).packed

    def num_rows(self, epoch: int, number: int) -> int | None:
        """Return how many rows a block becomes, several times faster than `pack`; None past the epoch's end."""
        segment, row = self._find(epoch, number)
        block = segment.block(epoch, number)
        if block is None:
            return None
        num_rows = block.num_rows()
        return num_rows if row is None else min(row, num_rows)

    # What an epoch holds

    def count_dropped(self, epoch: int, *, with_rows: bool = False) -> Counters:
        """Count what is dropped and cut in an epoch, without packing: several times faster; `with_rows` also counts its rows."""
        counters = Counters()
        for number in itertools.count():
            segment, row = self._find(epoch, number)
            if row is None:
                block = segment.block(epoch, number)
                if block is None:
                    break
                counters += block.count_dropped(with_rows=with_rows)
            else:
                cut = segment.cut_block(epoch, number, row)
                counters += cut.packed.counters if with_rows else cut.count_dropped()
        return counters

    def samples_taken(self, epoch: int, *, epochs: int = 1) -> tuple[int, ...]:
        """Return the samples of each source that `epochs` epochs take, delivered or dropped; a repeated one counts again."""
        stop = (epoch + epochs, 0)
        segment = self.segment_of(epoch, 0)
        taken = -segment.taken_before((epoch, 0, 0))
        while True:
            following = self._following(segment, stop)
            if following is None or following.start.at[:2] >= stop:
                taken += segment.taken_before((*stop, 0))
                return tuple(taken.tolist())
            taken += segment.taken_before(following.start.at)
            segment = following


def check_mixtures(mixtures: Sequence[Mixture]) -> dict[str, int]:
    """Return the number of every source of a run, by name; refuse sources that cannot go on where they were."""
    numbers: dict[str, int] = {}
    newest: dict[str, PlanSource] = {}
    for mixture in mixtures:
        names = [source.name for source in mixture.sources]
        if len(set(names)) < len(names):
            raise PlanError(
                f"sources {names} do not have distinct names; names seed each source's shuffle"
            )
        for source in mixture.sources:
            before = newest.get(source.name)
            if before is not None and source.num_samples < before.num_samples:
                raise PlanError(
                    f"source {source.name!r} has {source.num_samples:,} samples, and had {before.num_samples:,} before; a source "
                    f"may only grow: give the new data another name"
                )
            numbers.setdefault(source.name, len(numbers))
            newest[source.name] = source
    return numbers
