"""How fast do files become a store?  Beside `datasets.load_dataset` + `.map`, same rows, same tokenizer, cold.  Writes results/prepare.md.

    python benchmarks/prepare.py [TOKENIZER [ANOTHER]] [--keep FOLDER [--only WORD]]
                                                     TOKENIZER: a folder with tokenizer.json; without one a 32,000-token BPE is trained here
                                                     --keep: what was run before is not run again; --only: runs with this word in their name

Every run is a process of its own with empty caches (the script starts itself); packages and tokenizer are loaded first.  Text is the
standard library's source, in random pieces; conversations are made of its lines.  ANOTHER is only asked for its bytes per token.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent
TEXT_BYTES, CHAT_BYTES, UNEVEN_BYTES = 105_000_000, 16_000_000, 240_000_000
NUM_HIT = 1_000_000
LONG = 1000  # times the length of the others, for one row in a thousand
CHAT = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


# 1 Runs, each in a process of its own


def run_ours(data: str, tokenizer: str, cache: str, template: str, num_proc: int) -> dict[str, Any]:
    import penstock as ps
    from penstock.templates import open_tokenizer

    opened = open_tokenizer(tokenizer)
    opened.encode(["warm"])
    prepare = ps.prepare  # which imports what it needs; the peer has done that, too
    options = (
        {"chat_template": CHAT} if template == "messages" and not opened.chat_templates else {}
    )
    begin_rss, begin, begin_cpu = memory("VmRSS"), time.perf_counter(), cpu_seconds()
    store = prepare(
        data,
        tokenizer=opened,
        template=template,
        cache_dir=cache,
        num_proc=num_proc,
        progress="none",
        **options,
    )
    seconds, cpu = time.perf_counter() - begin, cpu_seconds() - begin_cpu
    shards = sum(
        path.stat().st_size
        for folder in ("shards", "stores")
        for path in Path(cache, folder).rglob("*.*")
    )
    return {
        "seconds": seconds,
        "cpu": cpu,
        "rows": len(store),
        "tokens": store.counts.tokens,
        "num_shards": store.num_shards,
        "above": memory("VmHWM") - begin_rss,
        "disk": shards,
    }


def run_peer(data: str, tokenizer: str, cache: str, template: str, num_proc: int) -> dict[str, Any]:
    os.environ["HF_HOME"] = os.environ["HF_DATASETS_CACHE"] = cache
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "true" if num_proc == 1 else "false"
    )  # else its processes fight for the cores
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{tokenizer}/tokenizer.json")
    theirs.chat_template = template_of(Path(tokenizer))
    theirs(["warm"])
    begin, begin_cpu = time.perf_counter(), cpu_seconds()
    rows = datasets.load_dataset("json", data_files=data, split="train", cache_dir=cache)
    if template == "text":
        rows = rows.map(
            lambda batch: {"input_ids": theirs(batch["text"])["input_ids"]},
            batched=True,
            num_proc=None if num_proc == 1 else num_proc,
            remove_columns=rows.column_names,
        )
    else:
        rows = rows.map(
            lambda row: {
                "input_ids": theirs.apply_chat_template(
                    row["messages"], tokenize=True, return_dict=False
                )
            },
            num_proc=None if num_proc == 1 else num_proc,
            remove_columns=rows.column_names,
        )
    seconds, cpu = time.perf_counter() - begin, cpu_seconds() - begin_cpu
    tokens = sum(len(chunk.flatten()) for chunk in rows.data.column("input_ids").chunks)
    return {"seconds": seconds, "cpu": cpu, "rows": len(rows), "tokens": tokens}


def run_hit(data: str, tokenizer: str, cache: str, template: str, num_proc: int) -> dict[str, Any]:
    """What a user waits for who prepares the same again; and the second time in the same process."""
    import penstock as ps
    from penstock.templates import open_tokenizer

    opened = open_tokenizer(tokenizer)
    prepare = ps.prepare
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        store = prepare(data, tokenizer=opened, template=template, cache_dir=cache, progress="none")
        seconds.append(time.perf_counter() - begin)
    return {
        "seconds": seconds[0],
        "again": seconds[1],
        "rows": len(store),
        "num_shards": store.num_shards,
    }


def template_of(tokenizer: Path) -> str:
    if (tokenizer / "chat_template.jinja").exists():
        return (tokenizer / "chat_template.jinja").read_text()
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    return config.get("chat_template") or CHAT


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def memory(field: str, pid: int | str = "self") -> float:
    """MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) / 1024


