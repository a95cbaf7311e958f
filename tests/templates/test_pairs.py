"""Preference pairs, KTO answers, judged steps and prompts: ids, masks and batches are those of trl 1.16, row by row."""

import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import penstock as ps
from penstock.errors import PenstockError, TemplateError
from penstock.templates import open_template, open_tokenizer
from penstock.testing import check_template
from penstock.types import PROMPT_CUT, Samples

Row = dict[str, Any]
SPECIAL = ["<|endoftext|>", "<pad>", "<s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"]
# ChatML; thinking tags that only the last turn has; BOS in the template; "model" as the role's name; an end of text after the turns
CHATS = ("qwen2_5", "qwen3", "llama3", "gemma3", "phi3", "deepseekv3", "glm4moe", "lfm2", "cohere2")
WITH_TOOLS = ("qwen2_5", "qwen3", "glm4moe")
TOOL = {
    "type": "function",
    "function": {"name": "find", "description": "Find a dog.", "parameters": {"type": "object", "properties": {}}},
}
BATCH, PAD = 4, 1


def make_tokenizer(folder: Path, chat: str | None, *, adds_bos: bool = False) -> Path:
    """A byte-level vocabulary of a few hundred ids, with a chat template of trl's wheel."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the fox runs over the lazy dog user assistant system\n\n"] * 50, trainer)
    if adds_bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    named = {"eos_token": "<|endoftext|>", "pad_token": "<pad>", "bos_token": "<s>"}
    config: Row = {**named, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10_000}
    if chat is not None:
        found = importlib.util.find_spec("trl")
        assert found is not None and found.origin is not None
        config["chat_template"] = (Path(found.origin).parent / "chat_templates" / f"{chat}.jinja").read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class Writer:
    """Random rows."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def words(self, most: int = 8) -> str:
        words = ["fox", "dog", "runs", " the", "lazy\n", "Grüße", "你好", "over", "12"]
        return " ".join(self._random.choices(words, k=self._random.randint(1, most)))

    def say(self, role: str) -> Row:
        return {"role": role, "content": self.words()}

    def prompt(self, *, system: bool = False) -> list[Row]:
        turns = [self.say("system")] if system else []
        for _ in range(self._random.randrange(3)):
            turns += [self.say("user"), self.say("assistant")]
        return [*turns, self.say("user")]

    def messages(self, **options: Any) -> Row:
        return {
            "prompt": self.prompt(**options),
            "chosen": [self.say("assistant")],
            "rejected": [self.say("assistant")],
        }

    def long_answers(self) -> Row:
        more = [self.say("assistant"), self.say("user"), self.say("assistant")]
        return {"prompt": self.prompt(), "chosen": more, "rejected": [self.say("assistant")]}

    def implicit(self) -> Row:
        row = self.messages()
        return {side: [*row["prompt"], *row[side]] for side in ("chosen", "rejected")}

    def text(self) -> Row:
        return {"prompt": self.words(), "chosen": f" {self.words()}", "rejected": self.words()}

    def implicit_text(self) -> Row:
        shared = self.words()
        return {"chosen": f"{shared} a{self.words()}", "rejected": f"{shared} {self.words()}"}

    def judged(self, row: Row) -> Row:
        return {"prompt": row["prompt"], "completion": row["chosen"], "label": self._random.random() < 0.5}


def chat_rows(chat: str) -> dict[str, list[Row]]:
    write = Writer(len(chat))
    has_system = chat != "gemma3"
    rows = {
        "messages": [write.messages(system=has_system and row % 2 == 0) for row in range(13)],
        "long answers": [write.long_answers() for _ in range(5)],
        "implicit": [write.implicit() for _ in range(7)],
    }
    if chat in WITH_TOOLS:
        rows["tools"] = [{**write.messages(), "tools": [TOOL]} for _ in range(4)]
        rows["tools as JSON"] = [{**write.messages(), "tools": json.dumps([TOOL])} for _ in range(4)]
    if chat == "qwen3":
        given = {"enable_thinking": False}
        rows["variables"] = [{**write.messages(), "chat_template_kwargs": given} for _ in range(4)]
    return rows


def text_rows() -> dict[str, list[Row]]:
    write = Writer(0)
    ended = [{**write.text(), "chosen": "done<|endoftext|>"} for _ in range(4)]
    prefix = [{"chosen": "the fox runs", "rejected": "the fox"}, {"chosen": "a", "rejected": "ab"}]
    return {
        "text": [*(write.text() for _ in range(12)), {"prompt": "a", "chosen": "b", "rejected": ""}],
        "ended": ended,
        "implicit text": [*(write.implicit_text() for _ in range(9)), *prefix],
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Cases by name, each with what trl makes of it."""
    folder = tmp_path_factory.mktemp("pairs")
    cases: dict[str, Any] = {}

    def add(tokenizer: Path, name: str, rows: list[Row]) -> None:
        for kind in ("dpo", "reward"):
            cases[f"{tokenizer.name}: {name}: {kind}"] = {"tokenizer": str(tokenizer), "kind": kind, "rows": rows}
        if all("prompt" in row for row in rows):
            judged = [{**row, **Writer(7).judged(row)} for row in rows]
            judged = [{key: row[key] for key in row if key not in ("chosen", "rejected")} for row in judged]
            judged[0]["label"] = not judged[1]["label"]
            cases[f"{tokenizer.name}: {name}: kto"] = {"tokenizer": str(tokenizer), "kind": "kto", "rows": judged}

    for chat in CHATS:
        tokenizer = make_tokenizer(folder / chat, chat)
        for name, rows in chat_rows(chat).items():
            add(tokenizer, name, rows)
    for name, rows in text_rows().items():
        add(folder / "plain" if name != "text" else make_tokenizer(folder / "plain", None), name, rows)
        add(folder / "bos" if name != "text" else make_tokenizer(folder / "bos", None, adds_bos=True), name, rows)
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, "-m", "tests.templates.trl_truth", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    truth = json.loads((folder / "truth.json").read_text())
    return {name: {**case, **truth[name]} for name, case in cases.items()}


def sequences(samples: Samples) -> list[list[tuple[list[int], int]]]:
    """For each sample its sequences, and how many tokens of each are not trained."""
    lengths = samples.columns["sequence_lengths"]
    assert lengths.offsets is not None
    made, place = [], 0
    for first, last in zip(lengths.offsets[:-1], lengths.offsets[1:], strict=True):
        own = []
        for size in lengths.values[first:last].tolist():
            mask = samples.loss_mask[place : place + size]
            prompt = int((~mask).sum())
            assert not mask[:prompt].any()
            own.append((samples.input_ids[place : place + size].tolist(), prompt))
            place += size
        made.append(own)
    return made


def test_ids_and_masks_are_those_of_trl(world: dict[str, Any]) -> None:
    num_rows = 0
    for name, case in world.items():
        template = open_template(
            "kto" if case["kind"] == "kto" else "preference", open_tokenizer(case["tokenizer"]), {}
        )
        made = sequences(template.encode(case["rows"]))
        for place, (row, found) in enumerate(zip(case["rows"], made, strict=True)):
            true, what = case["prepared"][place], (name, row)
            prompt = true.get("prompt_ids", [])
            answers = [true[key] for key in ("chosen_ids", "rejected_ids", "completion_ids") if key in true]
            assert [ids for ids, _ in found] == [prompt + answer for answer in answers], what
            if case["kind"] != "reward":
                assert {length for _, length in found} == {len(prompt)}, what
            num_rows += 1
    assert num_rows > 500
