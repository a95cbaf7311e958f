"""Leave samples out of the training without changing its order: their labels become IGNORE, and everything else stays.

    worst = read_losses("run").highest(50)
    leave_out(loader, worst)                  # or {"chat": [17, 4_204]}: row numbers by source

Rows, packing, steps and states stay what they were, so this can be done at any resume.  A state does not hold it: call it again when the
run is resumed.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from penstock.errors import PlanError
from penstock.extras.losses.table import SampleLosses
from penstock.extras.losses.targets import find_targets, require_next_tokens
from penstock.loader import Batch, Loader
from penstock.loader.collate import IGNORE
from penstock.loader.run import Run
from penstock.loader.stages import Made, close
from penstock.plan.plan import NumberedStep
from penstock.settings import whole_number
from penstock.types import WEIGHTS, Bools
from penstock.words import plural

_log = logging.getLogger("penstock")

Samples = SampleLosses | Mapping[str, Sequence[int]]


def leave_out(loader: Loader, samples: Samples) -> "LeftOut":
    """Train no token of these samples from the next loop on; return what counts them.

    samples: those of `RunLosses.highest` and the like, or row numbers by source.
    """
    if loader.kind != "tokens":
        raise PlanError(
            f"leave_out removes labels, and this Loader has {loader.kind}; use it with a Loader of token samples"
        )
    require_next_tokens(loader, "leave_out")
    rows = samples.by_source if isinstance(samples, SampleLosses) else dict(samples)
    stores = dict(zip(loader.run.names, loader.stores, strict=True))
    for source, chosen in rows.items():
        if source not in stores:
            raise PlanError(
                f"the Loader has no source {source!r}, expected one of {', '.join(stores)}"
            )
        for row in chosen:
            number = whole_number(f"a sample of {source!r}", row, least=0)
            if number >= len(stores[source]):
                raise PlanError(
                    f"sample {number:,} of {source!r} does not exist: it has {len(stores[source]):,}, counted from 0"
                )
    left = LeftOut(loader, rows)
    loader.added_stages.append(left)
    loader.observers.append(left)
    return left


class LeftOut:
    """Removes the labels of samples, as a stage; counts them, as an observer."""

    def __init__(self, loader: Loader, rows: Mapping[str, Sequence[int]]) -> None:
        self._loader = loader
        self._rows = {
            source: np.unique(np.array(chosen, np.int64)) for source, chosen in rows.items()
        }
        self.num_samples = 0  # that were delivered without a label
        self.num_tokens = 0  # of them

    def __call__(self, made: Iterator[Made]) -> Iterator[Made]:
        """Yield batches without the labels of these samples."""
        try:
            for step in made:
                yield self._without(step)
        finally:
            close(made)

    def _without(self, made: Made) -> Made:
        labels = made.arrays["labels"]
        rows = made.share.rows
        is_left_out = self._is_left_out(rows.spans)
        if not is_left_out.any():
            return made
        settings = self._loader.plan.settings
        targets = find_targets(rows, labels, order=settings, form=self._loader.form)
        places = targets.places[is_left_out[targets.spans]]
        labels.reshape(-1)[places] = IGNORE
        if WEIGHTS.name in made.arrays:
            made.arrays[WEIGHTS.name].reshape(-1)[places] = 0
        return made._replace(trained=made.trained - places.size)

    def _is_left_out(self, spans: np.ndarray) -> Bools:
        names = self._loader.run.names
        found = np.zeros(spans.size, np.bool_)
        for source, rows in self._rows.items():
            if source in names:
                own = spans["source"] == names.index(source)
                found |= own & np.isin(spans["sample"], rows)
        return found

    def attach(self, loader: Loader) -> None:
        """Nothing has to be known of the Loader."""

    def begin(self, run: Run) -> None:
        total = sum(rows.size for rows in self._rows.values())
        _log.info("%s left out: their labels are removed", plural(total, "sample"))

    def step(self, run: Run, step: NumberedStep, batch: Batch) -> None:
        """Count the samples of this rank's rows."""
        spans = batch.rows.spans
        is_left_out = self._is_left_out(spans)
        self.num_samples += int(np.count_nonzero(is_left_out & (spans["start"] == 0)))
        self.num_tokens += int((spans["stop"] - spans["start"])[is_left_out].sum())

    def end(self, run: Run) -> None:
        _log.info(
            "left out so far, with leave_out: %s, %s",
            plural(self.num_samples, "sample"),
            plural(self.num_tokens, "token"),
        )
