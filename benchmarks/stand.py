"""What every benchmark here shares: sizes, fair turns, fresh processes, and one file of results.  Not a benchmark itself.

A script declares a `Benchmark` and has a function `main(report)` that reports numbers and tables.  README.md has a whole example.

    python benchmarks/NAME.py            in full: writes its entry of results/results.json, and the pages
    python benchmarks/NAME.py --quick    smaller, by CPU time, for the floors of `make bench-quick`; prints only
    python benchmarks/NAME.py --tiny     seconds: `make test` reads what it reports, so that no script rots; prints only
"""

import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT.parent / "src" / "penstock"
RESULTS = ROOT / "results" / "results.json"
MOSAIC = ROOT.parent / ".venv-bench-mosaic"  # it needs other versions than the rest
LEAST_TURNS = 3  # of a number in full

SIZES = ("full", "quick", "tiny")
SIZE = next(
    (size for size in SIZES if f"--{size}" in sys.argv), os.environ.get("BENCH_SIZE", "full")
)

# The distribution that a peer is installed as, and the module that is imported.
PEERS = {
    "datasets": "datasets",
    "trl": "trl",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "torchdata": "torchdata",
    "grain": "grain",
    "litdata": "litdata",
    "numba": "numba",
    "torch": "torch",
    "ray": "ray",
    "mosaicml-streaming": "streaming",
}


def sized(full: Any, tiny: Any, quick: Any = None) -> Any:
    """The value for the size of this run; a quick run has the full one where none is given."""
    if SIZE == "tiny":
        return tiny
    return quick if SIZE == "quick" and quick is not None else full


# Measuring


@dataclass(slots=True)
class Timing:
    """Repetitions of one piece of work on `num_samples`: seconds by the clock, and of CPU (all threads of this process)."""

    num_samples: int = 1
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def turns(self) -> list[float]:
        """Seconds that count: by the clock; in a quick run of CPU, as neighbours of the machine take none of it."""
        return self.cpu if SIZE == "quick" else self.wall

    @property
    def seconds(self) -> float:
        """The median; in a quick run the least, as a busy machine must not fail it."""
        return min(self.cpu) if SIZE == "quick" else median(self.wall)

    @property
    def per_sample(self) -> float:
        """Microseconds."""
        return self.seconds / self.num_samples * 1e6

    @property
    def cpu_per_sample(self) -> float:
        """Microseconds of CPU."""
        return median(self.cpu) / self.num_samples * 1e6

    def spread(self, times: float = 1, digits: int = 3) -> str:
        low, high = min(self.turns) * times, max(self.turns) * times
        return f"{self.seconds * times:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


@contextmanager
def clocked(timing: Timing) -> Iterator[None]:
    """Add one repetition."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    timing.wall.append(time.perf_counter() - wall)
    timing.cpu.append(time.process_time() - cpu)


def take_turns(
    works: Mapping[str, tuple[int, Callable[[], Any]]], repeat: int
) -> tuple[dict[str, Timing], dict[str, Any]]:
    """Each piece of work `repeat` times, in turn; (timings, last results).  So a busy neighbour slows them all alike."""
    timings = {name: Timing(num_samples) for name, (num_samples, _) in works.items()}
    results: dict[str, Any] = {}
    for _ in range(repeat):
        for name, (_, work) in works.items():
            results.pop(name, None)  # its memory is given back before the clock starts
            with clocked(timings[name]):
                results[name] = work()
    return timings, results


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that has ended well: what it said, and what it took from its start to its end."""

    value: Any
    seconds: float
    cpu: float  # also of the processes that it waited for
    peak: float  # MiB that it held at most


