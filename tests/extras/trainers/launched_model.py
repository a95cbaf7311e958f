"""A model for Lightning that trains almost nothing, and writes which rows it was given."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from .launchers import RANKS, first_tokens, record

SAVED_AT = 2  # steps: where the run named "cut" saves a checkpoint


class Model(LightningModule):
    def __init__(self, folder: Path, name: str) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.rows: list[int] = []
        self.folder = folder
        self.name = name

    def configure_model(self) -> None:
        """ModelParallelStrategy asks for this method."""

    def training_step(self, batch: Any, number: int) -> Any:
        self.rows += first_tokens(batch)
        return (self.weight * batch["input_ids"].sum()).sum()

    def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
        if self.trainer.global_step == SAVED_AT and self.name == "cut":
            self.trainer.save_checkpoint(self.folder / "cut.ckpt")

    def validation_step(self, batch: Any, number: int) -> None:
        pass

    def on_train_end(self) -> None:
        record(self.folder, self.name, self.trainer.global_rank, lambda: self.rows)
        # rank 0 serves torch's store: if it ends first, another rank that still asks the store fails
        self.trainer.strategy.barrier()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-9)


def fit(
    folder: Path,
    name: str,
    strategy: Any,
    module: Any = None,
    *,
    train_dataloaders: Any = None,
    devices: int = RANKS,
    max_steps: int = -1,
    ckpt_path: Path | None = None,
) -> tuple[Trainer, Model]:
    trainer = Trainer(
        max_epochs=1,
        max_steps=max_steps,
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    model = Model(folder, name)
    trainer.fit(model, train_dataloaders, datamodule=module, ckpt_path=ckpt_path)
    return trainer, model
