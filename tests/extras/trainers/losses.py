"""Losses and labels of a Trainer on Loaders, next to the Trainer of transformers itself.  python -m tests.extras.trainers.losses FOLDER"""

import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.modeling_outputs import CausalLMOutput

import penstock as ps
from penstock.errors import PlanError
from penstock.extras.trainers.hf_trainer import FromLoader, LoaderTrainer
from penstock.recipe import Recipe

from .runs import VOCAB, hf_arguments, make_model, open_loader

FOUND: dict[str, Any] = {}


class Said(logging.Handler):
    """Collects what penstock logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


SAID = Said()
logging.getLogger("penstock").addHandler(SAID)


class Scorer(torch.nn.Module):
    """A model of the user's own, without a config: logits of each token, or of each row."""

    def __init__(self, outputs: int = VOCAB) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(VOCAB, 8)
        self.out = torch.nn.Linear(8, outputs)

    def logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(input_ids))


class LabelsFromKeywords(Scorer):
    """Its forward takes labels, and does not name them."""

    def forward(self, input_ids: Any = None, **inputs: Any) -> CausalLMOutput:
        logits = self.logits(input_ids)
        labels = inputs.get("labels")
        loss = None if labels is None else token_loss(logits, labels)
        return CausalLMOutput(loss=loss, logits=logits)


class WithoutLabels(Scorer):
    """Its forward takes no labels: the loss is the Trainer's."""

    def forward(self, input_ids: Any = None) -> CausalLMOutput:
        return CausalLMOutput(logits=self.logits(input_ids))


class RowClassifier(Scorer):
    """One label for each row, under a name of its own."""

    def forward(self, input_ids: Any = None, y: Any = None) -> CausalLMOutput:
        logits = self.logits(input_ids)[:, 0]
        loss = None if y is None else torch.nn.functional.cross_entropy(logits, y)
        return CausalLMOutput(loss=loss, logits=logits)


class Pairwise(Scorer):
    """Labels that are a tuple of tensors."""

    def forward(self, input_ids: Any = None, labels: Any = None) -> CausalLMOutput:
        logits = self.logits(input_ids)[:, 0]
        losses = [torch.nn.functional.cross_entropy(logits, target) for target in labels]
        return CausalLMOutput(loss=sum(losses) / len(losses), logits=logits)


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    plain = {"max_steps": 2, "save_strategy": "no", "eval_strategy": "no"}
    return TrainingArguments(**{**hf_arguments(folder), **plain, **more})


def evaluated(folder: Path, model: Any, trainer: type = LoaderTrainer, **more: Any) -> Any:
    options = more.pop("loader", {})
    loss = more.pop("compute_loss_func", None)
    made = trainer(
        model=model,
        args=arguments(folder, **more),
        loader=open_loader(folder, **options),
        eval_dataset=open_loader(folder, **{**options, "epochs": 1, "batch_size": 4}),
        compute_loss_func=loss,
    )
    return made.evaluate()


def no_labels(folder: Path) -> None:
    """T2: next to the Trainer itself, on the same samples."""
    SAID.lines.clear()
    ours = evaluated(folder, LabelsFromKeywords())
    rows = [
        {"input_ids": row.tolist(), "labels": row.tolist()}
        for batch in open_loader(folder, packing="none", padding="max_length", epochs=1)
        for row in batch["input_ids"]
    ]
    stock = Trainer(
        model=LabelsFromKeywords(),
        args=arguments(folder),
        eval_dataset=Dataset.from_list(rows),
    ).evaluate()
    named = evaluated(folder, LabelsFromKeywords(), label_names=["labels"])
    FOUND["no labels"] = {
        "ours": "eval_loss" in ours,
        "stock": "eval_loss" in stock,
        "said": [line for line in SAID.lines if "eval_loss cannot be computed" in line],
        "named": named.get("eval_loss"),
    }
    nothing = evaluated(
        folder, make_model(dropout=0.0), loader={"collate": without_targets, "epochs": 1}
    )
    FOUND["no targets"] = math.isnan(nothing["eval_loss"])

    class OwnStep(LoaderTrainer):
        """Does not call the step above it: the Trainer's own mean stays."""

        def prediction_step(self, *args: Any, **options: Any) -> Any:
            return torch.tensor(2.0), None, None

    FOUND["a step of the user's own"] = evaluated(folder, LabelsFromKeywords(), OwnStep)[
        "eval_loss"
    ]


