"""A training job as the journeys run it: several rank processes, a log of what was trained, a state saved now and then.

python job.py FOLDER RANK WORLD_SIZE runs one rank; it takes a step only when all have taken the one before, as an all-reduce would.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import penstock as ps

SAVE_EVERY = 4


def open_loader(
    folder: Path, rank: int | None, world_size: int | None, **options: Any
) -> ps.Loader:
    store = ps.prepare(
        folder / "data.jsonl",
        tokenizer=folder / "tokenizer",
        template="text",
        cache_dir=folder / "cache",
        num_proc=1,
    )
    options = {
        "batch_size": 2,
        "max_length": 64,
        "on_overlong": "split",
        "seed": 7,
        "output": "numpy",
        **options,
    }
    return ps.Loader(store, rank=rank, world_size=world_size, **options)


def run_rank(folder: Path, rank: int, world_size: int) -> None:
    loader = open_loader(folder, rank, world_size)
    saved = folder / "state.json"
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    run = os.environ["RUN"]
    with (folder / f"log-{run}-{rank}.jsonl").open("a") as log:
        for batch in loader:
            log.write(line(batch, rank, world_size))
            log.flush()
            _wait_for_all(folder, run, rank, world_size, batch.step)
            if rank == 0 and (batch.step + 1) % SAVE_EVERY == 0:
                save(loader, saved)
            time.sleep(0.002)
    (folder / f"done-{run}-{rank}").touch()


def line(batch: Any, rank: int, world_size: int) -> str:
    """What a rank trained in a step, for the log."""
    spans = [[[str(where), start, stop] for where, start, stop in row] for row in batch.provenance]
    rows = list(zip(batch.places.tolist(), spans, strict=True))
    return json.dumps({"step": batch.step, "rank": rank, "world": world_size, "rows": rows}) + "\n"


def save(loader: ps.Loader, path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(loader.state_dict()))
    temporary.replace(path)


def _wait_for_all(folder: Path, run: str, rank: int, world_size: int, step: int) -> None:
    mine = folder / f"at-{run}-{rank}"
    mine.write_text(str(step))
    deadline = time.monotonic() + 60
    for other in range(world_size):
        theirs = folder / f"at-{run}-{other}"
        while not theirs.exists() or int(theirs.read_text() or -1) < step:
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {other} did not reach step {step}")
            time.sleep(0.001)


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
