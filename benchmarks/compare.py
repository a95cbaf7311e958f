"""Is one commit slower than another?  The same work by both, in turns: a ratio of CPU time for each piece of work.

python benchmarks/compare.py OLD [NEW] [--turns N] [--only WORK …]
python benchmarks/compare.py --tiny OLD [NEW]                          seconds: whether it works

OLD and NEW are commits, or folders that hold src/penstock, such as "." for the working tree; NEW is HEAD if it is left out.

Both commits run in this environment, on the same data, through public calls that both have.  Every run is a process of its own.  A
ratio above one means that NEW needs more CPU time (all processes together); the least of the turns counts, as neighbours on a machine
only ever add.  Both must report the same result, such as a number of tokens; one that differs is named.  Exit code 1: NEW is more than
a tenth slower somewhere, fails, or reports another result.  Not a benchmark itself: it writes no page.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from data import library_lines, train_tokenizer
from stand import ROOT, SIZE, run_program, sized, table

TURNS = sized(5, 1)
SLOWER = 1.1  # from this ratio on, a piece of work is called slower
SHORT_ROWS = sized(1_000_000, 200)
TEXT_BYTES = sized(20_000_000, 20_000)
CHATS = sized(3_000, 20)
SAMPLES = sized(400_000, 300)
STEPS = sized(1_500, 5)
READS = sized(50_000, 50)
CALLS = sized(1_000, 5)

CHAT_WITH_TOOLS = (
    "{%- if tools %}{{- '<|im_start|>system\n# Tools\n' }}"
    "{%- for tool in tools %}{{- tool | tojson }}{{- '\n' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content %}{{- message.content }}{%- endif %}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '\n<tool_call>\n' + call.function.name + ' ' }}{{- call.function.arguments | tojson }}{{- '\n</tool_call>' }}"
    "{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


# The work, in a process of its own.  `folder` holds the data; `cache` is empty, and removed afterwards.

Result = dict[str, Any]


@contextmanager
def section(result: Result) -> Iterator[None]:
    """Only this part of the process counts."""
    wall = time.perf_counter()
    cpu = time.process_time()
    yield
    result["cpu"] = time.process_time() - cpu
    result["wall"] = time.perf_counter() - wall


def prepared(folder: Path, cache: Path, data: str, template: str, **options: Any) -> Any:
    import penstock as ps

    settings = {"template": template, "progress": "none", "cache_dir": str(cache), **options}
    return ps.prepare(str(folder / f"{data}.jsonl"), **settings)


def with_tokenizer(folder: Path) -> dict[str, Any]:
    return {"tokenizer": str(folder / "tokenizer")}


def samples(folder: Path) -> Any:
    """The finished store of many samples."""
    import penstock as ps

    cache = str(folder / "finished")
    data = str(folder / "samples.jsonl")
    return ps.prepare(
        data, template="pretokenized", vocab_size=50_000, progress="none", cache_dir=cache
    )


def packed(folder: Path, **options: Any) -> Any:
    import penstock as ps

    settings = {"batch_size": 8, "max_length": 2048, "output": "numpy", "rank": 0, "world_size": 1}
    return ps.Loader(samples(folder), **{**settings, **options})


def import_package(folder: Path, cache: Path) -> Result:
    import penstock

    return {"result": len(penstock.__all__) > 0}


def open_cold(folder: Path, cache: Path) -> Result:
    import penstock as ps

    return {"result": len(ps.open(str(folder / "short.jsonl"), cache_dir=str(cache)))}


def open_warm(folder: Path, cache: Path) -> Result:
    import penstock as ps

    return {"result": len(ps.open(str(folder / "short.jsonl"), cache_dir=str(folder / "finished")))}


def read_at_random(folder: Path, cache: Path) -> Result:
    import penstock as ps

    source = ps.open(str(folder / "short.jsonl"), cache_dir=str(folder / "finished"))
    rows = np.random.default_rng(0).integers(0, len(source), READS).tolist()
    result: Result = {}
    with section(result):
        result["result"] = sum(len(source[row]["text"]) for row in rows)
    return result


def read_in_order(folder: Path, cache: Path) -> Result:
    import penstock as ps

    source = ps.open(str(folder / "short.jsonl"), cache_dir=str(folder / "finished"))
    result: Result = {}
    with section(result):
        result["result"] = sum(len(record["text"]) for record in source)
    return result


def prepare_one_row(folder: Path, cache: Path) -> Result:
    store = prepared(folder, cache, "row", "messages", **with_tokenizer(folder))
    return {"result": store.counts.tokens}


def prepare_again(folder: Path, cache: Path) -> Result:
    finished = folder / "finished"
    store = prepared(folder, finished, "row", "messages", **with_tokenizer(folder))
    return {"result": store.counts.tokens}


def prepare_text(folder: Path, cache: Path) -> Result:
    store = prepared(folder, cache, "text", "text", num_proc=1, **with_tokenizer(folder))
    return {"result": store.counts.tokens}


def prepare_text_by_two(folder: Path, cache: Path) -> Result:
    store = prepared(folder, cache, "text", "text", num_proc=2, **with_tokenizer(folder))
    return {"result": store.counts.tokens}


def prepare_short_rows(folder: Path, cache: Path) -> Result:
    store = prepared(folder, cache, "short", "text", num_proc=1, **with_tokenizer(folder))
    return {"result": store.counts.tokens}


def prepare_chats(folder: Path, cache: Path) -> Result:
    store = prepared(folder, cache, "chats", "messages", num_proc=1, **with_tokenizer(folder))
    return {"result": [store.counts.tokens, store.counts.trained]}


def prepare_tool_chats(folder: Path, cache: Path) -> Result:
    store = prepared(folder, cache, "tools", "messages", num_proc=1, **with_tokenizer(folder))
    return {"result": [store.counts.tokens, store.counts.trained]}


def first_batch(folder: Path, cache: Path) -> Result:
    return {"result": next(iter(packed(folder)))["input_ids"].shape[0]}


def steps_of_an_epoch(folder: Path, cache: Path) -> Result:
    """The table of an epoch's rows: it packs every block."""
    loader = packed(folder, batch_size=7)  # another size than that of a remembered table
    result: Result = {}
    with section(result):
        result["result"] = len(loader) > 0
    return result


