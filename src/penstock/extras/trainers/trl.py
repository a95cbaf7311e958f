"""trl's trainers with a Loader: they work like `LoaderTrainer`, and do not tokenize, cut or pack the training data again.

trainer = LoaderSFTTrainer(model=model, args=SFTConfig(...), processing_class=tokenizer, loader=loader)
trainer = LoaderDPOTrainer(model=model, args=DPOConfig(...), processing_class=tokenizer, loader=loader)   # template "preference"
trainer = LoaderKTOTrainer(model=model, args=KTOConfig(...), processing_class=tokenizer, loader=loader)   # template "kto"
trainer = LoaderRewardTrainer(model=model, args=RewardConfig(...), processing_class=tokenizer, loader=loader)   # "preference"
"""

from inspect import signature
from typing import Any, ClassVar

import torch
from datasets import Dataset
from trl import DPOTrainer, KTOTrainer, RewardTrainer, SFTTrainer

from penstock.errors import PlanError
from penstock.extras.trainers.hf_trainer import FromLoader, MakeInputs, loaders_in
from penstock.extras.trainers.model_inputs import Inputs, NamedInputs
from penstock.extras.trainers.sequences import JUDGED, PAIRS, TOKENS
from penstock.extras.trainers.wrapped import bare_model
from penstock.loader import Loader

_SAMPLE = {"input_ids": [0, 0], "labels": [0, 0]}
_JUDGED = {
    "prompt": "-",
    "prompt_ids": [0],
    "completion_ids": [0],
    "KL_completion_ids": [0],
    "label": True,
}
_PAIR = {"prompt": "-", "prompt_ids": [0], "chosen_ids": [0], "rejected_ids": [0]}
_SEQUENCE = ("input_ids", "attention_mask", "completion_mask")


class _WithoutDatasets:
    """A trainer of trl without a dataset to train on, whose evaluation data may be Loaders."""

    first_row: ClassVar[
        dict[str, Any]
    ]  # read to find the kind of the data; training never reads it
    of_trl: ClassVar[type]  # the trainer that would tokenize Loaders

    def __init__(self, *args: Any, **options: Any) -> None:
        self._first = row = Dataset.from_list([self.first_row])
        evaluated = options.get("eval_dataset")
        replaced = {"eval_dataset": row} if loaders_in(evaluated) else {}
        super().__init__(*args, **{**options, "train_dataset": row, **replaced})
        if replaced:
            self.eval_dataset = evaluated

    def _prepare_dataset(self, dataset: Any, *args: Any, **options: Any) -> Any:
        if dataset is self._first:
            return dataset
        return super()._prepare_dataset(dataset, *args, **options)  # type: ignore[misc]

    def evaluate(self, eval_dataset: Any = None, **options: Any) -> Any:
        above: Any = super(self.of_trl, self) if loaders_in(eval_dataset) else super()
        return above.evaluate(eval_dataset=eval_dataset, **options)


class LoaderSFTTrainer(FromLoader, _WithoutDatasets, SFTTrainer):  # type: ignore[misc]
    """trl.SFTTrainer, fed by a Loader.  An eval_dataset may be a Loader or a dict of them; trl prepares any other as usual."""

    takes = (TOKENS,)
    first_row = _SAMPLE
    of_trl = SFTTrainer

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


class _Preferences(FromLoader):
    """A trainer whose batches are those of trl's own collator.  The loss of an evaluation is a mean over pairs, or over answers."""

    names: ClassVar[tuple[str, ...]]  # of the arrays that trl's own collator makes
    of_trl: ClassVar[type]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.positional = tuple(
            signature(cls.of_trl).parameters
        )  # DPO and KTO have ref_model before args

    def make_inputs(self, loader: Loader) -> MakeInputs:
        return NamedInputs(self.names)

    def num_targets(self, inputs: Any) -> torch.Tensor:
        return torch.tensor(len(inputs["input_ids"]) // (2 if PAIRS in self.takes else 1))


class LoaderDPOTrainer(_Preferences, _WithoutDatasets, DPOTrainer):  # type: ignore[misc]
    """trl.DPOTrainer, fed by a Loader of preference pairs."""

    takes = (PAIRS,)
    names = _SEQUENCE
    first_row = _PAIR
    of_trl = DPOTrainer


class LoaderKTOTrainer(_Preferences, _WithoutDatasets, KTOTrainer):  # type: ignore[misc]
    """trl.KTOTrainer, fed by a Loader of judged answers.  Mismatched answers, for the KL divergence, are of the same batch."""

    takes = (JUDGED,)
    names = (*_SEQUENCE, *(f"KL_{name}" for name in _SEQUENCE), "label")
    first_row = _JUDGED
    of_trl = KTOTrainer


class LoaderRewardTrainer(_Preferences, _WithoutDatasets, RewardTrainer):  # type: ignore[misc]
    """trl.RewardTrainer, fed by a Loader of preference pairs, with their margins if the store has them."""

    takes = (PAIRS,)
    names = ("input_ids", "attention_mask", "margin")
    first_row = _PAIR
    of_trl = RewardTrainer

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._check_padding(self.loader)

    def _eval_steps(self, loader: Loader) -> Any:
        self._check_padding(loader)
        return super()._eval_steps(loader)

    def _check_padding(self, loader: Loader) -> None:
        """The model scores the last token that is not padding, and knows padding by its id."""
        expected = bare_model(self.model).config.get_text_config().pad_token_id
        if loader.form.pad_token_id != expected:
            raise PlanError(
                f"the Loader pads with pad_token_id={loader.form.pad_token_id}, and the model finds the end of a "
                f"sequence by its pad_token_id, "
                f"{expected}; pass pad_token_id={expected} to the Loader"
            )