def fresh(
    kind: str, data: Path, tokenizer: Path, cache: Path, template: str, num_proc: int
) -> dict[str, Any]:
    """One run, and the most memory any of its children held."""
    words = [kind, str(data), str(tokenizer), str(cache), template, str(num_proc)]
    process = subprocess.Popen(
        [sys.executable, __file__, "run", *words], stdout=subprocess.PIPE, text=True
    )
    most, stop = [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            try:
                for child in (
                    Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                ):
                    most[0] = max(most[0], memory("VmHWM", child))
            except (OSError, StopIteration):  # it has just ended
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    text, _ = process.communicate()
    stop.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{words} failed")
    found = json.loads(text.splitlines()[-1])
    print(
        f"{kind} {template} {data.name} num_proc={num_proc}: {found}", file=sys.stderr, flush=True
    )
    return found | {"worker": most[0]}


# 2 Data


def library_lines() -> list[str]:
    import sysconfig

    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    files = [file for file in files if "site-packages" not in file.parts]
    return [
        line
        for file in files
        for line in file.read_text(errors="replace").splitlines()
        if len(line.strip()) > 20
    ]


def train_tokenizer(lines: list[str], folder: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines[::5], trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "chat_template": CHAT})
    )
    return folder


def write_data(lines: list[str], folder: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)

    def some(count: int) -> str:
        start = int(rng.integers(0, len(lines) - count))
        return "\n".join(lines[start : start + count])

    def text() -> dict[str, Any]:
        return {"text": some(int(rng.integers(5, 40)))}

    def chat() -> dict[str, Any]:
        return {
            "messages": [{"role": role, "content": some(2)} for role in ("user", "assistant") * 3]
        }

    def uneven() -> dict[str, Any]:
        return {"text": some(2 * LONG if rng.random() < 0.001 else 2)}

    def write(name: str, make: Any, *, num_bytes: int) -> Path:
        path = folder / f"{name}.jsonl"
        if path.exists() and path.stat().st_size >= num_bytes:
            return path
        with path.open("w", encoding="utf-8") as file:
            while file.tell() < num_bytes:
                file.writelines(json.dumps(make()) + "\n" for _ in range(500))
        return path

    paths = {
        "text": write("text", text, num_bytes=TEXT_BYTES),
        "chat": write("chat", chat, num_bytes=CHAT_BYTES),
        "uneven": write("uneven", uneven, num_bytes=UNEVEN_BYTES),
        "few": write("few", text, num_bytes=10_000_000),
        "four": folder / "four.jsonl",
        "hit": folder / "hit.jsonl",
    }
    if not paths["four"].exists():
        paths["four"].write_bytes(
            paths["text"].read_bytes() * 4
        )  # shards end elsewhere in each copy, so none is found again
    if not paths["hit"].exists():  # written again it would be another file, and nothing a hit
        rows = (
            json.dumps({"text": lines[row % len(lines)][:40], "row": row}) + "\n"
            for row in range(NUM_HIT)
        )
        paths["hit"].write_text("".join(rows))
    return paths


# 3 Questions


@dataclass(frozen=True, slots=True)
class Verdict:
    """One number against what we hold ourselves to."""

    question: str
    found: str
    target: str
    passed: bool | None = None

    def cells(self) -> list[str]:
        return [
            self.question,
            self.found,
            self.target,
            {True: "pass", False: "MISSED", None: ""}[self.passed],
        ]


def at_least(question: str, value: float, target: float, unit: str = " ×") -> Verdict:
    return Verdict(question, f"{value:.2f}{unit}", f"≥ {target:g}{unit}", value >= target)


def at_most(question: str, value: float, target: float, unit: str = "") -> Verdict:
    return Verdict(question, f"{value:.2f}{unit}", f"≤ {target:g}{unit}", value <= target)