def _read_batches(loader: Any, num_steps: int) -> Result:
    batches = iter(loader)
    next(batches)
    result: Result = {}
    with section(result):
        result["result"] = sum(1 for _ in islice(batches, num_steps))
    return result


def batches_of_numpy(folder: Path, cache: Path) -> Result:
    return _read_batches(packed(folder, epochs=None), STEPS)


def batches_of_torch(folder: Path, cache: Path) -> Result:
    return _read_batches(packed(folder, epochs=None, output="torch"), STEPS)


def batches_not_packed(folder: Path, cache: Path) -> Result:
    return _read_batches(packed(folder, epochs=None, packing="none"), STEPS)


def batches_of_records(folder: Path, cache: Path) -> Result:
    import penstock as ps

    source = ps.open(str(folder / "short.jsonl"), cache_dir=str(folder / "finished"))
    loader = ps.Loader(source, batch_size=64, rank=0, world_size=1, collate=list)
    return _read_batches(loader, STEPS)


def resume(folder: Path, cache: Path) -> Result:
    """At 90 % of an epoch: load a state, and deliver the next batch."""
    begun = packed(folder)
    begun.seek(int(0.9 * len(begun)))
    state = begun.state_dict()
    loader = packed(folder)
    result: Result = {}
    with section(result):
        loader.load_state_dict(state)
        result["result"] = next(iter(loader))["input_ids"].shape[0]
    return result


def save_state(folder: Path, cache: Path) -> Result:
    loader = packed(folder)
    next(iter(loader))
    result: Result = {}
    with section(result):
        for _ in range(CALLS):
            loader.state_dict()
    result["result"] = True
    return result


def take_prompts(folder: Path, cache: Path) -> Result:
    import penstock as ps

    source = ps.open(str(folder / "short.jsonl"), cache_dir=str(folder / "finished"))
    prompts = ps.Prompts(source, repeats=1, seed=0)
    result: Result = {}
    taken = 0
    with section(result):
        for _ in range(CALLS // 5):
            some = prompts.take(64)
            taken += len(some)
            prompts.done([prompt.ordinal for prompt in some])
    result["result"] = taken
    return result


def plan_command(folder: Path, cache: Path) -> Result:
    """`penstock plan`, as a process."""
    command = [sys.executable, "-m", "penstock", "plan", "recipe.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return {"result": len(done.stdout) > 0}


WORKS: dict[str, Callable[[Path, Path], Result]] = {
    work.__name__: work
    for work in (
        import_package,
        open_cold,
        open_warm,
        read_at_random,
        read_in_order,
        prepare_one_row,
        prepare_again,
        prepare_short_rows,
        prepare_text,
        prepare_text_by_two,
        prepare_chats,
        prepare_tool_chats,
        first_batch,
        steps_of_an_epoch,
        batches_of_numpy,
        batches_of_torch,
        batches_not_packed,
        batches_of_records,
        resume,
        save_state,
        take_prompts,
        plan_command,
    )
}


# The data, made once, before any clock starts


def write_data(folder: Path) -> None:
    chance = np.random.default_rng(0)
    lines = library_lines()
    train_tokenizer(lines[::10], folder / "tokenizer", chat=CHAT_WITH_TOOLS)

    def some(count: int) -> str:
        start = int(chance.integers(0, len(lines) - count))
        return "\n".join(lines[start : start + count])

    def chat() -> dict[str, Any]:
        roles = ("user", "assistant") * 3
        return {"messages": [{"role": role, "content": some(3)} for role in roles]}

    def tool_chat() -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "look_up", "arguments": {"word": some(1)}}}
        parameters = {"type": "object", "properties": {"word": {"type": "string"}}}
        tool = {
            "type": "function",
            "function": {"name": "look_up", "description": some(1), "parameters": parameters},
        }
        messages = [
            {"role": "user", "content": some(2)},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": some(2)},
            {"role": "assistant", "content": some(2)},
        ]
        return {"messages": messages, "tools": [tool]}

    def write(name: str, rows: Iterator[dict[str, Any]]) -> None:
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def texts() -> Iterator[dict[str, Any]]:
        num_bytes = 0
        while num_bytes < TEXT_BYTES:
            text = some(int(chance.integers(5, 40)))
            num_bytes += len(text)
            yield {"text": text}

    def tokens() -> Iterator[dict[str, Any]]:
        for size in chance.lognormal(5, 0.8, SAMPLES).astype(int).clip(8, 2000).tolist():
            yield {"input_ids": chance.integers(0, 50_000, size).tolist()}

    write("short", ({"text": lines[row % len(lines)][:40]} for row in range(SHORT_ROWS)))
    write("text", texts())
    write("chats", (chat() for _ in range(CHATS)))
    write("tools", (tool_chat() for _ in range(CHATS)))
    write("row", (chat() for _ in range(1)))
    write("samples", tokens())
    recipe = "data: samples.jsonl\ntemplate: pretokenized\nvocab_size: 50000\ncache_dir: finished\n"
    (folder / "recipe.yaml").write_text(f"{recipe}max_length: 2048\nbatch_size: 8\n")


