"""A training whose weights FSDP2 divides over real processes, killed and resumed on other numbers of ranks.

python -m tests.extras.trainers.sharded_runs RANKS DIE_AT FOLDER; all ranks are killed after step DIE_AT, unless that is 0.

Rank 0 appends a line for each step to FOLDER/steps.jsonl: the samples of all ranks, and the loss over all of their tokens.  A step has the
same rows on any number of ranks, so its loss is the same, too.
"""

import json
import os
import signal
import socket
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import penstock as ps
from penstock.extras.trainers.isolation import check_at_first_step
from penstock.extras.trainers.model_inputs import ModelInputs

from .models import llama

ROWS_PER_STEP = 4
SAVE_EVERY = 3
SAMPLES = 80


def open_loader(folder: Path, ranks: int, **options: Any) -> ps.Loader:
    records = [
        {"input_ids": [1 + (7 * number + place) % 300 for place in range(3 + number % 17)]}
        for number in range(SAMPLES)
    ]
    store = ps.prepare(
        records,
        template="pretokenized",
        vocab_size=400,
        cache_dir=folder / "cache",
        num_proc=1,
        progress="none",
    )
    batch_size = ROWS_PER_STEP // ranks
    return ps.Loader(store, batch_size=batch_size, max_length=32, epochs=2, seed=5, **options)


def _train(rank: int, ranks: int, port: int, folder: Path, die_at: int) -> None:
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",))
    model = llama().train()
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = open_loader(folder, ranks, mesh=mesh)
    saved = folder / "saved"
    if (saved / "loader.json").exists():
        _load(model, optimizer, loader, saved)
    inputs = ModelInputs(model)
    check_at_first_step(model, loader)
    for batch in loader:
        loss = _step(model, optimizer, inputs(batch), ranks)
        write_line(folder, batch, loss, ranks)
        step = loader.state_dict()["step"]
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % SAVE_EVERY == 0:
            _save(model, optimizer, loader, saved)
    dist.barrier()
    dist.destroy_process_group()


def _step(model: Any, optimizer: Any, given: dict[str, Any], ranks: int) -> float:
    """Train on the mean over the tokens of all ranks; return it."""
    labels = given.pop("labels")[:, 1:].flatten()
    logits = model(**given).logits[:, :-1].flatten(0, 1)
    total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    targets = (labels != -100).sum().float()
    dist.all_reduce(targets)
    (total * ranks / targets).backward()  # FSDP2 averages gradients over ranks
    optimizer.step()
    optimizer.zero_grad()
    total = total.detach()
    dist.all_reduce(total)
    return float(total / targets)


def write_line(folder: Path, batch: Any, loss: float, ranks: int) -> None:
    samples: list[Any] = [None] * ranks
    dist.all_gather_object(samples, batch.rows.spans["sample"].tolist())
    if dist.get_rank() == 0:
        line = {"step": batch.step, "samples": sorted(chain.from_iterable(samples)), "loss": loss}
        with (folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    dist.barrier()


def _save(model: Any, optimizer: Any, loader: ps.Loader, saved: Path) -> None:
    weights, moments = get_state_dict(model, optimizer)
    checkpoints.save({"model": weights, "optimizer": moments}, checkpoint_id=saved)
    if dist.get_rank() == 0:
        temporary = saved / "loader.tmp"
        temporary.write_text(json.dumps(loader.state_dict()))
        temporary.replace(saved / "loader.json")
    dist.barrier()


def _load(model: Any, optimizer: Any, loader: ps.Loader, saved: Path) -> None:
    weights, moments = get_state_dict(model, optimizer)
    checkpoints.load({"model": weights, "optimizer": moments}, checkpoint_id=saved)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    loader.load_state_dict(json.loads((saved / "loader.json").read_text()))


def main(ranks: int, die_at: int, folder: Path, train: Any = _train) -> int:
    open_loader(folder, ranks, rank=0, world_size=1)  # prepares the store
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = (ranks, port, folder, die_at)
    context: Any = mp.start_processes(
        train, arguments, nprocs=ranks, join=False, start_method="fork"
    )
    for process in context.processes:
        process.join()
    codes = {process.exitcode for process in context.processes}
    # a rank that loses its peers fails before it has killed itself
    return 0 if codes == {0} or (die_at and -signal.SIGKILL in codes) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
