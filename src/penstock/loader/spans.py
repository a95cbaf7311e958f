"""Which tokens does a span hold, and which are trained?  Slices of the memory-mapped shards, cut and joined in loops of C.

A slice of a memoryview costs a third of one of an array, and joining bytes a third of `np.concatenate`: with a hundred spans to a step,
that is what a step costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.store import Store
from penstock.types import Ints

Pieces = list[Any]  # of memory, each in one piece


@dataclass(slots=True)
class SpanTokens:
    """Of each span: its ids, all of one type, and whether each is trained, a byte each; None where all of all spans are."""

    ids: Pieces
    masks: Pieces | None


class SpanReader:
    """Ids, as `dtype`, and masks of spans, in order."""

    def __init__(self, stores: Sequence[Store], dtype: npt.DTypeLike) -> None:
        self._stores = stores
        self._dtype = np.dtype(dtype)

    def read(self, spans: np.ndarray) -> SpanTokens:
        shards: list[Any] = []  # those that are needed
        homes, begins = np.empty(
            (2, len(spans)), np.int64
        )  # of each span: which of them, and where its sample begins there
        for tokens, places, local in self._shards(spans):
            homes[places] = len(shards)
            begins[places] = tokens.offsets[local]
            shards.append(tokens)
        starts, stops = begins + spans["start"], begins + spans["stop"]
        home_of = homes.tolist()
        ids = _cut([tokens.input_ids for tokens in shards], home_of, starts, stops)
        if any(tokens.input_ids.dtype != self._dtype for tokens in shards):
            ids = [np.asarray(piece).astype(self._dtype, copy=False) for piece in ids]
        if all(tokens.counts.trained == tokens.counts.tokens for tokens in shards):
            return SpanTokens(ids, None)
        first, last = starts >> 3, (stops + 7) >> 3
        bits = bytearray().join(_cut([tokens.mask_bits for tokens in shards], home_of, first, last))
        every = view(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))
        before = np.cumsum(last - first) - (last - first)
        inside = 8 * before + (starts & 7)
        return SpanTokens(ids, list(map(every.__getitem__, _slices(inside, inside + stops - starts))))

    def _shards(self, spans: np.ndarray) -> Iterator[tuple[Any, Ints, Ints]]:
        """Every shard that spans lie in: its tokens, which spans, and the sample of each within it."""
        for source in range(len(self._stores)) if len(self._stores) > 1 else ():
            chosen = np.flatnonzero(spans["source"] == source)
            for tokens, places, local in self._shards_of(self._stores[source], spans["sample"][chosen]):
                yield tokens, chosen[places], local
        if len(self._stores) == 1:
            yield from self._shards_of(self._stores[0], spans["sample"])

    @staticmethod
    def _shards_of(store: Store, samples: Ints) -> Iterator[tuple[Any, Ints, Ints]]:
        numbers, local = store.locate(samples)
        order = np.argsort(numbers, kind="stable")
        for first, last in pairwise(np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()):
            places = order[first:last]
            yield store.tokens(int(numbers[places[0]])), places, local[places]


def joined(pieces: Pieces, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Pieces of memory end to end, as an array of their own."""
    return np.frombuffer(bytearray().join(pieces), dtype)


def view(array: npt.NDArray[Any]) -> memoryview:
    return memoryview(array)  # type: ignore[arg-type]  # numpy's types do not say that arrays are buffers


def _cut(arrays: list[npt.NDArray[Any]], homes: list[int], starts: Ints, stops: Ints) -> Pieces:
    """arrays[home][start:stop] for each of them."""
    views = list(map(view, arrays))
    return list(map(getitem, map(views.__getitem__, homes), _slices(starts, stops)))


def _slices(starts: Ints, stops: Ints) -> Iterator[slice]:
    return map(slice, starts.tolist(), stops.tolist())
