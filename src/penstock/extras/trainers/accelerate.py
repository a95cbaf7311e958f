"""Accelerate with a Loader: move batches to the accelerator's device, and save the Loader's state in save_state and load_state.

    batches = attach(accelerator, loader)                                 # instead of accelerator.prepare(loader)
    evaluated = attach(accelerator, eval_loader, evaluation=True)         # from its first batch at every iteration

`accelerator.prepare(loader)` is refused: it would neither move the batches nor save the loader's state.
"""

import logging
from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin

from penstock.extras.trainers.guards import EvalBatches, expect_loader
from penstock.extras.trainers.isolation import check_at_first_step
from penstock.extras.trainers.model_checks import check_only_model
from penstock.extras.trainers.parallelism import of_accelerator, take_ranks
from penstock.loader import Batch, Loader

_log = logging.getLogger("penstock")


def attach(
    accelerator: Accelerator,
    loader: Loader,
    *,
    evaluation: bool = False,
    isolation_check: bool = True,
) -> "Batches":
    """Return the loader's batches on the accelerator's device.

    The state of a training loader is saved and loaded with the accelerator's own.  evaluation: begin at the first batch at every iteration,
    and save nothing.  isolation_check: at the first step, refuse a model that lets packed samples see each other.
    """
    expect_loader(loader, call="attach")
    take_ranks(loader, of_accelerator(accelerator))
    if not evaluation:
        accelerator.register_for_checkpointing(loader)
        accelerator.register_save_state_pre_hook(_WarnWithinGroup(accelerator))
    return Batches(
        accelerator,
        loader,
        evaluation=evaluation,
        isolation_check=isolation_check and not evaluation,
    )


class _WarnWithinGroup:
    """Warns when a state is saved between two batches of one optimizer step: their gradients are not part of it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def __call__(self, models: Any, weights: Any, output_dir: str) -> None:
        if not self._accelerator.sync_gradients:
            _log.warning(
                "%s is saved within a group of gradient_accumulation_steps=%d batches: the gradients of this group are not saved, and "
                "the Loader counts its batches as delivered, so a resumed run does not train them; save where "
                "accelerator.sync_gradients is True",
                output_dir,
                self._accelerator.gradient_accumulation_steps,
            )


class Batches(DataLoaderStateMixin):  # type: ignore[misc]
    """The batches that are left.  Tells the accelerator which one is the last, so that `accumulate` ends with a step."""

    def __init__(
        self, accelerator: Accelerator, loader: Loader, *, evaluation: bool, isolation_check: bool
    ) -> None:
        self._accelerator = accelerator
        self.gradient_state = accelerator.gradient_state
        self._loader = loader
        self._to_check = isolation_check
        self._is_checked = False
        self._batches = EvalBatches(loader) if evaluation else loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        models = self._accelerator._models  # which were prepared before the first iteration
        take_ranks(self._loader, of_accelerator(self._accelerator, models))
        self._check_models()
        batches = iter(self._batches)
        loader = self._loader
        # without steps that skip_steps= names
        left = loader.run.steps_after(loader.run.start_of_next_loop())
        self.begin()
        try:
            for batch in batches:
                left = None if left is None else left - 1
                self.end_of_dataloader = left == 0
                yield batch.to(self._accelerator.device)
        finally:
            self.end()

    def _check_models(self) -> None:
        """Check the models that were prepared before the first iteration."""
        if self._is_checked:
            return
        self._is_checked = True
        check_only_model(self._accelerator._models, self._loader)
        for model in self._accelerator._models:
            if self._to_check:
                precision = self._accelerator.mixed_precision
                check_at_first_step(model, self._loader, precision=precision)
