"""Turn the samples of a block into rows: cut or drop overlong samples, leave out pieces without a target, pack, order, count."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.errors import Overlong
from penstock.plan.counters import Counters
from penstock.plan.packing import argsort_small
from penstock.plan.permutation import Permutation, derive
from penstock.plan.rows import PackedBlock, PieceCounts, Rows, count_pieces, shared_tokens
from penstock.plan.settings import PlanSettings
from penstock.reasons import EMPTY, NOTHING_TO_TRAIN, OVERLONG
from penstock.types import SPAN, Bools, Ints, Lengths, Objective, SeveralSequences, Targets

_NONE = np.empty(0, np.int64)
_SOURCE_KEY = 1 << 48  # more than any source has samples: one number names source and sample


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Samples, or parts of samples, that each go into one row."""

    sample: Ints  # index into the block's samples
    start: Ints
    stop: Ints

    @property
    def sizes(self) -> Ints:
        """Tokens of each piece."""
        return self.stop - self.start

    def where(self, chosen: Ints | Bools | None) -> "_Pieces":
        """Return these pieces; None for all."""
        if chosen is None:
            return self
        return _Pieces(self.sample[chosen], self.start[chosen], self.stop[chosen])


@dataclass(frozen=True, slots=True)
class _Cut:
    """The pieces of a block."""

    pieces: _Pieces  # all of them
    kept: _Pieces  # those that hold a target


