"""Cut rows into the parts of a context-parallel group: which places of each row a rank gets, and where documents begin and end.

A document is a sample, or a piece of one, with what `align` adds to it; what fills a row up is a document without tokens.  Attention needs
both kinds of borders.  The padded ones say where documents lie; the real ones say how many tokens each has.

It needs numpy only; nothing here knows a trainer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.plan.rows import Rows
from penstock.types import Ints

CONTIGUOUS = "contiguous"
ZIGZAG = "zigzag"
STRIPED = "striped"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCut:
    """How rows are cut, and which part this rank gets."""

    split: str
    by_document: bool
    size: int
    rank: int

    @property
    def multiple(self) -> int:
        """Every row, or every document, must have a multiple of so many tokens."""
        return 2 * self.size if self.split == ZIGZAG else self.size

    def places(self, rooms: Ints) -> Ints:
        """Return the places of this rank in rows or documents of these sizes, which lie end to end."""
        begins = np.cumsum(rooms) - rooms
        if self.split == STRIPED:
            return _runs(begins + self.rank, rooms // self.size, step=self.size)
        if self.split == CONTIGUOUS:
            pieces = rooms // self.size
            return _runs(begins + self.rank * pieces, pieces)
        pieces = rooms // (2 * self.size)
        heads = begins + self.rank * pieces
        tails = begins + (2 * self.size - 1 - self.rank) * pieces
        return _runs(np.stack((heads, tails), axis=1).ravel(), np.repeat(pieces, 2))


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a batch, row by row."""

    tokens: Ints  # of each document; 0 for what fills a row up
    rooms: Ints  # places that it takes in its row

    @property
    def borders(self) -> Ints:
        """Where each document would begin, and the last end, if there were no padding."""
        return np.concatenate(([0], np.cumsum(self.tokens)))

    @property
    def padded_borders(self) -> Ints:
        """Where each document begins, and the last ends, with rows laid end to end."""
        return np.concatenate(([0], np.cumsum(self.rooms)))


def documents_of(rows: Rows, *, length: int, align: int, is_flat: bool, joined: bool) -> Documents:
    """Return the documents of rows of this length.

    is_flat: all rows are one.  joined: documents of a row are one, as with documents="joined".
    """
    tokens = rows.spans["stop"] - rows.spans["start"]
    starts = np.array([0, len(tokens)]) if is_flat else rows.starts
    if joined:
        running = np.concatenate(([0], np.cumsum(tokens)))
        tokens = np.diff(running[rows.starts])
        tokens = tokens[tokens > 0]
        has_tokens = np.diff(rows.starts) > 0
        starts = np.array([0, len(tokens)]) if is_flat else np.cumsum([0, *has_tokens])
    rooms = -(-tokens // align) * align
    used = np.diff(np.concatenate(([0], np.cumsum(rooms)))[starts])
    left = length - used
    has_rest = left > 0
    ends = starts[1:][has_rest]
    return Documents(np.insert(tokens, ends, 0), np.insert(rooms, ends, left[has_rest]))


def _runs(starts: Ints, counts: Ints, *, step: int = 1) -> Ints:
    """Return start, start + step, … of these counts, one after the other."""
    before = np.cumsum(counts) - counts
    runs: Ints = np.arange(counts.sum()) * step + np.repeat(starts - before * step, counts)
    return runs


def gather(parts: Sequence[np.ndarray], places: Sequence[np.ndarray]) -> np.ndarray:
    """Return the uncut rows of all ranks' parts.

    parts: of one array, (rows, length of a part) each.  places: the ranks' arrays `row_places`.
    """
    joined = np.concatenate(parts, axis=1)
    order = np.concatenate(places, axis=1)
    whole = np.empty_like(joined)
    np.put_along_axis(whole, order, joined, axis=1)
    return whole
