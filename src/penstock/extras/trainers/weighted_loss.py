"""Weights of tokens in the loss of transformers' and trl's Trainers.

The loss of an optimizer step is the sum of weight × loss of all its tokens, divided by the sum of their weights: over all batches that are
accumulated, and over all ranks if the Trainer averages tokens across devices, as it does by default.  It goes through the Trainers' own
`compute_loss_func`, so accumulation, mixed precision and scaling stay theirs.  With weights of 1, it is their own loss.
"""

from typing import Any

import torch

from penstock.errors import PlanError
from penstock.extras.trainers.sequences import TOKENS
from penstock.loader import Loader
from penstock.loader.collate import IGNORE
from penstock.types import WEIGHTS


class WeightedLoss:
    """A `compute_loss_func` that knows the weights of the batch that is computed."""

    def __init__(self) -> None:
        self.weights: torch.Tensor | None = None  # of the current batch; None: all labels count 1

    def __call__(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> Any:
        """Return the weighted sum over num_items_in_batch, which is the sum of the weights of a whole step; else over this batch's."""
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        targets = labels[:, 1:].flatten().to(logits.device)
        weights = _of_targets(labels, self.weights).flatten().to(logits.device)
        predictions = logits[:, :-1].flatten(0, 1).float()
        losses = torch.nn.functional.cross_entropy(
            predictions, targets, reduction="none", ignore_index=IGNORE
        )
        total = weights.sum() if num_items_in_batch is None else num_items_in_batch
        total = torch.as_tensor(total, device=losses.device, dtype=losses.dtype)
        no_targets = total == 0  # only padding
        return (losses * weights).sum() / torch.where(no_targets, torch.ones_like(total), total)


def _of_targets(labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return the weights of the labels that a model's loss compares: all but the first of a row, which nothing predicts."""
    if weights is None:
        return (labels[:, 1:] != IGNORE).float()
    return weights[:, 1:].float()


class WeighsTokens:
    """Mixin for a Trainer: its loss uses the weights of tokens in the batches of Loaders that have them."""

    args: Any
    accelerator: Any
    compute_loss_func: Any
    label_smoother: Any
    _weighted: WeightedLoss | None = None

    def use_weights(self, loader: Loader) -> None:
        """Compute the loss with weights from here on; refuse a Trainer whose loss is not the one that can be weighted."""
        if self._weighted is None:
            self._refuse_other_losses(loader)
            self._weighted = WeightedLoss()
            self.compute_loss_func = self._weighted

    def _refuse_other_losses(self, loader: Loader) -> None:
        name = type(self).__name__
        config = self.accelerator.parallelism_config
        reason = ""
        if loader.kind != TOKENS:
            reason = f"its samples are {loader.kind}"
        elif self.compute_loss_func is not None:
            reason = "compute_loss_func= is not given the weights"
        elif self.label_smoother is not None:
            reason = f"label_smoothing_factor={self.args.label_smoothing_factor} is not weighted"
        elif getattr(self.args, "loss_type", "nll") != "nll":  # of trl's SFTConfig
            reason = f"loss_type={self.args.loss_type!r} is not weighted"
        elif config is not None and (config.cp_enabled or config.sp_enabled):
            reason = "context parallelism does not cut the weights"
        if reason:
            raise PlanError(
                f"the Loader has weights of tokens, and the loss of {name} does not use them: {reason}; subclass it with a compute_loss "
                f"that reads inputs.pop('weights'), or prepare without message_weights"
            )

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        if self._weighted is not None:
            self._weighted.weights = inputs.pop(WEIGHTS.name, None)
        above: Any = super()
        return above.compute_loss(model, inputs, *args, **options)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Return the sum of the weights of a whole step, where the Trainer would count its labels; over all ranks, as it does."""
        above: Any = super()
        if self._weighted is None or not batch_samples:
            return above._get_num_items_in_batch(batch_samples, device)
        sums = [
            _of_targets(batch["labels"], batch.get(WEIGHTS.name)).sum() for batch in batch_samples
        ]
        total = torch.stack(sums).sum().to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            total = self.accelerator.gather(total).sum()
        tensor_parallel_size = self.get_tp_size()  # type: ignore[attr-defined]
        return total / tensor_parallel_size  # whose ranks have the same rows
