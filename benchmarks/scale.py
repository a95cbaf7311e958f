"""How does each thing grow with the number of samples?  From 10⁴ to 10⁷ real ones, and to 10⁹ simulated ones; exponents, and a plot.

python benchmarks/scale.py [--tiny]

An exponent of 1 is twice the time for twice the samples, 0 is no growth at all.  Every measurement is a process of its own.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from data import train_tokenizer
from stand import ROOT, SIZE, Benchmark, Report, fresh, memory_watched, sized

from penstock.loader.state import Cursor, make_state, read_state
from penstock.plan.plan import Plan, PlanSource, Position
from penstock.plan.settings import PlanSettings

SIZES = sized((10_000, 100_000, 1_000_000, 10_000_000), (50, 200))
SIMULATED = sized((10**4, 10**5, 10**6, 10**7, 10**8, 10**9), (10**3, 10**4))
MOST = {
    "datasets": 100_000,
    "trl": 100_000,
}  # beyond these a peer needs minutes for each repetition
REPEAT = sized(3, 1)
MOST_AGAIN = 1_000_000  # rows; beyond, files are opened and prepared once
BATCH, LENGTH = sized((8, 2048), (2, 64))
Numbers = dict[str, float]  # seconds and MiB of one measurement
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

# work → (what it is, sides, the steepest exponent of time that we hold ourselves to)
WORKS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "open": ("open a JSONL file for the first time", ("penstock", "datasets"), 1.05),
    "reopen": ("open it again", ("penstock", "datasets"), 0.75),
    "row": ("read 1,000 rows at random", ("penstock", "datasets"), 0.3),
    "prepare": (
        "JSONL to tokens on disk, two processes, from nothing",
        ("penstock", "datasets"),
        1.05,
    ),
    "hit": ("open what was prepared", ("penstock",), 0.75),
    "pack": ("lengths to full rows", ("penstock", "trl"), 1.05),
    "plan": ("count all steps of an epoch", ("penstock",), 1.05),
    "first": ("loader to first batch", ("penstock",), 0.5),
    "load": ("200 packed batches", ("penstock",), 0.2),
    "resume": ("a state at 90 % to its next batch", ("penstock",), 0.5),
    "simulated_first": ("plan of simulated samples to its first step", ("penstock",), 0.4),
    "simulated_resume": ("the same plan, a state at 90 % to its next step", ("penstock",), 0.4),
}
MOST_MEMORY = 1.05  # exponent of memory, of every work
MOST_STATE = 0.05

BENCHMARK = Benchmark(
    title="Growth from 10⁴ to 10⁷ samples",
    question="How do time and memory grow with the number of samples?",
    measures=("sources", "templates", "store", "plan", "loader", "cache", "api"),
    peers={
        "datasets": f"`load_dataset('json')`, and `map(batched=True, num_proc=2)` with the same tokenizer; up to "
        f"{MOST['datasets']:,} rows: "
        "beyond, a repetition takes minutes",
        "trl": f"`pack_dataset(strategy='bfd')`; up to {MOST['trl']:,} rows",
    },
    notes=(
        f"Medians of {REPEAT} measurements (one above 10⁶), each a process of its own, modules loaded before the clock starts",
        "Exponent: of the line through the logarithms. Memory: anonymous memory of all processes together, most during the work above what "
        "there was before; less than 1 MiB counts as 1 MiB",
        "Rows: JSON lines with an id and 1 to 12 words; a small BPE. Row length of packing: 4,096, lognormal lengths",
        "Simulated: a plan over shards of 20,000 samples whose lengths a function computes, so that there is no data",
    ),
)


def write_rows(path: Path, num: int) -> None:
    lengths = 1 + np.random.default_rng(0).integers(0, 12, num)
    ends = [json.dumps({"text": " ".join(WORDS[:length])})[1:] + "\n" for length in range(14)]
    with path.open("w") as file:
        for start in range(0, num, 100_000):
            file.writelines(
                f'{{"id": {start + place}, {ends[length]}'
                for place, length in enumerate(lengths[start : start + 100_000].tolist())
            )


class Work:
    """One side's work of each kind on `num` rows in `folder`; a method returns seconds and MiB."""

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

    def open(self) -> Numbers:
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            return timed(lambda: len(self._opened(Path(cache))))

    def reopen(self) -> Numbers:
        len(self._opened(self.cache))
        return timed(lambda: len(self._opened(self.cache)))

    def row(self) -> Numbers:
        rows = self._opened(self.cache)
        chosen = np.random.default_rng(1).integers(0, self.num, 1000).tolist()
        return timed(lambda: [rows[number] for number in chosen])

    def _prepared(self, cache: Path) -> Any:
        import penstock as ps

        options = {"tokenizer": str(self.tokenizer), "template": "text", "bos": False, "eos": False}
        return ps.prepare(
            str(self.rows), **options, cache_dir=cache, num_proc=sized(2, 1), progress="none"
        )

    def prepare(self) -> Numbers:
        if self.side == "penstock":
            if self.num > MOST_AGAIN:  # this one is kept for the next works
                return timed(lambda: self._prepared(self.cache / "prepared"))
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
                "num_proc": sized(2, None),
                "remove_columns": ["text", "id"],
                "cache_file_name": file,
            }
            return timed(lambda: self._opened(Path(cache)).map(encode, **options))

    def hit(self) -> Numbers:
        self._prepared(self.cache / "prepared")
        return timed(lambda: len(self._prepared(self.cache / "prepared")))

    def pack(self) -> Numbers:
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

    def _loader(self, epochs: int | None = None) -> Any:
        import penstock as ps

        return ps.Loader(
            self._prepared(self.cache / "prepared"),
            batch_size=BATCH,
            max_length=LENGTH,
            epochs=epochs,
            seed=0,
            output="numpy",
        )

    def first(self) -> Numbers:
        self._prepared(self.cache / "prepared")
        return timed(lambda: next(iter(self._loader())))

    def load(self) -> Numbers:
        batches = iter(self._loader())
        list(islice(batches, 20))
        return timed(lambda: list(islice(batches, 200)))

    def plan(self) -> Numbers:
        loader = self._loader(epochs=1)
        return timed(lambda: len(loader))

    def resume(self) -> Numbers:
        before = self._loader()
        before.seek(
            round(self._prepared(self.cache / "prepared").lengths.sum() / (BATCH * LENGTH) * 0.9)
        )
        next(iter(before))
        state, loader = before.state_dict(), self._loader()

        def resumed() -> None:
            loader.load_state_dict(state)
            next(iter(loader))

        return {**timed(resumed), "state": len(json.dumps(state))}

    def simulated_first(self) -> Numbers:
        return timed(lambda: simulated_plan(self.num).step(Position(), BATCH))

    def simulated_resume(self) -> Numbers:
        block = int(0.9 * self.num) // SIMULATED_BLOCK
        plan = simulated_plan(self.num)
        saved = json.dumps(make_state(plan, Cursor(position=Position(block=block), step=1)))

        def resumed() -> None:
            again = simulated_plan(self.num)
            again.step(read_state(json.loads(saved), again).position, BATCH)

        return {**timed(resumed), "state": len(saved)}


