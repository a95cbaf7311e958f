"""Does it hold?  Makes up data and a tokenizer, prepares, loads, stops half-way, resumes on other ranks, checks every token."""

import json
import random
import sys
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import penstock as ps

NUM_RECORDS = 3_000
SETTINGS: dict[str, Any] = {"max_length": 512, "packing": "best_fit", "seed": 11, "output": "numpy"}
WORDS = ["water", "gate", "river", "mill", "turns", "slow", "fast", "deep", "stone", "bridge", "flows", "under", "rain"]

Row = tuple[tuple[int, ...], ...]  # the samples of a row, each as its token ids


def invent(folder: Path) -> tuple[list[Path], Path]:
    """Three JSONL files of invented text, and a small tokenizer trained on it."""
    chance = random.Random(3)
    lengths = [min(int(chance.lognormvariate(3.6, 0.9)) + 1, 300) for _ in range(NUM_RECORDS)]
    texts = [f"Note {number}: " + " ".join(chance.choices(WORDS, k=length)) for number, length in enumerate(lengths)]
    (folder / "notes").mkdir()
    paths = [folder / "notes" / f"part-{part}.jsonl" for part in range(3)]
    for part, path in enumerate(paths):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[part::3]))

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    end = "<|end|>"
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[end], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    home = folder / "tokenizer"
    home.mkdir()
    tokenizer.save(str(home / "tokenizer.json"))
    (home / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    return paths, home


def loaders(store: Any, *, world_size: int, batch_size: int, **changes: Any) -> list[ps.Loader]:
    """One loader per rank.  In a real run each lives in a process of its own, and none hears of the others."""
    options = {**SETTINGS, "batch_size": batch_size, "world_size": world_size, **changes}
    return [ps.Loader(store, rank=rank, **options) for rank in range(world_size)]


def rows_of(ranks: list[ps.Loader], steps: int | None = None) -> list[Row]:
    """What all ranks are handed in the next steps, in the global order: row i of a step goes to rank i modulo world size."""
    rows: list[Row] = []
    for batches in islice(zip(*ranks, strict=True), steps):
        for place in range(ranks[0].batch_size):
            rows += [row_samples(batch["input_ids"][place], batch["seq_idx"][place]) for batch in batches]
    return [row for row in rows if row]  # an empty row pads the last step


def row_samples(input_ids: np.ndarray, seq_idx: np.ndarray) -> Row:
    """A row taken apart again: seq_idx numbers its samples, -1 is padding."""
    return tuple(tuple(input_ids[seq_idx == number].tolist()) for number in range(int(seq_idx.max()) + 1))


def check(holds: bool, promise: str) -> None:
    if not holds:
        sys.exit(f"BROKEN: {promise}")
    print(f"  holds: {promise}")


def demo(folder: Path) -> None:
    print(f"1. Make up {NUM_RECORDS:,} records and a tokenizer, and prepare them.")
    paths, tokenizer = invent(folder)
    store = ps.prepare(paths, tokenizer=tokenizer, template="text", cache_dir=folder / "cache")
    print(f"  {store}\n  {store.describe()}")

    print("2. One epoch in one go, on one rank.")
    [alone] = loaders(store, world_size=1, batch_size=8)
    for batch in islice(alone, 3):
        ids, filled = batch["input_ids"], batch["seq_idx"] >= 0
        where = batch.provenance[0][0][0]
        home = f"{Path(where.file).name}:{where.line}"
        print(
            f"  step {batch.step}: {ids.shape[0]} rows of {ids.shape[1]}, {filled.mean():.1%} filled, begins with {home}"
        )
    epoch = rows_of(loaders(store, world_size=1, batch_size=8))
    samples = Counter(sample for row in epoch for sample in row)
    tokens = sum(len(sample) * times for sample, times in samples.items())
    expected = Counter(tuple(sample.input_ids.tolist()) for sample in store)
    check(
        samples == expected,
        f"all {samples.total():,} samples came once, whole: {tokens:,} tokens in {len(epoch):,} rows",
    )

    print("3. The same epoch on 2 ranks, stopped half-way, resumed on 3 ranks with another batch size.")
    before = loaders(store, world_size=2, batch_size=4)
    half = len(before[0]) // 2
    first = rows_of(before, half)
    states = [json.dumps(rank.state_dict()) for rank in before]
    check(len(set(states)) == 1, f"both ranks save the same state: {len(states[0])} bytes of JSON after {half} steps")
    after = loaders(store, world_size=3, batch_size=2)
    for rank in after:
        rank.load_state_dict(json.loads(states[0]))
    second = rows_of(after)
    joined = f"{len(first):,} rows before the stop and {len(second):,} after it"
    check(0 < len(first) < len(epoch), f"the stop was in the middle: {joined}")
    check(
        first + second == epoch,
        f"together they are the epoch in its order: none of {len(epoch):,} rows lost or repeated",
    )

    print("4. A state of another run is refused.")
    [other] = loaders(store, world_size=1, batch_size=8, seed=12)
    try:
        other.load_state_dict(json.loads(states[0]))
    except ValueError as refusal:
        check("seed" in str(refusal), f"{type(refusal).__name__}: {refusal}")
    else:
        sys.exit("BROKEN: a state of another seed was taken")

    print(
        f"Proved on this machine: {samples.total():,} samples with {tokens:,} tokens were handed over once each, in one order,\n"
        f"although the run was stopped after {half} steps on 2 ranks and went on with {len(second):,} rows on 3 ranks."
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        demo(Path(name))