def run_program(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
) -> Finished:
    """Run a program; its clock starts before it does.  Bytecode is kept, as that of an installed package is."""
    environment = {**os.environ, **(env or {}), "BENCH_SIZE": SIZE}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    patience = options.pop("timeout", None)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        environment["BENCH_BEGUN"] = str(time.time())
        process = subprocess.Popen(words, stdout=output, stderr=errors, env=environment, **options)
        try:
            status, used = _wait(process, patience)
        except BaseException:
            process.kill()
            process.wait()
            raise
        seconds = time.perf_counter() - begin
        output.seek(0)
        errors.seek(0)
        said, complaint = output.read().decode(), errors.read().decode(errors="replace").strip()
    if status:
        raise RuntimeError(f"{' '.join(words)[:300]}: exit code {status}: {complaint[-2000:]}")
    return Finished(said, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def _wait(process: "subprocess.Popen[bytes]", patience: float | None) -> tuple[int, Any]:
    until = time.monotonic() + patience if patience else None
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG if until else 0)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, used
        if until and time.monotonic() > until:
            raise subprocess.TimeoutExpired(process.args, patience or 0)
        time.sleep(0.005)


def fresh(
    function: Callable[..., Any],
    *arguments: Any,
    env: Mapping[str, str] | None = None,
    python: str | Path = sys.executable,
    timeout: float | None = None,
) -> Finished:
    """Call a function of a benchmark in a process of its own.  Arguments and result are JSON values (a Path becomes text).

    A tiny run calls it in this process: starting Python and importing peers is most of what a tiny measurement would take.
    """
    module = Path(function.__globals__["__file__"]).stem
    words = json.dumps(arguments, default=str)
    if SIZE == "tiny":
        begin, cpu = time.perf_counter(), time.process_time()
        with environment(**(env or {}), BENCH_BEGUN=str(time.time())):
            value = json.loads(json.dumps(function(*json.loads(words))))
        return Finished(value, time.perf_counter() - begin, time.process_time() - cpu, 0.0)
    command = [str(python), str(ROOT / "stand.py"), module, function.__name__, words]
    done = run_program(command, env=env, timeout=timeout)
    value = json.loads(done.value.strip().splitlines()[-1])
    return Finished(value, done.seconds, done.cpu, done.peak)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Environment variables, for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def since_start() -> float:
    """Seconds since this process was started, of which its parent took note."""
    return time.time() - float(os.environ["BENCH_BEGUN"])


def anonymous() -> float:
    """MiB of this process that no file backs: what cannot be dropped and read again."""
    return _status("RssAnon")


def peak_memory() -> float:
    """MiB that this process held at most.  Not ru_maxrss: that of a child begins at what its parent held."""
    return _status("VmHWM")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


@contextmanager
def memory_watched(found: dict[str, Any], *, every: float = 0.02) -> Iterator[None]:
    """Note the most memory of this process and its children together, and of any child (proportional sets: shared pages count once).

    every: seconds between two looks, which take time themselves.
    """
    stop, peaks = threading.Event(), {"together": 0.0, "child": 0.0}
    before = proportional(os.getpid())

    def watch() -> None:
        while not stop.wait(every):
            children = [proportional(child) for child in children_of(os.getpid())]
            peaks["together"] = max(peaks["together"], proportional(os.getpid()) + sum(children))
            peaks["child"] = max([peaks["child"], *children])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    peaks["together"] = max(peaks["together"], proportional(os.getpid()))
    found |= {"above": max(0.0, peaks["together"] - before), "child": peaks["child"]}


def children_of(pid: int) -> list[int]:
    """All processes below one."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        direct = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:  # it has just ended
        return []
    return [one for child in direct for one in (child, *children_of(child))]


def proportional(pid: int) -> float:
    """MiB of anonymous memory, as a share where several processes hold a page."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return (
        int(next(line for line in text.splitlines() if line.startswith("Pss_Anon")).split()[1])
        / 1024
    )


# Reporting


