"""Spans of samples → the arrays of a batch.  Shifting, the ignored label, padding and positions are conventions of a model.

Joining tokens is most of the cost of a step with a hundred spans.  Everything else is computed for all spans of a batch, or of several
small batches, at once, in a narrow type where possible, and widened into the memory of earlier batches.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.loader.changed import changed_shards
from penstock.loader.columns import ShardSpans, cut, join, span_values, token_values, view
from penstock.loader.layout import BatchForm
from penstock.plan.rows import Rows
from penstock.plan.settings import PlanSettings
from penstock.store import Store
from penstock.types import TARGETS, WEIGHTS, Bools, Column, Ints, Objective

IGNORE = -100  # the label that a loss ignores
PADDING = -1  # the document number of padding

_TOGETHER = (
    1 << 17
)  # tokens whose arrays are made at once: more share the cost of a call, fewer stay in the cache
LOOKED_UP = 1 << 20  # tokens of the steps that are looked up together
_MAX_KEPT = 16  # buffers kept per array; a consumer that holds more batches gets new memory

Made = tuple[dict[str, Any], int]  # arrays by name, and how many tokens are trained


@dataclass(slots=True)
class _Segments:
    """Segments end to end: each is a span with its alignment, or padding.  Its tokens are one or two slices of shards."""

    shards: list[ShardSpans]
    ids: list[memoryview]  # of each shard; number 0 is padding, number n is shards[n - 1]
    mask_bits: list[
        memoryview
    ]  # as above; bit t % 8 of byte t // 8 is set where token t is trained
    all_trained: bool  # in all shards
    slices: tuple[Ints, Ints, Ints]  # shard number, start and stop of each slice
    sizes: Ints  # of each segment
    ends: Ints  # where each segment begins, and the last ends
    documents: npt.NDArray[np.int32]  # number of the span in its row; PADDING for padding
    is_span: Bools
    is_first: Bools  # begins a sequence, in which positions, attention and targets run on; all but where documents are joined

    def join_ids(self, chosen: slice, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the ids of these segments, in new memory."""
        if all(each.itemsize == np.dtype(dtype).itemsize for each in self.ids):
            return join(self.ids, *self.slices_of(chosen), dtype)
        pieces = [
            np.asarray(piece).astype(dtype) for piece in cut(self.ids, *self.slices_of(chosen))
        ]
        return np.concatenate(pieces)

    def join_masks(self, chosen: slice) -> Bools:
        """Return which tokens of these segments are trained."""
        return join_bits(self.mask_bits, *self.slices_of(chosen))

    def slices_of(self, chosen: slice) -> tuple[Ints, Ints, Ints]:
        each = self.slices[0].size // max(self.sizes.size, 1)
        shards, starts, stops = (
            values[each * chosen.start : each * chosen.stop] for values in self.slices
        )
        return shards, starts, stops


