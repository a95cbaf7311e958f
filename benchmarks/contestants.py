"""Who else hands samples to a trainer and says it can resume?  One class each, in its documented way.  Not a benchmark itself.

A contestant writes the samples in its own form (`write`), opens a run for one rank (`open`), hands over the numbers of the
samples in each batch, and gives and takes its state.  Sample n is a few tokens, the first two of which spell n.
"""

import importlib.machinery
import json
import os
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 8
BASE = 50_000  # sample n begins with the tokens n % BASE, n // BASE
SEED = 7


def sample(number: int) -> np.ndarray:
    length = 12 + (number * 7919) % 90
    tokens = (np.arange(length) * 31 + number) % BASE
    tokens[:2] = number % BASE, number // BASE
    return tokens.astype(np.int32)


class Resumable:
    """What has `state_dict` and `load_state_dict`, and hands over lists of records, or batches of columns."""

    loader: Any

    def batches(self) -> Iterator[list[int]]:
        for batch in self.loader:
            yield (
                batch["number"]
                if isinstance(batch, dict)
                else [int(record["number"]) for record in batch]
            )

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        self.loader.load_state_dict(state)


class Penstock(Resumable):
    """Packed rows, shuffled; rank and world are arguments; one state for all ranks."""

    distribution = ""
    name, note = "penstock", "packed rows of 512, best_fit"

    @staticmethod
    def write(folder: Path, num: int) -> None:
        import penstock as ps

        with (folder / "samples.jsonl").open("w") as file:
            for number in range(num):
                file.write(json.dumps({"input_ids": sample(number).tolist()}) + "\n")
        ps.prepare(
            str(folder / "samples.jsonl"),
            template="pretokenized",
            vocab_size=BASE,
            cache_dir=folder / "cache",
            progress="none",
        )

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        import penstock as ps

        store = ps.prepare(
            str(folder / "samples.jsonl"),
            template="pretokenized",
            vocab_size=BASE,
            cache_dir=folder / "cache",
            progress="none",
        )
        self.loader = ps.Loader(
            store,
            batch_size=BATCH,
            max_length=512,
            seed=SEED,
            rank=rank,
            world_size=world,
            output="numpy",
        )

    def batches(self) -> Iterator[list[int]]:
        for batch in self.loader:
            ids, borders = batch["input_ids"].reshape(-1), batch["cu_seqlens"]
            firsts = borders[:-1][batch["position_ids"].reshape(-1)[borders[:-1]] == 0]
            firsts = firsts[
                np.isin(firsts, np.flatnonzero(batch["labels"].reshape(-1) != -100) - 1)
            ]
            yield (ids[firsts] + BASE * ids[firsts + 1]).tolist()


class Columns(Resumable):
    """Data of `datasets`, in memory-mapped Arrow."""

    @staticmethod
    def write(folder: Path, num: int) -> None:
        import datasets
        import pyarrow as pa

        lists = pa.array([sample(number).tolist() for number in range(num)], pa.list_(pa.int32()))
        data = datasets.Dataset(pa.table({"number": pa.array(np.arange(num)), "input_ids": lists}))
        data.save_to_disk(str(folder / "columns"))


class Iterable(Columns):
    distribution = "datasets"
    name, note = (
        "datasets iterable",
        "64 shards, shuffle buffer of 1,000, `split_dataset_by_node`, its own `state_dict`",
    )

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        import datasets
        from datasets.distributed import split_dataset_by_node

        data = datasets.load_from_disk(str(folder / "columns")).to_iterable_dataset(num_shards=64)
        data = data.shuffle(seed=SEED, buffer_size=1000)
        self.loader = split_dataset_by_node(data, rank, world).batch(BATCH)


class Stateful(Columns):
    distribution = "torchdata"
    name, note = (
        "torchdata",
        "`StatefulDataLoader` over a map-style data set, `StatefulDistributedSampler`, no workers",
    )

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        import datasets
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        data = datasets.load_from_disk(str(folder / "columns"))
        sampler = StatefulDistributedSampler(
            data, num_replicas=world, rank=rank, shuffle=True, seed=SEED
        )
        self.loader = StatefulDataLoader(data, batch_size=BATCH, sampler=sampler, collate_fn=list)


class Grain(Columns):
    distribution = "grain"
    name, note = (
        "Grain",
        "`MapDataset` over Arrow, `shuffle`, `[rank::world]`, `to_iter_dataset`, the iterator's state",
    )

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        import datasets
        import grain

        data = (
            grain.MapDataset.source(datasets.load_from_disk(str(folder / "columns")))
            .seed(SEED)
            .shuffle()
        )
        self.iterator = iter(data[rank::world].to_iter_dataset().batch(BATCH, batch_fn=list))

    def batches(self) -> Iterator[list[int]]:
        for batch in self.iterator:
            yield [int(record["number"]) for record in batch]

    def state(self) -> Any:
        return self.iterator.get_state()

    def load(self, state: Any) -> None:
        self.iterator.set_state(state)


