"""A bare training loop on two ranks.  `torchrun --nproc-per-node=2 03_torchrun.py` runs it; started by itself, it starts torchrun."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import penstock as ps

TEXTS = [
    f"Gate {number} lets {number % 13} cubic metres of water through." * (1 + number % 5)
    for number in range(200)
]


def make_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))


def prepare(folder: Path) -> Any:
    options = {
        "tokenizer": folder / "tokenizer.json",
        "template": "text",
        "cache_dir": folder / "cache",
    }
    return ps.prepare([{"text": text} for text in TEXTS], **options)


def train(store: Any) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    loader = ps.Loader(
        store, batch_size=2, max_length=256, labels="shifted"
    )  # rank and size: torch's
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(400, 16), torch.nn.Linear(16, 400))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        labels = batch["labels"].flatten()
        torch.nn.functional.cross_entropy(
            model(batch["input_ids"]).flatten(0, 1), labels, reduction="sum"
        ).backward()
        trained = (labels >= 0).sum()
        dist.all_reduce(
            trained
        )  # ranks have differing numbers of targets; the last step's padding has none
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= trained
        optimizer.step(), optimizer.zero_grad()
        if loader.world.rank == 0:
            print(
                f"step {batch.step + 1} of {len(loader)}: {trained} targets on {loader.world.size} ranks",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(prepare(Path(os.environ["GATES"])))
        os._exit(
            0
        )  # a thread of gloo that still runs would abort a process that ends in the usual way
    with tempfile.TemporaryDirectory() as name:
        make_tokenizer(Path(name))  # and prepare once: the ranks then find it made
        prepare(Path(name))
        job = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            __file__,
        ]
        sys.exit(
            subprocess.run(
                job, env={**os.environ, "GATES": name, "OMP_NUM_THREADS": "1"}
            ).returncode
        )
