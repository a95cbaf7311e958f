"""Batches of inputs and targets: the collate function for records of windows, in the form that sequifier trains with."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.settings import whole_number
from penstock.types import Record
from penstock.words import did_you_mean

Arrays = dict[str, Any]
_DEPTH = "depth_valid_masks."  # begins the names of masks in records of .pt chunks


class SequenceBatch(NamedTuple):
    """Inputs, the same steps later as targets, and which steps are real; also a tuple (inputs, targets, metadata, …)."""

    inputs: Arrays  # column → (rows, steps, …)
    targets: Arrays
    # attention_valid_mask and target_valid_mask, both (rows, steps), and sample_valid_mask (rows,)
    metadata: Arrays
    sequence_ids: Any = None
    subsequence_ids: Any = None


class SequenceBatches:
    """A collate function: records of windows → inputs and targets.

    inputs, targets: names of columns; targets default to the inputs.
    length: steps that the model sees, the last ones of each window; None for all but those that only targets need.
    target_offset: how many steps later a target is than its input; 0 for models that fill gaps.
    stored_offset: how many steps more than the longest input the windows hold, as `max_target_offset` of sequifier; else target_offset.
    output: torch or numpy.

    A target is valid if it is not padding and, where records have `split_start_item_position`, inside its split.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        targets: Sequence[str] | None = None,
        *,
        length: int | None = None,
        target_offset: int = 1,
        stored_offset: int | None = None,
        output: str = "torch",
    ) -> None:
        self._inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        chosen = self._inputs if targets is None else targets
        self._targets = (chosen,) if isinstance(chosen, str) else tuple(chosen)
        self._length = None if length is None else whole_number("length", length, least=1)
        self._offset = whole_number("target_offset", target_offset, least=0)
        stored = target_offset if stored_offset is None else stored_offset
        self._stored = whole_number("stored_offset", stored, least=0)
        if self._offset > self._stored:
            raise SourceError(
                f"target_offset is {target_offset}, but windows hold {stored} steps behind the inputs (stored_offset)"
            )
        if output not in ("torch", "numpy"):
            raise SourceError(f"output is {output!r}, expected 'torch' or 'numpy'")
        self._output = output

    def __call__(self, records: Sequence[Record]) -> SequenceBatch:
        """Return the inputs, targets, masks and ids of windows of one width."""
        width = self._width(records)
        of_inputs, of_targets = self._steps_of_model(width)
        masks = self._masks(records, width, of_inputs, of_targets)
        sequence_ids = _ids(records, "sequence_id")
        subsequence_ids = _ids(records, "subsequence_id")
        inputs = {name: _stacked(records, name)[:, of_inputs] for name in self._inputs}
        targets = {name: _stacked(records, name)[:, of_targets] for name in self._targets}
        return SequenceBatch(
            inputs=self._in_output(inputs),
            targets=self._in_output(targets),
            metadata=self._in_output(masks),
            sequence_ids=None if sequence_ids is None else self._as_output(sequence_ids),
            subsequence_ids=None if subsequence_ids is None else self._as_output(subsequence_ids),
        )

    def _steps_of_model(self, width: int) -> tuple[slice, slice]:
        """Return the steps of a window that are inputs, and those that are targets: equally many, `target_offset` later."""
        stop = width - self._stored  # the steps behind it are only targets
        length = stop if self._length is None else self._length
        start = stop - length
        if length < 1 or start < 0:
            raise SourceError(
                f"windows of {width} steps, but a length of {length} with {self._stored} steps behind it needs "
                f"{length + self._stored}; choose a smaller length, or make longer windows"
            )
        return slice(start, stop), slice(start + self._offset, stop + self._offset)

    def _masks(
        self, records: Sequence[Record], width: int, of_inputs: slice, of_targets: slice
    ) -> Arrays:
        """Return which inputs, targets and samples are real, and the masks by depth that the records bring."""
        padding = _column(records, "left_pad_length", default=0)[:, None]
        steps = np.arange(width)[None, :]
        is_real = steps >= padding
        is_target = is_real & self._is_inside_split(records, steps)
        masks: Arrays = {
            "attention_valid_mask": is_real[:, of_inputs],
            "target_valid_mask": is_target[:, of_targets],
            "sample_valid_mask": np.ones(len(records), np.bool_),  # no record is repeated to fill
        }
        for name in records[0]:
            if name.startswith(_DEPTH):
                depth = name.removeprefix(_DEPTH)
                masks[f"depth_valid_mask:{depth}"] = _stacked(records, name)[:, of_inputs]
        return masks

    def _width(self, records: Sequence[Record]) -> int:
        for name in (*self._inputs, *self._targets):
            if name not in records[0]:
                known = list(records[0])
                raise SourceError(
                    f"a record has no column {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}"
                )
        return len(records[0][self._inputs[0]])

    def _is_inside_split(self, records: Sequence[Record], steps: Any) -> Any:
        if "split_start_item_position" not in records[0]:
            return True
        positions = _column(records, "start_item_position")[:, None] + steps
        start = _column(records, "split_start_item_position")[:, None]
        end = _column(records, "split_end_item_position")[:, None]
        return (positions >= start) & (positions < end)

    def _in_output(self, arrays: Arrays) -> Arrays:
        return {name: self._as_output(array) for name, array in arrays.items()}

    def _as_output(self, array: npt.NDArray[Any]) -> Any:
        array = np.ascontiguousarray(array)
        if self._output == "numpy":
            return array
        import torch

        return torch.from_numpy(array)


def _column(records: Sequence[Record], name: str, default: int | None = None) -> npt.NDArray[Any]:
    return np.array([record.get(name, default) for record in records], dtype=np.int64)


def _ids(records: Sequence[Record], name: str) -> npt.NDArray[Any] | None:
    """Return a column of ids, or None if the records have none."""
    return _column(records, name) if name in records[0] else None


def _stacked(records: Sequence[Record], name: str) -> npt.NDArray[Any]:
    arrays = [np.asarray(record[name]) for record in records]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1 or not shapes[0]:
        raise SourceError(
            f"{name!r} has the shapes {shapes} in one batch, expected windows of one length; make them with penstock.sequences.windows"
        )
    return np.stack(arrays)
