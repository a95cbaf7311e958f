"""What does the Ray engine cost?  Two nodes of a Ray cluster on this machine against local processes.

python benchmarks/cluster.py [--tiny]

The work of both is the same: two workers, the same files, an empty cache.  Ray runs before the clock starts, as a cluster does.
The overhead of a shard is the difference between many small files and few, which are one shard each.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from data import small_tokenizer
from stand import Benchmark, Report, fresh, sized

FEW, MANY, REPEAT = sized((4, 204, 3), (1, 4, 1))
ROWS = 20  # of a file
MOST_MS = 50.0  # overhead of the engine for each shard, beside a local one

BENCHMARK = Benchmark(
    title="The Ray engine",
    question="What does a shard cost on Ray, beside a local process?",
    measures=("extras.ray", "engines", "store"),
    peers={},
    packages=("ray", "tokenizers"),
    notes=(
        f"Data: {FEW} and {MANY} JSONL files of {ROWS} rows, one shard each; two workers; every run has an empty cache; the median of "
        f"{REPEAT} runs, which take turns",
        "Both nodes run on this machine: a cluster of several adds its network",
    ),
)


def measure(engine: str, files: str, cache: str, tokenizer: str) -> list[float]:
    """Prepare once; seconds of `prepare`, and until its first progress."""
    import penstock

    begun, first = time.perf_counter(), 0.0

    def note(progress: object) -> None:
        nonlocal first
        first = first or time.perf_counter() - begun

    options = {"template": "text", "cache_dir": cache, "num_proc": 2, "progress": note}
    paths = sorted(Path(files).iterdir())
    source = penstock.concat([penstock.open(path, cache_dir=cache) for path in paths])
    begun = time.perf_counter()
    store = penstock.prepare(source, tokenizer=tokenizer, engine=engine, **options)
    assert store.num_shards == len(paths)
    return [time.perf_counter() - begun, first]


def run(engine: str, files: Path, cache: Path, tokenizer: Path) -> tuple[float, float, float]:
    """Seconds from process start to its end, of prepare, and until its first progress."""
    done = fresh(measure, engine, files, cache, tokenizer)
    shutil.rmtree(cache)
    return (done.seconds, *done.value)


def start_cluster(folder: Path) -> "subprocess.Popen[str]":
    """Start a head and two nodes, in a process that ends with its input; name their address in the environment."""
    os.environ.update(RAY_TMPDIR=str(folder), RAY_USAGE_STATS_ENABLED="0")
    (folder / "ray").mkdir()
    script = (
        "import sys\nfrom ray.cluster_utils import Cluster\n"
        "cluster = Cluster(initialize_head=True, head_node_args={'num_cpus': 0, 'include_dashboard': False})\n"
        "[cluster.add_node(num_cpus=1) for _ in range(2)]\nprint(cluster.address, flush=True)\nsys.stdin.read()\ncluster.shutdown()"
    )
    host = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    os.environ["RAY_ADDRESS"] = host.stdout.readline().strip()
    return host


def main(report: Report) -> None:
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    engines = sized(
        ("local", "ray"), ("local",)
    )  # a cluster alone starts in more than a tiny run may take
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as root:
        folder = Path(root)
        tokenizer = small_tokenizer(folder / "tokenizer")
        for count in (FEW, MANY):
            files = folder / str(count)
            files.mkdir()
            for number in range(count):
                line = f'{{"text": "document {number} ' + "some words " * 20 + '"}\n'
                (files / f"{number:04}.jsonl").write_text(line * ROWS)
        host = start_cluster(folder) if "ray" in engines else None
        try:
            for _ in range(REPEAT):
                for engine in engines:
                    for count in (FEW, MANY):
                        timing = run(engine, folder / str(count), folder / "cache", tokenizer)
                        found.setdefault((engine, count), []).append(timing)
        finally:
            if host is not None:
                host.communicate()

    def per_shard(engine: str) -> list[float]:
        """Milliseconds, for each turn."""
        turns = zip(found[engine, MANY], found[engine, FEW], strict=True)
        return [(many[1] - few[1]) / (MANY - FEW) * 1e3 for many, few in turns]

    for engine in engines:
        what = f"each further shard with the engine {engine}, two workers"
        report.number(f"shard_{engine}", what, per_shard(engine), "ms", digits=1)
        seconds = [whole for whole, _, _ in found[engine, FEW]]
        what = f"{FEW} shards with the engine {engine}, from process start"
        report.number(f"start_{engine}", what, seconds, "s")
    if "ray" in engines:
        more = [a - b for a, b in zip(per_shard("ray"), per_shard("local"), strict=True)]
        what = "a shard on Ray, beside a local one"
        report.number("overhead", what, more, "ms", at_most=MOST_MS, digits=1)
    rows = [
        [
            engine,
            str(count),
            *(f"{median(turn[which] for turn in turns):.2f}" for which in range(3)),
        ]
        for (engine, count), turns in found.items()
    ]
    header = ["engine", "shards", "s from process start", "s of prepare", "s to its first progress"]
    report.table("Time", header, rows)


if __name__ == "__main__":
    BENCHMARK.run(main)
