"""Which tokens does a span hold, and which are trained?  Slices of the memory-mapped shards, cut and joined in loops of C.

A slice of a memoryview costs less than one of an array, and joining bytes a third of `np.concatenate`: with a hundred spans to a step, this
is most of what a step costs.  Padding is a piece like any other, of a shard of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.store import Store
from penstock.types import Bools, Ints


@dataclass(slots=True)
class Pieces:
    """Where each piece lies: in which of some shards, from which token to which."""

    ids: list[memoryview]  # of each shard
    mask_bits: list[memoryview]  # of each shard; bit t % 8 of byte t // 8 is set where token t is trained
    all_trained: bool  # in all shards but that of padding
    homes: Ints
    starts: Ints
    stops: Ints

    def join_ids(self, first: int, last: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Of pieces first..last, end to end, in memory of its own."""
        found = _cut(self.ids, self.homes[first:last], self.starts[first:last], self.stops[first:last])
        if any(view.itemsize != np.dtype(dtype).itemsize for view in self.ids):
            found = [np.asarray(piece).astype(dtype) for piece in found]
        return np.frombuffer(bytearray().join(found), dtype)

    def join_masks(self, first: int, last: int) -> Bools:
        """Whether each of these tokens is trained."""
        starts, stops = self.starts[first:last], self.stops[first:last]
        low, high = starts >> 3, (stops + 7) >> 3
        bits = b"".join(_cut(self.mask_bits, self.homes[first:last], low, high))
        every = _view(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))
        begins = 8 * (np.cumsum(high - low) - (high - low)) + (starts & 7)
        return np.frombuffer(
            bytearray().join(map(every.__getitem__, _slices(begins, begins + stops - starts))), np.bool_
        )


class SpanReader:
    """Finds spans, and as many places of padding as a row may need."""

    def __init__(self, stores: Sequence[Store], padding: npt.NDArray[Any]) -> None:
        self._stores = stores
        self._padding = _view(padding), _view(np.zeros((padding.size + 7) // 8, np.uint8))

    def find(self, spans: np.ndarray, is_span: Bools, sizes: Ints) -> Pieces:
        """Spans in their places, and in those that are none, padding of these sizes."""
        ids, bits = ([view] for view in self._padding)
        homes, begins = np.empty((2, len(spans)), np.int64)
        all_trained = True
        for tokens, places, local in self._shards(spans):
            homes[places] = len(ids)
            begins[places] = tokens.offsets[local]
            ids.append(_view(tokens.input_ids))
            bits.append(_view(tokens.mask_bits))
            all_trained &= tokens.counts.trained == tokens.counts.tokens
        every, starts = np.zeros((2, len(is_span)), np.int64)
        every[is_span], starts[is_span] = homes, begins + spans["start"]
        return Pieces(ids, bits, all_trained, every, starts, starts + sizes)

    def _shards(self, spans: np.ndarray) -> Iterator[tuple[Any, Ints, Ints]]:
        """Every shard that spans lie in: its tokens, which spans, and the sample of each within it."""
        if len(self._stores) == 1:
            yield from _shards_of(self._stores[0], spans["sample"])
            return
        for source in np.unique(spans["source"]).tolist():
            chosen = np.flatnonzero(spans["source"] == source)
            for tokens, places, local in _shards_of(self._stores[source], spans["sample"][chosen]):
                yield tokens, chosen[places], local


def _shards_of(store: Store, samples: Ints) -> Iterator[tuple[Any, Ints, Ints]]:
    numbers, local = store.locate(samples)
    order = np.argsort(numbers, kind="stable")
    for first, last in pairwise(np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()):
        places = order[first:last]
        yield store.tokens(int(numbers[places[0]])), places, local[places]


def _view(array: npt.NDArray[Any]) -> memoryview:
    return memoryview(array)  # type: ignore[arg-type]  # numpy's types do not say that arrays are buffers


def _cut(views: list[memoryview], homes: Ints, starts: Ints, stops: Ints) -> list[Any]:
    """views[home][start:stop] for each of them."""
    return list(map(getitem, map(views.__getitem__, homes.tolist()), _slices(starts, stops)))


def _slices(starts: Ints, stops: Ints) -> Iterator[slice]:
    return map(slice, starts.tolist(), stops.tolist())
