"""Which tokens does a span hold?  Views of the memory-mapped shards, found for a whole batch at once."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.store import Store
from penstock.types import Bools

_MAX_MASKS = 64  # unpacked masks kept, a byte per token: as many as a window of shards needs, and some

Piece = tuple[npt.NDArray[Any], Bools]  # ids and loss mask of one span


class SpanReader:
    """Ids and masks of spans.  With `keep_masks`, a shard's mask is unpacked once and kept while its window is read."""

    def __init__(self, stores: Sequence[Store], *, keep_masks: bool) -> None:
        self._stores = stores
        self._keep_masks = keep_masks
        self._masks: OrderedDict[tuple[int, int], Bools] = OrderedDict()
        self._ones = np.ones(1 << 16, np.bool_)

    def read(self, spans: np.ndarray) -> list[Piece]:
        out: list[Any] = [None] * len(spans)
        for source in np.unique(spans["source"]).tolist():
            places = np.flatnonzero(spans["source"] == source)
            store = self._stores[source]
            shards, local = store.locate(spans["sample"][places])
            starts, stops = spans["start"][places].tolist(), spans["stop"][places].tolist()
            for place, shard, row, start, stop in zip(
                places.tolist(), shards.tolist(), local.tolist(), starts, stops, strict=True
            ):
                tokens = store.tokens(shard)
                begin = tokens.offsets.item(row)
                out[place] = (
                    tokens.input_ids[begin + start : begin + stop],
                    self._mask(source, shard, tokens, begin + start, begin + stop),
                )
        return out

    def _mask(self, source: int, shard: int, tokens: Any, start: int, stop: int) -> Bools:
        if tokens.counts.trained == tokens.counts.tokens:
            while stop - start > len(self._ones):
                self._ones = np.ones(2 * len(self._ones), np.bool_)
            return self._ones[: stop - start]
        if not self._keep_masks:
            mask: Bools = tokens.loss_mask(start, stop)
            return mask
        key = (source, shard)
        whole = self._masks.get(key)
        if whole is None:
            whole = self._masks[key] = tokens.loss_mask(0, tokens.counts.tokens)
            while len(self._masks) > _MAX_MASKS:
                self._masks.popitem(last=False)
        return whole[start:stop]
