"""Record what the package gives for fixed inputs: samples of stores, batches of loaders, JSON of commands.

    python -m tests.nets.record        write recorded.json again, and print what changed

Only the public interface is used, so the record outlives any move or rename inside the package.  A change of it is a change of data
or of output: the change log must name it.
"""

import contextlib
import hashlib
import io
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.cli.main import run
from penstock.errors import PenstockError
from tests.nets.capabilities import counters_of, record_capabilities
from tests.nets.data import CHAT_TEMPLATES, RECIPES, lines, records, write_all
from tests.store.test_keys import CHAT, OPTIONS, RECORDS

RECORDED = Path(__file__).with_name("recorded.json")
ENGINES = ["tokenizers", "fastokens", "jinja2"]  # in the keys of stores

TRAIN_ON: list[Any] = ["assistant", "last", "completion", "all", ["user"]]
KINDS = {"chat": "messages", "agents": "messages", "sharegpt": "sharegpt", "alpaca": "alpaca"}
LOCAL = {
    "num_bytes",
    "num_own",
    "seconds",
    "time",
    "used",
}  # differ from run to run, or with the length of a path
COMMANDS = {
    "check": ["check", "{}", "--json"],
    "show": ["show", "{}", "--row", "3", "--json"],
    "prepare": ["prepare", "{}", "--json"],
    "show step": ["show", "{}", "--step", "1", "--json"],
    "stats": ["stats", "{}", "--json"],
    "plan": ["plan", "{}", "--json"],
    "plan of two ranks": ["plan", "{}", "--world-size", "2", "--epoch", "1", "--json"],
    "trace": ["trace", "{}", "--step", "0", "--json"],
    "verify": ["verify", "{}", "--json"],
    "cache": ["cache", "ls", "--json"],
    "cache why": ["cache", "why", "{}", "--json"],
}


