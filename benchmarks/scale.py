"""How does each thing grow with the number of samples?  From 10⁴ to 10⁷; slopes, and a plot.  Writes results/scale.md and scale.svg.

    python benchmarks/scale.py                     about ten minutes
    python benchmarks/scale.py WORK SIDE NUM FOLDER    one measurement, in this process (the script starts itself so)

A slope of 1 is twice the time for twice the samples, 0 is no growth at all.  Every measurement is a process of its own.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from stand import RESULTS, Page, Verdict, table

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
MOST = {
    "datasets": 1_000_000,
    "trl": 100_000,
}  # beyond these a peer needs minutes for each repetition
REPEAT = 2
BATCH, LENGTH = 8, 2048
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "runs",
    "far",
    "away",
    "from",
    "it",
]

# work → (what it is, sides, the steepest slope we hold ourselves to)
WORKS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "open": ("open a JSONL file for the first time", ("penstock", "datasets"), 1.0),
    "reopen": ("open it again", ("penstock", "datasets"), 0.75),
    "row": ("read 1,000 rows at random", ("penstock", "datasets"), 0.3),
    "prepare": (
        "JSONL to tokens on disk, two processes, from nothing",
        ("penstock", "datasets"),
        1.0,
    ),
    "hit": ("open what was prepared", ("penstock",), 0.75),
    "pack": ("lengths to full rows", ("penstock", "trl"), 1.05),
    "first": ("loader to first batch", ("penstock",), 0.5),
    "load": ("200 packed batches of 8 × 2,048", ("penstock",), 0.2),
    "resume": ("a state at 90 % to its next batch", ("penstock",), 0.5),
}


def write_rows(path: Path, num: int) -> None:
    lengths = 1 + np.random.default_rng(0).integers(0, 12, num)
    ends = [json.dumps({"text": " ".join(WORDS[:length])})[1:] + "\n" for length in range(14)]
    with path.open("w") as file:
        for start in range(0, num, 100_000):
            file.writelines(
                f'{{"id": {start + place}, {ends[length]}'
                for place, length in enumerate(lengths[start : start + 100_000].tolist())
            )


def write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([" ".join(WORDS)] * 10, trainer)
    tokenizer.save(str(path))


class Work:
    """One side's work of each kind on `num` rows in `folder`; a method returns seconds."""

    def __init__(self, side: str, num: int, folder: Path) -> None:
        self.side, self.num, self.folder = side, num, folder
        self.rows, self.tokenizer = folder / f"rows{num}.jsonl", folder / "tokenizer.json"
        self.cache = folder / f"{side}{num}"
        if side == "penstock":
            import penstock as ps

            ps.open([{"text": "modules are loaded before the clock starts"}])[0]
        else:
            import datasets

            datasets.disable_progress_bars()

    def _opened(self, cache: Path) -> Any:
        if self.side == "penstock":
            import penstock as ps

            return ps.open(str(self.rows), cache_dir=cache)
        import datasets

        return datasets.load_dataset(
            "json", data_files=str(self.rows), split="train", cache_dir=str(cache)
        )

    def open(self) -> float:
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            return timed(lambda: len(self._opened(Path(cache))))

    def reopen(self) -> float:
        len(self._opened(self.cache))
        return timed(lambda: len(self._opened(self.cache)))

    def row(self) -> float:
        rows = self._opened(self.cache)
        chosen = np.random.default_rng(1).integers(0, self.num, 1000).tolist()
        return timed(lambda: [rows[number] for number in chosen])

    def _prepared(self, cache: Path) -> Any:
        import penstock as ps

        options = {"tokenizer": str(self.tokenizer), "template": "text", "bos": False, "eos": False}
        return ps.prepare(str(self.rows), **options, cache_dir=cache, num_proc=2, progress="none")

    def prepare(self) -> float:
        if self.side == "penstock":
            with tempfile.TemporaryDirectory(dir=self.folder) as cache:
                return timed(lambda: self._prepared(Path(cache)))
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.tokenizer))

        def encode(rows: dict[str, list[str]]) -> dict[str, Any]:
            return {"input_ids": [one.ids for one in tokenizer.encode_batch(rows["text"])]}

        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            file = str(Path(cache) / "made.arrow")
            options = {
                "batched": True,
                "num_proc": 2,
                "remove_columns": ["text", "id"],
                "cache_file_name": file,
            }
            return timed(lambda: self._opened(Path(cache)).map(encode, **options))

    def hit(self) -> float:
        self._prepared(self.cache)
        return timed(lambda: len(self._prepared(self.cache)))

    def pack(self) -> float:
        lengths = np.clip(np.random.default_rng(0).lognormal(5.8, 1.0, self.num), 1, 4096).astype(
            np.int64
        )
        if self.side == "penstock":
            from penstock.plan.packing import UNBOUNDED, best_fit

            return timed(lambda: best_fit(lengths, 4096, UNBOUNDED))
        import datasets
        import pyarrow as pa
        from trl.data_utils import pack_dataset

        offsets = np.concatenate(([0], np.cumsum(lengths)))
        ids = pa.LargeListArray.from_arrays(
            pa.array(offsets), pa.array(np.zeros(offsets[-1], np.int32))
        )
        data = datasets.Dataset(pa.table({"input_ids": ids}))
        return timed(lambda: pack_dataset(data, seq_length=4096, strategy="bfd"))

    def _loader(self) -> Any:
        import penstock as ps

        return ps.Loader(
            self._prepared(self.cache),
            batch_size=BATCH,
            max_length=LENGTH,
            epochs=None,
            seed=0,
            output="numpy",
        )

    def first(self) -> float:
        self._prepared(self.cache)
        return timed(lambda: next(iter(self._loader())))

    def load(self) -> float:
        batches = iter(self._loader())
        list(islice(batches, 20))
        return timed(lambda: list(islice(batches, 200)))

    def resume(self) -> float:
        before = self._loader()
        before.seek(round(self._prepared(self.cache).lengths.sum() / (BATCH * LENGTH) * 0.9))
        next(iter(before))
        state, loader = before.state_dict(), self._loader()

        def resumed() -> None:
            loader.load_state_dict(state)
            next(iter(loader))

        return timed(resumed)


