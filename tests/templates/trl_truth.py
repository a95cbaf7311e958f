"""What trl itself makes of preference rows: python -m tests.templates.trl_truth FOLDER, in a process of its own, which imports trl once.

FOLDER/cases.json has {name: {"tokenizer": folder, "kind": dpo | kto | reward, "rows": […]}}; FOLDER/truth.json is written with the
prepared rows and the collators' batches of four.  Of pairs also `limit`, a max_length that some of them exceed, and `whole`: the numbers of
the rows that trl keeps whole under it.
"""

import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.trainer import dpo_trainer, kto_trainer, reward_trainer

BATCH = 4
OPTIONS = {
    "output_dir": "unused",
    "use_cpu": True,
    "bf16": False,
    "max_length": None,
    "report_to": [],
}
KINDS: dict[str, Any] = {
    "dpo": (DPOTrainer, DPOConfig, dpo_trainer.DataCollatorForPreference),
    "kto": (KTOTrainer, KTOConfig, kto_trainer.DataCollatorForUnpairedPreference),
    "reward": (RewardTrainer, RewardConfig, reward_trainer.DataCollatorForPreference),
}


def prepare(
    kind: str, rows: list[Any], tokenizer: Any, max_length: int | None = None
) -> list[dict[str, Any]]:
    trainer, config, _ = KINDS[kind]
    weights = {"undesirable_weight": 1.0, "desirable_weight": 1.0}
    owner = types.SimpleNamespace(_tokenizer=tokenizer, calculate_KL=True, **weights)
    args = config(**{**OPTIONS, "max_length": max_length}, per_device_train_batch_size=BATCH)
    made = trainer._prepare_dataset(owner, Dataset.from_list(rows), tokenizer, args, "train")
    return [dict(row) for row in made]


def collate(kind: str, rows: list[dict[str, Any]], pad: int) -> list[dict[str, Any]]:
    collator = KINDS[kind][2](pad_token_id=pad)
    batches = [collator(rows[first : first + BATCH]) for first in range(0, len(rows), BATCH)]
    return [
        {
            name: [str(value.dtype).removeprefix("torch."), value.tolist()]
            for name, value in batch.items()
        }
        for batch in batches
    ]


def find_whole(
    kind: str, rows: list[Any], prepared: list[dict[str, Any]], tokenizer: Any, limit: int
) -> list[int]:
    """Return the rows that trl keeps and does not cut: RewardTrainer drops the others, the collator of DPOTrainer cuts them."""
    if kind == "reward":
        kept = prepare(kind, rows, tokenizer, limit)
        names = ("chosen_ids", "rejected_ids")
        left = [[row[name] for name in names] for row in kept]
        return [n for n, row in enumerate(prepared) if [row[name] for name in names] in left]
    collators = [
        KINDS[kind][2](pad_token_id=tokenizer.pad_token_id, max_length=most)
        for most in (None, limit)
    ]
    whole = []
    for number, row in enumerate(prepared):
        before, after = (collator([row])["input_ids"].tolist() for collator in collators)
        if before == after:
            whole.append(number)
    return whole


def main(folder: Path) -> None:
    disable_progress_bars()
    logging.disable(logging.WARNING)
    truth = {}
    for name, case in json.loads((folder / "cases.json").read_text()).items():
        tokenizer = AutoTokenizer.from_pretrained(case["tokenizer"])
        rows = prepare(case["kind"], case["rows"], tokenizer)
        kept = [{key: row[key] for key in row if key.endswith("_ids")} for row in rows]
        limits: dict[str, Any] = {}
        if case["kind"] != "kto":
            sizes = [
                len(row.get("prompt_ids", []))
                + max(len(row["chosen_ids"]), len(row["rejected_ids"]))
                for row in rows
            ]
            limit = sorted(sizes)[len(sizes) // 2]
            whole = find_whole(case["kind"], case["rows"], rows, tokenizer, limit)
            limits = {"limit": limit, "whole": whole}
        truth[name] = {
            **limits,
            "prepared": kept,
            "batches": collate(case["kind"], rows, tokenizer.pad_token_id),
        }
    (folder / "truth.json").write_text(json.dumps(truth))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
