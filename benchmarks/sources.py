"""How fast and how lean is a source?  Opening, record i, all records; beside `datasets` in one run.  Writes results/sources.md.

    python benchmarks/sources.py                          all questions, about six minutes; needs 8 GB in the temporary folder
    python benchmarks/sources.py measure '{"side": …}'    one measurement in this process (the script starts itself so)

Every measurement is a process of its own: nothing is warm but the page cache, and its anonymous memory (RssAnon: what
cannot be dropped and read again, so no memory-mapped file) is not shared.  The contestants take turns.
"""

import csv
import gzip
import json
import os
import pickle
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent
NUM_ROWS, TIMES_LARGER = 5_000_000, 10
NUM_SMALL = 200_000  # rows of the other shapes
REPEAT, REPEAT_SMALL = 5, 3
NUM_READS = {"penstock": 100_000, "datasets": 20_000}  # random rows, after 1,000 that are not timed
NUM_IN_ORDER = {
    "penstock": NUM_ROWS,
    "datasets": 300_000,
    "datasets, arrow": NUM_ROWS,
    "datasets, lists": NUM_ROWS,
}
GROUP = 10_000  # rows of a Parquet row group
REFERENCE = 97.93  # MiB that the file took elsewhere: the number to beat
MIB = 1 << 20

Numbers = dict[str, Any]  # what one measurement found


# In the measured process


def anonymous() -> float:
    """MiB of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def timed(work: Callable[[], Any]) -> tuple[Numbers, Any]:
    before, wall, cpu = anonymous(), time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall, "cpu": cpu, "mib": anonymous() - before}, result


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
    chosen = random.Random(2).sample(range(len(rows)), 100)
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
        chosen = [rng.randrange(len(rows)) for _ in range(reads + 1000)]
        read_random(rows, chosen[:1000])
        numbers["random"], _ = timed(lambda: read_random(rows, chosen[1000:]))
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
    words = json.dumps({"side": side, "file": str(file), "cache": str(cache), **task})
    command = [sys.executable, __file__, "measure", words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: failed with {done.returncode}, its words are above"
        )
    return json.loads(done.stdout)


class Found:
    """What repetitions of one measurement found, per (side, what)."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], list[Numbers]] = {}

    def add(self, side: str, what: str, numbers: Numbers, per: int = 1) -> None:
        scaled = {key: numbers[key] / per for key in ("wall", "cpu")}
        self.runs.setdefault((side, what), []).append({**scaled, "mib": numbers["mib"]})

    def of(self, side: str, what: str, key: str = "wall") -> float:
        return median(run[key] for run in self.runs[side, what])

    def spread(
        self, side: str, what: str, key: str = "wall", *, times: float = 1, digits: int = 2
    ) -> str:
        values = [run[key] * times for run in self.runs[side, what]]
        return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"

    def ratio(self, what: str, key: str = "wall", other: str = "datasets") -> float:
        return self.of(other, what, key) / self.of("penstock", what, key)

    def range(self, what: str) -> str:
        """Lowest and highest ratio among the turns."""
        turns = zip(self.runs["datasets", what], self.runs["penstock", what], strict=True)
        ratios = [theirs["wall"] / ours["wall"] for theirs, ours in turns]
        return f"{min(ratios):.1f}–{max(ratios):.1f}"


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


def compare_lines(file: Path, folder: Path) -> tuple[Found, dict[str, int]]:
    """Questions 1 to 5: cold open, second open, memory, random rows, all rows."""
    found, looks, pickled = Found(), {}, {}
    for turn in range(REPEAT):
        for side in ("penstock", "datasets"):
            cache = folder / f"cache-{side}-{turn}"
            found.add(side, "cold open", ask(side, file, cache)["open"])
            numbers = ask(side, file, cache, random=NUM_READS[side], seed=turn)
            found.add(side, "second open", numbers["open"])
            found.add(side, "random row", numbers["random"], NUM_READS[side])
            looks[side, turn], pickled[side] = numbers["look"], numbers["pickled"]
        for side, number in NUM_IN_ORDER.items():
            numbers = ask(
                side, file, folder / f"cache-{side.partition(',')[0]}-{turn}", in_order=number
            )
            assert numbers["counted"] == number, numbers
            found.add(side, "row in order", numbers["in_order"], number)
        for side in ("penstock", "datasets"):
            shutil.rmtree(folder / f"cache-{side}-{turn}")
    assert len(set(looks.values())) == 1, "the two sides read other rows"
    return found, pickled


