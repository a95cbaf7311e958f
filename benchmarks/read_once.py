"""How many bytes does `prepare` read, alone and beside others on the same cache?  Beside `datasets`.

python benchmarks/read_once.py [--tiny]

Bytes are `rchar` of the kernel: what a process asked the system to read.  What the same command reads for a file of one row (Python,
packages, the tokenizer) is taken off.  Bytes do not depend on the load of the machine, so one run is enough.
"""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data import small_tokenizer
from stand import Benchmark, Report, fresh, sized

NUM_BYTES = sized(192 << 20, 1 << 20)
PROCESSES = sized((1, 2, 4), (1,))
MOST_ALONE, MOST_MORE = 2.1, 5.0  # times the file: one process; per cent that each further one adds

BENCHMARK = Benchmark(
    title="Bytes read",
    question="How many bytes does `prepare` read, alone and beside other processes on one cache?",
    measures=("sources", "store", "cache", "places"),
    peers={
        "datasets": '`load_dataset("json")` and `map(batched=True)` with the same tokenizer, one process'
    },
    packages=("numpy", "tokenizers"),
    notes=(
        f"Data: one JSONL of {NUM_BYTES >> 20} MiB; template text; every run has an empty cache; one worker per process",
        "Bytes that processes ask the system for, less what they ask for with a file of one row; they do not depend on the machine's load",
    ),
)


def measure(what: str, file: str, cache: str, tokenizer: str) -> int:
    """Do one thing; the bytes that this process read meanwhile."""
    before = bytes_read()
    if what == "datasets":
        os.environ["HF_HUB_OFFLINE"] = "1"
        import datasets
        from tokenizers import Tokenizer

        datasets.disable_progress_bars()
        opened = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
        loaded = datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache)
        loaded.map(
            lambda rows: {"ids": [each.ids for each in opened.encode_batch(rows["text"])]},
            batched=True,
        )
    else:
        import penstock

        options = {"tokenizer": tokenizer, "template": "text", "cache_dir": cache, "num_proc": 1}
        penstock.prepare(file, **options, progress="none")
    return bytes_read() - before


def bytes_read() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


def run(what: str, processes: int, file: Path, cache: Path, tokenizer: Path) -> list[int]:
    """Bytes that each of some processes reads; all start at once, on one cache."""
    with ThreadPoolExecutor(processes) as pool:
        calls = [
            pool.submit(fresh, measure, what, file, cache, tokenizer) for _ in range(processes)
        ]
        return [call.result().value for call in calls]


def main(report: Report) -> None:
    found: dict[tuple[str, int], list[float]] = {}
    sides = [("penstock", each) for each in PROCESSES]
    sides += [("datasets", 1)] if report.has("datasets") else []
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        small, large = folder / "small.jsonl", folder / "large.jsonl"
        line = '{"text": "document %08d ' + "some words " * 200 + '"}\n'
        small.write_text(line % 0)
        with large.open("w") as out:
            out.writelines(line % number for number in range(NUM_BYTES // len(line % 0)))
        tokenizer, size = small_tokenizer(folder / "tokenizer"), large.stat().st_size
        for what, processes in sides:
            sums = []
            for file in (small, small, large):  # the first loads what a process loads once
                cache = folder / "cache"
                sums.append(run(what, processes, file, cache, tokenizer))
                shutil.rmtree(cache)
            base = min(sums[1])  # imports and tokenizer
            found[what, processes] = [
                (each - base) / size for each in sorted(sums[2], reverse=True)
            ]
    alone = sum(found["penstock", 1])
    what = "bytes that one process reads, times the file"
    report.number("alone", what, alone, "× the file", at_most=MOST_ALONE)
    for each in PROCESSES[1:]:
        share = 100 * (sum(found["penstock", each]) - alone) / (each - 1)
        what = f"of {each} processes, each further one adds, of the file"
        report.number(f"more_{each}", what, share, "%", at_most=MOST_MORE, digits=1)
    if report.has("datasets"):
        times = sum(found["datasets", 1]) / alone
        report.number(
            "datasets", "bytes that datasets reads, over ours", times, "×", peer="datasets"
        )
    rows = [
        [f"{what}, {processes}", f"{sum(each):.2f}", " + ".join(f"{one:.2f}" for one in each)]
        for (what, processes), each in found.items()
    ]
    header = ["processes", "together", "each process"]
    report.table("Bytes read, as multiples of the file", header, rows)


if __name__ == "__main__":
    BENCHMARK.run(main)
