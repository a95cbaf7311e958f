"""The losses of a run for the page: curves by source, means by position, samples that stand out, and losses of tokens."""

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.extras.losses.files import losses_folder
from penstock.extras.losses.table import RunLosses, SampleLosses, read_losses
from penstock.extras.view.facts import whole
from penstock.types import Ints

_MOST_SAMPLES = 200  # of one list
_MOST_BINS = 600


class LossView:
    """Reads the losses of runs, again when their files have changed."""

    def __init__(self, root: Path | None, names: list[str], starts: Ints, plan: str | None) -> None:
        """names, starts: of the sources, and where their records begin.  plan: fingerprint; other plans have other samples."""
        self._root = root
        self._names = names
        self._starts = starts
        self._plan = plan
        self._lock = threading.Lock()
        self._read: tuple[str, Any, RunLosses] | None = None  # run, what its files were, losses

    def of_run(self, run_id: str | None) -> RunLosses | None:
        """Return what a run has recorded; None if that is nothing."""
        if self._root is None or not run_id:
            return None
        stamp = _stamp(losses_folder(self._root, run_id))
        if not stamp:
            return None
        with self._lock:
            if self._read is None or self._read[:2] != (run_id, stamp):
                try:
                    found = read_losses(run_id, root=self._root, plan=self._plan)
                except PlanError as error:
                    if "no losses of run" in str(error):  # only of another plan
                        return None
                    raise
                self._read = (run_id, stamp, found)
            return self._read[2]

    def answer(self, asked: Mapping[str, str], run_id: str | None) -> dict[str, Any]:
        """Return what the page Losses shows."""
        found = self.of_run(run_id)
        if found is None:
            return {"run_id": run_id, "recorded": False}
        bins = min(whole(asked.get("bins") or "300", "bins", least=1), _MOST_BINS)
        count = min(whole(asked.get("count") or "20", "count"), _MOST_SAMPLES)
        curves = found.curves(bins)
        first, last = found.steps
        return {
            "run_id": run_id,
            "recorded": True,
            "steps": [first, last],
            "missing": found.num_missing,
            "starts": curves[0].steps.tolist(),
            "curves": [
                {"source": curve.source, "losses": _numbers(curve.losses)} for curve in curves
            ],
            "totals": {
                source: {"loss": total / targets if targets else None, "targets": targets}
                for source, (total, targets) in found.totals().items()
            },
            "positions": found.by_position(),
            "highest": self._lines(found.highest(count)),
            "falling": self._lines(found.fastest_falling(count)),
        }

    def _lines(self, samples: SampleLosses) -> list[dict[str, Any]]:
        """Return samples as lines of a list; `row` is their number over all sources."""
        lines = []
        for sample in samples:
            row = None
            if sample.source in self._names:
                start = int(self._starts[self._names.index(sample.source)])
                row = start + sample.sample
            lines.append(
                {
                    "row": row,
                    "source": sample.source,
                    "sample": sample.sample,
                    "loss": sample.loss,
                    "first_loss": sample.first_loss,
                    "excess": sample.excess,
                    "times": sample.times,
                    "steps": list(sample.steps[:8]),
                }
            )
        return lines

    def of_sample(self, run_id: str | None, source: str, sample: int) -> dict[str, Any] | None:
        """Return the losses of one sample, those of its tokens too if they were kept; None if it was not trained."""
        found = self.of_run(run_id)
        if found is None or source not in found.names:
            return None
        losses = found.of_sample(source, sample)
        if losses is None:
            return None
        return {
            "loss": losses.loss,
            "excess": losses.excess,
            "first_loss": losses.first_loss,
            "times": losses.times,
            "tokens": {
                place: round(loss, 3) for place, loss in found.tokens_of(source, sample).items()
            },
        }


def _stamp(folder: Path) -> tuple[Any, ...]:
    """Return what tells whether the files of a folder have changed."""
    stats = [(path.name, path.stat()) for path in sorted(folder.glob("*.arrow"))]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def _numbers(values: Any) -> list[float | None]:
    """Return numbers for JSON, which has no nan."""
    return [None if math.isnan(value) else value for value in np.asarray(values).tolist()]
