"""What does it cost to resume, and what is lost?  Counted, not assumed, over everybody who says that they can.

python benchmarks/resume.py [--quick | --tiny]

Every run is a process of its own, every rank too.  mosaicml-streaming needs other versions than the rest: `make bench` gives it
an environment, and without one it is left out.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import contestants
from contestants import ALL, BATCH
from stand import MOSAIC, ROOT, SIZE, Benchmark, Report, environment, sized

NUM_SAMPLES = sized(20_000, 200)
FEW_SAMPLES = sized(3_000, 200)  # for changes of the world, where every rank is a process
FRACTIONS = sized((0.1, 0.9), (0.5,), (0.9,))
REPEAT = sized(3, 1, 1)
STEPS = sized(10, 2)  # before the ranks change
WORLDS = sized(((2, 3), (3, 2)), (), ((2, 3),))  # a tiny run has one process

BENCHMARK = Benchmark(
    title="Resuming: time, size, and what is lost",
    question="What does it cost to resume, and what is lost or repeated?",
    measures=("loader", "plan", "store"),
    peers={kind.distribution: kind.note for kind in ALL.values() if kind.distribution},
    packages=("numpy", "torch"),
    notes=(
        f"{NUM_SAMPLES:,} samples of 12 to 101 tokens, batches of {BATCH}; medians of {REPEAT} resumes, each a fresh process",
        "Time: from nothing, modules loaded, to the first batch: the loader is made, the state loaded, a batch handed over",
        "Lost and repeated: every sample carries its number, and the numbers handed over before and after are counted",
        "State: pickled bytes of what the contestant gives to be saved",
        f"penstock: {ALL['penstock'].note}",
    ),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What the ranks of one run handed over, rank by rank, batch by batch; or why there is none."""

    ranks: list[list[list[int]]]
    first: float = (
        0.0  # seconds from nothing (modules loaded) to the first batch; in a quick run, of CPU
    )
    state_bytes: int = 0
    refused: str = ""

    def numbers(self) -> list[int]:
        return [number for rank in self.ranks for batch in rank for number in batch]

    @property
    def num_batches(self) -> int:
        return max(map(len, self.ranks), default=0)


def python_of(name: str) -> str:
    return str(MOSAIC / "bin" / "python") if name == "mosaicml-streaming" else sys.executable


