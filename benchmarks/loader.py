"""How fast do batches come, and again after a stop?  Beside four peers; also resume, start, memory.  Writes results/loader.md.

    python benchmarks/loader.py [FOLDER]          all questions, about six minutes; data is made in FOLDER, unless it is there
    python benchmarks/loader.py --quick           one ratio, for quick.py
    python benchmarks/loader.py run NAME FOLDER   one contestant in this process (the script starts itself so)

Contestants run one at a time, each in a fresh process, and take turns, so that a busy neighbour slows them all alike; medians count.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import penstock as ps
from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.loader.batch import Metrics
from penstock.sources import open_source
from penstock.store import Store, build
from penstock.types import Samples

ROOT = Path(__file__).resolve().parent
VOCAB, MAX_LENGTH, ROWS = 50_000, 4096, 8
TOKENS = MAX_LENGTH * ROWS  # of a batch
SAMPLES = {
    "mid": (100_000, 5.8, 1.0),
    "million": (1_000_000, 3.8, 0.7),
}  # number, and of the lengths' logarithm: mean, deviation
TURN = 120  # tokens of a turn: every second one is trained
SECONDS = 2.0  # a contestant that needs longer for an epoch is stopped
REPEAT = 3
EPOCHS = 10


class MadeUp:
    """A template that makes tokens of a number: turns as in a chat, half of them trained; or all, as in a text."""

    vocab_size = VOCAB

    def __init__(self, name: str, *, trained: str = "turns") -> None:
        number, mean, deviation = SAMPLES[name]
        drawn = np.random.default_rng(0).lognormal(mean, deviation, number)
        self._lengths = np.clip(drawn, 8, MAX_LENGTH).astype(np.int64)
        self._name, self._trained = name, trained

    def identity(self) -> dict[str, Any]:
        return {"template": "made up", "name": self._name, "trained": self._trained}

    def encode(self, records: Iterable[dict[str, Any]]) -> Samples:
        numbers = np.array([record["n"] for record in records], np.int64)
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
        ids = (np.repeat(numbers * 7919, lengths) + places * 104_729) % VOCAB
        mask = (
            (places // TURN) % 2 == 1
            if self._trained == "turns"
            else np.ones(places.size, np.bool_)
        )
        mask[ends - 1] = True
        return Samples(
            input_ids=ids.astype(np.uint32), loss_mask=mask, offsets=np.concatenate(([0], ends))
        )

    def decode(self, input_ids: Any) -> str:
        return " ".join(map(str, input_ids))


def open_store(folder: Path, name: str, trained: str = "turns") -> Store:
    cache = Cache(folder / "cache")
    source = open_source([{"n": n} for n in range(SAMPLES[name][0])], cache=cache, name=name)
    return build(
        source, MadeUp(name, trained=trained), engine=LocalEngine(1), cache=cache, shard_rows=10_000
    )


def loader_of(store: Store, **options: Any) -> ps.Loader:
    return ps.Loader(
        store, **{"batch_size": ROWS, "max_length": MAX_LENGTH, "output": "numpy", **options}
    )


# The contestants: each gives the tokens of its batches, one number per batch, from the second batch on.


def ours(folder: Path, trained: str = "turns", **options: Any) -> Iterator[int]:
    for batch in loader_of(open_store(folder, "mid", trained), **options):
        yield int(batch["cu_seqlens"][-1])


def datasets_map(folder: Path, workers: int = 0) -> Iterator[int]:
    """A data set of Arrow files that torch's DataLoader shuffles, fetching whole batches; lists, as the collator wants them."""
    import datasets
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithFlattening

    data = datasets.load_from_disk(str(folder / "hf"))
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors="pt")
    for batch in DataLoader(
        data, batch_size=64, shuffle=True, collate_fn=collate, num_workers=workers
    ):
        yield batch["input_ids"].numel()


def datasets_iterable(folder: Path) -> Iterator[int]:
    """The same as a stream with a shuffle buffer: its documented way for much data."""
    import datasets
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithFlattening

    data = (
        datasets.load_from_disk(str(folder / "hf"))
        .to_iterable_dataset(num_shards=8)
        .shuffle(seed=0, buffer_size=1000)
    )
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors="pt")
    for batch in DataLoader(data, batch_size=64, collate_fn=collate):
        yield batch["input_ids"].numel()


