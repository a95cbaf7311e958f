"""The order in which one source gives its samples: what waits from earlier, then one pass over all samples after the other.

A pass permutes the shards, then the samples of each window of neighbouring shards together.  Access is random: place → sample id takes
O(log shards) time and O(shards) memory.  A source counts its own passes, whatever the epochs of the run are.

After a change of mixture, a source first gives the samples that no row had delivered (pieces of its earlier order), then goes on where
it was.  A source that has grown ends its pass with the new rows, and is shuffled as a whole from the next pass on.
"""

import base64
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.fingerprint import fingerprint
from penstock.plan.permutation import Permutation, derive
from penstock.plan.settings import PlanSettings
from penstock.types import Bools, Ints

_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """What the plan knows about a source: its name, its key and its sizes, never its bytes."""

    name: str
    key: str  # the store's fingerprint
    shard_sizes: Ints  # samples per shard

    def __post_init__(self) -> None:
        # A subclass of str prints, and so seeds, differently.
        object.__setattr__(self, "name", str.__str__(self.name))

    @property
    def num_samples(self) -> int:
        return int(self.shard_sizes.sum())

    def identity(self) -> list[str]:
        """Plain values that say exactly what the source is."""
        sizes = [int(size) for size in self.shard_sizes]
        return [self.name, self.key, fingerprint(sizes)[:16]]

    @property
    def digest(self) -> str:
        """The source in the summary of a plan."""
        return fingerprint(self.identity())[:8]


def sizes_of_rows(shard_sizes: Ints, first: int, last: int) -> Ints:
    """Return the shard sizes of rows first..last.  Rows from 0 on: as of a store that ends at `last`."""
    borders = np.concatenate(([0], np.cumsum(shard_sizes)))
    sizes: Ints = np.diff(np.clip(borders, first, last)).astype(np.int64)
    if first:
        return sizes[sizes > 0]
    if last == borders[-1]:
        return sizes
    return sizes[: int(np.searchsorted(borders, last, side="left"))]


