"""What does recording losses cost a training step?

python benchmarks/losses.py [--tiny]

A step is forward, backward and optimizer of a small Llama on packed rows.  CPU seconds of `LossBySource.add`, with all that it writes, are
compared with CPU seconds of the steps of the same process: differences of a percent cannot be seen between two runs.
"""

import json
import random
import tempfile
import time
from pathlib import Path

from stand import Benchmark, Report, sized

HIDDEN, LAYERS, VOCABULARY = sized((768, 12, 32_000), (32, 2, 2_000))
LENGTH, ROWS, STEPS = sized((512, 1, 2), (64, 2, 3))
TURNS = sized(3, 1)

BENCHMARK = Benchmark(
    title="Recording losses by source and sample",
    question="What share of a training step does `LossBySource` take?",
    measures=("extras.losses",),
    packages=("torch", "transformers"),
    notes=(
        f"A Llama of {LAYERS} layers, hidden size {HIDDEN}, {VOCABULARY:,} tokens; {ROWS} packed rows of {LENGTH} tokens, all trained; "
        f"{STEPS} steps in each of {TURNS} turns, after one that is not counted; one thread",
        "CPU seconds of LossBySource.add over those of forward, backward and optimizer; losses per token are what a fused loss, such as "
        "that of trl, has already",
    ),
)


def make_store(folder: Path) -> object:
    import penstock as ps

    rng = random.Random(0)
    rows = [
        {"input_ids": [rng.randrange(VOCABULARY) for _ in range(rng.randrange(20, LENGTH // 2))]}
        for _ in range(STEPS * ROWS * TURNS * 12)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ps.prepare(
        folder / "data.jsonl",
        template="pretokenized",
        vocab_size=VOCABULARY,
        cache_dir=folder / "cache",
        num_proc=1,
    )


def main(report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shares = {way: run(Path(folder), way) for way in ("logits", "losses per token")}
    report.number(
        "share", "of a step, from logits", shares["logits"], "%", at_most=sized(1.0, 100.0)
    )
    report.number(
        "share_per_token",
        "of a step, from losses per token",
        shares["losses per token"],
        "%",
        at_most=sized(1.0, 100.0),
    )


def run(folder: Path, way: str) -> list[float]:
    """Return the percentage of each turn."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import penstock as ps
    from penstock.trainers.losses import LossBySource

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LENGTH,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    own = folder / way
    own.mkdir()
    loader = ps.Loader(make_store(own), batch_size=ROWS, max_length=LENGTH, run_id=way, epochs=None)
    losses = LossBySource(loader)
    steps: list[float] = []
    added: list[float] = []
    for number, batch in enumerate(loader):
        if number > STEPS * TURNS:
            break
        begin = time.process_time()
        outputs = model(
            input_ids=batch["input_ids"],
            position_ids=batch["position_ids"],
            labels=batch["labels"],
            use_cache=False,
        )
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        logits = outputs.logits.detach()
        middle = time.process_time()
        what = {"logits": logits}
        if way != "logits":
            what = {"per_token": torch.rand(batch["labels"].shape)}
            middle = time.process_time()
        losses.add(batch, **what)
        end = time.process_time()
        steps.append(middle - begin)
        added.append(end - middle)
    return [
        100 * sum(added[first : first + STEPS]) / sum(steps[first : first + STEPS])
        for first in range(1, 1 + STEPS * TURNS, STEPS)
    ]


if __name__ == "__main__":
    BENCHMARK.run(main)
