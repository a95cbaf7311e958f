"""Write the datasets, tokenizers and recipes that the recorded results are made of.  Nothing here depends on the package."""

import bz2
import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.words import WORDS as PLAIN_WORDS

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]"]
WORDS = [*PLAIN_WORDS, "Grüße", "你好", "1", "22", "333"]

CHATML = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
TOOLS = """{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}
  {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
  {{- '<|im_start|>' + message.role + '\n' }}
  {%- if message.reasoning_content %}{{- '<think>\n' + message.reasoning_content + '\n</think>\n' }}{%- endif %}
  {%- if message.content %}{{- message.content | trim }}{%- endif %}
  {%- for call in message.tool_calls or [] %}{{- '\n<call>' + (call.function | tojson) + '</call>' }}{%- endfor %}
  {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
INST = """{{- '<s>' }}{%- for message in messages %}
  {%- if message.role == 'assistant' %}{{- ' ' + message.content + '</s>' }}
  {%- else %}{{- '[INST] ' + message.content + ' [/INST]' }}{%- endif %}
{%- endfor %}"""
TAGGED = CHATML.replace(
    "message.content + '<|im_end|>'",
    "'' }}{% generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}{{- ''",
)
CHAT_TEMPLATES = {"chatml": CHATML, "tools": TOOLS, "inst": INST, "tagged": TAGGED}


def write_tokenizer(folder: Path, chat_template: str) -> Path:
    """A byte-level tokenizer without merges: one id per byte, then the special tokens."""
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    )
    made.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": "<|endoftext|>",
        "chat_template": chat_template,
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def text(rng: random.Random, most: int = 30) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def conversation(rng: random.Random) -> dict[str, Any]:
    messages: list[dict[str, Any]] = (
        [{"role": "system", "content": text(rng, 5)}] if rng.random() < 0.4 else []
    )
    for _ in range(rng.randint(1, 3)):
        messages += [
            {"role": "user", "content": text(rng)},
            {"role": "assistant", "content": text(rng)},
        ]
    return {"messages": messages}


def agent(rng: random.Random) -> dict[str, Any]:
    """A conversation with tools, calls, results and reasoning."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": text(rng)}]
    for _ in range(rng.randint(0, 2)):
        call = {
            "type": "function",
            "function": {"name": rng.choice(["look_up", "add"]), "arguments": {"x": text(rng, 3)}},
        }
        messages.append(
            {"role": "assistant", "content": rng.choice(["", text(rng, 4)]), "tool_calls": [call]}
        )
        messages.append({"role": "tool", "content": text(rng, 6)})
    messages.append({"role": "assistant", "content": text(rng)})
    if rng.random() < 0.5:
        messages[-1]["reasoning_content"] = text(rng, 8)
    tools = [
        {
            "type": "function",
            "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    return {"messages": messages, "tools": tools}


def records(kind: str, count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(f"{kind} {seed}")
    match kind:
        case "chat":
            return [conversation(rng) for _ in range(count)]
        case "agents":
            return [agent(rng) for _ in range(count)]
        case "sharegpt":
            return [
                {
                    "conversations": [
                        {"from": "human", "value": text(rng)},
                        {"from": "gpt", "value": text(rng)},
                    ]
                }
                for _ in range(count)
            ]
        case "alpaca":
            return [
                {
                    "instruction": text(rng),
                    "input": rng.choice(["", text(rng, 5)]),
                    "output": text(rng),
                }
                for _ in range(count)
            ]
        case "pairs":
            return [{"prompt": text(rng), "completion": " " + text(rng)} for _ in range(count)]
        case "segments":
            return [
                {
                    "segments": [
                        {"text": text(rng, 6), "label": rng.random() < 0.5},
                        {"text": text(rng, 6), "label": True},
                    ]
                }
                for _ in range(count)
            ]
        case "ids":
            made = [[rng.randrange(200) for _ in range(rng.randint(2, 60))] for _ in range(count)]
            return [{"input_ids": ids, "labels": [-100, *ids[1:]]} for ids in made]
    return [{"text": text(rng, 60)} for _ in range(count)]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_data(folder: Path) -> None:
    """One file or folder per file format."""
    folder.mkdir(parents=True)
    (folder / "chat.jsonl").write_text(lines(records("chat", 120, 0)))
    (folder / "agents.json").write_text(
        json.dumps(records("agents", 60, 0), ensure_ascii=False, indent=1)
    )
    (folder / "sharegpt.jsonl.gz").write_bytes(
        gzip.compress(lines(records("sharegpt", 80, 0)).encode(), mtime=0)
    )
    (folder / "text.jsonl.bz2").write_bytes(bz2.compress(lines(records("text", 90, 0)).encode()))
    (folder / "plain.txt").write_text(
        "\n".join(row["text"] for row in records("text", 70, 1)) + "\n"
    )
    (folder / "segments.jsonl").write_text(lines(records("segments", 50, 0)))
    with (folder / "pairs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "completion"])
        writer.writeheader()
        writer.writerows(records("pairs", 75, 0))
    pq.write_table(
        pa.Table.from_pylist(records("ids", 110, 0)), folder / "ids.parquet", row_group_size=40
    )
    alpaca = pa.Table.from_pylist(records("alpaca", 65, 0))
    with (
        pa.OSFile(str(folder / "alpaca.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, alpaca.schema) as stream,
    ):
        stream.write_table(alpaca, max_chunksize=20)
    (folder / "parts").mkdir()
    for part in range(3):
        (folder / "parts" / f"{part}.jsonl").write_text(lines(records("text", 40, 10 + part)))
    (folder / "bad.jsonl").write_text(
        lines(records("text", 20, 3)) + "{not json}\n" + lines(records("text", 5, 4))
    )


RECIPES: dict[str, dict[str, Any]] = {
    "chat": {"data": "data/chat.jsonl", "tokenizer": "chatml", "max_length": 256, "batch_size": 4},
    "agents": {
        "data": "data/agents.json",
        "tokenizer": "tools",
        "max_length": 512,
        "batch_size": 2,
        "on_overlong": "split",
        "train_reasoning": False,
    },
    "mixture": {
        "data": {
            "chat": {"path": "data/chat.jsonl", "weight": 0.7},
            "text": {"path": "data/parts", "weight": 0.3, "template": "text"},
        },
        "eval": {"small": {"path": "data/chat.jsonl@[:20]"}},
        "tokenizer": "chatml",
        "max_length": 300,
        "batch_size": 3,
        "on_overlong": "truncate",
        "mix_by": "tokens",
    },
    "text": {
        "data": "data/text.jsonl.bz2",
        "tokenizer": "inst",
        "max_length": 128,
        "batch_size": 4,
        "packing": "concat",
    },
    "ids": {
        "data": "data/ids.parquet",
        "tokenizer": "inst",
        "max_length": 64,
        "batch_size": 8,
        "packing": "first_fit",
    },
    "pairs": {
        "data": "data/pairs.csv",
        "tokenizer": "inst",
        "max_length": 200,
        "batch_size": 4,
        "packing": "none",
        "padding": "max_length",
        "eos": True,
    },
    "alpaca": {
        "data": "data/alpaca.arrow",
        "tokenizer": "tagged",
        "max_length": 400,
        "batch_size": 2,
        "packing": "window_5",
    },
    "bad": {
        "data": "data/bad.jsonl",
        "tokenizer": "inst",
        "max_length": 150,
        "batch_size": 2,
        "on_bad": "skip",
        "epochs": 2,
        "last_step": "drop",
    },
}


def write_all(folder: Path) -> None:
    """Data, tokenizers and recipes, below `folder`."""
    write_data(folder / "data")
    for name, template in CHAT_TEMPLATES.items():
        write_tokenizer(folder / name, template)
    for name, recipe in RECIPES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
