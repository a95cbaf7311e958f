"""Small real trainings, one per framework: whole, killed at a step, resumed.

python -m tests.extras.trainers.runs NAME FOLDER imports the framework once and runs all three in children of its own, as kill -9 ends one.
Each writes a line per batch it trains: the ids as the model sees them, and the loss.
"""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock as ps
from tests.extras.media import vlm

VOCAB, SAVE_EVERY, DIE_AT = 400, 3, 8
OPTIONS = {"batch_size": 2, "max_length": 64, "epochs": 2, "seed": 3, "output": "torch"}


def open_loader(folder: Path, **options: Any) -> ps.Loader:
    if has_images(folder):
        store = vlm.prepare(folder, media_root=str((folder / "images").resolve().parent))
        return ps.Loader(store, **{**OPTIONS, "max_length": 96, **options})
    store = ps.prepare(
        folder / "data.jsonl",
        tokenizer=folder / "tokenizer",
        template="text",
        cache_dir=folder / "cache",
        num_proc=1,
    )
    return ps.Loader(store, **{**OPTIONS, **options})


def has_images(folder: Path) -> bool:
    return (folder / "images").exists()


class Log:
    """What was trained, line by line; and the moment to die."""

    def __init__(self, path: Path, die_at: int | None) -> None:
        self._file = path.open("a")
        self._die_at, self._count = die_at, 0

    def write(self, ids: Any, loss: float) -> None:
        self._file.write(json.dumps({"ids": ids.tolist(), "loss": loss}) + "\n")
        self._file.flush()
        self._count += 1
        if self._count == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def make_model(dropout: float = 0.1, folder: Path | None = None) -> Any:
    """A tiny one.  With dropout: chance is part of what a checkpoint must bring back, where the framework saves it."""
    if folder is not None and has_images(folder):
        return vlm.tiny_model(vlm.family_of(folder))
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        attention_dropout=dropout,
        bos_token_id=None,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def hugging_face(folder: Path, log: Log, resume: bool, **options: Any) -> None:
    from transformers import TrainingArguments

    from penstock.extras.trainers.hf_trainer import LoaderTrainer

    arguments = TrainingArguments(**hf_arguments(folder))
    trainer = logged(LoaderTrainer, log)(
        model=make_model(folder=folder),
        args=arguments,
        loader=open_loader(folder, **options),
    )
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.state.epoch == 2 and trainer.state.global_step == trainer.state.max_steps


def trl(folder: Path, log: Log, resume: bool) -> None:
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig

    from penstock.extras.trainers.trl import LoaderSFTTrainer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(
            folder / ("model" if has_images(folder) else "tokenizer") / "tokenizer.json"
        ),
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    )
    trainer = logged(LoaderSFTTrainer, log)(
        model=make_model(folder=folder),
        args=SFTConfig(**hf_arguments(folder), bf16=False, gradient_checkpointing=False),
        processing_class=tokenizer,
        loader=open_loader(folder),
    )
    trainer.train(resume_from_checkpoint=resume)


def hf_arguments(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "checkpoints"),
        "save_steps": SAVE_EVERY,
        "logging_steps": 5,
        "gradient_accumulation_steps": 2,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "learning_rate": 1e-2,
    }


def logged(trainer: type, log: Log) -> type:
    class Logged(trainer):  # type: ignore[misc, valid-type]
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            ids = inputs["input_ids"].clone()
            loss = super().training_step(model, inputs, *rest)
            log.write(ids, float(loss))
            return loss

    return Logged


def accelerate(folder: Path, log: Log, resume: bool) -> None:
    import torch
    from accelerate import Accelerator

    from penstock.extras.trainers.accelerate import attach

    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=4
    )  # which does not divide the run
    model = make_model().train()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    batches = attach(accelerator, open_loader(folder))
    saved = folder / "saved"
    if resume:
        accelerator.load_state(max(saved.iterdir(), key=lambda path: int(path.name)))
    synced = 0
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(
                **{name: batch[name] for name in ("input_ids", "labels", "position_ids")},
                use_cache=False,
            ).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        synced = batch.step if accelerator.sync_gradients else synced
        log.write(batch["input_ids"], loss.item())
        if accelerator.sync_gradients:
            accelerator.save_state(saved / str(batch.step))
    assert synced == len(batches) - 1  # the last, short group was stepped too


