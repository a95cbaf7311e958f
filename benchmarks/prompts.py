"""What does it cost to take prompts, and how large is their state?  Beside torchdata's StatefulDataLoader, which counts what it has given.

    python benchmarks/prompts.py        about a minute.  Writes results/prompts.md.

The same 20,000 questions: plain records from JSONL, and rendered by `template: prompt` from a store.  The loader reads the same lines
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

import torch
from prepare import train_tokenizer
from stand import Page, Verdict, table
from torchdata.stateful_dataloader import StatefulDataLoader

import penstock as ps

COUNT, TAKE, CALLS, FLIGHT = 20_000, 64, 300, 10_000
GOAL_MS, GOAL_BYTES = 1.0, 1024 + 16 * FLIGHT


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


def loader_of(file: Path) -> StatefulDataLoader:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    generator = torch.Generator().manual_seed(0)
    return StatefulDataLoader(
        rows, batch_size=TAKE, shuffle=True, generator=generator, collate_fn=list
    )


def forever(loader: StatefulDataLoader) -> Any:
    while True:
        yield from loader


def main() -> None:
    page = Page(
        "prompts",
        "Prompts: what take(64) costs, and the size of a state",
        packages=("torch", "torchdata", "numpy"),
        notes=(
            f"{COUNT:,} questions of 20 to 120 words; {CALLS} calls of take({TAKE}) in a row, over an epoch of the data; ms per call",
            "records: read from a JSONL file; store: the record and the ids of the rendered prompt",
            "StatefulDataLoader: parsed records in memory, no processes; it does not know which of them were trained",
            f"state: {FLIGHT:,} prompts in flight among 30,000 taken, as JSON; of the loader after half an epoch, by torch.save",
        ),
    )
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "questions.jsonl"
        make_questions(file)
        tokenizer = train_tokenizer(
            file.read_text().splitlines()[:5_000], Path(place) / "tokenizer"
        )
        source = ps.open(file, cache_dir=Path(place) / "cache")
        store = ps.prepare(
            source, tokenizer=tokenizer, template="prompt", cache_dir=Path(place) / "cache"
        )
        of_records, of_store, again, loader = (
            ps.Prompts(source),
            ps.Prompts(store),
            scattered(source),
            loader_of(file),
        )
        batches = forever(loader)
        ways: dict[str, Callable[[], Any]] = {
            "records, take": lambda: of_records.take(TAKE),
            "records, take and done": lambda: step(of_records),
            "records, take what came back": lambda: step(again),
            "store, take": lambda: of_store.take(TAKE),
            "store, take and done": lambda: step(of_store),
            "StatefulDataLoader, next": lambda: next(batches),
        }
        found = {name: milliseconds(call) for name, call in ways.items()}
        flying = ps.Prompts(source)
        taken = flying.take(3 * FLIGHT)
        flying.done(taken[::3])
        flying.drop(taken[1::3], why="zero_variance")
        state, saved = json.dumps(flying.state_dict()), Path(place) / "loader.pt"
        torch.save(loader.state_dict(), saved)
        other = saved.stat().st_size
    rows = [
        [
            name,
            *(f"{pick(each):.2f}" for each in zip(*times, strict=True) for pick in (median, min)),
        ]
        for name, times in found.items()
    ]
    cpu = {name: median(each for _, each in times) for name, times in found.items()}
    verdicts = [
        Verdict(
            f"{name}, CPU of {TAKE}",
            f"{cpu[name]:.2f} ms",
            f"< {GOAL_MS:.0f} ms",
            cpu[name] < GOAL_MS,
        )
        for name in ("records, take", "records, take what came back", "store, take")
    ]
    verdicts.append(
        Verdict(
            f"state with {FLIGHT:,} in flight",
            f"{len(state):,} bytes",
            f"≤ {GOAL_BYTES:,}",
            len(state) <= GOAL_BYTES,
        )
    )
    verdicts.append(Verdict("state of the StatefulDataLoader", f"{other:,} bytes", "", None))
    header = ["way", "median ms", "best ms", "median CPU ms", "best CPU ms"]
    page.write(verdicts, {"Every way": table(header, rows)})


if __name__ == "__main__":
    main()
