"""Add up losses by source, sample and position while a model trains.

    losses = LossBySource(loader)                    # needs run_id= in the Loader, or folder=
    for batch in loader:
        outputs = model(**inputs(batch))
        losses.add(batch, logits=outputs.logits)     # the one call in a loop of your own
        ...

    LoaderTrainer(model=model, args=args, loader=loader, losses=LossBySource(loader))    # or LoaderSFTTrainer: the one argument

What is recorded is the cross-entropy of every target, without weights of tokens and without label smoothing.  Ranks write files of their
own, so nothing is sent between them.  `read_losses` and `penstock losses` read them, and `penstock view` shows them.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.cache import open_cache
from penstock.errors import PlanError
from penstock.extras.losses.files import Life, LossFiles, losses_folder
from penstock.extras.losses.outstanding import Outstanding
from penstock.extras.losses.per_token import target_losses
from penstock.extras.losses.targets import (
    Targets,
    find_targets,
    require_next_tokens,
    sum_pieces,
    sum_positions,
)
from penstock.loader import Batch, Loader
from penstock.loader.run import Run
from penstock.plan.plan import NumberedStep

_MOST_WAITING = 8  # batches whose losses stay on their device, so that a step does not wait for it
_OUTPUTS = "torch"
_ROW_PLACES = "row_places"  # an array of batches whose rows are cut for context parallelism


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The losses of a batch, on their device."""

    step: int
    spans: np.ndarray
    targets: Targets
    losses: torch.Tensor


class LossBySource:
    """Records the loss of every piece of a sample that is trained.  An observer of its Loader."""

    def __init__(self, loader: Loader, *, folder: str | os.PathLike[str] | None = None) -> None:
        """folder: where the files go; else next to the status of the run, which needs run_id= in the Loader."""
        if loader.kind != "tokens":
            raise PlanError(
                f"LossBySource records the loss of tokens, and this Loader has {loader.kind}; use it with a Loader of token samples"
            )
        if loader.form.output != _OUTPUTS:
            raise PlanError(
                f"LossBySource needs tensors, and this Loader has output={loader.form.output!r}; set output='torch'"
            )
        require_next_tokens(loader, "LossBySource")
        if folder is None and loader.settings.run_id is None:
            raise PlanError(
                "LossBySource writes its files under the name of the run: give the Loader run_id='…', or LossBySource folder='…'"
            )
        self.loader = loader
        self._run_id = str(
            loader.settings.run_id if loader.settings.run_id is not None else Path(str(folder)).name
        )
        cache = loader.stores[0].cache or open_cache()
        self.folder = losses_folder(cache.root, self._run_id) if folder is None else Path(folder)
        self._files: LossFiles | None = None
        self._next_step = 0  # of this life: one before it is a step back
        self._waiting: list[_Waiting] = []
        self._num_delivered = 0
        self._num_added = 0
        loader.observers.append(self)

    # As an observer

    def attach(self, loader: Loader) -> None:
        """Nothing has to be known of the Loader."""

    def begin(self, run: Run) -> None:
        """Begin a new life at the first loop, and after a step back."""
        if self._files is None or run.cursor.step < self._next_step:
            self._begin_life(run.cursor.step)

    def step(self, run: Run, step: NumberedStep, batch: Batch) -> None:
        """Count what was delivered, to say which losses are missing."""
        self._num_delivered += 1

    def end(self, run: Run) -> None:
        """Write what is left."""
        self.flush()

    @property
    def num_missing(self) -> int:
        """Batches that this loader has delivered and that were not added, so far."""
        return self._num_delivered - self._num_added

    def _begin_life(self, step: int) -> None:
        self.flush()
        world = self.loader.world
        life = Life(
            run_id=self._run_id,
            plan=self.loader.plan.fingerprint,
            rank=world.rank,
            world_size=world.size,
            first_step=step,
            begun=time.time(),
        )
        self._files = LossFiles(self.folder, life)
        self._outstanding = Outstanding()
        self._next_step = step

    # Losses

    def add(
        self,
        batch: Batch,
        *,
        logits: torch.Tensor | None = None,
        per_token: torch.Tensor | None = None,
    ) -> None:
        """Record the losses of a batch, from the model's logits or from losses per token that you have."""
        self._num_added += 1
        if _ROW_PLACES in batch:
            raise PlanError(
                "LossBySource needs whole rows, and context_split gives each rank a part of them; leave one of them out"
            )
        labels: Any = batch.get("labels")
        if not torch.is_tensor(labels):
            raise PlanError(
                f"LossBySource needs the labels of the batch, and it has {', '.join(map(repr, batch)) or 'nothing'}; give add() the batch "
                f"as the Loader delivered it"
            )
        order = self.loader.plan.settings
        form = self.loader.form
        targets = find_targets(batch.rows, labels.cpu().numpy(), order=order, form=form)
        losses = target_losses(
            labels,
            torch.from_numpy(targets.places),
            is_shifted=form.labels == "shifted",
            logits=logits,
            per_token=per_token,
        )
        if self._files is None or batch.step < self._next_step:  # of workers, which begin the loop
            self._begin_life(batch.step)
        self._waiting.append(_Waiting(batch.step, batch.rows.spans, targets, losses))
        self._next_step = max(self._next_step, batch.step + 1)
        is_at_hand = losses.device.type == "cpu"
        if is_at_hand or len(self._waiting) >= _MOST_WAITING:
            self._add_up()

    def _add_up(self) -> None:
        """Bring what waits from its device, and add it to the files."""
        if (
            self._waiting and self._files is None
        ):  # batches of workers, before a loop of this process
            self._begin_life(self._waiting[0].step)
        files = self._files
        waiting = self._waiting
        self._waiting = []
        if files is None:
            return
        files.name_sources(self.loader.run.names)
        for added in waiting:
            losses = added.losses.double().cpu().numpy()
            spans = added.spans
            pieces = sum_pieces(added.targets, losses)
            of_pieces = {
                "step": np.full(pieces.spans.size, added.step),
                "source": spans["source"][pieces.spans],
                "sample": spans["sample"][pieces.spans],
                "start": spans["start"][pieces.spans],
                "loss": pieces.losses,
                "targets": pieces.targets,
            }
            files.add("pieces", of_pieces)
            positions = sum_positions(added.targets, losses, spans["source"])
            of_positions = {
                "step": np.full(positions.sources.size, added.step),
                "source": positions.sources,
                "bucket": positions.buckets,
                "loss": positions.losses,
                "targets": positions.targets,
            }
            files.add("positions", of_positions)
            self._outstanding.add(added.step, spans, added.targets, losses, pieces)
        if files.is_due:
            self._write(files)

    def _write(self, files: LossFiles) -> None:
        if self._outstanding.has_news:
            files.replace("tokens", self._outstanding.columns())
        files.write()

    def flush(self) -> None:
        """Write everything that was added.  Call it where you save a checkpoint: what is written up to there survives a kill."""
        self._add_up()
        if self._files is not None:
            self._write(self._files)
