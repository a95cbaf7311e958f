"""Turn the samples of a block into rows: cut or drop overlong samples, leave out pieces without a target, pack, order, count."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import Overlong, PlanError
from penstock.fingerprint import fingerprint
from penstock.plan.counters import Counters
from penstock.plan.mix import Clock, Concatenation, Shares, WeightedMix
from penstock.plan.packing import argsort_small
from penstock.plan.permutation import Permutation, derive
from penstock.plan.queues import Queue, QueueClock
from penstock.plan.settings import PlanSettings
from penstock.plan.shuffle import SourceOrder
from penstock.reasons import EMPTY, NOTHING_TO_TRAIN, OVERLONG, TRUNCATED
from penstock.types import SPAN, Bools, Ints, Lengths, Targets

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows: row r is `spans[starts[r]:starts[r + 1]]`.  A row without spans is padding."""

    spans: np.ndarray  # (num_spans,) of SPAN
    starts: Ints  # (num_rows + 1,)

    @property
    def num_rows(self) -> int:
        return self.starts.size - 1

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, row: int) -> np.ndarray:
        return self.spans[self.starts[row] : self.starts[row + 1]]

    def take(self, chosen: Ints) -> "Rows":
        """Return these rows, in this order."""
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        inside = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
        return Rows(self.spans[np.repeat(self.starts[chosen], sizes) + inside], starts)

    def slice(self, start: int, stop: int) -> "Rows":
        """Return rows start..stop, without copying spans."""
        starts = self.starts[start : stop + 1]
        return Rows(self.spans[starts[0] : starts[-1]], starts - starts[0])

    @staticmethod
    def join(parts: "list[Rows]") -> "Rows":
        """Return these rows one after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Rows.empty(0)
        # as bytes: numpy would compare the fields of each dtype with those of the next, at a microsecond and more per part
        spans = np.concatenate([part.spans.view(np.uint8) for part in parts]).view(SPAN)
        ends = np.concatenate([part.starts[1:] for part in parts])
        ends += np.repeat(
            np.cumsum([0, *(len(part.spans) for part in parts[:-1])]),
            [part.num_rows for part in parts],
        )
        return Rows(spans, np.concatenate(([0], ends)))

    @staticmethod
    def empty(num_rows: int) -> "Rows":
        """Return rows of padding."""
        return Rows(np.empty(0, SPAN), np.zeros(num_rows + 1, np.int64))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Samples, or parts of samples, that each go into one row."""

    sample: Ints  # index into the block's samples
    start: Ints
    stop: Ints

    def where(self, chosen: Ints | Bools | None) -> "_Pieces":
        return (
            self
            if chosen is None
            else _Pieces(self.sample[chosen], self.start[chosen], self.stop[chosen])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceCounts:
    """What each piece counts in the row that holds it.  A sample in several pieces is counted with its first one."""

    is_first: Bools
    is_split: Bools  # the first of several pieces
    is_shared: Bools  # its first token is counted in the row that ends with it
    tokens_cut: Ints  # of its sample, by on_overlong="truncate"

    def where(self, chosen: Ints | slice) -> "PieceCounts":
        return PieceCounts(
            is_first=self.is_first[chosen],
            is_split=self.is_split[chosen],
            is_shared=self.is_shared[chosen],
            tokens_cut=self.tokens_cut[chosen],
        )


def count_pieces(sources: Ints, sizes: Ints, counts: PieceCounts | None) -> Counters:
    """Count pieces that are delivered: of these sources, with so many tokens; None: each is a whole sample."""
    tokens = int(sizes.sum())
    truncated = split = shared = tokens_cut = 0
    if counts is not None:
        sources = sources[counts.is_first]
        truncated = int(np.count_nonzero(counts.tokens_cut))
        tokens_cut = int(counts.tokens_cut.sum())
        split = int(np.count_nonzero(counts.is_split))
        shared = int(np.count_nonzero(counts.is_shared))
    return Counters(
        samples_in=sources.size,
        samples_out=sources.size,
        samples_by_source=+Counter(dict(enumerate(np.bincount(sources).tolist()))),
        samples_truncated=truncated,
        samples_split=split,
        tokens_in=tokens - shared + tokens_cut,
        tokens_out=tokens - shared,
        tokens_dropped=+Counter({TRUNCATED: tokens_cut}),
        tokens_shared=shared,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBlock:
    """The rows of a block, and what they count.  What is in no row is counted when the block begins, a row when it is delivered.

    So nothing is counted ahead, and nothing is ever taken back: wherever a run stops, its counters are those of what it gave and dropped.
    """

    rows: Rows
    max_length: int
    dropped: Counters  # samples and pieces that are in no row
    counts: PieceCounts | None  # of each span; None: each is a whole sample

    @property
    def counters(self) -> Counters:
        """Counts of the whole block."""
        return self.dropped + self.delivered(0, self.rows.num_rows)

    def delivered(self, start: int, stop: int) -> Counters:
        """Count rows start..stop as delivered."""
        inside = slice(int(self.rows.starts[start]), int(self.rows.starts[stop]))
        spans = self.rows.spans[inside]
        counts = None if self.counts is None else self.counts.where(inside)
        counters = count_pieces(spans["source"], spans["stop"] - spans["start"], counts)
        num_rows = stop - start
        return counters + Counters(rows=num_rows, tokens_capacity=num_rows * self.max_length)

    def left_out(self, start: int, stop: int, reason: str) -> Counters:
        """Count rows start..stop as dropped: their tokens, and the samples of which they hold the first piece."""
        counters = self.delivered(start, stop)
        return Counters(
            samples_in=counters.samples_in,
            tokens_in=counters.tokens_in,
            samples_dropped=+Counter({reason: counters.samples_out}),
            tokens_dropped=counters.tokens_dropped + Counter({reason: counters.tokens_out}),
            samples_truncated=counters.samples_truncated,
            samples_split=counters.samples_split,
        )

    def first_rows(self, num_rows: int) -> "PackedBlock":
        """Return a block of the first rows; what the whole block drops is dropped."""
        rows = self.rows.slice(0, num_rows)
        counts = None if self.counts is None else self.counts.where(slice(0, len(rows.spans)))
        return replace(self, rows=rows, counts=counts)


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

    def pack(self, *, epoch: int, number: int) -> PackedBlock:
        """Return the rows in their final order, and what they count."""
        every, is_kept = self._cut()
        pieces = every.where(is_kept)
        settings = self.settings
        rows = settings.method.assign(
            self._room(pieces), settings.capacity, settings.max_per_row, self._sections_of(pieces)
        )
        num_rows = int(rows.max(initial=-1)) + 1
        rows = self._order_rows(rows, num_rows, pieces, epoch=epoch, number=number)
        order = argsort_small(rows)  # stable: spans of a row stay in block order
        spans = np.empty(order.size, SPAN)
        sample = pieces.sample[order]
        spans["source"] = self.sources[sample]
        spans["sample"] = self.samples[sample]
        spans["start"] = pieces.start[order]
        spans["stop"] = pieces.stop[order]
        starts = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=num_rows)))).astype(
            np.int64
        )
        counts = self._piece_counts(every, pieces)
        return PackedBlock(
            rows=Rows(spans, starts),
            max_length=settings.max_length,
            dropped=self._count_dropped(every, pieces, counts),
            counts=None if counts is None else counts.where(order),
        )

    def num_rows(self) -> int:
        """Return how many rows `pack` makes; several times faster."""
        pieces, is_kept = self._cut()
        return self._count_rows(pieces.where(is_kept))

    def _count_rows(self, pieces: _Pieces) -> int:
        settings = self.settings
        return settings.method.count_rows(
            self._room(pieces), settings.capacity, settings.max_per_row, self._sections_of(pieces)
        )

    def _sections_of(self, pieces: _Pieces) -> Ints | None:
        return None if self.sections is None else self.sections[pieces.sample]

    def where(self, chosen: Bools) -> "Block":
        """Return some of the samples."""
        return replace(
            self,
            sources=self.sources[chosen],
            samples=self.samples[chosen],
            lengths=self.lengths[chosen],
            sections=None if self.sections is None else self.sections[chosen],
        )

    def count_dropped(self, *, with_rows: bool = False) -> Counters:
        """Count what is dropped and cut, without packing; `with_rows` also counts rows, as `num_rows` does."""
        every, is_kept = self._cut()
        pieces = every.where(is_kept)
        counts = self._piece_counts(every, pieces)
        delivered = count_pieces(self.sources[pieces.sample], pieces.stop - pieces.start, counts)
        counters = self._count_dropped(every, pieces, counts) + delivered
        if not with_rows:
            return counters
        rows = self._count_rows(pieces)
        return counters + Counters(rows=rows, tokens_capacity=rows * self.settings.max_length)

    def delivered_tokens(self) -> Ints:
        """Return the tokens of each sample that reach a row: 0 for dropped samples, fewer than its length for cut ones.

        With `concat`, rows are cut from the stream of the whole block, so rows without a target are not known here.
        """
        kept = self._kept_lengths()
        if not self.settings.method.cuts and self.settings.on_overlong in ("truncate", "split"):
            pieces = self._pieces(kept)
            if (is_kept := self._with_target(pieces)) is not None:
                np.subtract.at(
                    kept, pieces.sample[~is_kept], (pieces.stop - pieces.start)[~is_kept]
                )
        return kept

    def _cut(self) -> tuple[_Pieces, Bools | None]:
        """Return all pieces, and which of them are kept because they hold a target; None for all."""
        settings = self.settings
        pieces = self._pieces(self._kept_lengths())
        if (
            settings.on_overlong == "error"
            and (overlong := np.flatnonzero(self.lengths > settings.capacity)).size
        ):
            first = overlong[0]
            raise Overlong(
                f"sample {self.samples[first]} of source {self.names[self.sources[first]]!r} has {self.lengths[first]} tokens, "
                f"max_length is {settings.max_length} (room for {settings.capacity}); raise max_length or choose "
                f"on_overlong='drop', 'truncate' or 'split' (each is counted)"
            )
        return pieces, self._with_target(pieces)

    def _kept_lengths(self) -> Ints:
        """Return the tokens of each sample that `on_overlong` leaves, as a new array."""
        lengths = self.lengths
        settings = self.settings
        if settings.method.cuts or settings.on_overlong in ("split", "error"):
            return lengths.copy()
        most = settings.capacity if settings.on_overlong == "truncate" else 0
        return np.where(lengths > settings.capacity, most, lengths)

    def _pieces(self, kept: Ints) -> _Pieces:
        """Cut each sample at every multiple of the capacity, counted from its start, or in the stream of all samples end to end."""
        sample = np.flatnonzero(kept)
        capacity = self.settings.capacity
        is_stream = self.settings.method.cuts
        lengths = kept[sample]
        if not is_stream and lengths.max(initial=0) <= capacity:
            return _Pieces(sample, np.zeros(sample.size, np.int64), lengths)
        if self.settings.overlap:
            return self._overlapping_pieces(sample, lengths)
        room = self.settings.aligned(lengths)
        used = (
            (np.cumsum(room) - room) % capacity if is_stream else 0
        )  # of the row in which the sample begins
        parts = -(-(used + room) // capacity)
        start = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        start *= capacity
        if is_stream:
            start -= np.repeat(used, parts)
        stop = np.minimum(start + capacity, np.repeat(lengths, parts))
        return _Pieces(np.repeat(sample, parts), np.maximum(start, 0), stop)

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
        parts = last_row - first_row + 1
        row = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts - first_row, parts)
        begin = np.repeat(begins, parts)
        start = np.maximum(row * stride - begin, 0)
        stop = np.minimum(row * stride + capacity, np.repeat(ends, parts)) - begin
        return _Pieces(np.repeat(sample, parts), start, stop)

    def _with_target(self, pieces: _Pieces) -> Bools | None:
        """Return which pieces hold a target, or stand in one row of a stream with one that does; None for all.

        Whole samples always hold one; the others are looked up if their row has no whole sample.
        """
        if self.targets is None:
            return None
        is_whole = pieces.stop - pieces.start == self.lengths[pieces.sample]
        if is_whole.all():
            return None
        method = self.settings.method
        capacity = self.settings.capacity
        row = (
            method.assign(self._room(pieces), capacity, None)
            if method.cuts
            else np.arange(is_whole.size)
        )
        is_good = np.zeros(int(row.max()) + 1, np.bool_)
        is_good[row[is_whole]] = True
        asked = np.flatnonzero(~is_good[row])
        sources = self.sources[pieces.sample[asked]]
        samples = self.samples[pieces.sample[asked]]
        for number in np.unique(sources).tolist():
            here = np.flatnonzero(sources == number)
            chosen = asked[here]
            found = self.targets(number, samples[here], pieces.start[chosen], pieces.stop[chosen])
            is_good[row[chosen[found]]] = True
        return None if is_good.all() else is_good[row]

    def _piece_counts(self, every: _Pieces, pieces: _Pieces) -> PieceCounts | None:
        """Return what each of these pieces counts; None where each is a whole sample.

        every: also the pieces without a target, which are in no row.
        """
        settings = self.settings
        sizes = pieces.stop - pieces.start
        lengths = self.lengths[pieces.sample]
        if not settings.overlap and np.array_equal(sizes, lengths):
            return None
        is_shared = self._shared(pieces)
        is_first = np.diff(pieces.sample, prepend=-1) > 0  # pieces of a sample stand together
        tokens_cut = np.zeros(sizes.size, np.int64)
        is_split = np.zeros(sizes.size, np.bool_)
        if settings.method.cuts or settings.on_overlong == "split":
            num_pieces = np.bincount(every.sample, minlength=self.lengths.size)
            # a shared token alone is no piece of its sample
            is_alone = is_shared & (sizes == 1)
            num_pieces -= np.bincount(pieces.sample[is_alone], minlength=self.lengths.size)
            is_split = is_first & (num_pieces[pieces.sample] > 1)
        elif settings.on_overlong == "truncate":
            tokens_cut = lengths - sizes
        return PieceCounts(
            is_first=is_first, is_split=is_split, is_shared=is_shared, tokens_cut=tokens_cut
        )

    def _count_dropped(
        self, every: _Pieces, pieces: _Pieces, counts: PieceCounts | None
    ) -> Counters:
        """Count the samples and pieces that are in no row.  pieces: those that are, which count `counts`."""
        lengths = self.lengths
        settings = self.settings
        is_out = np.zeros(lengths.size, np.bool_)
        is_out[pieces.sample] = True
        dropped = lengths.size - int(np.count_nonzero(is_out))
        empty = lengths.size - int(np.count_nonzero(lengths))
        overlong = _NONE
        if settings.on_overlong == "drop" and not settings.method.cuts:
            overlong = np.flatnonzero(lengths > settings.capacity)
        tokens_in_rows = int((pieces.stop - pieces.start).sum())
        if counts is not None:
            tokens_in_rows += int(counts.tokens_cut.sum()) - int(np.count_nonzero(counts.is_shared))
        tokens = int(lengths.sum()) - tokens_in_rows
        tokens_overlong = int(lengths[overlong].sum())
        is_cut = settings.method.cuts or settings.on_overlong == "split"
        return Counters(
            samples_in=dropped,
            tokens_in=tokens,
            samples_dropped=+Counter(
                {
                    EMPTY: empty,
                    OVERLONG: overlong.size,
                    NOTHING_TO_TRAIN: dropped - empty - overlong.size,
                }
            ),
            tokens_dropped=+Counter(
                {OVERLONG: tokens_overlong, NOTHING_TO_TRAIN: tokens - tokens_overlong}
            ),
            pieces_dropped=(every.sample.size - pieces.sample.size) * is_cut,
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
        return self.settings.aligned(pieces.stop - pieces.start)

    def _order_rows(
        self, rows: Ints, num_rows: int, pieces: _Pieces, *, epoch: int, number: int
    ) -> Ints:
        """Return row numbers after shuffling; without shuffling, rows are in the order of their first piece.

        Rows of a section come before those of the next one, and a row that both share between them.
        """
        settings = self.settings
        if not num_rows:
            return rows
        sections = self._sections_of(pieces)
        groups = np.zeros(num_rows, np.int64)
        if sections is not None:
            # rows of section s are group 2s; the one that goes on with pieces of later sections is group 2s + 1
            first_sections = np.full(num_rows, sections[-1])
            last_sections = np.zeros(num_rows, np.int64)
            np.minimum.at(first_sections, rows, sections)
            np.maximum.at(last_sections, rows, sections)
            groups = 2 * first_sections + (last_sections > first_sections)
        if settings.method.orders:
            lengths = np.bincount(rows, weights=pieces.stop - pieces.start).astype(np.int64)
            place = self._in_runs(
                lengths, groups, settings.method.number, epoch=epoch, number=number
            )
        elif settings.shuffle:
            permutation = Permutation(num_rows, derive(settings.seed, "rows", epoch, number))
            place = permutation[np.arange(num_rows)]
            if settings.balance == "block":
                work = settings.cost(pieces.stop - pieces.start)
                costs = np.bincount(place[rows], weights=work).astype(np.int64)
                in_runs = self._in_runs(
                    costs,
                    groups[_inverse(place)],
                    settings.balance_rows,
                    epoch=epoch,
                    number=number,
                )
                place = in_runs[place]
            elif sections is not None:
                place = _inverse(np.lexsort((place, groups)))
        else:
            first_pieces = np.unique(rows, return_index=True)[1]
            place = _inverse(np.lexsort((first_pieces, groups)))
        return place[rows]

    def _in_runs(
        self, values: Ints, groups: Ints, run_size: int, *, epoch: int, number: int
    ) -> Ints:
        """Return the place of each row, in runs of `run_size` rows of similar value; the runs are shuffled, an incomplete one stays last.

        groups: of rows that stay together, in the order in which groups come; each has runs of its own.
        """
        by_value = argsort_small(values)
        place = _inverse(by_value[np.argsort(groups[by_value], kind="stable")])
        if not self.settings.shuffle:
            return place
        sizes = np.bincount(groups)
        begins = np.cumsum(sizes) - sizes
        for group in np.flatnonzero(sizes >= run_size).tolist():
            members = np.flatnonzero(groups == group)
            full = members.size // run_size
            run, within = np.divmod(place[members] - begins[group], run_size)
            seed = derive(self.settings.seed, "groups", epoch, number)
            permutation = Permutation(full, derive(seed, "group", group) if group else seed)
            moved = permutation[np.minimum(run, full - 1)] * run_size + within
            is_full = run < full
            place[members[is_full]] = begins[group] + moved[is_full]
        return place


def shared_tokens(starts: Ints, sources: Ints, samples: Ints, start: Ints, stop: Ints) -> Bools:
    """Return which spans begin with a token that another row ends with: rows cut with overlap, of one block, in any order.

    starts: where rows begin among the spans.  A token that ends n rows and begins more of them, because its sample comes several times,
    is shared by the first n rows that begin with it.
    """
    is_shared = np.zeros(sources.size, np.bool_)
    first = starts[:-1]
    last = starts[1:] - 1
    tokens_before = np.concatenate(([0], np.cumsum(stop - start)))
    is_long = (
        np.diff(tokens_before[starts]) > 1
    )  # a row of one token ends with the one it begins with
    beginnings = np.stack((sources[first], samples[first], start[first]))
    endings = np.stack((sources[last], samples[last], stop[last] - 1))[:, is_long]
    _, number = np.unique(
        np.concatenate((beginnings, endings), axis=1), axis=1, return_inverse=True
    )
    number = number.reshape(-1)
    begins = number[: first.size]
    num_endings = np.bincount(number[first.size :], minlength=int(number.max()) + 1)
    order = np.argsort(begins, kind="stable")
    is_new = np.diff(begins[order], prepend=-1) != 0
    turn = np.arange(order.size)
    turn -= np.maximum.accumulate(np.where(is_new, turn, 0))  # of the rows with one beginning
    is_shared[first[order]] = turn < num_endings[begins[order]]
    return is_shared


def _inverse(order: Ints) -> Ints:
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """What the plan knows about a source: its name, its key and its sizes, never its bytes."""

    name: str
    key: str  # the store's fingerprint
    shard_sizes: Ints  # samples per shard

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "name", str.__str__(self.name)
        )  # a subclass of str prints, and so seeds, differently

    @property
    def num_samples(self) -> int:
        return int(self.shard_sizes.sum())

    def identity(self) -> list[str]:
        """Plain values that say exactly what the source is."""
        return [self.name, self.key, fingerprint([int(n) for n in self.shard_sizes])[:16]]

    @property
    def digest(self) -> str:
        """The source in the summary of a plan."""
        return fingerprint(self.identity())[:8]


