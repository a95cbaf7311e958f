"""A training with DeepSpeed ZeRO over real processes on CPUs, killed and resumed on other numbers of ranks.

python -m tests.extras.trainers.deepspeed_runs RANKS DIE_AT FOLDER, as sharded_runs.py, which it takes data and lines from.

The optimizer is plain SGD, which keeps nothing from step to step: then a checkpoint is the weights and the Loader's state, and what is seen
of a resume on other ranks is the data, not DeepSpeed's own conversion of optimizer states.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from penstock.extras.trainers.isolation import check_isolation
from penstock.extras.trainers.model_inputs import ModelInputs

from . import sharded_runs
from .models import llama
from .sharded_runs import ROWS_PER_STEP, SAVE_EVERY, open_loader, write_line

STAGE = 2


def train(rank: int, ranks: int, port: int, folder: Path, die_at: int) -> None:
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), DS_ACCELERATOR="cpu")
    dist.init_process_group("gloo")
    import deepspeed

    # else it compiles an extension of its own, to exchange numbers through shared memory
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    model = llama().train()
    loader = open_loader(folder, ranks)
    saved = folder / "saved"
    if (saved / "loader.json").exists():
        model.load_state_dict(torch.load(saved / "weights.pt", weights_only=True))
        loader.load_state_dict(json.loads((saved / "loader.json").read_text()))
    config = {
        "train_micro_batch_size_per_gpu": ROWS_PER_STEP // ranks,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": STAGE},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )
    assert check_isolation(engine, loader)
    inputs = ModelInputs(engine)
    for batch in loader:
        write_line(folder, batch, _step(engine, inputs(batch), ranks), ranks)
        step = loader.state_dict()["step"]
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % SAVE_EVERY == 0:
            _save(engine.module, loader, saved)
    dist.barrier()
    dist.destroy_process_group()


def _step(engine: Any, given: dict[str, Any], ranks: int) -> float:
    """Train on the mean over the tokens of all ranks; return it."""
    labels = given.pop("labels")[:, 1:].flatten()
    logits = engine(**given).logits[:, :-1].flatten(0, 1)
    total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    targets = (labels != -100).sum().float()
    dist.all_reduce(targets)
    engine.backward(total * ranks / targets)  # DeepSpeed averages gradients over ranks
    engine.step()
    total = total.detach()
    dist.all_reduce(total)
    return float(total / targets)


def _save(model: Any, loader: Any, saved: Path) -> None:
    if dist.get_rank() == 0:
        saved.mkdir(exist_ok=True)
        torch.save(model.state_dict(), saved / "weights.tmp")
        (saved / "loader.tmp").write_text(json.dumps(loader.state_dict()))
        (saved / "weights.tmp").replace(saved / "weights.pt")
        (saved / "loader.tmp").replace(saved / "loader.json")
    dist.barrier()


if __name__ == "__main__":
    sys.exit(sharded_runs.main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), train))
