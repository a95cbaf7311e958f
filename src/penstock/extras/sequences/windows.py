"""Windows over long sequences: each is a record."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import SourceError
from penstock.settings import whole_number
from penstock.sources import RowAccess
from penstock.sources.column_views import expect_columns
from penstock.sources.views import FanOut, View
from penstock.types import Record

_NUMBER = "window"  # the key that holds which window of its sequence a record is


def windows(
    source: RowAccess, columns: Sequence[str], *, length: int, stride: int | None = None
) -> View:
    """Return a record for each window of `length` steps over the columns of each record.

    The last window ends with the last step, and each window before it begins `stride` steps earlier (by default, `length`).  Where the
    first one would begin before the sequence, zeros stand in front; `left_pad_length` counts them.  So every step is in a window.
    `start` is the step that a window begins with, and `window` its number.  Other keys of the record stay.
    """
    length = whole_number("length", length, least=1)
    stride = length if stride is None else whole_number("stride", stride, least=1)
    if stride > length:
        raise SourceError(
            f"stride is {stride} and length {length}: steps between two windows would be in none; choose stride <= length"
        )
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise SourceError("columns is empty, expected names of columns that hold a value per step")
    expect_columns(source, names, "windows")
    layout = _Layout(columns=names, length=length, stride=stride)
    return FanOut(source, layout.count, key=_NUMBER).map(layout.cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where windows are."""

    columns: tuple[str, ...]
    length: int
    stride: int

    def count(self, record: Record) -> int:
        """Return how many windows a record has."""
        num_steps = self._num_steps(record)
        return 1 + -(-max(num_steps - self.length, 0) // self.stride)

    def cut(self, record: Record) -> Record:
        """Return one window of a record, which holds the window's number."""
        behind = self.count(record) - 1 - record[_NUMBER]  # windows behind this one
        stop = self._num_steps(record) - behind * self.stride
        start = max(stop - self.length, 0)
        padding = self.length - (stop - start)
        made = dict(record)
        for name in self.columns:
            steps = np.asarray(record[name])[start:stop]
            before = np.zeros((padding, *steps.shape[1:]), dtype=steps.dtype)
            made[name] = np.concatenate([before, steps])
        return {**made, "start": start, "left_pad_length": padding}

    def _num_steps(self, record: Record) -> int:
        lengths = {}
        for name in self.columns:
            value = record.get(name)
            if not isinstance(value, list | tuple | np.ndarray) or not np.ndim(value):
                raise TypeError(
                    f"{name!r} is a {type(value).__name__}, expected a list or an array with a value per step"
                )
            if np.asarray(value).dtype == object:
                raise TypeError(f"{name!r} holds values of several types, expected one")
            lengths[name] = len(value)
        num_steps = next(iter(lengths.values()))
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name!r} has {count:,}" for name, count in lengths.items())
            raise ValueError(
                f"columns of different lengths ({found}), expected as many steps in each"
            )
        if not num_steps:
            raise ValueError("a sequence without steps; leave such records out with filter")
        found_names = [name for name in ("start", "left_pad_length") if name in record]
        if found_names:
            raise ValueError(
                f"the record has the key {found_names[0]!r}, which windows need; rename it"
            )
        return num_steps
