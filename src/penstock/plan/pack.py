"""Which pieces share a row?  Lengths in, row numbers out.  Measured speed and fill: benchmarks/plan.py.

Every packer takes the lengths of a block's pieces (each 1 ≤ length ≤ capacity), in block order, and returns one row number per piece.
`best_fit` works on the histogram of lengths: its cost grows with the number of different lengths, not with the number of pieces.
"""

import re
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from penstock.errors import PlanError
from penstock.types import Ints

Packer = Callable[[Ints, int, int], Ints]  # (lengths, capacity, max_per_row) → row of each piece, rows numbered from 0

UNBOUNDED = 1 << 62


def packer(name: str) -> Packer:
    """The packer called `name`; `concat` and `group_N` shape pieces or order and are handled by the block."""
    if match := re.fullmatch(r"window_(\d+)", name):
        return lambda lengths, capacity, bound: window_fit(lengths, capacity, bound, int(match[1]))
    known: dict[str, Packer] = {"best_fit": best_fit, "first_fit": first_fit, "next_fit": next_fit, "none": one_each}
    return one_each if re.fullmatch(r"group_(\d+)", name) else known[name]


def check_packing(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(
        r"best_fit|first_fit|next_fit|concat|none|(window|group)_[1-9]\d*", name
    ):
        raise PlanError(
            f"packing {name!r} is not known; choose best_fit, first_fit, next_fit, window_N, concat, none or group_N (N a number ≥ 1)"
        )
    return name


def one_each(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    return np.arange(lengths.size, dtype=np.int64)


def best_fit(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Best-fit decreasing over groups of alike rows: runs of row numbers with one free space, moved at once."""
    if not lengths.size:
        return np.empty(0, np.int64)
    histogram = np.bincount(lengths)
    first_rows, num_rows, per_row = _move_groups(histogram, capacity, max_per_row)
    # The moves are listed from the longest length down, and so are the pieces after a stable sort: hand the rows out in that order.
    taken = num_rows * per_row
    turn = np.arange(lengths.size, dtype=np.int64) - np.repeat(np.cumsum(taken) - taken, taken)
    rows_by_length = np.repeat(first_rows, taken) + turn // np.repeat(per_row, taken)
    rows = np.empty(lengths.size, np.int64)
    rows[argsort_small(capacity - lengths)] = rows_by_length
    return rows


def count_best_fit(lengths: Ints, capacity: int, max_per_row: int) -> int:
    """How many rows `best_fit` makes, without handing out a single one."""
    if not lengths.size:
        return 0
    first_rows, num_rows, _ = _move_groups(np.bincount(lengths), capacity, max_per_row)
    return int((first_rows + num_rows).max())


def _move_groups(histogram: Ints, capacity: int, max_per_row: int) -> tuple[Ints, Ints, Ints]:
    """Moves (first row, number of rows, pieces each row takes), from the longest length down.

    What is left of a space is shorter than the piece that was put there, so spaces that are long enough form a stack, the smallest on top;
    those that are not yet wait in a heap until the lengths have come down to them.
    """
    moves: list[int] = []  # three numbers each
    stack: list[
        tuple[int, list[tuple[int, int, int]]]
    ] = []  # (free space, [(first row, number of rows, pieces in each)])
    waiting: dict[int, list[tuple[int, int, int]]] = {}
    longest: list[int] = []  # the spaces that wait, negative: a heap
    next_row = 0

    def put(space: int, group: tuple[int, int, int]) -> None:
        if space in waiting:
            waiting[space].append(group)
        else:
            waiting[space] = [group]
            heappush(longest, -space)

    present = np.flatnonzero(histogram)
    shortest = int(present[0])
    for length, count in zip(present[::-1].tolist(), histogram[present[::-1]].tolist(), strict=True):
        while longest and longest[0] <= -length:
            space = -heappop(longest)
            stack.append((space, waiting.pop(space)))
        while count:
            if stack:
                space, groups = stack[-1]
                first, rows, used = groups[-1]
            else:  # as many new rows as are needed
                space, groups, first, rows, used = capacity, [], next_row, count, 0
            each = space // length
            if each > max_per_row - used:
                each = max_per_row - used
            full, rest = (rows, 0) if count >= rows * each else (count // each, count % each)
            count -= full * each + rest
            # A row is closed where nothing will fit any more.
            if full:
                moves += (first, full, each)
                if (left := space - each * length) >= shortest and used + each < max_per_row:
                    put(left, (first, full, used + each))
                first += full
                rows -= full
            if rest:
                moves += (first, 1, rest)
                if (left := space - rest * length) >= shortest and used + rest < max_per_row:
                    put(left, (first, 1, used + rest))
                first += 1
                rows -= 1
            if not groups:
                next_row = first
            elif rows:
                groups[-1] = (first, rows, used)
            elif len(groups) > 1:
                groups.pop()
            else:
                stack.pop()
    first_rows, num_rows, per_row = np.array(moves, np.int64).reshape(-1, 3).T
    return first_rows, num_rows, per_row


def first_fit(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Each piece, in order, into the first row that still has room: a tree over rows holds the largest free space below each node."""
    size = 1
    while size < lengths.size:
        size *= 2
    free = [capacity] * (2 * size)
    used = [0] * lengths.size
    rows = np.empty(lengths.size, np.int64)
    for i, length in enumerate(lengths.tolist()):
        node = 1
        while node < size:
            node *= 2
            if free[node] < length:
                node += 1
        row = node - size
        rows[i] = row
        used[row] += 1
        free[node] = free[node] - length if used[row] < max_per_row else 0
        node //= 2
        while node:
            largest = max(free[2 * node], free[2 * node + 1])
            if free[node] == largest:
                break
            free[node] = largest
            node //= 2
    return rows


def next_fit(lengths: Ints, capacity: int, max_per_row: int) -> Ints:
    """Fill one row until the next piece does not fit: rows are runs of the block order."""
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
    """Hold `window` candidates in order, add each that fits to the open row, close the row, refill."""
    rows = np.empty(lengths.size, np.int64)
    pieces = lengths.tolist()
    candidates = list(range(min(window, len(pieces))))
    shortest = min(pieces, default=0)
    upcoming = len(candidates)
    row = 0
    while candidates:
        space, room = capacity, max_per_row
        left = []
        for place, piece in enumerate(candidates):
            if pieces[piece] <= space:
                space -= pieces[piece]
                room -= 1
                rows[piece] = row
                if not room or space < shortest:  # full: the rest need not be looked at
                    left += candidates[place + 1 :]
                    break
            else:
                left.append(piece)
        refill = min(len(candidates) - len(left), len(pieces) - upcoming)
        candidates = left + list(range(upcoming, upcoming + refill))
        upcoming += refill
        row += 1
    return rows


def argsort_small(values: Ints) -> Ints:
    """Stable argsort of non-negative integers, 16 bits at a time: numpy sorts 16-bit integers by radix, wider ones by comparison."""
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    shift = 16
    top = int(values.max()) if values.size else 0
    while top >> shift:
        digits = ((values >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
        shift += 16
    return order