def lightning(folder: Path, log: Log, resume: bool) -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from penstock.extras.trainers.lightning import LoaderModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model(
                dropout=0.0
            ).train()  # Lightning's checkpoints hold no random state

        def training_step(self, batch: Any, number: int) -> Any:
            assert number == batch.step and batch.provenance
            names = ("input_ids", "labels", "position_ids")
            return self.model(**{name: batch[name] for name in names}, use_cache=False).loss

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            log.write(batch["input_ids"], float(outputs["loss"]))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[
            ModelCheckpoint(
                folder / "saved", every_n_train_steps=SAVE_EVERY, save_top_k=-1, save_last=True
            )
        ],
    )
    last = str(folder / "saved" / "last.ckpt") if resume else None
    trainer.fit(Module(), datamodule=LoaderModule(open_loader(folder)), ckpt_path=last)
    assert trainer.global_step == len(open_loader(folder))


def torchdata(folder: Path, log: Log, resume: bool) -> None:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    steps = open_loader(folder).as_dataset()
    batches = StatefulDataLoader(
        steps, batch_size=None, num_workers=2, prefetch_factor=3, collate_fn=lambda batch: batch
    )
    saved = folder / "state.pt"
    if resume:
        batches.load_state_dict(torch.load(saved, weights_only=True))
    for number, batch in enumerate(batches):
        log.write(batch["input_ids"], 0.0)
        if number % SAVE_EVERY == 1:
            torch.save(batches.state_dict(), saved)


RUNS: dict[str, Callable[[Path, Log, bool], None]] = {
    "hf": hugging_face,
    "trl": trl,
    "accelerate": accelerate,
    "lightning": lightning,
    "torchdata": torchdata,
}
IMPORTS = {
    "hf": "import transformers, penstock.extras.trainers.hf_trainer; transformers.LlamaForCausalLM",
    "trl": "import transformers, penstock.extras.trainers.trl; transformers.LlamaForCausalLM",
    "accelerate": "import transformers, penstock.extras.trainers.accelerate; transformers.LlamaForCausalLM",
    "torchdata": "import torch, torchdata.stateful_dataloader",
    "lightning": "import transformers, penstock.extras.trainers.lightning; transformers.LlamaForCausalLM",
}


def in_child(work: Callable[[], None]) -> int:
    """The exit code of `work` in a forked process; negative for the signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def two_ranks_then_one(folder: Path) -> None:
    """The HF Trainer on two ranks, of which one dies; then on one rank with twice the batch."""
    exec(IMPORTS["hf"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def rank(number: int) -> None:
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        hugging_face(folder, Log(folder / f"cut-{number}.jsonl", DIE_AT if number else None), False)

    children = [
        threading.Thread(target=lambda n=n: codes.append(in_child(lambda: rank(n))))
        for n in range(2)
    ]
    codes: list[int] = []
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert sorted(codes) == [-signal.SIGKILL, 1], codes  # one was killed, the other missed it
    assert (
        in_child(lambda: hugging_face(folder, Log(folder / "rest.jsonl", None), True, batch_size=4))
        == 0
    )


def main(name: str, folder: Path) -> None:
    exec(IMPORTS[name])  # before the children are forked, so that it is paid for once
    codes = {}
    for part, die_at, resume in [
        ("whole", None, False),
        ("cut", DIE_AT, False),
        ("rest", None, True),
    ]:
        home = folder / ("whole" if part == "whole" else "cut")
        home.mkdir(exist_ok=True)
        for shared in ("data.jsonl", "tokenizer", "model", "images", "cache"):
            if (folder / shared).exists() and not (home / shared).exists():
                (home / shared).symlink_to(folder / shared)
        log = folder / f"{part}.jsonl"
        codes[part] = in_child(
            lambda h=home, p=log, d=die_at, r=resume: RUNS[name](h, Log(p, d), r)
        )
    assert codes == {"whole": 0, "cut": -signal.SIGKILL, "rest": 0}, codes


if __name__ == "__main__":
    if sys.argv[1] == "ranks":
        two_ranks_then_one(Path(sys.argv[2]))
    else:
        main(sys.argv[1], Path(sys.argv[2]))
