"""What does a store in a bucket cost?  The first batch of a cold machine, tokens per second, and bytes fetched per epoch by mirror size.

python benchmarks/remote.py [--tiny]

The bucket is moto on this machine, in a process of its own, behind a proxy that adds 20 ms to every request.  A cold machine is a new
process with an empty mirror, which resumes at 90 % of an epoch; the time to its first batch is counted from the start of the process.
All read the same samples from that server, shuffled, and resume by their own states.  Who is not installed, or fails, is named with
the reason.  Bytes are those that the proxy sends.  Least recently used is simulated on the order in which the plan reads shards; ours
is measured.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bucket import Server, bucket
from contestants import without_torchvision
from stand import MOSAIC, Benchmark, Report, fresh, since_start, sized

SHARDS = sized(60, 8)
ROWS = sized(500, 20)  # samples of a shard, about 500 tokens each
VOCABULARY = 50_000
LATENCY = sized(0.02, 0.001)  # seconds
REPEAT = sized(3, 1)
EPOCHS = 4
BATCH, MAX_LENGTH = 8, 4096
PACKED = 64  # samples whose tokens fill eight rows
URL = "s3://bkt/cache"
SHARE = sized(0.25, 0.9)  # of the store that a mirror, or a peer's cache, may hold
SHARES = sized((0.1, 0.25, 0.5), (0.9,))  # of which the bytes per epoch are measured
PATIENCE = 120  # seconds for one run

BENCHMARK = Benchmark(
    title="A store in a bucket",
    question="What does a store in a bucket cost: the first batch of a cold machine, an epoch, the bytes of an epoch?",
    measures=("extras.remote", "store", "loader", "plan"),
    peers={
        "datasets": "`load_dataset('parquet', streaming=True)` over HTTP, a file for each of our shards, shuffled with a buffer of 1,000; "
        "samples as they are",
        "litdata": f"`optimize`d chunks of the size of our shards, its cache limited as our mirror is, no workers, "
        "shuffled; its client is set "
        f"to allow plain HTTP (`client_options`). As they are: batches of {BATCH} samples, a list of arrays. Packed: a collate that lays "
        f"{PACKED} samples into rows of {MAX_LENGTH:,} tokens with ids, labels and positions of int64",
        "mosaicml-streaming": "MDS shards of the size of ours, cache limited as our mirror is, no workers, shuffled in blocks of two "
        "shards as ours; samples as they are; in an environment of its own (`make .venv-bench-mosaic/.ready`)",
    },
    packages=("numpy", "obstore", "moto"),
    notes=(
        f"{SHARDS} shards of {ROWS} samples, about {SHARDS * ROWS * 500:,} tokens; {LATENCY * 1000:.0f} ms added to each request",
        f"Ours packed: batches of {BATCH} rows of {MAX_LENGTH:,} tokens by best_fit, with ids, labels, positions and borders; as they "
        f"are: `packing: none`, a sample a row, batches of {BATCH}",
        f"Medians of {REPEAT} turns, each a new process with an empty mirror or cache; the server takes a part of the same cores",
    ),
)


def samples(shard: int) -> list[np.ndarray]:
    chance = np.random.default_rng(shard)
    sizes = chance.integers(300, 700, ROWS)
    return [chance.integers(0, VOCABULARY, int(size)).astype(np.uint16) for size in sizes]


def write(folder: Path, server: Server) -> None:
    """A store, made locally and copied object by object; and the same samples as Parquet files, one for each shard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with (folder / "data.jsonl").open("w") as file:
        for shard in range(SHARDS):
            lines = (json.dumps({"input_ids": ids.tolist()}) + "\n" for ids in samples(shard))
            file.writelines(lines)
    build_store(folder, folder / "local")
    server.put_folder("cache", folder / "local")
    for shard in range(SHARDS):
        out = pa.BufferOutputStream()
        column = pa.array(samples(shard), pa.list_(pa.uint16()))
        pq.write_table(pa.table({"input_ids": column}), out)
        server.put(f"parquet/{shard:04}.parquet", out.getvalue().to_pybytes())


def build_store(folder: Path, where: Any) -> Any:
    import penstock as ps
    from penstock.api import choose_template
    from penstock.cache import open_cache
    from penstock.engines import LocalEngine
    from penstock.store import build

    source = ps.open(str(folder / "data.jsonl"), cache_dir=where)
    template = choose_template(source, "pretokenized", None, {"vocab_size": VOCABULARY}, facts=None)
    return build(
        source,
        template,
        engine=LocalEngine(1),
        cache=open_cache(where),
        shard_rows=ROWS,
        shard_bytes=1 << 30,
    )


# The contestants: each gives the number of tokens of its batches, and saves or loads its state


