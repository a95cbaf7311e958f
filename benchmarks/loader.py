"""How fast do batches come, and again after a stop?  Beside datasets, Grain, litdata and a plain copy of the memory.

python benchmarks/loader.py [--quick | --tiny]

Contestants run one at a time, each in a fresh process, and take turns, so that a busy neighbour slows them all alike; medians count.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from stand import SIZE, Benchmark, Report, anonymous, fresh, run_program, sized

import penstock as ps
from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.loader.batch import Metrics
from penstock.sources import open_source
from penstock.store import Store, build
from penstock.types import Samples

VOCAB, MAX_LENGTH, ROWS = 50_000, 4096, 8
TOKENS = MAX_LENGTH * ROWS  # of a batch
SAMPLES = {
    "mid": (sized(100_000, 400), 5.8, 1.0),
    "million": (sized(1_000_000, 2_000), 3.8, 0.7),
}  # number, and of the lengths' logarithm: mean, deviation
TURN = 120  # tokens of a turn: every second one is trained
SECONDS = sized(1.5, 0.1, 2.0)  # a contestant that needs longer for an epoch is stopped
REPEAT = sized(3, 1)
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


def by_workers(folder: Path) -> Iterator[int]:
    """Two processes of torch's DataLoader, which send batches to this one."""
    from torch.utils.data import DataLoader

    data = loader_of(open_store(folder, "mid"), output="torch").as_dataset()
    for batch in DataLoader(data, batch_size=None, num_workers=2):
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
    "penstock, turns trained, tensors, 2 processes of a DataLoader": by_workers,
    "datasets, map-style": datasets_map,
    "datasets, map-style, 2 workers": lambda folder: datasets_map(folder, workers=2),
    "datasets, iterable": datasets_iterable,
    "Grain, best fit": grain_best_fit,
    "Grain, cut": grain_cut,
    "litdata, fixed blocks": litdata,
    "numpy copy of ids, labels and positions": lambda folder: copy_tokens(folder, 3),
    "numpy copy of the same spans to three arrays": copy_spans,
}


PEERS = {
    "datasets, map-style": "datasets",
    "datasets, map-style, 2 workers": "datasets",
    "datasets, iterable": "datasets",
    "Grain, best fit": "grain",
    "Grain, cut": "grain",
    "litdata, fixed blocks": "litdata",
}

BENCHMARK = Benchmark(
    title="Batches, now, and again",
    question="How many tokens a second does a loader deliver, and how soon after a stop?",
    measures=("loader", "plan", "store"),
    peers={
        "datasets": "map-style and iterable (64 rows a fetch, shuffled; 8 shards and a buffer of 1,000), with torch's `DataLoader` "
        "and `DataCollatorWithFlattening`, the faster of them; without and with two workers",
        "grain": "`MapDataset` with a global shuffle over views of our own memory map, the faster of `BestFitPackIterDataset` and "
        "`ConcatThenSplitIterDataset`; read without its threads, which make it three times slower here",
        "litdata": "`TokensLoader` blocks of a stream of tokens, cut wherever they end: no labels, no positions, no borders of samples",
    },
    packages=("numpy", "torch", "transformers"),
    notes=(
        f"{SAMPLES['mid'][0]:,} samples of some 530 tokens, uint16, half of them trained in turns of {TURN}; batches of {ROWS} "
        f"rows of {MAX_LENGTH} with ids, labels, positions, cu_seqlens and seq_idx; one process, page cache warm",
        f"Each contestant in a fresh process, an epoch or {SECONDS:g} s, {REPEAT} turns; median (least–most)",
    ),
)


def run(name: str, folder: str) -> dict[str, float]:
    """Tokens per second of wall and of CPU, after a first batch that opens and imports what is needed."""
    batches = CONTESTANTS[name](Path(folder))
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


def resume(share: int, folder: str) -> float:
    """Milliseconds from load_state_dict to the first batch, in a fresh process with the store open."""
    state = json.loads((Path(folder) / f"state-{share}.json").read_text())
    loader = loader_of(open_store(Path(folder), "million"))
    begun = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    return 1e3 * (time.perf_counter() - begun)