class Blocks:
    """The blocks of every epoch, by number.  `shares` says which samples a block holds; None past the epoch's end."""

    def __init__(
        self,
        sources: Sequence[PlanSource],
        lengths: Lengths,
        settings: PlanSettings,
        targets: Targets | None,
        queues: Sequence[Queue] | None = None,
    ) -> None:
        """queues: the orders of the sources after a change of mixture."""
        names = tuple(source.name for source in sources)
        if len(set(names)) < len(names):
            raise PlanError(
                f"sources {list(names)} do not have distinct names; names seed each source's shuffle"
            )
        self._lengths = lengths
        self._by_tokens = settings.mix_by == "tokens"
        self._make = partial(Block, settings=settings, names=names, targets=targets)
        made = (
            [SourceOrder(source.name, source.shard_sizes, settings) for source in sources]
            if queues is None
            else []
        )
        self.orders: list[SourceOrder | Queue] = [*made, *(queues or ())]
        clock: Any = Clock if queues is None else QueueClock
        clocks: list[Any] = [
            clock(order, partial(self._contribution, n)) for n, order in enumerate(self.orders)
        ]
        self.shares = (Concatenation if settings.weights is None else WeightedMix)(
            clocks, settings
        ).shares

    def first_block(self, epoch: int, number: int) -> int:
        """Return the first block of an epoch in the mixture of this block."""
        return 0

    def pack(self, epoch: int, number: int) -> PackedBlock | None:
        """Return the rows of a block in order, and what they count."""
        block = self.block(epoch, number)
        return None if block is None else block.pack(epoch=epoch, number=number)

    def num_rows(self, epoch: int, number: int) -> int | None:
        """Return how many rows a block becomes."""
        block = self.block(epoch, number)
        return None if block is None else block.num_rows()

    def count_dropped(self, epoch: int, *, with_rows: bool = False) -> Counters:
        """Count what is dropped and cut in an epoch, without packing: several times faster; `with_rows` also counts its rows."""
        counters = Counters()
        number = 0
        while (block := self.block(epoch, number)) is not None:
            counters = counters + block.count_dropped(with_rows=with_rows)
            number = number + 1
        return counters

    def samples_taken(self, epoch: int, *, epochs: int = 1) -> tuple[int, ...]:
        """Return the samples of each source that `epochs` epochs take, delivered or dropped; a repeated one counts again."""
        first = last = self.shares(epoch, 0)
        if first is None or last is None or not epochs:
            return (0,) * len(self.orders)
        number = 0
        while (shares := self.shares(epoch + epochs - 1, number)) is not None:
            last = shares
            number = number + 1
        return tuple(stop - start for start, stop in zip(first.starts, last.stops, strict=True))

    def shards(self, epoch: int, number: int) -> list[tuple[int, int]] | None:
        """Return the (source, shard) pairs that a block needs, in the order in which a background builder should make them."""
        if (shares := self.shares(epoch, number)) is None:
            return None
        places = enumerate(zip(self.orders, *shares, strict=True))
        return [
            (source, int(shard)) for source, (order, a, b) in places for shard in order.shards(a, b)
        ]

    def block(self, epoch: int, number: int) -> Block | None:
        """Return a block, each source spread evenly over it: a short run of samples holds the sources in their shares."""
        if (shares := self.shares(epoch, number)) is None:
            return None
        samples = [order.samples(a, b) for order, a, b in zip(self.orders, *shares, strict=True)]
        lengths = [
            self._lengths_of(source, ids) if ids.size else ids for source, ids in enumerate(samples)
        ]
        counts = [ids.size for ids in samples]
        begins_pass = self._begins_pass(shares, counts)
        sources = np.repeat(np.arange(len(samples), dtype=np.int64), counts)
        all_samples = np.concatenate([_NONE, *samples])
        all_lengths = np.concatenate([_NONE, *lengths])
        if np.count_nonzero(counts) < 2:
            return self._make(
                sources,
                all_samples,
                all_lengths,
                sections=None if begins_pass is None else np.cumsum(begins_pass),
            )
        order = np.argsort(
            np.concatenate([(np.arange(n) + 0.5) / n for n in counts]), kind="stable"
        )
        return self._make(
            sources[order],
            all_samples[order],
            all_lengths[order],
            sections=None if begins_pass is None else np.cumsum(begins_pass[order]),
        )

    def _begins_pass(self, shares: Shares, counts: Sequence[int]) -> Bools | None:
        """Return which samples of a block, source by source, are the first of a new pass over their source; None for none."""
        begins_pass = np.zeros(sum(counts), np.bool_)
        first = 0
        for order, start, stop, count in zip(self.orders, *shares, counts, strict=True):
            begins_pass[first + order.pass_borders(start, stop) - start] = True
            first += count
        return begins_pass if begins_pass.any() else None

    def _contribution(self, source: int, samples: Ints) -> Ints:
        """Return how much each of these samples adds to its source's share: tokens that reach a row, or 1 if any does."""
        tokens = self._make(
            np.full(samples.size, source), samples, self._lengths_of(source, samples)
        ).delivered_tokens()
        return tokens if self._by_tokens else (tokens > 0).astype(np.int64)

    def _lengths_of(self, source: int, samples: Ints) -> Ints:
        lengths = np.asarray(self._lengths(source, samples))
        assert lengths.shape == samples.shape and lengths.dtype.kind in "iu", (
            "one whole number for every sample"
        )
        return lengths.astype(np.int64, copy=False)
