"""One rank of a training, with gloo and DDP: python -m tests.extras.losses.job FOLDER DIE_AT; RANK and the like come from the environment.

Saves the state of its Loader after every fourth step, and goes on from there if it is there.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from penstock.trainers.losses import LossBySource
from tests.extras.trainers.runs import open_loader

from .bigram import Bigram

ROWS = 12  # of a step, over all ranks
SAVE_EVERY = 4


def main(folder: Path, die_at: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    world = torch.distributed.get_world_size()
    loader = open_loader(folder, batch_size=ROWS // world, run_id="gloo")
    losses = LossBySource(loader)
    saved = folder / "state.json"
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    model = DistributedDataParallel(Bigram())
    for batch in loader:
        logits = model(batch["input_ids"])
        losses.add(batch, logits=logits)
        (logits.sum() * 0).backward()
        step = loader.state_dict()["step"]
        if step % SAVE_EVERY == 0 and step < die_at:
            losses.flush()
            if loader.world.rank == 0:
                saved.write_text(json.dumps(loader.state_dict()))
        if step == die_at:
            losses.flush()  # so that there are rows that the resume has to take back
            torch.distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
