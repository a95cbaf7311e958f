"""Packing: which pieces of samples share a row.  Lengths in, row numbers out.  Measured speed and fill: benchmarks/plan.py.

A packer takes the lengths of a block's pieces (each 1 ≤ length ≤ capacity), in block order, and returns one row number per piece.
`mixed_fit`, the default, fills rows in block order, so that a row looks like a random draw, and closes their gaps from a histogram.
`best_fit` works on the histogram of lengths alone: a little fuller, but whole rows hold samples of one length.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from penstock.errors import PlanError
from penstock.plan.permutation import keyed_words
from penstock.types import Bools, Ints
from penstock.words import did_you_mean

UNBOUNDED = 1 << 62

# mixed_fit is content with this fill, absolute or relative to best_fit's; it makes rows in so many turns at most, until the pieces that are
# left fill only a few rows and are few enough for first fit, which takes a microsecond for each.
_FULL_ENOUGH = 0.995
_CLEARLY_FEWER = 0.005  # of the rows
_MOST_TURNS = 10
_FEW_ROWS = 32
_MANY_PIECES = 2048
_FEW_PIECES = 64  # of a section


@dataclass(frozen=True, slots=True)
class Packing:
    """One way to put pieces into rows.  A new one is an entry in `PACKINGS`."""

    name: str
    # (lengths, capacity, max_per_row[, number]) → row of each piece, rows numbered from 0
    packer: Callable[..., Ints]
    is_packed: bool = True  # samples may share a row
    in_order: bool = False  # each row is a run of the block's order
    cuts: bool = False  # samples form one stream, which is cut wherever a row ends
    orders: bool = False  # rows come in runs of `number` of similar length
    number: int = 0  # N of window_N and group_N

    def assign(
        self,
        lengths: Ints,
        capacity: int,
        max_per_row: int | None,
        sections: Ints | None = None,
    ) -> Ints:
        """Return the row of each piece.

        sections: the number of the section of each piece, in which its source repeats no sample.  A row then holds pieces of one section,
        or is the last of its section and goes on with pieces of the next ones.
        """
        most = max_per_row or UNBOUNDED
        if sections is None or self.in_order or not lengths.size or sections[0] == sections[-1]:
            return self._assign(lengths, capacity, most)
        return _assign_sections(self._assign, lengths, capacity, most, sections)

    def _assign(self, lengths: Ints, capacity: int, max_per_row: int) -> Ints:
        if self.number:
            return self.packer(lengths, capacity, max_per_row, self.number)
        return self.packer(lengths, capacity, max_per_row)

    def count_rows(
        self,
        lengths: Ints,
        capacity: int,
        max_per_row: int | None,
        sections: Ints | None = None,
    ) -> int:
        """Return how many rows `assign` makes; several times faster for `best_fit`."""
        if self.packer is best_fit and lengths.size and sections is None:
            return _count_best_fit(lengths, capacity, max_per_row or UNBOUNDED)
        return int(self.assign(lengths, capacity, max_per_row, sections).max(initial=-1)) + 1


@lru_cache
def _parse(name: str) -> Packing | None:
    match = re.fullmatch(r"(\w+?)(?:_([1-9]\d*))?", name, re.ASCII)
    if match is None or name.endswith("_N"):
        return None
    if name in ALIASES:
        return PACKINGS[ALIASES[name]]
    word, number = match.groups()
    packing = PACKINGS.get(word if number is None else f"{word}_N")
    return packing and replace(packing, name=name, number=int(number or 0))


def parse_packing(name: object) -> Packing:
    """Return the packing with this name; window_N and group_N take a number."""
    packing = _parse(str(name)) if isinstance(name, str) else None
    if packing is None:
        *names, last = PACKINGS
        near = did_you_mean(name, PACKINGS) if isinstance(name, str) else ""
        raise PlanError(
            f"packing {name!r} is not known; choose {', '.join(names)} or {last} (N is a number ≥ 1){near}"
        )
    return packing


def one_each(lengths: Ints, capacity: int, max_per_row: int, number: int = 0) -> Ints:
    """Put every piece into a row alone."""
    return np.arange(lengths.size, dtype=np.int64)


def cut_stream(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Place pieces end to end; `block` has already cut them where rows end."""
    return np.asarray((np.cumsum(lengths) - lengths) // capacity, np.int64)


def _assign_sections(
    pack: Callable[[Ints, int, int], Ints],
    lengths: Ints,
    capacity: int,
    max_per_row: int,
    sections: Ints,
) -> Ints:
    """Pack one section after the other.  The emptiest row of a section stays open: pieces of the next one fill it up first.

    A section of a few pieces is packed by first fit: there may be one for every sample of a block.
    """
    rows = np.empty(lengths.size, np.int64)
    borders = [0, *(np.flatnonzero(np.diff(sections)) + 1).tolist(), lengths.size]
    sizes = lengths.tolist()
    next_row = 0
    open_row = -1
    space = 0  # of the open row
    slots = 0  # pieces that it may still take
    for first, last in pairwise(borders):
        left = []
        for piece in range(first, last):
            size = sizes[piece]
            if size <= space and slots:
                rows[piece] = open_row
                space -= size
                slots -= 1
            else:
                left.append(piece)
        if not left:
            continue
        if len(left) < _FEW_PIECES:
            few_rows, spaces, counts = _first_fit_of_few(
                [sizes[piece] for piece in left], capacity, max_per_row
            )
            for piece, row in zip(left, few_rows, strict=True):
                rows[piece] = next_row + row
        else:
            chosen = np.array(left)
            new_rows = pack(lengths[chosen], capacity, max_per_row)
            rows[chosen] = next_row + new_rows
            used = np.bincount(new_rows, weights=lengths[chosen])
            spaces = (capacity - used).astype(np.int64).tolist()
            counts = np.bincount(new_rows).tolist()
        space = max(spaces)
        emptiest = spaces.index(space)
        slots = max_per_row - counts[emptiest]
        open_row = next_row + emptiest
        next_row += len(spaces)
    return rows


def _first_fit_of_few(
    sizes: Sequence[int], capacity: int, max_per_row: int
) -> tuple[list[int], list[int], list[int]]:
    """Return the row of each piece, and the free space and the pieces of each row, as `first_fit` fills them.

    For a few pieces, lists are faster than arrays and trees.
    """
    rows = []
    spaces: list[int] = []
    counts: list[int] = []
    for size in sizes:
        for row, space in enumerate(spaces):
            if size <= space and counts[row] < max_per_row:
                break
        else:
            row = len(spaces)
            spaces.append(capacity)
            counts.append(0)
        spaces[row] -= size
        counts[row] += 1
        rows.append(row)
    return rows, spaces, counts


def mixed_fit(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Fill rows with a random half of the pieces in order, close their gaps with pieces of the other half, repeat with what is left.

    So a row holds neighbours of the block's order, which is shuffled, and one or two pieces that were chosen for their length.  Where
    lengths are so alike that many gaps stay open, only full rows are kept, and the pieces of the others are tried again: a row is full
    if it has no more free space than the mean row of `best_fit`.  Where `best_fit` still needs clearly fewer rows, and its rows are no
    more unlike each other, such as for two or three pieces per row of evenly spread lengths, its rows are taken.
    """
    rows = _fill_and_close(lengths, capacity, max_per_row, free_at_most=capacity)
    num_rows = int(rows.max(initial=-1)) + 1
    num_tokens = int(lengths.sum())
    if num_tokens >= _FULL_ENOUGH * num_rows * capacity:
        return rows
    best = _count_best_fit(lengths, capacity, max_per_row)
    if num_rows - best <= (1 - _FULL_ENOUGH) * best:
        return rows
    free_at_most = (best * capacity - num_tokens) // best
    fuller = _fill_and_close(lengths, capacity, max_per_row, free_at_most=free_at_most)
    mixed = fuller if fuller.max() < rows.max() else rows
    if mixed.max() + 1 - best <= _CLEARLY_FEWER * best:
        return mixed
    by_best_fit = best_fit(lengths, capacity, max_per_row)
    return by_best_fit if _variation(by_best_fit) <= _variation(mixed) else mixed


def _variation(rows: Ints) -> float:
    """The coefficient of variation of the number of pieces per row."""
    counts = np.bincount(rows)
    return float(counts.std() / counts.mean())


def _fill_and_close(lengths: Ints, capacity: int, max_per_row: int, *, free_at_most: int) -> Ints:
    """Return the row of each piece.  Rows with more free space than `free_at_most` are taken apart again.

    Pieces of more than half a row seldom close a gap and would be left over, so three quarters of them, not half, begin rows.
    """
    rows = np.empty(lengths.size, np.int64)
    left = np.arange(lengths.size, dtype=np.int64)  # pieces without a row
    num_tokens = int(lengths.sum())
    next_row = 0
    for turn in range(_MOST_TURNS):
        if num_tokens <= _FEW_ROWS * capacity and left.size <= _MANY_PIECES:
            break
        coins = keyed_words(turn, left.size) >> np.uint64(62)  # 0 to 3
        is_base = (coins < 2) | ((coins == 2) & (2 * lengths[left] > capacity))
        base = left[is_base]
        others = left[~is_base]
        base_rows = next_fit(lengths[base], capacity, max_per_row)
        counts = np.bincount(base_rows)
        used = np.bincount(base_rows, weights=lengths[base]).astype(np.int64)
        other_rows = _close_gaps(capacity - used, max_per_row - counts, lengths[others])
        if free_at_most < capacity:
            is_placed = other_rows >= 0
            closed = np.bincount(
                other_rows[is_placed], weights=lengths[others[is_placed]], minlength=used.size
            )
            is_full = capacity - used - closed <= free_at_most
        else:
            is_full = np.ones(used.size, np.bool_)
        # -1, no row, finds the last entry
        numbers = np.append(np.where(is_full, next_row + np.cumsum(is_full) - 1, -1), -1)
        rows[base] = numbers[base_rows]
        rows[others] = numbers[other_rows]
        left = left[rows[left] < 0]
        num_tokens = int(lengths[left].sum())
        next_row += int(np.count_nonzero(is_full))
    rows[left] = next_row + _pack_rest(lengths[left], capacity, max_per_row)
    return rows


def _pack_rest(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Pack by first fit, which mixes lengths, if that is as full as best fit and the pieces are not too many for it."""
    by_best_fit = best_fit(lengths, capacity, max_per_row)
    if lengths.size > _MANY_PIECES:
        return by_best_fit
    in_order = first_fit(lengths, capacity, max_per_row)
    return in_order if in_order.max(initial=-1) <= by_best_fit.max(initial=-1) else by_best_fit


def _close_gaps(gaps: Ints, slots: Ints, lengths: Ints) -> Ints:
    """Return the row that each piece is put into, or -1.

    gaps: free space of each row.  slots: pieces that each row may still take.  A row whose gap is exactly as long as a piece takes that
    one.  Of the others, the largest gap first, each takes the longest piece that fits, and again until none fits.  Rows with one gap are
    served together, so the cost grows with the number of different gaps and lengths.
    """
    rows = np.full(lengths.size, -1, np.int64)
    if not lengths.size or not gaps.size:
        return rows
    gaps = np.where(slots > 0, gaps, 0)
    histogram = np.bincount(lengths, minlength=int(gaps.max()) + 1)
    present = np.flatnonzero(histogram)
    shortest = int(present[0])
    slots = np.minimum(slots, gaps // shortest)  # more would not fit: rows of one gap are alike
    by_gap = np.lexsort((slots, gaps))
    sorted_gaps = gaps[by_gap]

    # Gaps that are as long as a piece: as many as there are of both.
    num_gaps = np.bincount(gaps, minlength=histogram.size)
    exact = np.minimum(num_gaps, histogram)
    exact[0] = 0
    exact_sizes = np.flatnonzero(exact)
    first_of_gap = np.searchsorted(sorted_gaps, exact_sizes)
    moves = np.stack((exact_sizes, first_of_gap, exact[exact_sizes]), axis=1).ravel().tolist()
    moves_of_rest, num_left = _close_by_longest(
        (histogram - exact)[present], present, sorted_gaps, slots[by_gap], exact, shortest
    )
    moves += (
        moves_of_rest  # three numbers each: length, first row in the order of gaps, number of rows
    )

    if moves:
        taken_lengths, first_rows, taken_rows = np.array(moves, np.int64).reshape(-1, 3).T
        by_length = np.argsort(taken_lengths, kind="stable")
        taken_rows = taken_rows[by_length]
        turn = np.arange(taken_rows.sum()) - np.repeat(
            np.cumsum(taken_rows) - taken_rows, taken_rows
        )
        placed_rows = by_gap[np.repeat(first_rows[by_length], taken_rows) + turn]
        # Pieces sorted by length: the first ones of each length are those that were taken.
        counts = histogram[present]
        inside = np.arange(lengths.size) - np.repeat(np.cumsum(counts) - counts, counts)
        is_taken: Bools = inside < np.repeat(counts - num_left, counts)
        rows[argsort_small(lengths)[is_taken]] = placed_rows
    return rows


def _close_by_longest(
    counts: Ints, present: Ints, gaps: Ints, slots: Ints, closed: Ints, shortest: int
) -> tuple[list[int], Ints]:
    """Return moves (length, first row, number of rows), and how many pieces of each length are left.

    counts: of pieces of the lengths `present`.  gaps, slots: of rows, by gap.  closed: how many rows of each gap are closed already.
    """
    sizes = present.tolist()
    num_left = counts.tolist()
    # For each size, the number of the largest one up to it that is not used up; -1 is none.  Paths are shortened when they are walked.
    numbers = np.arange(len(sizes))
    available = np.maximum.accumulate(np.where(counts > 0, numbers, -1)).tolist()

    is_new = (np.diff(gaps, prepend=-1) != 0) | (np.diff(slots, prepend=-1) != 0)
    borders = np.append(np.flatnonzero(is_new), gaps.size)
    borders = borders[np.searchsorted(borders, np.searchsorted(gaps, shortest)) :]
    group_gaps = gaps[borders[:-1]].tolist()
    group_slots = slots[borders[:-1]].tolist()
    waiting: dict[int, list[_Group]] = {}  # by gap: first row, number of rows, slots of each
    to_skip = 0  # rows of this gap that are closed
    before = 0
    for gap, num_slots, (first, last) in zip(
        group_gaps, group_slots, pairwise(borders.tolist()), strict=True
    ):
        if gap != before:
            before = gap
            to_skip = int(closed[gap])
        skipped = min(to_skip, last - first)
        to_skip -= skipped
        if first + skipped < last:
            waiting.setdefault(gap, []).append((first + skipped, last - first - skipped, num_slots))

    moves: list[int] = []
    largest = [-gap for gap in waiting]
    heapify(largest)
    while largest:
        gap = -heappop(largest)
        place = bisect_right(sizes, gap) - 1
        for first, num_rows, num_slots in waiting.pop(gap):
            while num_rows:
                chosen = available[place]
                if chosen >= 0 and available[chosen] != chosen:
                    chosen = _last_available(available, place)
                if chosen < 0:
                    break
                size = sizes[chosen]
                taken = min(num_rows, num_left[chosen])
                moves += (size, first, taken)
                num_left[chosen] -= taken
                if not num_left[chosen]:
                    available[chosen] = chosen - 1
                rest = gap - size
                if rest >= shortest and num_slots > 1:
                    if rest not in waiting:
                        heappush(largest, -rest)
                        waiting[rest] = []
                    waiting[rest].append((first, taken, num_slots - 1))
                first += taken
                num_rows -= taken
    return moves, np.array(num_left)


def _last_available(available: list[int], number: int) -> int:
    """Return the largest number up to `number` that points to itself, or -1; shorten the path to it."""
    root = number
    while root >= 0 and available[root] != root:
        root = available[root]
    while number >= 0 and available[number] != root and number != root:
        available[number], number = root, available[number]
    return root


def best_fit(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Best-fit decreasing over groups of alike rows: runs of row numbers with one free space, moved at once."""
    if not lengths.size:
        return np.empty(0, np.int64)
    first_rows, num_rows, per_row = _move_groups(np.bincount(lengths), capacity, max_per_row)
    # Moves are listed from the longest length down, and so are the pieces after a stable sort: assign rows in that order.
    taken = num_rows * per_row
    turn = np.arange(lengths.size, dtype=np.int64) - np.repeat(np.cumsum(taken) - taken, taken)
    rows_by_length = np.repeat(first_rows, taken) + turn // np.repeat(per_row, taken)
    rows = np.empty(lengths.size, np.int64)
    rows[argsort_small(capacity - lengths)] = rows_by_length
    return rows


def _count_best_fit(lengths: Ints, capacity: int, max_per_row: int) -> int:
    """Return how many rows `best_fit` makes of at least one piece."""
    first_rows, num_rows, _ = _move_groups(np.bincount(lengths), capacity, max_per_row)
    return int((first_rows + num_rows).max())


_Group = tuple[
    int, int, int
]  # first row, number of rows, pieces in each of them (in _close_gaps: that each may still take)


def _move_groups(histogram: Ints, capacity: int, max_per_row: int) -> tuple[Ints, Ints, Ints]:
    """Return moves (first row, number of rows, pieces that each row takes), from the longest length down.

    The space left in a row is shorter than the piece just placed, so spaces that are long enough form a stack, the smallest on top;
    shorter spaces wait in a heap until the lengths have come down to them.
    """
    moves: list[int] = []  # three numbers each
    stack: list[tuple[int, list[_Group]]] = []  # (free space, groups of rows with it)
    waiting: defaultdict[int, list[_Group]] = defaultdict(list)
    longest: list[int] = []  # heap of the waiting spaces, negated
    next_row = 0

    def wait(space: int, group: _Group) -> None:
        if space not in waiting:
            heappush(longest, -space)
        waiting[space].append(group)

    present = np.flatnonzero(histogram)
    shortest = int(present[0])
    for length, count in zip(
        present[::-1].tolist(), histogram[present[::-1]].tolist(), strict=True
    ):
        while longest and longest[0] <= -length:
            space = -heappop(longest)
            stack.append((space, waiting.pop(space)))
        while count:
            if stack:
                space, groups = stack[-1]
                first, rows, used = groups.pop()
            else:  # as many new rows as are needed
                space = capacity
                groups = []
                first = next_row
                rows = count
                used = 0
            each = space // length
            if each > max_per_row - used:  # twice as fast as min()
                each = max_per_row - used
            full, rest = (rows, 0) if count >= rows * each else divmod(count, each)
            count -= full * each + rest
            if full:
                moves += (first, full, each)
                if (
                    left := space - each * length
                ) >= shortest and used + each < max_per_row:  # else the row is closed
                    wait(left, (first, full, used + each))
                first += full
                rows -= full
            if rest:
                moves += (first, 1, rest)
                if (left := space - rest * length) >= shortest and used + rest < max_per_row:
                    wait(left, (first, 1, used + rest))
                first += 1
                rows -= 1
            if not stack:
                next_row = first
            elif rows:
                groups.append((first, rows, used))
            elif not groups:
                stack.pop()
    first_rows, num_rows, per_row = np.array(moves, np.int64).reshape(-1, 3).T
    return first_rows, num_rows, per_row


def first_fit(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Put each piece into the first row with room.  A tree over rows holds the largest free space below each node."""
    size = 1 << max(lengths.size - 1, 0).bit_length()
    free = [capacity] * (2 * size)
    used = [0] * size
    rows = np.empty(lengths.size, np.int64)
    for piece, length in enumerate(lengths.tolist()):
        node = 1
        while node < size:
            node *= 2
            if free[node] < length:
                node += 1
        row = node - size
        rows[piece] = row
        used[row] += 1
        free[node] = free[node] - length if used[row] < max_per_row else 0
        while node > 1 and free[node // 2] != (largest := max(free[node], free[node ^ 1])):
            node //= 2
            free[node] = largest
    return rows


def next_fit(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Fill one row until the next piece does not fit: rows are runs of the block's order."""
    total = np.concatenate(([0], np.cumsum(lengths)))
    reach = np.searchsorted(total, total[:-1] + capacity, side="right") - 1
    reach = np.minimum(reach, np.arange(lengths.size) + max_per_row).tolist()
    rows = np.zeros(lengths.size, np.int64)
    start = 0
    while start < lengths.size:
        start = reach[start]
        if start < lengths.size:
            rows[start] = 1
    return np.cumsum(rows)


def window_fit(lengths: Ints, capacity: int, max_per_row: int, window: int) -> Ints:
    """Keep `window` candidates in order, add each that fits to the open row, close the row, refill."""
    rows = np.empty(lengths.size, np.int64)
    pieces = lengths.tolist()
    candidates = list(range(min(window, len(pieces))))
    shortest = min(pieces, default=0)
    upcoming = len(candidates)
    row = 0
    while candidates:
        space = capacity
        room = max_per_row
        left = []
        for place, piece in enumerate(candidates):
            if pieces[piece] <= space:
                space -= pieces[piece]
                room -= 1
                rows[piece] = row
                if not room or space < shortest:  # full
                    left += candidates[place + 1 :]
                    break
            else:
                left.append(piece)
        refill = min(len(candidates) - len(left), len(pieces) - upcoming)
        candidates = left + list(range(upcoming, upcoming + refill))
        upcoming += refill
        row += 1
    return rows


PACKINGS = {
    packing.name: packing
    for packing in (
        Packing("mixed_fit", mixed_fit),
        Packing("best_fit", best_fit),
        Packing("first_fit", first_fit),
        Packing("next_fit", next_fit, in_order=True),
        Packing("window_N", window_fit),
        Packing("concat", cut_stream, cuts=True, in_order=True),
        Packing("none", one_each, is_packed=False, in_order=True),
        Packing("group_N", one_each, is_packed=False, in_order=True, orders=True),
    )
}

ALIASES = {"bfd": "best_fit"}  # trl's name


def argsort_small(values: Ints) -> Ints:
    """Stable argsort of non-negative integers, 16 bits at a time: numpy uses radix sort for 16-bit integers only."""
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    high = values >> 16
    return order[argsort_small(high[order])] if high.any() else order
