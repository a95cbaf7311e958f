"""Evaluation through a Trainer, with a Loader as eval_dataset.  python -m tests.extras.trainers.evaluations FOLDER writes found.json.

What each pass evaluated is written down batch by batch, as the model saw it.
"""

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, TrainingArguments
from trl import SFTConfig

from penstock.errors import PlanError
from penstock.extras.trainers.hf_trainer import LoaderTrainer
from penstock.extras.trainers.trl import LoaderSFTTrainer

from .runs import hf_arguments, in_child, make_model, open_loader


def recorded(trainer: type) -> type:
    class Recorded(trainer):  # type: ignore[misc, valid-type]
        def evaluate(self, *args: Any, **options: Any) -> Any:
            self.passes = [*getattr(self, "passes", []), []]
            return super().evaluate(*args, **options)

        def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            ids, labels = inputs["input_ids"], inputs["labels"]
            self.passes[-1] += [
                i[n >= 0].tolist() for i, n in zip(ids, inputs["seq_idx"], strict=True)
            ]
            assert "position_ids" in inputs and labels.shape == ids.shape
            return super().prediction_step(model, inputs, *args, **options)

    return Recorded


def by_hand(folder: Path, model: Any, **options: Any) -> float:
    """The mean loss over all targets."""
    loss, targets = 0.0, 0
    with torch.no_grad():
        for batch in open_loader(folder, epochs=1, batch_size=1, **options):
            names = ("input_ids", "labels", "position_ids")
            mean = float(model(**{name: batch[name] for name in names}, use_cache=False).loss)
            loss, targets = loss + mean * batch.trained, targets + batch.trained
    return loss / targets


def arguments(folder: Path, **more: Any) -> dict[str, Any]:
    plain = {"eval_strategy": "steps", "eval_steps": 4, "max_steps": 8, "save_strategy": "no"}
    return {**hf_arguments(folder), **plain, **more}


def one_rank(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"refused": []}
    trainer = recorded(LoaderTrainer)(
        model=make_model(),
        args=TrainingArguments(**arguments(folder)),
        loader=open_loader(folder),
        eval_dataset=open_loader(folder, epochs=1, batch_size=3, seed=9),
    )
    trainer.train()
    found["passes"] = trainer.passes
    said = [line for line in trainer.state.log_history if "eval_loss" in line]
    found["logged"] = len(said)
    model = trainer.model.eval()
    found["loss"] = [said[-1]["eval_loss"], trainer.evaluate()["eval_loss"], by_hand(folder, model)]
    several = {
        "short": open_loader(folder, epochs=1, max_length=32, on_overlong="drop"),
        "long": open_loader(folder, epochs=1),
    }
    metrics = trainer.evaluate(several)
    found["several"] = [
        metrics["eval_short_loss"],
        by_hand(folder, model, max_length=32, on_overlong="drop"),
        metrics["eval_long_loss"],
    ]
    found["predicted"] = trainer.predict(open_loader(folder, epochs=1)).metrics["test_loss"]
    for options in (
        {"epochs": 2},
        {"last_step": "drop"},
        {"output": "numpy"},
        {"labels": "shifted"},
        {"skip_steps": [1]},
    ):
        try:
            trainer.evaluate(open_loader(folder, **{"epochs": 1, **options}))
        except PlanError as error:
            found["refused"].append(str(error))
    return found


def with_trl(folder: Path) -> dict[str, Any]:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"), eos_token="<|endoftext|>"
    )
    tokenizer.pad_token = tokenizer.eos_token
    trainer = recorded(LoaderSFTTrainer)(
        model=make_model(),
        args=SFTConfig(**arguments(folder), bf16=False, gradient_checkpointing=False),
        processing_class=tokenizer,
        loader=open_loader(folder),
        eval_dataset={"all": open_loader(folder, epochs=1)},
    )
    trainer.train()
    said = [line["eval_all_loss"] for line in trainer.state.log_history if "eval_all_loss" in line]
    again = trainer.evaluate(open_loader(folder, epochs=1))["eval_loss"]
    return {
        "passes": [part for part in trainer.passes if part],
        "loss": [said[-1], again, by_hand(folder, trainer.model.eval())],
    }


def two_ranks(folder: Path) -> None:
    """Of which the second has, in the last step, nothing but padding."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    max_length = uneven(folder)  # here, where there is one rank

    def rank(number: int) -> None:
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        args = TrainingArguments(**arguments(folder, max_steps=2, eval_steps=2))
        evaluated = open_loader(folder, epochs=1, batch_size=1, max_length=max_length)
        trainer = recorded(LoaderTrainer)(
            model=make_model(), args=args, loader=open_loader(folder), eval_dataset=evaluated
        )
        loss = trainer.evaluate()["eval_loss"]
        steps = len(evaluated)
        (folder / f"rank-{number}.json").write_text(json.dumps([trainer.passes[-1], loss, steps]))

    codes: list[int] = []
    children = [
        threading.Thread(target=lambda n=n: codes.append(in_child(lambda: rank(n))))
        for n in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert codes == [0, 0], codes


def uneven(folder: Path) -> int:
    """A max_length that gives an odd number of rows."""
    return next(
        size
        for size in range(64, 128)
        if len(open_loader(folder, epochs=1, batch_size=1, max_length=size)) % 2
    )


def main(folder: Path) -> None:
    two_ranks(folder)  # first: it forks, and nothing has started threads yet
    ranks = [json.loads((folder / f"rank-{number}.json").read_text()) for number in range(2)]
    alone = by_hand(folder, make_model().eval(), max_length=uneven(folder))
    found = {"hf": one_rank(folder), "trl": with_trl(folder), "ranks": ranks, "alone": alone}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
