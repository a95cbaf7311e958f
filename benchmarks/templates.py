"""How fast do records become tokens and masks?  Beside `datasets.map` with `transformers`, in one run.  Writes results/templates.md.

    python benchmarks/templates.py [--quick] [TOKENIZER …]     folders with a tokenizer.json and a chat template of their own

Text is the standard library's own source, which no cache has seen; conversations are made of its lines.  One process, one thread.
Texts and chats are measured with a 32,000-token BPE that is trained here; chats and tool conversations also with every TOKENIZER.
"""

import os

os.environ["FASTOKENS_BPE_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import json
import platform
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import fastokens
import numpy as np
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from penstock.templates import open_template, open_tokenizer

ROOT = Path(__file__).resolve().parent
REPEAT = 3
QUICK = "--quick" in sys.argv
TEXTS, CONVERSATIONS = (1000, 300) if QUICK else (6000, 1500)
CHAT = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def library_lines() -> list[str]:
    """Lines of the standard library: code, prose and names, about 20 MB."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    files = [file for file in files if "site-packages" not in file.parts]
    return [
        line
        for file in files
        for line in file.read_text(errors="replace").splitlines()
        if len(line.strip()) > 20
    ]


def train_tokenizer(lines: list[str], folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(lines[::5], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "chat_template": CHAT})
    )
    return folder


def make_records(lines: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rng = np.random.default_rng(0)

    def some(count: int) -> str:
        start = int(rng.integers(0, len(lines) - count))
        return "\n".join(lines[start : start + count])

    texts = [{"text": some(int(rng.integers(5, 40)))} for _ in range(TEXTS)]
    roles = ["user", "assistant"] * 9
    chats = [
        {"messages": [{"role": role, "content": some(2)} for role in roles]}
        for _ in range(CONVERSATIONS)
    ]
    return texts, chats


TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the library.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for."},
                "limit": {"type": "integer"},
            },
            "required": ["query"],
        },
    },
}


def tool_conversations(lines: list[str], *, as_text: bool) -> list[dict[str, Any]]:
    """Three questions, each with a call, its result and an answer.  as_text: arguments are JSON text, which some templates want."""
    rng = np.random.default_rng(1)

    def some(count: int) -> str:
        start = int(rng.integers(0, len(lines) - count))
        return "\n".join(lines[start : start + count])

    found = []
    for _ in range(CONVERSATIONS):
        messages: list[dict[str, Any]] = []
        for number in range(3):
            arguments: Any = {"query": some(1).strip(), "limit": int(rng.integers(1, 100))}
            arguments = json.dumps(arguments) if as_text else arguments
            call = {
                "id": f"call{number:05}",
                "type": "function",
                "function": {"name": "search", "arguments": arguments},
            }
            messages += [
                {"role": "user", "content": some(2)},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {
                    "role": "tool",
                    "name": "search",
                    "tool_call_id": f"call{number:05}",
                    "content": some(3),
                },
                {"role": "assistant", "content": some(2)},
            ]
        found.append({"messages": messages, "tools": [TOOL]})
    return found


def with_tokenizer(folder: Path, lines: list[str], chats: list[dict[str, Any]]) -> list[str]:
    """Rows of a table: whole calls beside `apply_chat_template`, in a loop, without masks."""
    ours, theirs = open_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    as_text = any("['arguments'] +" in text for text in ours.chat_templates.values())
    template = open_template("messages", ours, {"tool_arguments": "as_is" if as_text else "parse"})
    called = tool_conversations(lines, as_text=as_text)
    return [
        compared(template, theirs, folder.name, *what)
        for what in (("chats", chats, 10), ("tool conversations", called, 5))
    ]


def compared(
    template: Any, theirs: Any, name: str, what: str, records: list[dict[str, Any]], target: int
) -> str:
    def peer(record: dict[str, Any]) -> list[int]:
        made = theirs.apply_chat_template(
            record["messages"], tools=record.get("tools"), tokenize=True, return_dict=False
        )
        return list(made)

    found = interleaved(
        {
            "ours": lambda: template.encode(iter(records)),
            "peer": lambda: [peer(record) for record in records],
        }
    )
    samples = template.encode(iter(records))
    assert not samples.dropped, samples.dropped
    assert samples.input_ids[: samples.offsets[1]].tolist() == peer(records[0]), (
        "both must give the same ids"
    )
    texts = [template.rendering(record).text for record in records]
    encoding = cpu(lambda: template.tokenizer.encode_spans(texts))
    times = found["peer"][1] / found["ours"][1]
    per = [
        seconds / len(records) * 1e6 for seconds in (found["ours"][1], encoding, found["peer"][1])
    ]
    verdict = "pass" if times >= target else "MISSED"
    cells = (
        name,
        what,
        f"{times:.1f} ×",
        f"≥ {target} ×",
        verdict,
        *(f"{each:.0f}" for each in per),
    )
    return f"| {' | '.join(cells)} |"


def cpu(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def interleaved(works: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, float]]:
    """Median seconds by the clock and of CPU; the contestants take turns, so that a busy neighbour slows them alike."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(REPEAT):
        for name, work in works.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: (median(w for w, _ in runs), median(c for _, c in runs))
        for name, runs in seconds.items()
    }


