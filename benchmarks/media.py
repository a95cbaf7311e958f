"""What do images cost?  Preparing records with images beside running the model's processor over them, and decoding them in the loader.

python benchmarks/media.py [--tiny]        about 3 GB of disk

Images are JPEGs of 512 to 2,048 pixels a side, made here; a record has one, under its own name, and some text.  The processor is
Qwen2.5-VL's (PIL back end), built from its class with the settings of the model.  Its loop opens an image, runs the whole processor and
takes the length: what verl's filter of long prompts and trl's length pass do.  All in one process, with one process for `prepare`.
"""

import hashlib
import json
import os
import random
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
from data import train_tokenizer
from stand import Benchmark, Report, Timing, anonymous, fresh, sized, take_turns

RECORDS = sized(8_000, 8)
FILES = min(RECORDS, 300)  # different images; the other records link to them under their own names
PROCESSED = min(RECORDS, 40)  # records that the processor runs over
LOADED = min(RECORDS, 40)  # images that are decoded
REPEAT = sized(3, 1)
SIDES = sized((512, 2048), (64, 128))
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
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start|>",
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

BENCHMARK = Benchmark(
    title="Images: preparing and loading",
    question="What do images cost: preparing records that have them, and decoding them in the loader?",
    measures=("extras.media", "loader", "store"),
    peers={
        "transformers": "Qwen2.5-VL's processor with the model's settings. Preparing: opens the image, runs the whole processor, takes the "
        f"length ({PROCESSED} records). Loading: Pillow and the image processor, nothing else"
    },
    packages=("pillow", "numpy", "torch"),
    notes=(
        f"{RECORDS:,} records with one JPEG each of {SIDES[0]} to {SIDES[1]:,} pixels a side ({FILES} different files); medians of "
        f"{REPEAT} runs, in turns",
        "penstock prepares: reads headers, counts, encodes and writes the store, one process, without its start",
        f"loading: {LOADED} images; all give the same patches",
    ),
)


def make_model(folder: Path) -> None:
    """A processor's folder with a small tokenizer."""
    from transformers import Qwen2VLImageProcessorPil

    train_tokenizer([" ".join(WORDS)] * 20, folder, vocabulary=400, special=SPECIAL, chat=CHAT)
    described = Qwen2VLImageProcessorPil().to_dict() | {"processor_class": "Qwen2_5_VLProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(described))


def make_images(folder: Path, sides: tuple[int, int] = SIDES) -> None:
    """Pictures with large and small shapes and a little noise, so that their JPEGs are as large as those of photographs."""
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(RECORDS):
        path = folder / f"{number}.jpg"
        if number >= FILES:
            os.link(folder / f"{number % FILES}.jpg", path)
            continue
        width, height = rng.integers(sides[0], sides[1] + 1, 2).tolist()
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


def run_prepare(folder: str, rows: int, cache: str) -> dict[str, float]:
    """In a process of its own: seconds of `prepare`, and the most anonymous memory during it."""
    import penstock.api  # noqa: F401  # imports are not counted

    peak, ended = [anonymous()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            peak[0] = max(peak[0], anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    begin = time.perf_counter()
    tokens = int(prepare(Path(folder), rows, cache).counts.tokens)
    seconds = time.perf_counter() - begin
    ended.set()
    thread.join()
    return {"seconds": seconds, "peak": peak[0], "tokens": tokens}


def measure_prepare(report: Report, folder: Path) -> dict[str, Timing]:
    """Timings of `prepare` and of the processor, in turns."""
    processor = whole_processor(folder)
    lines = (folder / "data.jsonl").read_text().splitlines()[:PROCESSED]
    records = [json.loads(line)["messages"] for line in lines]
    found = []
    timings = {"penstock, prepare": Timing(RECORDS), "processor, prepare": Timing(PROCESSED)}
    for turn in range(REPEAT):
        found.append(fresh(run_prepare, folder, RECORDS, f"cache-{turn}").value)
        timings["penstock, prepare"].wall.append(found[-1]["seconds"])
        timings["penstock, prepare"].cpu.append(0.0)  # it is another process's
        one, _ = take_turns({"": (PROCESSED, partial(process, folder, processor, records))}, 1)
        timings["processor, prepare"].wall += one[""].wall
        timings["processor, prepare"].cpu += one[""].cpu
    report.ratio(
        "prepare",
        "prepare: rows per second, against the processor",
        timings["processor, prepare"],
        timings["penstock, prepare"],
        peer="transformers",
        at_least=40,
        digits=0,
    )
    few = fresh(run_prepare, folder, RECORDS // 4, "cache-few").value
    growth = [run["peak"] - few["peak"] for run in found]
    what = "prepare: anonymous memory, all rows against a quarter"
    report.number("memory", what, growth, "MiB", at_most=16, digits=1)
    return timings


def measure_load(report: Report, folder: Path) -> dict[str, Timing]:
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
    timings = take_turns(works, REPEAT)[0]
    bare, one = timings["Pillow and processor"].cpu, timings["loader, 1 thread"].cpu
    ratios = [a / b for a, b in zip(bare, one, strict=True)]
    what = "load: images per second of CPU, against Pillow and processor"
    why = "both decode and resize with Pillow; the loader also hands batches over"
    report.number("load", what, ratios, "×", peer="transformers", at_least=0.9, why=why)
    for key, name, what, more in (
        ("threads", "loader", "load: two threads over one", {"at_least": 1.6}),
        ("control", "sha256", "control: sha256, two threads over one; 2 × on two free cores", {}),
    ):
        one, two = timings[f"{name}, 1 thread"].wall, timings[f"{name}, 2 threads"].wall
        report.number(key, what, [a / b for a, b in zip(one, two, strict=True)], "×", **more)
    return timings


def main(report: Report) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_model(folder / "model")
        make_images(folder / "images")
        make_records(folder)
        timings = measure_prepare(report, folder) | measure_load(report, folder)
    rows = []
    for name, timing in timings.items():
        cpu = f"{timing.cpu_per_sample / 1e3:,.1f}" if any(timing.cpu) else ""
        speed = f"{timing.num_samples / timing.seconds:,.1f}"
        rows.append([name, speed, timing.spread(), cpu])
    header = ["way", "per second", "seconds (least–most)", "CPU ms each"]
    report.table("Every way", header, rows)


if __name__ == "__main__":
    BENCHMARK.run(main)
