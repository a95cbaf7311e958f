"""Ray Train: a worker is killed and Ray restarts it; then the run goes on with one worker instead of two.  RAY_ADDRESS names a cluster."""

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import penstock as ps

RECORDS = [
    {"input_ids": [number % 97 + at for at in range(8 + number % 40)]} for number in range(120)
]


def train(config: dict[str, Any]) -> None:
    folder, model = Path(config["folder"]), torch.nn.Embedding(400, 1)
    store = ps.prepare(
        RECORDS, template="pretokenized", vocab_size=400, cache_dir=folder / "cache", num_proc=1
    )
    loader = ps.Loader(
        store, batch_size=2, max_length=64
    )  # rank and world size: torch's, which Ray has started
    if (saved := ray.train.get_checkpoint()) is not None:
        with saved.as_directory() as place:
            model.load_state_dict(torch.load(Path(place, "model.pt"), weights_only=True))
            loader.load_state_dict(json.loads(Path(place, "penstock.json").read_text()))
    for batch in loader:
        model(batch["input_ids"]).sum().backward()
        dist.all_reduce(model.weight.grad)
        with torch.no_grad():
            model.weight -= 0.01 * model.weight.grad
        model.zero_grad()
        name = f"{loader.world.size} {batch.step} {loader.world.rank} {os.getpid()}.json"  # what was trained, for the curious
        (folder / "trained" / name).write_text(json.dumps([str(row) for row in batch.provenance]))
        if batch.step % 3 == 2:  # state and weights, in one checkpoint
            with tempfile.TemporaryDirectory() as place:
                torch.save(model.state_dict(), Path(place, "model.pt"))
                Path(place, "penstock.json").write_text(
                    json.dumps(loader.state_dict())
                )  # the same on all ranks
                first = loader.world.rank == 0
                ray.train.report(
                    {"step": batch.step}, checkpoint=Checkpoint(place) if first else None
                )
        if batch.step == 4 and loader.world.rank == 1 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)  # a machine fails, once
        if batch.step == config["last"]:
            break


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = os.environ.get("GATES", name)
        Path(folder, "trained").mkdir()
        for workers, last in ((2, 7), (1, None)):
            run = RunConfig(
                name="gates", storage_path=folder, failure_config=FailureConfig(max_failures=1)
            )
            scaling = ScalingConfig(num_workers=workers)
            config = {"folder": folder, "last": last}
            result = TorchTrainer(
                train, train_loop_config=config, scaling_config=scaling, run_config=run
            ).fit()
            print(f"{workers} workers: trained up to step {result.metrics['step']}")