@dataclass(frozen=True, slots=True)
class Number:
    """One number, and what we hold ourselves to."""

    key: str  # unique in its script; README.md and floors.json name it
    what: str
    value: float
    unit: str = ""
    peer: str = ""
    digits: int | None = None
    spread: tuple[float, float] | None = None  # least and most among the turns
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""  # beside the number
    why: str = ""  # where the peer is ahead

    @property
    def shown(self) -> str:
        return show(self.value, self.unit, self.digits)

    @property
    def missed(self) -> bool:
        low = self.at_least is not None and self.value < self.at_least
        return low or (self.at_most is not None and self.value > self.at_most)


def show(value: float, unit: str = "", digits: int | None = None) -> str:
    """A number with as many digits as mean something, and its unit."""
    if digits is None:
        digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    text = f"{value:,.{digits}f}"
    return f"{text} {unit}" if unit else text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, padded so that it also reads well in a terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        return "| " + " | ".join(cells) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return [line(header), rule, *(line(row) for row in rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What a script asks, of which code, and beside whom."""

    title: str
    question: str
    measures: tuple[str, ...]  # modules and packages of penstock that decide these numbers
    peers: dict[str, str] = field(default_factory=dict)  # distribution → how it is set
    notes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ("numpy",)  # others whose versions matter

    def run(self, main: Callable[["Report"], None]) -> None:
        """Run a script alone: report in full into the file of results, or print."""
        name = Path(sys.modules["__main__"].__file__ or "").stem
        entry = measure(name, self, main)
        if entry["error"]:
            sys.exit(entry["error"])
        if SIZE == "full":
            save(name, entry)
            import pages

            pages.write()
        print("\n".join(summary(name, entry)))


class Report:
    """What a run found."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark = benchmark
        self.numbers: list[Number] = []
        self.tables: list[dict[str, Any]] = []
        self.notes = list(benchmark.notes)
        self.absent = {peer: why for peer in benchmark.peers if (why := why_absent(peer))}
        self._begin, self._load = time.perf_counter(), os.getloadavg()[0]

    def has(self, peer: str) -> bool:
        """Whether a peer can be measured here; the page names those who cannot."""
        assert peer in self.benchmark.peers, f"{peer} is not among the peers that are declared"
        return peer not in self.absent

    def leave_out(self, peer: str, why: object) -> None:
        """A peer that fails or does not end is named with the reason."""
        self.absent[peer] = " ".join(str(why).split())[-300:]
        print(f"  {peer}: {self.absent[peer]}", file=sys.stderr)

    def number(
        self, key: str, what: str, value: float | Sequence[float], unit: str = "", **more: Any
    ) -> float:
        """Report a number, or the median of one for each turn; return it."""
        if isinstance(value, Sequence):
            assert SIZE != "full" or len(value) >= LEAST_TURNS, f"{key}: {len(value)} turns"
            more = {"spread": (float(min(value)), float(max(value))), **more}
            value = median(value)
        assert all(key != number.key for number in self.numbers), f"{key}: reported twice"
        made = Number(key, what, float(value), unit, **more)
        self.numbers.append(made)
        print(f"  {key}: {made.shown}", file=sys.stderr, flush=True)
        return made.value

    def ratio(
        self, key: str, what: str, theirs: Timing, ours: Timing, *, peer: str, **more: Any
    ) -> float:
        """How many times faster ours is, for each sample: the ratio of medians, and its spread over the turns."""
        assert SIZE != "full" or min(len(theirs.turns), len(ours.turns)) >= LEAST_TURNS, key
        size = ours.num_samples / theirs.num_samples
        each = [size * a / b for a, b in zip(theirs.turns, ours.turns, strict=False)]
        value = theirs.per_sample / ours.per_sample
        return self.number(key, what, value, "×", peer=peer, spread=(min(each), max(each)), **more)

    def table(
        self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *text: str
    ) -> None:
        """A table for the page, below some text."""
        cells = [[str(cell) for cell in row] for row in rows]
        self.tables.append(
            {"title": title, "text": list(text), "header": list(header), "rows": cells}
        )

    def note(self, text: str) -> None:
        self.notes.append(text)

    def entry(self, name: str, error: str = "") -> dict[str, Any]:
        """Everything as JSON: what is written to the file of results."""
        benchmark = self.benchmark
        packages = [
            *benchmark.packages,
            *(peer for peer in benchmark.peers if peer not in self.absent),
        ]
        versions = {package: version_of(package) for package in packages}
        return {
            "title": benchmark.title,
            "question": benchmark.question,
            "command": f"python benchmarks/{name}.py",
            "size": SIZE,
            "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
            "seconds": round(time.perf_counter() - self._begin),
            "commit": commit(),
            "measures": list(benchmark.measures),
            "digest": digest(benchmark.measures),
            "versions": {"python": platform.python_version(), **versions},
            "machine": machine(),
            "load": [round(self._load, 1), round(os.getloadavg()[0], 1)],
            "peers": benchmark.peers,
            "absent": self.absent,
            "notes": self.notes,
            "numbers": [
                {k: v for k, v in asdict(n).items() if v not in (None, "")} for n in self.numbers
            ],
            "tables": self.tables,
            "error": error,
        }


def measure(name: str, benchmark: Benchmark, main: Callable[[Report], None]) -> dict[str, Any]:
    """Run a benchmark in this process; its entry, with the error if it fails."""
    import traceback

    report = Report(benchmark)
    try:
        main(report)
    except Exception:
        return report.entry(name, traceback.format_exc())
    return report.entry(name)


def read_results() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def save(name: str, entry: dict[str, Any]) -> None:
    """Replace one entry of the file of results; scripts may end at the same time."""
    with (ROOT / "results").joinpath(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = {**read_results(), name: entry}
        text = json.dumps(dict(sorted(entries.items())), indent=1, ensure_ascii=False)
        part = RESULTS.with_suffix(".part")
        part.write_text(text + "\n")
        part.rename(RESULTS)


def summary(name: str, entry: dict[str, Any]) -> list[str]:
    """The numbers of an entry, for a terminal."""
    rows = []
    for number in entry["numbers"]:
        made = Number(**number)
        rows.append([made.key, made.what, made.shown, "MISSED" if made.missed else ""])
    lines = [f"{name}: {entry['question']}", *table(["key", "what", "found", ""], rows)]
    return lines + [f"{peer}: not measured: {why}" for peer, why in entry["absent"].items()]


# What was measured, with what


def digest(measures: Sequence[str]) -> str:
    """Of the sources that a script declares that it measures."""
    summed = hashlib.sha256()
    for name in sorted(measures):
        place = SOURCES / name.replace(".", "/")
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        for file in files:
            summed.update(file.relative_to(SOURCES).as_posix().encode() + b"\0")
            summed.update(file.read_bytes() + b"\0")
    return summed.hexdigest()[:16]


def why_absent(peer: str) -> str:
    if peer == "mosaicml-streaming":
        if SIZE == "tiny":
            return "it has an environment of its own, which a tiny run does not start"
        return "" if MOSAIC.exists() else f"{MOSAIC.name} is not there"
    return "" if importlib.util.find_spec(PEERS[peer]) else "not installed"


def version_of(package: str) -> str:
    if package == "mosaicml-streaming":
        folders = [str(folder) for folder in MOSAIC.glob("lib/python*/site-packages")]
        found = metadata.distributions(name=package, path=folders)
        return next((each.version for each in found), "unknown")
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown"
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../src")
    return git("rev-parse", "--short", "HEAD") + (" with changes in src" if changed else "")


if __name__ == "__main__":  # stand.py MODULE FUNCTION ARGUMENTS: what `fresh` starts
    _module, _function, _arguments = sys.argv[1:]
    sys.path.insert(0, str(ROOT))
    _value = getattr(importlib.import_module(_module), _function)(*json.loads(_arguments))
    print(json.dumps(_value))
