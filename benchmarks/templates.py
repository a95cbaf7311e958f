"""How fast do records become tokens and masks?  Beside `datasets.map` with `transformers`, in one run.

python benchmarks/templates.py [--quick | --tiny] [TOKENIZER …]     folders with a tokenizer.json and a chat template of their own

Text is the standard library's own source, which no cache has seen; conversations are made of its lines.  One process, one thread.
Texts and chats are measured with a 32,000-token BPE that is trained here; chats and tool conversations also with every TOKENIZER.
"""

import os

os.environ["FASTOKENS_BPE_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import json
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from data import CHAT, given_tokenizers, library_lines, train_tokenizer
from stand import Benchmark, Report, sized, take_turns

from penstock.templates import open_template, open_tokenizer

REPEAT = 3
TEXTS, CONVERSATIONS, TEMPLATES = sized((6000, 1500, 100), (60, 8, 3), (1000, 300, 100))

# It prints the same, by an operator that nothing is proven about.
NOT_PROVEN = CHAT.replace("message.content", "'%s' % message.content")

BENCHMARK = Benchmark(
    title="Records to tokens and masks",
    question="How fast do texts, chats and tool conversations become tokens and masks, in one process?",
    measures=("templates",),
    peers={
        "datasets": "`datasets.map` with caching off: `batched=True` with the tokenizer for text, as its guide says; "
        "`apply_chat_template` of transformers one conversation a call for chats, without masks"
    },
    packages=("transformers", "tokenizers", "fastokens", "jinja2"),
    notes=(
        f"{TEXTS:,} texts and {CONVERSATIONS:,} conversations of 18 messages; one process, one thread each; medians "
        f"of {REPEAT} runs in turns",
        "Whole calls, from records in memory to ids and masks; both sides give the same ids",
    ),
)


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


def compared(
    report: Report,
    template: Any,
    theirs: Any,
    name: str,
    what: str,
    records: list[Any],
    target: int,
) -> list[str]:
    """A row of a table, and a number: whole calls beside `apply_chat_template` in a loop, without masks."""

    def peer(record: dict[str, Any]) -> list[int]:
        made = theirs.apply_chat_template(
            record["messages"], tools=record.get("tools"), tokenize=True, return_dict=False
        )
        return list(made)

    works: dict[str, tuple[int, Callable[[], Any]]] = {
        "ours": (len(records), lambda: template.encode(iter(records))),
        "peer": (len(records), lambda: [peer(record) for record in records]),
    }
    timings, results = take_turns(works, REPEAT)
    samples = results["ours"]
    assert not samples.dropped, samples.dropped
    first = samples.input_ids[: samples.offsets[1]].tolist()
    assert first == peer(records[0]), "both must give the same ids"
    texts = [template.rendering(record).text for record in records]
    encoded, _ = take_turns({"": (len(records), lambda: template.tokenizer.encode_spans(texts))}, 1)
    key = f"{name}_{what.partition(' ')[0]}"
    question = f"{what} with {name}, against `apply_chat_template` without masks"
    sides = (timings["peer"], timings["ours"])
    ratio = report.ratio(key, question, *sides, peer="datasets", at_least=target)
    micros = (timings["ours"].per_sample, encoded[""].per_sample, timings["peer"].per_sample)
    return [name, what, f"{ratio:.1f}", *(f"{each:.0f}" for each in micros)]


def with_tokenizer(report: Report, folder: Path, chats: list[dict[str, Any]]) -> list[list[str]]:
    import transformers

    ours, theirs = open_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    as_text = any("['arguments'] +" in text for text in ours.chat_templates.values())
    template = open_template("messages", ours, {"tool_arguments": "as_is" if as_text else "parse"})
    called = tool_conversations(library_lines(), as_text=as_text)
    return [
        compared(report, template, theirs, folder.name, *what)
        for what in (
            ("chats", chats, 5 if template.why_rendered() else 12),
            ("tool conversations", called, 5),
        )
    ]


def proven(scratch: Path, folders: list[Path]) -> Iterator[list[str]]:
    """Each template of these tokenizers, and of the trl wheel if it is installed, with "proven" or why its chats are rendered."""
    tokenizer = open_tokenizer(scratch)
    for place in folders:
        template = open_template("messages", open_tokenizer(place), {})
        yield [place.name, template.why_rendered() or "proven"]
    trl = find_spec("trl")
    if trl is None or trl.origin is None:
        return
    files = sorted((Path(trl.origin).parent / "chat_templates").glob("*.jinja"))
    for file in files[:TEMPLATES]:
        options = {"chat_template": file.read_text(), "on_missing_tokens": "warn"}
        template = open_template("messages", tokenizer, options)
        yield [f"trl: {file.stem}", template.why_rendered() or "proven"]


def main(report: Report) -> None:
    import fastokens

    with tempfile.TemporaryDirectory() as scratch:
        lines = library_lines()
        folder = train_tokenizer(lines[::5], Path(scratch))
        ours = open_tokenizer(folder)
        raw = fastokens.Tokenizer.from_json_str((folder / "tokenizer.json").read_text())
        texts, chats = make_records(lines)
        text_template = open_template("text", ours, {})
        chat_template = open_template("messages", ours, {})
        rendered_template = open_template("messages", ours, {"chat_template": NOT_PROVEN})
        assert chat_template.why_rendered() is None
        assert rendered_template.why_rendered() is not None
        plain = [record["text"] for record in texts]
        # A further number in each message: the way that thoughts and content in parts go.
        named = [
            {"messages": [{**message, "score": 0.5} for message in chat["messages"]]}
            for chat in chats
        ]
        works: dict[str, tuple[int, Callable[[], Any]]] = {
            "raw engine, text": (TEXTS, lambda: raw.encode_batch_flat(plain)),
            "text": (TEXTS, lambda: text_template.encode(iter(texts))),
            "chat": (CONVERSATIONS, lambda: chat_template.encode(iter(chats))),
            "chat, a further field": (CONVERSATIONS, lambda: chat_template.encode(iter(named))),
            "chat, rendered": (CONVERSATIONS, lambda: rendered_template.encode(iter(chats))),
        }
        if report.has("datasets"):
            works |= peers(folder, texts, chats)
        timings, results = take_turns(works, REPEAT)
        samples = results["chat"]
        for other in ("chat, a further field", "chat, rendered"):
            assert results[other].input_ids.tolist() == samples.input_ids.tolist(), other
        shares = [
            100 * a / b
            for a, b in zip(timings["raw engine, text"].wall, timings["text"].wall, strict=True)
        ]
        report.number(
            "raw_share",
            "plain text: share of the raw engine's throughput",
            shares,
            "%",
            at_least=60,
            digits=0,
        )
        if report.has("datasets"):
            first = results["datasets, chat"][0]["input_ids"]
            assert samples.input_ids[: samples.offsets[1]].tolist() == first, "other ids"
            for key, what, theirs, mine, target in (
                (
                    "text",
                    "plain text, against `datasets.map(tokenizer, batched=True)`",
                    "datasets, text",
                    "text",
                    20,
                ),
                (
                    "chat",
                    "chats of 18 messages with masks, against `map(apply_chat_template)` without",
                    "datasets, chat",
                    "chat",
                    12,
                ),
                (
                    "chat_field",
                    "the same with a further field in every message",
                    "datasets, chat",
                    "chat, a further field",
                    5,
                ),
                (
                    "chat_rendered",
                    "the same with a template that is not proven, so that each is rendered",
                    "datasets, chat",
                    "chat, rendered",
                    5,
                ),
            ):
                report.ratio(
                    key, what, timings[theirs], timings[mine], peer="datasets", at_least=target
                )
        rows = [
            [name, timing.spread(), f"{median(timing.cpu):.3f}", f"{timing.per_sample:.0f}"]
            for name, timing in timings.items()
        ]
        report.table("Every way", ["work", "seconds", "CPU seconds", "µs per record"], rows)
        report.note(f"Tokenizer: {ours.vocab_size:,} ids, trained here, engine {ours.engine}")
        more = [row for place in given_tokenizers() for row in with_tokenizer(report, place, chats)]
        report.table(
            "Which chat templates are proven, so that plain chats are joined without rendering",
            ["template", "plain chats"],
            [*proven(folder, given_tokenizers())],
        )
        if more:
            header = ["tokenizer", "records", "×", "µs, ours", "µs, of it encoding", "µs, peer"]
            report.table("Other tokenizers", header, more)


def peers(
    folder: Path, texts: list[Any], chats: list[Any]
) -> dict[str, tuple[int, Callable[[], Any]]]:
    import datasets
    import transformers

    datasets.disable_progress_bars()
    datasets.disable_caching()
    file = str(folder / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=file, eos_token="<|endoftext|>")
    theirs.chat_template = json.loads((folder / "tokenizer_config.json").read_text())[
        "chat_template"
    ]
    text_set, chat_set = datasets.Dataset.from_list(texts), datasets.Dataset.from_list(chats)

    def chat(row: dict[str, Any]) -> dict[str, Any]:
        ids = theirs.apply_chat_template(row["messages"], tokenize=True, return_dict=False)
        return {"input_ids": ids}

    return {
        "datasets, text": (
            TEXTS,
            lambda: text_set.map(lambda rows: theirs(rows["text"]), batched=True),
        ),
        "datasets, chat": (CONVERSATIONS, lambda: chat_set.map(chat)),
    }


if __name__ == "__main__":
    BENCHMARK.run(main)
