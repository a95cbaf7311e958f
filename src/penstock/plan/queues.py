"""The order of a source in a run whose mixture changes: what is left of its current pass, then its later passes."""

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from penstock.plan.mix import Clock
from penstock.plan.settings import PlanSettings
from penstock.plan.shuffle import SourceOrder
from penstock.types import Bools, Ints


@dataclass(frozen=True, slots=True)
class Piece:
    """Places start..stop in the order of the rows first..last of a source; with `kept`, only those of them."""

    first: int
    last: int
    start: int  # counted over all epochs of that order
    stop: int
    kept: Bools | None = None  # (stop - start,)

    @property
    def size(self) -> int:
        return self.stop - self.start if self.kept is None else int(np.count_nonzero(self.kept))

    def slice(self, start: int, stop: int) -> "Piece":
        """Return the part of this piece from its sample `start` up to `stop`."""
        if self.kept is None:
            return Piece(self.first, self.last, self.start + start, self.start + stop)
        mask = np.zeros(self.size, np.bool_)
        mask[start:stop] = True
        return self.masked(mask)

    def masked(self, mask: Bools) -> "Piece":
        """Return the samples of this piece that `mask` chooses, at least one."""
        kept = np.ones(mask.size, np.bool_) if self.kept is None else self.kept.copy()
        kept[np.flatnonzero(kept)] = mask
        found = np.flatnonzero(kept)
        low = int(found[0])
        high = int(found[-1]) + 1
        is_whole = found.size == high - low
        return Piece(
            self.first,
            self.last,
            self.start + low,
            self.start + high,
            None if is_whole else kept[low:high].copy(),
        )


class _Lead:
    """The pieces of a queue as the only epoch of an order."""

    def __init__(
        self, name: str, pieces: Sequence[Piece], order: Callable[[int, int], SourceOrder]
    ) -> None:
        self.name = name
        self._pieces = pieces
        self._order = order
        self._ends = np.cumsum([0, *(piece.size for piece in pieces)])
        self.num_samples = int(self._ends[-1])

    def window_borders(self, epoch: int) -> Ints:
        return np.array([0, self.num_samples], np.int64)

    def parts(self, start: int, stop: int) -> list[Piece]:
        """Return the pieces of places start..stop."""
        made = []
        for piece, low, high in zip(
            self._pieces, self._ends[:-1].tolist(), self._ends[1:].tolist(), strict=True
        ):
            if max(low, start) < min(high, stop):
                made.append(piece.slice(max(start - low, 0), min(stop, high) - low))
        return made

    def pass_borders(self) -> Ints:
        """Return the places at which a new pass over the source begins.

        Waiting pieces may be of several passes.  Rows that were added to a source (first > 0) end the pass in which they were added.
        """
        borders = []
        before: tuple[int, bool] | None = (
            None  # the pass of the last sample, and whether its rows were added
        )
        for piece, begin in zip(self._pieces, self._ends[:-1].tolist(), strict=True):
            if piece.first:
                before = (0 if before is None else before[0], True)
                continue
            places = np.arange(piece.start, piece.stop)
            passes = (places if piece.kept is None else places[piece.kept]) // piece.last
            if before is not None and (before[1] or before[0] != passes[0]):
                borders.append([begin])
            borders.append(begin + 1 + np.flatnonzero(np.diff(passes)))
            before = (int(passes[-1]), False)
        return np.concatenate([np.empty(0, np.int64), *borders]).astype(np.int64)

    def samples(self, start: int, stop: int) -> Ints:
        made = [np.empty(0, np.int64)]
        for piece in self.parts(start, stop):
            found = (
                self._order(piece.first, piece.last).samples(piece.start, piece.stop) + piece.first
            )
            made.append(found if piece.kept is None else found[piece.kept])
        return np.concatenate(made)