def timed(batches: Iterable[int]) -> dict[str, float]:
    """Seconds from the start of the process to the first batch, and tokens per second of the next ones."""
    turns = iter(batches)
    next(turns)
    first, tokens, start = since_start(), 0, time.perf_counter()
    for batch in turns:
        tokens += batch
    return {"first": first, "tokens_per_second": tokens / (time.perf_counter() - start)}


def penstock_loader(store: Any, packing: str, **more: Any) -> Any:
    import penstock as ps

    options = {"shuffle_window": 2, "block": ROWS, "output": "numpy"}
    return ps.Loader(
        store, batch_size=BATCH, max_length=MAX_LENGTH, packing=packing, **options, **more
    )


def run_penstock(folder: str, share: float, how: str) -> dict[str, float]:
    store = build_store(Path(folder), URL)
    mirror = int(share * sum(entry.num_bytes for entry in store.manifest.shards))
    packing = "none" if how == "as they are" else "best_fit"
    loader = penstock_loader(store, packing, mirror_bytes=mirror)
    if how == "resumed":
        loader.load_state_dict(json.loads((Path(folder) / "penstock.json").read_text()))
    spans = (batch.rows.spans for batch in loader)
    return timed(int((each["stop"] - each["start"]).sum()) for each in spans)


def open_datasets() -> Any:
    from datasets import load_dataset

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    urls = [f"{endpoint}/bkt/parquet/{shard:04}.parquet" for shard in range(SHARDS)]
    data = load_dataset("parquet", data_files=urls, split="train", streaming=True)
    return data.shuffle(seed=0, buffer_size=1000)


def run_datasets(folder: str, share: float, how: str) -> dict[str, float]:
    data = open_datasets()
    if how == "resumed":
        data.load_state_dict(json.loads((Path(folder) / "datasets.json").read_text()))
    return timed(len(row["input_ids"]) for row in data)


def samples_of(shard: int) -> Any:
    for ids in samples(shard):
        yield {"input_ids": ids}


def write_litdata(folder: str) -> None:
    from litdata import optimize

    optimize(
        samples_of,
        list(range(SHARDS)),
        output_dir=f"{folder}/litdata",
        chunk_size=ROWS,
        num_workers=1,
        verbose=False,
    )


