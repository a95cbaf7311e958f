"""What does it cost to resume, and what is lost?  Counted, not assumed, over everybody who says that they can.

    python benchmarks/resume.py [--quick]        about five minutes.  Writes results/resume.md.

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

from contestants import ALL, BATCH
from stand import ROOT, Page, Verdict, table

QUICK = "--quick" in sys.argv
NUM_SAMPLES = 20_000
FEW_SAMPLES = 3_000  # for changes of the world, where every rank is a process
FRACTIONS = (0.9,) if QUICK else (0.1, 0.5, 0.9)
REPEAT = 1 if QUICK else 2
STEPS = 10  # before the ranks change
WORLDS = ((2, 3),) if QUICK else ((2, 3), (3, 2))
MOSAIC = ROOT.parent / ".venv-bench-mosaic" / "bin" / "python"


@dataclass(frozen=True, slots=True)
class Run:
    """What the ranks of one run handed over, rank by rank, batch by batch; or why there is none."""

    ranks: list[list[list[int]]]
    first: float = (
        0.0  # seconds from nothing (modules loaded) to the first batch; with --quick, of CPU
    )
    state_bytes: int = 0
    refused: str = ""

    def numbers(self) -> list[int]:
        return [number for rank in self.ranks for batch in rank for number in batch]

    @property
    def num_batches(self) -> int:
        return max(map(len, self.ranks), default=0)


def python_of(name: str) -> str:
    return str(MOSAIC) if name == "mosaicml-streaming" else sys.executable


def present() -> list[str]:
    return [name for name in ALL if name != "mosaicml-streaming" or MOSAIC.exists()]


def call(name: str, *words: str, ranks: Sequence[dict[str, str]] = ({},)) -> list[str]:
    """The contestant in processes; what went wrong in each."""
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
            _, errors = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            problems.append("hangs (killed after 180 s)")
            continue
        problems.append(errors.strip().splitlines()[-1][:200] if process.returncode else "")
    return problems


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
    first = "first_cpu" if QUICK else "first"
    return Run(handed, max(one[first] for one in found), max(one["state_bytes"] for one in found))


def lost_and_repeated(before: Run, after: Run, num: int) -> tuple[int, int]:
    counts = Counter(before.numbers() + after.numbers())
    return num - len(counts), sum(times - 1 for times in counts.values())


def resume_alone(name: str, folder: Path) -> tuple[list[list[str]], dict[str, float]]:
    """One rank, stopped at several places and resumed."""
    whole = go(name, folder)
    total, lines, found = whole.num_batches, [], {}
    for fraction in FRACTIONS:
        before = go(name, folder, stop=max(1, round(total * fraction)), save=True)
        after = [
            go(name, folder, state=True),
            *(go(name, folder, state=True, stop=1) for _ in range(REPEAT - 1)),
        ]
        lost, repeated = lost_and_repeated(before, after[0], NUM_SAMPLES)
        extra = len(whole.numbers()) - NUM_SAMPLES  # such as padding to whole batches
        same = before.numbers() + after[0].numbers() == whole.numbers()
        seconds = median(run.first for run in after)
        lines.append(
            [
                name,
                f"{fraction:.0%}",
                f"{seconds * 1000:.0f}",
                f"{before.state_bytes:,}",
                f"{lost:,}",
                f"{repeated - max(extra, 0):,}",
                "yes" if same else "no",
            ]
        )
        found[f"{fraction:.0%}"] = seconds
        found[f"wrong {fraction:.0%}"] = lost + repeated - max(extra, 0) + (not same)
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


def main() -> dict[str, float]:
    names = ["penstock"] if QUICK else present()
    page = Page(
        "resume",
        "Resuming: time, size, and what is lost",
        packages=("datasets", "torchdata", "grain", "litdata", "torch"),
        notes=[
            f"{NUM_SAMPLES:,} samples of 12 to 101 tokens, batches of {BATCH}; medians of {REPEAT} resumes, each a fresh process",
            "Time: from nothing, modules loaded, to the first batch: the loader is made, the state loaded, a batch handed over",
            "Lost and repeated: every sample carries its number, and the numbers handed over before and after are counted",
            "State: pickled bytes of what the contestant gives to be saved",
            *(f"{name}: {ALL[name].note}" for name in names),
        ],
    )
    alone, elsewhere, seconds, wrong, wrong_alone = [], [], {}, {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            folder, small = Path(scratch) / name / "many", Path(scratch) / name / "few"
            for place, num in ((folder, NUM_SAMPLES), (small, FEW_SAMPLES)):
                place.mkdir(parents=True)
                if problem := call(name, "write", name, str(place), str(num))[0]:
                    raise SystemExit(f"{name}: {problem}")
            lines, found = resume_alone(name, folder)
            alone += lines
            seconds[name] = found
            wrong_alone[name] = sum(
                value for key, value in found.items() if key.startswith("wrong")
            )
            lines, wrong[name] = resume_elsewhere(name, small)
            elsewhere += lines
    last, ours = f"{FRACTIONS[-1]:.0%}", seconds["penstock"]
    if QUICK:
        wrongs = wrong_alone["penstock"] + wrong["penstock"]
        return {
            "nothing lost or repeated": float(not wrongs),
            "of 100 ms of CPU to the first batch": 0.1 / ours[last],
        }
    rest = {name: found[last] for name, found in seconds.items() if name != "penstock"}
    quickest = min(rest, key=rest.__getitem__)
    verdicts = [
        Verdict(
            "penstock: samples lost, repeated or out of order",
            f"{wrong_alone['penstock']:.0f}",
            "0",
            not wrong_alone["penstock"],
        ),
        Verdict(
            "penstock: samples lost or repeated, ranks changed",
            f"{wrong['penstock']}",
            "0",
            not wrong["penstock"],
        ),
        Verdict(
            f"penstock: first batch at {last}, ms",
            f"{ours[last] * 1000:.0f}",
            "≤ 100",
            ours[last] <= 0.1,
        ),
        Verdict(f"quickest other at {last}: {quickest}, ms", f"{rest[quickest] * 1000:.0f}", "—"),
    ]
    head = [
        "who",
        "stopped at",
        "ms to first batch",
        "state, bytes",
        "lost",
        "repeated",
        "as uninterrupted",
    ]
    other = ["who", "ranks", "outcome", "lost", "repeated", "remark"]
    page.write(
        verdicts,
        {"One rank": table(head, alone), "Another number of ranks": table(other, elsewhere)},
    )
    return {}


if __name__ == "__main__":
    found = main()
    if QUICK:
        print(json.dumps(found))