class Queue:
    """The endless sequence of one source's sample ids: pieces, then its order from epoch `epoch` on."""

    def __init__(
        self,
        name: str,
        shard_sizes: Ints,
        settings: PlanSettings,
        *,
        pieces: Sequence[Piece] = (),
        epoch: int = 0,
    ) -> None:
        self.name = name
        self._settings = settings
        self._epoch = epoch
        self._sizes = shard_sizes
        self.num_samples = int(shard_sizes.sum())
        self._orders: dict[tuple[int, int], SourceOrder] = {}
        self.lead = _Lead(name, pieces, self._order)
        self.num_first = self.lead.num_samples

    @cached_property
    def later(self) -> SourceOrder:
        return SourceOrder(self.name, self._sizes, self._settings, first_epoch=self._epoch)

    def _order(self, first: int, last: int) -> SourceOrder:
        """Return the order of rows first..last: that of the source when it ended at `last`, or of rows that were added to it."""
        if (first, last) not in self._orders:
            name = self.name if not first else f"{self.name}+{first}"
            self._orders[first, last] = SourceOrder(
                name, sizes_of_rows(self._sizes, first, last), self._settings
            )
        return self._orders[first, last]

    def samples(self, start: int, stop: int) -> Ints:
        """Return the sample ids at places start..stop."""
        size = self.num_first
        parts = [self.lead.samples(min(start, size), min(stop, size))]
        if stop > size:
            parts.append(self.later.samples(max(start - size, 0), stop - size))
        return np.concatenate(parts)

    def pass_borders(self, start: int, stop: int) -> Ints:
        """Return the places after `start` and before `stop` at which a new pass over the source begins."""
        size = self.num_first
        borders = self._lead_borders[(self._lead_borders > start) & (self._lead_borders < stop)]
        if stop <= size:
            return borders
        later = self.later.pass_borders(max(start - size, 0), stop - size) + size
        at_end = np.full(int(start < size), size, np.int64)
        return np.concatenate((borders, at_end, later))

    @cached_property
    def _lead_borders(self) -> Ints:
        return self.lead.pass_borders()

    def shards(self, start: int, stop: int) -> Ints:
        """Return the shards of places start..stop, in the order in which they are first needed."""
        shards = np.searchsorted(np.cumsum(self._sizes), self.samples(start, stop), side="right")
        return shards[np.sort(np.unique(shards, return_index=True)[1])]

    def split(self, start: int, stop: int) -> tuple[list[Piece], list[Piece], int]:
        """Return the pieces of places start..stop, the pieces after them, and the place in the later order that comes after all."""
        size = self.num_first
        first = self._epoch * self.num_samples
        taken = self.lead.parts(min(start, size), min(stop, size))
        if stop > max(start, size):
            taken.append(
                Piece(0, self.num_samples, first + max(start - size, 0), first + stop - size)
            )
        return taken, self.lead.parts(min(stop, size), size), first + max(stop - size, 0)


def sizes_of_rows(shard_sizes: Ints, first: int, last: int) -> Ints:
    """Return the shard sizes of rows first..last.  Rows from 0 on: as of a store that ends at `last`."""
    borders = np.concatenate(([0], np.cumsum(shard_sizes)))
    sizes: Ints = np.diff(np.clip(borders, first, last)).astype(np.int64)
    if first:
        return sizes[sizes > 0]
    return (
        sizes if last == borders[-1] else sizes[: int(np.searchsorted(borders, last, side="left"))]
    )


class QueueClock:
    """The clock of a queue: what is left of the current pass is its first epoch."""

    def __init__(self, queue: Queue, contribution: Callable[[Ints], Ints]) -> None:
        self.name = queue.name
        self.num_samples = queue.num_samples
        self.num_first = queue.num_first
        self._lead: Any = Clock(queue.lead, contribution)  # type: ignore[arg-type]
        self._later = Clock(queue.later, contribution)

    def place(self, amount: Fraction) -> int:
        """As Clock.place."""
        if amount <= 0:
            return 0
        total: int | None = self._lead.sum_if_at_most(amount)
        if total is None:
            return int(self._lead.place(amount))
        return self.num_first + int(self._later.place(amount - total))

    def total_if_at_most(self, amount: Fraction, *, is_first: bool) -> int | None:
        """As Clock.total_if_at_most, of the first or of a later epoch; a first epoch without any contribution counts with the next."""
        total: int | None = self._lead.sum_if_at_most(amount) if is_first else 0
        return (
            total
            if total is None or total
            else self._later.total_if_at_most(amount, is_first=False)
        )


