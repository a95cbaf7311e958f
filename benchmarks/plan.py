"""How fast and how full is the plan?  Packing against trl, the permutation, seeks in 10¹² tokens, balance.

python benchmarks/plan.py [--tiny]

Every time is the median of repetitions in which the contestants take turns, so that a busy neighbour slows them all alike.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np
from stand import Benchmark, Report, fresh, peak_memory, sized, take_turns

from penstock.cache import Cache
from penstock.loader.state import Cursor, make_state, read_state
from penstock.plan.block import Block
from penstock.plan.packing import UNBOUNDED, best_fit
from penstock.plan.permutation import Permutation, derive
from penstock.plan.plan import Plan, PlanSource, Position
from penstock.plan.ranks import rank_shares
from penstock.plan.rows import PackedBlock, Rows
from penstock.plan.settings import PlanSettings
from penstock.report.balance import BalanceCounter
from penstock.store import manifest
from penstock.store.counts import Counts
from penstock.store.manifest import Manifest
from penstock.store.shards import ShardEntry
from penstock.types import World

MAX_LENGTH = 4096
NUM_SAMPLES = sized(5_000_000, 20_000)
NUM_COMPARED = sized(200_000, 500)  # trl needs seconds for these
BLOCK = sized(65_536, 1024)  # the default of PlanSettings
NUM_INDICES, INDEX_CHUNK = sized((100_000_000, 1_000_000), (100_000, 10_000))
SEEK_SAMPLES, SEEK_SHARDS = sized((2_000_000_000, 100_000), (200_000, 1000))
SEEK_ROWS = 64  # rows of the step that is sought
SEEK_SHARES = (0.1, 0.5, 0.9)
BALANCED_LENGTH, BALANCED_SAMPLES = 16_384, sized(200_000, 3_000)
WORLDS = sized(
    ((8, 1), (8, 4), (64, 1), (64, 4), (256, 1)), ((8, 4), (64, 1))
)  # ranks × rows per rank
STEPS_AT_ONCE = 16  # as the loader deals them
PACKINGS = ("best_fit", "mixed_fit", "first_fit", "next_fit", "window_100", "concat", "none")
REPEAT = sized(3, 1)

BENCHMARK = Benchmark(
    title="The plan: packing, permutation, seek",
    question="How fast and how full is the plan, and how soon is it anywhere in 10¹² tokens?",
    measures=("plan", "loader.state", "store.manifest"),
    peers={
        "trl": '`pack_dataset(dataset, seq_length=4096, strategy="bfd")` on 200,000 of the same lengths, only this call timed: default '
        "`map_kwargs` (batches of 1,000, one process), as `SFTTrainer` uses it; other batch sizes and `num_proc=2` were no faster "
        "([log](../LOG.md)). In memory, no cache file, progress bars off: all in its favour. It also moves the tokens into packed rows, "
        "best_fit only says which row, so `pack_block + tokens` does both: spans, shuffled rows, counters, and all "
        "tokens copied into one array"
    },
    packages=("numpy", "pyarrow", "datasets"),
    notes=(
        f"Times: medians of {REPEAT} repetitions in which the contestants take turns; ratios are of medians",
        f"Data: lognormal lengths (mu 5.8, sigma 1.0, seed 0), 1 to {MAX_LENGTH}; tokens random int32",
    ),
)


def block_of(lengths: np.ndarray, settings: PlanSettings) -> Block:
    """A block of one source's samples with these lengths."""
    return Block(
        np.zeros(lengths.size, np.int64), np.arange(lengths.size), lengths, settings, ["made"]
    )


def lognormal_lengths(num_samples: int, seed: int = 0) -> np.ndarray:
    """Mean about 530, 0.6 % at the cap."""
    drawn = np.random.default_rng(seed).lognormal(5.8, 1.0, num_samples)
    return np.clip(drawn, 1, MAX_LENGTH).astype(np.int64)


def fill_of(lengths: np.ndarray, num_rows: int) -> float:
    return int(lengths.sum()) / (num_rows * MAX_LENGTH)


# 1 Packing, against trl


