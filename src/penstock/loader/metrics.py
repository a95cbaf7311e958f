"""What went over the wire, and did anybody wait for it?  Sums over the batches handed over, as a plain dict."""

import time
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from penstock.plan.block import Rows

Made = TypeVar("Made")


class Metrics:
    """Of this rank, since this loader was made."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._tokens = np.zeros(len(names), np.int64)  # per source
        self._samples = self._rows = self._padding_rows = self._capacity = self._trained = self._steps = 0
        self._shortest, self._longest = 0, 0
        self._wait = 0.0

    def add(self, rows: Rows, labels: Any, max_length: int) -> None:
        sizes = rows.spans["stop"] - rows.spans["start"]
        self._tokens += np.bincount(rows.spans["source"], weights=sizes, minlength=len(self._names)).astype(np.int64)
        self._samples += int(np.count_nonzero(rows.spans["start"] == 0))
        edges = np.concatenate(([0], np.cumsum(sizes)))[rows.starts]
        row_lengths = np.diff(edges)
        real = row_lengths[row_lengths > 0]
        self._rows += real.size
        self._padding_rows += rows.num_rows - real.size
        self._capacity += rows.num_rows * max_length
        self._steps += 1
        if real.size:
            self._shortest = min(self._shortest or int(real.min()), int(real.min()))
            self._longest = max(self._longest, int(real.max()))
        if labels is not None:
            self._trained += int((labels >= 0).sum())

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
        tokens = int(self._tokens.sum())
        return {
            "steps": self._steps,
            "rows": self._rows,
            "padding_rows": self._padding_rows,
            "samples": self._samples,
            "tokens": tokens,
            "trained_tokens": self._trained,
            "padding_tokens": self._capacity - tokens,
            "fill": tokens / self._capacity if self._capacity else 1.0,
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
