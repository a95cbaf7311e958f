"""Which tokens does a span hold, and which are trained?  Views of the memory-mapped shards; half a microsecond a span."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.store import Store
from penstock.types import Ints

Pieces = list[npt.NDArray[Any]]


@dataclass(slots=True)
class SpanTokens:
    """Of each span: its ids, and the bytes whose bits say what is trained, from bit `skipped` of the first on."""

    ids: Pieces
    bits: Pieces
    skipped: list[int]
    all_trained: bool  # whether the bits need no look


class SpanReader:
    """Ids and bits of spans, in order."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores

    def read(self, spans: np.ndarray) -> SpanTokens:
        if len(self._stores) == 1:
            return self._read_store(0, spans)
        found = SpanTokens([np.empty(0)] * len(spans), [np.empty(0)] * len(spans), [0] * len(spans), True)
        for source in np.unique(spans["source"]).tolist():
            places = np.flatnonzero(spans["source"] == source)
            part = self._read_store(source, spans[places])
            found.all_trained &= part.all_trained
            for place, ids, bits, skipped in zip(places.tolist(), part.ids, part.bits, part.skipped, strict=True):
                found.ids[place], found.bits[place], found.skipped[place] = ids, bits, skipped
        return found

    def _read_store(self, source: int, spans: np.ndarray) -> SpanTokens:
        store = self._stores[source]
        shards, local = store.locate(spans["sample"])
        opened: dict[int, tuple[Any, Any, Any]] = {}
        ids, bits, skipped, all_trained = [], [], [], True
        rows = zip(shards.tolist(), local.tolist(), spans["start"].tolist(), spans["stop"].tolist(), strict=True)
        for shard, row, start, stop in rows:  # the hot loop: one turn per span
            try:
                flat, offset_of, mask_bits = opened[shard]
            except KeyError:
                tokens = store.tokens(shard)
                all_trained &= tokens.counts.trained == tokens.counts.tokens
                flat, offset_of, mask_bits = opened[shard] = tokens.input_ids, tokens.offsets.item, tokens.mask_bits
            begin = offset_of(row)
            start += begin
            stop += begin
            ids.append(flat[start:stop])
            bits.append(mask_bits[start >> 3 : (stop + 7) >> 3])
            skipped.append(start & 7)
        return SpanTokens(ids, bits, skipped, all_trained)


def is_trained(
    tokens: SpanTokens, positions: Ints, sizes: Ints, is_span: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Whether each place of a batch is trained.  Its segments have `sizes`, `positions` counts from 0 in each, and those that
    are no span are not trained.  All bits are unpacked at once, and each place looks its own up."""
    num_bytes = np.fromiter(map(len, tokens.bits), np.int64, len(tokens.bits))
    ends = np.cumsum(num_bytes)
    of_padding = np.zeros((int(sizes.max()) + 7) >> 3, np.uint8)
    every = np.unpackbits(np.concatenate([*tokens.bits, of_padding]), bitorder="little").view(np.bool_)
    first = np.full(sizes.size, 8 * int(ends[-1]) if ends.size else 0, np.int64)
    first[is_span] = 8 * (ends - num_bytes) + np.array(tokens.skipped, np.int64)
    places = np.repeat(first, sizes)
    places += positions
    trained: npt.NDArray[np.bool_] = every.take(places, mode="clip")  # all are within; "clip" does not look twice
    return trained