def pack_collate(records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Rows of MAX_LENGTH, filled one after the other: ids, labels, positions."""
    rows: list[list[np.ndarray]] = [[]]
    free = MAX_LENGTH
    for record in records:
        ids = record["input_ids"]
        if len(ids) > free:
            rows.append([])
            free = MAX_LENGTH
        rows[-1].append(ids)
        free -= len(ids)
    shape = (len(rows), MAX_LENGTH)
    input_ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    labels = np.full(shape, -100, np.int64)
    for number, row in enumerate(rows):
        size = sum(map(len, row))
        input_ids[number, :size] = np.concatenate(row)
        positions[number, :size] = np.concatenate([np.arange(len(ids)) for ids in row])
        labels[number, : size - 1] = input_ids[number, 1:size]
        borders = np.cumsum([len(ids) for ids in row])
        labels[number, borders - 1] = -100
    borders = np.concatenate(([0], np.cumsum([len(record["input_ids"]) for record in records])))
    return {"input_ids": input_ids, "labels": labels, "position_ids": positions, "borders": borders}


def open_litdata(folder: Path, most: int, how: str) -> Iterator[int]:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    cache = folder / "litdata-cache"  # a state can be loaded only with the same folder
    shutil.rmtree(cache, ignore_errors=True)
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": "us-east-1"}
    data = StreamingDataset(
        "s3://bkt/litdata",
        cache_dir=str(cache),
        shuffle=True,
        storage_options=options,
        max_cache_size=most,
    )
    if how == "packed":
        return StreamingDataLoader(data, batch_size=PACKED, collate_fn=pack_collate)
    return StreamingDataLoader(data, batch_size=BATCH, collate_fn=list)


def write_mosaic(folder: str) -> None:
    without_torchvision()
    from streaming import MDSWriter

    size = 1000 * ROWS
    with MDSWriter(
        out=f"{folder}/mosaic", columns={"input_ids": "ndarray:uint16"}, size_limit=size
    ) as out:
        for shard in range(SHARDS):
            for sample in samples_of(shard):
                out.write(sample)


def open_mosaic(folder: Path, most: int, how: str) -> Any:
    without_torchvision()
    from streaming import StreamingDataLoader, StreamingDataset

    options = {
        "batch_size": BATCH,
        "num_canonical_nodes": 1,
        "shuffle_block_size": 2 * ROWS,
        "cache_limit": most,
    }
    local = f"{os.environ['PENSTOCK_MIRROR']}/mosaic"
    data = StreamingDataset(remote="s3://bkt/mosaic", local=local, shuffle=True, **options)
    return StreamingDataLoader(data, batch_size=BATCH, collate_fn=columns)


def columns(records: list[dict[str, Any]]) -> dict[str, Any]:
    """It counts what it handed over by the length of a batch's first column."""
    return {"input_ids": [record["input_ids"] for record in records]}


def num_tokens(batch: Any) -> int:
    if isinstance(batch, list):
        return sum(len(record["input_ids"]) for record in batch)
    if "borders" in batch:
        return int(batch["borders"][-1])
    return sum(map(len, batch["input_ids"]))


def run_peer(name: str, folder: str, share: float, how: str) -> dict[str, float]:
    """An epoch of litdata or mosaicml-streaming; save: up to 90 %, and write the state."""
    size = sum(path.stat().st_size for path in (Path(folder) / name).iterdir())
    opening = {"litdata": open_litdata, "mosaic": open_mosaic}[name]
    loader: Any = opening(Path(folder), int(share * size), how)
    state = Path(folder) / f"{name}.state.json"
    if how == "save":
        for _ in islice(loader, int(0.9 * SHARDS * ROWS / BATCH)):
            pass
        state.write_text(json.dumps(loader.state_dict()))
        return {}
    if how == "resumed":
        loader.load_state_dict(json.loads(state.read_text()))
    return timed(num_tokens(batch) for batch in loader)


def run_litdata(folder: str, share: float, how: str) -> dict[str, float]:
    return run_peer("litdata", folder, share, how)


def run_mosaic(folder: str, share: float, how: str) -> dict[str, float]:
    return run_peer("mosaic", folder, share, how)


def save_states(folder: str, with_datasets: bool) -> None:
    """States at 90 % of an epoch."""
    place = Path(folder)
    loader = penstock_loader(build_store(place, place / "local"), "best_fit")
    for _ in islice(loader, int(0.9 * len(loader))):
        pass
    (place / "penstock.json").write_text(json.dumps(loader.state_dict()))
    if with_datasets:
        data = open_datasets()
        for _ in islice(data, int(0.9 * SHARDS * ROWS)):
            pass
        (place / "datasets.json").write_text(json.dumps(data.state_dict()))


# The questions

WAYS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "penstock": (run_penstock, ("packed", "as they are", "resumed")),
    "datasets": (run_datasets, ("as they are", "resumed")),
    "litdata": (run_litdata, ("packed", "as they are", "resumed")),
    "mosaicml-streaming": (run_mosaic, ("as they are", "resumed")),
}
WRITERS = {"litdata": (write_litdata, "litdata"), "mosaicml-streaming": (write_mosaic, "mosaic")}
Runs = dict[tuple[str, str], list[dict[str, float]]]


def python_of(name: str) -> Path:
    return MOSAIC / "bin" / "python" if name == "mosaicml-streaming" else Path(sys.executable)


