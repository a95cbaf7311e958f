"""Accelerate with a Loader: move batches to the accelerator's device, and save the Loader's state in save_state and load_state.

    batches = attach(accelerator, loader)                                 # instead of accelerator.prepare(loader)
    evaluated = attach(accelerator, eval_loader, evaluation=True)         # from its first batch at every iteration

`accelerator.prepare(loader)` is refused: it would neither move the batches nor save the loader's state.
"""

from collections.abc import Iterator

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin

from penstock.errors import PlanError
from penstock.integrations.isolation import check_at_first_step
from penstock.loader import Batch, Loader
from penstock.loader.guards import EvalBatches, expect_loader

_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")  # a forward of the model alone does not run there


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
    ranks = accelerator.num_processes
    if ranks % loader.world.size:
        raise PlanError(
            f"the Loader is one of {loader.world.size} ranks, the Accelerator one of {ranks}; make the Accelerator first, "
            f"or pass the Loader rank= and world_size="
        )
    if not evaluation:
        accelerator.register_for_checkpointing(loader)
    return Batches(
        accelerator,
        loader,
        evaluation=evaluation,
        isolation_check=isolation_check and not evaluation,
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
        self._batches = EvalBatches(loader) if evaluation else loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        self._check_isolation()
        batches = iter(self._batches)
        loader = self._loader
        left = loader.steps_after(loader.start_of_next_loop())  # without steps that skip= names
        self.begin()
        try:
            for batch in batches:
                left = None if left is None else left - 1
                self.end_of_dataloader = left == 0
                yield batch.to(self._accelerator.device)
        finally:
            self.end()

    def _check_isolation(self) -> None:
        """Check the models that were prepared before the first iteration."""
        if self._to_check and self._accelerator.distributed_type not in _SHARDED:
            for model in self._accelerator._models:
                check_at_first_step(
                    model, self._loader, precision=self._accelerator.mixed_precision
                )
        self._to_check = False
