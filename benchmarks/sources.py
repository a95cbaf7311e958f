"""How fast and how lean is a source?  Opening, record i, all records; beside `datasets` in one run.

python benchmarks/sources.py [--tiny]        needs 6 GB in the temporary folder

Every measurement is a process of its own: nothing is warm but the page cache, and its anonymous memory (RssAnon: what
cannot be dropped and read again, so no memory-mapped file) is not shared.  The contestants take turns.
"""

import csv
import gzip
import json
import os
import pickle
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from stand import Benchmark, Report, Timing, anonymous, clocked, fresh, sized

NUM_ROWS, TIMES_LARGER = sized(5_000_000, 3_000), 10
NUM_SMALL = sized(200_000, 300)  # rows of the other shapes
REPEAT = sized(3, 1)
NUM_READS = {  # random rows, after 1,000 that are not timed
    "penstock": sized(100_000, 200),
    "datasets": sized(20_000, 50),
}
NUM_WARM = sized(1000, 10)
NUM_IN_ORDER = {
    "penstock": sized(2_000_000, 1_000),
    "datasets": sized(300_000, 200),
    "datasets, arrow": sized(2_000_000, 1_000),
    "datasets, lists": sized(2_000_000, 1_000),
}
GROUP = sized(10_000, 50)  # rows of a Parquet row group

Numbers = dict[str, Any]  # what one measurement found

BENCHMARK = Benchmark(
    title="Sources: opening, record i, all records",
    question="How fast and how lean is a source: the first open, the next ones, record i, all records in order?",
    measures=("sources", "places", "cache", "api"),
    peers={
        "datasets": '`load_dataset("json", data_files=FILE, split="train", cache_dir=FRESH)`, progress bars and network off, one process '
        "(`num_proc` shares out files, and there is one). Random rows: `rows[i]`. In order: `for row in rows` over the first "
        f'{NUM_IN_ORDER["datasets"]:,}, as all would take minutes; *arrow*: `with_format("arrow").iter(batch_size=1000)` and '
        "`to_pylist()`, the quickest documented way we found to the same dicts; *lists*: `iter(batch_size=1000)`, columns as lists, "
        "never made into rows. It converts to Arrow once and then reads columns; a source reads and parses the user's own lines"
    },
    packages=("numpy", "orjson", "pyarrow"),
    notes=(
        f"Times: medians of {REPEAT} turns, each a fresh process; imports are not timed here (startup has them)",
        f'Data: {NUM_ROWS:,} rows `{{"id", "prompt", "completion"}}`; files are in the page cache for all',
        "Second open: the same call with the same folder in a new process. Both sides give equal rows for 100 "
        "numbers, compared in every turn",
    ),
)


# In the measured process


def timed(work: Callable[[], Any]) -> tuple[Numbers, Any]:
    timing, before = Timing(), anonymous()
    with clocked(timing):
        result = work()
    found = {"wall": timing.wall[0], "cpu": timing.cpu[0], "mib": anonymous() - before}
    return found, result


def opener(side: str) -> Callable[[str, str], Any]:
    """(file, folder for caches) → rows.  Importing is done here, before any clock starts."""
    if side == "penstock":
        import penstock

        opening = penstock.open
        return lambda file, cache: opening(file, cache_dir=cache)
    os.environ["HF_HUB_OFFLINE"] = "1"  # no word with a server
    import datasets

    datasets.disable_progress_bars()
    kinds = {".csv": "csv", ".parquet": "parquet"}
    return lambda file, cache: datasets.load_dataset(
        kinds.get(Path(file).suffix, "json"), data_files=file, split="train", cache_dir=cache
    )


def in_order(side: str, rows: Any) -> Iterator[Any]:
    """Every row as a dict; in `lists` a dict of lists per 1,000 rows, which is not quite the same thing."""
    if side == "datasets, arrow":
        return (
            row
            for batch in rows.with_format("arrow").iter(batch_size=1000)
            for row in batch.to_pylist()
        )
    if side == "datasets, lists":
        return (
            value for batch in rows.iter(batch_size=1000) for value in next(iter(batch.values()))
        )
    return iter(rows)


def count(rows: Iterator[Any]) -> int:
    number = 0
    for _ in rows:
        number += 1
    return number