def all_runs(
    data: dict[str, Path], tokenizer: Path, other: Path | None, scratch: Path, only: str
) -> dict[str, dict[str, Any]]:
    runs = {
        "text, 2 processes": ("ours", "text", tokenizer, "text", 2),
        "peer text, 2 processes": ("peer", "text", tokenizer, "text", 2),
        "text, 1 process": ("ours", "text", tokenizer, "text", 1),
        "text, 2 processes, again": ("ours", "text", tokenizer, "text", 2),
        "text four times, 1 process": ("ours", "four", tokenizer, "text", 1),
        "text four times, 2 processes": ("ours", "four", tokenizer, "text", 2),
        "chat, 2 processes": ("ours", "chat", tokenizer, "messages", 2),
        "peer chat, 2 processes": ("peer", "chat", tokenizer, "messages", 2),
        "chat, 1 process": ("ours", "chat", tokenizer, "messages", 1),
        "few texts, 2 processes": ("ours", "few", tokenizer, "text", 2),
        "peer few texts, 1 process": ("peer", "few", tokenizer, "text", 1),
        "uneven, 1 process": ("ours", "uneven", tokenizer, "text", 1),
        "uneven, 2 processes": ("ours", "uneven", tokenizer, "text", 2),
        "a million, made": ("ours", "hit", tokenizer, "text", 2),
        "a million, found": ("hit", "hit", tokenizer, "text", 2),
    }
    if other is not None:
        runs["other tokenizer"] = ("ours", "few", other, "text", 2)
    notes = scratch / "runs.json"
    found = json.loads(notes.read_text()) if notes.exists() else {}
    for number, (name, (kind, which, chosen, template, num_proc)) in enumerate(runs.items()):
        if name in found or only not in name:
            continue
        cache = scratch / ("cache-hit" if which == "hit" else f"cache-{number}")
        before = f"{os.getloadavg()[0]:.1f}"
        found[name] = fresh(kind, data[which], chosen, cache, template, num_proc) | {"load": before}
        if which != "hit":
            shutil.rmtree(cache)
        notes.write_text(json.dumps(found))
    if missing := [name for name in runs if name not in found]:
        raise SystemExit(f"still to run: {', '.join(missing)}")
    found = {name: found[name] for name in runs}
    assert found["text, 2 processes"]["rows"] == found["peer text, 2 processes"]["rows"], (
        "both must read the same rows"
    )
    ours, theirs = found["chat, 2 processes"]["tokens"], found["peer chat, 2 processes"]["tokens"]
    assert ours == theirs, f"chat: {ours} tokens here, {theirs} there"
    return found


def judge(found: dict[str, dict[str, Any]], vocabularies: dict[str, int]) -> list[Verdict]:
    def seconds(name: str) -> float:
        return float(found[name]["seconds"])

    two = min(seconds("text, 2 processes"), seconds("text, 2 processes, again"))
    ours = {name: run for name, run in found.items() if "above" in run}
    ideal = seconds("uneven, 1 process") / 2
    verdicts = [
        at_least(
            "text, 105 MB: times datasets, 2 processes each",
            seconds("peer text, 2 processes") / two,
            20,
        ),
        at_least(
            "chat with masks: times `map(apply_chat_template)` without, 2 processes each",
            seconds("peer chat, 2 processes") / seconds("chat, 2 processes"),
            8,
        ),
        at_least(
            "text, 420 MB: two processes, times one",
            seconds("text four times, 1 process") / seconds("text four times, 2 processes"),
            1.7,
        ),
        Verdict(
            "text, 105 MB: two processes, times one",
            f"{seconds('text, 1 process') / two:.2f} ×",
            "",
        ),
        Verdict(
            "chat: two processes, times one",
            f"{seconds('chat, 1 process') / seconds('chat, 2 processes'):.2f} ×",
            "",
        ),
        at_most(
            "one row in 1,000 is 1,000 × longer: wall time over ideal",
            seconds("uneven, 2 processes") / ideal,
            1.3,
        ),
        at_most(
            "parent: peak above its start",
            max(run["above"] for name, run in ours.items() if "1 process" not in name),
            150,
            " MiB",
        ),
        at_most("worker: peak", max(run["worker"] for run in ours.values()), 400, " MiB"),
        at_most(
            "worker: peak for 420 MB over peak for 10 MB",
            found["text four times, 2 processes"]["worker"]
            / max(found["few texts, 2 processes"]["worker"], 1),
            1.3,
            " ×",
        ),
    ]
    for name, run in (
        ("text", found["text, 2 processes"]),
        ("other", found.get("other tokenizer")),
    ):
        if run is not None:
            size = vocabularies[name]
            target = 2.5 if size <= 1 << 16 else 4.5
            verdicts.append(
                at_most(
                    f"bytes on disk per token, vocabulary of {size:,}",
                    run["disk"] / run["tokens"],
                    target,
                )
            )
    hit = found["a million, found"]
    verdicts += [
        at_most(
            f"hit: a finished store of {hit['rows']:,} samples", hit["seconds"] * 1000, 100, " ms"
        ),
        Verdict("hit: once more in the same process", f"{hit['again'] * 1000:.1f} ms", ""),
    ]
    return verdicts


