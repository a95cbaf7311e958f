"""Which tokens does a span hold?  Views of the memory-mapped shards, found for a whole batch at once; about a microsecond a span."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.store import Store
from penstock.types import Bools

_MAX_MASKS = 64  # unpacked masks kept, a byte per token: as many as a window of shards needs, and some

Ids = npt.NDArray[Any]


class SpanReader:
    """Ids and masks of spans.  With `keep_masks`, a shard's mask is unpacked once and kept while its window is read."""

    def __init__(self, stores: Sequence[Store], *, keep_masks: bool) -> None:
        self._stores = stores
        self._keep_masks = keep_masks
        self._masks: OrderedDict[tuple[int, int], Bools] = OrderedDict()
        self._ones = np.ones(1 << 16, np.bool_)

    def read(self, spans: np.ndarray) -> tuple[list[Ids], list[Bools]]:
        """Ids and masks of each span, in order."""
        if len(self._stores) == 1:
            return self._read_store(0, spans)
        ids: list[Any] = [None] * len(spans)
        masks: list[Any] = [None] * len(spans)
        for source in np.unique(spans["source"]).tolist():
            places = np.flatnonzero(spans["source"] == source)
            for place, piece, mask in zip(places.tolist(), *self._read_store(source, spans[places]), strict=True):
                ids[place], masks[place] = piece, mask
        return ids, masks

    def _read_store(self, source: int, spans: np.ndarray) -> tuple[list[Ids], list[Bools]]:
        store = self._stores[source]
        shards, local = store.locate(spans["sample"])
        opened = {shard: self._open(source, shard) for shard in np.unique(shards).tolist()}
        ids, masks = [], []
        rows = zip(shards.tolist(), local.tolist(), spans["start"].tolist(), spans["stop"].tolist(), strict=True)
        for shard, row, start, stop in rows:  # the hot loop: one turn per span
            tokens, flat, offset_of, whole = opened[shard]
            begin = offset_of(row)
            first, last = begin + start, begin + stop
            ids.append(flat[first:last])
            if whole is not None:
                masks.append(whole[first:last])
            elif tokens.counts.trained == tokens.counts.tokens:
                masks.append(self._all(last - first))
            else:
                masks.append(tokens.loss_mask(first, last))
        return ids, masks

    def _open(self, source: int, shard: int) -> tuple[Any, Ids, Any, Bools | None]:
        """(shard, its ids, offset of a row, its whole mask where it is kept)."""
        tokens = self._stores[source].tokens(shard)
        whole = None
        if self._keep_masks and tokens.counts.trained < tokens.counts.tokens:
            whole = self._masks.get((source, shard))
            if whole is None:
                whole = self._masks[source, shard] = tokens.loss_mask(0, tokens.counts.tokens)
                while len(self._masks) > _MAX_MASKS:
                    self._masks.popitem(last=False)
        return tokens, tokens.input_ids, tokens.offsets.item, whole

    def _all(self, size: int) -> Bools:
        while size > len(self._ones):
            self._ones = np.ones(2 * len(self._ones), np.bool_)
        return self._ones[:size]