def look(rows: Any) -> str:
    """Some rows as text, to see that both sides read the same; numbers as text, as a CSV knows no others."""
    chosen = random.Random(2).sample(range(len(rows)), min(100, len(rows)))
    return json.dumps(
        [
            {key: v if isinstance(v, list) else str(v) for key, v in rows[row].items()}
            for row in chosen
        ]
    )


def read_random(rows: Any, chosen: list[int]) -> None:
    for row in chosen:
        rows[row]


def measure(task: Numbers) -> Numbers:
    """One measurement: open, and then what the task asks for."""
    side = task["side"]
    opening = opener(side.partition(",")[0])
    before = anonymous()
    found, rows = timed(lambda: opening(task["file"], task["cache"]))
    numbers: Numbers = {"rows": len(rows), "open": found}
    if reads := task.get("random"):
        rng = random.Random(task["seed"])
        chosen = [rng.randrange(len(rows)) for _ in range(reads + NUM_WARM)]
        read_random(rows, chosen[:NUM_WARM])
        numbers["random"], _ = timed(lambda: read_random(rows, chosen[NUM_WARM:]))
        numbers["look"] = look(rows)
        numbers["pickled"] = len(pickle.dumps(rows))
    if limit := task.get("in_order"):
        numbers["in_order"], numbers["counted"] = timed(
            lambda: count(islice(in_order(side, rows), limit))
        )
    numbers["mib"] = anonymous() - before
    return numbers


# In the process that asks


def ask(side: str, file: Path, cache: Path, **task: Any) -> Numbers:
    """A measurement in a fresh process."""
    words = {"side": side, "file": str(file), "cache": str(cache), **task}
    return dict(fresh(measure, words).value)


class Found:
    """What repetitions of one measurement found, per (side, what)."""

    def __init__(self) -> None:
        self.timings: dict[tuple[str, str], Timing] = {}
        self.memory: dict[tuple[str, str], list[float]] = {}

    def add(self, side: str, what: str, numbers: Numbers, per: int = 1) -> None:
        timing = self.timings.setdefault((side, what), Timing())
        timing.wall.append(numbers["wall"] / per)
        timing.cpu.append(numbers["cpu"] / per)
        self.memory.setdefault((side, what), []).append(numbers["mib"])

    def __getitem__(self, key: tuple[str, str]) -> Timing:
        return self.timings[key]

    def ratio(self, what: str, other: str = "datasets", clock: str = "wall") -> str:
        """How many times faster than the other, for a table."""
        if (other, what) not in self.timings:
            return ""
        theirs, ours = (getattr(self.timings[side, what], clock) for side in (other, "penstock"))
        return f"{median(theirs) / median(ours):.1f}"


def make_rows(number: int, seed: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Records of about 80 bytes as JSON, 50,000 at a time."""
    rng = random.Random(seed)
    words = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(4000)
    ]
    for first in range(0, number, 50_000):
        size = min(50_000, number - first)
        drawn = rng.choices(words, k=7 * size)
        yield [
            {
                "id": first + i,
                "prompt": " ".join(drawn[7 * i : 7 * i + 2]) + "?",
                "completion": " ".join(drawn[7 * i + 2 : 7 * i + 5 + i % 3]) + ".",
            }
            for i in range(size)
        ]


def write_lines(path: Path, number: int) -> Path:
    with path.open("w") as file:
        for rows in make_rows(number):
            file.writelines(
                f'{{"id": {row["id"]}, "prompt": "{row["prompt"]}", "completion": "{row["completion"]}"}}\n'
                for row in rows
            )
    return path


def write_copies(path: Path, of: Path, times: int) -> Path:
    with path.open("wb") as file:
        for _ in range(times):
            with of.open("rb") as one:
                shutil.copyfileobj(one, file, 1 << 22)
    return path


def write_shapes(folder: Path) -> dict[str, Path]:
    """The same small rows in other shapes, and conversations."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row for part in make_rows(NUM_SMALL) for row in part]
    plain = write_lines(folder / "rows.jsonl", NUM_SMALL)
    array = folder / "rows.json"
    array.write_text(json.dumps(rows))
    table = folder / "rows.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    packed = folder / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes(), 6))
    columns = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), columns, row_group_size=GROUP)
    chat = folder / "chat.jsonl"
    with chat.open("w") as file:
        for row in rows:
            turns = [
                {"role": role, "content": f"{row[key]} " * 8}
                for role, key in (("user", "prompt"), ("assistant", "completion"))
            ]
            file.write(json.dumps({"messages": turns * 2}) + "\n")
    return {
        "JSONL": plain,
        "JSONL, chat": chat,
        "JSON array": array,
        "CSV": table,
        "JSONL.gz": packed,
        "Parquet": columns,
    }


