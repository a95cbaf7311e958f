"""What do the pages' examples work on?  A folder with made-up data and a tokenizer, the same at every run."""

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.docs.pages import blocks, name

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
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RECIPE = (
    "data: chat.jsonl\ntokenizer: tokenizer\ntemplate: messages\nmax_length: 256\nbatch_size: 4\n"
)
# Names that a page speaks of as something its readers have.
_MODEL = """
import penstock as ps
import torch
from types import SimpleNamespace

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(1_000, 1_000)
    def forward(self, input_ids):
        return SimpleNamespace(logits=self.table(input_ids))

model = Model()
inputs = lambda batch: {"input_ids": batch["input_ids"]}
"""
GIVEN = {
    "docs/guides/losses.md": _MODEL,
    "docs/guides/report.md": "import penstock as ps\nloader = ps.load('recipe.yaml', output='numpy')\n",
}


def make(folder: Path, page: Path) -> None:
    """The files that the examples of a page may name; a recipe too, unless the page makes its own."""
    chance = random.Random(3)
    _tokenizer(folder)
    texts = [{"text": f"Note {n}: {_words(chance, 5, 120)}."} for n in range(300)]
    _write(folder / "chat.jsonl", (_chat(chance, n) for n in range(400)))
    _write(folder / "held_out.jsonl", (_chat(chance, n) for n in range(40)))
    _write(folder / "math.jsonl", (_sum(chance) for _ in range(200)))
    _write(folder / "web" / "part-0.jsonl", texts[:200])
    _write(folder / "web" / "part-1.jsonl", texts[200:])
    if name(page) == "docs/concepts/templates.md":
        _write(folder / "data" / "chat.jsonl", (_chat(chance, n) for n in range(40)))
        _write(
            folder / "data" / "mine.jsonl",
            ({"q": f"Which way, {n}?", "a": _words(chance, 3, 9)} for n in range(40)),
        )
    elif name(page) == "README.md":
        _write(folder / "data" / "part-0.jsonl", (_chat(chance, n) for n in range(250)))
        _write(folder / "data" / "part-1.jsonl", (_chat(chance, n) for n in range(250, 400)))
    else:
        _write(folder / "data" / "a.jsonl", texts[:200])
        _write(folder / "data" / "b.jsonl", texts[200:])
    if name(page) == "docs/guides/media.md":
        _media(folder)
    if not any(
        "penstock init" in block.text or block.file == "recipe.yaml" for block in blocks(page)
    ):
        (folder / "recipe.yaml").write_text(RECIPE)


def make_commands(folder: Path) -> Path:
    """`penstock`, `python` and `torchrun` as commands of the interpreter that runs the tests, whether or not they are installed."""
    folder.mkdir()
    for command, call in (
        ("penstock", f'"{sys.executable}" -m penstock'),
        ("python", f'"{sys.executable}"'),
        ("torchrun", f'"{sys.executable}" -m torch.distributed.run'),
    ):
        (folder / command).write_text(f'#!/bin/sh\nexec {call} "$@"\n')
        (folder / command).chmod(0o755)
    return folder


def _media(folder: Path) -> None:
    """A folder of a vision-language model without its weights, and conversations about images."""
    (folder / "tokenizer").rename(folder / "model")
    made = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    made.add_special_tokens(
        ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    )
    made.save(str(folder / "model" / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", "chat_template": VISION}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    size = {"shortest_edge": 3136, "longest_edge": 200_704}
    image = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 14,
        "merge_size": 2,
        "size": size,
    }
    processor = {"processor_class": "Qwen2_5_VLProcessor", **image}
    (folder / "model" / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "images").mkdir()
    records = []
    for number in range(40):
        name = f"images/{number}.jpg"
        Image.new("RGB", (120 + 20 * number, 400 - 5 * number), "navy").save(folder / name)
        asked = {"role": "user", "content": "<image>\nWhich way does the water flow?"}
        records.append(
            {
                "messages": [asked, {"role": "assistant", "content": "Under the bridge."}],
                "images": [name],
            }
        )
    _write(folder / "photos.jsonl", records)


def _chat(chance: random.Random, number: int) -> dict[str, Any]:
    messages = []
    for _ in range(chance.randint(1, 3)):
        messages.append({"role": "user", "content": f"Question {number}: {_words(chance, 3, 15)}?"})
        messages.append({"role": "assistant", "content": f"{_words(chance, 4, 30)}."})
    return {"messages": messages}


def _sum(chance: random.Random) -> dict[str, Any]:
    a, b = chance.randrange(100), chance.randrange(100)
    return {"instruction": f"What is {a} + {b}?", "output": f"It is {a + b}."}


def _words(chance: random.Random, least: int, most: int) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(least, most)))


def _write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _tokenizer(folder: Path) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(
        [" ".join(WORDS), "user assistant Question Note What is It"] * 9, trainer
    )
    (folder / "tokenizer").mkdir()
    made.save(str(folder / "tokenizer" / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", "chat_template": CHATML}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