def digest(parts: Iterator[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:16]


def outcome(make: Callable[[], Any]) -> Any:
    """The result, or the class of the error.  Wording may change; what is refused may not."""
    try:
        return make()
    except PenstockError as error:
        return f"refused: {type(error).__name__}"


def store_record(store: Any) -> dict[str, Any]:
    samples = [store[row] for row in range(len(store))]
    ids = digest(np.asarray(sample.input_ids, np.int64).tobytes() for sample in samples)
    mask = digest(np.packbits(sample.loss_mask).tobytes() for sample in samples)
    trained = sum(int(np.count_nonzero(sample.loss_mask)) for sample in samples)
    return {
        "ids": ids,
        "mask": mask,
        "samples": len(store),
        "tokens": sum(map(len, samples)),
        "trained": trained,
        "key": store.fingerprint,
    }


def stores(folder: Path) -> dict[str, Any]:
    """Every template × every option, then every kind of conversation × chat template × what is trained."""

    def made(path: Path, tokenizer: str, **options: Any) -> Any:
        common = {"cache_dir": folder / "cache", "num_proc": 1, "progress": "none"}
        return outcome(
            lambda: store_record(
                ps.prepare(path, tokenizer=folder / tokenizer, **common, **options)
            )
        )

    found = {}
    path = folder / "rows.jsonl"
    for template, choices in OPTIONS.items():
        path.write_text(lines(RECORDS[template]))
        for options in [{}, *choices]:
            found[f"{template} {json.dumps(options, sort_keys=True)}"] = made(
                path, "chatml", template=template, **options
            )
    for kind, template in KINDS.items():
        path.write_text(lines(records(kind, 24, 7)))
        for tokenizer in CHAT_TEMPLATES:
            for train_on in TRAIN_ON:
                for more in ({}, {"fan_out": True}, {"train_reasoning": False}):
                    name = f"{kind} {tokenizer} {train_on} {json.dumps(more)}"
                    found[name] = made(
                        path, tokenizer, template=template, train_on=train_on, **more
                    )
    return found


def random_settings(rng: random.Random) -> dict[str, Any]:
    choices: dict[str, list[Any]] = {
        "packing": ["best_fit", "first_fit", "next_fit", "window_7", "concat", "none", "group_4"],
        "on_overlong": ["drop", "truncate", "split"],
        "last_step": ["pad", "drop", "repeat", "wrap"],
        "shuffle": [True, True, False],
        "shuffle_window": ["auto", "all", 1, 3],
        "seed": [0, 1, 12345],
        "epochs": [1, 2],
        "block": [16, 100, 65536],
        "align": [1, 1, 8],
        "max_per_row": [None, None, 3],
        "padding": ["longest", "max_length"],
        "padding_free": [False, False, True],
        "pad_side": ["right", "left"],
        "pad_to_multiple_of": [1, 16],
        "labels": ["unshifted", "shifted"],
        "attention_mask": ["auto", "none"],
        "max_length": [48, 120, 400],
        "batch_size": [1, 3, 4],
        "per_epoch": [False, True],
        "prefetch": [0, 2],
    }
    return {name: rng.choice(values) for name, values in choices.items()}


def batches_record(loader: Any) -> dict[str, Any]:
    parts, tokens, middle = [], 0, None
    for step, batch in enumerate(loader):
        for name in sorted(batch):
            value = batch[name]
            parts.append(name.encode())
            parts.append(
                np.asarray(value).astype(np.int64).tobytes()
                if isinstance(value, np.ndarray)
                else repr(value).encode()
            )
        parts.append(
            repr(
                [
                    [(Path(where.file).name, where.line, *span) for where, *span in row]
                    for row in batch.provenance
                ]
            ).encode()
        )
        tokens += int(np.asarray(batch["input_ids"]).size)
        if step == 2:
            middle = loader.state_dict()
    state = digest(iter([json.dumps(middle, sort_keys=True).encode()]))
    return {
        "batches": digest(iter(parts)),
        "steps": len(loader),
        "tokens": tokens,
        "counters": counters_of(loader),
        "key": state,
    }


def batches(folder: Path, count: int = 60) -> dict[str, Any]:
    """`count` accepted random settings, and those refused between them, × ranks, over one store, two, and two with weights."""
    common = {
        "cache_dir": folder / "cache",
        "num_proc": 1,
        "progress": "none",
        "tokenizer": folder / "chatml",
    }
    chat = ps.prepare(folder / "data" / "chat.jsonl", **common)
    text = ps.prepare(folder / "data" / "parts", template="text", **common)
    mixtures: list[Any] = [chat, text, [chat, text], {"chat": (chat, 0.6), "text": (text, 0.4)}]
    found = {}
    number = accepted = 0
    while accepted < count:
        number += 1
        rng = random.Random(f"recipe {number}")
        chosen, settings = rng.choice(mixtures), random_settings(rng)
        if isinstance(chosen, dict):
            settings |= {
                "mix_by": rng.choice(["samples", "tokens"]),
                "stop": rng.choice(["first", "all"]),
            }
        for rank, size in ((0, 1), (1, 2), (2, 3)):
            world = {"rank": rank, "world_size": size, "output": "numpy", "max_dropped": 1}
            found[f"{number} rank {rank} of {size}"] = outcome(
                lambda chosen=chosen, settings=settings | world: batches_record(
                    ps.Loader(chosen, **settings)
                )
            )
        accepted += isinstance(found[f"{number} rank 0 of 1"], dict)
    return found


def bare(value: Any, key: str = "") -> Any:
    """JSON without what differs between machines, and without words: sentences may be reworded."""
    if isinstance(value, dict):
        return {name: bare(item, name) for name, item in value.items()}
    if isinstance(value, list):
        items = [bare(item, key) for item in value]
        if key == "stores":  # in the order of their last use
            items.sort(key=json.dumps)
        return items if len(items) <= 8 else digest(iter([json.dumps(items).encode()]))
    if isinstance(value, str):
        if re.fullmatch(r"[0-9a-f]{8,64}", value):
            return "<digest>"
        return "<words>" if " " in value or "/" in value else value
    return "<local>" if key in LOCAL else value


def commands(folder: Path) -> dict[str, Any]:
    """The exit code and the JSON of every command, on every recipe."""
    found: dict[str, Any] = {}
    with contextlib.chdir(folder):
        os.environ["PENSTOCK_CACHE"] = str(folder / "command cache")
        for recipe in RECIPES:
            for name, arguments in COMMANDS.items():
                with (
                    contextlib.redirect_stdout(io.StringIO()) as out,
                    contextlib.redirect_stderr(io.StringIO()),
                ):
                    code = run([argument.format(f"{recipe}.yaml") for argument in arguments])
                printed = out.getvalue()
                found[f"{recipe}: {name}"] = {
                    "exit": code,
                    "json": bare(json.loads(printed)) if printed.strip() else None,
                }
    return found


def record(folder: Path) -> dict[str, Any]:
    write_all(folder)
    (folder / "chatml" / "chat_template.jinja").write_text(CHAT)
    return {
        "versions": {name: version(name) for name in ENGINES},
        "stores": stores(folder),
        "batches": batches(folder),
        "commands": commands(folder),
        "capabilities": record_capabilities(folder),
    }


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        return [
            line
            for name in names
            for line in differences(old.get(name), new.get(name), f"{at} / {name}" if at else name)
        ]
    return [] if old == new else [f"{at}: {json.dumps(old)} → {json.dumps(new)}"]


def without_keys(recorded: Any) -> Any:
    """The record without the keys of stores, which name the versions of the tokenizer and template engines."""
    if isinstance(recorded, dict):
        return {
            name: without_keys(value)
            for name, value in recorded.items()
            if name not in ("key", "versions")
        }
    return recorded


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        found = record(Path(scratch).resolve())
    old = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    changed = differences(old, found)
    sys.stdout.write(
        "\n".join([*(line[:300] for line in changed[:100]), f"{len(changed)} differences"]) + "\n"
    )
    RECORDED.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
