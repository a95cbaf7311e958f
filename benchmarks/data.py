"""Made-up data that several benchmarks share.  Not a benchmark itself."""

import json
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

from stand import sized

CHAT = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def given_tokenizers() -> list[Path]:
    """Folders with a tokenizer.json: those of the command line, and of BENCH_TOKENIZERS, which has them as PATH has folders."""
    words = [*sys.argv[1:], *os.environ.get("BENCH_TOKENIZERS", "").split(os.pathsep)]
    return [
        Path(word).resolve() for word in words if word and (Path(word) / "tokenizer.json").exists()
    ]


@cache
def library_lines() -> list[str]:
    """Lines of the standard library: code, prose and names, about 20 MB, which no cache has seen."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    files = [file for file in files if "site-packages" not in file.parts]
    return [
        line
        for file in files[: sized(len(files), 30)]
        for line in file.read_text(errors="replace").splitlines()
        if len(line.strip()) > 20
    ]


def train_tokenizer(
    lines: list[str],
    folder: Path,
    *,
    vocabulary: int = 32_000,
    special: list[str] = SPECIAL,
    chat: str = CHAT,
) -> Path:
    """A byte-level BPE with a chat template, as a tokenizer's folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=sized(vocabulary, min(vocabulary, 1000)),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": special[0], "chat_template": chat}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def small_tokenizer(folder: Path) -> Path:
    """A thousand ids: where loading a large one is another benchmark's question."""
    text = ["document row some words 0 1 2 3 4 5 6 7 8 9"] * 10
    return train_tokenizer(text, folder, vocabulary=1000)