# The comparison


@dataclass(slots=True)
class Turns:
    """What the runs of one piece of work by one commit took."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    result: Any = None
    error: str = ""


def check_out(commit: str, folder: Path) -> Path:
    """The sources of a commit, or of a folder, as a folder for PYTHONPATH."""
    if Path(commit, "src", "penstock").is_dir():
        return Path(commit, "src").resolve()
    command = ["git", "-C", str(ROOT.parent), "archive", commit, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{commit}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def run_once(work: str, sources: Path, folder: Path, turns: Turns) -> None:
    env = {"PYTHONPATH": str(sources), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, __file__, "--work", work, str(folder)]
    if SIZE == "tiny":
        words.append("--tiny")
    try:
        done = run_program(words, env=env)
    except RuntimeError as error:
        turns.error = str(error)
        return
    found = json.loads(done.value.strip().splitlines()[-1])
    turns.cpu.append(found.get("cpu", done.cpu))
    turns.wall.append(found.get("wall", done.seconds))
    turns.result = found["result"]


def compare(works: list[str], sources: dict[str, Path], folders: dict[str, Path]) -> bool:
    """Run everything in turns, and print the table; return whether the new commit is as good."""
    rows = []
    remarks = []
    is_good = True
    for work in works:
        sides = {side: Turns() for side in sources}
        for turn in range(TURNS if SIZE == "tiny" else 1 + TURNS):
            for side, turns in sides.items():
                if turn == 1:  # the turn before made bytecode, indices and stores
                    turns.cpu.clear()
                    turns.wall.clear()
                if not turns.error:
                    run_once(work, sources[side], folders[side], turns)
        old, new = sides["old"], sides["new"]
        print(f"  {work}", file=sys.stderr, flush=True)
        if old.error or new.error:
            is_good &= not new.error
            for side, turns in sides.items():
                if turns.error:
                    remarks.append(f"{work}, {side}: {turns.error[-600:]}")
            verdict = "FAILS" if new.error else "OLD FAILS"
            rows.append([work.replace("_", " "), "", "", "", "", verdict])
            continue
        ratio = min(new.cpu) / min(old.cpu)
        spread = sorted(b / a for a, b in zip(old.cpu, new.cpu, strict=True))
        is_slower = ratio > SLOWER and SIZE != "tiny"  # tiny work is as long as the noise
        verdict = "SLOWER" if is_slower else ""
        if new.result != old.result:
            verdict = "OTHER RESULT"
            remarks.append(f"{work}: {old.result} before, {new.result} now")
        is_good &= not verdict
        rows.append(
            [
                work.replace("_", " "),
                f"{min(old.cpu):.3f}",
                f"{min(new.cpu):.3f}",
                f"{ratio:.2f} ({spread[0]:.2f}–{spread[-1]:.2f})",
                f"{min(new.wall) / min(old.wall):.2f}",
                verdict,
            ]
        )
    header = ["work", "CPU s, old", "CPU s, new", "new / old (turns)", "by the clock", ""]
    print("\n".join([*table(header, rows), *remarks]))
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default="HEAD")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    global TURNS
    TURNS = asked.turns or TURNS
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as above:
        sources = {
            side: check_out(commit, Path(above) / side)
            for side, commit in (("old", asked.old), ("new", asked.new))
        }
        data = Path(above) / "data"
        data.mkdir()
        write_data(data)
        folders = {side: Path(above) / f"{side}-data" for side in sources}
        for (
            folder
        ) in folders.values():  # a finished cache for each; links keep the data in memory once
            folder.mkdir()
            for path in data.iterdir():
                (folder / path.name).symlink_to(path)
        is_good = compare(asked.only, sources, folders)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{asked.old} against {asked.new}: {time.perf_counter() - begin:.0f} s; load {load}")
    return int(not is_good)


def do_work(name: str, folder: Path) -> None:
    """In the process of one run."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        print(json.dumps(WORKS[name](folder, Path(cache))))


if __name__ == "__main__":
    if "--work" in sys.argv:
        do_work(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main())
