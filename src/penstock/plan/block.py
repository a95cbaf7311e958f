"""Turn a block of samples into rows: cut or drop overlong samples, leave out pieces without a target, pack, order; count it all."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.errors import Overlong
from penstock.plan.counters import Counters
from penstock.plan.pack import UNBOUNDED, argsort_small, count_best_fit, packer
from penstock.plan.permute import Permutation
from penstock.plan.seeds import derive
from penstock.plan.settings import PlanSettings
from penstock.types import SPAN, Bools, Ints


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

    def where(self, chosen: Ints | Bools) -> "Pieces":
        return Pieces(self.sample[chosen], self.start[chosen], self.stop[chosen])


# (source, sample id, start, stop) of pieces → whether each holds a target
HasTarget = Callable[[Ints, Ints, Ints, Ints], Bools]


def pack_block(
    block: BlockSamples,
    settings: PlanSettings,
    *,
    names: Sequence[str],
    epoch: int,
    number: int,
    has_target: HasTarget | None = None,
) -> tuple[Rows, Counters]:
    pieces, counters = _pieces(block, settings, names, has_target)
    rows, num_rows = _assign(pieces, settings)
    rows = _order_rows(rows, num_rows, pieces, settings, epoch=epoch, number=number)
    order = argsort_small(rows)  # stable: spans of a row stay in block order
    spans = np.empty(order.size, SPAN)
    home = pieces.sample[order]
    spans["source"], spans["sample"] = block.sources[home], block.samples[home]
    spans["start"], spans["stop"] = pieces.start[order], pieces.stop[order]
    starts = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=num_rows)))).astype(np.int64)
    more = Counters(
        rows=num_rows,
        tokens_capacity=num_rows * settings.max_length,
        samples_by_source=_by_source(block, pieces, len(names)),
    )
    return Rows(spans, starts), counters + more


def count_block(
    block: BlockSamples, settings: PlanSettings, *, names: Sequence[str], has_target: HasTarget | None = None
) -> int:
    """How many rows `pack_block` makes of these samples; several times faster."""
    pieces, _ = _pieces(block, settings, names, has_target)
    if settings.packing == "best_fit":
        return count_best_fit(_room(pieces, settings), settings.capacity, settings.max_per_row or UNBOUNDED)
    return _assign(pieces, settings)[1]


def count_samples(
    block: BlockSamples, settings: PlanSettings, *, names: Sequence[str], has_target: HasTarget | None = None
) -> Counters:
    """What is dropped and cut of these samples, without packing them: no rows are counted."""
    return _pieces(block, settings, names, has_target)[1]


def delivered_tokens(block: BlockSamples, settings: PlanSettings, has_target: HasTarget | None = None) -> Ints:
    """Tokens of each sample that reach a row: 0 where the sample is dropped, less than its length where it is cut.

    Under `concat`, rows are cut from the whole block's stream, so a row without a target is not known here.
    """
    kept = _kept_lengths(block.lengths, settings)
    if settings.packing == "concat" or not _asks_for_targets(block, settings, has_target):
        return kept
    pieces, is_barren = _cut_overlong(block, kept, settings, has_target)
    np.subtract.at(kept, pieces.sample[is_barren], (pieces.stop - pieces.start)[is_barren])
    return kept


def _kept_lengths(lengths: Ints, settings: PlanSettings) -> Ints:
    """Tokens of each sample that `overflow` leaves, in an array of its own."""
    if settings.packing == "concat" or settings.overflow in ("split", "error"):
        return lengths.copy()
    if settings.overflow == "truncate":
        return np.minimum(lengths, settings.capacity)
    return np.where(lengths > settings.capacity, 0, lengths)


def _pieces(
    block: BlockSamples, settings: PlanSettings, names: Sequence[str], has_target: HasTarget | None
) -> tuple[Pieces, Counters]:
    """Pieces that reach a row, and what became of every sample and token.  Pieces without a target are left out."""
    lengths, is_concat = block.lengths, settings.packing == "concat"
    overlong = lengths > settings.capacity
    num_overlong = 0 if is_concat else int(np.count_nonzero(overlong))
    if settings.overflow == "error" and num_overlong:
        _raise_overlong(block, int(np.flatnonzero(overlong)[0]), settings, names)
    kept = _kept_lengths(lengths, settings)
    if is_concat:
        pieces = _cut_stream(_whole(kept), settings)
        is_barren = _in_rows_without_target(pieces, block, settings, has_target)
    elif _asks_for_targets(block, settings, has_target):
        pieces, is_barren = _cut_overlong(block, kept, settings, has_target)
    else:
        pieces = _whole(kept)
        if settings.overflow == "split" and num_overlong:
            pieces = _cut_samples(pieces, settings.capacity)
        is_barren = None
    counters = _count(block, pieces, kept, settings, num_overlong)
    if is_barren is None or not is_barren.any():
        return pieces, counters
    left = pieces.where(~is_barren)
    return left, _without(counters, pieces.where(is_barren), left, block, settings)


def _count(block: BlockSamples, pieces: Pieces, kept: Ints, settings: PlanSettings, num_overlong: int) -> Counters:
    """What became of every sample and token if all `pieces` reach a row."""
    lengths, is_concat = block.lengths, settings.packing == "concat"
    is_dropped = settings.overflow == "drop" and not is_concat
    dropped: Counter[str] = Counter()
    if empty := lengths.size - int(np.count_nonzero(lengths)):
        dropped["empty"] = empty
    if num_overlong and is_dropped:
        dropped["overlong"] = num_overlong
    tokens_in = int(lengths.sum())
    lost = tokens_in - int(kept.sum())
    split = num_overlong if settings.overflow == "split" else 0
    if is_concat:
        split = int(np.count_nonzero(np.bincount(pieces.sample, minlength=1) > 1))
    return Counters(
        samples_in=lengths.size,
        tokens_in=tokens_in,
        samples_out=lengths.size - dropped.total(),
        tokens_out=tokens_in - lost,
        samples_dropped=dropped,
        tokens_dropped=Counter({"overlong" if is_dropped else "truncated": lost}) if lost else Counter(),
        samples_truncated=num_overlong if settings.overflow == "truncate" else 0,
        samples_split=split,
    )


def _without(counters: Counters, barren: Pieces, left: Pieces, block: BlockSamples, settings: PlanSettings) -> Counters:
    """The counts once `barren` pieces are left out: they hold no target.  A sample of which nothing is `left` is dropped."""
    is_left = np.zeros(block.lengths.size, np.bool_)
    is_left[left.sample] = True
    gone, num_pieces = np.unique(barren.sample[~is_left[barren.sample]], return_counts=True)
    lost = int((barren.stop - barren.start).sum())
    cut_off = 0
    if settings.overflow == "truncate":  # all of a dropped sample is lost for one reason
        cut_off = int((block.lengths[gone] - settings.capacity).sum())
    dropped, tokens_dropped = counters.samples_dropped.copy(), counters.tokens_dropped.copy()
    if gone.size:
        dropped["nothing_to_train"] = gone.size
    tokens_dropped["nothing_to_train"] = lost + cut_off
    tokens_dropped["truncated"] -= cut_off
    is_split = settings.overflow == "split" or settings.packing == "concat"
    return replace(
        counters,
        samples_out=counters.samples_out - gone.size,
        tokens_out=counters.tokens_out - lost,
        samples_dropped=dropped,
        tokens_dropped=+tokens_dropped,
        samples_truncated=counters.samples_truncated - (0 if is_split else gone.size),
        samples_split=counters.samples_split - int(np.count_nonzero(num_pieces > 1)),
        pieces_dropped=barren.sample.size if is_split else 0,
    )


def _by_source(block: BlockSamples, pieces: Pieces, num_sources: int) -> Counter[int]:
    """Samples that reach a row, by source."""
    is_in = np.zeros(block.lengths.size, np.bool_)
    is_in[pieces.sample] = True
    counts = np.bincount(block.sources[is_in], minlength=num_sources).tolist()
    return Counter({source: count for source, count in enumerate(counts) if count})


def _whole(kept: Ints) -> Pieces:
    sample = np.flatnonzero(kept)
    return Pieces(sample, np.zeros(sample.size, np.int64), kept[sample])


def _asks_for_targets(block: BlockSamples, settings: PlanSettings, has_target: HasTarget | None) -> bool:
    """Whether samples are cut, so that a piece may hold no target.  Samples that stay whole all have one."""
    if has_target is None or settings.overflow not in ("truncate", "split"):
        return False
    return bool((block.lengths > settings.capacity).any())


def _cut_overlong(
    block: BlockSamples, kept: Ints, settings: PlanSettings, has_target: HasTarget | None
) -> tuple[Pieces, Bools]:
    """(all pieces, which of them hold no target)."""
    pieces = _whole(kept)
    if settings.overflow == "split":
        pieces = _cut_samples(pieces, settings.capacity)
    is_barren = np.zeros(pieces.sample.size, np.bool_)
    cut = np.flatnonzero(block.lengths[pieces.sample] > settings.capacity)
    is_barren[cut] = _lack_targets(pieces.where(cut), block, has_target)
    return pieces, is_barren


def _in_rows_without_target(
    pieces: Pieces, block: BlockSamples, settings: PlanSettings, has_target: HasTarget | None
) -> Bools | None:
    """Pieces of a stream's rows that hold no target.  Rows with a whole sample have one, so only the others are asked about."""
    if has_target is None or not pieces.sample.size:
        return None
    room = _room(pieces, settings)
    row = (np.cumsum(room) - room) // settings.capacity
    is_good = np.zeros(int(row[-1]) + 1, np.bool_)
    is_good[row[pieces.stop - pieces.start == block.lengths[pieces.sample]]] = True
    asked = np.flatnonzero(~is_good[row])
    if not asked.size:
        return None
    lacking = _lack_targets(pieces.where(asked), block, has_target)
    is_good[row[asked[~lacking]]] = True
    return np.asarray(~is_good[row], np.bool_)


def _lack_targets(pieces: Pieces, block: BlockSamples, has_target: HasTarget | None) -> Bools:
    assert has_target is not None
    return ~has_target(block.sources[pieces.sample], block.samples[pieces.sample], pieces.start, pieces.stop)


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