def compare_sizes(small: Path, large: Path, folder: Path) -> tuple[dict[str, list[float]], Found]:
    """Anonymous memory of one piece of work on a file and on one ten times larger; and how long that takes to open."""
    grown: dict[str, list[float]] = {}
    found = Found()
    for turn in range(REPEAT_SMALL):
        for name, file in (("1", small), ("10", large)):
            cache = folder / f"cache-{name}-{turn}"
            cold = ask("penstock", file, cache)
            used = ask("penstock", file, cache, random=100_000, seed=turn, in_order=1_000_000)
            assert used["rows"] == NUM_ROWS * int(name), used["rows"]
            grown.setdefault(f"{name} open", []).append(cold["mib"])
            grown.setdefault(f"{name} used", []).append(used["mib"])
            found.add(name, "cold open", cold["open"])
            found.add(name, "second open", used["open"])
            found.add(name, "random row", used["random"], 100_000)
            shutil.rmtree(cache)
    return grown, found


def compare_shapes(files: dict[str, Path], folder: Path) -> dict[str, Found]:
    found = {shape: Found() for shape in files}
    for turn in range(REPEAT_SMALL):
        for shape, file in files.items():
            looks = set()
            for side, reads, rows in (("penstock", 10_000, NUM_SMALL), ("datasets", 5_000, 50_000)):
                cache = folder / f"cache-{side}"
                numbers = ask(side, file, cache, random=reads, seed=turn, in_order=rows)
                looks.add(numbers["look"])
                found[shape].add(side, "cold open", numbers["open"])
                found[shape].add(side, "random row", numbers["random"], reads)
                found[shape].add(side, "row in order", numbers["in_order"], rows)
                shutil.rmtree(cache, ignore_errors=True)
            assert len(looks) == 1, f"{shape}: the two sides read other rows"
    return found


# The page


def verdicts(
    found: Found, grown: dict[str, list[float]], pickled: dict[str, int]
) -> list[list[str]]:
    def line(question: str, value: str, target: str = "", passed: bool | None = None) -> list[str]:
        return [question, value, target, {True: "pass", False: "MISSED", None: ""}[passed]]

    lines = []
    for number, what, target in (
        (1, "cold open", 10),
        (4, "random row", 15),
        (5, "row in order", 8),
    ):
        ratio = found.ratio(what)
        value = f"{ratio:.1f} × ({found.range(what)}), by CPU {found.ratio(what, 'cpu'):.1f} ×"
        lines.append(
            line(f"{number} {what} against datasets", value, f"≥ {target} ×", ratio >= target)
        )
    fast = [
        f"{found.ratio('row in order', other=side):.2f} × {side}"
        for side in NUM_IN_ORDER
        if "," in side
    ]
    lines.append(line("5 the same against its batches", ", ".join(fast)))
    second = found.of("penstock", "second open") * 1000
    value = found.spread("penstock", "second open", times=1000, digits=1)
    lines.insert(1, line("2 second open, ms", value, "< 50", second < 50))
    memory = found.of("penstock", "cold open", "mib")
    value = f"{found.spread('penstock', 'cold open', 'mib', digits=1)}; datasets {found.of('datasets', 'cold open', 'mib'):.0f}"
    lines.insert(
        2,
        line(
            "3 RssAnon grown by a cold open, MiB",
            value,
            f"≤ 20 (elsewhere {REFERENCE})",
            memory <= 20,
        ),
    )
    for what, task in (("open", "cold open"), ("used", "open, 100,000 random rows, 1 M in order")):
        one, ten = (median(grown[f"{size} {what}"]) for size in ("1", "10"))
        value = f"{one:.1f} → {ten:.1f}"
        lines.append(
            line(
                f"6 RssAnon, ten times the file: {task}, MiB",
                value,
                "within 10",
                abs(ten - one) <= 10,
            )
        )
    sizes = f"{pickled['penstock']:,}; datasets {pickled['datasets']:,}"
    lines.append(line("7 pickled source, bytes", sizes))
    return lines


def lines_part(found: Found) -> list[list[str]]:
    rows = []
    for (side, what), runs in found.runs.items():
        scale, unit, digits = (1e3, "ms", 1) if "open" in what else (1e6, "µs", 2)
        base = found.runs["datasets", what]
        ratios = [
            median(run[key] for run in base) / median(run[key] for run in runs)
            for key in ("wall", "cpu")
        ]
        rows.append(
            [
                f"{what}, {unit}",
                side,
                found.spread(side, what, times=scale, digits=digits),
                f"{found.of(side, what, 'cpu') * scale:.{digits}f}",
                *(f"{ratio:.1f}" for ratio in ratios),
                found.spread(side, what, "mib", digits=1),
            ]
        )
    return sorted(rows, key=lambda row: row[0])


def shapes_part(found: dict[str, Found], files: dict[str, Path]) -> list[list[str]]:
    rows = []
    for shape, of in found.items():
        for what, times, unit, digits in (
            ("cold open", 1e3, "ms", 1),
            ("random row", 1e6, "µs", 1),
            ("row in order", 1e6, "µs", 2),
        ):
            cells = [
                of.spread(side, what, times=times, digits=digits)
                for side in ("penstock", "datasets")
            ]
            ratios = [f"{of.ratio(what):.1f}", f"{of.ratio(what, 'cpu'):.1f}"]
            rows.append(
                [
                    f"{shape}, {files[shape].stat().st_size / 1e6:.0f} MB",
                    f"{what}, {unit}",
                    *cells,
                    *ratios,
                ]
            )
    return rows


