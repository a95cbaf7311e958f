"""A run whose mixture changes: a list of segments.  A segment is one mixture, and where each source was when it began.

A change takes effect after any row.  The samples of the cut block that no row delivered come first from their source in the next
segment.  Each source keeps its own place: a mixture without it leaves the place as it is.  Blocks of an epoch are numbered on, so that a
position names its segment.  Packings that cut samples (concat, on_overlong="split") change at the end of the block: a sample is then never
delivered in part by two segments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.plan.block import Block, Blocks, PackedBlock, PlanSource, Rows
from penstock.plan.counters import Counters
from penstock.plan.queues import Queue, SourceCursor, check_numbers, rest_of
from penstock.plan.settings import PlanSettings
from penstock.types import Bools, Ints, Lengths, Targets

Place = tuple[int, int, int]  # epoch, block, row


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The sources from one row of the run on.  `at` is None while it is only known that `rows` rows come before."""

    sources: tuple[PlanSource, ...]
    weights: tuple[str, ...] | None = None
    mix_by: str | None = None
    stopping_strategy: str | None = None
    at: Place | None = (0, 0, 0)
    rows: int = 0  # before it, counted in the order: dropped ones count
    point: int | None = (
        None  # of a table of weights: steps or tokens; `rows` follows from it when the run begins
    )

    def identity(self) -> list[Any]:
        """Plain values that say exactly when what is mixed."""
        weights = self.weights or [None] * len(self.sources)
        sources = [
            [s.name, s.key, s.num_samples, weight]
            for s, weight in zip(self.sources, weights, strict=True)
        ]
        return [
            None if self.at is None else list(self.at),
            self.rows,
            self.point,
            self.mix_by,
            self.stopping_strategy,
            sources,
        ]

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
    first: tuple[int, int] = (0, 0)  # epoch and number of its first block
    rows: int = 0
    cursors: Mapping[str, SourceCursor] = field(default_factory=dict)

    def as_json(self) -> list[Any]:
        cursors = {name: cursor.as_json() for name, cursor in self.cursors.items()}
        return [self.number, list(self.at), list(self.first), self.rows, cursors]

    @staticmethod
    def from_json(value: Any) -> "Start":
        number, at, first, rows, cursors = value
        found = {str(name): SourceCursor.from_json(cursor) for name, cursor in cursors.items()}
        epoch, block, row = at
        first_epoch, first_block = first
        check_numbers(number, epoch, block, row, first_epoch, first_block, rows)
        return Start(number, (epoch, block, row), (first_epoch, first_block), rows, found)