class Views:
    """For Grain: sample i as arrays.  The kindest source it can have: views of our own memory map, nothing to parse."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        sample = self._store[int(index)]
        return {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}


def grain(folder: Path, packer: str, **options: Any) -> Iterator[int]:
    """Grain's packers also give segments and positions; labels are one np.where."""
    import grain
    import grain.experimental

    read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    data = (
        grain.MapDataset.source(Views(open_store(folder, "mid")))
        .shuffle(seed=0)
        .to_iter_dataset(read)
    )
    sizes = {"input_ids": MAX_LENGTH, "loss_mask": MAX_LENGTH}
    for batch in getattr(grain.experimental, packer)(data, length_struct=sizes, **options).batch(
        ROWS
    ):
        batch["labels"] = np.where(batch["loss_mask"], batch["input_ids"], -100)
        yield int((batch["input_ids_segment_ids"] > 0).sum())


def grain_best_fit(folder: Path) -> Iterator[int]:
    """Shuffled globally, rows by its best-fit packer; read without its threads, which make it three times slower here."""
    return grain(folder, "BestFitPackIterDataset", num_packing_bins=64)


def grain_cut(folder: Path) -> Iterator[int]:
    """The same, samples laid end to end and cut at every row's end: its fastest."""
    return grain(folder, "ConcatThenSplitIterDataset")