def in_new_process(name: str, how: str, folder: Path, server: Server) -> dict[str, float]:
    """Run a contestant in a process of its own, with an empty mirror and cache; add what the proxy sent meanwhile."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
        env = {"PENSTOCK_MIRROR": empty, "HF_HOME": empty, "HF_DATASETS_CACHE": empty}
        before = server.sent()
        run = WAYS[name][0]
        done = fresh(run, folder, SHARE, how, env=env, python=python_of(name), timeout=PATIENCE)
        after = server.sent()
    return {**done.value, **{key: after[key] - before[key] for key in after}}


def prepare_peer(name: str, folder: Path, server: Server) -> None:
    """Write its files and put them in the bucket; save its state at 90 %."""
    if name in WRITERS:
        writer, place = WRITERS[name]
        fresh(writer, folder, python=python_of(name))
        server.put_folder(place, folder / place)
        in_new_process(name, "save", folder, server)


def run_all(report: Report, folder: Path, server: Server) -> Runs:
    names = [name for name in WAYS if name == "penstock" or report.has(name)]
    runs: Runs = {}
    for turn in range(REPEAT):
        for name in list(names):
            try:
                if not turn:
                    prepare_peer(name, folder, server)
                for how in WAYS[name][1]:
                    runs.setdefault((name, how), []).append(
                        in_new_process(name, how, folder, server)
                    )
            except Exception as error:
                if name == "penstock":
                    raise
                report.leave_out(name, error)
                names.remove(name)
                runs = {key: found for key, found in runs.items() if key[0] != name}
    return runs


def measured_epochs(folder: str, share: float) -> float:
    """The part of the store that an epoch fetches, from the second epoch on."""
    store = build_store(Path(folder), URL)
    total = sum(entry.num_bytes for entry in store.manifest.shards)
    import penstock as ps

    options = {"batch_size": BATCH, "max_length": MAX_LENGTH, "output": "numpy"}
    mirror = int(share * total)
    loader = ps.Loader(
        store, shuffle_window=1, block=ROWS, epochs=EPOCHS, mirror_bytes=mirror, **options
    )
    read: dict[int, float] = {}
    for _ in loader:
        epoch = loader.state_dict()["epoch"]
        read.setdefault(epoch, loader.metrics.as_dict()["remote"]["bytes"])
    last = loader.metrics.as_dict()["remote"]["bytes"]
    return float((last - read[1]) / (EPOCHS - 1) / total)


def simulated_lru(folder: Path, share: float) -> float:
    import penstock as ps

    store = build_store(folder, folder / "local")
    blocks = ps.Loader(
        store, shuffle_window=1, block=ROWS, batch_size=BATCH, max_length=MAX_LENGTH, output="numpy"
    ).plan.blocks
    held: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for epoch in range(EPOCHS):
        number = 0
        while (shards := blocks.shards(epoch, number)) is not None:
            for _, shard in shards:
                misses += shard not in held and epoch > 0
                held[shard] = None
                held.move_to_end(shard)
                if len(held) > share * SHARDS:
                    held.popitem(last=False)
            number += 1
    return misses / (EPOCHS - 1) / SHARDS


def judge(report: Report, runs: Runs) -> None:
    def each(name: str, how: str, key: str) -> list[float]:
        return [run[key] for run in runs.get((name, how), [])]

    what = "cold machine at 90 %: process start to the first batch"
    report.number("first", what, each("penstock", "resumed", "first"), "s", at_most=1)
    for how, key in (("packed", "packed"), ("as they are", "plain")):
        speeds = [speed / 1e6 for speed in each("penstock", how, "tokens_per_second")]
        what = f"an epoch, mirror {SHARE:.0%}, {how}"
        report.number(f"epoch_{key}", what, speeds, "M tokens/s")
        requests = each("penstock", how, "requests")
        report.number(f"requests_{key}", f"{what}: requests", requests, at_most=sized(75, 1000))
    for peer in BENCHMARK.peers:
        name = peer.partition("-")[0]
        for how, key in (("packed", "packed"), ("as they are", "plain")):
            theirs = each(peer, how, "tokens_per_second")
            if theirs:
                mine = each("penstock", how, "tokens_per_second")
                ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
                what = f"an epoch, {how}, against {peer}"
                target = 1.2 if peer == "litdata" else 1
                report.number(f"{name}_{key}", what, ratios, "×", peer=peer, at_least=target)
        theirs = each(peer, "resumed", "first")
        if theirs:
            mine = each("penstock", "resumed", "first")
            ratios = [a / b for a, b in zip(theirs, mine, strict=True)]
            what = f"first batch of a cold machine, against {peer}"
            report.number(f"{name}_first", what, ratios, "×", peer=peer, at_least=1)

    def row(name: str, how: str, value: str) -> list[str]:
        cells = [median(each(name, how, key)) for key in ("requests", "bytes")]
        return [name, how, value, f"{cells[0]:.0f}", f"{cells[1] / 1e6:.1f}"]

    resumed = [
        row(name, how, f"{median(each(name, how, 'first')):.2f}")
        for name, how in runs
        if how == "resumed"
    ]
    header = ["who", "how", "seconds to the first batch", "requests", "MB"]
    report.table("Resumed at 90 %, to the end of the epoch", header, resumed)
    whole = [
        row(name, how, f"{median(each(name, how, 'tokens_per_second')):,.0f}")
        for name, how in runs
        if how != "resumed"
    ]
    header = ["who", "how", "tokens per second", "requests", "MB"]
    report.table("A whole epoch", header, whole)


def main(report: Report) -> None:
    with tempfile.TemporaryDirectory() as above, bucket(latency=LATENCY) as server:
        folder = Path(above)
        write(folder, server)
        fresh(save_states, folder, report.has("datasets"))
        judge(report, run_all(report, folder, server))
        for share in SHARES:
            with tempfile.TemporaryDirectory() as empty:
                found = fresh(measured_epochs, folder, share, env={"PENSTOCK_MIRROR": empty}).value
            lru = simulated_lru(folder, share)
            most = 1.1 - share
            what = f"bytes fetched per epoch, of the store's, mirror {share:.0%}"
            note = f"LRU {lru:.2f}; one run, bytes do not depend on the load"
            report.number(f"bytes_{share:.0%}".rstrip("%"), what, found, at_most=most, note=note)


if __name__ == "__main__":
    BENCHMARK.run(main)