# 4 The page


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in [header, *rows]
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def page(
    found: dict[str, dict[str, Any]], verdicts: list[Verdict], sizes: dict[str, int], names: str
) -> str:
    model = next(
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    changed = subprocess.run(
        ["git", "-C", str(ROOT), "status", "--porcelain", "../src"], capture_output=True, text=True
    )
    versions = ", ".join(
        f"{name} {version(name)}"
        for name in ("datasets", "transformers", "tokenizers", "fastokens")
    )
    rows = [
        [
            name,
            f"{run['seconds']:.3f}",
            f"{run['cpu']:.2f}" if "cpu" in run else "",
            f"{run['rows']:,}",
            f"{run.get('tokens', 0):,}" if "tokens" in run else "",
            str(run.get("num_shards", "")),
            f"{run['above']:.0f}" if "above" in run else "",
            f"{run['worker']:.0f}" if run["worker"] else "",
            run["load"],
        ]
        for name, run in found.items()
    ]
    return "\n".join(
        [
            "# Files to a store",
            "",
            f"- Command: `python benchmarks/prepare.py` (written by it), {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; tokenizers: {names}",
            f"- Versions: penstock at {head.stdout.strip()}{' with changes in src' if changed.stdout else ''}, "
            f"Python {platform.python_version()}, {versions}",
            f"- Machine: {model.split(':')[1].strip()}, {os.cpu_count()} cores, shared with other jobs; load: average before a run",
            "- Every line is one process with empty caches, run once; packages and tokenizers are loaded before the clock starts",
            "- Peer: `load_dataset('json')`, then `.map(tokenizer, batched=True)` for text, `.map(apply_chat_template)` for chat",
            "- Ideal of the uneven set: half the time of one process.  Data: "
            + ", ".join(f"{n} {s / 1e6:.0f} MB" for n, s in sizes.items()),
            "",
            *table(["question", "found", "target", ""], [verdict.cells() for verdict in verdicts]),
            "",
            *table(
                [
                    "run",
                    "seconds",
                    "CPU seconds",
                    "rows",
                    "tokens",
                    "shards",
                    "parent MiB above start",
                    "worker MiB",
                    "load",
                ],
                rows,
            ),
            "",
        ]
    )


def vocabulary_of(folder: Path) -> int:
    from tokenizers import Tokenizer

    return int(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizers", nargs="*", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = (given.keep or Path(folder)).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        text = run_all([path.resolve() for path in given.tokenizers], scratch, given.only)
    (ROOT / "results").mkdir(exist_ok=True)
    (ROOT / "results" / "prepare.md").write_text(text)
    print(text)


def run_all(given: list[Path], scratch: Path, only: str) -> str:
    lines = library_lines()
    tokenizer = given[0] if given else train_tokenizer(lines, scratch / "tokenizer")
    other = given[1] if len(given) > 1 else None
    data = write_data(lines, scratch)
    found = all_runs(data, tokenizer, other, scratch, only)
    sizes = {name: path.stat().st_size for name, path in data.items()}
    vocabularies = {"text": vocabulary_of(tokenizer)} | (
        {"other": vocabulary_of(other)} if other else {}
    )
    names = ", ".join(path.name for path in given) or "trained here"
    return page(found, judge(found, vocabularies), sizes, names)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        kind, *words, processes = sys.argv[2:]
        run = {"ours": run_ours, "peer": run_peer, "hit": run_hit}[kind]
        print(json.dumps(run(*words, int(processes))))
    else:
        main()