def sides_of(report: Report) -> list[str]:
    return ["penstock", *(["datasets"] if report.has("datasets") else [])]


def compare_lines(report: Report, file: Path, folder: Path) -> None:
    """Cold open, second open, memory, random rows, all rows."""
    found, looks, pickled = Found(), {}, {}
    sides = sides_of(report)
    for turn in range(REPEAT):
        for side in sides:
            cache = folder / f"cache-{side}-{turn}"
            found.add(side, "cold open", ask(side, file, cache)["open"])
            numbers = ask(side, file, cache, random=NUM_READS[side], seed=turn)
            found.add(side, "second open", numbers["open"])
            found.add(side, "random row", numbers["random"], NUM_READS[side])
            looks[side, turn], pickled[side] = numbers["look"], numbers["pickled"]
        for side, number in NUM_IN_ORDER.items():
            name = side.partition(",")[0]
            if name not in sides:
                continue
            numbers = ask(side, file, folder / f"cache-{name}-{turn}", in_order=number)
            assert numbers["counted"] == number, numbers
            found.add(side, "row in order", numbers["in_order"], number)
        for side in sides:
            shutil.rmtree(folder / f"cache-{side}-{turn}")
    assert len(set(looks.values())) == 1, "they read other rows"
    if report.has("datasets"):
        for key, what, target in (
            ("cold_open", "cold open", 10),
            ("random_row", "random row", 6),
            ("in_order", "row in order", 8),
        ):
            sides_timings = (found["datasets", what], found["penstock", what])
            by_cpu = f"by CPU {found.ratio(what, clock='cpu')} ×"
            report.ratio(
                key,
                f"{what} against datasets",
                *sides_timings,
                peer="datasets",
                at_least=target,
                note=by_cpu,
            )
        for side, key in (
            ("datasets, arrow", "in_order_arrow"),
            ("datasets, lists", "in_order_lists"),
        ):
            report.ratio(
                key,
                f"row in order against {side}",
                found[side, "row in order"],
                found["penstock", "row in order"],
                peer="datasets",
                why="it parsed the lines at its first open, and gives columns a thousand rows at a time; a source parses each "
                "line when it is asked for",
            )
    second = [1000 * seconds for seconds in found["penstock", "second open"].wall]
    report.number("second_open", "second open, in a new process", second, "ms", at_most=50)
    memory = found.memory["penstock", "cold open"]
    report.number("memory", "RssAnon grown by a cold open", memory, "MiB", at_most=20, digits=1)
    sizes = "; ".join(f"{side} {pickled[side]:,}" for side in sides)
    report.note(f"Bytes of a pickled source: {sizes}")
    rows = []
    for (side, what), timing in sorted(found.timings.items(), key=lambda each: each[0][1]):
        scale, unit, digits = (1e3, "ms", 1) if "open" in what else (1e6, "µs", 2)
        mib = found.memory[side, what]
        cells = [f"{what}, {unit}", side, timing.spread(scale, digits)]
        cells.append(f"{median(timing.cpu) * scale:.{digits}f}")
        theirs = found.timings.get(("datasets", what), timing)
        cells.append(f"{median(theirs.wall) / median(timing.wall):.1f}")
        cells.append(f"{median(mib):.1f} ({min(mib):.1f}–{max(mib):.1f})")
        rows.append(cells)
    header = ["what", "side", "by the clock", "CPU", "× datasets", "RssAnon grown, MiB"]
    report.table(f"{NUM_ROWS:,} rows", header, rows)


