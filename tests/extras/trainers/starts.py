"""What trainers do with a Loader at the start and in evaluation, and what they count.

python -m tests.extras.trainers.starts FOLDER writes found.json."""

import json
import os
import random
import socket
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import PreTrainedTokenizerFast, TrainingArguments
from trl import SFTConfig

import penstock as ps
from penstock.errors import PlanError
from penstock.extras.trainers.accelerate import attach
from penstock.extras.trainers.hf_trainer import LoaderTrainer
from penstock.extras.trainers.lightning import LoaderModule
from penstock.extras.trainers.trl import LoaderSFTTrainer
from penstock.loader import Batch

from .models import bloom, gpt2, gpt_oss, llama, qwen2_5_vl
from .runs import hf_arguments, in_child, make_model, open_loader


def refused(make: Callable[[], Any]) -> str:
    try:
        make()
    except PlanError as error:
        return str(error)
    return ""


def arguments(folder: Path, **more: Any) -> dict[str, Any]:
    return {**hf_arguments(folder), "save_strategy": "no", "max_steps": 2, **more}


def recorded(trainer: type) -> type:
    class Recorded(trainer):  # type: ignore[misc, valid-type]
        of_steps: list[float]

        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            loss = super().training_step(model, inputs, *rest)
            self.of_steps = [*getattr(self, "of_steps", []), float(loss)]
            return loss

    return Recorded


def hugging_face(
    folder: Path, model: Any, loader: dict[str, Any] | None = None, check: bool = True, **more: Any
) -> Any:
    trainer = recorded(LoaderTrainer)(
        model=model,
        args=TrainingArguments(**arguments(folder, **more)),
        loader=open_loader(folder, **(loader or {})),
        isolation_check=check,
    )
    trainer.train()
    return trainer


def with_trl(folder: Path, model: Any, **more: Any) -> Any:
    name = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"), **name
    )
    config = SFTConfig(
        **arguments(folder, logging_steps=1), bf16=False, gradient_checkpointing=False
    )
    trainer = LoaderSFTTrainer(
        model=model, args=config, processing_class=tokenizer, loader=open_loader(folder), **more
    )
    trainer.train()
    return trainer


def trained(folder: Path, check: bool, **more: Any) -> list[Any]:
    """The losses, and where chance stands afterwards; the Trainer seeds it when it is made."""
    losses = hugging_face(folder, make_model(dropout=0.3), check=check, **more).of_steps
    return [losses, torch.get_rng_state().tolist(), random.random()]


def isolation(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"same": []}
    for more in ({}, {"gradient_checkpointing": True}):
        found["same"].append([trained(folder, check, **more) for check in (True, False)])
    packed = {"attention_mask": "4d"}
    found["gpt_oss"] = refused(lambda: hugging_face(folder, gpt_oss()))
    found["gpt_oss, 4d"] = refused(lambda: hugging_face(folder, gpt_oss(), packed))
    found["4d and eager"] = refused(lambda: hugging_face(folder, llama("eager"), packed))
    found["unchecked"] = len(hugging_face(folder, bloom(), check=False).of_steps)
    found["alibi"] = refused(lambda: hugging_face(folder, bloom()))
    found["alibi, unpacked"] = refused(lambda: hugging_face(folder, bloom(), {"packing": "none"}))
    found["gpt2"] = refused(lambda: hugging_face(folder, gpt2()))
    found["vision"] = refused(lambda: hugging_face(folder, qwen2_5_vl()))
    found["vision with a cache"] = refused(
        lambda: hugging_face(folder, qwen2_5_vl(), {"use_cache": None})
    )
    found["trl"] = refused(lambda: with_trl(folder, bloom()))
    trainer = hugging_face(folder, bloom(), {"packing": "none"})
    found["evaluation"] = refused(lambda: trainer.evaluate(open_loader(folder, epochs=1)))
    found["lightning"] = refused(lambda: lightning(folder, open_loader(folder), use_cache=True))
    found["lightning, off"] = refused(
        lambda: lightning(folder, open_loader(folder), use_cache=True, check=False)
    )
    found["accelerate"] = refused(lambda: accelerate(folder, use_cache=True))
    found["accelerate, off"] = refused(
        lambda: accelerate(folder, use_cache=True, isolation_check=False)
    )
    found["accelerate, right"] = refused(lambda: accelerate(folder, use_cache=False))
    return found


