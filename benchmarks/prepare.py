"""How fast do files become a store, and what does it cost?  Beside `datasets` and litdata: same rows, same tokenizer, cold.

python benchmarks/prepare.py [--tiny] [TOKENIZER]     a folder with tokenizer.json; without one a 32,000-token BPE is trained here

Every run is a process of its own with empty caches, and its clock starts with the process: imports and the tokenizer are in it, as a user
waits for them.  Text is the standard library's source, in random pieces; conversations are made of its lines.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from data import CHAT, given_tokenizers, library_lines, train_tokenizer
from stand import SIZE, Benchmark, Report, Timing, fresh, memory_watched, since_start, sized

TEXT_BYTES = sized(57_000_000, 20_000)
CHAT_BYTES = sized(20_000_000, 20_000)  # some 12,000 conversations
MANY_CHAT_BYTES = sized(200_000_000, 40_000)
UNEVEN_BYTES = sized(120_000_000, 20_000)
SHORT_ROWS = sized((1_000, 10_000, 100_000), (20, 100))
NUM_HIT = sized(1_000_000, 200)
REPEAT = sized(3, 1)
PROCESSES = sized(2, 1)  # a tiny run starts none
LONG = sized(1000, 10)  # times the length of the others, for one row in a thousand

BENCHMARK = Benchmark(
    title="Files to a store",
    question="How fast do files become tokens on disk, how do two processes help, and what do they need of memory and disk?",
    measures=("sources", "templates", "store", "engines", "api", "cache", "places"),
    peers={
        "datasets": "`load_dataset('json')`, then `.map(tokenizer, batched=True)` for text, `.map(apply_chat_template)` one conversation a "
        "call for chats, without masks; as many processes as ours, tokens in its cache",
        "litdata": "`optimize` with a function that reads its part of the file and encodes a thousand texts at once; a flat stream of "
        "tokens (`TokensLoader`), chunks of 64 MB, as many workers as ours",
    },
    packages=("transformers", "tokenizers", "fastokens", "pyarrow"),
    notes=(
        f"Every run is a process with empty caches; medians of {REPEAT} turns; seconds from the start of the process to a finished "
        "store, with imports and the loading of the tokenizer",
        "The uneven set and the text eight times ask how work is shared: there packages and tokenizer are loaded before the clock "
        "starts. Ideal: half the time of one process",
    ),
)


# In the measured process


def on_disk(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


@contextmanager
def timed(found: dict[str, Any], *, from_start: bool = True) -> Iterator[None]:
    """Note seconds by the clock and of CPU, of this process and of its children that have ended; and memory.

    from_start: since this process was started, not since this block began.
    """
    begin, cpu = time.perf_counter(), sum(os.times()[:4])
    if from_start:
        begin -= since_start()
        cpu = 0 if SIZE != "tiny" else cpu  # a tiny run measures in its own process
    with memory_watched(found, every=0.1):
        yield
        found |= {"seconds": time.perf_counter() - begin, "cpu": sum(os.times()[:4]) - cpu}


def options_of(tokenizer: str, template: str) -> dict[str, Any]:
    """A chat template for a tokenizer that has none."""
    is_chat = template == "messages"
    if not is_chat or template_of(Path(tokenizer)) != CHAT:
        return {}
    return {"chat_template": CHAT, "on_missing_tokens": "warn"}


def run_ours(data: str, tokenizer: str, cache: str, template: str, num_proc: int) -> dict[str, Any]:
    """What a user's script does."""
    options = options_of(tokenizer, template)
    found: dict[str, Any] = {}
    with timed(found):
        import penstock as ps

        store = ps.prepare(
            data,
            tokenizer=tokenizer,
            template=template,
            cache_dir=cache,
            num_proc=num_proc,
            progress="none",
            **options,
        )
    return {**found, **measured(store, cache)}


def run_loaded(
    data: str, tokenizer: str, cache: str, template: str, num_proc: int
) -> dict[str, Any]:
    """The same when packages and tokenizer are loaded."""
    import penstock as ps
    from penstock.templates import open_tokenizer

    opened = open_tokenizer(tokenizer)
    opened.encode(["warm"])
    prepare = ps.prepare  # which imports what it needs
    options = {"template": template, "num_proc": num_proc, "progress": "none"}
    found: dict[str, Any] = {}
    with timed(found, from_start=False):
        store = prepare(data, tokenizer=opened, cache_dir=cache, **options)
    return {**found, **measured(store, cache)}


