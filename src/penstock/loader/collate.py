"""What does the model see?  Spans of samples → arrays.  Shifting, ignore-index, padding and positions are a model's convention."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.plan.block import Rows
from penstock.store import Store

IGNORE = -100  # a label that no loss looks at


class Collator:
    """Rows of `max_length` tokens.  Padding stands at the end of a row and is a segment of its own in `cu_seqlens`."""

    def __init__(self, stores: Sequence[Store], *, max_length: int, align: int, pad_id: int) -> None:
        self._stores = stores
        self._max_length = max_length
        self._align = align
        self._pad_id = pad_id

    def __call__(self, rows: Rows) -> dict[str, Any]:
        """input_ids, labels, position_ids, seq_idx: (num_rows, max_length); cu_seqlens over the rows laid end to end."""
        shape = (rows.num_rows, self._max_length)
        input_ids = np.full(shape, self._pad_id, np.int64)
        labels = np.full(shape, IGNORE, np.int64)
        position_ids = np.zeros(shape, np.int64)
        seq_idx = np.full(shape, -1, np.int32)  # -1 is padding
        borders = [0]
        for r in range(rows.num_rows):
            place = 0
            for number, (source, sample, start, stop) in enumerate(rows[r].tolist()):
                end = place + stop - start
                ids, mask = self._tokens(source, sample, start, stop)
                input_ids[r, place:end] = ids
                # The first token of a piece would be predicted from another sample, or from nothing: it is no target.
                np.copyto(labels[r, place + 1 : end], input_ids[r, place + 1 : end], where=mask[1:])
                room = (
                    -(-(stop - start) // self._align) * self._align
                )  # what alignment adds belongs to the sample's segment
                position_ids[r, place : place + room] = np.arange(room)
                seq_idx[r, place:end] = number
                place += room
                borders.append(r * self._max_length + place)
            if place < self._max_length:
                position_ids[r, place:] = np.arange(self._max_length - place)
                borders.append((r + 1) * self._max_length)
        cu_seqlens = np.array(borders, np.int32)
        return {
            "input_ids": input_ids,
            "labels": labels,
            "position_ids": position_ids,
            "cu_seqlens": cu_seqlens,
            "max_seqlen": int(np.diff(cu_seqlens).max()) if len(borders) > 1 else 0,
            "seq_idx": seq_idx,
        }

    def _tokens(self, source: int, sample: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        whole = self._stores[source][sample]
        return whole.input_ids[start:stop], whole.loss_mask[start:stop]