def counts(folder: Path) -> dict[str, Any]:
    """(what was reported, what was trained)"""
    found: dict[str, Any] = {}
    trainer = hugging_face(
        folder, make_model(), max_steps=3, include_num_input_tokens_seen="non_padding"
    )
    batches = list(islice(open_loader(folder), 12))
    metrics = trainer.state.log_history[-1]
    found["samples"] = [
        metrics["train_samples_per_second"] * metrics["train_runtime"],
        samples(batches[:6]),
    ]
    found["seen"] = [trainer.state.num_input_tokens_seen, tokens(batches[:6])]
    found["batch size"] = [
        trainer.state.train_batch_size,
        trainer.args.per_device_train_batch_size,
        2,
    ]
    metrics = trainer.train().metrics  # goes on where max_steps ended it
    found["again"] = [
        metrics["train_samples_per_second"] * metrics["train_runtime"],
        samples(batches[6:]),
    ]
    finished = hugging_face(folder, make_model(), {"epochs": 1}, max_steps=-1)
    finished.train()  # a finished Loader is trained on from its start
    found["twice"] = [len(finished.of_steps), 2 * len(open_loader(folder, epochs=1))]
    logged = with_trl(folder, make_model()).state.log_history
    found["num_tokens"] = [
        [line["num_tokens"] for line in logged if "num_tokens" in line][:2],
        [tokens(batches[:2]), tokens(batches[:4])],
    ]
    return found


def samples(batches: list[Batch]) -> int:
    return sum(len(batch.rows.spans) for batch in batches)


def tokens(batches: list[Batch]) -> int:
    return sum(int((batch["seq_idx"] >= 0).sum()) for batch in batches)


class Module(LightningModule):
    def __init__(self, use_cache: bool) -> None:
        super().__init__()
        self.model = make_model()
        self.use_cache = use_cache
        self.seen: list[list[Any]] = []

    def training_step(self, batch: Any, number: int) -> Any:
        names = ("input_ids", "labels", "position_ids")
        return self.model(**{name: batch[name] for name in names}, use_cache=self.use_cache).loss

    def on_validation_start(self) -> None:
        self.seen.append([])

    def validation_step(self, batch: Any, number: int, dataloader_idx: int = 0) -> None:
        self.seen[-1].append([dataloader_idx, batch["input_ids"].tolist()])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def quiet_trainer(**options: Any) -> Trainer:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return Trainer(accelerator="cpu", **{**quiet, **options})


def lightning(
    folder: Path,
    loader: ps.Loader,
    evaluated: Any = None,
    *,
    use_cache: bool = False,
    check: bool = True,
    **more: Any,
) -> Module:
    trainer = quiet_trainer(max_epochs=1, **{"limit_train_batches": 6, **more})
    module = Module(use_cache)
    trainer.fit(
        module, datamodule=LoaderModule(loader, val_dataloaders=evaluated, isolation_check=check)
    )
    return module


def without_loader_module(folder: Path) -> dict[str, Any]:
    """Loaders that are given to Lightning as they are."""

    def fit(trained: ps.Loader, evaluated: Any, ckpt_path: Any = None, **more: Any) -> Module:
        module = Module(use_cache=False)
        quiet_trainer(**more).fit(module, trained, evaluated, ckpt_path=ckpt_path)
        return module

    once = {"max_epochs": 1, "limit_train_batches": 6, "val_check_interval": 2}
    found: dict[str, Any] = {"validated": fit(open_loader(folder), evaluated(folder), **once).seen}
    found["limited"] = fit(
        open_loader(folder), [evaluated(folder)], limit_val_batches=2, **once
    ).seen
    module, loader = Module(use_cache=False), evaluated(folder)
    for limit in (3, None):
        quiet_trainer(limit_val_batches=limit).validate(module, loader, verbose=False)
    found["alone"] = module.seen
    same = evaluated(folder)
    found["same"] = [
        refused(lambda n=number: fit(same, same, max_epochs=1, num_sanity_val_steps=n))
        for number in (0, 2)
    ]
    callback = ModelCheckpoint(folder / "ends", filename="end")
    callbacks = {"enable_checkpointing": True, "callbacks": [callback]}
    fit(evaluated(folder), None, max_epochs=1, **callbacks)
    found["end of an epoch"] = refused(
        lambda: fit(
            evaluated(folder), None, folder / "ends" / "end.ckpt", max_epochs=2, **callbacks
        )
    )
    return found


def accelerate(folder: Path, *, use_cache: bool, **options: Any) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(make_model().train())
    for batch in attach(accelerator, open_loader(folder), **options):
        names = ("input_ids", "labels", "position_ids")
        accelerator.backward(
            model(**{name: batch[name] for name in names}, use_cache=use_cache).loss
        )
        return


def evaluated(folder: Path) -> ps.Loader:
    return open_loader(folder, epochs=1, seed=9)


