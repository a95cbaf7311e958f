"""SkyRL's SFT trainer with a Loader.

    loader = ps.Loader(store, batch_size=cfg.batch_size, max_length=cfg.max_length, packing="none", rank=0, world_size=1)
    trainer = LoaderSkyRLTrainer(cfg, loader=loader, eval_loader=eval_loader)
    trainer.setup()
    trainer.train()

SkyRL has one process that makes the batches of all ranks, so the Loader is rank 0 of 1, and its batch_size is SkyRL's.  SkyRL's collator
makes the arrays, with its own scale of the loss and its own packing; the Loader says which samples come when, and saves where it is.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from skyrl.backends.skyrl_train.utils.io import io
from skyrl.train.sft_trainer import SFTTrainer, collate_sft_examples

from penstock.errors import PlanError, PlanMismatch
from penstock.extras.trainers.guards import EvalBatches, expect_loader, refuse_the_same
from penstock.loader import Loader
from penstock.loader.collate import IGNORE
from penstock.loader.map_dataset import require_tokens

_FILE = "penstock_loader.json"  # in a checkpoint's folder


class LoaderSkyRLTrainer(SFTTrainer):  # type: ignore[misc]
    """SkyRL's SFTTrainer; its data are those of a Loader.

    eval_loader: what `eval_interval` and `eval_before_train` evaluate.  Datasets that the configuration names are not read.
    """

    def __init__(
        self,
        cfg: Any,
        *args: Any,
        loader: Loader,
        eval_loader: Loader | None = None,
        **options: Any,
    ) -> None:
        super().__init__(cfg, *args, **options)
        expect_loader(loader, call="LoaderSkyRLTrainer")
        self.loader = loader
        self.eval_loader = eval_loader
        _check(loader, "loader")
        if loader.batch_size != cfg.batch_size:
            raise PlanError(
                f"loader has batch_size={loader.batch_size}, and SkyRL's configuration batch_size={cfg.batch_size}: both count the samples "
                f"of a step over all ranks; set both to one number"
            )
        if loader.epochs != 1:
            raise PlanError(
                f"loader has epochs={loader.epochs}, expected 1: SkyRL begins a new loop for each epoch, up to its num_epochs or num_steps"
            )
        if eval_loader is not None:
            expect_loader(eval_loader, call="LoaderSkyRLTrainer(eval_loader=…)")
            _check(eval_loader, "eval_loader")
            refuse_the_same(loader, eval_loader)

    def load_dataset(self) -> list[Any]:
        """Return no list of examples: the Loader has them."""
        return []

    def load_eval_dataset(self) -> list[Any] | None:
        """Return the examples of one epoch of eval_loader; None without one."""
        if self.eval_loader is None:
            return None
        return [
            example for batch in EvalBatches(self.eval_loader) for example in examples_of(batch)
        ]

    def _log_dataset_stats(self, tokenized: list[Any]) -> None:
        """Log nothing: `penstock stats` shows the lengths."""

    def build_train_dataloader(self, tokenized: list[Any]) -> "LoaderBatches":
        """Return the batches of the Loader, as SkyRL's collator makes them."""
        return LoaderBatches(
            self.loader, self.collator, is_padded=not self.sft_cfg.use_sequence_packing
        )

    def save_checkpoint(self) -> str:
        # SkyRL goes on with a warning if the state of its data loader cannot be written or read: so the file is ours, and comes first.
        folder = f"{self.sft_cfg.ckpt_path}/global_step_{self.global_step}"
        io.makedirs(folder, exist_ok=True)
        with io.open_file(f"{folder}/{_FILE}", "w") as out:
            json.dump(self.loader.state_dict(), out)
        saved: str = super().save_checkpoint()
        return saved

    def load_checkpoint(self) -> int:
        step: int = super().load_checkpoint()
        if not step:
            return step
        given = self.sft_cfg.resume_from
        folder = f"{self.sft_cfg.ckpt_path}/global_step_{step}" if given == "latest" else given
        file = f"{folder}/{_FILE}"
        if not io.exists(file):
            raise PlanMismatch(
                f"{file} does not exist: this checkpoint was saved without a Loader; start a new run"
            )
        with io.open_file(file, "r") as text:
            self.loader.load_state_dict(json.load(text))
        return step


class LoaderBatches:
    """What SkyRL's loop calls its data loader.  Its state is saved by the trainer."""

    def __init__(self, loader: Loader, collator: Any, *, is_padded: bool) -> None:
        self._loader = loader
        self._collator = collator
        self._is_padded = is_padded

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield collate_sft_examples(
                examples_of(batch),
                collator=self._collator,
                batch_size=self._loader.batch_size,
                pad_to_batch_size=self._is_padded,
            )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing: the trainer loads the Loader's state."""


def examples_of(batch: Any) -> list[dict[str, Any]]:
    """Return the samples of a batch as SkyRL's tokenizing functions return them; rows of padding hold none.

    `num_actions` counts the tokens from the first trained one on, and `loss_mask` says which of them are trained.
    """
    rows = batch.rows
    sizes = rows.spans["stop"] - rows.spans["start"]
    ids = np.asarray(batch["input_ids"])
    is_trained = np.asarray(batch["labels"]) != IGNORE
    examples = []
    for row in range(rows.num_rows):
        if rows.starts[row] == rows.starts[row + 1]:
            continue
        size = int(sizes[rows.starts[row]])
        mask = is_trained[row, :size]
        # no token is predicted before the first one, so it is never an action
        first = int(np.argmax(mask)) if mask.any() else size - 1
        first = max(first, 1)
        examples.append(
            {
                "input_ids": ids[row, :size].tolist(),
                "attention_mask": [1] * size,
                "num_actions": size - first,
                "loss_mask": mask[first:].astype(int).tolist(),
            }
        )
    return examples


def _check(loader: Loader, name: str) -> None:
    """Refuse a Loader whose batches are not one sample for each row, whole, with the labels at their own tokens."""
    require_tokens(loader, "SkyRL's SFT trainer")
    if loader.world.size != 1:
        raise PlanError(
            f"{name} is rank {loader.world.rank} of {loader.world.size}, and SkyRL makes the batches of all ranks in one process; pass "
            f"rank=0, world_size=1"
        )
    expected = {
        "packing": "none",
        "labels": "unshifted",
        "padding_free": False,
        "pad_side": "right",
    }
    given = {
        "packing": loader.plan.settings.packing,
        "labels": loader.form.labels,
        "padding_free": loader.form.padding_free,
        "pad_side": loader.form.pad_side,
    }
    for key, value in given.items():
        if value != expected[key]:
            raise PlanError(
                f"{name} has {key}={value!r}, expected {expected[key]!r}: SkyRL's collator pads and packs samples itself"
            )
    if loader.parts.columns or loader.settings.collate is not None:
        what = (
            "a collate function"
            if loader.settings.collate is not None
            else loader.parts.columns[0].name
        )
        raise PlanError(
            f"{name} has {what}, which SkyRL's batches have no place for; prepare the data without it"
        )