def compare_sizes(report: Report, small: Path, large: Path, folder: Path) -> None:
    """Anonymous memory of one piece of work on a file and on one ten times larger; and how long that takes to open."""
    grown: dict[str, list[float]] = {}
    found = Found()
    for turn in range(REPEAT):
        for name, file in (("1", small), ("10", large)):
            cache = folder / f"cache-{name}-{turn}"
            cold = ask("penstock", file, cache)
            reads, read = NUM_READS["penstock"], NUM_IN_ORDER["penstock"] // 2
            used = ask("penstock", file, cache, random=reads, seed=turn, in_order=read)
            assert used["rows"] == NUM_ROWS * int(name), used["rows"]
            grown.setdefault(f"{name} open", []).append(cold["mib"])
            grown.setdefault(f"{name} used", []).append(used["mib"])
            found.add(name, "cold open", cold["open"])
            found.add(name, "second open", used["open"])
            found.add(name, "random row", used["random"], reads)
            shutil.rmtree(cache)
    for what, task in (("open", "cold open"), ("used", "open, random rows, rows in order")):
        more = [b - a for a, b in zip(grown[f"1 {what}"], grown[f"10 {what}"], strict=True)]
        question = f"RssAnon, ten times the file against one: {task}"
        report.number(f"growth_{what}", question, more, "MiB", at_most=10, digits=1)
    rows = [
        [
            f"{NUM_ROWS * int(name):,}",
            *(found[name, what].spread(1e3, 1) for what in ("cold open", "second open")),
            found[name, "random row"].spread(1e6, 2),
            *(
                ", ".join(f"{mib:.1f}" for mib in grown[f"{name} {what}"])
                for what in ("open", "used")
            ),
        ]
        for name in ("1", "10")
    ]
    header = ["rows", "cold open, ms", "second open, ms", "random row, µs"]
    report.table("Ten times the file", [*header, "RssAnon, open, MiB", "RssAnon, used, MiB"], rows)


def compare_shapes(report: Report, files: dict[str, Path], folder: Path) -> None:
    rows, ratios = [], []
    units = {
        "cold open": (1e3, "ms", 1),
        "random row": (1e6, "µs", 1),
        "row in order": (1e6, "µs", 2),
    }
    for shape, file in files.items():
        found = Found()
        for turn in range(REPEAT):
            looks = set()
            for side in sides_of(report):
                reads = sized(10_000, 20) if side == "penstock" else sized(5_000, 20)
                in_all = sized(200_000, 300) if side == "penstock" else sized(20_000, 100)
                cache = folder / f"cache-{side}"
                numbers = ask(side, file, cache, random=reads, seed=turn, in_order=in_all)
                looks.add(numbers["look"])
                found.add(side, "cold open", numbers["open"])
                found.add(side, "random row", numbers["random"], reads)
                found.add(side, "row in order", numbers["in_order"], numbers["counted"])
                shutil.rmtree(cache, ignore_errors=True)
            assert len(looks) == 1, f"{shape}: the two sides read other rows"
        for what, (times, unit, digits) in units.items():
            cells = [f"{shape}, {file.stat().st_size / 1e6:.0f} MB", f"{what}, {unit}"]
            for side in ("penstock", "datasets"):
                measured = (side, what) in found.timings
                cells.append(found[side, what].spread(times, digits) if measured else "")
            cells += [found.ratio(what), found.ratio(what, clock="cpu")]
            rows.append(cells)
            if report.has("datasets"):
                ratios.append(
                    (found["datasets", what], found["penstock", what], f"{shape}, {what}")
                )
    if ratios:
        slowest = min(ratios, key=lambda each: each[0].seconds / each[1].seconds)
        what = f"smallest lead of all shapes: {slowest[2]}"
        report.ratio(
            "shapes",
            what,
            *slowest[:2],
            peer="datasets",
            at_least=1,
            why="pyarrow's reader of such a file is compiled",
        )
    header = ["file", "what", "penstock", "datasets", "×", "×, CPU"]
    title = f"Other shapes, {NUM_SMALL:,} rows; Parquet in row groups of {GROUP:,}"
    report.table(title, header, rows)


def main(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        folder = Path(place)
        free = shutil.disk_usage(folder).free
        if free < sized(6e9, 0):
            raise OSError(f"{folder}: {free / 1e9:.1f} GB free, expected 6; set TMPDIR")
        small = write_lines(folder / "five.jsonl", NUM_ROWS)
        os.sync()  # lest a cache that is made durable wait for all of this
        compare_lines(report, small, folder)
        large = write_copies(folder / "fifty.jsonl", small, TIMES_LARGER)
        os.sync()
        compare_sizes(report, small, large, folder)
        large.unlink()
        files = write_shapes(folder)
        os.sync()
        compare_shapes(report, files, folder)


if __name__ == "__main__":
    BENCHMARK.run(main)
