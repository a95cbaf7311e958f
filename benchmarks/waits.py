"""How long does a training step wait for its batch?  Text, pairs and images, from local files and from a bucket.

python benchmarks/waits.py [--tiny]

A step is simulated: 30 ms in which this process sleeps, as one that waits for its accelerator does.  Read-ahead is on, as by default.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import media
import numpy as np
import remote
from bucket import bucket
from data import library_lines, train_tokenizer
from stand import Benchmark, Report, fresh, sized

STEP = sized(0.03, 0.002)  # seconds
STEPS = sized(300, 4)
IMAGE_STEPS = sized(60, 2)
REPEAT = sized(3, 1)
TEXTS = sized(20_000, 60)
PAIRS = sized(3_000, 40)
IMAGE_ROWS = sized(2_000, 8)
IMAGES_A_STEP = 2
SIDES = sized((336, 672), (64, 128))  # pixels of an image
MOST = 0.01  # of the time of steps

BENCHMARK = Benchmark(
    title="What a training step waits for",
    question="How long does a training step of 30 ms wait for its batch?",
    measures=("loader", "plan", "store", "extras.remote", "extras.media", "extras.trainers"),
    packages=("numpy", "torch", "obstore", "moto"),
    notes=(
        f"A step is {1000 * STEP:.0f} ms of sleep; {STEPS} steps ({IMAGE_STEPS} with images) after the first batch, whose time is apart",
        "Text: batches of 8 rows of 2,048 tokens, packed, as tensors. Pairs: 8 a step, some 200 tokens each side. "
        f"Images: {IMAGES_A_STEP} a step, {SIDES[0]} to {SIDES[1]} pixels a side, decoded by two threads",
        f"Bucket: the store and the mirror of a quarter of it as in remote.py, {1000 * remote.LATENCY:.0f} ms for each request",
        f"Medians of {REPEAT} turns, each a process of its own",
    ),
)


def waited(loader: Any, num_steps: int) -> dict[str, float]:
    """Seconds until the first batch, and what the next steps wait; their longest wait tells whether a training stutters."""
    begin = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - begin
    waits = []
    for _ in range(num_steps):
        time.sleep(STEP)
        asked = time.perf_counter()
        if next(batches, None) is None:
            break
        waits.append(time.perf_counter() - asked)
    assert waits, "the data ends with the first batch"
    return {
        "first": first,
        "share": sum(waits) / (len(waits) * STEP),
        "longest": max(waits),
        "steps": len(waits),
    }


# In the measured process


def text(folder: str) -> dict[str, float]:
    import penstock as ps

    options = {"tokenizer": f"{folder}/tokenizer", "template": "text", "progress": "none"}
    store = ps.prepare(f"{folder}/text.jsonl", cache_dir=f"{folder}/cache", **options)
    return waited(ps.Loader(store, batch_size=8, max_length=2048, epochs=None), STEPS)


def pairs(folder: str) -> dict[str, float]:
    import penstock as ps

    options = {"tokenizer": f"{folder}/tokenizer", "template": "preference", "progress": "none"}
    store = ps.prepare(f"{folder}/pairs.jsonl", cache_dir=f"{folder}/cache", **options)
    options = {"max_length": 1024, "packing": "none", "epochs": None}
    return waited(ps.Loader(store, batch_size=8, **options), STEPS)


def images(folder: str) -> dict[str, float]:
    import penstock as ps

    store = media.prepare(Path(folder, "media"), IMAGE_ROWS, "cache")
    options = {"max_length": 2048, "packing": "none", "media_threads": 2, "epochs": None}
    return waited(ps.Loader(store, batch_size=IMAGES_A_STEP, **options), IMAGE_STEPS)


def text_of_bucket(folder: str) -> dict[str, float]:
    store = remote.build_store(Path(folder, "bucket"), remote.URL)
    mirror = int(remote.SHARE * sum(entry.num_bytes for entry in store.manifest.shards))
    loader = remote.penstock_loader(store, "best_fit", mirror_bytes=mirror)
    return waited(loader, STEPS)


CASES: dict[str, tuple[str, Callable[[str], dict[str, float]]]] = {
    "text": ("text, packed, local", text),
    "pairs": ("pairs, local", pairs),
    "images": ("images, two threads, local", images),
    "bucket": ("text, packed, from a bucket", text_of_bucket),
}


# The data


def write_data(folder: Path) -> None:
    chance = np.random.default_rng(0)
    lines = library_lines()
    train_tokenizer(lines[::20], folder / "tokenizer")

    def some(count: int) -> str:
        start = int(chance.integers(0, len(lines) - count))
        return "\n".join(lines[start : start + count])

    def pair() -> dict[str, Any]:
        asked = [{"role": "user", "content": some(4)}]
        answers = [[{"role": "assistant", "content": some(12)}] for _ in range(2)]
        return {"prompt": asked, "chosen": answers[0], "rejected": answers[1]}

    def write(name: str, rows: Iterator[dict[str, Any]]) -> None:
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    write("text", ({"text": some(20)} for _ in range(TEXTS)))
    write("pairs", (pair() for _ in range(PAIRS)))
    (folder / "media").mkdir()
    media.make_model(folder / "media" / "model")
    media.make_images(folder / "media" / "images", SIDES)
    media.make_records(folder / "media")


def main(report: Report) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_data(folder)
        server = stack.enter_context(bucket(latency=remote.LATENCY))
        (folder / "bucket").mkdir()
        remote.write(folder / "bucket", server)
        for _, run in islice(CASES.values(), 3):
            fresh(run, folder)  # prepares
        found: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
        for _ in range(REPEAT):
            for name, (_, run) in CASES.items():
                with tempfile.TemporaryDirectory() as mirror:
                    env = {"PENSTOCK_MIRROR": mirror}
                    found[name].append(fresh(run, folder, env=env).value)
    rows = []
    for name, (what, _) in CASES.items():
        runs = found[name]
        shares = [100 * run["share"] for run in runs]
        report.number(
            name, f"{what}: wait, of the time of steps", shares, "%", at_most=100 * MOST, digits=2
        )
        rows.append(
            [
                what,
                f"{median(shares):.2f} %",
                f"{1000 * median(run['share'] * STEP for run in runs):.2f}",
                f"{1000 * median(run['longest'] for run in runs):.1f}",
                f"{median(run['first'] for run in runs):.2f}",
                f"{min(run['steps'] for run in runs):.0f}",
            ]
        )
    header = ["data", "wait", "ms a step", "longest, ms", "first batch, s", "steps"]
    report.table("What steps wait", header, rows)


if __name__ == "__main__":
    BENCHMARK.run(main)
