"""Which rows does a block of samples become?  Overlong samples are dealt with, pieces packed, rows put in order; all of it counted."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import Overlong
from penstock.plan.counters import Counters
from penstock.plan.pack import UNBOUNDED, argsort_small, count_best_fit, packer
from penstock.plan.permute import Permutation
from penstock.plan.seeds import derive
from penstock.plan.settings import PlanSettings
from penstock.types import SPAN, Ints


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

    def slice(self, start: int, stop: int) -> "Rows":
        """Rows start..stop, without copying spans."""
        starts = self.starts[start : stop + 1]
        return Rows(self.spans[starts[0] : starts[-1]], starts - starts[0])

    @staticmethod
    def join(parts: "list[Rows]") -> "Rows":
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Rows.empty(0)
        # as bytes: numpy compares the fields of one dtype with those of the next, at a microsecond and more a part
        spans = np.concatenate([part.spans.view(np.uint8) for part in parts]).view(SPAN)
        ends = np.concatenate([part.starts[1:] for part in parts])
        ends += np.repeat(np.cumsum([0, *(len(part.spans) for part in parts[:-1])]), [part.num_rows for part in parts])
        return Rows(spans, np.concatenate(([0], ends)))

    @staticmethod
    def empty(num_rows: int) -> "Rows":
        return Rows(np.empty(0, SPAN), np.zeros(num_rows + 1, np.int64))


@dataclass(frozen=True, slots=True)
class BlockSamples:
    """The samples of a block in mixed order, before packing."""

    sources: Ints
    samples: Ints
    lengths: Ints


@dataclass(frozen=True, slots=True)
class Pieces:
    """Samples, or parts of samples, that each go into one row."""

    sample: Ints  # index into the block's samples
    start: Ints
    stop: Ints


def pack_block(
    block: BlockSamples, settings: PlanSettings, *, names: Sequence[str], epoch: int, number: int
) -> tuple[Rows, Counters]:
    pieces, counters = _pieces(block, settings, names)
    rows, num_rows = _assign(pieces, settings)
    rows = _order_rows(rows, num_rows, pieces, settings, epoch=epoch, number=number)
    order = argsort_small(rows)  # stable: spans of a row stay in block order
    spans = np.empty(order.size, SPAN)
    home = pieces.sample[order]
    spans["source"], spans["sample"] = block.sources[home], block.samples[home]
    spans["start"], spans["stop"] = pieces.start[order], pieces.stop[order]
    starts = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=num_rows)))).astype(np.int64)
    return Rows(spans, starts), counters + Counters(rows=num_rows, tokens_capacity=num_rows * settings.max_length)


def count_block(block: BlockSamples, settings: PlanSettings, *, names: Sequence[str]) -> int:
    """How many rows `pack_block` makes of these samples; several times faster."""
    pieces, _ = _pieces(block, settings, names)
    if settings.packing == "best_fit":
        return count_best_fit(_room(pieces, settings), settings.capacity, settings.max_per_row or UNBOUNDED)
    return _assign(pieces, settings)[1]


def contribution(lengths: Ints, settings: PlanSettings) -> Ints:
    """Tokens that reach a row, sample by sample: 0 where an overlong sample is dropped, less where it is cut."""
    if settings.packing == "concat" or settings.overflow in ("split", "error"):
        return lengths
    if settings.overflow == "truncate":
        return np.minimum(lengths, settings.capacity)
    return np.where(lengths > settings.capacity, 0, lengths)


def _pieces(block: BlockSamples, settings: PlanSettings, names: Sequence[str]) -> tuple[Pieces, Counters]:
    lengths, capacity = block.lengths, settings.capacity
    empty = int(np.count_nonzero(lengths == 0))
    samples_dropped: Counter[str] = Counter({"empty": empty} if empty else {})
    tokens_dropped: Counter[str] = Counter()
    truncated = split = 0
    if settings.packing == "concat":
        sample = np.flatnonzero(lengths)
        pieces = Pieces(sample, np.zeros(sample.size, np.int64), lengths[sample])
        pieces = _cut_stream(pieces, settings)
        split = int(np.count_nonzero(np.bincount(pieces.sample, minlength=1) > 1))
    else:
        overlong = lengths > capacity
        if settings.overflow == "error" and overlong.any():
            _raise_overlong(block, int(np.flatnonzero(overlong)[0]), settings, names)
        kept = contribution(lengths, settings)
        sample = np.flatnonzero(kept)
        if lost := int(lengths.sum() - kept.sum()):
            tokens_dropped["overlong" if settings.overflow == "drop" else "truncated"] = lost
        if settings.overflow == "drop" and overlong.any():
            samples_dropped["overlong"] = int(np.count_nonzero(overlong))
        if settings.overflow == "truncate":
            truncated = int(np.count_nonzero(overlong))
        pieces = Pieces(sample, np.zeros(sample.size, np.int64), kept[sample])
        if settings.overflow == "split" and overlong.any():
            split = int(np.count_nonzero(overlong))
            pieces = _cut_samples(pieces, capacity)
    counters = Counters(
        samples_in=lengths.size,
        tokens_in=int(lengths.sum()),
        samples_out=lengths.size - samples_dropped.total(),
        tokens_out=int((pieces.stop - pieces.start).sum()),
        samples_dropped=samples_dropped,
        tokens_dropped=tokens_dropped,
        samples_truncated=truncated,
        samples_split=split,
    )
    return pieces, counters


def _raise_overlong(block: BlockSamples, index: int, settings: PlanSettings, names: Sequence[str]) -> None:
    where = f"sample {block.samples[index]} of source {names[block.sources[index]]!r}"
    raise Overlong(
        f"{where} has {block.lengths[index]} tokens, max_length is {settings.max_length} (room for {settings.capacity}); "
        f"raise max_length or choose overflow='drop', 'truncate' or 'split' (each is counted)"
    )


def _cut_samples(pieces: Pieces, capacity: int) -> Pieces:
    """Pieces longer than `capacity` become full pieces and a rest."""
    parts = -(-pieces.stop // capacity)
    turn = np.arange(parts.sum(), dtype=np.int64) - np.repeat(np.cumsum(parts) - parts, parts)
    start = turn * capacity
    return Pieces(np.repeat(pieces.sample, parts), start, np.minimum(start + capacity, np.repeat(pieces.stop, parts)))


def _cut_stream(pieces: Pieces, settings: PlanSettings) -> Pieces:
    """The samples laid end to end and cut at every multiple of the capacity."""
    capacity = settings.capacity
    room = settings.aligned(pieces.stop)
    end = np.cumsum(room)
    begin = end - room
    parts = -(-end // capacity) - begin // capacity
    turn = np.arange(parts.sum(), dtype=np.int64) - np.repeat(np.cumsum(parts) - parts, parts)
    row = np.repeat(begin // capacity, parts) + turn
    offset = np.repeat(begin, parts)
    start = np.maximum(row * capacity - offset, 0)
    stop = np.minimum(np.minimum((row + 1) * capacity - offset, np.repeat(room, parts)), np.repeat(pieces.stop, parts))
    return Pieces(np.repeat(pieces.sample, parts), start, stop)


def _room(pieces: Pieces, settings: PlanSettings) -> Ints:
    return settings.aligned(pieces.stop - pieces.start)


def _assign(pieces: Pieces, settings: PlanSettings) -> tuple[Ints, int]:
    """(row of each piece, number of rows)."""
    room = _room(pieces, settings)
    if settings.packing == "concat":
        end = np.cumsum(room)
        rows = (end - room) // settings.capacity
    else:
        rows = packer(settings.packing)(room, settings.capacity, settings.max_per_row or UNBOUNDED)
    return rows, int(rows.max()) + 1 if rows.size else 0


def _order_rows(rows: Ints, num_rows: int, pieces: Pieces, settings: PlanSettings, *, epoch: int, number: int) -> Ints:
    """Row numbers after shuffling; without shuffling, rows stand in the order of their first piece."""
    if not num_rows:
        return rows
    if match := re.fullmatch(r"group_(\d+)", settings.packing):
        return _group_by_length(pieces, int(match[1]), settings, epoch=epoch, number=number)
    if settings.shuffle:
        return Permutation(num_rows, derive(settings.seed, "rows", epoch, number))[rows]
    _, first = np.unique(rows, return_index=True)
    place = np.empty(num_rows, np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(num_rows)
    return place[rows]


def _group_by_length(pieces: Pieces, group: int, settings: PlanSettings, *, epoch: int, number: int) -> Ints:
    """Rows of one piece each, in runs of `group` alike lengths; the runs are shuffled, an incomplete one stays last."""
    order = argsort_small(pieces.stop - pieces.start)
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    full = order.size // group
    if not settings.shuffle or not full:
        return place
    run, within = np.divmod(place, group)
    shuffled = Permutation(full, derive(settings.seed, "groups", epoch, number))[np.minimum(run, full - 1)]
    return np.where(run < full, shuffled * group + within, place)
