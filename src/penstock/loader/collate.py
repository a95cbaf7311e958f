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
    sizes: Ints  # of each segment
    documents: npt.NDArray[np.int32]  # number of the span in its row; PADDING for padding

    @property
    def size(self) -> int:
        return int(self.sizes.sum())


class Collator:
    """Rows → arrays, in the form that the model wants."""

    def __init__(self, stores: Sequence[Store], settings: PlanSettings, form: BatchForm) -> None:
        self._reader = SpanReader(stores, keep_masks=settings.window_shards is not None)
        self._max_length = -(-settings.max_length // form.pad_to) * form.pad_to
        self._align = settings.align
        self._packed = settings.packing != "none" and not settings.packing.startswith("group_")
        self._form = form
        longest = max(self._max_length, form.pad_to)
        self._pad_ids = np.full(longest, form.pad_id, np.uint32)
        self._pad_mask = np.zeros(longest, np.bool_)

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
        return self._arrays(self._lay_out(rows, None))

    def _row_length(self, rows: Rows) -> int:
        if self._packed or self._form.padding == "max_length":
            return self._max_length
        sizes = rows.spans["stop"] - rows.spans["start"]
        longest = int(sizes.max()) if sizes.size else 1
        return -(-longest // self._form.pad_to) * self._form.pad_to

    def _lay_out(self, rows: Rows, length: int | None) -> _Layout:
        """All spans in order; with a `length`, each row is filled up to it, else the whole to a multiple of `pad_to`."""
        ids, masks = self._reader.read(rows.spans)
        sizes = rows.spans["stop"] - rows.spans["start"]
        rooms = -(-sizes // self._align) * self._align
        if self._align > 1:
            ids, masks = self._fill_up(ids, masks, (rooms - sizes).tolist())
        counts = np.diff(rows.starts)
        numbers = np.arange(len(sizes)) - np.repeat(rows.starts[:-1], counts)
        if length is None:
            pads, ends = [-int(rooms.sum()) % self._form.pad_to], [len(sizes)]
            numbers = np.arange(len(sizes))
        else:
            used = np.concatenate(([0], np.cumsum(rooms)))[rows.starts]
            pads, ends = (length - np.diff(used)).tolist(), rows.starts[1:].tolist()
        places = np.array(ends if self._form.pad_side == "right" else [0, *ends[:-1]], np.int64)
        holes = np.flatnonzero(pads)
        every_ids, every_masks, done = [], [], 0
        for hole in holes.tolist():  # one turn per row that is not full
            place = int(places[hole])
            every_ids += ids[done:place]
            every_masks += masks[done:place]
            every_ids.append(self._pad_ids[: pads[hole]])
            every_masks.append(self._pad_mask[: pads[hole]])
            done = place
        return _Layout(
            ids=every_ids + ids[done:],
            masks=every_masks + masks[done:],
            sizes=np.insert(rooms, places[holes], np.array(pads, np.int64)[holes]),
            documents=np.insert(numbers, places[holes], PADDING).astype(np.int32),
        )

    def _fill_up(self, ids: list[Any], masks: list[Any], missing: list[int]) -> tuple[list[Any], list[Any]]:
        """Each span's ids and mask with what alignment adds to it."""
        filled = [
            np.concatenate([a, self._pad_ids[:size]]) if size else a for a, size in zip(ids, missing, strict=True)
        ]
        covered = [
            np.concatenate([m, self._pad_mask[:size]]) if size else m for m, size in zip(masks, missing, strict=True)
        ]
        return filled, covered

    def _arrays(self, layout: _Layout, shape: tuple[int, int] | None = None) -> dict[str, Any]:
        size = layout.size
        shape = shape or (1, size)
        ids = np.empty(size, np.int64)
        mask = np.empty(size, np.bool_)
        if size:
            np.concatenate(layout.ids, out=ids, casting="unsafe")
            np.concatenate(layout.masks, out=mask)
        ends = np.cumsum(layout.sizes)
        begins = ends - layout.sizes
        mask[begins] = (
            False  # the first token of a piece would be predicted from another sample, or from nothing: no target
        )
        labels = (ids - IGNORE) * mask + IGNORE  # a third of the time of np.where
        if self._form.labels == "shifted" and size:
            labels[:-1] = labels[1:]  # the first label of every piece is IGNORE, so nothing crosses a border
            labels[-1] = IGNORE
        positions = np.arange(size, dtype=np.int64) - np.repeat(begins, layout.sizes)
        return {
            "input_ids": ids.reshape(shape),
            "labels": labels.reshape(shape),
            "position_ids": positions.reshape(shape),
            "cu_seqlens": np.concatenate(([0], ends)).astype(np.int32),
            "max_seqlen": int(layout.sizes.max()) if size else 0,
            "seq_idx": np.repeat(layout.documents, layout.sizes).reshape(shape),
        }


def _block_mask(documents: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """(num_rows, 1, length, length): True where a token may look, at its own sample's earlier tokens and itself."""
    same = documents[:, :, None] == documents[:, None, :]
    mask: npt.NDArray[np.bool_] = np.tril(same)[:, None]
    return mask
