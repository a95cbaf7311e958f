"""A bare training loop under torchrun, as people write it: gradients meet over gloo, a checkpoint now and then.

torchrun … torchrun_job.py FOLDER RUN DIE_AT: rank 1 is killed -9 at step DIE_AT, at every start that passes it.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.journeys.job import line, open_loader

SAVE_EVERY = 3


def main(folder: Path, run: int, die_at: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("dp", "tp"))
    loader = open_loader(folder, None, None, mesh=mesh, output="torch")
    assert (loader.world.rank, loader.world.size) == (rank, size)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(400, 8), torch.nn.Linear(8, 400))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = folder / "checkpoint.pt"
    if saved.exists():
        checkpoint = torch.load(saved, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        loader.load_state_dict(checkpoint["loader"])
    run += int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if rank == 0:
        (folder / f"began-{run}").write_text(json.dumps(loader.state_dict()["step"]))
    with (folder / f"log-{run}-{rank}.jsonl").open("a") as log:
        for batch in loader:
            logits = model(batch["input_ids"])
            targets = batch["labels"][:, 1:].reshape(-1)
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].reshape(-1, 400), targets, reduction="sum"
            )
            optimizer.zero_grad()
            loss.backward()
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
            optimizer.step()
            log.write(line(batch, rank, size))
            log.flush()
            if rank == 0 and (batch.step + 1) % SAVE_EVERY == 0:
                torch.save(
                    {"model": model.state_dict(), "loader": loader.state_dict()},
                    saved.with_suffix(".tmp"),
                )
                saved.with_suffix(".tmp").replace(saved)
            if (
                batch.step == die_at * (1 + int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
                and rank == 1
            ):
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo that still runs would abort a process that ends in the usual way