def measured(store: Any, cache: str) -> dict[str, Any]:
    """Counts of a store, and bytes of its cache."""
    counts = {"rows": len(store), "tokens": store.counts.tokens, "num_shards": store.num_shards}
    shards = sum(on_disk(f"{cache}/{folder}") for folder in ("shards", "stores"))
    return {**counts, "disk": on_disk(cache), "of_it_tokens": shards}


def run_datasets(
    data: str, tokenizer: str, cache: str, template: str, num_proc: int
) -> dict[str, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Else its processes fight for the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if num_proc == 1 else "false"
    found: dict[str, Any] = {}
    with timed(found):
        rows = map_rows(data, tokenizer, cache, template, num_proc)
    tokens = sum(len(chunk.flatten()) for chunk in rows.data.column("input_ids").chunks)
    made = sum(Path(file["filename"]).stat().st_size for file in rows.cache_files)
    return {
        **found,
        "rows": len(rows),
        "tokens": tokens,
        "disk": on_disk(cache),
        "of_it_tokens": made,
    }


def map_rows(data: str, tokenizer: str, cache: str, template: str, num_proc: int) -> Any:
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{tokenizer}/tokenizer.json")
    theirs.chat_template = template_of(Path(tokenizer))

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": theirs(batch["text"])["input_ids"]}

    def render(row: dict[str, Any]) -> dict[str, Any]:
        ids = theirs.apply_chat_template(row["messages"], tokenize=True, return_dict=False)
        return {"input_ids": ids}

    rows = datasets.load_dataset("json", data_files=data, split="train", cache_dir=cache)
    options: dict[str, Any] = {
        "num_proc": None if num_proc == 1 else num_proc,
        "remove_columns": rows.column_names,
    }
    if template == "text":
        return rows.map(encode, batched=True, **options)
    return rows.map(render, **options)


def encode_part(part: tuple[int, int], data: str, tokenizer: str) -> Iterator[Any]:
    """For litdata: the texts of the lines that begin in a range of bytes, as tokens."""
    import torch
    from tokenizers import Tokenizer

    opened = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    texts: list[str] = []
    with Path(data).open("rb") as file:
        file.seek(max(part[0] - 1, 0))
        if part[0]:
            file.readline()
        while file.tell() < part[1] and (line := file.readline()):
            texts.append(json.loads(line)["text"])
    for first in range(0, len(texts), 1000):
        for each in opened.encode_batch_fast(texts[first : first + 1000]):
            yield torch.tensor(each.ids, dtype=torch.int32)


def run_litdata(
    data: str, tokenizer: str, cache: str, template: str, num_proc: int
) -> dict[str, Any]:
    from functools import partial

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    size = Path(data).stat().st_size
    step = -(-size // (4 * num_proc))
    parts = [(first, min(first + step, size)) for first in range(0, size, step)]
    found: dict[str, Any] = {}
    with timed(found):
        from litdata import TokensLoader, optimize

        optimize(
            fn=partial(encode_part, data=data, tokenizer=tokenizer),
            inputs=parts,
            output_dir=f"{cache}/made",
            chunk_bytes="64MB",
            item_loader=TokensLoader(),
            num_workers=num_proc,
            verbose=False,
        )
    index = json.loads(Path(f"{cache}/made/index.json").read_text())
    tokens = sum(chunk["dim"] for chunk in index["chunks"])
    disk = on_disk(cache)
    return {**found, "tokens": tokens, "disk": disk, "of_it_tokens": disk}


def run_hit(data: str, tokenizer: str, cache: str, template: str, num_proc: int) -> dict[str, Any]:
    """What a user waits for who prepares the same again; and the second time in the same process."""
    import penstock as ps

    options: dict[str, Any] = {"template": template, "num_proc": num_proc, "progress": "none"}
    ps.prepare(data, tokenizer=tokenizer, cache_dir=cache, **options)
    first, begin = since_start(), time.perf_counter()
    store = ps.prepare(data, tokenizer=tokenizer, cache_dir=cache, **options)
    return {"seconds": first, "again": time.perf_counter() - begin, "rows": len(store)}


def template_of(tokenizer: Path) -> str:
    if (tokenizer / "chat_template.jinja").exists():
        return (tokenizer / "chat_template.jinja").read_text()
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    return str(config.get("chat_template") or CHAT)


# The data


def write_data(lines: list[str], folder: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)

    def some(count: int) -> str:
        start = int(rng.integers(0, len(lines) - count))
        return "\n".join(lines[start : start + count])

    def text() -> dict[str, Any]:
        return {"text": some(int(rng.integers(5, 40)))}

    def chat() -> dict[str, Any]:
        starts = rng.integers(0, len(lines) - 2, 18).tolist()
        texts = ["\n".join(lines[start : start + 2]) for start in starts]
        roles = ("user", "assistant") * 9
        return {
            "messages": [
                {"role": role, "content": text} for role, text in zip(roles, texts, strict=True)
            ]
        }

    def uneven() -> dict[str, Any]:
        return {"text": some(2 * LONG if rng.random() < 0.001 else 2)}

    def write(name: str, make: Any, *, num_bytes: int) -> Path:
        path = folder / f"{name}.jsonl"
        if path.exists() and path.stat().st_size >= num_bytes:
            return path
        with path.open("w", encoding="utf-8") as file:
            while file.tell() < num_bytes:
                file.writelines(json.dumps(make()) + "\n" for _ in range(sized(500, 5)))
        return path

    def short(num: int) -> Path:
        path = folder / f"short-{num}.jsonl"
        if not path.exists():  # written again it would be another file, and nothing a hit
            rows = (
                json.dumps({"text": lines[row % len(lines)][:40], "row": row}) + "\n"
                for row in range(num)
            )
            path.write_text("".join(rows))
        return path

    paths = {
        "text": write("text", text, num_bytes=TEXT_BYTES),
        "chat": write("chat", chat, num_bytes=CHAT_BYTES),
        "many chats": write("many-chats", chat, num_bytes=MANY_CHAT_BYTES),
        "uneven": write("uneven", uneven, num_bytes=UNEVEN_BYTES),
        "text eight times": folder / "eight.jsonl",
        **{f"short {num}": short(num) for num in SHORT_ROWS},
        "hit": short(NUM_HIT),
    }
    # Shards end elsewhere in each copy, so none is found again.
    paths["text eight times"].write_bytes(paths["text"].read_bytes() * 8)
    return paths


# The questions

# name → (what runs, its data, its template, its processes)
RUNS: dict[str, tuple[Any, str, str, int]] = {
    "text, 2 processes": (run_ours, "text", "text", PROCESSES),
    "text, 1 process": (run_ours, "text", "text", 1),
    "datasets, text, 2 processes": (run_datasets, "text", "text", PROCESSES),
    "litdata, text, 2 processes": (run_litdata, "text", "text", PROCESSES),
    "chat, 2 processes": (run_ours, "chat", "messages", PROCESSES),
    "chat, 1 process": (run_ours, "chat", "messages", 1),
    "datasets, chat, 2 processes": (run_datasets, "chat", "messages", PROCESSES),
    "many chats, 2 processes": (run_ours, "many chats", "messages", PROCESSES),
    "datasets, many chats, 2 processes": (run_datasets, "many chats", "messages", PROCESSES),
    **{
        name: run
        for num in SHORT_ROWS
        for name, run in {
            f"short {num}, 2 processes": (run_ours, f"short {num}", "text", PROCESSES),
            f"short {num}, 1 process": (run_ours, f"short {num}", "text", 1),
            # With two it is slower at all of these sizes.
            f"datasets, short {num}, 1 process": (run_datasets, f"short {num}", "text", 1),
        }.items()
    },
    "uneven, 1 process": (run_loaded, "uneven", "text", 1),
    "uneven, 2 processes": (run_loaded, "uneven", "text", PROCESSES),
    "text eight times, 1 process": (run_loaded, "text eight times", "text", 1),
    "text eight times, 2 processes": (run_loaded, "text eight times", "text", PROCESSES),
}


def measure(
    report: Report, data: dict[str, Path], tokenizer: Path, scratch: Path
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for turn in range(REPEAT):
        for name, (kind, which, template, num_proc) in RUNS.items():
            peer = name.partition(",")[0]
            if peer in BENCHMARK.peers and not report.has(peer):
                continue
            cache = scratch / f"cache-{turn}"
            try:
                one = fresh(kind, data[which], tokenizer, cache, template, num_proc).value
            except RuntimeError as error:
                if peer not in BENCHMARK.peers:
                    raise
                report.leave_out(peer, error)
                found.pop(name, None)
                continue
            found.setdefault(name, []).append(one)
            print(f"  {name}: {one['seconds']:.2f} s", file=sys.stderr, flush=True)
            shutil.rmtree(cache)
    kept = scratch / "cache-hit"
    fresh(run_ours, data["hit"], tokenizer, kept, "text", PROCESSES)
    found["a million, found"] = [
        fresh(run_hit, data["hit"], tokenizer, kept, "text", PROCESSES).value for _ in range(REPEAT)
    ]
    for ours, theirs, key in (
        ("text, 2 processes", "datasets, text, 2 processes", "rows"),
        ("chat, 2 processes", "datasets, chat, 2 processes", "tokens"),
    ):
        if theirs in found:
            a, b = found[ours][0][key], found[theirs][0][key]
            assert a == b, f"{ours}: {a} {key} here, {b} there"
    return found


def compare(report: Report, found: dict[str, list[dict[str, Any]]]) -> None:
    def timing(name: str) -> Timing:
        runs = found[name]
        return Timing(1, [run["seconds"] for run in runs], [run.get("cpu", 0) for run in runs])

    def against(key: str, what: str, other: str, mine: str, **more: Any) -> None:
        if other in found:
            peer = other.partition(",")[0]
            report.ratio(key, what, timing(other), timing(mine), peer=peer, **more)

    def over(key: str, what: str, one: str, two: str, **more: Any) -> None:
        """How many times faster two processes are."""
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(found[one], found[two], strict=True)]
        report.number(key, what, ratios, "×", **more)

    text, chat = "text, 2 processes", "chat, 2 processes"
    size = f"{TEXT_BYTES / 1e6:.0f} MB"
    what = f"text, {size}, against datasets, 2 processes each"
    against("text", what, f"datasets, {text}", text, at_least=9)
    what = f"text, {size}, against litdata, 2 processes each"
    against("text_litdata", what, f"litdata, {text}", text, at_least=1)
    what = "with masks, against `map(apply_chat_template)` without, 2 processes each"
    chats = f"{found[chat][0]['rows']:,} chats, {CHAT_BYTES / 1e6:.0f} MB"
    against("chat", f"{chats}, {what}", f"datasets, {chat}", chat, at_least=4)
    many = "many chats, 2 processes"
    chats = f"{found[many][0]['rows']:,} chats, {MANY_CHAT_BYTES / 1e6:.0f} MB"
    against("chat_large", f"{chats}, {what}", f"datasets, {many}", many, at_least=10)
    for num in SHORT_ROWS:
        name = f"short {num}"
        what = f"{num:,} short texts, against datasets with one process, its faster way"
        other, mine = f"datasets, {name}, 1 process", f"{name}, 2 processes"
        against(f"short_{num}", what, other, mine, at_least=1)
    for key, name in (("two", "text"), ("two_chat", "chat")):
        what = f"{name}: two processes over one"
        over(key, what, f"{name}, 1 process", f"{name}, 2 processes", at_least=1)
    for num in SHORT_ROWS:
        what = f"{num:,} short texts: two processes over one"
        one, two = f"short {num}, 1 process", f"short {num}, 2 processes"
        is_one_shard = found[two][0]["num_shards"] == 1
        note = "one shard, which one process makes in both" if is_one_shard else ""
        least = 0.95 if is_one_shard else 1
        over(f"two_short_{num}", what, one, two, at_least=least, note=note)
    what = f"text, {8 * TEXT_BYTES / 1e6:.0f} MB, all loaded: two processes over one"
    one, two = "text eight times, 1 process", "text eight times, 2 processes"
    over("two_large", what, one, two, at_least=1.7)
    wasted = [
        2 * b["seconds"] / a["seconds"]
        for a, b in zip(found["uneven, 1 process"], found["uneven, 2 processes"], strict=True)
    ]
    report.number(
        "uneven",
        "one row in 1,000 is 1,000 × longer: wall time over ideal",
        wasted,
        "",
        at_most=1.3,
    )
    hits = found["a million, found"]
    what = f"a finished store of {hits[0]['rows']:,} samples, found again, from process start"
    report.number("hit", what, [run["seconds"] for run in hits], "s", at_most=0.25)
    what = "once more in the same process"
    report.number("hit_again", what, [1000 * run["again"] for run in hits], "ms")


def cost(report: Report, found: dict[str, list[dict[str, Any]]]) -> None:
    """Bytes on disk and peak memory, in one table."""
    sides = {
        name: found[f"{prefix}text, 2 processes"]
        for name, prefix in (("penstock", ""), ("datasets", "datasets, "), ("litdata", "litdata, "))
        if f"{prefix}text, 2 processes" in found
    }
    rows = []
    for name, runs in sides.items():
        tokens = runs[0]["tokens"]
        memory = [run["above"] for run in runs]
        for key, what, unit, values in (
            (
                "disk",
                "bytes on disk per token, with caches",
                "bytes",
                [run["disk"] / tokens for run in runs],
            ),
            ("memory", "peak memory above the start, all processes together", "MiB", memory),
        ):
            question = f"{name}: {what}"
            report.number(
                f"{key}_{name}", question, values, unit, peer="" if name == "penstock" else name
            )
        rows.append(
            [
                name,
                f"{tokens:,}",
                f"{median(run['disk'] for run in runs) / 1e6:,.1f}",
                f"{median(run['of_it_tokens'] for run in runs) / 1e6:,.1f}",
                f"{median(run['disk'] for run in runs) / tokens:.2f}",
                f"{median(memory):,.0f}",
                f"{median(run['child'] for run in runs):,.0f}",
            ]
        )
    header = [
        "who",
        "tokens",
        "MB on disk",
        "of it tokens",
        "bytes per token",
        "MiB, all processes",
        "MiB, a worker",
    ]
    report.table(
        f"Cost: {TEXT_BYTES / 1e6:.0f} MB of text in {PROCESSES} processes",
        header,
        rows,
        "On disk: everything that is written, indices and copies of the text too. datasets keeps an Arrow copy of "
        "the text beside the tokens. "
        "litdata keeps 32-bit tokens without borders of texts. Ours keeps ids of 16 bits where the vocabulary "
        "allows it, borders and masks.",
        "",
        "Memory: anonymous memory, most of all processes together above what the process held at first; sampled ten times a second.",
    )


def main(report: Report) -> None:
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        lines = library_lines()
        given = given_tokenizers()
        tokenizer = given[0] if given else train_tokenizer(lines[::5], scratch / "tokenizer")
        report.note(f"Tokenizer: {given[0].name if given else 'of 32,000 ids, trained here'}")
        data = write_data(lines, scratch)
        sizes = ", ".join(
            f"{name} {path.stat().st_size / 1e6:.0f} MB" for name, path in data.items()
        )
        report.note(f"Data: {sizes}")
        found = measure(report, data, tokenizer, scratch)
        compare(report, found)
        cost(report, found)
        rows = []
        for name, runs in found.items():
            seconds = [run["seconds"] for run in runs]
            spread = f"{median(seconds):.3f} ({min(seconds):.3f}–{max(seconds):.3f})"
            cpu = f"{median(run['cpu'] for run in runs):.2f}" if "cpu" in runs[0] else ""
            counts = (
                f"{runs[0][key]:,}" if key in runs[0] else ""
                for key in ("rows", "tokens", "num_shards")
            )
            memory = f"{median(run['above'] for run in runs):.0f}" if "above" in runs[0] else ""
            rows.append([name, spread, cpu, *counts, memory])
        header = ["run", "seconds", "CPU seconds", "rows", "tokens", "shards", "MiB above start"]
        report.table("Every run", header, rows)


if __name__ == "__main__":
    BENCHMARK.run(main)
