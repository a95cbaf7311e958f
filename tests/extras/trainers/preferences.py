"""Small trainings with trl's DPO, KTO and Reward trainers: on trl's own data path, and with a Loader, whole, killed and resumed.

python -m tests.extras.trainers.preferences NAME FOLDER imports trl once and runs all four in children of its own.  Each writes a line per
batch: the arrays as the loss is given them, and the loss; and a last line with the loss of an evaluation.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock as ps

from .models import SMALL
from .runs import in_child

BATCH, DIE_AT, SAVE_EVERY, PAD = 4, 6, 2, 1
WORDS = ["fox", "dog", "runs", "over", "away", "lazy"]
NAMES = ("dpo", "kto", "reward")


def make_rows(name: str) -> list[dict[str, Any]]:
    """14 rows: three steps of four and one of two."""
    rng = random.Random(3)

    def say(role: str) -> dict[str, str]:
        return {"role": role, "content": " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))}

    rows: list[dict[str, Any]] = []
    for number in range(14):
        prompt, answers = [say("user")], [[say("assistant")], [say("assistant")]]
        if name == "kto":
            rows.append({"prompt": prompt, "completion": answers[0], "label": number % 3 > 0})
        else:
            rows.append(
                {
                    "prompt": prompt,
                    "chosen": answers[0],
                    "rejected": answers[1],
                    "margin": number / 8,
                }
            )
    return rows


def open_loader(name: str, folder: Path, **options: Any) -> ps.Loader:
    rows = make_rows(name)[: options.pop("rows", None)]
    store = ps.prepare(rows, tokenizer=folder / "tokenizer", cache_dir=folder / "cache", num_proc=1)
    usual = {
        "batch_size": BATCH,
        "max_length": 1024,
        "packing": "none",
        "pad_token_id": PAD,
    }
    return ps.Loader(store, **{**usual, "shuffle": False, "epochs": 2, **options})


class Log:
    """What was trained, line by line; and the moment to die."""

    def __init__(self, path: Path, die_at: int | None) -> None:
        self._file, self._die_at, self._count = path.open("a"), die_at, 0

    def write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._count += 1
        if self._count == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def logged(trainer: type, log: Log) -> type:
    import torch

    class Logged(trainer):  # type: ignore[misc, valid-type]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            arrays = {
                name: value.tolist() for name, value in inputs.items() if torch.is_tensor(value)
            }
            kinds = {
                name: str(value.dtype) for name, value in inputs.items() if torch.is_tensor(value)
            }
            found = super().compute_loss(model, inputs, *args, **options)
            if self.model.training:
                log.write({"arrays": arrays, "kinds": kinds, "loss": float(found)})
            return found

    return Logged


def parts(name: str) -> tuple[Any, Any, Any, Any]:
    """trl's trainer, its config, the trainer with a Loader, and the class of the model."""
    import transformers
    import trl

    from penstock.extras.trainers import trl as ours

    word = {"dpo": "DPO", "kto": "KTO", "reward": "Reward"}[name]
    model = (
        transformers.LlamaForSequenceClassification
        if name == "reward"
        else transformers.LlamaForCausalLM
    )
    return (
        *(getattr(trl, f"{word}{kind}") for kind in ("Trainer", "Config")),
        getattr(ours, f"Loader{word}Trainer"),
        model,
    )


def make_model(name: str, folder: Path) -> Any:
    """A tiny model from a folder: trl loads the reference model from there, too."""
    import torch
    from transformers import LlamaConfig

    torch.set_num_threads(1)
    home, kind = folder / "model", parts(name)[3]
    if not home.exists():
        torch.manual_seed(0)
        kind(LlamaConfig(**SMALL, pad_token_id=PAD, num_labels=1)).save_pretrained(home)
    return kind.from_pretrained(home, dtype=torch.float32)


def open_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder / "tokenizer")


def arguments(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "checkpoints"),
        "save_steps": SAVE_EVERY,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "num_train_epochs": 2,
        "train_sampling_strategy": "sequential",
        "prediction_loss_only": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "disable_tqdm": True,
        "learning_rate": 1e-3,
        **more,
    }


def by_trl(name: str, folder: Path, log: Log, resume: bool) -> None:
    from datasets import Dataset

    trainer, config, _, _ = parts(name)
    rows = make_rows(name)
    made = logged(trainer, log)(
        model=make_model(name, folder),
        args=config(**arguments(folder, save_strategy="no")),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:BATCH]),
        processing_class=open_tokenizer(folder),
    )
    made.train()
    log.write({"evaluated": made.evaluate()["eval_loss"]})


def by_loader(name: str, folder: Path, log: Log, resume: bool) -> None:
    _, config, trainer, _ = parts(name)
    made = logged(trainer, log)(
        model=make_model(name, folder),
        args=config(**arguments(folder)),
        loader=open_loader(name, folder),
        eval_dataset=open_loader(name, folder, rows=BATCH, epochs=1),
        processing_class=open_tokenizer(folder),
    )
    made.train(resume_from_checkpoint=resume)
    log.write({"evaluated": made.evaluate()["eval_loss"]})


def main(name: str, folder: Path) -> None:
    parts(name)  # before the children are forked, so that the import is paid for once
    runs: list[tuple[str, Callable[..., None], int | None, bool]] = [
        ("trl", by_trl, None, False),
        ("whole", by_loader, None, False),
        ("cut", by_loader, DIE_AT, False),
        ("rest", by_loader, None, True),
    ]
    codes = {}
    for part, run, die_at, resume in runs:
        home = folder / ("cut" if part == "rest" else part)
        home.mkdir(exist_ok=True)
        for shared in ("tokenizer", "cache", "model"):
            if not (home / shared).exists() and (folder / shared).exists():
                (home / shared).symlink_to(folder / shared)
        log = folder / f"{part}.jsonl"
        codes[part] = in_child(
            lambda h=home, p=log, d=die_at, r=resume, run=run: run(name, h, Log(p, d), r)
        )
        if part == "trl":
            (home / "model").rename(folder / "model")
    assert codes == {"trl": 0, "whole": 0, "cut": -signal.SIGKILL, "rest": 0}, codes


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
