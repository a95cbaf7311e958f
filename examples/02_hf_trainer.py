"""The Hugging Face Trainer, fed by a Loader: stopped after six steps, resumed from its own checkpoint, on a tiny random model."""

import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

import penstock as ps
from penstock.trainers.hf_trainer import LoaderTrainer

TEXTS = [
    f"Gate {number} lets {number % 13} cubic metres of water through." * (1 + number % 5)
    for number in range(80)
]


def make_loader(folder: Path) -> ps.Loader:
    store = ps.prepare(
        folder / "gates.jsonl",
        tokenizer=folder / "tokenizer.json",
        template="text",
        cache_dir=folder / "cache",
        num_proc=1,
    )
    return ps.Loader(store, batch_size=2, max_length=128, epochs=2)


def train(folder: Path, max_steps: int, resume: bool) -> None:
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    arguments = TrainingArguments(
        output_dir=str(folder / "run"),
        save_steps=3,
        max_steps=max_steps,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    )
    trainer = LoaderTrainer(
        model=LlamaForCausalLM(config), args=arguments, loader=make_loader(folder)
    )
    result = trainer.train(resume_from_checkpoint=resume)
    print(f"at step {result.global_step}, loss {result.training_loss:.3f}: {trainer.loader}")


def main(folder: Path) -> None:
    (folder / "gates.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))

    train(folder, max_steps=6, resume=False)
    train(folder, max_steps=-1, resume=True)  # to the end of the Loader's two epochs


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