SIMULATED_BLOCK, SIMULATED_SHARD = sized((65_536, 20_000), (256, 100))
_DRAWS = np.clip(np.random.default_rng(2).lognormal(5.8, 1.0, 65_536), 1, 4096).astype(np.int64)


def simulated_lengths(_: int, numbers: np.ndarray) -> np.ndarray:
    """A length for any sample without a table of them: its hash picks one of 65,536 lognormal draws."""
    hashed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return _DRAWS[(hashed >> np.uint64(48)).astype(np.int64)]


def simulated_plan(num: int) -> Plan:
    sizes = np.full(max(1, num // SIMULATED_SHARD), min(num, SIMULATED_SHARD))
    settings = PlanSettings(max_length=4096, block=SIMULATED_BLOCK)
    source = PlanSource(name="made-up", key="0" * 64, shard_sizes=sizes)
    return Plan([source], simulated_lengths, settings)


def timed(work: Callable[[], Any]) -> Numbers:
    found: dict[str, Any] = {}
    with memory_watched(found):
        begin = time.perf_counter()
        work()
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "mib": found["above"]}


def measure(work: str, side: str, num: int, folder: str) -> Numbers:
    return dict(getattr(Work(side, num, Path(folder)), work)())


def exponent(found: dict[int, float]) -> float:
    """Of the line through the logarithms."""
    sizes, values = (np.log10(list(each)) for each in (found, found.values()))
    return float(np.polyfit(sizes, values, 1)[0])


def last_exponent(found: dict[int, float]) -> float:
    """From the second largest size to the largest: what a fixed cost hides in the small ones."""
    (small, before), (large, after) = list(found.items())[-2:]
    return math.log(after / before) / math.log(large / small)


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


def sizes_of(work: str, side: str) -> tuple[int, ...]:
    if work.startswith("simulated"):
        return tuple(SIMULATED)
    return tuple(num for num in SIZES if num <= MOST.get(side, SIZES[-1]))


def measure_all(report: Report, folder: Path) -> dict[tuple[str, str], dict[int, list[Numbers]]]:
    found: dict[tuple[str, str], dict[int, list[Numbers]]] = {}
    for num in sorted({*SIZES, *SIMULATED}):
        if num in SIZES:
            write_rows(folder / f"rows{num}.jsonl", num)
        for work, (_, sides, _) in WORKS.items():
            for side in sides:
                if num not in sizes_of(work, side) or (side != "penstock" and not report.has(side)):
                    continue
                repeat = 1 if num > MOST_AGAIN and work in ("prepare", "open") else REPEAT
                runs = [fresh(measure, work, side, num, folder).value for _ in range(repeat)]
                found.setdefault((work, side), {})[num] = runs
    return found


def main(report: Report) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        train_tokenizer([" ".join(WORDS)] * 10, folder, vocabulary=400)
        found = measure_all(report, folder)
    all_sizes = sorted({*SIZES, *SIMULATED})
    tables: dict[str, list[list[str]]] = {"seconds": [], "mib": []}
    seconds_of: dict[tuple[str, str], dict[int, float]] = {}
    for (work, side), line in found.items():
        what, _, steepest = WORKS[work]
        for unit, name, least in (("seconds", "time", 1e-6), ("mib", "memory", 1.0)):
            values = {
                num: max(least, median(run[unit] for run in runs)) for num, runs in line.items()
            }
            steep, last = exponent(values), last_exponent(values)
            cells = [f"{values[num]:.4g}" if num in values else "" for num in all_sizes]
            tables[unit].append([work, what, side, *cells, f"{steep:.2f}", f"{last:.2f}"])
            if unit == "seconds":
                seconds_of[work, side] = values
            if side == "penstock":
                most = steepest if unit == "seconds" else MOST_MEMORY
                note = f"{last:.2f} over the last step"
                what_grows = f"exponent of {name}: {what}"
                report.number(
                    f"{name}_{work}", what_grows, steep, at_most=most, note=note, digits=2
                )
        if "state" in next(iter(line.values()))[0]:
            states = {num: float(runs[0]["state"]) for num, runs in line.items()}
            note = f"{max(states.values()):.0f} bytes at most"
            what_grows = f"exponent of the size of a state: {what}"
            key = f"state_{work}"
            report.number(
                key, what_grows, exponent(states), at_most=MOST_STATE, note=note, digits=2
            )
    for work in ("open", "prepare", "pack"):
        for peer in WORKS[work][1][1:]:
            if (work, peer) in found:
                num = sizes_of(work, peer)[-1]
                theirs, ours = (found[work, side][num] for side in (peer, "penstock"))
                ratios = [a["seconds"] / b["seconds"] for a, b in zip(theirs, ours, strict=True)]
                what = f"{WORKS[work][0]}, {num:,} samples, against {peer}"
                report.number(f"{work}_{peer}", what, ratios, "×", peer=peer, at_least=1)
    head = [
        "work",
        "what",
        "who",
        *(f"{num:,}" for num in all_sizes),
        "exponent",
        "of the last step",
    ]
    picture = ["![growth](scale.svg)"]
    report.table("Seconds", head, tables["seconds"], *picture)
    report.table("MiB", head, tables["mib"])
    if SIZE == "full":
        (ROOT / "results" / "scale.svg").write_text(plot(seconds_of))


if __name__ == "__main__":
    BENCHMARK.run(main)
