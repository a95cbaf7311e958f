"""Trainings on messages with weights, on one rank or several, and the same steps by hand.

python -m tests.extras.trainers.weighted KIND RANKS FOLDER writes what rank 0 has trained to FOLDER/KIND-RANKS.json
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import penstock as ps

from .runs import make_model

ROWS_PER_STEP = 8  # of all ranks and accumulated batches
ACCUMULATED = 2
RATE = 0.1


def records(weights: bool = True) -> list[Any]:
    """Conversations of two turns, whose answers count differently."""
    found = []
    for number in range(24):
        first: dict[str, Any] = {"role": "assistant", "content": "the dog " * (1 + number % 5)}
        second: dict[str, Any] = {"role": "assistant", "content": "over the lazy fox"}
        if weights:
            first["weight"] = (0.5, 1, 3)[number % 3]
            second["weight"] = (2, 0, 1, 0.25)[number % 4]
        asked = [{"role": "user", "content": f"fox {number}?"}, {"role": "user", "content": "and?"}]
        found.append({"messages": [asked[0], first, asked[1], second]})
    return found


def open_loader(
    folder: Path,
    *,
    ranks: int = 1,
    weights: bool = True,
    message_weights: bool = True,
    **options: Any,
) -> ps.Loader:
    store = ps.prepare(
        records(weights),
        tokenizer=folder / "tokenizer",
        cache_dir=folder / "cache",
        message_weights=message_weights,
        num_proc=1,
        progress="none",
    )
    batch_size = ROWS_PER_STEP // ACCUMULATED // ranks
    given = {"batch_size": batch_size, "max_length": 96, "epochs": 1, "packing": "none", **options}
    return ps.Loader(store, **given)


def train(kind: str, folder: Path, *, ranks: int = 1, **options: Any) -> Any:
    """Train with SGD; return the trainer."""
    from transformers import PreTrainedTokenizerFast, TrainingArguments
    from trl import SFTConfig

    from penstock.extras.trainers.hf_trainer import LoaderTrainer
    from penstock.extras.trainers.trl import LoaderSFTTrainer

    common: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "optim": "sgd",
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "logging_steps": 1,
        "gradient_accumulation_steps": ACCUMULATED,
    }
    loader = open_loader(folder, ranks=ranks, **options)
    # only where it may change how the training computes its loss
    evaluated = open_loader(folder, ranks=ranks) if options.get("message_weights", True) else None
    model = make_model(dropout=0.0)
    if kind == "trl":
        end = "<|endoftext|>"
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"),
            eos_token=end,
            pad_token=end,
        )
        arguments = SFTConfig(**common, bf16=False)
        trainer: Any = LoaderSFTTrainer(
            model=model,
            args=arguments,
            processing_class=tokenizer,
            loader=loader,
            eval_dataset=evaluated,
        )
    else:
        trainer = LoaderTrainer(
            model=model, args=TrainingArguments(**common), loader=loader, eval_dataset=evaluated
        )
    trainer.train()
    return trainer


def parameters(model: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def by_hand(folder: Path) -> tuple[torch.Tensor, list[float], float]:
    """The same steps in plain torch: the parameters, the loss of each step, and that of an evaluation."""
    model = make_model(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    batches = list(open_loader(folder))
    for first in range(0, len(batches), ACCUMULATED):
        loss = weighted_mean(model, batches[first : first + ACCUMULATED])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        evaluated = float(weighted_mean(model, batches))
    return parameters(model), losses, evaluated


def weighted_mean(model: Any, batches: list[Any]) -> torch.Tensor:
    """The sum of weight × loss over all tokens of these batches, over the sum of the weights."""
    total = torch.zeros(())
    weight = torch.zeros(())
    for batch in batches:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        for row in range(len(logits)):
            for place in range(1, logits.shape[1]):
                label = batch["labels"][row, place]
                if label != -100:
                    share = batch["weights"][row, place]
                    total = total - share * logits[row, place - 1].log_softmax(-1)[label]
                    weight = weight + share
    return total / weight


def _in_process(rank: int, kind: str, ranks: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="1")
    dist.init_process_group("gloo")
    trainer = train(kind, folder, ranks=ranks)
    evaluated = trainer.evaluate()["eval_loss"]
    if rank == 0:
        found = {"parameters": parameters(trainer.model).tolist(), "evaluated": evaluated}
        (folder / f"{kind}-{ranks}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main(kind: str, ranks: int, folder: Path) -> None:
    open_loader(folder)  # prepares the store
    import accelerate  # noqa: F401  # imported once, before the processes are forked

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    mp.start_processes(_in_process, (kind, ranks, port, folder), nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
