"""Accelerate, fed by a Loader: stopped, and resumed from accelerator.save_state, in the middle of an epoch."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import penstock as ps
from penstock.trainers.accelerate import attach

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


def train(store: Any, saved: Path, *, stop_at: int | None) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Embedding(400, 16), torch.nn.Linear(16, 400))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    batches = attach(accelerator, ps.Loader(store, batch_size=2, max_length=128, labels="shifted"))
    if saved.exists():
        accelerator.load_state(saved)
    for batch in batches:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(
                model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten()
            )
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if batch.step == stop_at:
            accelerator.save_state(saved)
            break
    print(f"ended at step {batch.step} of {len(batches)}, loss {loss.item():.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        home = make_store(Path(name))
        train(home, Path(name) / "saved", stop_at=7)
        train(home, Path(name) / "saved", stop_at=None)
