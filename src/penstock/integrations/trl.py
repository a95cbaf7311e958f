"""trl's SFTTrainer with a Loader: it works like `LoaderTrainer`, and does not tokenize or pack the training data again.

trainer = LoaderSFTTrainer(model=model, args=SFTConfig(...), processing_class=tokenizer, loader=loader)
"""

from typing import Any

from datasets import Dataset
from trl import SFTTrainer

from penstock.integrations.hf_trainer import FromLoader, loaders_in
from penstock.integrations.model_inputs import Inputs


class _WithoutDatasets(SFTTrainer):  # type: ignore[misc]
    """An SFTTrainer without a data set to train on, whose evaluation data may be Loaders."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # SFTTrainer reads a first row to find the kind of its data; training never reads it.
        row = Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
        evaluated = options.get("eval_dataset")
        replaced = {"eval_dataset": row} if loaders_in(evaluated) else {}
        super().__init__(*args, **{**options, "train_dataset": row, **replaced})
        if replaced:
            self.eval_dataset = evaluated

    def evaluate(self, eval_dataset: Any = None, **options: Any) -> Any:
        if loaders_in(eval_dataset):  # SFTTrainer would tokenize them
            return super(SFTTrainer, self).evaluate(eval_dataset=eval_dataset, **options)
        return super().evaluate(eval_dataset=eval_dataset, **options)


class LoaderSFTTrainer(FromLoader, _WithoutDatasets):
    """trl.SFTTrainer, fed by a Loader.  An eval_dataset may be a Loader or a dict of them; trl prepares any other as usual."""

    _total_train_tokens: int
    _tokens: int | None = None  # of the current batch; None if a subclass makes its own inputs

    def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        self._tokens = inputs.tokens if isinstance(inputs, Inputs) else None
        return super().training_step(model, inputs, *args, **options)

    def compute_loss(self, *args: Any, **options: Any) -> Any:
        """Count the tokens of all samples as num_tokens; SFTTrainer counts the length of a row, as if it held one sample."""
        before = self._total_train_tokens
        found = super().compute_loss(*args, **options)
        if self.model.training and self._tokens is not None:
            self._total_train_tokens = before + self._over_ranks(self._tokens)
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
        return found
