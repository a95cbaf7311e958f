"""Lightning, fed by a Loader: a first run of seven steps, and a second that goes on from its last checkpoint."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import penstock as ps
from penstock.trainers.lightning import LoaderModule

RECORDS = [
    {"text": f"Gate {n} lets {n % 13} cubic metres of water through." * (1 + n % 5)}
    for n in range(200)
]


def make_store(folder: Path) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(
        [r["text"] for r in RECORDS], trainers.BpeTrainer(vocab_size=400, show_progress=False)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return ps.prepare(
        RECORDS, tokenizer=folder / "tokenizer.json", template="text", cache_dir=folder / "cache"
    )


class Tiny(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Embedding(400, 16), torch.nn.Linear(16, 400))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            self.model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten()
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def train(store: Any, folder: Path, *, max_steps: int, resume: bool) -> None:
    loader = ps.Loader(store, batch_size=2, max_length=128, epochs=2, labels="shifted")
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saving = ModelCheckpoint(folder, every_n_train_steps=3, save_last=True)
    trainer = Trainer(
        max_epochs=1, max_steps=max_steps, accelerator="cpu", callbacks=[saving], **quiet
    )
    trainer.fit(
        Tiny(),
        datamodule=LoaderModule(loader),
        ckpt_path=str(folder / "last.ckpt") if resume else None,
    )
    print(f"at step {trainer.global_step} of {len(loader)}: {loader}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        home = make_store(Path(name))
        train(home, Path(name), max_steps=7, resume=False)
        train(home, Path(name), max_steps=-1, resume=True)
