"""Packing: which pieces of samples share a row.  Lengths in, row numbers out.  Measured speed and fill: benchmarks/plan.py.

A packer takes the lengths of a block's pieces (each 1 ≤ length ≤ capacity), in block order, and returns one row number per piece.
`best_fit` works on the histogram of lengths: its cost grows with the number of different lengths, not with the number of pieces.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

from penstock.errors import PlanError
from penstock.types import Ints

UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class Packing:
    """One way to put pieces into rows.  A new one is an entry in `PACKINGS`."""

    name: str
    packer: Callable[
        ..., Ints
    ]  # (lengths, capacity, max_per_row[, number]) → row of each piece, rows numbered from 0
    is_packed: bool = True  # samples may share a row
    cuts: bool = False  # samples form one stream, which is cut wherever a row ends
    orders: bool = False  # rows come in runs of `number` of similar length
    number: int = 0  # N of window_N and group_N

    def assign(self, lengths: Ints, capacity: int, max_per_row: int | None) -> Ints:
        """Return the row of each piece."""
        return self.packer(
            lengths, capacity, max_per_row or UNBOUNDED, *([self.number] if self.number else [])
        )

    def count_rows(self, lengths: Ints, capacity: int, max_per_row: int | None) -> int:
        """Return how many rows `assign` makes; several times faster for `best_fit`."""
        if self.packer is best_fit and lengths.size:
            first_rows, num_rows, _ = _move_groups(
                np.bincount(lengths), capacity, max_per_row or UNBOUNDED
            )
            return int((first_rows + num_rows).max())
        return int(self.assign(lengths, capacity, max_per_row).max(initial=-1)) + 1


@lru_cache
def _parse(name: str) -> Packing | None:
    match = re.fullmatch(r"(\w+?)(?:_([1-9]\d*))?", name, re.ASCII)
    if match is None or name.endswith("_N"):
        return None
    found = PACKINGS.get(match[1] if match[2] is None else f"{match[1]}_N")
    return found and replace(found, name=name, number=int(match[2] or 0))


def parse_packing(name: object) -> Packing:
    """Return the packing with this name; window_N and group_N take a number."""
    found = _parse(str(name)) if isinstance(name, str) else None
    if found is None:
        *names, last = PACKINGS
        raise PlanError(
            f"packing {name!r} is not known; choose {', '.join(names)} or {last} (N is a number ≥ 1)"
        )
    return found


def one_each(lengths: Ints, capacity: int, max_per_row: int, number: int = 0) -> Ints:
    """Put every piece into a row alone."""
    return np.arange(lengths.size, dtype=np.int64)


def cut_stream(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Place pieces end to end; `block` has already cut them where rows end."""
    return np.asarray((np.cumsum(lengths) - lengths) // capacity, np.int64)


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


_Group = tuple[int, int, int]  # first row, number of rows, pieces in each of them


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
        Packing("best_fit", best_fit),
        Packing("first_fit", first_fit),
        Packing("next_fit", next_fit),
        Packing("window_N", window_fit),
        Packing("concat", cut_stream, cuts=True),
        Packing("none", one_each, is_packed=False),
        Packing("group_N", one_each, is_packed=False, orders=True),
    )
}


def argsort_small(values: Ints) -> Ints:
    """Stable argsort of non-negative integers, 16 bits at a time: numpy uses radix sort for 16-bit integers only."""
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    high = values >> 16
    return order[argsort_small(high[order])] if high.any() else order