def packed_tokens(
    rows: Rows, tokens: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rows as tokens: (flat tokens, border of each row), the same thing trl's Arrow table holds."""
    begin = offsets[rows.spans["sample"]]
    first, last = begin + rows.spans["start"], begin + rows.spans["stop"]
    flat = np.concatenate([tokens[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)])
    borders = np.concatenate(([0], np.cumsum(last - first)))[rows.starts]
    return flat, borders


def in_small_blocks(lengths: np.ndarray, size: int) -> int:
    """Number of rows when only `size` samples are packed together."""
    return sum(
        int(best_fit(lengths[i : i + size], MAX_LENGTH, UNBOUNDED).max()) + 1
        for i in range(0, lengths.size, size)
    )


def trl_packing(lengths: np.ndarray, tokens: np.ndarray) -> Callable[..., Any]:
    import datasets
    import pyarrow as pa
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    column = pa.ListArray.from_arrays(offsets.astype(np.int32), tokens)
    dataset = datasets.Dataset(pa.table({"input_ids": column}))

    def pack(**map_kwargs: Any) -> Any:
        return pack_dataset(dataset, seq_length=MAX_LENGTH, strategy="bfd", map_kwargs=map_kwargs)

    return pack


def compare_packing(report: Report) -> None:
    lengths = lognormal_lengths(NUM_SAMPLES)
    few = lengths[:NUM_COMPARED]
    offsets = np.concatenate(([0], np.cumsum(few)))
    tokens = np.random.default_rng(1).integers(0, 50_000, offsets[-1], dtype=np.int32)
    settings = PlanSettings(max_length=MAX_LENGTH)

    def block(of: np.ndarray) -> PackedBlock:
        return block_of(of, settings).pack(epoch=0, number=0)

    works: dict[str, tuple[int, Callable[[], Any]]] = {
        "best_fit, 5 M": (NUM_SAMPLES, lambda: best_fit(lengths, MAX_LENGTH, UNBOUNDED)),
        "best_fit, 200 k": (NUM_COMPARED, lambda: best_fit(few, MAX_LENGTH, UNBOUNDED)),
        "best_fit, 200 × 1 k": (NUM_COMPARED, lambda: in_small_blocks(few, 1000)),
        "pack_block + tokens, 200 k": (
            NUM_COMPARED,
            lambda: packed_tokens(block(few).rows, tokens, offsets),
        ),
        "pack_block, 5 M": (NUM_SAMPLES, lambda: block(lengths)),
    }
    if report.has("trl"):
        trl = trl_packing(few, tokens)
        works["trl, default"] = (NUM_COMPARED, trl)
        works["trl, one batch"] = (NUM_COMPARED, partial(trl, batch_size=None))
    timings, results = take_turns(works, REPEAT)
    fills = packing_fills(results, lengths, few, tokens)
    ours, both, whole = (
        timings[name] for name in ("best_fit, 5 M", "pack_block + tokens, 200 k", "pack_block, 5 M")
    )
    what = "best_fit, 5 M in one block"
    report.number(
        "fill", f"{what}: fill", 100 * fills["best_fit, 5 M"], "%", at_least=99.9, digits=4
    )
    report.number("best_fit", f"{what}: seconds", ours.wall, "s", at_most=1)
    if report.has("trl"):
        theirs = timings["trl, default"]
        report.ratio(
            "trl",
            "best_fit per sample, against trl bfd",
            theirs,
            ours,
            peer="trl",
            at_least=100,
            digits=0,
        )
        report.ratio(
            "trl_tokens", "tokens moved by both (200 k)", theirs, both, peer="trl", at_least=1
        )
    report.number("pack_block", "pack_block, 5 M (spans, shuffled rows, counters)", whole.wall, "s")
    rows = []
    for name, timing in timings.items():
        against = ""
        if report.has("trl"):
            against = f"{timings['trl, default'].per_sample / timing.per_sample:.1f}"
        cells = [name, f"{timing.num_samples:,}", timing.spread(), f"{median(timing.cpu):.3f}"]
        rows.append([*cells, f"{timing.per_sample:.3f}", against, f"{fills[name]:.4%}"])
    header = [
        "contestant",
        "samples",
        "seconds (min–max)",
        "CPU s",
        "µs per sample",
        "× trl",
        "fill",
    ]
    text = "`best_fit, 200 × 1 k` packs in trl's batches of 1,000: our cost is per different length, so small blocks cost more per sample."
    report.table("Packing against trl", header, rows, text)


def packing_fills(
    results: dict[str, Any], lengths: np.ndarray, few: np.ndarray, tokens: np.ndarray
) -> dict[str, float]:
    """Fill of each contestant's rows, after a look whether they hold what they should."""
    for name in [name for name in results if name.startswith("trl")]:
        packed = results[name].data.column("input_ids")
        assert sum(len(chunk.flatten()) for chunk in packed.chunks) == tokens.size, (
            "trl lost tokens"
        )
    flat, borders = results["pack_block + tokens, 200 k"]
    assert flat.sum(dtype=np.int64) == tokens.sum(dtype=np.int64)
    assert flat.size == tokens.size
    assert np.diff(borders).max() <= MAX_LENGTH
    rows = results["best_fit, 5 M"]
    assert np.bincount(rows, weights=lengths).max() <= MAX_LENGTH
    theirs = {
        name: fill_of(few, len(result))
        for name, result in results.items()
        if name.startswith("trl")
    }
    return {
        **theirs,
        "best_fit, 5 M": fill_of(lengths, int(rows.max()) + 1),
        "best_fit, 200 k": fill_of(few, int(results["best_fit, 200 k"].max()) + 1),
        "best_fit, 200 × 1 k": fill_of(few, results["best_fit, 200 × 1 k"]),
        "pack_block + tokens, 200 k": fill_of(few, borders.size - 1),
        "pack_block, 5 M": results["pack_block, 5 M"].counters.fill,
    }


# Fill of a real plan


def fill_of_plan(report: Report) -> None:
    lengths = lognormal_lengths(NUM_SAMPLES)
    sizes = np.full(NUM_SAMPLES // 10_000, 10_000)
    source = PlanSource(name="lognormal", key="lognormal", shard_sizes=sizes)
    settings = PlanSettings(max_length=MAX_LENGTH, block=BLOCK)
    plan = Plan([source], lambda _, samples: lengths[samples], settings)
    for epoch, what in ((0, "blocks ramp up from 1,024"), (1, "all blocks full")):
        counters = plan.count(epoch)
        assert counters.samples_out == NUM_SAMPLES, counters
        question = f"plan of 5 M, blocks of 65,536, epoch {epoch} ({what}): fill"
        report.number(f"fill_{epoch}", question, 100 * counters.fill, "%", at_least=99.5, digits=3)


# The permutation


def time_permutation(report: Report) -> None:
    permutation = Permutation(NUM_INDICES, key=1)
    chunk = np.arange(INDEX_CHUNK, dtype=np.int64)
    back = permutation.index(permutation[chunk + 7 * INDEX_CHUNK])
    assert (back == chunk + 7 * INDEX_CHUNK).all()

    def all_of(direction: Callable[[np.ndarray], np.ndarray]) -> None:
        for start in range(0, NUM_INDICES, INDEX_CHUNK):
            direction(chunk + start)

    works = {
        "to place": (NUM_INDICES, lambda: all_of(permutation.__getitem__)),
        "to index": (NUM_INDICES, lambda: all_of(permutation.index)),
    }
    timings, _ = take_turns(works, REPEAT)
    for name, timing in timings.items():
        speeds = [NUM_INDICES / seconds / 1e6 for seconds in timing.wall]
        key = f"permutation_{name.replace(' ', '_')}"
        what = f"permutation of 10⁸, a million at a time, {name}: millions a second"
        report.number(key, what, speeds, "M/s", at_least=20)


# Seek


def made_up_lengths(_: int, samples: np.ndarray) -> np.ndarray:
    """A length for any of 2 × 10⁹ samples without a table of them: the sample's hash picks one of 65,536 lognormal draws."""
    hashed = samples.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return _DRAWS[(hashed >> np.uint64(48)).astype(np.int64)]


_DRAWS = lognormal_lengths(65_536, seed=2)


def seek_plan(window: str) -> Plan:
    sizes = np.full(SEEK_SHARDS, SEEK_SAMPLES // SEEK_SHARDS)
    settings = PlanSettings(max_length=MAX_LENGTH, block=BLOCK, shuffle_window=window)
    return Plan(
        [PlanSource(name="made-up", key="0" * 64, shard_sizes=sizes)], made_up_lengths, settings
    )


def seek_here(window: str) -> dict[str, Any]:
    """Runs in a fresh process: from nothing to a step at each share of the epoch, and once more through a saved state."""
    found: dict[str, Any] = {}
    for share in SEEK_SHARES:
        block = int(SEEK_SAMPLES * share) // BLOCK
        cursor = Cursor(
            position=Position(block=block, row=sized(1000, 10), rows=block * 8_000),
            step=block * 125,
        )  # counts only
        begin = time.perf_counter()
        plan = seek_plan(window)
        step = plan.step(cursor.position, SEEK_ROWS)
        found[f"{share:.0%}"] = time.perf_counter() - begin
        assert step is not None
        assert step.num_real == SEEK_ROWS
        saved = json.dumps(make_state(plan, cursor))

        begin = time.perf_counter()
        plan = seek_plan(window)
        again = plan.step(read_state(json.loads(saved), plan).position, SEEK_ROWS)
        found[f"{share:.0%} resumed"] = time.perf_counter() - begin
        found["state"] = len(saved)
        assert again is not None
        assert (again.rows.spans == step.rows.spans).all()
    return {**found, "megabytes": peak_memory()}


def seek_afresh(report: Report) -> None:
    found: dict[str, list[dict[str, Any]]] = {"auto": [], "all": []}
    for _ in range(REPEAT):
        for window, runs in found.items():
            runs.append(fresh(seek_here, window).value)
    times = [f"{share:.0%}{how}" for share in SEEK_SHARES for how in ("", " resumed")]
    rows = []
    for window, runs in found.items():
        name = f"10¹² tokens, 2 × 10⁹ samples, shuffle_window={window}"
        for key, how in (("seek", ""), ("resume", " resumed")):
            slowest = max(
                SEEK_SHARES, key=lambda share: median(run[f"{share:.0%}{how}"] for run in runs)
            )
            seconds = [run[f"{slowest:.0%}{how}"] for run in runs]
            what = f"{name}: seconds to seek, slowest of 10, 50, 90 %{', from saved JSON' if how else ''}"
            report.number(f"{key}_{window}", what, seconds, "s", at_most=1, digits=3)
        peaks = [run["megabytes"] for run in runs]
        report.number(f"peak_{window}", f"{name}: peak of the process", peaks, "MiB", at_most=300)
        states = [run["state"] for run in runs]
        report.number(f"state_{window}", f"{name}: saved state", states, "bytes", at_most=1024)
        rows += [
            [window, *(f"{run[key]:.3f}" for key in times), f"{run['megabytes']:.0f}"]
            for run in runs
        ]
    title = f"Seek: a fresh process per line (imports not timed), {SEEK_SHARDS:,} shards, lengths by function"
    report.table(title, ["window", *times, "peak MB"], rows)


def price_of_weights(report: Report) -> None:
    """A seek in a mixture with weights learns what every sample before it contributes: measured on some, told for all."""
    sizes = np.full(sized(500, 5), sized(20_000, 1000))
    sources = [PlanSource(name=name, key="0" * 64, shard_sizes=sizes) for name in ("a", "b")]
    settings = PlanSettings(max_length=MAX_LENGTH, block=BLOCK, weights=("1", "1"))
    half = int(sizes.sum())

    def seek() -> Any:
        plan = Plan(sources, made_up_lengths, settings)
        return plan.step(Position(block=half // BLOCK), SEEK_ROWS)

    timings, _ = take_turns({"seek": (1, seek)}, REPEAT)
    seconds = [each * SEEK_SAMPLES / 2 / half for each in timings["seek"].wall]
    what = "resume at 50 % of 2 × 10⁹ samples with weights (extrapolated)"
    report.number("weights", what, seconds, "s")


def manifest_of_a_store(report: Report) -> None:
    """What opening such a store costs: its manifest names every shard."""
    keys = [
        derive(0, "shard", number).to_bytes(8, "big").hex() * 2 for number in range(SEEK_SHARDS)
    ]
    counts = Counts(rows=SEEK_SAMPLES // SEEK_SHARDS, tokens=10_660_000, trained=10_640_000)
    shards = tuple(
        ShardEntry(key=key, num_bytes=43_000_000, counts=counts, digest=key) for key in keys
    )
    whole = Manifest(template={"name": "made-up"}, vocab_size=50_000, shards=shards)
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(folder)
        manifest.save(whole, [], cache)
        num_bytes = cache.path(manifest.manifest_name(whole.name)).stat().st_size
        timings, _ = take_turns({"read": (1, lambda: manifest.read(whole.name, cache))}, REPEAT)
    what = f"manifest of {SEEK_SHARDS:,} shards"
    report.number("manifest_size", f"{what}: on disk", num_bytes / 1e6, "MB")
    report.number("manifest", f"{what}: to read and check", timings["read"].wall, "s")


def price_of_a_table(report: Report) -> None:
    """A step *number* instead of a saved position needs the rows of every block: measured on some, told for all."""
    settings = PlanSettings(max_length=MAX_LENGTH, block=BLOCK)
    lengths = [made_up_lengths(0, np.arange(i * BLOCK, (i + 1) * BLOCK)) for i in range(20)]
    timings, _ = take_turns(
        {"count": (1, lambda: [block_of(of, settings).num_rows() for of in lengths])}, REPEAT
    )
    seconds = [each / len(lengths) * SEEK_SAMPLES / BLOCK for each in timings["count"].wall]
    what = "plan.seek(step number) in 2 × 10⁹ samples: rows of every block (extrapolated)"
    report.number("table", what, seconds, "s")


# Every packing


def every_packing(report: Report) -> None:
    lengths = lognormal_lengths(BLOCK)

    def pack(name: str) -> Callable[[], Any]:
        settings = PlanSettings(max_length=MAX_LENGTH, packing=name)
        return lambda: block_of(lengths, settings).pack(epoch=0, number=0)

    timings, results = take_turns({name: (BLOCK, pack(name)) for name in PACKINGS}, REPEAT)
    rows = [
        [name, t.spread(), f"{t.per_sample:.3f}", f"{results[name].counters.fill:.4%}"]
        for name, t in timings.items()
    ]
    header = ["packing", "seconds (min–max)", "µs per sample", "fill"]
    report.table(f"Every packing, pack_block of {BLOCK:,} samples", header, rows)


# Ranks that finish together


@cache
def balanced_lengths() -> np.ndarray:
    drawn = np.random.default_rng(0).lognormal(6, 1.2, BALANCED_SAMPLES)
    return np.clip(drawn, 1, BALANCED_LENGTH).astype(np.int64)


def balanced_plan(balance: str, packing: str) -> Plan:
    source = PlanSource(
        name="lognormal", key="0" * 64, shard_sizes=np.full(BALANCED_SAMPLES // 1000, 1000)
    )
    settings = PlanSettings(max_length=BALANCED_LENGTH, packing=packing, balance=balance)
    return Plan([source], lambda _, samples: balanced_lengths()[samples], settings)


def slowest(plan: Plan, ranks: int, batch_size: int) -> float:
    counter = BalanceCounter(plan.settings, ranks, ranks * batch_size)
    for rows in rows_of_epoch(plan):
        counter.add(rows)
    found = counter.result().slowest
    assert found is not None
    return found


def rows_of_epoch(plan: Plan) -> Iterator[Rows]:
    number = 0
    while (block := plan.blocks.pack(0, number)) is not None:
        yield block.rows
        number += 1


def slowest_at_least(plan: Plan, ranks: int, batch_size: int) -> float:
    """No deal of the rows of each step is better: its n costliest rows have n ranks for themselves, or two of them share one."""
    rows = Rows.join(list(rows_of_epoch(plan)))
    lengths = rows.spans["stop"] - rows.spans["start"]
    costs = np.add.reduceat(plan.settings.cost(lengths), rows.starts[:-1])
    steps = costs.size // (ranks * batch_size)
    falling = -np.sort(
        -costs[: steps * ranks * batch_size].reshape(steps, ranks * batch_size), axis=1
    )
    rising, mean = falling[:, ::-1], falling.sum(axis=1) / ranks
    bound = np.maximum(mean, falling[:, 0] + rising[:, : batch_size - 1].sum(axis=1))
    for n in range(2, ranks + 1):
        apart = (falling[:, :n].sum(axis=1) + rising[:, : n * (batch_size - 1)].sum(axis=1)) / n
        together = falling[:, n - 2 : n].sum(axis=1) + rising[:, : max(batch_size - 2, 0)].sum(
            axis=1
        )
        bound = np.maximum(bound, np.minimum(apart, together) if batch_size > 1 else apart)
    return float((bound / mean).mean())


def plan_all(balance: str | None, ranks: int, batch_size: int) -> None:
    """Every step of an epoch, and one rank's rows of it.  None: dealt in turn, and no cost is looked at."""
    plan, steps = balanced_plan(balance or "none", "best_fit"), []
    for step in plan.steps(num_rows=ranks * batch_size):
        if balance is None:
            step.rows.take(np.arange(1, ranks * batch_size, ranks))
            continue
        steps.append(step.rows)
        if len(steps) == STEPS_AT_ONCE:
            rank_shares(steps, World(rank=1, size=ranks), plan.settings)
            steps.clear()
    if steps:
        rank_shares(steps, World(rank=1, size=ranks), plan.settings)


GOALS = {
    ("next_fit", "rank", 8, 4): 1.04,
    ("next_fit", "rank", 64, 4): 1.04,
    ("next_fit", "block", 64, 1): 1.06,
    ("best_fit", "rank", 8, 4): 1.04,
    ("best_fit", "rank", 64, 4): 1.04,
}


def balance_of_ranks(report: Report) -> None:
    rows = []
    for packing in ("next_fit", "best_fit"):
        plans = {balance: balanced_plan(balance, packing) for balance in ("none", "rank", "block")}
        for ranks, batch_size in WORLDS:
            found = {balance: slowest(plan, ranks, batch_size) for balance, plan in plans.items()}
            least = slowest_at_least(plans["rank"], ranks, batch_size)
            cells = (f"{value:.3f}" for value in [*found.values(), least])
            rows.append([packing, f"{ranks} × {batch_size}", *cells])
            for balance, value in found.items():
                if goal := GOALS.get((packing, balance, ranks, batch_size)):
                    what = (
                        f"slowest ÷ mean rank, {ranks} × {batch_size}, {packing}, balance={balance}"
                    )
                    limit = f"no deal gets below {least:.3f}" if balance == "rank" else ""
                    key = f"balance_{packing}_{balance}_{ranks}_{batch_size}"
                    report.number(key, what, value, at_most=goal, note=limit, digits=3)
    for ranks, batch_size in WORLDS[1:4]:
        works = {
            str(how): (1, partial(plan_all, how, ranks, batch_size))
            for how in (None, "rank", "block")
        }
        timings, _ = take_turns(works, REPEAT)
        for how in ("rank", "block"):
            ratios = [a / b for a, b in zip(timings[how].cpu, timings["None"].cpu, strict=True)]
            what = f"CPU time of planning an epoch, {ranks} × {batch_size}, balance={how} ÷ without"
            report.number(f"price_{how}_{ranks}_{batch_size}", what, ratios, at_most=1.2)
    title = f"Slowest ÷ mean rank of a step: lognormal lengths (mu 6, sigma 1.2) in rows of {BALANCED_LENGTH:,}"
    header = ["packing", "ranks × rows", "none", "rank", "block", "rank, at best"]
    report.table(title, header, rows)


def main(report: Report) -> None:
    compare_packing(report)
    fill_of_plan(report)
    time_permutation(report)
    seek_afresh(report)
    price_of_a_table(report)
    price_of_weights(report)
    manifest_of_a_store(report)
    every_packing(report)
    balance_of_ranks(report)


if __name__ == "__main__":
    BENCHMARK.run(main)