def evaluation(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"whole": [batch["input_ids"].tolist() for batch in evaluated(folder)]}
    found["lightning"] = lightning(
        folder, open_loader(folder), evaluated(folder), val_check_interval=2
    ).seen
    limited = lightning(
        folder, open_loader(folder), evaluated(folder), val_check_interval=2, limit_val_batches=2
    )
    found["limited"] = limited.seen
    two = {"one": evaluated(folder), "two": open_loader(folder, epochs=1, seed=9)}
    found["two"] = lightning(folder, open_loader(folder), two, val_check_interval=3).seen
    found["without a LoaderModule"] = without_loader_module(folder)
    found["endless"] = refused(lambda: LoaderModule(None, open_loader(folder, epochs=None)))
    accelerator = Accelerator(cpu=True)
    batches = attach(accelerator, evaluated(folder), evaluation=True)
    lists = [
        [batch["input_ids"].tolist() for batch in islice(batches, stop)]
        for stop in (None, 2, None, None)
    ]
    found["accelerate"] = lists
    found["saved"] = len(accelerator._custom_objects)
    found["prepare"] = refused(lambda: accelerator.prepare(make_model(), open_loader(folder)))
    found["prepare others"] = refused(lambda: accelerator.prepare(make_model()))
    return found


def skipped(folder: Path) -> dict[str, Any]:
    """Optimizer steps of three batches each, where the Loader passes over its last steps: all batches count."""
    steps = len(open_loader(folder, epochs=1))
    options: dict[str, Any] = {"epochs": 1, "skip_steps": [1, steps - 1]}
    trainer = hugging_face(
        folder, make_model(), options, max_steps=-1, gradient_accumulation_steps=3
    )
    found: dict[str, Any] = {"expected": -(-(steps - 2) // 3), "trainer": trainer.state.global_step}
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, synced = accelerator.prepare(torch.nn.Linear(1, 1)), 0
    for _ in attach(accelerator, open_loader(folder, **options)):
        with accelerator.accumulate(model):
            synced += accelerator.sync_gradients
    found["accelerate"] = synced
    more = {"accumulate_grad_batches": 3, "limit_train_batches": 1.0}
    found["lightning"] = lightning(
        folder, open_loader(folder, **options), **more
    ).trainer.global_step
    return found


def on_two_ranks(folder: Path) -> None:
    """Validation by Lightning and Accelerate, and what the Trainer counts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def rank(number: int, work: Callable[[Path], Any], name: str) -> None:
        place = {
            "RANK": number,
            "LOCAL_RANK": number,
            "WORLD_SIZE": 2,
            "LOCAL_WORLD_SIZE": 2,
            "GROUP_RANK": 0,
        }
        os.environ.update({key: str(value) for key, value in place.items()})
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test"
        )
        (folder / f"{name}-{number}.json").write_text(json.dumps(work(folder)))
        torch.distributed.barrier()  # rank 0 holds what the others read

    for name, work in (
        ("lightning", _lightning_rank),
        ("accelerate", _accelerate_rank),
        ("hf", _hf_rank),
    ):
        codes: list[int] = []

        def start(
            number: int, name: str = name, work: Callable[[Path], Any] = work, to: list[int] = codes
        ) -> None:
            to.append(in_child(lambda: rank(number, work, name)))

        children = [threading.Thread(target=start, args=(number,)) for number in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert codes == [0, 0], (name, codes)


def _lightning_rank(folder: Path) -> Any:
    torch.distributed.init_process_group(
        "gloo"
    )  # Lightning takes it over; open_loader asks it for the rank
    more = {"strategy": "ddp", "devices": 2, "val_check_interval": 2}
    return lightning(folder, open_loader(folder), evaluated(folder), **more).seen


def _accelerate_rank(folder: Path) -> Any:
    accelerator = Accelerator(cpu=True)
    batches = attach(accelerator, evaluated(folder), evaluation=True)
    return [
        [batch["input_ids"].tolist() for batch in islice(batches, stop)] for stop in (2, None, None)
    ]


def _hf_rank(folder: Path) -> Any:
    trainer = hugging_face(
        folder, make_model(), max_steps=2, include_num_input_tokens_seen="non_padding"
    )
    metrics = trainer.state.log_history[-1]
    return [
        trainer.state.num_input_tokens_seen,
        metrics["train_samples_per_second"] * metrics["train_runtime"],
    ]


def main(folder: Path) -> None:
    on_two_ranks(folder)  # first: it forks, and nothing has started threads yet
    found: dict[str, Any] = {
        name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]
        for name in ("lightning", "accelerate", "hf")
    }
    whole = {
        "ranks": found,
        "isolation": isolation(folder),
        "counts": counts(folder),
        "evaluation": evaluation(folder),
    }
    whole["skipped"] = skipped(folder)
    (folder / "found.json").write_text(json.dumps(whole))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
