"""What went over the wire, and did anybody wait for it?  Sums over the batches handed over, as a plain dict."""

import time
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from penstock.plan.block import Rows

Made = TypeVar("Made")

_AT_ONCE = 64  # steps added up together: a step's share of the work is then small beside making it


class Metrics:
    """Of this rank, since this loader was made."""

    def __init__(self, names: list[str], max_length: int) -> None:
        self._names, self._max_length = names, max_length
        self._tokens = np.zeros(len(names), np.int64)  # per source
        self._samples = self._rows = self._padding_rows = self._trained = self._steps = 0
        self._shortest, self._longest = 0, 0
        self._wait = 0.0
        self._pending: list[Rows] = []  # handed over, and not added up yet

    def add(self, rows: Rows, trained: int) -> None:
        self._trained += trained
        self._steps += 1
        self._pending.append(rows)
        if len(self._pending) >= _AT_ONCE:
            self._add_up()

    def _add_up(self) -> None:
        rows, self._pending = Rows.join(self._pending), []
        sizes = rows.spans["stop"] - rows.spans["start"]
        self._tokens += np.bincount(rows.spans["source"], weights=sizes, minlength=len(self._names)).astype(np.int64)
        self._samples += int(np.count_nonzero(rows.spans["start"] == 0))
        row_lengths = np.diff(np.concatenate(([0], np.cumsum(sizes)))[rows.starts])
        real = row_lengths[row_lengths > 0]
        self._rows += real.size
        self._padding_rows += rows.num_rows - real.size
        if real.size:
            self._shortest = min(self._shortest or int(real.min()), int(real.min()))
            self._longest = max(self._longest, int(real.max()))

    def timed(self, made: Iterator[Made]) -> Iterator[Made]:
        """`made`, with the time spent waiting for each added up."""
        while True:
            before = time.perf_counter()
            try:
                value = next(made)
            except StopIteration:
                return
            self._wait += time.perf_counter() - before
            yield value

    def as_dict(self) -> dict[str, Any]:
        self._add_up()
        tokens = int(self._tokens.sum())
        capacity = (self._rows + self._padding_rows) * self._max_length
        return {
            "steps": self._steps,
            "rows": self._rows,
            "padding_rows": self._padding_rows,
            "samples": self._samples,
            "tokens": tokens,
            "trained_tokens": self._trained,
            "padding_tokens": capacity - tokens,
            "fill": tokens / capacity if capacity else 1.0,
            "row_length": {
                "min": self._shortest,
                "mean": tokens / self._rows if self._rows else 0.0,
                "max": self._longest,
            },
            "shares": {
                name: int(count) / tokens if tokens else 0.0
                for name, count in zip(self._names, self._tokens, strict=True)
            },
            "wait_seconds": self._wait,
        }