class Collator:
    """Rows → arrays, in the layout that the model needs.  For one thread: its memory is used again and again."""

    def __init__(
        self,
        stores: Sequence[Store],
        settings: PlanSettings,
        form: BatchForm,
        columns: Sequence[Column] = (),
        *,
        objective: Objective | None = None,
    ) -> None:
        if TARGETS in columns and form.labels != "unshifted":
            raise PlanError(
                "the labels of this objective stand at their own tokens, and labels='shifted' would move them; leave labels out"
            )
        if TARGETS in columns and form.attention_mask == "4d":
            raise PlanError(
                "attention_mask='4d' is causal, and with this objective a token is predicted from those on both sides; leave it out, and "
                "keep samples apart with seq_idx or cu_seqlens"
            )
        self._objective = objective
        max_length = -(-settings.max_length // form.pad_to_multiple_of) * form.pad_to_multiple_of
        self._align = settings.align
        self._packed = settings.method.is_packed
        self._joined = form.documents == "joined"
        is_fixed = not form.padding_free and (self._packed or form.padding == "max_length")
        self._fixed_length = max_length if is_fixed else None  # of every row, whatever it holds
        self._stores = stores
        self._form = form
        largest = max([form.pad_token_id, *(store.vocab_size for store in stores)]) - IGNORE
        self._dtype: Any = (
            np.uint16 if largest <= 1 << 16 else np.uint32
        )  # holds every id, also less IGNORE
        padding = np.full(max_length, form.pad_token_id, self._dtype)
        self._padding = view(padding), view(np.zeros((padding.size + 7) // 8, np.uint8))
        self._of_tokens = [column for column in columns if column.per == "token"]
        self._of_spans = [column for column in columns if column.per != "token"]
        self._buffers = Buffers()
        self._count = np.empty(0, np.uint32)

    def __call__(self, rows: Rows) -> Made:
        [[made]] = self.many([rows])
        return made

    def many(self, steps: Sequence[Rows]) -> Iterator[list[Made]]:
        """Yield the arrays of several steps, some at a time.

        Steps whose rows have one length are laid out together: for small batches, most of the cost is numpy's cost per call.
        """
        if len(steps) > 1 and self._fixed_length is None:
            for rows in steps:
                yield from self.many([rows])
            return
        rows = Rows.join(list(steps))
        length = self._row_length(rows)
        segments = self._segments(rows, length)
        num_rows = [step.num_rows for step in steps]
        bounds = (
            [0, int(segments.ends[-1])]
            if length is None
            else (length * np.cumsum([0, *num_rows])).tolist()
        )
        at_once = steps_together(bounds[1])
        columns = self._span_columns(segments.shards, steps)
        for first in range(0, len(steps), at_once):
            batches = self._make(segments, bounds[first : first + at_once + 1], length)
            for (arrays, _), more in zip(batches, columns[first:], strict=False):
                arrays.update(more)
            yield batches

    def _row_length(self, rows: Rows) -> int | None:
        """Return the tokens of every row; None for one flat row."""
        if self._fixed_length is not None or self._form.padding_free:
            return self._fixed_length
        longest = int((rows.spans["stop"] - rows.spans["start"]).max(initial=1))
        room = -(-longest // self._align) * self._align  # a row of one sample is aligned, too
        return -(-room // self._form.pad_to_multiple_of) * self._form.pad_to_multiple_of

    def _segments(self, rows: Rows, length: int | None) -> _Segments:
        """Lay out all spans in order; with a `length`, each row is padded to it, else the whole to a multiple of `pad_to_multiple_of`."""
        span_sizes = rows.spans["stop"] - rows.spans["start"]
        rooms = span_sizes if self._align == 1 else -(-span_sizes // self._align) * self._align
        numbers = np.arange(span_sizes.size)
        if length is None:
            total = int(
                rooms.sum()
            )  # a flat row has at least one token: no model takes an empty one
            pads = np.array(
                [-total % self._form.pad_to_multiple_of if total else self._form.pad_to_multiple_of]
            )
            places = np.array([span_sizes.size])
        else:
            used = np.concatenate(([0], np.cumsum(rooms)))[rows.starts]
            pads = length - (used[1:] - used[:-1])
            places = rows.starts[1:] if self._form.pad_side == "right" else rows.starts[:-1]
            numbers -= np.repeat(rows.starts[:-1], rows.starts[1:] - rows.starts[:-1])
        short = np.flatnonzero(pads)
        is_span = np.ones(span_sizes.size + short.size, np.bool_)
        is_span[places[short] + np.arange(short.size)] = False
        sizes = np.empty(is_span.size, np.int64)
        documents = np.full(is_span.size, PADDING, np.int32)
        sizes[is_span] = rooms
        sizes[~is_span] = pads[short]
        documents[is_span] = numbers
        ends = np.concatenate(([0], np.cumsum(sizes)))
        is_first = np.ones(is_span.size, np.bool_)
        if self._joined:
            row_sizes = np.diff(rows.starts)
            begins_row = np.zeros(span_sizes.size, np.bool_)
            begins_row[rows.starts[:-1][row_sizes > 0]] = True
            is_first[is_span] = begins_row
            # one document per row; numbered on where all rows are one flat row
            row_numbers = np.zeros(row_sizes.size) if length else np.arange(row_sizes.size)
            documents[is_span] = np.repeat(row_numbers, row_sizes)
        is_slice = is_span
        slice_sizes = sizes
        if self._align > 1:  # a second slice for what alignment adds
            filled = sizes.copy()
            filled[is_span] = span_sizes
            is_slice = np.zeros(2 * is_span.size, np.bool_)
            slice_sizes = np.stack((filled, sizes - filled), axis=1)
            is_slice[::2], slice_sizes = is_span, slice_sizes.ravel()
        slices = self._find(rows, is_slice, slice_sizes)
        return _Segments(
            *slices, sizes=sizes, ends=ends, documents=documents, is_span=is_span, is_first=is_first
        )

    def _find(
        self, rows: Rows, is_span: Bools, sizes: Ints
    ) -> tuple[list[ShardSpans], list[memoryview], list[memoryview], bool, tuple[Ints, Ints, Ints]]:
        """Find the slices of the spans of rows, and padding of these sizes where no span is."""
        spans = rows.spans
        if self._objective is None:
            shards = list(self._shards(spans))
        else:
            shards = list(changed_shards(self._objective, rows))
        ids, bits = ([padding] for padding in self._padding)
        numbers, starts = np.zeros((2, len(is_span)), np.int64)
        of_spans, begins = np.empty((2, len(spans)), np.int64)
        all_trained = True
        for number, (tokens, places, samples) in enumerate(shards, start=1):
            of_spans[places] = number
            begins[places] = tokens.offsets[samples]
            ids.append(view(tokens.input_ids))
            bits.append(view(tokens.mask_bits))
            all_trained &= tokens.counts.trained == tokens.counts.tokens
        numbers[is_span] = of_spans
        starts[is_span] = begins + spans["start"]
        return shards, ids, bits, all_trained, (numbers, starts, starts + sizes)

    def _shards(self, spans: np.ndarray) -> Iterator[ShardSpans]:
        """Yield every shard that spans lie in."""
        for source in [0] if len(self._stores) == 1 else np.unique(spans["source"]).tolist():
            chosen = None if len(self._stores) == 1 else np.flatnonzero(spans["source"] == source)
            store = self._stores[source]
            numbers, local = store.locate(
                spans["sample"] if chosen is None else spans["sample"][chosen]
            )
            order = np.argsort(numbers, kind="stable")
            if store.cache.is_remote:
                store.want(np.unique(numbers).tolist())
            for first, last in pairwise(
                np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()
            ):
                places = order[first:last]
                tokens = store.tokens(int(numbers[places[0]]))
                yield tokens, places if chosen is None else chosen[places], local[places]

    def _make(self, segments: _Segments, bounds: list[int], length: int | None) -> list[Made]:
        """Make the arrays of the steps between these bounds, as rows of `length`; without a length, one flat row."""
        marks = np.searchsorted(segments.ends, bounds)
        chosen = slice(int(marks[0]), int(marks[-1]))
        segment_sizes = segments.sizes[chosen]
        is_first = segments.is_first[chosen]
        is_span = segments.is_span[chosen]
        ends = segments.ends[chosen.start : chosen.stop + 1] - bounds[0]
        sizes = segment_sizes
        marks = marks - chosen.start
        if self._joined:  # from here on, all spans of a row are one sequence
            is_span = is_span[is_first]
            ends = np.append(ends[:-1][is_first], ends[-1])
            sizes = np.diff(ends)
            marks = np.searchsorted(ends, np.array(bounds) - bounds[0])
        size = bounds[-1] - bounds[0]
        narrow = segments.join_ids(chosen, self._dtype)
        ids = self._buffers.take("input_ids", size, np.int64)
        documents = self._buffers.take("seq_idx", size, np.int32)
        ids[:] = narrow
        documents[:] = np.repeat(segments.documents[chosen], segment_sizes)
        labels, mask = self._labels(segments, chosen, narrow, ends[:-1], sizes[~is_span], ~is_span)
        flat = {
            "input_ids": ids,
            "labels": labels,
            "position_ids": self._positions(sizes, ends),
            "seq_idx": documents,
        }
        for column in self._of_tokens:
            slices = segments.slices_of(chosen)
            values = token_values(column, segments.shards, slices, padding=len(self._padding[0]))
            flat[column.name] = (
                self._like_labels(values, ends[:-1]) if column == WEIGHTS else values
            )
        if TARGETS in self._of_tokens:
            mask = flat["labels"] != IGNORE
        longest = np.maximum.reduceat(sizes, marks[:-1]).tolist()
        if mask is None:
            trained = np.add.reduceat((sizes - 1) * is_span, marks[:-1]).tolist()
        borders = ends.astype(np.int32)
        batches = []
        for step, (first, last) in enumerate(pairwise(marks.tolist())):
            low = bounds[step] - bounds[0]
            high = bounds[step + 1] - bounds[0]
            shape = (1 if length is None else (high - low) // length, -1)
            arrays: dict[str, Any] = {
                name: array[low:high].reshape(shape) for name, array in flat.items()
            }
            arrays["cu_seqlens"] = fixed_size(
                borders[first : last + 1] - low, self._form.max_segments
            )
            arrays["max_seqlen"] = longest[step]
            self._finish(arrays)
            batches.append(
                (arrays, trained[step] if mask is None else int(np.count_nonzero(mask[low:high])))
            )
        return batches

    def _like_labels(self, weights: npt.NDArray[Any], begins: Ints) -> npt.NDArray[Any]:
        """Weights in the places of their labels: 0 at the first token of a piece, and shifted where labels are."""
        weights[begins] = 0
        if self._form.labels == "shifted":
            weights[:-1] = weights[1:]
            weights[-1:] = 0
        return weights

    def _finish(self, batch: dict[str, Any]) -> None:
        """Add and remove the arrays that only some layouts have."""
        if (
            (self._packed or self._form.padding_free)
            and self._form.use_cache is False
            and self._form.output == "torch"
        ):
            batch["use_cache"] = False
        if self._form.padding_free:
            return
        if not self._packed:
            del batch["cu_seqlens"], batch["max_seqlen"]
        if self._form.attention_mask == "4d":
            documents = batch[
                "seq_idx"
            ]  # the mask is True for earlier tokens of the same sample and the token itself
            batch["attention_mask"] = np.tril(documents[:, :, None] == documents[:, None, :])[
                :, None
            ]
        elif not self._packed and self._form.attention_mask == "auto":
            batch["attention_mask"] = (batch["seq_idx"] != PADDING).astype(np.int64)

    def _span_columns(
        self, shards: list[ShardSpans], steps: Sequence[Rows]
    ) -> list[dict[str, Any]]:
        """Return the arrays of columns per sample and per list, of each step."""
        out: list[dict[str, Any]] = [{} for _ in steps]
        bounds = np.cumsum([0, *(len(step.spans) for step in steps)]).tolist()
        for column in self._of_spans:
            values, offsets = span_values(column, shards, bounds[-1])
            for arrays, (first, last) in zip(out, pairwise(bounds), strict=True):
                arrays[column.name] = values[offsets[first] : offsets[last]]
                if column.per == "list":
                    arrays[f"{column.name}_offsets"] = offsets[first : last + 1] - offsets[first]
        return out

    def _positions(self, sizes: Ints, ends: Ints) -> Ints:
        """Return positions, counted from 0 in each segment."""
        size = int(ends[-1])
        if size > self._count.size:
            self._count = np.arange(size, dtype=np.uint32)
        narrow = np.repeat(ends[:-1].astype(np.uint32), sizes)
        np.subtract(self._count[:size], narrow, out=narrow)
        positions = self._buffers.take("position_ids", size, np.int64)
        positions[:] = narrow
        return positions

    def _labels(
        self,
        segments: _Segments,
        chosen: slice,
        narrow: npt.NDArray[Any],
        begins: Ints,
        pad_sizes: Ints,
        is_pad: Bools,
    ) -> tuple[Ints, Bools | None]:
        """Return labels, and where they are not IGNORE (None: everywhere but at the first token of a sequence).  Overwrites `narrow`.

        begins: of the sequences.  is_pad: which of them are padding.
        """
        labels = self._buffers.take("labels", narrow.size, np.int64)
        mask = None
        # The first token of a sequence is not a target: another sample, or nothing, would predict it.
        if segments.all_trained and self._align == 1:
            labels[:] = narrow
            labels[begins] = IGNORE
            for begin, pad in zip(begins[is_pad].tolist(), pad_sizes.tolist(), strict=True):
                labels[begin : begin + pad] = IGNORE
        else:
            mask = segments.join_masks(chosen)
            mask[begins] = False
            narrow += (
                -IGNORE
            )  # (id + 100) × trained - 100, in the narrow type: a third of the time of np.where
            narrow *= mask
            labels[:] = narrow
            labels += IGNORE
        if self._form.labels == "shifted":
            labels[:-1] = labels[
                1:
            ]  # the first label of every piece is IGNORE, so nothing crosses a border
            labels[-1] = IGNORE
        return labels, mask


def fixed_size(borders: npt.NDArray[np.int32], max_segments: int | None) -> npt.NDArray[np.int32]:
    """Repeat the last border, so that all batches have as many; refuse a batch that has more."""
    if max_segments is None:
        return borders
    if borders.size - 1 > max_segments:
        raise PlanError(
            f"a batch has {borders.size - 1} segments (samples and paddings), and max_segments is {max_segments}; raise it"
        )
    return np.pad(borders, (0, max_segments + 1 - borders.size), mode="edge")


class Buffers:
    """Memory of earlier batches, for one thread.  A buffer is free when its reference count shows no view or tensor of it.

    New memory of a batch's size would be returned to the system and mapped again at every step, which costs more than filling it.
    """

    def __init__(self) -> None:
        self._kept: dict[str, list[npt.NDArray[np.uint8]]] = {}

    def take(self, name: str, size: int, dtype: Any) -> npt.NDArray[Any]:
        """Return an array of `size`, not initialized.  `name` separates arrays that a consumer may hold separately."""
        kept = self._kept.setdefault(name, [])
        num_bytes = size * np.dtype(dtype).itemsize
        for place in range(len(kept)):
            if _references(kept, place) == _UNUSED:
                if kept[place].size < num_bytes:
                    kept[place] = np.empty(
                        num_bytes + num_bytes // 8, np.uint8
                    )  # sizes of flat rows vary a little
                return kept[place][:num_bytes].view(dtype)
        buffer = np.empty(num_bytes, np.uint8)
        if len(kept) < _MAX_KEPT:
            kept.append(buffer)
        return buffer.view(dtype)


def _references(buffers: list[Any], place: int) -> int:
    return sys.getrefcount(buffers[place])


_UNUSED = _references([np.empty(0)], 0)  # the count if only the list holds a buffer


def join_bits(bits: list[memoryview], shards: Ints, starts: Ints, stops: Ints) -> Bools:
    """Return bits[shard][start:stop] for each of these slices of tokens, end to end, in new memory."""
    low = starts >> 3
    high = (stops + 7) >> 3
    every = view(np.unpackbits(join(bits, shards, low, high, np.uint8), bitorder="little"))
    begins = 8 * (np.cumsum(high - low) - (high - low)) + (starts & 7)
    slices = map(slice, begins.tolist(), (begins + stops - starts).tolist())
    return np.frombuffer(bytearray().join(map(every.__getitem__, slices)), np.bool_)


def call_users(users: Callable[..., Any], arrays: dict[str, Any], trained: int, rows: Rows) -> Made:
    """Return what the user's function makes of the arrays of a step."""
    arrays_of_user = users(arrays, rows)
    if not isinstance(arrays_of_user, dict):
        raise PlanError(
            f"collate gave a {type(arrays_of_user).__name__}, expected a dict of arrays by name"
        )
    labels = arrays_of_user.get("labels")
    if isinstance(labels, np.ndarray):
        trained = int(np.count_nonzero(labels != IGNORE))
    return arrays_of_user, trained


def steps_together(num_tokens: int) -> int:
    """Return how many steps of so many tokens are made at once."""
    return max(1, _TOGETHER // num_tokens)


def in_turn(collate: Any, steps: Sequence[Rows]) -> Iterator[list[Made]]:
    """Yield steps that are made together; an error of one step is raised when its turn comes."""
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
        yield from collate.many([rows])
