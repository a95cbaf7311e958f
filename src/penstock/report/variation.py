"""How much rows differ in the number of their samples: 0 where all hold as many, about 0.3 to 0.6 where rows are random draws.

A packing that puts samples of one length into one row makes rows differ much more: in what they hold, and in their trained tokens.
"""

import numpy as np

from penstock.plan.plan import Plan
from penstock.plan.rows import Rows


class VariationCounter:
    """Counts the samples in each row; `add` takes rows, padding is left out."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0
        self._squares = 0

    def add(self, rows: Rows) -> None:
        counts = np.diff(rows.starts)
        self._rows += int(np.count_nonzero(counts))
        self._sum += int(counts.sum())
        self._squares += int((counts * counts).sum())

    @property
    def mean(self) -> float:
        """Samples per row."""
        return self._sum / self._rows if self._rows else 0.0

    @property
    def variation(self) -> float:
        """The coefficient of variation of samples per row: standard deviation over mean."""
        if not self._rows:
            return 0.0
        variance = self._squares / self._rows - self.mean**2
        return float(np.sqrt(max(variance, 0.0)) / self.mean)


def epoch_variation(plan: Plan, epoch: int = 0) -> float:
    """Return the variation over all rows of an epoch; packs them, unless the plan has them in its cache."""
    counter = VariationCounter()
    number = 0
    while (packed := plan.pack(epoch, number)) is not None:
        counter.add(packed.rows)
        number += 1
    return counter.variation