SETTINGS = [
    '`load_dataset("json", data_files=FILE, split="train", cache_dir=FRESH)`, progress bars and network off, one process '
    "(`num_proc` shares out files, and there is one).",
    "",
    "- Second open: the same call with the same folder, in a new process.  Imports are not timed on either side.",
    "- Random rows: `rows[i]`, the same kind of row on both sides; 1,000 are read before the clock starts.",
    f"- In order: `for row in rows` (the first {NUM_IN_ORDER['datasets']:,} rows, as all would take minutes).  *arrow*: "
    '`with_format("arrow").iter(batch_size=1000)` and `to_pylist()`, the quickest documented way we found to the same dicts.  '
    "*lists*: `iter(batch_size=1000)`, columns as lists, never made into rows.",
    "- Both sides give equal rows for 100 numbers, compared in every turn.  The files are in the page cache for both.",
    "- `datasets` converts to Arrow once and then reads columns; a source reads and parses the user's own lines every time.",
    "",
]


def page(
    parts: dict[str, list[str]], summary: list[str], *, load: str, seconds: float, num_bytes: int
) -> str:
    from stand import commit, machine

    versions = ", ".join(
        f"{name} {version(name)}" for name in ("numpy", "orjson", "pyarrow", "datasets")
    )
    lines = [
        "# Sources: opening, record i, all records",
        "",
        f"- Command: `python benchmarks/sources.py` (written by it), {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds:.0f} s in all",
        f"- Versions: penstock at {commit()}, Python {platform.python_version()}, {versions}",
        f"- Machine: {machine()}; shared with other jobs, load average {load}",
        f"- Times: medians of {REPEAT} turns ({REPEAT_SMALL} for other shapes and sizes), each a fresh process; range in brackets; "
        f"ratios are of medians, and are what we claim: the times are this machine's",
        f'- Data: {NUM_ROWS:,} rows `{{"id", "prompt", "completion"}}`, {num_bytes / 1e6:.0f} MB of JSONL; memory is RssAnon',
        "",
        *summary,
        "",
    ]
    for title, part in parts.items():
        lines += [f"## {title}", "", *part, ""]
    return "\n".join(lines)


def main() -> None:
    from stand import table

    begin, load = time.perf_counter(), os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        folder = Path(place)
        free = shutil.disk_usage(folder).free
        if free < 8e9:
            sys.exit(
                f"{folder}: {free / 1e9:.1f} GB free, expected 8; choose another folder with TMPDIR"
            )
        small = write_lines(folder / "five.jsonl", NUM_ROWS)
        num_bytes = small.stat().st_size
        os.sync()  # lest a cache that is made durable wait for all of this
        found, pickled = compare_lines(small, folder)
        large = write_copies(folder / "fifty.jsonl", small, TIMES_LARGER)
        os.sync()
        grown, by_size = compare_sizes(small, large, folder)
        large.unlink()
        files = write_shapes(folder)
        os.sync()
        shapes = compare_shapes(files, folder)
        shape_rows = shapes_part(shapes, files)
    sizes = [
        [
            f"{NUM_ROWS * int(name):,} rows, {num_bytes * int(name) / 1e6:,.0f} MB",
            *(
                by_size.spread(name, what, times=1e3, digits=1)
                for what in ("cold open", "second open")
            ),
            by_size.spread(name, "random row", times=1e6),
            *(
                ", ".join(f"{mib:.1f}" for mib in grown[f"{name} {what}"])
                for what in ("open", "used")
            ),
        ]
        for name in ("1", "10")
    ]
    parts = {
        f"1–5 {NUM_ROWS:,} rows against datasets": SETTINGS
        + table(
            [
                "what",
                "side",
                "by the clock",
                "CPU",
                "× datasets",
                "× datasets, CPU",
                "RssAnon grown, MiB",
            ],
            lines_part(found),
        ),
        "6 Ten times the file": table(
            [
                "file",
                "cold open, ms",
                "second open, ms",
                "random row, µs",
                "RssAnon, open, MiB",
                "RssAnon, used, MiB",
            ],
            sizes,
        ),
        f"8 Other shapes, {NUM_SMALL:,} rows; Parquet in row groups of {GROUP:,}": table(
            ["file", "what", "penstock", "datasets", "×", "×, CPU"], shape_rows
        ),
    }
    loads = f"{load[0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    summary = table(["question", "found", "target", ""], verdicts(found, grown, pickled))
    text = page(
        parts, summary, load=loads, seconds=time.perf_counter() - begin, num_bytes=num_bytes
    )
    (ROOT / "results").mkdir(exist_ok=True)
    (ROOT / "results" / "sources.md").write_text(text)
    print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(json.loads(sys.argv[2]))))
    else:
        main()
