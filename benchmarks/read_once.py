"""How many bytes does `prepare` read, alone and beside others on the same cache?  Beside `datasets`.  Writes results/read_once.md.

    python benchmarks/read_once.py                    all questions
    python benchmarks/read_once.py measure WHAT FILE CACHE TOKENIZER     one process (the script starts itself so)

Bytes are `rchar` of the kernel: what a process asked the system to read.  What the same command reads for a file of one row (Python,
packages, the tokenizer) is taken off.  Bytes do not depend on the load of the machine.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from many_files import tokenizer
from stand import Page, Verdict, table

NUM_BYTES = 192 << 20
PROCESSES = (1, 2, 4)
MOST_ALONE, MOST_MORE = 2.1, 0.05  # times the file: one process; what each further one adds


def measure(what: str, file: str, cache: str, tokenizer_path: str) -> int:
    """Do one thing; the bytes read by this process."""
    if what == "datasets":
        os.environ["HF_HUB_OFFLINE"] = "1"
        import datasets

        datasets.disable_progress_bars()
        from tokenizers import Tokenizer

        opened = Tokenizer.from_file(f"{tokenizer_path}/tokenizer.json")
        loaded = datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache)
        loaded.map(
            lambda rows: {"ids": [each.ids for each in opened.encode_batch(rows["text"])]},
            batched=True,
        )
    else:
        import penstock

        penstock.prepare(
            file,
            tokenizer=tokenizer_path,
            template="text",
            cache_dir=cache,
            num_proc=1,
            progress="none",
        )
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


def run(what: str, processes: int, file: Path, cache: Path, tokenizer_path: Path) -> list[int]:
    """Bytes that each of some processes reads; all start at once, on one cache."""
    command = [
        sys.executable,
        __file__,
        "measure",
        what,
        str(file),
        str(cache),
        str(tokenizer_path),
    ]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    answers = [each.communicate()[0] for each in started]
    assert all(each.returncode == 0 for each in started)
    return [int(answer.split()[-1]) for answer in answers]


def main() -> None:
    notes = [
        f"Data: one JSONL of {NUM_BYTES >> 20} MiB; template text; every run has an empty cache; one worker per process"
    ]
    page = Page("read_once", "Bytes read", packages=["datasets", "tokenizers"], notes=notes)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        small, large = folder / "small.jsonl", folder / "large.jsonl"
        line = '{"text": "document %08d ' + "some words " * 200 + '"}\n'
        small.write_text(line % 0)
        with large.open("w") as out:
            out.writelines(line % number for number in range(NUM_BYTES // len(line % 0)))
        opened, size = tokenizer(folder / "tokenizer"), large.stat().st_size
        for what, processes in [*(("penstock", each) for each in PROCESSES), ("datasets", 1)]:
            sums = []
            for file in (small, large):
                cache = folder / "cache"
                sums.append(run(what, processes, file, cache, opened))
                shutil.rmtree(cache)
            name = f"{what}, {processes} process{'es' if processes > 1 else ''}"
            base = min(sums[0])  # imports and tokenizer
            found[name] = [(each - base) / size for each in sorted(sums[1], reverse=True)]
    alone = sum(found["penstock, 1 process"])
    more = {
        each: (sum(found[f"penstock, {each} processes"]) - alone) / (each - 1)
        for each in PROCESSES[1:]
    }
    verdicts = [
        Verdict(
            "one process reads", f"{alone:.2f} × the file", f"≤ {MOST_ALONE} ×", alone <= MOST_ALONE
        )
    ]
    for each, share in more.items():
        target = share <= MOST_MORE
        verdicts.append(
            Verdict(
                f"of {each} processes, each further one adds",
                f"{share:.1%}",
                f"≤ {MOST_MORE:.0%}",
                target,
            )
        )
    rows = [
        [name, f"{sum(each):.2f}", " + ".join(f"{one:.2f}" for one in each)]
        for name, each in found.items()
    ]
    page.write(
        verdicts,
        {"Bytes read, as multiples of the file": table(["", "together", "each process"], rows)},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(measure(*sys.argv[2:]))
    else:
        main()
