"""How does trl's SFTTrainer take a Loader?  As the Trainer does; it neither tokenizes nor packs the training data again.

trainer = LoaderSFTTrainer(model=model, args=SFTConfig(...), processing_class=tokenizer, loader=loader)
"""

from typing import Any

from datasets import Dataset
from trl import SFTTrainer

from penstock.errors import PlanError
from penstock.integrations.evaluation import loaders_in
from penstock.integrations.hf_trainer import FromLoader
from penstock.loader import Loader

# What the store and the plan have settled already.
_SETTLED = {
    "packing": "packing= of the Loader",
    "padding_free": "padding_free= of the Loader",
    "assistant_only_loss": "train_on= of prepare",
    "completion_only_loss": "train_on= of prepare",
}


class LoaderSFTTrainer(FromLoader, SFTTrainer):  # type: ignore[misc]
    """trl.SFTTrainer, fed by a Loader.  An eval_dataset may be a Loader, or a dict of them; any other is prepared by trl as ever."""

    def __init__(self, *, loader: Loader, args: Any = None, **options: Any) -> None:
        for name, home in _SETTLED.items():
            if getattr(args, name, None):
                raise PlanError(
                    f"SFTConfig has {name}={getattr(args, name)!r}, which is for {home} to say; leave it out"
                )
        if options.pop("train_dataset", None) is not None or options.get("formatting_func") is not None:
            raise PlanError("the training data comes from the Loader: leave out train_dataset and formatting_func")
        # SFTTrainer looks at a first row to learn what it is given; training never reads it.
        row = Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
        evaluated = options.get("eval_dataset")
        if loaders_in(evaluated):
            options["eval_dataset"] = row
        super().__init__(loader=loader, args=args, train_dataset=row, **options)
        if loaders_in(evaluated):
            self.eval_dataset = evaluated

    def evaluate(self, eval_dataset: Any = None, **options: Any) -> Any:
        if loaders_in(eval_dataset):  # SFTTrainer would tokenize them
            return super(SFTTrainer, self).evaluate(eval_dataset=eval_dataset, **options)
        return super().evaluate(eval_dataset=eval_dataset, **options)
