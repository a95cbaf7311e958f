"""How is something measured fairly?  Contestants take turns on one machine, and a page says what was run.  Not a benchmark itself."""

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"


@dataclass(slots=True)
class Timing:
    """Repetitions of one piece of work: seconds by the clock, and of CPU (all threads of this process)."""

    num_samples: int
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(self.wall)

    @property
    def per_sample(self) -> float:
        """Microseconds."""
        return self.seconds / self.num_samples * 1e6

    @property
    def cpu_per_sample(self) -> float:
        """Microseconds; steadier than `per_sample` where others use the machine."""
        return median(self.cpu) / self.num_samples * 1e6

    @property
    def least_cpu(self) -> float:
        """Microseconds of CPU of the fastest repetition: what `quick.py` compares, for a neighbour slows the others."""
        return min(self.cpu) / self.num_samples * 1e6

    def spread(self) -> str:
        return f"{self.seconds:.3f} ({min(self.wall):.3f}–{max(self.wall):.3f})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One number against what we hold ourselves to."""

    question: str
    found: str
    target: str
    passed: bool | None = None  # None: no target, for information

    def cells(self) -> list[str]:
        return [
            self.question,
            self.found,
            self.target,
            {True: "pass", False: "MISSED", None: ""}[self.passed],
        ]


def take_turns(
    works: dict[str, tuple[int, Callable[[], Any]]], repeat: int
) -> tuple[dict[str, Timing], dict[str, Any]]:
    """Each piece of work `repeat` times, in turn; (timings, last results)."""
    timings = {name: Timing(num_samples) for name, (num_samples, _) in works.items()}
    results: dict[str, Any] = {}
    for _ in range(repeat):
        for name, (_, work) in works.items():
            results.pop(name, None)  # its memory is given back before the clock starts
            wall, cpu = time.perf_counter(), time.process_time()
            results[name] = work()
            timings[name].wall.append(time.perf_counter() - wall)
            timings[name].cpu.append(time.process_time() - cpu)
    return timings, results


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table, padded so that it also reads well in a terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    head = (
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(header, widths, strict=True))
        + " |"
    )
    return [head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines]


def verdict_table(verdicts: Iterable[Verdict]) -> list[str]:
    return table(["question", "found", "target", ""], [verdict.cells() for verdict in verdicts])


def machine() -> str:
    model = next(
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{model.split(':')[1].strip()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../src")
    return git("rev-parse", "--short", "HEAD") + (" with changes in src" if changed else "")


class Page:
    """A page of results; it knows when and under which load it was begun."""

    def __init__(
        self, script: str, title: str, *, packages: Iterable[str], notes: Iterable[str] = ()
    ) -> None:
        self._begin, self._load = time.perf_counter(), os.getloadavg()[0]
        self._script, self._title, self._packages, self._notes = (
            script,
            title,
            tuple(packages),
            tuple(notes),
        )

    def write(self, verdicts: list[Verdict], parts: dict[str, list[str]]) -> str:
        seconds = time.perf_counter() - self._begin
        versions = ", ".join(f"{name} {version(name)}" for name in self._packages)
        lines = [
            f"# {self._title}",
            "",
            f"- Command: `python benchmarks/{self._script}.py` (written by it), {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
            f"{seconds:.0f} s in all",
            f"- Versions: penstock at {commit()}, Python {platform.python_version()}, {versions}",
            f"- Machine: {machine()}; load average {self._load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end",
            *(f"- {note}" for note in self._notes),
            "",
            *verdict_table(verdicts),
            "",
        ]
        for title, part in parts.items():
            lines += [f"## {title}", "", *part, ""]
        text = "\n".join(lines)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self._script}.md").write_text(text)
        print(text)
        return text