def call(name: str, *words: str, ranks: Sequence[dict[str, str]] = ({},)) -> list[str]:
    """The contestant in processes; what went wrong in each."""
    if SIZE == "tiny":
        return call_here(*words, ranks=ranks)
    script, quiet = (
        str(ROOT / "contestants.py"),
        {"PYTHONWARNINGS": "ignore", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"},
    )
    started = [
        subprocess.Popen(
            [python_of(name), script, *(word.format(**rank) for word in words)],
            env={**os.environ, **quiet, **rank},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in ranks
    ]
    problems = []
    for process in started:
        try:
            _, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            problems.append("hangs (killed after 120 s)")
            continue
        problems.append(errors.strip().splitlines()[-1][:200] if process.returncode else "")
    return problems


def call_here(*words: str, ranks: Sequence[dict[str, str]]) -> list[str]:
    """The same in this process: a tiny run has one rank."""
    (rank,) = ranks
    with environment(**rank):
        contestants.main([word.format(**rank) for word in words])
    return [""]


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def go(
    name: str,
    folder: Path,
    *,
    world: int = 1,
    stop: int = 0,
    state: bool = False,
    save: bool = False,
) -> Run:
    """One run, of as many processes as there are ranks; rank r resumes from what rank r saved, or rank 0 where there was none."""
    port = free_port()
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
    }
    ranks = []
    for rank in range(world):
        own = folder / f"state{rank}"
        saved = own if own.exists() else folder / "state0"
        paths = {
            "STATE": str(saved) if state else "",
            "SAVE": str(folder / f"new{rank}") if save else "",
        }
        ranks.append(
            {**(shared if world > 1 else {}), "RANK": str(rank), "LOCAL_RANK": str(rank), **paths}
        )
    problems = call(
        name,
        "run",
        name,
        str(folder),
        str(stop),
        "{STATE}",
        "{SAVE}",
        str(folder / "out{RANK}"),
        ranks=ranks,
    )
    if any(problems):
        return Run([], refused=next(filter(None, problems)))
    found: list[dict[str, Any]] = [
        json.loads((folder / f"out{rank}").read_text()) for rank in range(world)
    ]
    if save:
        for old in folder.glob("state[0-9]*"):
            old.unlink()
        for rank in range(world):
            (folder / f"new{rank}").rename(folder / f"state{rank}")
    handed = [one["handed"] for one in found]
    first = "first_cpu" if SIZE == "quick" else "first"
    return Run(handed, max(one[first] for one in found), max(one["state_bytes"] for one in found))


def lost_and_repeated(before: Run, after: Run, num: int) -> tuple[int, int]:
    counts = Counter(before.numbers() + after.numbers())
    return num - len(counts), sum(times - 1 for times in counts.values())


@dataclass(frozen=True, slots=True)
class Stop:
    """One place where a run was stopped and resumed."""

    seconds: list[float]
    wrong: int


def resume_alone(name: str, folder: Path) -> tuple[list[list[str]], dict[float, Stop]]:
    """One rank, stopped at several places and resumed."""
    whole = go(name, folder)
    total, lines, found = whole.num_batches, [], {}
    for fraction in FRACTIONS:
        before = go(name, folder, stop=max(1, round(total * fraction)), save=True)
        after = [
            go(name, folder, state=True),
            *(go(name, folder, state=True, stop=1) for _ in range(REPEAT - 1)),
        ]
        refused = next((run.refused for run in (whole, before, *after) if run.refused), "")
        if refused:
            raise RuntimeError(refused)
        lost, repeated = lost_and_repeated(before, after[0], NUM_SAMPLES)
        extra = max(len(whole.numbers()) - NUM_SAMPLES, 0)  # such as padding to whole batches
        same = before.numbers() + after[0].numbers() == whole.numbers()
        seconds = [run.first for run in after]
        lines.append(
            [
                name,
                f"{fraction:.0%}",
                f"{median(seconds) * 1000:.0f}",
                f"{before.state_bytes:,}",
                f"{lost:,}",
                f"{repeated - extra:,}",
                "yes" if same else "no",
            ]
        )
        found[fraction] = Stop(seconds, lost + repeated - extra + (not same))
    return lines, found


def resume_elsewhere(name: str, folder: Path) -> tuple[list[list[str]], int]:
    """Stopped on some ranks, resumed on others; how many samples went wrong, or a refusal (which is not wrong)."""
    lines, wrong = [], 0
    for old, new in WORLDS:
        before = go(name, folder, world=old, stop=STEPS, save=True)
        after = go(name, folder, world=new, state=True)
        if after.refused or before.refused:
            lines.append(
                [name, f"{old} → {new}", "refuses", "", "", after.refused or before.refused]
            )
            continue
        lost, repeated = lost_and_repeated(before, after, FEW_SAMPLES)
        even = (
            ""
            if len(set(map(len, after.ranks))) == 1
            else "ranks end at different steps: " + str([len(rank) for rank in after.ranks])
        )
        wrong += lost + max(0, repeated - 2 * new * BATCH)  # a padded last step is no mistake
        verdict = "exact" if not lost and not repeated else "loses" if lost else "repeats"
        lines.append([name, f"{old} → {new}", verdict, f"{lost:,}", f"{repeated:,}", even])
    return lines, wrong


def main(report: Report) -> None:
    names = [
        name for name, kind in ALL.items() if not kind.distribution or report.has(kind.distribution)
    ]
    names = ["penstock"] if SIZE == "quick" else names
    alone, elsewhere = [], []
    stops: dict[str, dict[float, Stop]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            folder, small = Path(scratch) / name / "many", Path(scratch) / name / "few"
            try:
                for place, num in ((folder, NUM_SAMPLES), (small, FEW_SAMPLES)):
                    place.mkdir(parents=True)
                    if problem := call(name, "write", name, str(place), str(num))[0]:
                        raise RuntimeError(problem)
                lines, stops[name] = resume_alone(name, folder)
            except RuntimeError as error:
                if name == "penstock":
                    raise
                report.leave_out(ALL[name].distribution, error)
                continue
            alone += lines
            lines, wrong = resume_elsewhere(name, small)
            elsewhere += lines
            if name == "penstock":
                wrong_elsewhere = wrong
    last, ours = FRACTIONS[-1], stops["penstock"]
    wrong_alone = sum(stop.wrong for stop in ours.values())
    what = "penstock: samples lost, repeated or out of order"
    report.number("wrong", what, wrong_alone, at_most=0)
    if WORLDS:
        what = "penstock: samples lost or repeated, ranks changed"
        report.number("wrong_elsewhere", what, wrong_elsewhere, at_most=0)
    if SIZE == "quick":
        exact = float(not wrong_alone and not wrong_elsewhere)
        report.number("exact", "nothing lost or repeated", exact)
        seconds = median(ours[last].seconds)
        report.number("quick", "times within 100 ms of CPU to the first batch", 0.1 / seconds)
        return
    milliseconds = {
        name: [1000 * each for each in stop[last].seconds] for name, stop in stops.items()
    }
    what = f"penstock: first batch at {last:.0%}"
    mine = milliseconds["penstock"]
    report.number("first", what, mine, "ms", at_most=100, digits=0)
    for name, theirs in milliseconds.items():
        if name != "penstock":
            ratios = [a / b for a, b in zip(theirs, mine, strict=True)]
            key = f"against_{name.replace(' ', '_')}"
            what = f"first batch at {last:.0%}, against {name}"
            why = "it has no plan to make and nothing to pack"
            report.number(key, what, ratios, "×", peer=ALL[name].distribution, why=why)
    head = [
        "who",
        "stopped at",
        "ms to first batch",
        "state, bytes",
        "lost",
        "repeated",
        "as uninterrupted",
    ]
    report.table("One rank", head, alone)
    if WORLDS:
        header = ["who", "ranks", "outcome", "lost", "repeated", "remark"]
        report.table("Another number of ranks", header, elsewhere)


if __name__ == "__main__":
    BENCHMARK.run(main)
