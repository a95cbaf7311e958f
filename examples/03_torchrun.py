"""A bare training loop on two ranks.  `torchrun --nproc-per-node=2 03_torchrun.py` runs it; started by itself, it starts torchrun."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import penstock as ps

TEXTS = [f"Gate {number} lets {number % 13} cubic metres of water through." * (1 + number % 5) for number in range(200)]


def prepare(folder: Path) -> None:
    (folder / "gates.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    ps.prepare(folder / "gates.jsonl", tokenizer=folder / "tokenizer.json", template="text", cache_dir=folder / "cache")


def train(folder: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    store = ps.prepare(
        folder / "gates.jsonl", tokenizer=folder / "tokenizer.json", template="text", cache_dir=folder / "cache"
    )
    loader = ps.Loader(store, batch_size=2, max_length=256, labels="shifted", output="torch")  # rank and size: torch's
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(400, 16), torch.nn.Linear(16, 400)))
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        loss.nan_to_num().backward()  # a rank whose rows only fill up the last step has no target
        optimizer.step()
        optimizer.zero_grad()
        if loader.world.rank == 0 and batch.step % 10 == 0:
            print(
                f"step {batch.step} of {len(loader)}, loss {loss.item():.3f}, to go on: {loader.state_dict()['rows']} rows"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(os.environ["GATES"]))
        sys.exit()
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        sys.exit(subprocess.run(job, env={**os.environ, "GATES": name, "OMP_NUM_THREADS": "1"}).returncode)
