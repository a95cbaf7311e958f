"""What does the Ray engine cost?  Two nodes of a Ray cluster on this machine against local processes.  Writes results/cluster.md.

    python benchmarks/cluster.py                       all questions
    python benchmarks/cluster.py measure ENGINE FILES CACHE TOKENIZER     one process (the script starts itself so)

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

from many_files import tokenizer
from stand import Page, Verdict, table

FEW, MANY, REPEAT = 4, 204, 3
ROWS = 20  # of a file
MOST_MS = 50.0  # overhead of the engine for each shard, beside a local one


def measure(engine: str, files: str, cache: str, tokenizer_path: str) -> tuple[float, float]:
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
    store = penstock.prepare(source, tokenizer=tokenizer_path, engine=engine, **options)
    assert store.num_shards == len(paths)
    return time.perf_counter() - begun, first


def run(engine: str, files: Path, cache: Path, tokenizer_path: Path) -> tuple[float, float, float]:
    """Seconds from process start to its end, of prepare, and until its first progress."""
    command = [
        sys.executable,
        __file__,
        "measure",
        engine,
        str(files),
        str(cache),
        str(tokenizer_path),
    ]
    begun = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    shutil.rmtree(cache)
    seconds, first = map(float, done.stdout.split()[-2:])
    return time.perf_counter() - begun, seconds, first


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


def main() -> None:
    notes = [
        f"Data: {FEW} and {MANY} JSONL files of {ROWS} rows, one shard each; two workers; every run has an empty cache; the median of "
        f"{REPEAT} runs, which take turns",
        "Both nodes run on this machine: a cluster of several adds its network",
    ]
    page = Page("cluster", "The Ray engine", packages=["ray", "tokenizers"], notes=notes)
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as root:
        folder = Path(root)
        opened = tokenizer(folder / "tokenizer")
        for count in (FEW, MANY):
            files = folder / str(count)
            files.mkdir()
            for number in range(count):
                line = f'{{"text": "document {number} ' + "some words " * 20 + '"}\n'
                (files / f"{number:04}.jsonl").write_text(line * ROWS)
        host = start_cluster(folder)
        try:
            for _ in range(REPEAT):
                for engine in ("local", "ray"):
                    for count in (FEW, MANY):
                        timing = run(engine, folder / str(count), folder / "cache", opened)
                        found.setdefault((engine, count), []).append(timing)
        finally:
            host.communicate()

    def middle(engine: str, count: int, which: int) -> float:
        return median(each[which] for each in found[engine, count])

    def per_shard(engine: str) -> float:
        return (middle(engine, MANY, 1) - middle(engine, FEW, 1)) / (MANY - FEW) * 1e3

    overhead = per_shard("ray") - per_shard("local")
    verdicts = [
        Verdict(
            "a shard on Ray, beside a local one",
            f"{overhead:+.1f} ms",
            f"≤ {MOST_MS:.0f} ms",
            overhead <= MOST_MS,
        ),
        Verdict(
            f"{FEW} shards on Ray, from process start",
            f"{middle('ray', FEW, 0):.1f} s",
            "for information",
        ),
        Verdict(
            f"{FEW} shards in local processes",
            f"{middle('local', FEW, 0):.1f} s",
            "for information",
        ),
    ]
    rows = [
        [engine, str(count), *(f"{middle(engine, count, which):.2f}" for which in range(3))]
        for engine, count in found
    ]
    header = ["engine", "shards", "s from process start", "s of prepare", "s to its first progress"]
    each = table(
        ["engine", "ms of two workers per shard"],
        [[name, f"{per_shard(name):.1f}"] for name in ("local", "ray")],
    )
    page.write(verdicts, {"Time": table(header, rows), "Each further shard": each})


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(*measure(*sys.argv[2:]))
    else:
        main()
