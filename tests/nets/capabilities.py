"""Record what capabilities give for fixed inputs: preferences, media, changing mixtures, prompts, workers, a bucket.

Each function returns digests of content (tokens, arrays, places in files), never keys or states: those may change
with a format version, the content may not.
"""

import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from tests.extras.media import vlm
from tests.nets.data import lines, text

PREFERENCES: dict[str, dict[str, Any]] = {
    "preference": {"template": "preference"},
    "kto": {"template": "kto"},
    "stepwise": {"template": "stepwise"},
    "prompt": {"template": "prompt"},
}
FAMILIES = ("qwen2_5_vl", "qwen3_vl")


def digest(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()[:16]


def value_bytes(value: Any) -> bytes:
    """The content of a batch's value; integers of any width are the same content."""
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        array = np.asarray(value)
        if array.dtype.kind in "iub":
            array = array.astype(np.int64)
        return repr(array.shape).encode() + array.tobytes()
    return repr(value).encode()


def batch_bytes(batch: Any) -> bytes:
    """Names and values of a batch, and the file, line and span of everything in it."""
    parts = [name.encode() + b"=" + value_bytes(batch[name]) for name in sorted(batch)]
    places = [
        [(Path(where.file).name, where.line, *span) for where, *span in row]
        for row in batch.provenance
    ]
    parts.append(repr(places).encode())
    return b"\n".join(parts)


def batches_digest(batches: Iterable[Any]) -> str:
    return digest(batch_bytes(batch) for batch in batches)


def counters_of(loader: Any) -> dict[str, Any]:
    """The counters of a loader as plain JSON."""
    names = [field.name for field in dataclasses.fields(loader.counters)]
    values = {name: getattr(loader.counters, name) for name in names}
    return dict(json.loads(json.dumps(values, sort_keys=True)))


def preference_rows(kind: str, count: int) -> list[dict[str, Any]]:
    rng = random.Random(f"nets {kind}")
    rows = []
    for _ in range(count):
        prompt = text(rng, 12)
        match kind:
            case "preference":
                answers = {"chosen": " " + text(rng, 9), "rejected": " " + text(rng, 9)}
                rows.append({"prompt": prompt, **answers})
            case "kto":
                answer = {"completion": " " + text(rng, 9), "label": rng.random() < 0.5}
                rows.append({"prompt": prompt, **answer})
            case "stepwise":
                steps = [text(rng, 5) for _ in range(rng.randint(1, 4))]
                labels = [rng.random() < 0.5 for _ in steps]
                rows.append({"prompt": prompt, "completions": steps, "labels": labels})
            case "prompt":
                rows.append({"prompt": prompt, "answer": rng.randrange(100)})
    return rows


def common_options(folder: Path) -> dict[str, Any]:
    return {
        "tokenizer": folder / "chatml",
        "cache_dir": folder / "cache",
        "num_proc": 1,
        "progress": "none",
    }


def preferences(folder: Path) -> dict[str, Any]:
    """Tokens and batches of pairs, judged answers, judged steps and prompts, on one rank and on the second of two."""
    results: dict[str, Any] = {}
    for kind, options in PREFERENCES.items():
        path = folder / f"{kind}.jsonl"
        path.write_text(lines(preference_rows(kind, 40)))
        store = ps.prepare(path, **common_options(folder), **options)
        samples = [store[row] for row in range(len(store))]
        results[kind] = {
            "samples": len(store),
            "ids": digest(np.asarray(sample.input_ids, np.int64).tobytes() for sample in samples),
            "mask": digest(np.packbits(sample.loss_mask).tobytes() for sample in samples),
        }
        for rank, world_size in ((0, 1), (1, 2)):
            loader = ps.Loader(
                store,
                batch_size=4,
                max_length=200,
                packing="none",
                output="numpy",
                rank=rank,
                world_size=world_size,
                last_step="drop",
            )
            results[kind][f"rank {rank} of {world_size}"] = batches_digest(loader)
            results[kind][f"counters of rank {rank}"] = counters_of(loader)
    return results


def media(folder: Path) -> dict[str, Any]:
    """Tokens and pixels of two families of vision-language models, packed and not packed."""
    results: dict[str, Any] = {}
    for family in FAMILIES:
        home = folder / family
        home.mkdir()
        vlm.make_data(home, family)
        store = vlm.prepare(home)
        samples = [store[row] for row in range(len(store))]
        results[family] = {
            "ids": digest(np.asarray(sample.input_ids, np.int64).tobytes() for sample in samples)
        }
        for packing in ("none", "first_fit"):
            loader = ps.Loader(store, batch_size=2, max_length=160, packing=packing, output="numpy")
            results[family][packing] = batches_digest(loader)
    return results


def changes(folder: Path) -> dict[str, Any]:
    """A run that changes its mixture twice, is saved in between and goes on in a new loader."""
    stores = {
        name: ps.prepare(
            [{"text": text(random.Random(f"{name} {row}"), 30)} for row in range(count)],
            template="text",
            **common_options(folder),
        )
        for name, count in (("web", 90), ("code", 60), ("chat", 40))
    }

    first = {"web": (stores["web"], 0.5), "code": (stores["code"], 0.5)}
    second = {
        "web": (stores["web"], 0.3),
        "code": (stores["code"], 0.3),
        "chat": (stores["chat"], 0.4),
    }
    third = {"web": (stores["web"], 0.2), "chat": (stores["chat"], 0.8)}
    options: dict[str, Any] = {
        "batch_size": 3,
        "max_length": 200,
        "packing": "first_fit",
        "block": 32,
        "output": "numpy",
    }
    loader = ps.Loader(first, **options)
    delivered = []
    for step, batch in enumerate(loader):
        delivered.append(batch_bytes(batch))
        if step == 2:
            loader.change_mixture(second)
        if step == 6:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    again = ps.Loader(third, **options)
    again.load_state_dict(state, changes=True)
    rest = [batch_bytes(batch) for batch in again]
    return {
        "before": digest(delivered),
        "after": digest(rest),
        "steps": [len(delivered), len(rest)],
        "counters": counters_of(loader),
    }


def prompts(folder: Path) -> dict[str, Any]:
    """Random histories of leases: what is taken, in which order, over resumes."""
    results = {}
    for seed in range(4):
        rng = random.Random(seed)
        options: dict[str, Any] = {"seed": seed, "epochs": 2, "repeats": 1 + seed % 2}
        records = [{"id": number} for number in range(37)]
        owner = ps.Prompts(ps.open(records), **options)
        history: list[Any] = []
        open_prompts: list[Any] = []
        for _ in range(60):
            action = rng.choice(["take", "take", "done", "drop", "back", "resume"])
            if action == "take":
                taken = owner.take(rng.randint(1, 6))
                history.append([(prompt.ordinal, prompt.record["id"]) for prompt in taken])
                open_prompts += taken
                continue
            if action == "resume":
                state = json.loads(json.dumps(owner.state_dict()))
                owner = ps.Prompts(ps.open(records), **options)
                owner.load_state_dict(state)
                open_prompts = []
                history.append("resume")
                continue
            chosen = rng.sample(open_prompts, min(len(open_prompts), rng.randint(0, 4)))
            open_prompts = [prompt for prompt in open_prompts if prompt not in chosen]
            history.append([action, [prompt.ordinal for prompt in chosen]])
            match action:
                case "done":
                    owner.done(chosen)
                case "drop":
                    owner.drop(chosen, why="too hard")
                case "back":
                    owner.back(chosen)
        results[f"history {seed}"] = digest([json.dumps(history).encode()])
    return results


def workers(folder: Path) -> dict[str, Any]:
    """Two passes of torch's DataLoader with two persistent workers, next to two passes of the loader itself."""
    from torch.utils.data import DataLoader

    store = ps.prepare(folder / "data" / "chat.jsonl", **common_options(folder))

    def make_loader() -> Any:
        return ps.Loader(
            store, batch_size=3, max_length=600, packing="first_fit", per_epoch=True, epochs=2
        )

    alone = make_loader()
    expected = [value_bytes(batch["input_ids"]) for _ in range(2) for batch in alone]
    torch_loader = DataLoader(
        make_loader().as_dataset(), batch_size=None, num_workers=2, persistent_workers=True
    )
    delivered = [value_bytes(batch["input_ids"]) for _ in range(2) for batch in torch_loader]
    return {"alone": digest(expected), "workers": digest(delivered)}


def background(folder: Path) -> dict[str, Any]:
    """A store that is made while it is read, with a window; the same batches as from a finished store."""
    path = folder / "data" / "parts"
    results = {}
    for name, is_background in (("finished", False), ("in the background", True)):
        options = common_options(folder) | {"cache_dir": folder / f"cache {name}"}
        store = ps.prepare(path, template="text", background=is_background, **options)
        loader = ps.Loader(
            store,
            batch_size=2,
            max_length=400,
            packing="first_fit",
            shuffle_window=2,
            output="numpy",
        )
        results[name] = batches_digest(loader)
    return results


def bucket(folder: Path) -> dict[str, Any]:
    """A store in a bucket (moto), made by one process and read by another with an empty mirror.

    In processes of their own, because a process remembers the bucket's address.
    """
    command = [sys.executable, "-m", "tests.nets.bucket", str(folder)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    return dict(json.loads(printed.stdout.splitlines()[-1]))


def record_capabilities(folder: Path) -> dict[str, Any]:
    return {
        "preferences": preferences(folder),
        "media": media(folder),
        "changes": changes(folder),
        "prompts": prompts(folder),
        "workers": workers(folder),
        "background": background(folder),
        "bucket": bucket(folder),
    }
