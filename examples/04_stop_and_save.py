"""A run that gets a stop signal saves first.  It sends itself SIGTERM, as a cluster would, and goes on later with other ranks."""

import json
import os
import signal
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import penstock as ps

RECORDS = [
    {"text": f"Gate {n} lets {n % 13} cubic metres of water through." * (1 + n % 5)}
    for n in range(200)
]


def make_store(folder: Path) -> object:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(
        [r["text"] for r in RECORDS], trainers.BpeTrainer(vocab_size=400, show_progress=False)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return ps.prepare(
        RECORDS, tokenizer=folder / "tokenizer.json", template="text", cache_dir=folder / "cache"
    )


def main(folder: Path) -> None:
    store, checkpoint = make_store(folder), folder / "state.json"
    told: list[int] = []
    signal.signal(
        signal.SIGTERM, lambda number, frame: told.append(number)
    )  # only note it: the step under way is finished

    options = {"batch_size": 2, "max_length": 128, "epochs": 2, "output": "numpy"}
    loader = ps.Loader(store, **options)
    for batch in loader:
        if batch.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        if told:  # the batch has been trained: what the state counts is what was handed over
            checkpoint.write_text(json.dumps(loader.state_dict()))
            break
    print(
        f"stopped after step {batch.step} of {len(loader)}; saved {checkpoint.stat().st_size} bytes"
    )

    ranks = [ps.Loader(store, **options, rank=rank, world_size=3) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(json.loads(checkpoint.read_text()))
    steps = [sum(1 for _ in rank) for rank in ranks]
    print(
        f"three ranks took the rest in {steps} steps: {ranks[0].state_dict()['rows']} rows in all"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