def timed(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(work: str, side: str, num: int, folder: Path) -> float:
    done = subprocess.run(
        [sys.executable, __file__, work, side, str(num), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{work} {side} {num}: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.split()[-1])


def slope(found: dict[int, float]) -> float:
    """Of the line through the logarithms."""
    sizes, seconds = (np.log10(list(values)) for values in (found, found.values()))
    return float(np.polyfit(sizes, seconds, 1)[0])


def plot(found: dict[tuple[str, str], dict[int, float]]) -> str:
    """Seconds over samples, both by powers of ten, as SVG."""
    width, height, left, bottom = 760, 460, 60, 40
    low = math.floor(min(math.log10(s) for line in found.values() for s in line.values()))
    high = math.ceil(max(math.log10(s) for line in found.values() for s in line.values()))

    def at(num: int, seconds: float) -> tuple[float, float]:
        x = left + (math.log10(num) - 4) / 3 * (width - left - 210)
        return x, height - bottom - (math.log10(seconds) - low) / (high - low) * (
            height - bottom - 20
        )

    colours = (
        "#1f6feb",
        "#0a7f5a",
        "#b35900",
        "#8250df",
        "#bf3989",
        "#57606a",
        "#cf222e",
        "#116329",
        "#953800",
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for power in range(low, high + 1):
        y = at(10_000, 10.0**power)[1]
        parts.append(
            f'<path d="M{left} {y:.1f}H{width - 210}" stroke="#ddd"/><text x="8" y="{y + 4:.1f}">{10.0**power:g} s</text>'
        )
    for size in SIZES:
        x = at(size, 10.0**low)[0]
        parts.append(
            f'<text x="{x:.1f}" y="{height - 14}" text-anchor="middle">10^{round(math.log10(size))}</text>'
        )
    taken: list[float] = []
    for (work, side), line in found.items():
        colour = colours[list(WORKS).index(work)]
        dash = "" if side == "penstock" else ' stroke-dasharray="5 4"'
        points = [at(num, seconds) for num, seconds in line.items()]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        label = points[-1][1]
        while any(abs(label - other) < 13 for other in taken):
            label += 1
        taken.append(label)
        parts.append(
            f'<text x="{width - 204}" y="{label + 4:.1f}" fill="{colour}">{work} ({side})</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    page = Page(
        "scale",
        "Growth from 10⁴ to 10⁷ samples",
        packages=("numpy", "datasets", "trl"),
        notes=(
            f"Medians of {REPEAT} measurements, each a process of its own, modules loaded before the clock starts where the work allows it",
            "Rows: JSON lines with an id and 1 to 12 words; a small BPE.  Row length of packing: 4,096, lognormal lengths",
            f"datasets is measured up to {MOST['datasets']:,}, trl up to {MOST['trl']:,}: beyond, a repetition takes minutes",
            "datasets prepares with `map(batched=True, num_proc=2)` and the same tokenizer",
        ),
    )
    found: dict[tuple[str, str], dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_tokenizer(folder / "tokenizer.json")
        for num in SIZES:
            write_rows(folder / f"rows{num}.jsonl", num)
            for work, (_, sides, _) in WORKS.items():
                for side in sides:
                    if num <= MOST.get(side, SIZES[-1]):
                        repeat = 1 if num > 1_000_000 and work in ("prepare", "open") else REPEAT
                        seconds = median(measure(work, side, num, folder) for _ in range(repeat))
                        found.setdefault((work, side), {})[num] = seconds
                        print(work, side, num, f"{seconds:.4f}", flush=True)
    verdicts, lines = [], []
    for (work, side), line in found.items():
        what, _, steepest = WORKS[work]
        steep = slope(line)
        cells = [f"{line[num]:.4f}" if num in line else "" for num in SIZES]
        lines.append([work, what, side, *cells, f"{steep:.2f}"])
        if side == "penstock":
            verdicts.append(
                Verdict(
                    f"{work}: {what}, slope", f"{steep:.2f}", f"≤ {steepest:.2f}", steep <= steepest
                )
            )
    head = ["work", "what", "who", *(f"{num:,}" for num in SIZES), "slope"]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "scale.svg").write_text(plot(found))
    page.write(verdicts, {"Seconds": ["![growth](scale.svg)", "", *table(head, lines)]})


if __name__ == "__main__":
    if len(sys.argv) == 5:
        work, side, num, folder = sys.argv[1:]
        print(getattr(Work(side, int(num), Path(folder)), work)())
    else:
        main()
