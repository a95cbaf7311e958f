"""Trainings with LoaderTrainer and LoaderSFTTrainer that record their losses: python -m tests.extras.losses.trainings FOLDER

Writes what the Trainers logged next to what was recorded.
"""

import json
import sys
from inspect import signature
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast, TrainingArguments
from trl import SFTConfig

from penstock.errors import PlanError
from penstock.trainers.hf_trainer import LoaderTrainer
from penstock.trainers.losses import LossBySource, read_losses
from penstock.trainers.trl import LoaderSFTTrainer
from tests.extras.trainers.runs import hf_arguments, make_model, open_loader


def main(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"),
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    )
    arguments = {**hf_arguments(folder), "logging_steps": 1, "max_steps": 12, "save_steps": 6}
    trl_arguments = SFTConfig(**arguments, bf16=False, gradient_checkpointing=False)
    found = {
        "hf": trained(folder, "hf", LoaderTrainer, args=TrainingArguments(**arguments)),
        "trl": trained(
            folder, "trl", LoaderSFTTrainer, args=trl_arguments, processing_class=tokenizer
        ),
        "resumed": resumed(folder, TrainingArguments(**arguments)),
        "no logits": without_logits(folder, TrainingArguments(**arguments)),
    }
    (folder / "found.json").write_text(json.dumps(found))


def trained(folder: Path, run_id: str, kind: type, **options: Any) -> dict[str, Any]:
    loader = open_loader(folder, run_id=run_id)
    trainer = kind(
        model=make_model(dropout=0.0), loader=loader, losses=LossBySource(loader), **options
    )
    trainer.train()
    return compared(folder, run_id, trainer)


def compared(folder: Path, run_id: str, trainer: Any) -> dict[str, Any]:
    recorded = read_losses(run_id, cache_dir=folder / "cache")
    [curve] = recorded.curves(bins=10_000)
    logged = {line["step"]: line["loss"] for line in trainer.state.log_history if "loss" in line}
    own = {}
    for place, step in enumerate(range(0, len(curve.steps) - 1, 2), start=1):  # accumulated by 2
        pair = slice(step, step + 2)
        targets = curve.targets[pair]
        own[place] = float((curve.losses[pair] * targets).sum() / targets.sum())
    return {
        "logged": [logged[step] for step in sorted(logged)],
        "recorded": [own[step] for step in sorted(logged)],
        "targets": int(sum(count for _, count in recorded.totals().values())),
        "trained": trainer.loader.metrics.as_dict()["trained_tokens"],
        "missing": recorded.num_missing,
    }


def resumed(folder: Path, arguments: Any) -> dict[str, Any]:
    """Train on from the checkpoint in the middle of the run of "hf" under its name: what came after it is taken back."""
    loader = open_loader(folder, run_id="hf")
    trainer = LoaderTrainer(
        model=make_model(dropout=0.0), args=arguments, loader=loader, losses=LossBySource(loader)
    )
    trainer.train(resume_from_checkpoint=str(folder / "checkpoints" / "checkpoint-6"))
    return compared(folder, "hf", trainer)


def without_logits(folder: Path, arguments: Any) -> str:
    loader = open_loader(folder, run_id="none")
    model = make_model(dropout=0.0)
    forward = model.forward

    def fused(**inputs: Any) -> Any:
        outputs = forward(**inputs)
        return type(outputs)(loss=outputs.loss)

    fused.__signature__ = signature(forward)  # type: ignore[attr-defined]
    model.forward = fused
    trainer = LoaderTrainer(
        model=model,
        args=arguments,
        loader=loader,
        losses=LossBySource(loader),
        isolation_check=False,
    )
    try:
        trainer.train()
    except PlanError as error:
        return str(error)
    return "not refused"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