def litdata(folder: Path) -> Iterator[int]:
    """Blocks of a stream of tokens, cut wherever they end: no labels, no positions, no borders of samples."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    data = StreamingDataset(
        str(folder / "litdata"), item_loader=TokensLoader(block_size=MAX_LENGTH), shuffle=True
    )
    for batch in StreamingDataLoader(data, batch_size=ROWS, num_workers=0):
        yield batch.numel()


def copy_tokens(folder: Path, arrays: int = 1) -> Iterator[int]:
    """A numpy copy of the same number of tokens, which lie in one piece: to int64, and of as many arrays as a batch has."""
    flat = np.load(folder / "flat.npy", mmap_mode="r")
    made = [np.empty(TOKENS, np.int64) for _ in range(arrays)]
    for start in range(0, flat.size - TOKENS, TOKENS):
        for out in made:
            out[:] = flat[start : start + TOKENS]
        yield TOKENS


def copy_spans(folder: Path) -> Iterator[int]:
    """A numpy copy of the very spans of each batch, from where they lie, to three int64 arrays; which they are was found out before."""
    store = open_store(folder, "mid")
    views: list[list[Any]] = []
    for batch in islice(loader_of(store), 400):
        rows, local = store.locate(batch.rows.spans["sample"]), batch.rows.spans
        found = []
        for shard, row, start, stop in zip(
            *(part.tolist() for part in (*rows, local["start"], local["stop"])), strict=True
        ):
            tokens = store.tokens(shard)
            begin = int(tokens.offsets[row])
            found.append(tokens.input_ids[begin + start : begin + stop])
        views.append(found)
    made = [np.empty(TOKENS, np.int64) for _ in range(3)]
    while True:
        for spans in views:
            size = sum(map(len, spans))
            for out in made:
                np.concatenate(spans, out=out[:size])
            yield size


CONTESTANTS: dict[str, Callable[[Path], Iterator[int]]] = {
    "penstock, turns trained": ours,
    "penstock, all trained": lambda folder: ours(folder, "all"),
    "penstock, turns trained, tensors": lambda folder: ours(folder, output="torch"),
    "penstock, turns trained, no read-ahead": lambda folder: ours(folder, prefetch=0),
    "penstock, turns trained, tensors, 2 workers": lambda folder: ours(
        folder, output="torch", workers=2
    ),
    "datasets, map-style": datasets_map,
    "datasets, map-style, 2 workers": lambda folder: datasets_map(folder, workers=2),
    "datasets, iterable": datasets_iterable,
    "Grain, best fit": grain_best_fit,
    "Grain, cut": grain_cut,
    "litdata, fixed blocks": litdata,
    "numpy copy of ids, labels and positions": lambda folder: copy_tokens(folder, 3),
    "numpy copy of the ids alone": copy_tokens,
    "numpy copy of the same spans to three arrays": copy_spans,
}


def run(name: str, folder: Path) -> dict[str, float]:
    """Tokens per second of wall and of CPU, after a first batch that opens and imports what is needed."""
    batches = CONTESTANTS[name](folder)
    next(batches)
    tokens, wall, cpu = 0, time.perf_counter(), time.process_time()
    for count in batches:
        tokens += count
        if time.perf_counter() - wall > SECONDS:
            break
    return {
        "wall": tokens / (time.perf_counter() - wall),
        "cpu": tokens / (time.process_time() - cpu),
    }


def resume(share: str, folder: Path) -> dict[str, float]:
    """From load_state_dict to the first batch, in a fresh process with the store open."""
    state = json.loads((folder / f"state-{share}.json").read_text())
    loader = loader_of(open_store(folder, "million"))
    begun = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    return {"ms": 1e3 * (time.perf_counter() - begun)}


def start(folder: Path) -> dict[str, float]:
    """From the start of a process to its first batch, on a store that is finished; no torch."""
    script = (
        "import sys, penstock as ps; "
        f"store = ps.prepare({str(folder / 'start.jsonl')!r}, template='pretokenized', vocab_size={VOCAB}, "
        f"cache_dir={str(folder / 'start')!r}, num_proc=1); "
        "next(iter(ps.Loader(store, batch_size=8, max_length=4096, output='numpy'))); assert 'torch' not in sys.modules"
    )
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", script], check=True, stderr=subprocess.DEVNULL)
    return {"s": time.perf_counter() - begun}


def state_cost(folder: Path) -> dict[str, float]:
    """What a step costs to make, to add to the metrics and to count as handed over; and what a state costs that is taken.  µs."""
    loader = loader_of(open_store(folder, "mid"), prefetch=0)
    others = Metrics(["mid"], MAX_LENGTH)
    clock = time.perf_counter
    spent = {"making": 0.0, "adding": 0.0, "counting": 0.0}
    steps, begun = 0, clock()
    for batch, step in loader.batches_of_worker(loader.run, passed=0, every=1):
        made = clock()
        run = loader.run.after(step)
        others.step(run, step, batch)
        added = clock()
        for observer in loader.observers:
            observer.step(run, step, batch)
        handed = clock()
        spent["making"] += made - begun
        spent["adding"] += added - made
        spent["counting"] += (handed - added) - (
            added - made
        )  # without the metrics, which it adds too
        steps, begun = steps + 1, clock()
    begun = clock()
    for _ in range(200):
        loader.state_dict()
    taking = (clock() - begun) / 200
    return {
        "taking": 1e6 * taking,
        **{name: 1e6 * seconds / steps for name, seconds in spent.items()},
    }


def memory(folder: Path) -> dict[str, Any]:
    """Anonymous memory after each of ten epochs, in MiB."""
    loader, found = loader_of(open_store(folder, "mid"), epochs=EPOCHS), []
    for batch in loader:
        if loader.state_dict()["epoch"] > len(found):
            status = Path("/proc/self/status").read_text()
            found.append(int(status.partition("RssAnon:")[2].split()[0]) / 1024)
        del batch
    return {"epochs": found}


def child(*words: object) -> Any:
    job = [sys.executable, __file__, *map(str, words)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(job, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def pieces(index: int, folder: str) -> Iterator[Any]:
    """For litdata: the tokens of a tenth of the samples, in pieces."""
    import torch

    flat = np.load(Path(folder) / "flat.npy", mmap_mode="r")
    part = flat[index * flat.size // 10 : (index + 1) * flat.size // 10]
    for begin in range(0, part.size, 1 << 20):
        yield torch.from_numpy(part[begin : begin + (1 << 20)].astype(np.int32))


def write_columns(folder: Path) -> list[Any]:
    """For `datasets`: ids and labels; the shards that they are made of."""
    import datasets
    import pyarrow as pa

    store = open_store(folder, "mid")
    shards = [store.tokens(number) for number in range(store.num_shards)]
    parts = []
    for shard in shards:
        ids = shard.input_ids.astype(np.int32)
        labels = np.where(shard.loss_mask(0, ids.size), ids, -100)
        lists = [
            pa.ListArray.from_arrays(pa.array(shard.offsets), pa.array(values))
            for values in (ids, labels)
        ]
        parts.append(pa.table(lists, names=["input_ids", "labels"]))
    datasets.disable_progress_bars()
    datasets.Dataset(pa.concat_tables(parts)).save_to_disk(str(folder / "hf"))
    return shards


def make_data(folder: Path) -> None:
    """The same tokens for everyone, each in the form it reads best."""
    from functools import partial

    from litdata import TokensLoader, optimize

    open_store(folder, "mid", "all")
    shards = write_columns(folder)
    np.save(folder / "flat.npy", np.concatenate([shard.input_ids for shard in shards]))
    optimize(
        fn=partial(pieces, folder=str(folder)),
        inputs=list(range(10)),
        output_dir=str(folder / "litdata"),
        chunk_size=MAX_LENGTH * 2048,
        item_loader=TokensLoader(),
        num_workers=1,
    )
    large = loader_of(open_store(folder, "million"))
    for share in (10, 90):
        large.seek(len(large) * share // 100)
        (folder / f"state-{share}.json").write_text(json.dumps(large.state_dict()))
    with (folder / "start.jsonl").open("w") as file:
        for number in range(20_000):
            ids = [(number * 7919 + place) % VOCAB for place in range(20 + number % 200)]
            file.write(json.dumps({"input_ids": ids}) + "\n")


class Found(dict[str, Any]):
    """Numbers by name; medians over the turns."""

    def rate(self, name: str, clock: str = "wall") -> float:
        return float(median(turn[clock] for turn in self["turns"][name]))


def measure(folder: Path) -> Found:
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    resumed: dict[str, list[float]] = {"10": [], "90": []}
    started = []
    start(folder)  # makes the store
    for _ in range(REPEAT):
        for name in CONTESTANTS:
            turns[name].append(child("run", name, folder))
        for share in resumed:
            resumed[share].append(child("resume", share, folder)["ms"])
        started.append(start(folder)["s"])
    costs = [child("state", folder) for _ in range(3)]
    return Found(
        turns=turns,
        resumed={share: median(times) for share, times in resumed.items()},
        started=median(started),
        state={key: median(cost[key] for cost in costs) for key in costs[0]},
        memory=child("memory", folder)["epochs"],
    )


def judge(found: Found) -> list[list[str]]:
    """Question, found, target, verdict."""
    mine, text = found.rate("penstock, turns trained"), found.rate("penstock, all trained")
    peers = max(found.rate("datasets, map-style"), found.rate("datasets, iterable"))
    share = mine / found.rate("numpy copy of ids, labels and positions")
    alone = mine / found.rate("numpy copy of the ids alone")
    copy = found.rate("numpy copy of the same spans to three arrays")
    late, early = found["resumed"]["90"], found["resumed"]["10"]
    state = found["state"]
    cost = max(state["counting"], 0.0) / (state["making"] + state["adding"])
    kept = found["memory"]
    growth = (
        kept[-1] - kept[EPOCHS // 2 - 1]
    )  # the first epochs fill the plan's caches and the buffers

    def verdict(question: str, value: str, target: str, passed: bool) -> list[str]:
        return [question, value, target, "pass" if passed else "MISSED"]

    blocks, gr = (
        found.rate("litdata, fixed blocks"),
        mine / max(found.rate("Grain, best fit"), found.rate("Grain, cut")),
    )
    return [
        verdict(
            "× the faster `datasets` path", f"{mine / peers:.0f} ×", "≥ 10 ×", mine >= 10 * peers
        ),
        verdict("× the faster of Grain's packers", f"{gr:.1f} ×", "≥ 3 ×", gr >= 3),
        verdict(
            "× litdata's fixed blocks: all trained, as there",
            f"{text / blocks:.2f} ×",
            "> 1 ×",
            text > blocks,
        ),
        verdict(
            "the same: turns trained, which these cannot",
            f"{mine / blocks:.2f} ×",
            "> 1 ×",
            mine > blocks,
        ),
        verdict(
            "share of a numpy copy of the same spans to three arrays: all trained",
            f"{text / copy:.0%}",
            "≥ 40 %",
            text >= 0.4 * copy,
        ),
        verdict("the same: turns trained", f"{mine / copy:.0%}", "≥ 40 %", mine >= 0.4 * copy),
        verdict(
            "share of a numpy copy of as many arrays, in one piece",
            f"{share:.0%}",
            "≥ 40 %",
            share >= 0.4,
        ),
        verdict(
            "share of a numpy copy of the ids alone, in one piece",
            f"{alone:.0%}",
            "≥ 40 %",
            alone >= 0.4,
        ),
        verdict(
            "resume at 90 % of a million samples, to the first batch",
            f"{late:.0f} ms",
            "≤ 100 ms",
            late <= 100,
        ),
        verdict(
            "the same against 10 %",
            f"{late:.0f} and {early:.0f} ms",
            "not slower",
            late <= 1.15 * early,
        ),
        verdict(
            "process start to first batch, finished store, no torch",
            f"{found['started']:.2f} s",
            "< 1 s",
            found["started"] < 1,
        ),
        verdict("cost of being resumable, of loader time", f"{cost:.2%}", "< 1 %", cost < 0.01),
        verdict(
            f"anonymous memory, epochs {EPOCHS // 2} to {EPOCHS}",
            f"{growth:+.1f} MiB",
            "flat (within 1 MiB)",
            abs(growth) < 1,
        ),
    ]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table, padded so that it also reads well in a terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in [header, *rows]
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def page(found: Found, loads: str) -> str:
    rows = []
    for name, turns in found["turns"].items():
        spread = sorted(turn["wall"] / 1e6 for turn in turns)
        step = 1e6 * TOKENS / found.rate(name)
        cpu = f"{found.rate(name, 'cpu') / 1e6:.1f}"
        rows.append(
            [name, f"{median(spread):.1f} ({spread[0]:.1f}–{spread[-1]:.1f})", cpu, f"{step:.0f}"]
        )
    model = next(
        (line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        ": unknown",
    )
    head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    names = ("numpy", "torch", "datasets", "transformers", "grain", "litdata")
    state = found["state"]
    return "\n".join(
        [
            "# Batches, now, and again",
            "",
            f"- Command: `python benchmarks/loader.py` (written by it), {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            f"- Versions: penstock at {head.stdout.strip()}, Python {platform.python_version()}, "
            + ", ".join(f"{name} {version(name)}" for name in names),
            f"- Machine: {model.split(':')[1].strip()}, {os.cpu_count()} cores; shared with other jobs, load average {loads}",
            f"- {SAMPLES['mid'][0]:,} samples of some 530 tokens, uint16, half of them trained in turns of {TURN}; batches of {ROWS} "
            f"rows of {MAX_LENGTH} with ids, labels, positions, cu_seqlens and seq_idx; one process, page cache warm",
            f"- Each contestant in a fresh process, an epoch or {SECONDS:.0f} s, {REPEAT} turns; median (least–most)",
            "",
            *table(["question", "found", "target", ""], judge(found)),
            "",
            *table(
                [
                    "contestant",
                    "M tokens/s",
                    "M tokens per CPU second",
                    f"µs per {TOKENS:,} tokens",
                ],
                rows,
            ),
            "",
            f"A step takes {state['making']:.0f} µs to make, {state['adding']:.1f} µs to add to the metrics and {state['counting']:.1f} µs "
            f"to count; a state takes {state['taking']:.0f} µs when one is asked for.",
            "Anonymous memory after each epoch, MiB: "
            + ", ".join(f"{size:.0f}" for size in found["memory"])
            + ".",
            "",
            "Settings of the peers, each the fastest documented one that was found:",
            "",
            *[
                f"- {name}: {' '.join((work.__doc__ or '').split())}"
                for name, work in CONTESTANTS.items()
                if work.__doc__
            ],
            "",
        ]
    )


def main(folder: Path) -> None:
    load = os.getloadavg()[0]
    if not (folder / "start.jsonl").exists():  # the last that is made
        child("data", folder)
    found = measure(folder)
    text = page(found, f"{load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end")
    (ROOT / "results").mkdir(exist_ok=True)
    (ROOT / "results" / "loader.md").write_text(text)
    print(text)


def quick() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        write_columns(Path(name))
        sides = ("penstock, turns trained", "datasets, map-style")
        turns = [{side: child("run", side, name)["cpu"] for side in sides} for _ in range(REPEAT)]
    return {"× datasets, map-style": median(turn[sides[0]] / turn[sides[1]] for turn in turns)}


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["--quick"]:
        print(json.dumps(quick()))
        sys.exit()
    home = Path(words[-1]) if words else Path()
    parts: dict[str, Callable[[], Any]] = {
        "data": lambda: make_data(home),
        "run": lambda: run(words[1], home),
        "resume": lambda: resume(words[1], home),
        "state": lambda: state_cost(home),
        "memory": lambda: memory(home),
    }
    if len(words) > 1:
        print(json.dumps(parts[words[0]]()))
    elif words:
        home.mkdir(parents=True, exist_ok=True)
        main(home)
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