def without_targets(arrays: dict[str, Any], rows: Any) -> dict[str, Any]:
    return {**arrays, "labels": np.full_like(arrays["labels"], -100)}


def one_label_a_row(arrays: dict[str, Any], rows: Any) -> dict[str, Any]:
    """A label of 0 to 2 for each row, by its first token; the last batch has fewer rows."""
    ids = arrays["input_ids"][(arrays["seq_idx"] >= 0).any(1)]
    return {"input_ids": ids, "y": ids[:, 0] % 3, "labels": ids[:, 0] % 3}


def pairs_of_labels(arrays: dict[str, Any], rows: Any) -> dict[str, Any]:
    made = one_label_a_row(arrays, rows)
    first, second = torch.tensor(made["y"]), torch.tensor((made["y"] + 1) % 3)
    return {"input_ids": made["input_ids"], "labels": (first, second)}


def labels_of_any_shape(folder: Path) -> None:
    """T2: one label a row, under another name, and several labels."""
    single = {"epochs": 1, "packing": "none", "max_length": 64}
    for name, model, collate, names in (
        ("rows", RowClassifier(3), one_label_a_row, ["y"]),
        ("tuples", Pairwise(3), pairs_of_labels, ["labels"]),
    ):
        options = {**single, "collate": collate}
        loss = evaluated(folder, model, loader=options, label_names=names)["eval_loss"]
        FOUND[f"labels: {name}"] = [loss, by_hand(folder, model, options)]
    trainer = LoaderTrainer(
        model=RowClassifier(3),
        args=arguments(folder, label_names=["y"]),
        loader=open_loader(folder, **{**single, "collate": one_label_a_row, "epochs": 2}),
    )
    FOUND["trained on rows"] = trainer.train().training_loss


@torch.no_grad()
def by_hand(folder: Path, model: Any, options: dict[str, Any]) -> float:
    """The mean over all rows, one at a time."""
    model.eval()
    losses = []
    for batch in open_loader(folder, **{**options, "batch_size": 1}):
        if len(batch["input_ids"]):
            inputs = {name: batch[name] for name in ("input_ids", "y", "labels") if name in batch}
            if isinstance(model, RowClassifier):
                inputs.pop("labels")
            losses.append(float(model(**inputs).loss))
    return sum(losses) / len(losses)