class Litdata(Resumable):
    distribution = "litdata"
    name, note = (
        "litdata",
        "`optimize`d chunks of 1 MB, `StreamingDataset(shuffle=True)`, `StreamingDataLoader`, no workers",
    )

    @staticmethod
    def write(folder: Path, num: int) -> None:
        from litdata import optimize

        optimize(
            _numbered,
            list(range(num)),
            output_dir=str(folder / "chunks"),
            chunk_bytes="1MB",
            num_workers=1,
            verbose=False,
        )

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        from litdata import StreamingDataLoader, StreamingDataset
        from litdata.utilities.env import _DistributedEnv

        data = StreamingDataset(str(folder / "chunks"), shuffle=True, seed=SEED, drop_last=False)
        data.distributed_env = _DistributedEnv(world_size=world, global_rank=rank, num_nodes=1)
        self.loader = StreamingDataLoader(data, batch_size=BATCH, drop_last=False, collate_fn=list)


def _numbered(number: int) -> dict[str, Any]:
    return {"number": number, "input_ids": sample(number)}


class Mosaic(Resumable):
    distribution = "mosaicml-streaming"
    name, note = (
        "mosaicml-streaming",
        "MDS, `StreamingDataset(shuffle=True)`, `StreamingDataLoader`; an environment of its own",
    )

    @staticmethod
    def write(folder: Path, num: int) -> None:
        without_torchvision()
        from streaming import MDSWriter

        columns = {"number": "int64", "input_ids": "ndarray:int32"}
        with MDSWriter(out=str(folder / "mds"), columns=columns, size_limit="1mb") as out:
            for number in range(num):
                out.write({"number": np.int64(number), "input_ids": sample(number)})

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        without_torchvision()
        from streaming import StreamingDataLoader, StreamingDataset

        data = StreamingDataset(
            local=str(folder / "mds"),
            shuffle=True,
            shuffle_seed=SEED,
            batch_size=BATCH,
            num_canonical_nodes=1,
        )
        # It counts what it handed over by the length of a batch's first column, so batches are columns here.
        self.loader = StreamingDataLoader(data, batch_size=BATCH, collate_fn=_numbers)


def _numbers(records: list[dict[str, Any]]) -> dict[str, list[int]]:
    return {"number": [int(record["number"]) for record in records]}


def without_torchvision() -> None:
    """It imports torchvision for its image data sets, which do not matter here; no build of it goes with a torch for CPUs."""
    for name, inside in (
        ("torchvision", {}),
        ("torchvision.datasets", {"VisionDataset": object}),
        ("torchvision.transforms", {}),
        ("torchvision.transforms.functional", {"to_tensor": None}),
    ):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(inside)
        sys.modules[name] = module


ALL = {kind.name: kind for kind in (Penstock, Iterable, Stateful, Grain, Litdata, Mosaic)}


def run(
    name: str, folder: Path, *, stop: int | None, state: Path | None, save: Path | None
) -> dict[str, Any]:
    """One rank's run in this process: resume, hand over until `stop` batches, save.  What was handed over, and how long it took."""
    import time

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        import torch

        torch.distributed.init_process_group("gloo")
    kind: Any = ALL[name]
    kind(folder, rank, world)  # modules are loaded before the clock starts
    taken = pickle.loads(state.read_bytes()) if state else None
    begin, begin_cpu = time.perf_counter(), time.process_time()
    loader = kind(folder, rank, world)
    if taken is not None:
        loader.load(taken)
    handed: list[list[int]] = []
    first = first_cpu = 0.0
    for batch in loader.batches():
        first = first or time.perf_counter() - begin
        first_cpu = first_cpu or time.process_time() - begin_cpu
        handed.append(batch)
        if len(handed) == stop:
            break
    if save:
        save.write_bytes(pickle.dumps(loader.state()))
    return {
        "first": first,
        "first_cpu": first_cpu,
        "handed": handed,
        "state_bytes": save.stat().st_size if save else 0,
    }


def main(words: list[str]) -> None:
    """write NAME FOLDER NUM, or run NAME FOLDER STOP STATE SAVE OUT"""
    verb, name, folder, *rest = words
    if verb == "write":
        ALL[name].write(Path(folder), int(rest[0]))
        return
    stop, state, save, out = rest
    found = run(
        name,
        Path(folder),
        stop=int(stop) or None,
        state=Path(state) if state else None,
        save=Path(save) if save else None,
    )
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
