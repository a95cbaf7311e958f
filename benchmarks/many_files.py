"""How long does a folder of many small files take, from process start?  Beside `datasets` and plain reading.  Writes results/many_files.md.

    python benchmarks/many_files.py [TOKENIZER]           all questions; without a tokenizer a small one is trained
    python benchmarks/many_files.py measure WHAT FOLDER CACHE TOKENIZER     one measurement (the script starts itself so)

Every measurement is a process of its own, and its clock runs from before the interpreter starts until the answer is there.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from stand import Page, Verdict, table

NUM_FILES, NUM_ROWS = 20_000, 2
REPEAT = 3
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


def write(folder: Path) -> None:
    folder.mkdir()
    for number in range(NUM_FILES):
        rows = (
            f'{{"text": "document {number} row {row} {"some words " * (number % 20)}"}}\n'
            for row in range(NUM_ROWS)
        )
        (folder / f"part-{number:05}.jsonl").write_text("".join(rows))


def tokenizer(folder: Path) -> Path:
    """A small byte-level tokenizer: loading a large one is another benchmark's question."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["document row some words 0 1 2 3 4 5 6 7 8 9"] * 10, trainer)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    return folder


def measure(what: str, folder: str, cache: str, tokenizer_path: str) -> int:
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
        return len(
            penstock.prepare(
                source, tokenizer=tokenizer_path, template="text", cache_dir=cache, progress="none"
            )
        )
    return len(source)


def run(what: str, folder: Path, cache: Path, tokenizer_path: Path) -> tuple[float, float]:
    """Seconds by the clock and of CPU, of the process and all that it started."""
    command = [
        sys.executable,
        __file__,
        "measure",
        what,
        str(folder),
        str(cache),
        str(tokenizer_path),
    ]
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environment["PYTHONPYCACHEPREFIX"] = str(
        folder.with_name("bytecode")
    )  # modules are compiled once, as they are when installed
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    expected = NUM_FILES if what == "list and stat" else NUM_FILES * NUM_ROWS
    assert int(done.stdout.split()[-1]) == expected, done.stdout
    return seconds, cpu


def main(arguments: list[str]) -> None:
    notes = [
        f"Data: {NUM_FILES:,} files of JSON lines, {NUM_ROWS} rows each, one folder; {REPEAT} repetitions, contestants take turns",
        "The wall clock runs from before the interpreter starts: imports are in every number; bytecode is compiled before",
    ]
    page = Page(
        "many_files",
        "Many small files",
        packages=["datasets", "pyarrow", "tokenizers"],
        notes=notes,
    )
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "many"
        write(folder)
        tokenizer_path = Path(arguments[0]) if arguments else tokenizer(Path(root) / "tokenizer")
        runs: dict[str, list[tuple[float, float]]] = {what: [] for what in WHAT}
        for turn in range(REPEAT + 1):
            for what in WHAT:
                base = what.removesuffix(" again")
                cache = Path(root) / f"{base.replace(' ', '-')}-{turn}"
                seconds = run(what, folder, cache, tokenizer_path)
                if turn:  # the first compiles bytecode
                    runs[what].append(seconds)
            for cache in Path(root).glob(f"*-{turn}"):
                shutil.rmtree(cache)
    times = {what: [seconds for seconds, _ in each] for what, each in runs.items()}
    cpu = {what: median(each for _, each in measured) for what, measured in runs.items()}
    verdicts = [
        Verdict(
            what, f"{median(times[what]):.2f} s", f"≤ {target} s", median(times[what]) <= target
        )
        for what, target in TARGETS.items()
    ]
    rows = [
        [
            what,
            WHAT[what],
            f"{median(seconds):.2f}",
            f"{min(seconds):.2f}–{max(seconds):.2f}",
            f"{cpu[what]:.2f}",
        ]
        for what, seconds in times.items()
    ]
    page.write(
        verdicts,
        {"Seconds from process start": table(["", "what", "median", "range", "CPU"], rows)},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(measure(*sys.argv[2:]))
    else:
        main(sys.argv[1:])
