"""Does it hold?  From raw files to a training loop that is killed and goes on elsewhere, on data made up here, every row checked.

python examples/demo.py [FOLDER]      FOLDER (demo-output) keeps the recipe and the report page
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import penstock as ps

NUM_CHATS = 3_000
WORDS = [
    "water",
    "gate",
    "river",
    "mill",
    "turns",
    "slow",
    "fast",
    "deep",
    "stone",
    "bridge",
    "flows",
    "under",
    "rain",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def invent(folder: Path) -> None:
    """Conversations in three JSONL files, some of them not as they should be, and a small tokenizer."""
    chance = random.Random(3)

    def some(most: int) -> str:
        return (
            " ".join(chance.choices(WORDS, k=min(int(chance.lognormvariate(2.6, 0.8)) + 1, most)))
            + "."
        )

    def chat(number: int) -> str:
        roles = ["user", "assistant"] * chance.randint(1, 4)
        messages = [{"role": role, "content": f"{number}. {some(80)}"} for role in roles]
        return json.dumps(
            {"messages": messages[:-1] if number % 500 == 7 and len(messages) == 2 else messages}
        )

    lines = [chat(number) for number in range(NUM_CHATS)]
    lines[1234] = '{"messages": [{"role": "user", "content": "cut off in the mid'
    lines[2345] = json.dumps({"messages": [{"role": "user", "content": "Nobody answers."}]})
    (folder / "chats").mkdir(parents=True)
    for part in range(3):
        (folder / "chats" / f"part-{part}.jsonl").write_text("\n".join(lines[part::3]) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, alphabet = ["<|start|>", "<|end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(lines[:500], trainer)
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))


def penstock(folder: Path, *words: str) -> None:
    """The command, as one would type it in that folder."""
    print(f"\n$ penstock {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "penstock", *words], cwd=folder, check=True)


# A training-like loop: one process for each rank.  What a rank was handed is written down, with the state after it.


def open_loader(folder: Path, rank: int, world_size: int) -> ps.Loader:
    return ps.load(
        folder / "recipe.yaml",
        rank=rank,
        world_size=world_size,
        batch_size=12 // world_size,
        output="numpy",
    )


def train(folder: Path, run: str, rank: int, world_size: int) -> None:
    loader = open_loader(folder, rank, world_size)
    saved = folder / "state.json"
    if run != "alone" and saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    with (folder / f"{run}-{rank}").open("a") as handed:
        for batch in loader:
            rows = [[step_place(where) for where in row] for row in batch.provenance]
            handed.write(json.dumps([batch.step, batch.places.tolist(), rows]) + "\n")
            handed.flush()
            while run == "before" and any(
                num_steps(folder, run, other) <= batch.step for other in range(world_size)
            ):
                time.sleep(0.002)  # as where gradients are summed up over all ranks
            if rank == 0 and run == "before":  # the state is the same on every rank
                (folder / "state.new").write_text(json.dumps(loader.state_dict()))
                (folder / "state.new").rename(saved)


def num_steps(folder: Path, run: str, rank: int) -> int:
    path = folder / f"{run}-{rank}"
    return path.read_text().count("\n") if path.exists() else 0


def step_place(where: Any) -> str:
    home = where[0] if isinstance(where, tuple) else where
    return f"{Path(home.file).name}:{home.line}"


def ranks(folder: Path, run: str, world_size: int) -> list[subprocess.Popen[bytes]]:
    words = [sys.executable, __file__, "rank", str(folder), run]
    return [subprocess.Popen([*words, str(rank), str(world_size)]) for rank in range(world_size)]


def handed_over(folder: Path, run: str, world_size: int, steps: range) -> list[Any]:
    """All rows of these steps in the global order: a batch says which row of the step each of its rows is."""
    found: dict[tuple[int, int], Any] = {}
    for rank in range(world_size):
        for line in (folder / f"{run}-{rank}").read_text().splitlines():
            step, places, rows = json.loads(line)
            found |= {(step, place): row for place, row in zip(places, rows, strict=True)}
    return [found[place] for place in sorted(found) if place[0] in steps]


def check(holds: bool, promise: str) -> None:
    if not holds:
        sys.exit(f"BROKEN: {promise}")
    print(f"  holds: {promise}")


def killed_and_resumed(folder: Path) -> None:
    print("\nOne epoch in one go, on one rank.")
    for process in ranks(folder, "alone", 1):
        check(process.wait() == 0, "it ends well")
    everything = range(10**9)
    epoch = handed_over(folder, "alone", 1, everything)

    print("The same on 2 ranks, each a process; both are killed (kill -9) half-way.")
    total = len(open_loader(folder, 0, 2))
    running = ranks(folder, "before", 2)
    path = folder / "state.json"
    while not path.exists() or json.loads(path.read_text())["step"] < total // 2:
        time.sleep(0.005)
    for process in running:
        process.send_signal(signal.SIGKILL)
        process.wait()
    state = json.loads(path.read_text())
    print(
        f"  the state that was saved last: {json.dumps(state)[:100]}… ({len(json.dumps(state))} bytes)"
    )
    print("Resumed from it on 3 ranks.")
    for process in ranks(folder, "after", 3):
        check(process.wait() == 0, "a rank ends well")
    first = handed_over(folder, "before", 2, range(state["step"]))
    second = handed_over(folder, "after", 3, everything)
    joined = [row for row in first + second if row]
    check(
        0 < len(first) < len(epoch),
        f"the kill was in the middle: {len(first)} rows before it, {len(second)} after it",
    )
    check(
        joined == [row for row in epoch if row],
        f"together they are the epoch, row by row: none of {len(joined)} lost or repeated",
    )


def demo(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.environ["PENSTOCK_CACHE"] = str(folder / "cache")
    print(
        f"Made up: {NUM_CHATS:,} conversations in three files, of which a few are broken, and a tokenizer."
    )
    invent(folder)
    penstock(folder, "init", "chats", "--tokenizer", "tokenizer", "-o", "recipe.yaml")
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "\non_bad: skip  # one line is cut off in the middle\n")
    penstock(folder, "prepare", "recipe.yaml")
    penstock(folder, "show", "recipe.yaml", "--record", "17")
    penstock(folder, "plan", "recipe.yaml", "--world-size", "2", "--batch-size", "6")
    killed_and_resumed(folder)
    penstock(folder, "report", "recipe.yaml", "-o", "report.html")
    print(
        f"\nAll of it holds.  Look at {folder / 'report.html'}, or go on with the recipe next to it."
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        place, run, rank, world_size = sys.argv[2:]
        train(Path(place), run, int(rank), int(world_size))
    else:
        demo(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output").resolve())
