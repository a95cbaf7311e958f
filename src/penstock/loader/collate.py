"""What does the model see?  Spans of samples → arrays.  Shifting, ignore-index, padding and positions are a model's convention.

Spans are joined once for the ids and once for what is trained; everything else is computed for all spans of a batch, or of several small
batches, at once, in a narrow type where that is possible, and widened into memory of earlier batches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.loader.buffers import Buffers
from penstock.loader.form import BatchForm
from penstock.loader.records import RecordCollator
from penstock.loader.spans import Pieces, SpanReader
from penstock.plan.block import Rows
from penstock.plan.settings import PlanSettings
from penstock.store import Store
from penstock.types import Bools, Ints

IGNORE = -100  # a label that no loss looks at
PADDING = -1  # the document number of padding

# Places whose arrays are made at once: more share the price of numpy's calls, fewer stay in the processor's cache.
_TOGETHER = 1 << 17

Made = tuple[dict[str, Any], int]  # arrays by name, and how many tokens are trained


@dataclass(slots=True)
class _Layout:
    """Segments laid end to end: a span with what alignment adds to it, or padding."""

    pieces: Pieces  # one for each segment; where there is alignment, a second for what it adds
    sizes: Ints  # of each segment
    ends: Ints  # where each begins, and the last ends
    documents: npt.NDArray[np.int32]  # number of the span in its row; PADDING for padding
    is_span: Bools  # or padding


class Collator:
    """Rows → arrays, in the form that the model wants.  For one thread: its memory is used again and again."""

    def __init__(self, stores: Sequence[Store], settings: PlanSettings, form: BatchForm) -> None:
        self._max_length = -(-settings.max_length // form.pad_to) * form.pad_to
        self._align = settings.align
        self._packed = settings.packing != "none" and not settings.packing.startswith("group_")
        self._form = form
        largest = max([form.pad_id, *(store.vocab_size for store in stores)]) - IGNORE
        self._dtype: Any = np.uint16 if largest <= 1 << 16 else np.uint32  # holds every id, also less IGNORE
        self._reader = SpanReader(stores, np.full(max(self._max_length, form.pad_to), form.pad_id, self._dtype))
        self._buffers = Buffers()
        self._count = np.empty(0, np.uint32)

    def __call__(self, rows: Rows) -> Made:
        [[made]] = self.many([rows])
        return made

    def many(self, steps: Sequence[Rows]) -> Iterator[list[Made]]:
        """Several steps, some at a time.  Where their rows are of one length they are found and laid out together: for small batches,
        numpy's price of a call is most of the price."""
        if len(steps) > 1 and self.fixed_length is None:
            for rows in steps:
                yield from self.many([rows])
            return
        rows = Rows.join(list(steps))
        length = None if self._form.padding_free else self._row_length(rows)
        layout = self._lay_out(rows, length)
        num_rows = [step.num_rows for step in steps]
        bounds = [0, int(layout.ends[-1])] if length is None else (length * np.cumsum([0, *num_rows])).tolist()
        at_once = steps_together(bounds[1])
        for first in range(0, len(steps), at_once):
            yield self._make(layout, bounds[first : first + at_once + 1], length)

    @property
    def fixed_length(self) -> int | None:
        """Tokens of every row, where that is no matter of what is in it."""
        fixed = not self._form.padding_free and (self._packed or self._form.padding == "max_length")
        return self._max_length if fixed else None

    def _finish(self, batch: dict[str, Any]) -> None:
        several = self._packed or self._form.padding_free  # samples in a row
        if several and self._form.use_cache is False and self._form.output == "torch":
            batch["use_cache"] = False
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
        own = rows.spans["stop"] - rows.spans["start"]
        rooms = own if self._align == 1 else -(-own // self._align) * self._align
        numbers = np.arange(own.size)
        if length is None:
            total = int(rooms.sum())  # a flat row has a token at least: no model takes an empty one
            pads = np.array([-total % self._form.pad_to if total else self._form.pad_to])
            places = np.array([own.size])
        else:
            used = np.concatenate(([0], np.cumsum(rooms)))[rows.starts]
            pads = length - (used[1:] - used[:-1])
            places = rows.starts[1:] if self._form.pad_side == "right" else rows.starts[:-1]
            numbers -= np.repeat(rows.starts[:-1], rows.starts[1:] - rows.starts[:-1])
        short = np.flatnonzero(pads)
        is_span = np.ones(own.size + short.size, np.bool_)
        is_span[places[short] + np.arange(short.size)] = False
        sizes, documents = np.empty(is_span.size, np.int64), np.full(is_span.size, PADDING, np.int32)
        sizes[is_span], sizes[~is_span], documents[is_span] = rooms, pads[short], numbers
        ends = np.concatenate(([0], np.cumsum(sizes)))
        if self._align == 1:
            return _Layout(self._reader.find(rows.spans, is_span, sizes), sizes, ends, documents, is_span)
        filled = sizes.copy()
        filled[is_span] = own
        is_piece, piece_sizes = np.zeros(2 * is_span.size, np.bool_), np.stack((filled, sizes - filled), axis=1)
        is_piece[::2] = is_span
        return _Layout(self._reader.find(rows.spans, is_piece, piece_sizes.ravel()), sizes, ends, documents, is_span)

    def _make(self, layout: _Layout, bounds: list[int], length: int | None) -> list[Made]:
        """Arrays of the steps that these bounds part, as rows of `length`; without a length, one flat row."""
        marks = np.searchsorted(layout.ends, bounds)
        chosen = slice(int(marks[0]), int(marks[-1]))
        sizes, ends = layout.sizes[chosen], layout.ends[chosen.start : chosen.stop + 1] - bounds[0]
        marks, size = marks - chosen.start, bounds[-1] - bounds[0]
        narrow = layout.pieces.join_ids(*self._pieces(chosen), self._dtype)
        ids, documents = self._buffers.take("input_ids", size, np.int64), self._buffers.take("seq_idx", size, np.int32)
        ids[:] = narrow
        documents[:] = np.repeat(layout.documents[chosen], sizes)
        labels, mask = self._labels(layout, chosen, narrow, ends[:-1])
        flat = {"input_ids": ids, "labels": labels, "position_ids": self._positions(sizes, ends), "seq_idx": documents}
        longest = np.maximum.reduceat(sizes, marks[:-1]).tolist()
        if mask is None:
            trained = np.add.reduceat((sizes - 1) * layout.is_span[chosen], marks[:-1]).tolist()
        borders = ends.astype(np.int32)
        made = []
        for step, (first, last) in enumerate(pairwise(marks.tolist())):
            low, high = bounds[step] - bounds[0], bounds[step + 1] - bounds[0]
            shape = (1 if length is None else (high - low) // length, -1)
            arrays: dict[str, Any] = {name: array[low:high].reshape(shape) for name, array in flat.items()}
            arrays["cu_seqlens"] = borders[first : last + 1] - low
            arrays["max_seqlen"] = longest[step]
            self._finish(arrays)
            made.append((arrays, trained[step] if mask is None else int(np.count_nonzero(mask[low:high]))))
        return made

    def _pieces(self, segments: slice) -> tuple[int, int]:
        each = 1 if self._align == 1 else 2
        return each * segments.start, each * segments.stop

    def _positions(self, sizes: Ints, ends: Ints) -> Ints:
        """Counted from 0 in each segment."""
        size = int(ends[-1])
        if size > self._count.size:
            self._count = np.arange(size, dtype=np.uint32)
        narrow = np.repeat(ends[:-1].astype(np.uint32), sizes)
        np.subtract(self._count[:size], narrow, out=narrow)
        positions = self._buffers.take("position_ids", size, np.int64)
        positions[:] = narrow
        return positions

    def _labels(
        self, layout: _Layout, chosen: slice, narrow: npt.NDArray[Any], begins: Ints
    ) -> tuple[Ints, Bools | None]:
        """(labels, where they are not IGNORE: None if that is everywhere but at the first of a span).  `narrow` is used up."""
        labels = self._buffers.take("labels", narrow.size, np.int64)
        mask = None
        # The first token of a piece would be predicted from another sample, or from nothing: it is no target.
        if layout.pieces.all_trained and self._align == 1:
            labels[:] = narrow
            labels[begins] = IGNORE
            pads = ~layout.is_span[chosen]
            for begin, pad in zip(begins[pads].tolist(), layout.sizes[chosen][pads].tolist(), strict=True):
                labels[begin : begin + pad] = IGNORE
        else:
            mask = layout.pieces.join_masks(*self._pieces(chosen))
            mask[begins] = False
            narrow += -IGNORE  # (id + 100) × trained - 100, in the narrow type: a third of the time of np.where
            narrow *= mask
            labels[:] = narrow
            labels += IGNORE
        if self._form.labels == "shifted":
            labels[:-1] = labels[1:]  # the first label of every piece is IGNORE, so nothing crosses a border
            labels[-1] = IGNORE
        return labels, mask


class UsersCollator:
    """The same, and what the user's own function makes of it: arrays and rows in, arrays out."""

    def __init__(self, collate: Collator, users: Callable[..., Any]) -> None:
        self._collate, self._users = collate, users

    def many(self, steps: Sequence[Rows]) -> Iterator[list[Made]]:
        return ([self(rows)] for rows in steps)

    def __call__(self, rows: Rows) -> Made:
        arrays, trained = self._collate(rows)
        found = self._users(arrays, rows)
        if not isinstance(found, dict):
            raise PlanError(f"collate gave a {type(found).__name__}, expected a dict of arrays by name")
        labels = found.get("labels")
        return found, int(np.count_nonzero(labels != IGNORE)) if isinstance(labels, np.ndarray) else trained


def steps_together(num_tokens: int) -> int:
    """How many steps of so many tokens are made at once."""
    return max(1, _TOGETHER // num_tokens)


def in_turn(collate: Collator | UsersCollator | RecordCollator, steps: Sequence[Rows]) -> Iterator[list[Made]]:
    """Steps made together; what is wrong with one of them comes when its turn comes."""
    done = 0
    try:
        for made in collate.many(steps):
            done += len(made)
            yield made
        return
    except Exception:
        if len(steps) == 1:
            raise
    for rows in steps[done:]:
        yield [collate(rows)]


def _block_mask(documents: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """(num_rows, 1, length, length): True where a token may look, at its own sample's earlier tokens and itself."""
    same = documents[:, :, None] == documents[:, None, :]
    mask: npt.NDArray[np.bool_] = np.tril(same)[:, None]
    return mask
