"""Which tokens does a span hold, and which are trained?  Views of the memory-mapped shards; under half a microsecond a span.

A shard's mask is unpacked once and kept while its window is read.  Where that would take too much memory, bits are read as they lie.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.store import Store
from penstock.types import Bools, Ints

MASK_BYTES = 128 << 20  # of unpacked masks, a byte per token

Pieces = list[npt.NDArray[Any]]


@dataclass(slots=True)
class SpanTokens:
    """Of each span: its ids and its mask; or, where masks are not unpacked, the bytes whose bits from `skipped` on are its mask."""

    ids: Pieces
    masks: Pieces
    skipped: list[int]  # empty where masks are unpacked
    all_trained: bool  # whether the masks need no look


class SpanReader:
    """Ids and masks of spans, in order.  `window`: shards of a source that are read together; None for all of them."""

    def __init__(self, stores: Sequence[Store], window: int | None, *, mask_bytes: int = MASK_BYTES) -> None:
        self._stores = stores
        self._mask_bytes = mask_bytes
        self._masks: OrderedDict[tuple[int, int], Bools] = OrderedDict()
        # Those of a window, and as many of the next: a block may lie across their border.
        self._worth = sum(min(store.num_shards, 2 * window if window else store.num_shards) for store in stores)
        self._bytes, self._unpacks = 0, True

    def read(self, spans: np.ndarray) -> SpanTokens:
        unpacks = self._unpacks
        if len(self._stores) == 1:
            return self._read_store(0, spans, unpacks)
        nothing: Pieces = [np.empty(0)] * len(spans)
        found = SpanTokens(nothing.copy(), nothing.copy(), [] if unpacks else [0] * len(spans), True)
        for source in np.unique(spans["source"]).tolist():
            places = np.flatnonzero(spans["source"] == source)
            part = self._read_store(source, spans[places], unpacks)
            found.all_trained &= part.all_trained
            for number, place in enumerate(places.tolist()):
                found.ids[place], found.masks[place] = part.ids[number], part.masks[number]
                if not unpacks:
                    found.skipped[place] = part.skipped[number]
        return found

    def _read_store(self, source: int, spans: np.ndarray, unpacks: bool) -> SpanTokens:
        store = self._stores[source]
        shards, local = store.locate(spans["sample"])
        order = np.argsort(shards, kind="stable")
        borders = np.flatnonzero(np.diff(shards[order], prepend=-1, append=-1)).tolist()
        begins = np.empty(len(spans), np.int64)  # where each sample begins in its shard
        flat: dict[int, Any] = {}
        masks: dict[int, Any] = {}
        all_trained = True
        for first, last in pairwise(borders):
            places = order[first:last]
            shard = int(shards[places[0]])
            tokens = store.tokens(shard)
            all_trained &= tokens.counts.trained == tokens.counts.tokens
            begins[places] = tokens.offsets[local[places]]
            flat[shard] = tokens.input_ids
            masks[shard] = self._mask(source, shard, tokens) if unpacks else tokens.mask_bits
        starts, stops = begins + spans["start"], begins + spans["stop"]
        homes, starts_, stops_ = shards.tolist(), starts.tolist(), stops.tolist()
        ids = [flat[shard][start:stop] for shard, start, stop in zip(homes, starts_, stops_, strict=True)]
        if not unpacks:
            starts_, stops_ = (starts >> 3).tolist(), ((stops + 7) >> 3).tolist()
        pieces = [masks[shard][start:stop] for shard, start, stop in zip(homes, starts_, stops_, strict=True)]
        return SpanTokens(ids, pieces, [] if unpacks else (starts & 7).tolist(), all_trained)

    def _mask(self, source: int, shard: int, tokens: Any) -> Bools:
        """The whole shard's, kept."""
        mask = self._masks.get((source, shard))
        if mask is None:
            if tokens.counts.trained == tokens.counts.tokens:
                return np.broadcast_to(np.True_, tokens.counts.tokens)  # no memory
            mask = self._masks[source, shard] = tokens.loss_mask(0, tokens.counts.tokens)
            self._bytes += mask.size
            while len(self._masks) > self._worth:
                self._bytes -= self._masks.popitem(last=False)[1].size
            if self._bytes > self._mask_bytes:  # from the next batch on, bits are read as they lie
                self._unpacks, self._bytes = False, 0
                self._masks.clear()
        return mask


def is_trained(
    tokens: SpanTokens, positions: Ints, sizes: Ints, is_span: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Whether each place of a batch is trained, where masks are not unpacked: all bits are at once, and each place looks its own up.

    Segments have `sizes`, `positions` counts from 0 in each of them, and those that are no span are not trained.
    """
    num_bytes = np.fromiter(map(len, tokens.masks), np.int64, len(tokens.masks))
    ends = np.cumsum(num_bytes)
    of_padding = np.zeros((int(sizes.max()) + 7) >> 3, np.uint8)
    every = np.unpackbits(np.concatenate([*tokens.masks, of_padding]), bitorder="little").view(np.bool_)
    first = np.full(sizes.size, 8 * int(ends[-1]) if ends.size else 0, np.int64)
    first[is_span] = 8 * (ends - num_bytes) + np.array(tokens.skipped, np.int64)
    places = np.repeat(first, sizes)
    places += positions
    trained: npt.NDArray[np.bool_] = every.take(places, mode="clip")  # all are within; "clip" does not look twice
    return trained
