"""How long does a folder of many small files take, from process start?  Beside `datasets` and plain reading.

python benchmarks/many_files.py [--tiny]

Every measurement is a process of its own, and its clock runs from before the interpreter starts until the answer is there.
"""

import os
import shutil
import tempfile
from pathlib import Path
from statistics import median

from data import small_tokenizer
from stand import Benchmark, Report, Timing, fresh, sized

NUM_FILES, NUM_ROWS = sized(20_000, 50), 2
REPEAT = sized(3, 1)
TARGETS = {"open": 1.5, "open again": 0.6, "prepare": 4.0, "prepare again": 1.0}
WHAT = {
    "list and stat": "os.scandir and os.stat of every file, in Python",
    "read": "open, read and close every file, in Python",
    "open": "ps.open with an empty cache, len",
    "open again": "the same in a new process",
    "prepare": "ps.prepare after ps.open, template text, one process starts with an empty cache",
    "prepare again": "the same in a new process: a cache hit",
    "datasets": 'datasets.load_dataset("json", data_files=all files), empty cache',
    "datasets again": "the same in a new process",
}

BENCHMARK = Benchmark(
    title="Many small files",
    question="How long does a folder of many small files take, from the start of the process?",
    measures=("sources", "places", "cache", "store", "api"),
    peers={
        "datasets": '`load_dataset("json", data_files=ALL, split="train")`, an empty cache; again: with what it cached'
    },
    packages=("numpy", "pyarrow", "tokenizers"),
    notes=(
        f"Data: {NUM_FILES:,} files of JSON lines, {NUM_ROWS} rows each, one folder; {REPEAT} repetitions, contestants take turns",
        "The wall clock runs from before the interpreter starts: imports are in every number; bytecode is compiled before",
    ),
)


def write(folder: Path) -> None:
    folder.mkdir()
    for number in range(NUM_FILES):
        rows = (
            f'{{"text": "document {number} row {row} {"some words " * (number % 20)}"}}\n'
            for row in range(NUM_ROWS)
        )
        (folder / f"part-{number:05}.jsonl").write_text("".join(rows))


def measure(what: str, folder: str, cache: str, tokenizer: str) -> int:
    """Do one thing; the number of rows or files it found."""
    if what == "list and stat":
        return len([entry.stat().st_size for entry in os.scandir(folder)])
    if what == "read":
        return sum(Path(entry.path).read_bytes().count(b"\n") for entry in os.scandir(folder))
    if what.startswith("datasets"):
        os.environ["HF_HUB_OFFLINE"] = "1"
        import datasets

        datasets.disable_progress_bars()
        files = sorted(str(path) for path in Path(folder).iterdir())
        return len(datasets.load_dataset("json", data_files=files, split="train", cache_dir=cache))
    import penstock

    source = penstock.open(folder, cache_dir=cache)
    if what.startswith("prepare"):
        options = {"tokenizer": tokenizer, "template": "text", "cache_dir": cache}
        return len(penstock.prepare(source, **options, progress="none"))
    return len(source)


def main(report: Report) -> None:
    works = [what for what in WHAT if not what.startswith("datasets") or report.has("datasets")]
    timings = {what: Timing() for what in works}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "many"
        write(folder)
        tokenizer = small_tokenizer(Path(root) / "tokenizer")
        for turn in range(REPEAT):
            for what in works:
                cache = Path(root) / f"{what.removesuffix(' again').replace(' ', '-')}-{turn}"
                done = fresh(measure, what, folder, cache, tokenizer)
                expected = NUM_FILES if what == "list and stat" else NUM_FILES * NUM_ROWS
                assert done.value == expected, f"{what}: {done.value}, expected {expected}"
                timings[what].wall.append(done.seconds)
                timings[what].cpu.append(done.cpu)
            for cache in Path(root).glob(f"*-{turn}"):
                shutil.rmtree(cache)
    for what, target in TARGETS.items():
        report.number(what.replace(" ", "_"), what, timings[what].wall, "s", at_most=target)
    if report.has("datasets"):
        for key, what, theirs in (
            ("against", "open", "datasets"),
            ("against_again", "open again", "datasets again"),
        ):
            question = f"{what}, against `load_dataset`"
            report.ratio(key, question, timings[theirs], timings[what], peer="datasets", at_least=1)
    rows = [
        [what, WHAT[what], timing.spread(digits=2), f"{median(timing.cpu):.2f}"]
        for what, timing in timings.items()
    ]
    report.table("Seconds from process start", ["", "what", "by the clock", "CPU"], rows)


if __name__ == "__main__":
    BENCHMARK.run(main)
