"""What does the model see?  Spans of samples → arrays.  Shifting, ignore-index, padding and positions are a model's convention.

One concatenation of views of the memory-mapped shards fills each array: no Python object per token, one per span.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loader.form import BatchForm
from penstock.loader.spans import SpanReader
from penstock.plan.block import Rows
from penstock.plan.settings import PlanSettings
from penstock.store import Store
from penstock.types import Ints

IGNORE = -100  # a label that no loss looks at
PADDING = -1  # the document number of padding


@dataclass(slots=True)
class _Layout:
    """Segments laid end to end: a span with what alignment adds to it, or padding."""

    ids: list[npt.NDArray[Any]]
    masks: list[npt.NDArray[np.bool_]]
    sizes: list[int]  # of each segment
    documents: list[int]  # number of the span in its row; PADDING for padding
    firsts: list[int]  # where each span's tokens begin
    size: int = 0


class Collator:
    """Rows → arrays, in the form that the model wants."""

    def __init__(self, stores: Sequence[Store], settings: PlanSettings, form: BatchForm) -> None:
        self._reader = SpanReader(stores, keep_masks=settings.window_shards is not None)
        self._max_length = -(-settings.max_length // form.pad_to) * form.pad_to
        self._align = settings.align
        self._packed = settings.packing != "none" and not settings.packing.startswith("group_")
        self._form = form
        self._pad_ids = np.full(self._max_length, form.pad_id, np.uint32)
        self._pad_mask = np.zeros(self._max_length, np.bool_)

    def __call__(self, rows: Rows) -> dict[str, Any]:
        if self._form.padding_free:
            return self._flat(rows)
        return self._padded(rows)

    def _padded(self, rows: Rows) -> dict[str, Any]:
        """(num_rows, length) arrays; cu_seqlens counts over the rows laid end to end, padding being a segment of its own."""
        length = self._row_length(rows)
        layout = self._lay_out(rows, length)
        shape = (rows.num_rows, length)
        batch = self._arrays(layout, shape)
        if not self._packed:
            del batch["cu_seqlens"], batch["max_seqlen"]
        if self._form.attention_mask == "4d":
            batch["attention_mask"] = _block_mask(batch["seq_idx"])
        elif not self._packed and self._form.attention_mask == "auto":
            batch["attention_mask"] = (batch["seq_idx"] != PADDING).astype(np.int64)
        return batch

    def _flat(self, rows: Rows) -> dict[str, Any]:
        """One row of all tokens, without padding but for `pad_to`."""
        layout = self._lay_out(rows, None)
        missing = -layout.size % self._form.pad_to
        if missing:
            self._pad(layout, missing)
        return self._arrays(layout, (1, layout.size))

    def _row_length(self, rows: Rows) -> int:
        if self._packed or self._form.padding == "max_length":
            return self._max_length
        sizes = rows.spans["stop"] - rows.spans["start"]
        longest = int(sizes.max()) if sizes.size else 1
        return -(-longest // self._form.pad_to) * self._form.pad_to

    def _lay_out(self, rows: Rows, length: int | None) -> _Layout:
        """All spans in order; with a `length`, each row is filled up to it."""
        layout = _Layout([], [], [], [], [])
        pieces = iter(self._reader.read(rows.spans))
        left = self._form.pad_side == "left"
        for count in np.diff(rows.starts).tolist():
            begin = layout.size
            row = [next(pieces) for _ in range(count)]
            if left and length is not None:
                self._pad(layout, length - sum(self._room(len(ids)) for ids, _ in row))
            for number, (ids, mask) in enumerate(row):
                self._put(layout, ids, mask, number)
            if not left and length is not None:
                self._pad(layout, begin + length - layout.size)
        return layout

    def _room(self, size: int) -> int:
        return -(-size // self._align) * self._align

    def _put(self, layout: _Layout, ids: Any, mask: Any, number: int) -> None:
        room = self._room(len(ids))
        layout.ids.append(ids)
        layout.masks.append(mask)
        if room > len(ids):
            layout.ids.append(self._pad_ids[: room - len(ids)])
            layout.masks.append(self._pad_mask[: room - len(ids)])
        layout.firsts.append(layout.size)
        layout.sizes.append(room)
        layout.documents.append(number)
        layout.size += room

    def _pad(self, layout: _Layout, size: int) -> None:
        if not size:
            return
        for start in range(0, size, self._max_length):
            layout.ids.append(self._pad_ids[: min(size - start, self._max_length)])
            layout.masks.append(self._pad_mask[: min(size - start, self._max_length)])
        layout.sizes.append(size)
        layout.documents.append(PADDING)
        layout.size += size

    def _arrays(self, layout: _Layout, shape: tuple[int, int]) -> dict[str, Any]:
        ids = np.empty(layout.size, np.int64)
        mask = np.empty(layout.size, np.bool_)
        if layout.size:
            np.concatenate(layout.ids, out=ids, casting="unsafe")
            np.concatenate(layout.masks, out=mask)
        # The first token of a piece would be predicted from another sample, or from nothing: it is no target.
        mask[layout.firsts] = False
        labels = (ids - IGNORE) * mask + IGNORE  # a third of the time of np.where
        if self._form.labels == "shifted" and layout.size:
            labels[:-1] = labels[1:]  # the first label of every piece is IGNORE, so nothing crosses a border
            labels[-1] = IGNORE
        sizes = np.array(layout.sizes, np.int64)
        ends = np.cumsum(sizes)
        positions = np.arange(layout.size, dtype=np.int64) - np.repeat(ends - sizes, sizes)
        return {
            "input_ids": ids.reshape(shape),
            "labels": labels.reshape(shape),
            "position_ids": positions.reshape(shape),
            "cu_seqlens": np.concatenate(([0], ends)).astype(np.int32),
            "max_seqlen": max(layout.sizes, default=0),
            "seq_idx": self._documents(layout, sizes).reshape(shape),
        }

    def _documents(self, layout: _Layout, sizes: Ints) -> npt.NDArray[np.int32]:
        """The number of each token's sample in its row, counted through in a flat one; PADDING where there is none."""
        numbers = np.array(layout.documents, np.int32)
        if self._form.padding_free:
            numbers = np.where(numbers == PADDING, PADDING, np.cumsum(numbers != PADDING) - 1).astype(np.int32)
        return np.repeat(numbers, sizes)


def _block_mask(documents: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """(num_rows, 1, length, length): True where a token may look, at its own sample's earlier tokens and itself."""
    same = documents[:, :, None] == documents[:, None, :]
    mask: npt.NDArray[np.bool_] = np.tril(same)[:, None]
    return mask
