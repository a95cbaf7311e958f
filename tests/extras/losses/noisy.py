"""Questions with a rule, some of them with another one's answer; a small model that is trained on them; and its losses."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

import penstock as ps
from penstock.store import Store

LETTERS = "abcdefghij"
SIZE = 4  # letters of a question, and of its answer


def make_data(folder: Path, num_samples: int, share: float, seed: int = 0) -> set[int]:
    """Write questions and answers, some of which are shuffled, with a tokenizer; return the rows with an answer of another one."""
    rng = random.Random(seed)
    rule = dict(zip(LETTERS, rng.sample(LETTERS, len(LETTERS)), strict=True))
    questions = ["".join(rng.choices(LETTERS, k=SIZE)) for _ in range(num_samples)]
    answers = ["".join(rule[letter] for letter in question) for question in questions]
    shuffled = sorted(rng.sample(range(num_samples), round(share * num_samples)))
    right = [answers[row] for row in shuffled]
    for place, row in enumerate(shuffled):
        answers[row] = right[(place + 1) % len(shuffled)]
    lines = [
        {"prompt": question, "completion": answer}
        for question, answer in zip(questions, answers, strict=True)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = ["<eos>", *LETTERS]
    tokenizer = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<eos>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    config = {"eos_token": "<eos>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
    return set(shuffled)


def open_store(folder: Path) -> Store:
    return ps.prepare(
        folder / "data.jsonl",
        tokenizer=folder / "tokenizer",
        template="prompt_completion",
        cache_dir=folder / "cache",
        num_proc=1,
    )


def make_model() -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=len(LETTERS) + 1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)