@dataclass(frozen=True, slots=True)
class Block:
    """Samples that are packed together, in mixed order: source, sample id and length of each."""

    sources: Ints
    samples: Ints
    lengths: Ints
    settings: PlanSettings
    names: Sequence[str]  # of all sources
    targets: Targets | None = None  # None: every piece holds one
    # Number of the section of each sample, which rises where any source begins a new pass: rows come section by section.  None: one.
    sections: Ints | None = None
    # Of each sample, the length of its longest sequence, and how many it has.  None: one.
    longest: Ints | None = None
    row_sequences: int = 1
    objective: Objective | None = None  # what has changed the samples
    passes: Ints | None = None  # over its source, that each sample is of; None without an objective

    def pack(self, *, epoch: int, number: int) -> PackedBlock:
        """Return the rows in their final order, and what they count."""
        cut = self._cut()
        pieces = cut.kept
        row_of_piece = self._assign_rows(pieces)
        num_rows = int(row_of_piece.max(initial=-1)) + 1
        row_of_piece = self._order_rows(row_of_piece, num_rows, pieces, epoch=epoch, number=number)

        by_row = argsort_small(row_of_piece)  # stable: spans of a row stay in block order
        sample = pieces.sample[by_row]
        spans = np.empty(by_row.size, SPAN)
        spans["source"] = self.sources[sample]
        spans["sample"] = self.samples[sample]
        spans["start"] = pieces.start[by_row]
        spans["stop"] = pieces.stop[by_row]
        spans_per_row = np.bincount(row_of_piece, minlength=num_rows)
        starts = np.concatenate(([0], np.cumsum(spans_per_row))).astype(np.int64)

        passes = None if self.passes is None else self.passes[sample]

        counts = self._piece_counts(cut)
        return PackedBlock(
            rows=Rows(spans, starts, passes),
            max_length=self.settings.max_length * self.row_sequences,
            dropped=self._count_not_in_rows(cut, counts),
            counts=None if counts is None else counts.where(by_row),
        )

    def num_rows(self) -> int:
        """Return how many rows `pack` makes; several times faster."""
        return self._count_rows(self._cut().kept)

    def _assign_rows(self, pieces: _Pieces) -> Ints:
        """Return the row that the packing gives to each piece."""
        settings = self.settings
        return settings.method.assign(
            self._room(pieces), settings.capacity, settings.max_per_row, self._sections_of(pieces)
        )

    def _count_rows(self, pieces: _Pieces) -> int:
        settings = self.settings
        return settings.method.count_rows(
            self._room(pieces), settings.capacity, settings.max_per_row, self._sections_of(pieces)
        )

    def _sections_of(self, pieces: _Pieces) -> Ints | None:
        return None if self.sections is None else self.sections[pieces.sample]

    def take(self, chosen: Bools | Ints) -> "Block":
        """Return these samples: those of a mask, or in an order."""
        return replace(
            self,
            sources=self.sources[chosen],
            samples=self.samples[chosen],
            lengths=self.lengths[chosen],
            sections=None if self.sections is None else self.sections[chosen],
            longest=None if self.longest is None else self.longest[chosen],
            passes=None if self.passes is None else self.passes[chosen],
        )

    def count_dropped(self, *, with_rows: bool = False) -> Counters:
        """Count what is dropped and cut, without packing; `with_rows` also counts rows, as `num_rows` does."""
        cut = self._cut()
        counts = self._piece_counts(cut)
        delivered = count_pieces(self.sources[cut.kept.sample], cut.kept.sizes, counts)
        counters = self._count_not_in_rows(cut, counts) + delivered
        if with_rows:
            rows = self._count_rows(cut.kept)
            capacity = rows * self.settings.max_length * self.row_sequences
            counters += Counters(rows=rows, tokens_capacity=capacity)
        return counters

    def delivered_tokens(self) -> Ints:
        """Return the tokens of each sample that reach a row: 0 for dropped samples, fewer than its length for cut ones.

        With `concat`, rows are cut from the stream of the whole block, so rows without a target are not known here.
        """
        tokens = self._kept_lengths()
        settings = self.settings
        if settings.method.cuts or settings.on_overlong not in ("truncate", "split"):
            return tokens
        pieces = self._pieces(tokens)
        has_target = self._with_target(pieces)
        if has_target is not None:
            dropped = pieces.where(~has_target)
            np.subtract.at(tokens, dropped.sample, dropped.sizes)
        return tokens

    def contributions(self) -> Ints:
        """Return how much each sample adds to the share of its source in a mixture by weights."""
        tokens = self.delivered_tokens()
        if self.settings.mix_by == "tokens":
            return tokens
        return (tokens > 0).astype(np.int64)

    def not_in(self, rows: Rows) -> Bools:
        """Return which samples reach a row, and none of these rows, which are the first of the block.

        A sample that is there several times, because its source repeats, is delivered at its first places.
        """
        reaches_row = self.delivered_tokens() > 0
        if not rows.spans.size:
            return reaches_row
        key = self.sources * _SOURCE_KEY + self.samples
        keys_in_rows = rows.spans["source"] * _SOURCE_KEY + rows.spans["sample"]
        delivered, times = np.unique(keys_in_rows, return_counts=True)
        place = np.minimum(np.searchsorted(delivered, key), delivered.size - 1)
        times_delivered = np.where(delivered[place] == key, times[place], 0)
        return reaches_row & (_times_before(key, reaches_row) >= times_delivered)

    def _cut(self) -> _Cut:
        """Cut the samples into pieces, each of which fits into a row."""
        if self.settings.on_overlong == "error":
            self._refuse_overlong()
        pieces = self._pieces(self._kept_lengths())
        return _Cut(pieces, pieces.where(self._with_target(pieces)))

    def _refuse_overlong(self) -> None:
        settings = self.settings
        overlong = np.flatnonzero(self._limited > settings.capacity)
        if not overlong.size:
            return
        first = overlong[0]
        raise Overlong(
            f"sample {self.samples[first]} of source {self.names[self.sources[first]]!r} has {self._limited[first]} tokens, "
            f"max_length is {settings.max_length} (room for {settings.capacity}); raise max_length or choose "
            f"on_overlong='drop', 'truncate' or 'split' (each is counted)"
        )

    def _kept_lengths(self) -> Ints:
        """Return the tokens of each sample that `on_overlong` leaves, as a new array."""
        lengths = self.lengths
        settings = self.settings
        if settings.method.cuts or settings.on_overlong in ("split", "error"):
            return lengths.copy()
        most = settings.capacity if settings.on_overlong == "truncate" else 0
        return np.where(self._limited > settings.capacity, most, lengths)

    @property
    def _limited(self) -> Ints:
        """What max_length limits: the length of each sample, or of its longest sequence."""
        return self.lengths if self.longest is None else self.longest

    def _pieces(self, kept: Ints) -> _Pieces:
        """Cut each sample at every multiple of the capacity, counted from its start, or in the stream of all samples end to end."""
        sample = np.flatnonzero(kept)
        lengths = kept[sample]
        settings = self.settings
        capacity = settings.capacity
        is_whole = self.longest is not None or lengths.max(initial=0) <= capacity
        if not settings.method.cuts and is_whole:
            return _Pieces(sample, np.zeros(sample.size, np.int64), lengths)
        if settings.overlap:
            return self._overlapping_pieces(sample, lengths)
        room = settings.aligned(lengths)
        used = np.zeros(sample.size, np.int64)  # of the row in which the sample begins
        if settings.method.cuts:
            used = (np.cumsum(room) - room) % capacity
        num_pieces = -(-(used + room) // capacity)
        number = _count_up(num_pieces)  # of each piece in its sample
        start = number * capacity - np.repeat(used, num_pieces)
        stop = np.minimum(start + capacity, np.repeat(lengths, num_pieces))
        return _Pieces(np.repeat(sample, num_pieces), np.maximum(start, 0), stop)

    def _overlapping_pieces(self, sample: Ints, lengths: Ints) -> _Pieces:
        """Cut the stream of all samples into rows that begin with the last token of the row before.

        Row r holds tokens r·(capacity - 1) … r·(capacity - 1) + capacity - 1 of the stream, so no row holds a shared token alone.
        """
        capacity = self.settings.capacity
        stride = capacity - 1
        ends = np.cumsum(lengths)
        begins = ends - lengths
        last = ends - 1  # token of each sample
        first_row = np.maximum(begins - 1, 0) // stride
        last_row = np.maximum(last - 1, 0) // stride
        # a sample's last token may also begin the next row, if the stream goes on
        last_row += (last > 0) & (last % stride == 0) & (ends < ends[-1:])
        num_pieces = last_row - first_row + 1
        row = np.repeat(first_row, num_pieces) + _count_up(num_pieces)
        begin = np.repeat(begins, num_pieces)
        end = np.repeat(ends, num_pieces)
        start = np.maximum(row * stride - begin, 0)
        stop = np.minimum(row * stride + capacity, end) - begin
        return _Pieces(np.repeat(sample, num_pieces), start, stop)

    def _with_target(self, pieces: _Pieces) -> Bools | None:
        """Return which pieces hold a target, or stand in one row of a stream with one that does; None for all.

        Whole samples always hold one; the others are looked up if their row has no whole sample.
        """
        if self.targets is None:
            return None
        is_whole = pieces.sizes == self.lengths[pieces.sample]
        if is_whole.all():
            return None
        row = np.arange(is_whole.size)
        if self.settings.method.cuts:
            row = self.settings.method.assign(self._room(pieces), self.settings.capacity, None)
        row_has_target = np.zeros(int(row.max()) + 1, np.bool_)
        row_has_target[row[is_whole]] = True
        to_ask = np.flatnonzero(~row_has_target[row])
        sources = self.sources[pieces.sample[to_ask]]
        for source in np.unique(sources).tolist():
            asked = to_ask[sources == source]
            samples = self.samples[pieces.sample[asked]]
            starts = pieces.start[asked]
            stops = pieces.stop[asked]
            if self.objective is None or self.passes is None:
                has_target = self.targets(source, samples, starts, stops)
            else:
                passes = self.passes[pieces.sample[asked]]
                has_target = self.objective.has_target(source, samples, passes, starts, stops)
            row_has_target[row[asked[has_target]]] = True
        return None if row_has_target.all() else row_has_target[row]

    def _piece_counts(self, cut: _Cut) -> PieceCounts | None:
        """Return what each piece in a row counts; None where each is a whole sample."""
        settings = self.settings
        pieces = cut.kept
        lengths = self.lengths[pieces.sample]
        if not settings.overlap and np.array_equal(pieces.sizes, lengths):
            return None
        is_shared = self._shared(pieces)
        is_first = np.diff(pieces.sample, prepend=-1) > 0  # pieces of a sample stand together
        is_split = np.zeros(lengths.size, np.bool_)
        tokens_cut = np.zeros(lengths.size, np.int64)
        if self._splits:
            num_pieces = np.bincount(cut.pieces.sample, minlength=self.lengths.size)
            # a shared token alone is not a piece of its sample
            alone = pieces.sample[is_shared & (pieces.sizes == 1)]
            num_pieces -= np.bincount(alone, minlength=self.lengths.size)
            is_split = is_first & (num_pieces[pieces.sample] > 1)
        elif settings.on_overlong == "truncate":
            tokens_cut = lengths - pieces.sizes
        return PieceCounts(
            is_first=is_first, is_split=is_split, is_shared=is_shared, tokens_cut=tokens_cut
        )

    @property
    def _splits(self) -> bool:
        """Whether a sample may be delivered in several pieces."""
        return self.settings.method.cuts or self.settings.on_overlong == "split"

    def _count_not_in_rows(self, cut: _Cut, counts: PieceCounts | None) -> Counters:
        """Count the samples and pieces that are in no row.  counts: what the pieces in rows count."""
        lengths = self.lengths
        settings = self.settings
        is_in_row = np.zeros(lengths.size, np.bool_)
        is_in_row[cut.kept.sample] = True
        samples = lengths.size - int(np.count_nonzero(is_in_row))
        tokens = int(lengths.sum()) - int(cut.kept.sizes.sum())
        if counts is not None:  # these tokens are counted with the rows
            tokens += int(np.count_nonzero(counts.is_shared)) - int(counts.tokens_cut.sum())

        empty = lengths.size - int(np.count_nonzero(lengths))
        overlong = 0
        overlong_tokens = 0
        if settings.on_overlong == "drop" and not settings.method.cuts:
            is_overlong = self._limited > settings.capacity
            overlong = int(np.count_nonzero(is_overlong))
            overlong_tokens = int(lengths[is_overlong].sum())
        samples_dropped = Counter(
            {EMPTY: empty, OVERLONG: overlong, NOTHING_TO_TRAIN: samples - empty - overlong}
        )
        tokens_dropped = Counter(
            {OVERLONG: overlong_tokens, NOTHING_TO_TRAIN: tokens - overlong_tokens}
        )
        pieces_dropped = cut.pieces.sample.size - cut.kept.sample.size if self._splits else 0
        return Counters(
            samples_in=samples,
            tokens_in=tokens,
            samples_dropped=+samples_dropped,
            tokens_dropped=+tokens_dropped,
            pieces_dropped=pieces_dropped,
        )

    def _shared(self, pieces: _Pieces) -> Bools:
        """Return which pieces begin with a token that another row has delivered."""
        if not self.settings.overlap or not pieces.sample.size:
            return np.zeros(pieces.sample.size, np.bool_)
        rows = self.settings.method.assign(self._room(pieces), self.settings.capacity, None)
        starts = np.concatenate(([0], np.cumsum(np.bincount(rows))))
        return shared_tokens(
            starts,
            self.sources[pieces.sample],
            self.samples[pieces.sample],
            pieces.start,
            pieces.stop,
        )

    def _room(self, pieces: _Pieces) -> Ints:
        """Return the tokens that each piece takes in a row."""
        return self.settings.aligned(pieces.sizes)

    def _order_rows(
        self, rows: Ints, num_rows: int, pieces: _Pieces, *, epoch: int, number: int
    ) -> Ints:
        """Return the row of each piece after the rows were put in order.

        With shuffle the order is random, or in runs of similar rows; without, it is that of their first pieces.  Rows of a section come
        before those of the next one, and a row that both share between them.
        """
        if not num_rows:
            return rows
        settings = self.settings
        groups = self._groups_of_rows(rows, num_rows, pieces)
        if settings.method.orders:
            lengths = np.bincount(rows, weights=pieces.sizes).astype(np.int64)
            runs = _Runs(settings.method.number, settings, epoch, number)
            return runs.places(lengths, groups)[rows]
        if not settings.shuffle:
            first_pieces = np.unique(rows, return_index=True)[1]
            return _inverse(np.lexsort((first_pieces, groups)))[rows]
        permutation = Permutation(num_rows, derive(settings.seed, "rows", epoch, number))
        place = permutation[np.arange(num_rows)]
        if settings.balance == "block":
            work = settings.cost(pieces.sizes)
            costs = np.bincount(place[rows], weights=work).astype(np.int64)
            runs = _Runs(settings.balance_rows, settings, epoch, number)
            place = runs.places(costs, groups[_inverse(place)])[place]
        elif self.sections is not None:
            place = _inverse(np.lexsort((place, groups)))
        return place[rows]

    def _groups_of_rows(self, rows: Ints, num_rows: int, pieces: _Pieces) -> Ints:
        """Return the group of each row; groups come one after the other.

        The rows of section s are group 2s; the one that goes on with pieces of later sections is group 2s + 1.
        """
        sections = self._sections_of(pieces)
        if sections is None:
            return np.zeros(num_rows, np.int64)
        first_sections = np.full(num_rows, sections[-1])
        last_sections = np.zeros(num_rows, np.int64)
        np.minimum.at(first_sections, rows, sections)
        np.maximum.at(last_sections, rows, sections)
        return 2 * first_sections + (last_sections > first_sections)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Puts rows into runs of `size` rows of similar value, and shuffles the runs; an incomplete one stays last."""

    size: int
    settings: PlanSettings
    epoch: int
    number: int  # of the block

    def places(self, values: Ints, groups: Ints) -> Ints:
        """Return the place of each row.  groups: of rows that stay together, in the order in which groups come; each has its own runs."""
        by_value = argsort_small(values)
        place = _inverse(by_value[np.argsort(groups[by_value], kind="stable")])
        if not self.settings.shuffle:
            return place
        sizes = np.bincount(groups)
        begins = np.cumsum(sizes) - sizes
        for group in np.flatnonzero(sizes >= self.size).tolist():
            members = np.flatnonzero(groups == group)
            begin = begins[group]
            place[members] = begin + self._shuffled(place[members] - begin, group)
        return place

    def _shuffled(self, place: Ints, group: int) -> Ints:
        """Shuffle the full runs of a group, whose rows have these places."""
        num_full = place.size // self.size
        run, place_in_run = np.divmod(place, self.size)
        seed = derive(self.settings.seed, "groups", self.epoch, self.number)
        if group:
            seed = derive(seed, "group", group)
        permutation = Permutation(num_full, seed)
        moved = permutation[np.minimum(run, num_full - 1)] * self.size + place_in_run
        return np.where(run < num_full, moved, place)


def _count_up(counts: Ints) -> Ints:
    """Return 0, 1, … for each count, one after the other: [2, 3] → [0, 1, 0, 1, 2]."""
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(starts, counts)


def _times_before(key: Ints, is_counted: Bools) -> Ints:
    """Return for each entry how many counted entries before it have the same key."""
    order = np.argsort(key, kind="stable")
    sorted_key = key[order]
    counted = is_counted[order]
    counted_before: Ints = np.cumsum(counted) - counted
    is_new = np.diff(sorted_key, prepend=sorted_key[:1] - 1) != 0
    at_first_of_key = np.maximum.accumulate(np.where(is_new, counted_before, 0))
    times = np.empty(key.size, np.int64)
    times[order] = counted_before - at_first_of_key
    return times


def _inverse(order: Ints) -> Ints:
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    return place


@dataclass(frozen=True, slots=True)
class BlockMaker:
    """Makes blocks of samples, whose lengths it looks up."""

    names: Sequence[str]  # of all sources of the run
    lengths: Lengths
    settings: PlanSettings
    targets: Targets | None
    sequences: SeveralSequences | None = None
    objective: Objective | None = None

    def make(
        self,
        sources: Sequence[int],
        samples: Sequence[Ints],
        passes: Sequence[Ints] | None = None,
    ) -> Block:
        """Return a block of the samples of these sources, source by source.

        passes: of each sample, for samples that the objective has changed; None for samples as they are stored.
        """
        parts = list(zip(sources, samples, strict=True))
        if self.objective is None or passes is None:
            lengths = [
                self._checked(self.lengths(*part), part[1]) for part in parts if len(part[1])
            ]
        else:
            lengths = [
                self._checked(self.objective.lengths(source, ids, numbers), ids)
                for (source, ids), numbers in zip(parts, passes, strict=True)
                if len(ids)
            ]
        longest = None
        if self.sequences is not None:
            of_parts = [
                self._checked(self.sequences.longest(*part), part[1])
                for part in parts
                if len(part[1])
            ]
            longest = np.concatenate([_NONE, *of_parts])
        return Block(
            sources=np.repeat(np.array(sources, np.int64), [ids.size for ids in samples]),
            samples=np.concatenate([_NONE, *samples]),
            lengths=np.concatenate([_NONE, *lengths]),
            settings=self.settings,
            names=self.names,
            targets=self.targets,
            longest=longest,
            row_sequences=1 if self.sequences is None else self.sequences.count,
            objective=None if passes is None else self.objective,
            passes=None if passes is None else np.concatenate([_NONE, *passes]),
        )

    @staticmethod
    def _checked(found: Ints, samples: Ints) -> Ints:
        lengths = np.asarray(found)
        is_whole = lengths.dtype.kind in "iu"
        assert lengths.shape == samples.shape and is_whole, "one whole number for every sample"
        return lengths.astype(np.int64, copy=False)
