"""What does the model see?  Spans of samples → arrays.  Shifting, ignore-index, padding and positions are a model's convention.

Spans are joined once for the ids and once for what is trained; everything else is computed for all spans of a batch, or of several small
batches, at once, in a narrow type where that is possible, and widened into memory of earlier batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.loader.buffers import Buffers
from penstock.loader.form import BatchForm
from penstock.loader.spans import Pieces, SpanReader, joined, view
from penstock.plan.block import Rows
from penstock.plan.settings import PlanSettings
from penstock.store import Store
from penstock.types import Ints

IGNORE = -100  # a label that no loss looks at
PADDING = -1  # the document number of padding


@dataclass(slots=True)
class _Layout:
    """Segments laid end to end: a span with what alignment adds to it, or padding."""

    ids: Pieces  # of spans, and of padding in its places
    masks: Pieces | None  # likewise; None where every span is trained throughout
    sizes: Ints  # of each segment
    documents: npt.NDArray[np.int32]  # number of the span in its row; PADDING for padding
    is_span: npt.NDArray[np.bool_]  # or padding


class Collator:
    """Rows → arrays, in the form that the model wants.  For one thread: what it joins first is overwritten by the next call."""

    def __init__(self, stores: Sequence[Store], settings: PlanSettings, form: BatchForm) -> None:
        self._max_length = -(-settings.max_length // form.pad_to) * form.pad_to
        self._align = settings.align
        self._packed = settings.packing != "none" and not settings.packing.startswith("group_")
        self._form = form
        largest = max([form.pad_id, *(store.vocab_size for store in stores)]) - IGNORE
        self._dtype: Any = np.uint16 if largest <= 1 << 16 else np.uint32  # holds every id, also less IGNORE
        self._reader = SpanReader(stores, self._dtype)
        longest = max(self._max_length, form.pad_to)
        self._pad_ids = view(np.full(longest, form.pad_id, self._dtype))
        self._pad_mask = view(np.zeros(longest, np.bool_))
        self._all_trained = view(np.ones(longest, np.bool_))
        self._buffers = Buffers()
        self._count = np.arange(longest, dtype=np.uint32)

    def __call__(self, rows: Rows) -> tuple[dict[str, Any], int]:
        """(arrays by name, how many tokens are trained)."""
        return self.many([rows])[0]

    def many(self, steps: Sequence[Rows]) -> list[tuple[dict[str, Any], int]]:
        """The same of several steps.  Where their rows are of one length they are laid out as one: for small batches, numpy's
        price of a call is most of the price."""
        if len(steps) > 1 and self.fixed_length is None:
            return [found for rows in steps for found in self.many([rows])]
        rows = Rows.join(list(steps))
        length = None if self._form.padding_free else self._row_length(rows)
        made = self._split(self._lay_out(rows, length), [step.num_rows for step in steps], length)
        for batch, _ in made:
            self._finish(batch)
        return made

    @property
    def fixed_length(self) -> int | None:
        """Tokens of every row, where that is no matter of what is in it."""
        fixed = not self._form.padding_free and (self._packed or self._form.padding == "max_length")
        return self._max_length if fixed else None

    def _finish(self, batch: dict[str, Any]) -> None:
        if self._form.padding_free:
            return
        if not self._packed:
            del batch["cu_seqlens"], batch["max_seqlen"]
        if self._form.attention_mask == "4d":
            batch["attention_mask"] = _block_mask(batch["seq_idx"])
        elif not self._packed and self._form.attention_mask == "auto":
            batch["attention_mask"] = (batch["seq_idx"] != PADDING).astype(np.int64)

    def _row_length(self, rows: Rows) -> int:
        if self.fixed_length is not None:
            return self.fixed_length
        sizes = rows.spans["stop"] - rows.spans["start"]
        longest = int(sizes.max()) if sizes.size else 1
        room = -(-longest // self._align) * self._align  # a row of one sample has its alignment, too
        return -(-room // self._form.pad_to) * self._form.pad_to

    def _lay_out(self, rows: Rows, length: int | None) -> _Layout:
        """All spans in order; with a `length`, each row is filled up to it, else the whole to a multiple of `pad_to`."""
        tokens = self._reader.read(rows.spans)
        sizes = rows.spans["stop"] - rows.spans["start"]
        rooms = sizes if self._align == 1 else -(-sizes // self._align) * self._align
        numbers = np.arange(sizes.size)
        if length is None:
            total = int(rooms.sum())  # a flat row has a token at least: no model takes an empty one
            pads, places = (
                np.array([-total % self._form.pad_to if total else self._form.pad_to]),
                np.array([sizes.size]),
            )
        else:
            used = np.concatenate(([0], np.cumsum(rooms)))[rows.starts]
            pads = length - (used[1:] - used[:-1])
            places = rows.starts[1:] if self._form.pad_side == "right" else rows.starts[:-1]
            numbers -= np.repeat(rows.starts[:-1], rows.starts[1:] - rows.starts[:-1])
        short = np.flatnonzero(pads)
        pads, places = pads[short], places[short]
        is_span = np.ones(sizes.size + short.size, np.bool_)
        is_span[places + np.arange(short.size)] = False
        every, documents = np.empty(is_span.size, np.int64), np.full(is_span.size, PADDING, np.int32)
        every[is_span], every[~is_span], documents[is_span] = rooms, pads, numbers
        missing = (rooms - sizes).tolist() if self._align > 1 else None
        ids = _padded(tokens.ids, self._pad_ids, missing, pads, places)
        masks = tokens.masks
        if masks is None and missing is not None:  # trained throughout, and then what alignment adds, which is not
            masks = list(map(self._all_trained.__getitem__, map(slice, sizes.tolist())))
        if masks is not None:
            masks = _padded(masks, self._pad_mask, missing, pads, places)
        return _Layout(ids, masks, every, documents, is_span)

    def _split(self, layout: _Layout, num_rows: list[int], length: int | None) -> list[tuple[dict[str, Any], int]]:
        """Arrays of all segments, step by step: so many rows of `length` each; without a length, one flat row."""
        ends = np.concatenate(([0], np.cumsum(layout.sizes)))
        size = int(ends[-1])
        narrow = joined(layout.ids, self._dtype)
        ids, documents = self._buffers.take("input_ids", size, np.int64), self._buffers.take("seq_idx", size, np.int32)
        ids[:] = narrow
        documents[:] = np.repeat(layout.documents, layout.sizes)
        labels, mask = self._labels(layout, narrow, ends[:-1])
        flat = {"input_ids": ids, "labels": labels, "position_ids": self._positions(layout, ends), "seq_idx": documents}
        bounds = [0, size] if length is None else (length * np.cumsum([0, *num_rows])).tolist()
        firsts = np.searchsorted(ends, bounds)
        longest = np.maximum.reduceat(layout.sizes, firsts[:-1]).tolist()
        targets = np.add.reduceat((layout.sizes - 1) * layout.is_span, firsts[:-1]).tolist()
        borders = ends.astype(np.int32)
        made = []
        for step, ((low, high), (first, last)) in enumerate(
            zip(pairwise(bounds), pairwise(firsts.tolist()), strict=True)
        ):
            shape = (num_rows[step] if length is not None else 1, -1)
            arrays: dict[str, Any] = {name: array[low:high].reshape(shape) for name, array in flat.items()}
            arrays["cu_seqlens"] = borders[first : last + 1] - low
            arrays["max_seqlen"] = longest[step]
            made.append((arrays, targets[step] if mask is None else int(np.count_nonzero(mask[low:high]))))
        return made

    def _positions(self, layout: _Layout, ends: Ints) -> Ints:
        """Counted from 0 in each segment."""
        size = int(ends[-1])
        if size > self._count.size:
            self._count = np.arange(size, dtype=np.uint32)
        narrow = np.repeat(ends[:-1].astype(np.uint32), layout.sizes)
        np.subtract(self._count[:size], narrow, out=narrow)
        positions = self._buffers.take("position_ids", size, np.int64)
        positions[:] = narrow
        return positions

    def _labels(
        self, layout: _Layout, narrow: npt.NDArray[Any], begins: Ints
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
        """(labels, where they are not IGNORE: None if that is everywhere but at the first of a span).  `narrow` is used up."""
        labels = self._buffers.take("labels", narrow.size, np.int64)
        mask = None
        # The first token of a piece would be predicted from another sample, or from nothing: it is no target.
        if layout.masks is None:
            labels[:] = narrow
            labels[begins] = IGNORE
            pads = ~layout.is_span
            for begin, pad in zip(begins[pads].tolist(), layout.sizes[pads].tolist(), strict=True):
                labels[begin : begin + pad] = IGNORE
        else:
            mask = joined(layout.masks, np.bool_)
            mask[begins] = False
            narrow += -IGNORE  # (id + 100) × trained - 100, in the narrow type: a third of the time of np.where
            narrow *= mask
            labels[:] = narrow
            labels += IGNORE
        if self._form.labels == "shifted":
            labels[:-1] = labels[1:]  # the first label of every piece is IGNORE, so nothing crosses a border
            labels[-1] = IGNORE
        return labels, mask


def _padded(pieces: Pieces, padding: memoryview, missing: list[int] | None, pads: Ints, places: Ints) -> Pieces:
    """Pieces, each followed by what alignment adds to it, with padding before those in `places`."""
    out = pieces.copy()
    if missing is not None:
        out = [part for piece, size in zip(pieces, missing, strict=True) for part in (piece, padding[:size])]
        places = 2 * places
    for size, place in zip(pads.tolist()[::-1], places.tolist()[::-1], strict=True):  # from the last to the first
        out.insert(place, padding[:size])
    return out


class UsersCollator:
    """The same, and what the user's own function makes of it: arrays and rows in, arrays out."""

    def __init__(self, collate: Collator, users: Callable[..., Any]) -> None:
        self._collate, self._users = collate, users

    def many(self, steps: Sequence[Rows]) -> list[tuple[dict[str, Any], int]]:
        return [self(rows) for rows in steps]

    def __call__(self, rows: Rows) -> tuple[dict[str, Any], int]:
        arrays, trained = self._collate(rows)
        found = self._users(arrays, rows)
        if not isinstance(found, dict):
            raise PlanError(f"collate gave a {type(found).__name__}, expected a dict of arrays by name")
        labels = found.get("labels")
        return found, int(np.count_nonzero(labels != IGNORE)) if isinstance(labels, np.ndarray) else trained


def _block_mask(documents: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """(num_rows, 1, length, length): True where a token may look, at its own sample's earlier tokens and itself."""
    same = documents[:, :, None] == documents[:, None, :]
    mask: npt.NDArray[np.bool_] = np.tril(same)[:, None]
    return mask
