"""Rows of spans, and what delivering them counts."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from penstock.plan.counters import Counters
from penstock.reasons import TRUNCATED
from penstock.types import SPAN, Bools, Ints


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows: row r is `spans[starts[r]:starts[r + 1]]`.  A row without spans is padding."""

    spans: np.ndarray  # (num_spans,) of SPAN
    starts: Ints  # (num_rows + 1,)
    # The pass over its source that each span's sample is of, if an objective changes samples from pass to pass; None: no matter.
    passes: Ints | None = None

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
        spans = np.repeat(self.starts[chosen], sizes) + inside
        passes = None if self.passes is None else self.passes[spans]
        return Rows(self.spans[spans], starts, passes)

    def slice(self, start: int, stop: int) -> "Rows":
        """Return rows start..stop, without copying spans."""
        starts = self.starts[start : stop + 1]
        inside = slice(int(starts[0]), int(starts[-1]))
        passes = None if self.passes is None else self.passes[inside]
        return Rows(self.spans[inside], starts - starts[0], passes)

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
        passes = None
        if any(part.passes is not None for part in parts):  # rows of padding have none
            passes = np.concatenate([part.passes for part in parts if part.passes is not None])
        return Rows(spans, np.concatenate(([0], ends)), passes)

    @staticmethod
    def empty(num_rows: int) -> "Rows":
        """Return rows of padding."""
        return Rows(np.empty(0, SPAN), np.zeros(num_rows + 1, np.int64))


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