def main() -> None:
    datasets.disable_progress_bars()
    datasets.disable_caching()
    lines = library_lines()
    with tempfile.TemporaryDirectory() as scratch:
        given = [Path(word) for word in sys.argv[1:] if word != "--quick"]
        folder = train_tokenizer(lines, Path(scratch))
        ours = open_tokenizer(folder)
        raw = fastokens.Tokenizer.from_json_str((folder / "tokenizer.json").read_text())
        theirs = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|endoftext|>"
        )
        templates = ours.chat_templates
        theirs.chat_template = templates.get("default", CHAT)
        texts, chats = make_records(lines)
        text_template = open_template("text", ours, {})
        chat_template = open_template("messages", ours, {"chat_template": theirs.chat_template})
        text_set, chat_set = datasets.Dataset.from_list(texts), datasets.Dataset.from_list(chats)
        plain = [record["text"] for record in texts]
        # A further number in each message: no layout is tried, the way that thoughts and content in parts go.
        named = [
            {"messages": [{**message, "score": 0.5} for message in chat["messages"]]}
            for chat in chats
        ]
        found = interleaved(
            {
                "raw": lambda: raw.encode_batch_flat(plain),
                "text": lambda: text_template.encode(iter(texts)),
                "peer text": lambda: text_set.map(lambda rows: theirs(rows["text"]), batched=True),
                "chat": lambda: chat_template.encode(iter(chats)),
                "chat without a layout": lambda: chat_template.encode(iter(named)),
                "peer chat": lambda: chat_set.map(
                    lambda row: {
                        "input_ids": theirs.apply_chat_template(
                            row["messages"], tokenize=True, return_dict=False
                        )
                    }
                ),
            }
        )
        samples = chat_template.encode(iter(chats))
        tokens = theirs.apply_chat_template(chats[0]["messages"], tokenize=True, return_dict=False)
        assert samples.input_ids[: samples.offsets[1]].tolist() == list(tokens), (
            "both must give the same ids"
        )
        assert chat_template.encode(iter(named)).input_ids.tolist() == samples.input_ids.tolist()
        more = [row for place in given for row in with_tokenizer(place, lines, chats)]
        report(
            found,
            f"{ours.vocab_size:,} ids, engine {ours.engine}",
            f"rendered by {chat_template.renderer.engine}, under limits",
            more,
        )


MORE = [
    "Real tokenizers: whole calls from records to ids and masks beside `apply_chat_template` in a loop, without masks.",
    "CPU time, µs a record.  Encoding is part of ours; the rest is reading the record, rendering, attribution and finding spans.",
    "",
    "| tokenizer | records | found | target | | ours | of it encoding | peer |",
    "|---|---|---|---|---|---|---|---|",
]


def report(
    found: dict[str, tuple[float, float]], tokenizer: str, how: str, more: list[str]
) -> None:
    clock = 1 if QUICK else 0  # a busy neighbour takes time by the clock, and hardly CPU time
    share = found["raw"][0] / found["text"][0]
    text = found["peer text"][clock] / found["text"][clock]
    chat = found["peer chat"][clock] / found["chat"][clock]
    if QUICK:
        print(json.dumps({"text × datasets.map": text, "chat × apply_chat_template": chat}))
        print("\n".join(more))
        return
    attributed = found["peer chat"][0] / found["chat without a layout"][0]
    rows = [
        (
            "plain text: share of the raw engine's throughput",
            f"{share:.0%}",
            "≥ 60 %",
            share >= 0.6,
        ),
        (
            "plain text: times `datasets.map(tokenizer, batched=True)`",
            f"{text:.1f} ×",
            "≥ 20 ×",
            text >= 20,
        ),
        (
            "chat of 18 messages with masks: times `map(apply_chat_template)` without",
            f"{chat:.1f} ×",
            "≥ 8 ×",
            chat >= 8,
        ),
        (
            "the same with a further field in every message, so without a layout",
            f"{attributed:.1f} ×",
            "—",
            None,
        ),
    ]
    table = ["| question | found | target | |", "|---|---|---|---|"]
    table += [
        f"| {q} | {f} | {t} | {'' if ok is None else 'pass' if ok else 'MISSED'} |"
        for q, f, t, ok in rows
    ]
    times = ["| work | seconds | CPU seconds | µs per record |", "|---|---|---|---|"]
    for name, (wall, cpu) in found.items():
        count = CONVERSATIONS if "chat" in name else TEXTS
        times.append(f"| {name} | {wall:.3f} | {cpu:.3f} | {wall / count * 1e6:.0f} |")
    versions = ", ".join(
        f"{name} {version(name)}"
        for name in ("datasets", "transformers", "tokenizers", "fastokens", "jinja2")
    )
    page = "\n".join(
        [
            "# Records to tokens and masks",
            "",
            f"`python benchmarks/templates.py`, Python {platform.python_version()}, {versions}, {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.1f}. One process, one thread each; medians of {REPEAT} runs in turns.",
            f"Tokenizer: {tokenizer}. {TEXTS:,} texts and {CONVERSATIONS:,} conversations of 18 messages.",
            "Peer: `datasets.map` with caching off, batched for text as its guide says; `apply_chat_template` one conversation a call.",
            f"Chat: {how}.",
            "",
            *table,
            "",
            *times,
            "",
            *(MORE if more else []),
            *more,
            "",
        ]
    )
    (ROOT / "results").mkdir(exist_ok=True)
    (ROOT / "results" / "templates.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
