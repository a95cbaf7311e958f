"""How does Accelerate take a Loader?  Not through `prepare`, which would deal the batches out again; its state goes with save_state.

batches = attach(accelerator, loader)       # then: for batch in batches, accelerator.save_state(...), accelerator.load_state(...)
"""

from collections.abc import Iterator

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin

from penstock.errors import PlanError
from penstock.loader import Batch, Loader


def attach(accelerator: Accelerator, loader: Loader) -> "Batches":
    """The loader's batches on the accelerator's device.  Its state is saved and loaded with the accelerator's own."""
    ranks = accelerator.num_processes
    if ranks % loader.world.size:
        raise PlanError(
            f"the Loader is one of {loader.world.size} ranks, the Accelerator one of {ranks}; make the Accelerator first, "
            f"or pass the Loader rank= and world_size="
        )
    accelerator.register_for_checkpointing(loader)
    return Batches(accelerator, loader)


class Batches(DataLoaderStateMixin):  # type: ignore[misc]
    """What is left of the run.  Tells the accelerator which batch is the last, so that `accumulate` ends with a step."""

    def __init__(self, accelerator: Accelerator, loader: Loader) -> None:
        self._device, self.gradient_state = accelerator.device, accelerator.gradient_state
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        last = None if self._loader.epochs is None else len(self._loader) - 1
        self.begin()
        try:
            for batch in self._loader:
                self.end_of_dataloader = batch.step == last
                yield batch.to(self._device)
        finally:
            self.end()