def start(folder: Path) -> float:
    """Seconds from the start of a process to its first batch, on a store that is finished; no torch."""
    script = (
        "import sys, penstock as ps; "
        f"store = ps.prepare({str(folder / 'start.jsonl')!r}, template='pretokenized', vocab_size={VOCAB}, "
        f"cache_dir={str(folder / 'start')!r}, num_proc=1, progress='none'); "
        "next(iter(ps.Loader(store, batch_size=8, max_length=4096, output='numpy'))); assert 'torch' not in sys.modules"
    )
    return run_program([sys.executable, "-c", script]).seconds


def state_cost(folder: str) -> dict[str, float]:
    """What a step costs to make, to add to the metrics and to count as handed over; and what a state costs that is taken.  µs."""
    loader = loader_of(open_store(Path(folder), "mid"), prefetch=0)
    others = Metrics(["mid"], MAX_LENGTH)
    clock = time.perf_counter
    spent = {"making": 0.0, "adding": 0.0, "counting": 0.0}
    steps, begun = 0, clock()
    for batch, step in loader.parts.pipeline(loader.run, loader.world).batches(
        loader.run, prefetch=0
    ):
        made = clock()
        run = loader.run.after(step)
        others.step(run, step, batch)
        added = clock()
        for observer in loader.observers:
            observer.step(run, step, batch)
        handed = clock()
        spent["making"] += made - begun
        spent["adding"] += added - made
        # Without the metrics, which the observers add too.
        spent["counting"] += (handed - added) - (added - made)
        steps, begun = steps + 1, clock()
    begun = clock()
    for _ in range(200):
        loader.state_dict()
    taking = (clock() - begun) / 200
    return {"taking": 1e6 * taking, **{name: 1e6 * s / steps for name, s in spent.items()}}


def memory(folder: str) -> list[float]:
    """Anonymous memory after each of ten epochs, in MiB."""
    loader, found = loader_of(open_store(Path(folder), "mid"), epochs=EPOCHS), []
    for batch in loader:
        if loader.state_dict()["epoch"] > len(found):
            found.append(anonymous())
        del batch
    return found


# The data


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


