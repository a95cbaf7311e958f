"""How does a Trainer evaluate with a Loader?  From its start each time, every sample once, and a loss per token, not per batch.

    trainer = LoaderTrainer(..., loader=loader, eval_dataset=eval_loader)      # or {"chat": one, "math": another}

The Trainer's own loss is a mean of means: a short last batch counts as much as a full one, and one of padding alone is not a number.
"""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.errors import PlanError
from penstock.integrations.isolation import check_isolation
from penstock.integrations.model_inputs import ModelInputs
from penstock.loader import Loader
from penstock.loader.collate import IGNORE


class EvaluatesLoaders:
    """Part of a Trainer whose eval_dataset may be a Loader, or a dict of them; any other is the Trainer's to handle."""

    eval_dataset: Any
    model: Any
    accelerator: Any
    isolation_check: bool = True
    _isolated: frozenset[Any] = frozenset()  # forms of batches for which the model has passed the check
    _sums: torch.Tensor | None = None  # (loss over all targets, targets) of this rank, while a Loader is evaluated

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        chosen = self.eval_dataset[chosen] if isinstance(chosen, str) else chosen
        if isinstance(chosen, Loader):
            return self._eval_steps(chosen)
        return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        if isinstance(test_dataset, Loader):
            return self._eval_steps(test_dataset)
        return super().get_test_dataloader(test_dataset)  # type: ignore[misc]

    def _eval_steps(self, loader: Loader) -> "EvalSteps":
        steps = EvalSteps(loader, ModelInputs(self.model))
        self.check_isolation(loader, self.model)
        return steps

    def check_isolation(self, loader: Loader, model: Any) -> None:
        """Refuse a model that lets packed samples see each other; once for each form of batch."""
        key = (loader.form, loader.plan.settings.packing)
        if self.isolation_check and key not in self._isolated:
            check_isolation(model, loader, precision=self.accelerator.mixed_precision)
            self._isolated |= {key}

    def evaluation_loop(self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **options: Any) -> Any:
        ours = isinstance(dataloader, EvalSteps)
        device = self.accelerator.device
        kind = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.zeros(2, dtype=kind, device=device) if ours else None
        try:
            output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **options)  # type: ignore[misc]
            if self._sums is not None:
                loss, targets = self.accelerator.reduce(self._sums, "sum").tolist()
                output.metrics[f"{metric_key_prefix}_loss"] = loss / targets if targets else 0.0
            return output
        finally:
            self._sums = None

    def compute_loss(self, *args: Any, num_items_in_batch: Any = None, **options: Any) -> Any:
        """Of an evaluation, the mean over this batch: what all ranks have is counted here, not by the Trainer."""
        num_items = None if self._sums is not None else num_items_in_batch
        return super().compute_loss(*args, num_items_in_batch=num_items, **options)  # type: ignore[misc]

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        loss, *rest = super().prediction_step(model, inputs, *args, **options)  # type: ignore[misc]
        if self._sums is not None and loss is not None:
            targets = (inputs["labels"][:, 1:] != IGNORE).sum().to(self._sums)  # as the model shifts them
            loss = torch.where(targets > 0, loss, torch.zeros_like(loss))  # a batch of padding alone has none
            self._sums += torch.stack([loss.to(self._sums) * targets, targets])
        return (loss, *rest)


class EvalBatches:
    """An evaluation Loader: every iteration begins at its first batch, also where the one before was broken off."""

    def __init__(self, loader: Loader) -> None:
        if loader.epochs is None:
            raise PlanError("an evaluation has an end: the Loader has epochs=None, set epochs=1")
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._loader.seek(self._loader.first_step)
        return iter(self._loader)


def refuse_the_same(loader: Loader | None, evaluated: Loader) -> None:
    """A Loader is at one place: an evaluation would move the training run."""
    if evaluated is loader:
        raise PlanError(
            "one Loader cannot train and evaluate: an evaluation would move it to its start; make a second one"
        )


class EvalSteps(EvalBatches):
    """What the Trainer sees of an evaluation Loader."""

    def __init__(self, loader: Loader, inputs: ModelInputs | None = None) -> None:
        if loader.form.output != "torch" or loader.form.labels != "unshifted":
            raise PlanError("the Trainer evaluates on tensors and shifts labels itself: leave output= and labels= out")
        if loader.epochs != 1 or loader.per_epoch:
            raise PlanError(f"an evaluation is one epoch: the Loader has epochs={loader.epochs}, expected 1")
        if (tail := loader.plan.settings.tail) not in ("pad", "error"):
            raise PlanError(f"tail={tail!r} leaves samples out or repeats them; evaluate with tail='pad', the default")
        super().__init__(loader)
        self._inputs = inputs

    @property
    def dataset(self) -> range:
        """As long as there are samples: the Trainer asks how many it has evaluated."""
        return range(sum(int(source.shard_sizes.sum()) for source in self._loader.plan.sources))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert self._inputs is not None
        return map(self._inputs, super().__iter__())


def steps_done(loader: Loader) -> int:
    """Steps of the pass under way that were handed over."""
    state = loader.state_dict()
    return int(state["step"]) - int(state.get("pass_step", 0))


def loaders_in(eval_dataset: Any) -> list[Loader]:
    """The Loaders that were given to evaluate on, each looked at; all of a dict, or none."""
    given = list(eval_dataset.values()) if isinstance(eval_dataset, dict) else [eval_dataset]
    found = [value for value in given if isinstance(value, Loader)]
    if found and len(found) < len(given):
        raise PlanError("eval_dataset has Loaders and other data sets; give one kind")
    for loader in found:
        EvalSteps(loader)
    return found
