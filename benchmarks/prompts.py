"""What does it cost to take prompts, and how large is their state?  Beside torchdata's StatefulDataLoader, which counts what it has given.

python benchmarks/prompts.py [--tiny]

The same questions: plain records from JSONL, and rendered by `template: prompt` from a store.  The loader reads the same lines
from a list in memory, shuffled, 64 a batch; it does not know what was trained, so it stands for the cost, not for the service.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from data import train_tokenizer
from stand import Benchmark, Report, sized

import penstock as ps

COUNT, TAKE, CALLS, FLIGHT = sized((20_000, 64, 300, 10_000), (300, 8, 5, 100))
GOAL_MS, GOAL_BYTES = 1.0, 1024 + 16 * FLIGHT

BENCHMARK = Benchmark(
    title="Prompts: what take(64) costs, and the size of a state",
    question=f"What does it cost to take {TAKE} prompts, and how large is the state of {FLIGHT:,} in flight?",
    measures=("extras.rl", "plan", "sources", "store"),
    peers={
        "torchdata": "`StatefulDataLoader` over parsed records in memory, shuffled, no processes; it does not know "
        "which of them were trained"
    },
    packages=("numpy", "torch"),
    notes=(
        f"{COUNT:,} questions of 20 to 120 words; {CALLS} calls of take({TAKE}) in a row, over an epoch of the data; CPU ms per call",
        "records: read from a JSONL file; store: the record and the ids of the rendered prompt",
        f"state: {FLIGHT:,} prompts in flight among {3 * FLIGHT:,} taken, as JSON; of the loader after half an epoch, by torch.save",
    ),
)


def make_questions(file: Path) -> None:
    rng = random.Random(0)
    words = [f"word{n}" for n in range(5_000)]
    with file.open("w") as out:
        for n in range(COUNT):
            text = " ".join(rng.choices(words, k=rng.randrange(20, 120)))
            out.write(json.dumps({"prompt": [{"role": "user", "content": text}], "gold": n}) + "\n")


def milliseconds(call: Callable[[], Any]) -> list[tuple[float, float]]:
    """(by the clock, of CPU) of each call."""
    found = []
    for _ in range(CALLS):
        clock, cpu = time.perf_counter(), time.process_time()
        call()
        found.append(((time.perf_counter() - clock) * 1e3, (time.process_time() - cpu) * 1e3))
    return found


def step(prompts: Any) -> None:
    prompts.done(prompts.take(TAKE))


def scattered(source: Any) -> Any:
    """Prompts of which every third is done, and the others, two epochs of them, are given again."""
    prompts = ps.Prompts(source)
    taken = prompts.take(2 * COUNT)
    prompts.done(taken[::3])
    prompts.back([each for number, each in enumerate(taken) if number % 3])
    return prompts


def loader_of(file: Path) -> Any:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows = [json.loads(line) for line in file.read_text().splitlines()]
    generator = torch.Generator().manual_seed(0)
    return StatefulDataLoader(
        rows, batch_size=TAKE, shuffle=True, generator=generator, collate_fn=list
    )


def forever(loader: Any) -> Any:
    while True:
        yield from loader


def main(report: Report) -> None:
    with tempfile.TemporaryDirectory() as place:
        file, cache = Path(place) / "questions.jsonl", Path(place) / "cache"
        make_questions(file)
        lines = file.read_text().splitlines()[:5_000]
        tokenizer = train_tokenizer(lines, Path(place) / "tokenizer")
        source = ps.open(file, cache_dir=cache)
        options = {"tokenizer": tokenizer, "template": "prompt", "cache_dir": cache}
        store = ps.prepare(source, **options, progress="none")
        of_records, of_store, again = ps.Prompts(source), ps.Prompts(store), scattered(source)
        ways: dict[str, Callable[[], Any]] = {
            "records, take": lambda: of_records.take(TAKE),
            "records, take and done": lambda: step(of_records),
            "records, take what came back": lambda: step(again),
            "store, take": lambda: of_store.take(TAKE),
            "store, take and done": lambda: step(of_store),
        }
        if report.has("torchdata"):
            batches = forever(loader_of(file))
            ways["StatefulDataLoader, next"] = lambda: next(batches)
        found = {name: milliseconds(call) for name, call in ways.items()}
        cpu = {name: [each for _, each in times] for name, times in found.items()}
        for key, name in (
            ("take", "records, take"),
            ("back", "records, take what came back"),
            ("store", "store, take"),
        ):
            report.number(key, f"{name}, CPU of {TAKE}", cpu[name], "ms", at_most=GOAL_MS)
        flying = ps.Prompts(source)
        taken = flying.take(3 * FLIGHT)
        flying.done(taken[::3])
        flying.drop(taken[1::3], why="zero_variance")
        state = json.dumps(flying.state_dict())
        what = f"state with {FLIGHT:,} in flight"
        report.number("state", what, len(state), "bytes", at_most=GOAL_BYTES)
        if report.has("torchdata"):
            compare_loader(report, file, Path(place) / "loader.pt", cpu)
    rows = [
        [
            name,
            *(f"{pick(each):.2f}" for each in zip(*times, strict=True) for pick in (median, min)),
        ]
        for name, times in found.items()
    ]
    header = ["way", "median ms", "best ms", "median CPU ms", "best CPU ms"]
    report.table("Every way", header, rows)


def compare_loader(report: Report, file: Path, saved: Path, cpu: dict[str, list[float]]) -> None:
    import torch

    loader = loader_of(file)
    for number, _ in enumerate(loader):
        if number == COUNT // TAKE // 2:
            break
    torch.save(loader.state_dict(), saved)
    size = saved.stat().st_size
    report.number(
        "state_loader", "state of the StatefulDataLoader", size, "bytes", peer="torchdata"
    )
    ratio = median(cpu["StatefulDataLoader, next"]) / median(cpu["records, take"])
    why = "it hands over objects that lie parsed in memory; ours reads each record from its file, and leases it"
    what = f"CPU of {TAKE} from records, against the StatefulDataLoader"
    report.number(
        "against", what, ratio, "×", peer="torchdata", why=why, note=f"medians of {CALLS} calls"
    )


if __name__ == "__main__":
    BENCHMARK.run(main)