class _Segment:
    """The blocks of one mixture from its start on, under the numbers of the run."""

    def __init__(
        self,
        mixture: Mixture,
        start: Start,
        numbers: Ints,
        lengths: Lengths,
        settings: PlanSettings,
        targets: Targets | None,
    ) -> None:
        """`numbers`: of this mixture's sources in the run."""
        self.mixture = mixture
        self.start = start
        self._numbers = numbers
        self._settings = mixture.settings(settings)
        own = numbers.tolist()
        of_own = None if targets is None else lambda source, *piece: targets(own[source], *piece)
        # a pass that is over is followed by a whole one at an epoch's start, and always in a mixture with weights
        is_full = mixture.weights is not None or start.first[1] == 0
        queues: list[Queue] | None = None
        if start.number:
            queues = [
                start.cursors.get(s.name, SourceCursor(s.num_samples)).queue(
                    s.name, s.shard_sizes, self._settings, is_full=is_full
                )
                for s in mixture.sources
            ]
        self.blocks = Blocks(
            mixture.sources,
            lambda s, ids: lengths(own[s], ids),
            self._settings,
            of_own,
            queues=queues,
        )
        self.walked = (
            *start.first,
            start.rows,
        )  # the next block to be counted, and the rows before it

    def _local(self, epoch: int, number: int) -> tuple[int, int]:
        first_epoch, first = self.start.first
        return epoch - first_epoch, number - (first if epoch == first_epoch else 0)

    def shares(self, epoch: int, number: int) -> Any:
        return self.blocks.shares(*self._local(epoch, number))

    def shards(self, epoch: int, number: int) -> list[tuple[int, int]] | None:
        found = self.blocks.shards(*self._local(epoch, number))
        return (
            None
            if found is None
            else [(int(self._numbers[source]), shard) for source, shard in found]
        )

    def block(self, epoch: int, number: int) -> Block | None:
        return self.blocks.block(*self._local(epoch, number))

    def in_run(self, packed: PackedBlock) -> PackedBlock:
        """Return a block with the numbers that sources have in the run."""
        spans = packed.rows.spans.copy()
        spans["source"] = self._numbers[spans["source"]]
        return replace(packed, rows=Rows(spans, packed.rows.starts))

    def count_in_run(self, counters: Counters) -> Counters:
        """Return counters by the numbers that sources have in the run."""
        return counters.renumbered(dict(enumerate(self._numbers.tolist())))

    def by_source(self, block: Block) -> Ints:
        """Return how many samples of each source of the run a block holds, up to this segment's last source."""
        return np.bincount(self._numbers[block.sources], minlength=int(self._numbers.max()) + 1)

    def cut_block(self, epoch: int, number: int, row: int) -> tuple[Block, PackedBlock, Bools]:
        """Return a block, its first `row` rows, and which of its samples are left for the next segment."""
        block = self.block(epoch, number)
        assert block is not None
        packed = block.pack(epoch=epoch, number=number)
        if row >= packed.rows.num_rows:
            return block, packed, np.zeros(block.samples.size, np.bool_)
        packed = packed.first_rows(row)
        spans = packed.rows.spans
        kept = block.delivered_tokens() > 0
        # A sample that is there several times, because its source repeats, is delivered at its first places.
        key = block.sources * (1 << 48) + block.samples
        given, times = np.unique(
            spans["source"].astype(np.int64) * (1 << 48) + spans["sample"], return_counts=True
        )
        found = np.minimum(np.searchsorted(given, key), max(given.size - 1, 0))
        delivered = (
            np.where(given[found] == key, times[found], 0)
            if given.size
            else np.zeros(key.size, np.int64)
        )
        is_left = kept & (_occurrence(key, kept) >= delivered)
        return block, packed, is_left

    def cursors_at(self, at: Place) -> dict[str, SourceCursor]:
        """Return the cursor of every source, also of those that are not in this mixture, after the rows before `at`."""
        epoch, number, row = at
        left: list[Any] = [None] * len(self.mixture.sources)
        if row:
            shares = self.shares(epoch, number)
            block, _, is_left = self.cut_block(epoch, number, row)
            # a block keeps each source's samples in the source's order
            left = [is_left[block.sources == source] for source in range(len(left))]
            starts, stops = shares
        else:
            starts = stops = self._taken(*self._local(epoch, number))
        made = dict(self.start.cursors)
        for source, order, kept, start, stop in zip(
            self.mixture.sources, self.blocks.orders, left, starts, stops, strict=True
        ):
            made[source.name] = rest_of(order, start, stop, kept)
        return made

    def _taken(self, epoch: int, number: int) -> tuple[int, ...]:
        """Return the places that each source has given before a block, by this segment's own numbers."""
        if number and (before := self.blocks.shares(epoch, number - 1)) is not None:
            return before.stops
        if (here := self.blocks.shares(epoch, 0)) is not None:
            return here.starts
        return tuple(getattr(order, "num_first", 0) if epoch else 0 for order in self.blocks.orders)


def _occurrence(key: Ints, counted: Bools) -> Ints:
    """Return for each entry how many counted entries before it have the same key."""
    order = np.argsort(key, kind="stable")
    is_new = np.concatenate(([True], key[order][1:] != key[order][:-1]))[: key.size]
    running: Ints = np.cumsum(counted[order]) - counted[order]
    made = np.empty(key.size, np.int64)
    made[order] = running - np.maximum.accumulate(np.where(is_new, running, 0))
    return made


