"""Give `LossBySource` the outputs of each training step of a Trainer, without a line of the user."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import PlanError
from penstock.extras.losses.observer import LossBySource
from penstock.extras.losses.per_token import of_outputs
from penstock.extras.trainers.model_inputs import Inputs
from penstock.loader import Loader


class RecordsLosses:
    """Mixin for a Trainer: records the losses of its training steps, if it was given a LossBySource.

    The outputs are taken from the model's own forward: asking the Trainer for them would cost trl a second one.
    """

    losses: LossBySource | None = None
    loader: Loader

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Also show the training loss in `penstock view`."""
        loss = logs.get("loss")
        if loss is not None:
            self.loader.log(loss=float(loss))
        above: Any = super()
        above.log(logs, *args, **options)

    def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        above: Any = super()
        if self.losses is None:
            return above.training_step(model, inputs, *args, **options)
        if not isinstance(inputs, Inputs) or inputs.batch is None:
            raise PlanError(
                f"losses= needs the inputs that the Loader's batches became, and {type(self).__name__} trains on a "
                f"{type(inputs).__name__}; in a training_step of your own, call losses.add(batch, logits=…) instead"
            )
        batch = inputs.batch
        with _outputs_of(model) as outputs:
            loss = above.training_step(model, inputs, *args, **options)
        self.losses.add(batch, **self._what_to_record(outputs))
        return loss

    def _what_to_record(self, outputs: list[Any]) -> dict[str, Any]:
        for output in reversed(outputs):
            recorded = of_outputs(output)
            if recorded:
                return recorded
        raise PlanError(
            f"{type(self).__name__} has no losses of tokens to record: the outputs of its model have neither logits nor log_probs, as with "
            f"a fused loss; set use_liger_kernel=False, or leave losses= out"
        )

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        if self.losses is not None:
            self.losses.flush()  # what a resumed run does not train again
        above: Any = super()
        above._save_checkpoint(*args, **options)

    def _inner_training_loop(self, *args: Any, **options: Any) -> Any:
        above: Any = super()
        try:
            return above._inner_training_loop(*args, **options)
        finally:
            if self.losses is not None:
                self.losses.flush()


@contextmanager
def _outputs_of(model: Any) -> Iterator[list[Any]]:
    """Collect what the model's forwards return."""
    outputs: list[Any] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        outputs.append(output)

    handle = model.register_forward_hook(keep)
    try:
        yield outputs
    finally:
        handle.remove()


def check_losses(losses: Any, loader: Loader) -> None:
    """Refuse what is not a LossBySource of this Loader."""
    if losses is None:
        return
    if not isinstance(losses, LossBySource):
        raise PlanError(
            f"losses is {losses!r}, expected LossBySource(loader) of penstock.trainers.losses"
        )
    if losses.loader is not loader:
        raise PlanError(
            "losses= records another Loader; make it with LossBySource(loader) of this one"
        )