@dataclass(frozen=True, slots=True)
class SourceCursor:
    """What a source has left: pieces of its orders that come first, then its order over `num_samples` from `place` on."""

    num_samples: int
    place: int = 0  # counted over all epochs of the source
    pieces: tuple[Piece, ...] = ()

    def queue(
        self, name: str, shard_sizes: Ints, settings: PlanSettings, *, is_full: bool
    ) -> Queue:
        """Return the order of a source from here on; its first epoch is what is left of the current pass.

        is_full: a pass that is over is followed by a whole one in this epoch.  New rows of a source come after the unseen old ones.
        """
        old = self.num_samples
        new = int(shard_sizes.sum())
        pieces = list(self.pieces)
        epoch, begun = divmod(self.place, old) if old else (0, 0)
        is_whole = not pieces and not begun and (is_full or not self.place)
        if begun:
            pieces.append(Piece(0, old, self.place, (epoch + 1) * old))
            epoch += 1
        if is_whole and new:
            pieces.append(Piece(0, new, epoch * new, (epoch + 1) * new))
            epoch += 1
        elif new > old:
            pieces.append(Piece(old, new, 0, new - old))
        return Queue(name, shard_sizes, settings, pieces=pieces, epoch=epoch)

    def as_json(self) -> list[Any]:
        pieces = [
            [p.first, p.last, p.start, p.stop, *([] if p.kept is None else [_text(p.kept)])]
            for p in self.pieces
        ]
        return [self.num_samples, self.place, pieces]

    @staticmethod
    def from_json(value: Any) -> "SourceCursor":
        num_samples, place, pieces = value
        made = []
        for first, last, start, stop, *kept in pieces:
            check_numbers(first, last, start, stop)
            if not (first < last <= num_samples and start < stop and len(kept) < 2):
                raise ValueError(
                    f"a source of {num_samples} samples has no piece {[first, last, start, stop]}"
                )
            made.append(
                Piece(first, last, start, stop, _mask(kept[0], stop - start) if kept else None)
            )
        check_numbers(num_samples, place)
        return SourceCursor(num_samples, place, tuple(made))


def _text(kept: Bools) -> str:
    return base64.b85encode(zlib.compress(np.packbits(kept).tobytes(), 9)).decode()


def _mask(text: str, size: int) -> Bools:
    num_bytes = -(-size // 8)
    found = zlib.decompressobj().decompress(base64.b85decode(text), num_bytes + 1)
    if len(found) != num_bytes:
        raise ValueError(f"a mask of {len(found)} bytes for {size} samples")
    return np.unpackbits(np.frombuffer(found, np.uint8), count=size).astype(np.bool_)


def check_numbers(*values: Any) -> None:
    """Raise ValueError unless all are whole numbers from 0 on that 64 bits hold."""
    if not all(type(value) is int and 0 <= value < 1 << 62 for value in values):
        raise ValueError(f"{list(values)} are not all whole numbers")


def rest_of(order: SourceOrder | Queue, start: int, stop: int, kept: Bools | None) -> SourceCursor:
    """Return what an order has left after its places before `stop`, of which those of `kept` from `start` on are left, too."""
    if isinstance(order, Queue):
        taken, after, place = order.split(start, stop)
    else:
        taken = [Piece(0, order.num_samples, start, stop)]
        after = []
        place = stop
    left = []
    at = 0
    for piece in taken if kept is not None else ():
        assert kept is not None
        mask = kept[at : at + piece.size]
        at += piece.size
        if mask.any():
            left.append(piece.masked(mask))
    return SourceCursor(order.num_samples, place, (*left, *after))