def losses_of_the_users_own(folder: Path) -> None:
    """T8: in a subclass, in a Trainer below FromLoader, and as a function."""

    class Own(LoaderTrainer):
        def compute_loss(self, model: Any, inputs: Any, **options: Any) -> Any:
            return own_loss(model, inputs, **options)

    class Theirs(Trainer):
        def compute_loss(self, model: Any, inputs: Any, **options: Any) -> Any:
            return own_loss(model, inputs, **options)

    class Below(FromLoader, Theirs):
        pass

    def function(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return token_loss(outputs.logits, labels)

    expected = evaluated(folder, LabelsFromKeywords(), label_names=["labels"])["eval_loss"]
    options = {"label_names": ["labels"]}
    FOUND["own losses"] = [
        expected,
        evaluated(folder, WithoutLabels(), Own, **options)["eval_loss"],
        evaluated(folder, WithoutLabels(), Below, **options)["eval_loss"],
        evaluated(folder, WithoutLabels(), compute_loss_func=function, **options)["eval_loss"],
    ]
    trainer = Own(
        model=WithoutLabels(), args=arguments(folder), loader=open_loader(folder)
    )  # without label_names
    FOUND["own loss trains"] = trainer.train().training_loss


def own_loss(model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    loss = token_loss(outputs.logits, labels)
    return (loss, outputs) if return_outputs else loss


def overlong_samples(folder: Path) -> None:
    """T9: refused, cut and counted, or dropped because the user said so."""
    made = LoaderTrainer(
        model=make_model(dropout=0.0), args=arguments(folder), loader=open_loader(folder)
    )
    short = {"epochs": 1, "max_length": 32, "packing": "none"}
    found: dict[str, Any] = {}
    try:
        made.evaluate(open_loader(folder, **short))
    except PlanError as error:
        found["refused"] = str(error)
    for name, on_overlong in (("cut", "truncate"), ("dropped", "drop")):
        loader = open_loader(folder, **short, on_overlong=on_overlong)
        metrics = made.evaluate({"short": loader})
        counters = loader.counters
        found[name] = {
            "samples": counters.samples,
            "evaluated": metrics["eval_short_samples_per_second"] * metrics["eval_short_runtime"],
            "steps": metrics["eval_short_steps_per_second"] * metrics["eval_short_runtime"],
            "all_steps": len(loader),
            "truncated": [metrics.get("eval_short_samples_truncated"), counters.samples_truncated],
            "lost": [
                metrics.get("eval_short_samples_dropped"),
                counters.samples - counters.samples_out,
            ],
            "logged": [line for line in made.state.log_history if "eval_short_loss" in line][-1],
        }
    recipe = Recipe.of(
        str(folder / "data.jsonl"),
        eval=str(folder / "data.jsonl"),
        tokenizer=str(folder / "tokenizer"),
        template="text",
        cache_dir=str(folder / "cache"),
        batch_size=2,
        max_length=32,
        num_proc=1,
    )
    found["recipe"] = made.evaluate(ps.load(recipe, part="eval"))["eval_samples_truncated"]
    predicted = made.predict(ps.load(recipe, part="eval")).metrics
    found["predicted"] = [
        predicted["test_samples_truncated"],
        predicted["test_steps_per_second"] * predicted["test_runtime"],
        len(ps.load(recipe, part="eval")),
    ]
    FOUND["overlong"] = found


def batch_metrics(folder: Path) -> None:
    """Metrics that are added up batch by batch."""
    asked: list[bool] = []

    def compute(_: Any, compute_result: bool) -> dict[str, int] | None:
        asked.append(compute_result)
        return {"batches": len(asked)} if compute_result else None

    made = LoaderTrainer(
        model=make_model(dropout=0.0),
        args=arguments(folder, batch_eval_metrics=True),
        loader=open_loader(folder),
        eval_dataset=open_loader(folder, epochs=1, batch_size=4, packing="none"),
        compute_metrics=compute,
    )
    FOUND["batch metric"] = made.evaluate().get("eval_batches")
    FOUND["batch metrics"] = asked


class Interrupt(TrainerCallback):
    """Asks for a checkpoint as SIGTERM does, while the third step is under way."""

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            self.manager.is_checkpoint_requested = True


def interrupted(folder: Path) -> None:
    """T6: the Trainer pulls the batches of a step before it trains them."""
    home = folder / "interrupted"
    seen: list[list[Any]] = []

    class Seen(LoaderTrainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            seen.append(inputs["input_ids"].tolist())
            return super().training_step(model, inputs, *rest)

    def trainer(**more: Any) -> Any:
        args = arguments(folder, output_dir=str(home), max_steps=5, **more)
        return Seen(model=make_model(dropout=0.0), args=args, loader=open_loader(folder))

    trainer().train()
    whole = list(seen)
    seen.clear()
    first = trainer(enable_jit_checkpoint=True)
    callback = Interrupt()
    callbacks = first.callback_handler.callbacks
    manager = next(each.jit_manager for each in callbacks if hasattr(each, "jit_manager"))
    callback.manager = manager
    first.add_callback(callback)
    first.train()
    saved = home / "checkpoint-2"
    seen.clear()
    trainer().train(resume_from_checkpoint=str(saved))
    FOUND["interrupted"] = [seen == whole[4:], len(seen)]


def within_a_group(folder: Path) -> None:
    """T6: a state that is saved between two batches of one optimizer step, and one that is saved after it."""
    from accelerate import Accelerator

    from penstock.extras.trainers.accelerate import attach

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make_model(dropout=0.0)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    said: dict[str, list[str]] = {"within": [], "after": []}
    for batch in attach(accelerator, open_loader(folder, packing="none", epochs=1)):
        with accelerator.accumulate(model):
            inputs = {name: batch[name] for name in ("input_ids", "labels")}
            accelerator.backward(model(**inputs).loss)
            optimizer.step()
            optimizer.zero_grad()
        SAID.lines.clear()
        accelerator.save_state(folder / "saved")
        said["after" if accelerator.sync_gradients else "within"] += SAID.lines
        if batch.step == 3:
            break
    FOUND["accelerate"] = said


def within_a_group_of_lightning(folder: Path) -> None:
    """T6, too: a callback that saves after every batch, and one that counts optimizer steps."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback

    from penstock.extras.trainers.lightning import LoaderModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model(dropout=0.0)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(input_ids=batch["input_ids"], labels=batch["labels"]).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    said: dict[int, list[str]] = {}

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            SAID.lines.clear()
            trainer.save_checkpoint(folder / "saved.ckpt")
            said[trainer.fit_loop.epoch_loop.batch_idx] = list(SAID.lines)

    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=4,
        callbacks=[Save()],
    )
    trainer.fit(Module(), datamodule=LoaderModule(open_loader(folder, packing="none", epochs=1)))
    FOUND["lightning"] = {"warned": [number for number in said if said[number]], "last": max(said)}
    small = Module()
    small.model.resize_token_embeddings(100)
    try:
        Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(small, datamodule=LoaderModule(open_loader(folder, epochs=1)))
    except PlanError as error:
        FOUND["small model in lightning"] = str(error)
    evaluated_short = open_loader(folder, epochs=1, max_length=32)
    try:
        LoaderModule(open_loader(folder), val_dataloaders={"a": [evaluated_short]})
    except PlanError as error:
        FOUND["overlong in lightning"] = str(error)


def small_models(folder: Path) -> None:
    """N8, in the Trainer and in Accelerate."""
    from accelerate import Accelerator

    from penstock.extras.trainers.accelerate import attach

    for name in ("train", "evaluate"):
        model = make_model(dropout=0.0)
        model.resize_token_embeddings(100)
        trainer = LoaderTrainer(
            model=model,
            args=arguments(folder),
            loader=open_loader(folder),
            eval_dataset=open_loader(folder, epochs=1),
        )
        try:
            getattr(trainer, name)()
        except PlanError as error:
            FOUND[f"small model in {name}"] = str(error)
    model = make_model(dropout=0.0)
    model.resize_token_embeddings(100)
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(model)
    try:
        next(iter(attach(accelerator, open_loader(folder))))
    except PlanError as error:
        FOUND["small model in accelerate"] = str(error)
    try:
        attach(accelerator, open_loader(folder, epochs=1, max_length=32), evaluation=True)
    except PlanError as error:
        FOUND["overlong in accelerate"] = str(error)


def main(folder: Path) -> None:
    within_a_group_of_lightning(folder)
    within_a_group(folder)
    small_models(folder)
    no_labels(folder)
    labels_of_any_shape(folder)
    losses_of_the_users_own(folder)
    overlong_samples(folder)
    batch_metrics(folder)
    interrupted(folder)
    (folder / "losses.json").write_text(json.dumps(FOUND))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