class Segments:
    """The blocks of a run whose mixture changes.  The same methods as `Blocks`."""

    def __init__(
        self,
        mixtures: Sequence[Mixture],
        lengths: Lengths,
        settings: PlanSettings,
        targets: Targets | None = None,
        start: Start | None = None,
    ) -> None:
        """`start`: of the segment of a saved state; segments before it are made when asked for."""
        self._mixtures = list(mixtures)
        self._numbers = check_mixtures(mixtures)
        self._of_run = (lengths, settings, targets)
        self._cuts = settings.method.cuts or settings.on_overlong == "split"
        self._segments: dict[int, _Segment] = {}
        self._known = {0: Start()}
        if start is not None:
            self._known[start.number] = start
        self._delayed: dict[
            int, int
        ] = {}  # rows from a change to the end of its block, where its segment begins
        self._ends: dict[int, Place] = {}  # of segments whose end is found: where the next begins
        self._cut_block = lru_cache(maxsize=4)(self._make_cut_block)

    # Which segment a block belongs to

    def _segment(self, number: int) -> _Segment:
        if number not in self._segments:
            mixture = self._mixtures[number]
            own = np.array([self._numbers[source.name] for source in mixture.sources], np.int64)
            self._segments[number] = _Segment(mixture, self._start(number), own, *self._of_run)
        return self._segments[number]

    def _start(self, number: int) -> Start:
        """Return where a segment begins, from where the one before it ends."""
        if number not in self._known:
            before = self._segment(number - 1)
            at = self._ends[number - 1]
            epoch, block, row = at
            first = (epoch, block)
            if row:
                first = (epoch, block + 1)
                if self._cuts and before.shares(*first) is None:
                    first = (epoch + 1, 0)
            rows = max(
                self._mixtures[number].rows + self._delayed.get(number, 0), before.start.rows
            )
            self._known[number] = Start(number, at, first, rows, before.cursors_at(at))
        return self._known[number]

    def _find(self, epoch: int, number: int) -> tuple[_Segment, int | None]:
        """Return the segment of a block, and how many of its rows come before the next segment; None for all."""
        known = list(self._known.values())  # a copy: the thread that reads ahead finds starts, too
        place = max(start.number for start in known if start.first <= (epoch, number))
        while place + 1 < len(self._mixtures) and self._ends_by(place, epoch, number):
            at = self._ends[place]
            if (epoch, number) == at[:2] and at[2] and self._start(place).first <= (epoch, number):
                return self._segment(place), at[2]
            if (epoch, number) < self._start(place + 1).first:
                break
            place += 1
        return self._segment(place), None

    def _ends_by(self, place: int, epoch: int, number: int) -> bool:
        """Whether a segment ends before or in this block; finds the end by counting rows up to there if it is not known."""
        if place not in self._ends:
            segment = self._segment(place)
            following = self._mixtures[place + 1]
            known = self._known.get(place + 1)
            at = known.at if known is not None else following.at
            at = self._walk(segment, following.rows, (epoch, number)) if at is None else at
            if at is None:
                return False
            # A change at the same place may have delayed this segment to the next epoch: then it ends where it begins, and the block
            # of `at` is not one of its own.
            at = max(at, (*segment.start.first, 0))
            if at[2] and self._cuts and known is None:
                whole = segment.block(*at[:2])
                assert whole is not None
                self._delayed[place + 1] = whole.num_rows() - at[2]
                at = (*at[:2], whole.num_rows())
            self._ends[place] = at
        return self._ends[place][:2] <= (epoch, number)

    @staticmethod
    def _walk(segment: _Segment, rows: int, upto: tuple[int, int]) -> Place | None:
        """Return the position after `rows` rows of the run, if it is not beyond the block `upto`."""
        epoch, number, before = segment.walked
        while (epoch, number) <= upto:
            if before >= rows:
                return epoch, number, 0
            block = segment.block(epoch, number)
            if block is None:
                epoch = epoch + 1
                number = 0
                continue
            count = block.num_rows()
            if before + count > rows:
                return epoch, number, rows - before
            number = number + 1
            before = before + count
            if segment.shares(epoch, number) is None:
                epoch = epoch + 1
                number = 0
            segment.walked = (epoch, number, before)
        return None

    def start_at(self, epoch: int, number: int) -> Start:
        """Return the start of the segment of this block: what a saved state needs."""
        return self._find(epoch, number)[0].start

    def start_of_last(self) -> Start:
        """Return the start of the last segment, whose place is known."""
        last = len(self._mixtures) - 1
        at = self._mixtures[last].at
        assert at is not None
        for place in range(
            max(self._known), last
        ):  # each segment begins where the one before it ends
            self._ends_by(place, *at[:2])
        return self._start(last)

    def first_block(self, epoch: int, number: int) -> int:
        """Return the first block of this epoch in the segment of this block."""
        start = self.start_at(epoch, number)
        return start.first[1] if start.first[0] == epoch else 0

    # As in Blocks

    def shares(self, epoch: int, number: int) -> Any:
        """Return what a block holds, by the sources of its segment; None past the epoch's end."""
        return self._find(epoch, number)[0].shares(epoch, number)

    def pack(self, epoch: int, number: int) -> PackedBlock | None:
        """Return the rows of a block, and what they count; of a block that a change cuts, those before the change."""
        segment, row = self._find(epoch, number)
        if row is not None:
            return self._cut_block(segment.start.number, epoch, number, row)
        block = segment.block(epoch, number)
        return None if block is None else segment.in_run(block.pack(epoch=epoch, number=number))

    def _make_cut_block(self, place: int, epoch: int, number: int, row: int) -> PackedBlock:
        segment = self._segment(place)
        return segment.in_run(segment.cut_block(epoch, number, row)[1])

    def num_rows(self, epoch: int, number: int) -> int | None:
        """Return how many rows a block becomes."""
        segment, row = self._find(epoch, number)
        block = segment.block(epoch, number)
        return (
            None
            if block is None
            else block.num_rows()
            if row is None
            else min(row, block.num_rows())
        )

    def count_dropped(self, epoch: int, *, with_rows: bool = False) -> Counters:
        """Count what is dropped and cut in an epoch; `with_rows` also counts its rows."""
        counters = Counters()
        number = 0
        while (found := self._counted(epoch, number)) is not None:
            rows = (self.num_rows(epoch, number) or 0) if with_rows else 0
            counters += found[1] + Counters(
                rows=rows, tokens_capacity=rows * self._of_run[1].max_length
            )
            number += 1
        return counters

    def samples_taken(self, epoch: int, *, epochs: int = 1) -> tuple[int, ...]:
        """Return the samples of each source that `epochs` epochs take, delivered or dropped; a repeated one counts again."""
        total = np.zeros(len(self._numbers), np.int64)
        for each in range(epoch, epoch + epochs):
            number = 0
            while (found := self._counted(each, number)) is not None:
                total[: found[0].size] += found[0]
                number += 1
        return tuple(total.tolist())

    def _counted(self, epoch: int, number: int) -> tuple[Ints, Counters] | None:
        segment, row = self._find(epoch, number)
        if (block := segment.block(epoch, number)) is None:
            return None
        if row is not None:
            block = block.where(~segment.cut_block(epoch, number, row)[2])
        return segment.by_source(block), segment.count_in_run(block.count_dropped())

    def shards(self, epoch: int, number: int) -> list[tuple[int, int]] | None:
        """Return the (source, shard) pairs that a block needs."""
        return self._find(epoch, number)[0].shards(epoch, number)


def check_mixtures(mixtures: Sequence[Mixture]) -> dict[str, int]:
    """Return the number of every source of a run, by name; refuse sources that cannot go on where they were."""
    numbers: dict[str, int] = {}
    newest: dict[str, PlanSource] = {}
    for mixture in mixtures:
        for source in mixture.sources:
            known = newest.get(source.name)
            if known is not None and source.num_samples < known.num_samples:
                raise PlanError(
                    f"source {source.name!r} has {source.num_samples:,} samples, and had {known.num_samples:,} before; a source "
                    f"may only grow: give the new data another name"
                )
            numbers.setdefault(source.name, len(numbers))
            newest[source.name] = source
    return numbers
