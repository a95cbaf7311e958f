"""What do images cost?  Preparing records with images beside running the model's processor over them, and decoding them in the loader.

    python benchmarks/media.py [RECORDS]        20,000 records by default; about half an hour and 3 GB of disk.  Writes results/media.md.

Images are JPEGs of 512 to 2,048 pixels a side, made here; a record has one, under its own name, and some text.  The processor is
Qwen2.5-VL's (PIL back end), built from its class with the settings of the model.  Its loop opens an image, runs the whole processor and
takes the length: what verl's filter of long prompts and trl's length pass do.  All in one process, with one process for `prepare`.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from stand import Page, Timing, Verdict, table, take_turns

RECORDS = int(next((word for word in sys.argv[1:] if word.isdigit()), 20_000))
FILES = min(
    RECORDS, 500
)  # different images; the other records link to them under names of their own
PROCESSED = min(RECORDS, 60)  # records that the processor runs over
LOADED = min(RECORDS, 60)  # images that are decoded
REPEAT = 5
SIDES = (512, 2048)
WORDS = [
    "what",
    "does",
    "this",
    "picture",
    "show",
    "a",
    "house",
    "and",
    "two",
    "dogs",
    "in",
    "the",
    "garden",
    "behind",
    "it",
]
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
)


def make_model(folder: Path) -> None:
    """A processor's folder with a small tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2VLImageProcessorPil

    folder.mkdir()
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT})
    )
    described = Qwen2VLImageProcessorPil().to_dict() | {"processor_class": "Qwen2_5_VLProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(described))


def make_images(folder: Path) -> None:
    """Pictures with large and small shapes and a little noise, so that their JPEGs are as large as those of photographs."""
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(RECORDS):
        path = folder / f"{number}.jpg"
        if number >= FILES:
            os.link(folder / f"{number % FILES}.jpg", path)
            continue
        width, height = rng.integers(SIDES[0], SIDES[1] + 1, 2).tolist()
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        noise = rng.integers(0, 24, (height, width, 3), np.uint8)
        Image.fromarray(np.asarray(coarse) // 8 * 7 + noise).save(path, quality=85)


def make_records(folder: Path) -> None:
    rng = random.Random(0)
    with (folder / "data.jsonl").open("w") as file:
        for number in range(RECORDS):
            question, answer = (
                " ".join(rng.choices(WORDS, k=rng.randrange(8, 40))) for _ in range(2)
            )
            parts = [
                {"type": "image", "image": f"images/{number}.jpg"},
                {"type": "text", "text": question},
            ]
            talk = [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": talk}) + "\n")


def prepare(folder: Path, rows: int, cache: str) -> Any:
    import penstock as ps

    source = ps.open(folder / "data.jsonl", cache_dir=folder / cache)[:rows]
    options = {
        "tokenizer": folder / "model",
        "cache_dir": folder / cache,
        "num_proc": 1,
        "progress": "none",
    }
    return ps.prepare(source, template="messages", media_root=str(folder), **options)


def anonymous() -> float:
    """MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def run_prepare(folder: str, rows: str, cache: str) -> None:
    """In a process of its own: seconds of `prepare`, and the most anonymous memory during it."""
    import penstock.api  # noqa: F401  # imports are not counted

    peak, ended = [anonymous()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            peak[0] = max(peak[0], anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    begin = time.perf_counter()
    tokens = int(prepare(Path(folder), int(rows), cache).counts.tokens)
    seconds = time.perf_counter() - begin
    ended.set()
    thread.join()
    print(json.dumps({"seconds": seconds, "peak": peak[0], "tokens": tokens}))


def in_process(*words: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--run", *map(str, words)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def whole_processor(folder: Path) -> Any:
    import transformers

    class NoVideo(transformers.Qwen2_5_VLProcessor):  # type: ignore[misc]  # videos need torchvision
        def __init__(self, image_processor: Any = None, tokenizer: Any = None, **_: Any) -> None:
            super().__init__(image_processor, tokenizer, None)

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "model" / "tokenizer.json")
    )
    return NoVideo(transformers.Qwen2VLImageProcessorPil(), tokenizer)


def process(folder: Path, processor: Any, records: list[Any]) -> int:
    """The length of each record, as the processor finds it."""
    from transformers.image_utils import load_image

    total = 0
    for messages in records:
        text = processor.tokenizer.apply_chat_template(messages, chat_template=CHAT, tokenize=False)
        image = load_image(str(folder / messages[0]["content"][0]["image"]))
        total += len(processor(text=[text], images=[image])["input_ids"][0])
    return total


def bare_loop(folder: Path, image_processor: Any) -> int:
    """Pillow and the image processor, nothing else."""
    from transformers.image_utils import load_image

    return sum(
        image_processor(
            images=[load_image(str(folder / "images" / f"{number}.jpg"))], return_tensors="np"
        )["pixel_values"].shape[0]
        for number in range(LOADED)
    )


def load(store: Any, **options: Any) -> int:
    """The first images through the loader; the number of patches."""
    import penstock as ps

    given = {
        "batch_size": 4,
        "max_length": 2048,
        "packing": "none",
        "shuffle": False,
        "output": "numpy",
    }
    batches: Iterator[Any] = iter(ps.Loader(store, **given, **options))
    return sum(len(batch["pixel_values"]) for batch in islice(batches, LOADED // 4))


def hash_much(threads: int) -> None:
    """A control: how much two threads can do on this machine just now."""
    data = bytes(1 << 25)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: hashlib.sha256(data).digest(), range(8)))


def measure_prepare(folder: Path) -> tuple[dict[str, Timing], list[dict[str, Any]]]:
    """Timings of `prepare` and of the processor, in turns, and what each run of `prepare` found."""
    processor, found = whole_processor(folder), []
    lines = (folder / "data.jsonl").read_text().splitlines()[:PROCESSED]
    records = [json.loads(line)["messages"] for line in lines]
    caches = iter(range(REPEAT))
    works: dict[str, tuple[int, Callable[[], Any]]] = {
        "penstock": (
            RECORDS,
            lambda: found.append(in_process(folder, RECORDS, f"cache-{next(caches)}")),
        ),
        "processor": (PROCESSED, partial(process, folder, processor, records)),
    }
    timings, _ = take_turns(works, REPEAT)
    timings["penstock"].wall = [
        each["seconds"] for each in found
    ]  # without the start of its process
    return timings, found


def measure_load(folder: Path) -> dict[str, Timing]:
    from transformers import Qwen2VLImageProcessorPil

    store = prepare(folder, RECORDS, "cache-0")
    image_processor = Qwen2VLImageProcessorPil()
    assert bare_loop(folder, image_processor) == load(store)  # the same patches
    works: dict[str, tuple[int, Callable[[], Any]]] = {
        "Pillow and processor": (LOADED, partial(bare_loop, folder, image_processor)),
        "loader, 1 thread": (LOADED, partial(load, store, media_threads=1)),
        "loader, 2 threads": (LOADED, partial(load, store, media_threads=2)),
        "sha256, 1 thread": (8, partial(hash_much, 1)),
        "sha256, 2 threads": (8, partial(hash_much, 2)),
    }
    return take_turns(works, REPEAT)[0]


def main() -> None:
    page = Page(
        "media",
        "Images: preparing and loading",
        packages=["transformers", "Pillow", "numpy", "torch"],
        notes=(
            f"{RECORDS:,} records with one JPEG each of {SIDES[0]} to {SIDES[1]:,} pixels a side ({FILES} different files); Qwen2.5-VL's "
            f"processor with the model's settings; medians of {REPEAT} runs, in turns",
            f"processor: opens the image, runs the whole processor, takes the length ({PROCESSED} records); penstock: reads headers, "
            f"counts, encodes and writes the store, one process, without its start",
            f"loading: {LOADED} images; the bare loop is Pillow and the image processor; all give the same patches",
        ),
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_model(folder / "model")
        make_images(folder / "images")
        make_records(folder)
        prepared, runs = measure_prepare(folder)
        few = in_process(folder, RECORDS // 4, "cache-few")
        loaded = measure_load(folder)
    rates = {name: timing.num_samples / timing.seconds for name, timing in prepared.items()}
    ratio, growth = (
        rates["penstock"] / rates["processor"],
        max(run["peak"] for run in runs) - few["peak"],
    )
    per_core = (
        loaded["Pillow and processor"].cpu_per_sample / loaded["loader, 1 thread"].cpu_per_sample
    )
    twice, control = (
        loaded[f"{name}, 1 thread"].seconds / loaded[f"{name}, 2 threads"].seconds
        for name in ("loader", "sha256")
    )
    verdicts = [
        Verdict(
            "prepare: rows per second, against the processor",
            f"{ratio:.0f} ×",
            "≥ 40 ×",
            ratio >= 40,
        ),
        Verdict(
            "prepare: anonymous memory, all rows against a quarter",
            f"{growth:+.1f} MiB",
            "flat (within 16 MiB)",
            growth < 16,
        ),
        Verdict(
            "load: images per second of CPU, against Pillow and processor",
            f"{per_core:.2f} ×",
            "≥ 0.9 ×",
            per_core >= 0.9,
        ),
        Verdict("load: two threads against one", f"{twice:.2f} ×", "≥ 1.6 ×", twice >= 1.6),
        Verdict(
            "control: sha256, two threads against one",
            f"{control:.2f} ×",
            "about 2 × on two free cores",
        ),
    ]
    rows = [
        [
            name,
            f"{timing.num_samples / timing.seconds:,.1f}",
            timing.spread(),
            f"{timing.cpu_per_sample / 1e3:,.1f}",
        ]
        for name, timing in (prepared | loaded).items()
    ]
    rows[0][-1] = ""  # its CPU is another process's
    header = ["way", "per second", "seconds (least–most)", "CPU ms each"]
    page.write(verdicts, {"Every way": table(header, rows)})


if __name__ == "__main__":
    if "--run" in sys.argv:
        run_prepare(*sys.argv[sys.argv.index("--run") + 1 :])
    else:
        main()