class Passes:
    """The samples of some shards, pass after pass.  Places are counted over all passes."""

    def __init__(self, name: str, shard_sizes: Ints, settings: PlanSettings) -> None:
        """name: seeds the shuffle."""
        self._name = name
        self._shard_sizes = np.ascontiguousarray(shard_sizes, np.int64)
        self._shard_starts = np.concatenate(([0], np.cumsum(self._shard_sizes)))
        self.num_samples = int(self._shard_starts[-1])
        self._seed = settings.seed
        self._shuffle = settings.shuffle
        # Windows begin at these numbers in the order of the shards.
        self._windows = settings.window_borders(self._shard_sizes.size)
        # Four are kept: the end of one pass and the start of the next, of two threads.
        self._layout = lru_cache(maxsize=4)(self._make_layout)
        self._window_permutation = lru_cache(maxsize=4)(self._make_window_permutation)
        self.window_borders = lru_cache(maxsize=4)(self._make_window_borders)

    def samples(self, start: int, stop: int) -> Ints:
        """Return the sample ids at places start..stop."""
        assert start == stop or self.num_samples, "places of an empty source"
        if self.num_samples == 1:  # the most repeated kind of source has only one order
            return np.zeros(stop - start, np.int64)
        parts = [self._samples_of_pass(*part) for part in self._by_pass(start, stop)]
        return np.concatenate([_NO_IDS, *parts])

    def shards(self, start: int, stop: int) -> Ints:
        """Return the shards that are needed for places start..stop, in order; a shard may come several times.

        With shuffle, the samples of a window are mixed, so any of its places may need any of its shards.
        """
        parts = [_NO_IDS]
        for number, first, last in self._by_pass(start, stop):
            order, ends = self._layout(number)
            groups = self._windows if self._shuffle else np.arange(order.size + 1)
            group_ends = ends[groups[1:] - 1]
            low = int(np.searchsorted(group_ends, first, side="right"))
            high = int(np.searchsorted(group_ends, last - 1, side="right"))
            parts.append(order[groups[low] : groups[high + 1]])
        return np.concatenate(parts)

    def _by_pass(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (pass, first, last) for the part of places start..stop that lies in each pass."""
        while start < stop:
            number, first = divmod(start, self.num_samples)
            last = min(first + stop - start, self.num_samples)
            yield number, first, last
            start += last - first

    def _samples_of_pass(self, number: int, start: int, stop: int) -> Ints:
        places = np.arange(start, stop, dtype=np.int64)
        if not self._shuffle:
            return places
        borders = self.window_borders(number)
        low, high = np.searchsorted(borders, (start, stop - 1), side="right").tolist()
        for window in range(low - 1, high):
            first = int(borders[window])
            end = int(borders[window + 1])
            inside = places[max(first - start, 0) : end - start]
            permutation = self._window_permutation(number, window, end - first)
            inside[:] = permutation[inside - first] + first
        order, ends = self._layout(number)
        turn = np.searchsorted(ends, places, side="right")
        shard = order[turn]
        start_of_shard = ends[turn] - self._shard_sizes[shard]  # its place in this pass
        return places - start_of_shard + self._shard_starts[shard]

    def _make_layout(self, number: int) -> tuple[Ints, Ints]:
        """Return the order of the shards in a pass, and the place at which each of them ends."""
        order = np.arange(self._shard_sizes.size, dtype=np.int64)
        if self._shuffle:
            seed = derive(self._seed, "shuffle", self._name, number, "shards")
            order = Permutation(order.size, seed).index(order)
        return order, np.cumsum(self._shard_sizes[order])

    def _make_window_borders(self, number: int) -> Ints:
        """Return the places in a pass at which windows begin; the last entry is the length of the pass."""
        _, ends = self._layout(number)
        return np.concatenate(([0], ends))[self._windows]

    def _make_window_permutation(self, number: int, window: int, size: int) -> Permutation:
        seed = derive(self._seed, "shuffle", self._name, number, "window", window)
        return Permutation(size, seed)


@dataclass(frozen=True, slots=True)
class Piece:
    """Places start..stop in the passes over the rows first..last of a source; with `kept`, only those of them."""

    first: int
    last: int
    start: int  # counted over all passes over these rows
    stop: int
    kept: Bools | None = None  # (stop - start,)

    @property
    def size(self) -> int:
        return self.stop - self.start if self.kept is None else int(np.count_nonzero(self.kept))

    def passes(self) -> Ints:
        """Return the passes that the samples of this piece are of, ascending: of all of them, or without `kept` of the first and last."""
        if self.kept is None:
            return np.array([self.start, self.stop - 1]) // self.last
        return (np.flatnonzero(self.kept) + self.start) // self.last

    def pass_of_samples(self) -> Ints:
        """Return the pass over its rows that each sample of this piece is of."""
        places = np.arange(self.start, self.stop, dtype=np.int64)
        if self.kept is not None:
            places = places[self.kept]
        return places // (self.last - self.first)

    def pass_borders(self) -> Ints:
        """Return which samples of this piece are the first of their pass; not the first sample of the piece."""
        if self.kept is None:
            first = (self.start // self.last + 1) * self.last
            return np.arange(first, self.stop, self.last, dtype=np.int64) - self.start
        return 1 + np.flatnonzero(np.diff(self.passes()))

    def slice(self, start: int, stop: int) -> "Piece":
        """Return the part of this piece from its sample `start` up to `stop`."""
        if self.kept is None:
            return Piece(self.first, self.last, self.start + start, self.start + stop)
        mask = np.zeros(self.size, np.bool_)
        mask[start:stop] = True
        return self.masked(mask)

    def masked(self, mask: Bools) -> "Piece":
        """Return the samples of this piece that `mask` chooses, at least one; `mask` has an entry for each sample that is kept now."""
        # places count from `start`; a piece that keeps everything has a place for each entry of the mask
        places_now = np.arange(mask.size) if self.kept is None else np.flatnonzero(self.kept)
        places = places_now[mask]
        low = int(places[0])
        high = int(places[-1]) + 1
        kept = None  # every sample between low and high
        if places.size < high - low:
            kept = np.zeros(high - low, np.bool_)
            kept[places - low] = True
        return Piece(self.first, self.last, self.start + low, self.start + high, kept)


class SourceOrder:
    """The endless sequence of one source's sample ids: its first part is given as pieces, then come whole passes."""

    def __init__(
        self,
        name: str,
        shard_sizes: Ints,
        settings: PlanSettings,
        *,
        pieces: Sequence[Piece] = (),
        first_pass: int = 0,
    ) -> None:
        """first_pass: the first of the passes after the pieces."""
        self.name = name
        self._shard_sizes = shard_sizes
        self._settings = settings
        self._passes = Passes(name, shard_sizes, settings)
        self._passes_of_rows: dict[tuple[int, int], Passes] = {}  # of other rows than all
        self._first_pass = first_pass
        self.num_samples = self._passes.num_samples
        self.pieces = tuple(pieces)
        self._piece_borders = np.cumsum([0, *(piece.size for piece in pieces)]).tolist()
        self.num_first = int(self._piece_borders[-1])  # samples of the first part
        self._first_pass_borders = self._find_pass_borders()

    @property
    def begins_with_pass(self) -> bool:
        """Whether the first part is one whole pass, so that it contributes what every later pass does."""
        size = self.num_samples
        if len(self.pieces) != 1:
            return False
        (piece,) = self.pieces
        is_pass = piece.kept is None and piece.last == piece.size == size
        return is_pass and not piece.start % size

    def samples(self, start: int, stop: int) -> Ints:
        """Return the sample ids at places start..stop."""
        parts = [self._samples_of(piece) for piece in self._pieces_between(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate([_NO_IDS, *parts])

    def passes(self, start: int, stop: int) -> Ints:
        """Return the pass that the sample at each of the places start..stop is of; no sample comes twice in one pass."""
        parts = [piece.pass_of_samples() for piece in self._pieces_between(start, stop)]
        return np.concatenate([_NO_IDS, *parts])

    def shards(self, start: int, stop: int) -> Ints:
        """Return the shards that are needed for places start..stop, in the order in which they are first needed."""
        parts = [_NO_IDS]
        for piece in self._pieces_between(start, stop):
            if piece.first or piece.kept is not None:
                samples = self._samples_of(piece)
                parts.append(np.searchsorted(np.cumsum(self._shard_sizes), samples, side="right"))
            else:
                parts.append(self._passes_over(piece).shards(piece.start, piece.stop))
        shards = np.concatenate(parts)
        first_uses = np.unique(shards, return_index=True)[1]
        return shards[np.sort(first_uses)]

    def pass_borders(self, start: int, stop: int) -> Ints:
        """Return the places after `start` and before `stop` at which a new pass over the source begins."""
        size = max(self.num_samples, 1)
        if start < self.num_first:
            first = self.num_first
        else:
            passes_begun = (start - self.num_first) // size + 1
            first = self.num_first + passes_begun * size
        later = np.arange(first, stop, size, dtype=np.int64)
        borders = self._first_pass_borders
        return np.concatenate((borders[(borders > start) & (borders < stop)], later))

    def window_borders(self, part: int) -> Ints:
        """Return where windows begin inside the first part (0) or a pass after it (1, 2, …), and the length of that part."""
        if part:
            return self._passes.window_borders(self._first_pass + part - 1)
        if self.begins_with_pass:
            return self._passes.window_borders(self.pieces[0].start // self.num_samples)
        return np.array([0, self.num_first], np.int64)

    def cursor(self, start: int, stop: int, is_left: Bools | None) -> "SourceCursor":
        """Return what is left after the places before `stop`; those of `is_left`, counted from `start` on, are left, too."""
        pieces = []
        if is_left is not None:
            done = 0
            for piece in self._pieces_between(start, stop):
                mask = is_left[done : done + piece.size]
                done += piece.size
                if mask.any():
                    pieces.append(piece.masked(mask))
        pieces += self._pieces_between(stop, max(stop, self.num_first))
        place = self._place_in_passes(max(stop, self.num_first))
        if pieces:
            last = pieces[-1]
            goes_on = last.kept is None and (last.first, last.last) == (0, self.num_samples)
            # The rest of a pass that has begun, or a first pass, is described by the place alone.
            if goes_on and last.stop == place and (last.start % self.num_samples or not last.start):
                pieces.pop()
                place = last.start
        return SourceCursor(self.num_samples, place, tuple(pieces))

    def _pieces_between(self, start: int, stop: int) -> list[Piece]:
        """Return the pieces that fill places start..stop: parts of the given ones, then one of the passes after them."""
        pieces = []
        for piece, piece_start, piece_stop in zip(
            self.pieces, self._piece_borders[:-1], self._piece_borders[1:], strict=True
        ):
            shared_start = max(piece_start, start)
            shared_stop = min(piece_stop, stop)
            if shared_start < shared_stop:
                pieces.append(piece.slice(shared_start - piece_start, shared_stop - piece_start))
        later_start = max(start, self.num_first)
        if later_start < stop:
            first_place = self._place_in_passes(later_start)
            last_place = self._place_in_passes(stop)
            pieces.append(Piece(0, self.num_samples, first_place, last_place))
        return pieces

    def _place_in_passes(self, place: int) -> int:
        """Return where a place of the sequence, not before `num_first`, is in the passes over all samples."""
        return self._first_pass * self.num_samples + place - self.num_first

    def _samples_of(self, piece: Piece) -> Ints:
        samples = self._passes_over(piece).samples(piece.start, piece.stop)
        if piece.first:
            samples = samples + piece.first
        return samples if piece.kept is None else samples[piece.kept]

    def _passes_over(self, piece: Piece) -> Passes:
        """Return the passes over the rows of a piece: those of the source when it ended there, or of rows that were added to it."""
        rows = (piece.first, piece.last)
        if rows == (0, self.num_samples):
            return self._passes
        if rows not in self._passes_of_rows:
            name = f"{self.name}+{piece.first}" if piece.first else self.name
            sizes = sizes_of_rows(self._shard_sizes, *rows)
            self._passes_of_rows[rows] = Passes(name, sizes, self._settings)
        return self._passes_of_rows[rows]

    def _find_pass_borders(self) -> Ints:
        """Return the places inside the first part at which a new pass over the source begins.

        Waiting pieces may be of several passes.  Rows that were added to a source (first > 0) end the pass in which they were added.
        """
        borders = [_NO_IDS]
        last_pass: int | None = None  # of the sample before
        is_added = False  # whether the sample before is one of the rows that were added
        for piece, begin in zip(self.pieces, self._piece_borders[:-1], strict=True):
            if piece.first:
                last_pass = last_pass or 0
                is_added = True
                continue
            passes = piece.passes()
            if last_pass is not None and (is_added or last_pass != passes[0]):
                borders.append(np.array([begin]))
            borders.append(begin + piece.pass_borders())
            last_pass = int(passes[-1])
            is_added = False
        return np.concatenate(borders)


@dataclass(frozen=True, slots=True)
class SourceCursor:
    """What a source has left: pieces of its orders that come first, then its passes over `num_samples` from `place` on."""

    num_samples: int
    place: int = 0  # counted over all passes
    pieces: tuple[Piece, ...] = ()

    def order(
        self, name: str, shard_sizes: Ints, settings: PlanSettings, *, is_full: bool
    ) -> SourceOrder:
        """Return the order of the source from here on; its first part is what is left of the current pass.

        is_full: a pass that is over is followed by a whole one in the first part.  New rows of a source come after the unseen old ones.
        """
        old = self.num_samples
        new = int(shard_sizes.sum())
        pieces = list(self.pieces)
        number, begun = divmod(self.place, old) if old else (0, 0)
        is_whole = not pieces and not begun and (is_full or not self.place)
        if begun:
            pieces.append(Piece(0, old, self.place, (number + 1) * old))
            number += 1
        if is_whole and new:
            pieces.append(Piece(0, new, number * new, (number + 1) * new))
            number += 1
        elif new > old:
            pieces.append(Piece(old, new, 0, new - old))
        return SourceOrder(name, shard_sizes, settings, pieces=pieces, first_pass=number)

    def as_json(self) -> list[Any]:
        pieces = []
        for piece in self.pieces:
            values: list[Any] = [piece.first, piece.last, piece.start, piece.stop]
            if piece.kept is not None:
                values.append(_mask_as_text(piece.kept))
            pieces.append(values)
        return [self.num_samples, self.place, pieces]

    @staticmethod
    def from_json(value: Any) -> "SourceCursor":
        num_samples, place, pieces = value
        check_numbers(num_samples, place)
        return SourceCursor(
            num_samples, place, tuple(_piece_from_json(values, num_samples) for values in pieces)
        )


def _piece_from_json(value: Any, num_samples: int) -> Piece:
    first, last, start, stop, *mask = value
    check_numbers(first, last, start, stop)
    if not (first < last <= num_samples and start < stop and len(mask) < 2):
        raise ValueError(
            f"a source of {num_samples} samples has no piece {[first, last, start, stop]}"
        )
    kept = _mask_from_text(mask[0], stop - start) if mask else None
    return Piece(first, last, start, stop, kept)


def _mask_as_text(mask: Bools) -> str:
    return base64.b85encode(zlib.compress(np.packbits(mask).tobytes(), 9)).decode()


def _mask_from_text(text: str, size: int) -> Bools:
    num_bytes = -(-size // 8)
    # One byte more than expected is enough to refuse a text that would fill the memory.
    content = zlib.decompressobj().decompress(base64.b85decode(text), num_bytes + 1)
    if len(content) != num_bytes:
        raise ValueError(f"a mask of {len(content)} bytes for {size} samples")
    return np.unpackbits(np.frombuffer(content, np.uint8), count=size).astype(np.bool_)


def check_numbers(*values: Any) -> None:
    """Raise ValueError unless all are whole numbers from 0 on that 64 bits hold."""
    if not all(type(value) is int and 0 <= value < 1 << 62 for value in values):
        raise ValueError(f"{list(values)} are not all whole numbers")