def make_data(folder: str) -> None:
    """The same tokens for everyone, each in the form it reads best."""
    place = Path(folder)
    shards = write_columns(place)
    if SIZE == "quick":
        return
    open_store(place, "mid", "all")
    np.save(place / "flat.npy", np.concatenate([shard.input_ids for shard in shards]))
    large = loader_of(open_store(place, "million"))
    for share in (10, 90):
        large.seek(len(large) * share // 100)
        (place / f"state-{share}.json").write_text(json.dumps(large.state_dict()))
    with (place / "start.jsonl").open("w") as file:
        for number in range(sized(20_000, 500)):
            ids = [(number * 7919 + at) % VOCAB for at in range(20 + number % 200)]
            file.write(json.dumps({"input_ids": ids}) + "\n")


def make_litdata(folder: str) -> None:
    from functools import partial

    from litdata import TokensLoader, optimize

    optimize(
        fn=partial(pieces, folder=folder),
        inputs=list(range(10)),
        output_dir=f"{folder}/litdata",
        chunk_size=MAX_LENGTH * 2048,
        item_loader=TokensLoader(),
        num_workers=1,
    )


# The questions


def main(report: Report) -> None:
    names = [name for name in CONTESTANTS if name not in PEERS or report.has(PEERS[name])]
    if SIZE == "quick":
        names = ["penstock, turns trained", "datasets, map-style"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fresh(make_data, folder)
        if report.has("litdata") and SIZE != "quick":
            fresh(make_litdata, folder)
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(REPEAT):
            for name in names:
                one_thread = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
                turns[name].append(fresh(run, name, folder, env=one_thread).value)
        compare(report, turns)
        if SIZE != "quick":
            over_time(report, folder)


def compare(report: Report, turns: dict[str, list[dict[str, float]]]) -> None:
    clock = "cpu" if SIZE == "quick" else "wall"
    rates = {name: [turn[clock] for turn in found] for name, found in turns.items()}

    def fastest(*names: str) -> list[float]:
        """The rates of the contestant with the best median."""
        return max((rates[name] for name in names if name in rates), key=median, default=[])

    def against(key: str, what: str, mine: str, other: list[float], **more: Any) -> None:
        if other:
            each = [a / b for a, b in zip(rates[mine], other, strict=True)]
            value = median(rates[mine]) / median(other)
            report.number(key, what, value, "×", spread=(min(each), max(each)), **more)

    mine = "penstock, turns trained"
    columns = fastest(*(name for name, peer in PEERS.items() if peer == "datasets"))
    against(
        "datasets", "times the faster `datasets` path", mine, columns, peer="datasets", at_least=10
    )
    if SIZE == "quick":
        return
    packers = fastest("Grain, best fit", "Grain, cut")
    against("grain", "times the faster of Grain's packers", mine, packers, peer="grain", at_least=3)
    blocks = rates.get("litdata, fixed blocks", [])
    against(
        "litdata_all",
        "times litdata's fixed blocks: all tokens trained, as there",
        "penstock, all trained",
        blocks,
        peer="litdata",
        at_least=1,
        why="it hands over views of one stream",
    )
    against(
        "litdata_turns",
        "the same: turns trained, which these blocks cannot express",
        mine,
        blocks,
        peer="litdata",
        why="it hands over views of one stream without labels, positions or borders of samples; ours makes and masks all of these",
    )
    copy = rates["numpy copy of the same spans to three arrays"]
    for key, what, who in (
        (
            "copy_all",
            "share of a numpy copy of the same spans to three arrays: all trained",
            "penstock, all trained",
        ),
        ("copy_turns", "the same: turns trained", mine),
    ):
        shares = [100 * a / b for a, b in zip(rates[who], copy, strict=True)]
        report.number(key, what, shares, "%", at_least=40, digits=0)
    rows = []
    for name, found in turns.items():
        spread = sorted(turn["wall"] / 1e6 for turn in found)
        cpu = median(turn["cpu"] for turn in found) / 1e6
        micros = TOKENS / median(spread)
        speed = f"{median(spread):.1f} ({spread[0]:.1f}–{spread[-1]:.1f})"
        rows.append([name, speed, f"{cpu:.1f}", f"{micros:.0f}"])
    settings = [
        f"- {name}: {' '.join((work.__doc__ or '').split())}"
        for name, work in CONTESTANTS.items()
        if work.__doc__
    ]
    header = ["contestant", "M tokens/s", "M tokens per CPU second", f"µs per {TOKENS:,} tokens"]
    report.table("Every contestant", header, rows, *settings)


def over_time(report: Report, folder: Path) -> None:
    """Resuming, starting, and what stays behind."""
    start(folder)  # makes the store
    resumed: dict[int, list[float]] = {10: [], 90: []}
    started = []
    for _ in range(sized(3, 1)):
        for share, found in resumed.items():
            found.append(fresh(resume, share, folder).value)
        started.append(start(folder))
    late = "resume at 90 % of a million samples, to the first batch"
    report.number("resume", late, resumed[90], "ms", at_most=100, digits=0)
    ratios = [a / b for a, b in zip(resumed[90], resumed[10], strict=True)]
    report.number("resume_growth", "the same, over a resume at 10 %", ratios, "", at_most=1.15)
    what = "process start to first batch, finished store, no torch"
    report.number("start", what, started, "s", at_most=1)
    costs = [fresh(state_cost, folder).value for _ in range(sized(3, 1))]
    shares = [
        100 * max(cost["counting"], 0.0) / (cost["making"] + cost["adding"]) for cost in costs
    ]
    report.number("resumable", "cost of being resumable, of loader time", shares, "%", at_most=1)
    kept = fresh(memory, folder).value
    growth = (
        kept[-1] - kept[EPOCHS // 2 - 1]
    )  # the first epochs fill caches of the plan and buffers
    what = f"anonymous memory grown in epochs {EPOCHS // 2} to {EPOCHS}"
    report.number("memory", what, growth, "MiB", at_most=1, note="one run", digits=1)
    cost = {name: median(each[name] for each in costs) for name in costs[0]}
    report.note(
        f"A step takes {cost['making']:.0f} µs to make, {cost['adding']:.1f} µs to add to the metrics and {cost['counting']:.1f} µs "
        f"to count; a state takes {cost['taking']:.0f} µs when one is asked for"
    )
    sizes = ", ".join(f"{size:.0f}" for size in kept)
    report.note(f"Anonymous memory after each epoch, MiB: {sizes}")


if __name__ == "__main__":
    BENCHMARK.run(main)
