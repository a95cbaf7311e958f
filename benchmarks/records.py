"""What do plain records cost?  Samples of a folder of `.pt` chunks per second of CPU, against the loop that users of such folders write.

python benchmarks/records.py [--tiny]

Every run is a process of its own, and its CPU time counts from the start of the process: imports, opening, digests and reading.
"""

import json
import random
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from stand import Benchmark, Report, fresh, peak_memory, sized

CHUNKS, SAMPLES = sized((8, 4_000), (2, 64))  # chunks, and samples of each
COLUMNS, LENGTH, SEQ_LENGTH = (
    4,
    500,
    499,
)  # columns of int64, and how much of a sequence a batch takes
BATCH = 32
REPEAT = sized(5, 1)

BENCHMARK = Benchmark(
    title="Plain records: samples of .pt chunks per second of CPU",
    question="How many samples of a folder of `.pt` chunks does a second of CPU give, against the loop that users write?",
    measures=("loader", "plan", "sources", "extras.formats"),
    peers={
        "torch": "a plain loop: loads chunk after chunk, permutes the samples of each, cuts them out one by one, "
        "stacks; shuffled within a chunk"
    },
    notes=(
        f"{CHUNKS} chunks of {SAMPLES:,} samples, {COLUMNS} columns of {LENGTH} int64; batches of {BATCH}, one epoch; medians of "
        f"{REPEAT} runs, each a fresh process; the ways take turns",
        "penstock: shuffled over all chunks; digests are remembered from an earlier run, except where it says first time",
        "CPU: user and system time of the process, with all its threads, from its start: imports, opening, digests, reading",
    ),
)


def make_folder(folder: Path) -> None:
    """As sequifier writes it: (sequences, targets, …) per chunk, and metadata.json."""
    import torch

    folder.mkdir()
    entries = []
    for number in range(CHUNKS):
        torch.manual_seed(number)
        names = [f"column{column}" for column in range(COLUMNS // 2)]
        sequences = {name: torch.randint(0, 1_000, (SAMPLES, LENGTH)) for name in names}
        targets = {name: values.roll(-1, 1) for name, values in sequences.items()}
        torch.save((sequences, targets), folder / f"{number}.pt")
        entries.append({"path": f"{number}.pt", "samples": SAMPLES})
    (folder / "metadata.json").write_text(
        json.dumps({"total_samples": CHUNKS * SAMPLES, "batch_files": entries})
    )


def plain_loop(folder: str, cache: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Chunk after chunk in random order: load it, permute its samples, cut each out, stack a batch."""
    import torch

    entries = json.loads((Path(folder) / "metadata.json").read_text())["batch_files"]
    random.Random(0).shuffle(entries)
    generator = torch.Generator().manual_seed(0)
    held: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for entry in entries:
        sequences, targets = torch.load(Path(folder) / entry["path"], weights_only=True)
        for row in torch.randperm(entry["samples"], generator=generator).tolist():
            held.append(
                (
                    {name: values[row, -SEQ_LENGTH:] for name, values in sequences.items()},
                    {name: values[row, -SEQ_LENGTH:] for name, values in targets.items()},
                )
            )
            if len(held) == BATCH:
                yield tuple(
                    {name: torch.stack([one[side][name] for one in held]) for name in held[0][side]}
                    for side in (0, 1)
                )  # type: ignore[misc]
                held = []


def penstock(
    folder: str, cache: str, **options: Any
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """A Loader with a collate function that gives the same batches."""
    import numpy as np
    import torch

    import penstock as ps

    def collate(records: list[dict[str, Any]]) -> dict[str, Any]:
        def cut(names: list[str]) -> dict[str, Any]:
            return {
                name.removeprefix("targets."): torch.from_numpy(
                    np.stack([r[name][-SEQ_LENGTH:] for r in records])
                )
                for name in names
            }

        arrays = [name for name, value in records[0].items() if isinstance(value, np.ndarray)]
        targets = [name for name in arrays if name.startswith("targets.")]
        return {"batch": (cut([name for name in arrays if name not in targets]), cut(targets))}

    source = ps.open(folder, cache_dir=cache)
    loader = ps.Loader(
        source, batch_size=BATCH, collate=collate, rank=0, world_size=1, last_step="drop", **options
    )
    for batch in loader:
        yield batch["batch"]


WAYS: dict[str, Callable[[str, str], Iterator[Any]]] = {
    "plain loop": plain_loop,
    "penstock": penstock,
    "penstock, no thread": lambda folder, cache: penstock(folder, cache, prefetch=0),
}


def run(way: str, folder: str, cache: str) -> dict[str, float]:
    """In a process of its own: one epoch.  Samples, CPU seconds until the first batch and of all, and the peak of memory."""
    samples, first = 0, 0.0
    for sequences, targets in WAYS[way](folder, cache):
        first = first or cpu_seconds()
        samples += len(sequences["column0"])
        assert sequences["column1"].shape == targets["column1"].shape == (BATCH, SEQ_LENGTH)
    return {"samples": samples, "first": first, "cpu": cpu_seconds(), "peak": peak_memory()}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(report: Report) -> None:
    found: dict[str, list[dict[str, float]]] = {
        "penstock, first time": [],
        **{way: [] for way in WAYS},
    }
    with tempfile.TemporaryDirectory() as place:
        folder, cache = Path(place) / "chunks", Path(place) / "cache"
        make_folder(folder)
        for turn in range(REPEAT):
            for name, runs in found.items():
                own = cache / f"cold{turn}" if "first" in name else cache / "warm"
                runs.append(fresh(run, name.partition(", first")[0], folder, own).value)
    whole = {name: [each["samples"] / each["cpu"] for each in runs] for name, runs in found.items()}
    later = {
        name: [each["samples"] / (each["cpu"] - each["first"]) for each in runs]
        for name, runs in found.items()
    }
    for key, what, rates in (
        ("loop", "against the plain loop, from process start", whole),
        ("loop_later", "against the plain loop, after the first batch", later),
    ):
        each = [a / b for a, b in zip(rates["penstock"], rates["plain loop"], strict=True)]
        report.number(key, what, each, "×", peer="torch", at_least=1)
    rows = [
        [
            name,
            f"{median(whole[name]):,.0f}",
            f"{median(later[name]):,.0f}",
            f"{median(each['first'] for each in runs):.2f}",
            f"{median(each['peak'] for each in runs):,.0f}",
        ]
        for name, runs in found.items()
    ]
    header = [
        "way",
        "samples per CPU s",
        "after the first batch",
        "CPU s until the first batch",
        "peak RSS, MB",
    ]
    report.table("Every way", header, rows)


if __name__ == "__main__":
    BENCHMARK.run(main)
