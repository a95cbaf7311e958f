"""How fast and how full is the plan?  Packing against trl, the permutation, seeks in 10¹² tokens, balance.  Writes results/plan.md.

    python benchmarks/plan.py            all questions, about four minutes
    python benchmarks/plan.py balance    how evenly ranks share a step, and what that costs; writes no page
    python benchmarks/plan.py scale      seeks in 10¹² tokens; writes no page
    python benchmarks/plan.py seek all   seeks in this process (the script starts itself so, to measure them fresh)

Every time is the median of repetitions in which the contestants take turns, so that a busy neighbour slows them all alike.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from stand import Page, Timing, Verdict, table, take_turns, verdict_table

from penstock.cache import Cache
from penstock.loader.state import Cursor, make_state, read_state
from penstock.plan.block import Block
from penstock.plan.packing import UNBOUNDED, best_fit
from penstock.plan.permutation import Permutation, derive
from penstock.plan.plan import Plan, PlanSource, Position
from penstock.plan.ranks import rank_shares
from penstock.plan.rows import Rows
from penstock.plan.settings import PlanSettings
from penstock.report.balance import BalanceCounter
from penstock.store import manifest
from penstock.store.counts import Counts
from penstock.store.manifest import Manifest
from penstock.store.shards import ShardEntry
from penstock.types import World

ROOT = Path(__file__).resolve().parent
MAX_LENGTH = 4096
NUM_SAMPLES = 5_000_000
NUM_COMPARED = 200_000  # trl needs seconds for these
BLOCK = 65_536  # the default of PlanSettings
NUM_INDICES, INDEX_CHUNK = 100_000_000, 1_000_000
SEEK_SAMPLES, SEEK_SHARDS = 2_000_000_000, 100_000
SEEK_ROWS = 64  # rows of the step that is sought
SEEK_SHARES = (0.1, 0.5, 0.9)
BALANCED_LENGTH, BALANCED_SAMPLES = 16_384, 200_000
WORLDS = ((8, 1), (8, 4), (64, 1), (64, 4), (256, 1))  # ranks × rows per rank
STEPS_AT_ONCE = 16  # as the loader deals them
PACKINGS = ("best_fit", "first_fit", "next_fit", "window_100", "concat", "none")
REPEAT = 5


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


def compare_packing() -> tuple[list[Verdict], list[str]]:
    import datasets
    import pyarrow as pa
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    lengths = lognormal_lengths(NUM_SAMPLES)
    few = lengths[:NUM_COMPARED]
    offsets = np.concatenate(([0], np.cumsum(few)))
    tokens = np.random.default_rng(1).integers(0, 50_000, offsets[-1], dtype=np.int32)
    column = pa.ListArray.from_arrays(offsets.astype(np.int32), tokens)
    dataset = datasets.Dataset(pa.table({"input_ids": column}))
    settings = PlanSettings(max_length=MAX_LENGTH)

    def block(of: np.ndarray) -> tuple[Rows, Any]:
        return block_of(of, settings).pack(epoch=0, number=0)

    def trl(**map_kwargs: Any) -> Any:
        return pack_dataset(dataset, seq_length=MAX_LENGTH, strategy="bfd", map_kwargs=map_kwargs)

    timings, results = take_turns(
        {
            "trl, default": (NUM_COMPARED, trl),
            "best_fit, 5 M": (NUM_SAMPLES, lambda: best_fit(lengths, MAX_LENGTH, UNBOUNDED)),
            "best_fit, 200 k": (NUM_COMPARED, lambda: best_fit(few, MAX_LENGTH, UNBOUNDED)),
            "best_fit, 200 × 1 k": (NUM_COMPARED, lambda: in_small_blocks(few, 1000)),
            "pack_block + tokens, 200 k": (
                NUM_COMPARED,
                lambda: packed_tokens(block(few)[0], tokens, offsets),
            ),
            "trl, one batch": (NUM_COMPARED, lambda: trl(batch_size=None)),
            "pack_block, 5 M": (NUM_SAMPLES, lambda: block(lengths)),
        },
        REPEAT,
    )
    fills = packing_fills(results, lengths, few, tokens)
    return packing_verdicts(timings, fills), packing_table(timings, fills)


def packing_fills(
    results: dict[str, Any], lengths: np.ndarray, few: np.ndarray, tokens: np.ndarray
) -> dict[str, float]:
    """Fill of each contestant's rows, after a look whether they hold what they should."""
    for name in ("trl, default", "trl, one batch"):
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
    return {
        "trl, default": fill_of(few, len(results["trl, default"])),
        "trl, one batch": fill_of(few, len(results["trl, one batch"])),
        "best_fit, 5 M": fill_of(lengths, int(rows.max()) + 1),
        "best_fit, 200 k": fill_of(few, int(results["best_fit, 200 k"].max()) + 1),
        "best_fit, 200 × 1 k": fill_of(few, results["best_fit, 200 × 1 k"]),
        "pack_block + tokens, 200 k": fill_of(few, borders.size - 1),
        "pack_block, 5 M": results["pack_block, 5 M"][1].fill,
    }


def packing_verdicts(timings: dict[str, Timing], fills: dict[str, float]) -> list[Verdict]:
    trl, ours = timings["trl, default"], timings["best_fit, 5 M"]
    full, whole = timings["pack_block + tokens, 200 k"], timings["pack_block, 5 M"]
    by_turn = [
        a / trl.num_samples * ours.num_samples / b for a, b in zip(trl.wall, ours.wall, strict=True)
    ]
    ratio = trl.per_sample / ours.per_sample
    fill = fills["best_fit, 5 M"]
    return [
        Verdict("1 best_fit, 5 M in one block: fill", f"{fill:.4%}", "≥ 99.9 %", fill >= 0.999),
        Verdict("1 best_fit, 5 M in one block: seconds", ours.spread(), "≤ 1", ours.seconds <= 1),
        Verdict(
            "1 best_fit per sample against trl bfd",
            f"{ratio:.0f} × ({min(by_turn):.0f}–{max(by_turn):.0f})",
            "≥ 100 ×",
            ratio >= 100,
        ),
        Verdict("1 the same by CPU time", f"{trl.cpu_per_sample / ours.cpu_per_sample:.0f} ×", ""),
        Verdict("1 tokens moved by both (200 k)", f"{trl.per_sample / full.per_sample:.1f} ×", ""),
        Verdict("1 the same by CPU time", f"{trl.cpu_per_sample / full.cpu_per_sample:.1f} ×", ""),
        Verdict("1 pack_block, 5 M (spans, shuffled rows, counters)", whole.spread(), ""),
    ]


def packing_table(timings: dict[str, Timing], fills: dict[str, float]) -> list[str]:
    trl = timings["trl, default"]
    return table(
        [
            "contestant",
            "samples",
            "seconds (min–max)",
            "CPU s",
            "µs per sample",
            "× trl",
            "× trl, CPU",
            "fill",
        ],
        [
            [
                name,
                f"{t.num_samples:,}",
                t.spread(),
                f"{median(t.cpu):.3f}",
                f"{t.per_sample:.3f}",
                f"{trl.per_sample / t.per_sample:.1f}",
                f"{trl.cpu_per_sample / t.cpu_per_sample:.1f}",
                f"{fills[name]:.4%}",
            ]
            for name, t in timings.items()
        ],
    )


# 2 Fill of a real plan


def fill_of_plan() -> list[Verdict]:
    lengths = lognormal_lengths(NUM_SAMPLES)
    sizes = np.full(NUM_SAMPLES // 10_000, 10_000)
    source = PlanSource(name="lognormal", key="lognormal", shard_sizes=sizes)
    plan = Plan(
        [source],
        lambda _, samples: lengths[samples],
        PlanSettings(max_length=MAX_LENGTH, block=BLOCK),
    )
    verdicts = []
    for epoch, what in ((0, "blocks ramp up from 1,024"), (1, "all blocks full")):
        counters = plan.count(epoch)
        assert counters.samples_out == NUM_SAMPLES, counters
        verdicts.append(
            Verdict(
                f"2 plan of 5 M, blocks of 65,536, epoch {epoch} ({what}): fill",
                f"{counters.fill:.4%}",
                "≥ 99.5 %",
                counters.fill >= 0.995,
            )
        )
    return verdicts


# 3 The permutation


def time_permutation() -> tuple[list[Verdict], list[str]]:
    permutation = Permutation(NUM_INDICES, key=1)
    chunk = np.arange(INDEX_CHUNK, dtype=np.int64)
    back = permutation.index(permutation[chunk + 7 * INDEX_CHUNK])
    assert (back == chunk + 7 * INDEX_CHUNK).all()

    def all_of(direction: Callable[[np.ndarray], np.ndarray]) -> None:
        for start in range(0, NUM_INDICES, INDEX_CHUNK):
            direction(chunk + start)

    works = {
        "index → place": (NUM_INDICES, lambda: all_of(permutation.__getitem__)),
        "place → index": (NUM_INDICES, lambda: all_of(permutation.index)),
    }
    timings, _ = take_turns(works, REPEAT)
    verdicts = []
    for name, timing in timings.items():
        speed = 1 / timing.per_sample  # millions per second
        verdicts.append(
            Verdict(f"3 permutation of 10⁸, {name}: M/s", f"{speed:.1f}", "≥ 20", speed >= 20)
        )
    rows = [
        [name, t.spread(), f"{median(t.cpu):.3f}", f"{1 / t.per_sample:.1f}"]
        for name, t in timings.items()
    ]
    return verdicts, table(["direction", "seconds (min–max)", "CPU s", "M/s"], rows)


# 4 Seek


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
            position=Position(block=block, row=1000, rows=block * 8_000), step=block * 125
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
    # VmHWM, not getrusage: a child's ru_maxrss begins at what its parent held when it forked.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {**found, "megabytes": int(status["VmHWM"].split()[0]) / 1024}


def seek_afresh() -> tuple[list[Verdict], list[str]]:
    found: dict[str, list[dict[str, Any]]] = {"auto": [], "all": []}
    for _ in range(REPEAT):
        for window, runs in found.items():
            command = [sys.executable, __file__, "seek", window]
            runs.append(
                json.loads(
                    subprocess.run(command, check=True, capture_output=True, text=True).stdout
                )
            )
    times = [f"{share:.0%}{how}" for share in SEEK_SHARES for how in ("", " resumed")]
    verdicts, rows = [], []
    for window, runs in found.items():
        worst = {
            how: max(median(run[key] for run in runs) for key in times if ("resumed" in key) == how)
            for how in (False, True)
        }
        peak, state = (max(run[key] for run in runs) for key in ("megabytes", "state"))
        name = f"4 10¹² tokens, 2 × 10⁹ samples, shuffle_window={window}"
        verdicts += [
            Verdict(
                f"{name}: seconds to seek, slowest of 10, 50, 90 %",
                f"{worst[False]:.3f}",
                "≤ 1",
                worst[False] <= 1,
            ),
            Verdict(
                f"{name}: the same from saved JSON", f"{worst[True]:.3f}", "≤ 1", worst[True] <= 1
            ),
            Verdict(f"{name}: peak MB of the process", f"{peak:.0f}", "≤ 300", peak <= 300),
            Verdict(f"{name}: saved state, bytes", f"{state}", "≤ 1024", state <= 1024),
        ]
        rows += [
            [window, *(f"{run[key]:.3f}" for key in times), f"{run['megabytes']:.0f}"]
            for run in runs
        ]
    return verdicts, table(["window", *times, "peak MB"], rows)


def price_of_weights() -> Verdict:
    """A seek in a mixture with weights learns what every sample before it contributes: measured on 10⁷, told for all."""
    sources = [
        PlanSource(name=name, key="0" * 64, shard_sizes=np.full(500, 20_000)) for name in ("a", "b")
    ]
    settings = PlanSettings(max_length=MAX_LENGTH, block=BLOCK, weights=("1", "1"))

    def seek() -> Any:
        return Plan(sources, made_up_lengths, settings).step(
            Position(block=10_000_000 // BLOCK), SEEK_ROWS
        )

    timings, _ = take_turns({"seek": (1, seek)}, REPEAT)
    seconds = min(timings["seek"].cpu) * SEEK_SAMPLES / 2 / 10_000_000
    return Verdict(
        "4 resume at 50 % of 2 × 10⁹ samples with weights (extrapolated)", f"{seconds:.0f} s", ""
    )


def manifest_of_a_store() -> list[Verdict]:
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
    return [
        Verdict("4 manifest of 100,000 shards: MB on disk", f"{num_bytes / 1e6:.0f}", ""),
        Verdict(
            "4 manifest of 100,000 shards: seconds to read and check", timings["read"].spread(), ""
        ),
        Verdict(
            "4 file of lengths of 2 × 10⁹ samples, mapped: GB on disk",
            f"{4 * SEEK_SAMPLES / 1e9:.0f}",
            "",
        ),
    ]


def price_of_a_table() -> Verdict:
    """A step *number* instead of a saved position needs the rows of every block: measured on some, told for all."""
    settings = PlanSettings(max_length=MAX_LENGTH, block=BLOCK)
    lengths = [made_up_lengths(0, np.arange(i * BLOCK, (i + 1) * BLOCK)) for i in range(20)]
    timings, _ = take_turns(
        {"count": (1, lambda: [block_of(of, settings).num_rows() for of in lengths])}, REPEAT
    )
    seconds = min(timings["count"].cpu) / len(lengths) * SEEK_SAMPLES / BLOCK
    return Verdict(
        "4 plan.seek(step number) in 2 × 10⁹ samples: rows of every block (extrapolated)",
        f"{seconds:.0f} s",
        "",
    )


# 5 Every packing


def every_packing() -> list[str]:
    lengths = lognormal_lengths(BLOCK)

    def pack(name: str) -> Callable[[], Any]:
        settings = PlanSettings(max_length=MAX_LENGTH, packing=name)
        return lambda: block_of(lengths, settings).pack(epoch=0, number=0)

    timings, results = take_turns({name: (BLOCK, pack(name)) for name in PACKINGS}, REPEAT)
    rows = [
        [name, t.spread(), f"{t.per_sample:.3f}", f"{results[name][1].fill:.4%}"]
        for name, t in timings.items()
    ]
    return table(["packing", "seconds (min–max)", "µs per sample", "fill"], rows)


# 6 Ranks that finish together


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
        yield block[0]
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


def balance_of_ranks() -> tuple[list[Verdict], list[str]]:
    goals = {
        ("next_fit", "rank", 8, 4): 1.04,
        ("next_fit", "rank", 64, 4): 1.04,
        ("next_fit", "block", 64, 1): 1.06,
    }
    goals |= {("best_fit", "rank", 8, 4): 1.04, ("best_fit", "rank", 64, 4): 1.04}
    verdicts, rows = [], []
    for packing in ("next_fit", "best_fit"):
        plans = {balance: balanced_plan(balance, packing) for balance in ("none", "rank", "block")}
        for ranks, batch_size in WORLDS:
            found = {balance: slowest(plan, ranks, batch_size) for balance, plan in plans.items()}
            least = slowest_at_least(plans["rank"], ranks, batch_size)
            rows.append(
                [
                    packing,
                    f"{ranks} × {batch_size}",
                    *(f"{value:.3f}" for value in [*found.values(), least]),
                ]
            )
            for balance, value in found.items():
                if goal := goals.get((packing, balance, ranks, batch_size)):
                    name = f"6 slowest ÷ mean rank, {ranks} × {batch_size}, {packing}, balance={balance}"
                    limit = f" (no deal gets below {least:.3f})" if balance == "rank" else ""
                    verdicts.append(
                        Verdict(name, f"{value:.3f}{limit}", f"≤ {goal}", value <= goal)
                    )
    for ranks, batch_size in ((8, 4), (64, 4), (64, 1)):
        works = {
            str(how): (1, partial(plan_all, how, ranks, batch_size))
            for how in (None, "rank", "block")
        }
        timings, _ = take_turns(works, REPEAT)
        cpu = {how: min(timing.cpu) for how, timing in timings.items()}
        for how in ("rank", "block"):
            ratio = cpu[how] / cpu["None"]
            name = (
                f"6 CPU time of planning an epoch, {ranks} × {batch_size}, balance={how} ÷ without"
            )
            verdicts.append(Verdict(name, f"{ratio:.2f}", "≤ 1.2", ratio <= 1.2))
    return verdicts, table(
        ["packing", "ranks × rows", "none", "rank", "block", "rank, at best"], rows
    )


COMPETITOR = [
    'trl\'s `pack_dataset(dataset, seq_length=4096, strategy="bfd")` on 200,000 of the same lengths; only this call is timed.',
    "",
    "- Default `map_kwargs`: batches of 1,000, one process, as `SFTTrainer` uses it.  Other batch sizes were no faster (LOG.md).",
    "- `batch_size=None`: all samples in one batch, the setting in which trl's fill can be compared with ours in one block.",
    "- One process on both sides; with `num_proc=2` trl took longer on this machine (LOG.md).",
    "- In memory, no cache file (`Dataset` over an Arrow table, int32 ids, no other column), progress bars off: all in trl's favour.",
    "- trl also moves the tokens into packed rows, best_fit only says which row.  So `pack_block + tokens` does both: "
    "spans, shuffled rows, counters, and all tokens copied into one flat array.  Neither side writes to disk.",
    "- `best_fit, 200 × 1 k` packs in trl's batches of 1,000: our cost is per different length, so small blocks cost more per sample.",
    "",
]


def main() -> None:
    page = Page(
        "plan",
        "The plan: packing, permutation, seek",
        packages=("numpy", "pyarrow", "datasets", "trl", "torch"),
        notes=(
            f"Times: medians of {REPEAT} repetitions in which the contestants take turns; range in brackets; ratios are of medians",
            f"Data: lognormal lengths (mu 5.8, sigma 1.0, seed 0), 1 to {MAX_LENGTH}, mean "
            f"{lognormal_lengths(NUM_SAMPLES).mean():.0f}; tokens random int32",
        ),
    )
    packing, packing_part = compare_packing()
    verdicts = packing + fill_of_plan()
    permutation, permutation_part = time_permutation()
    seek, seek_part = seek_afresh()
    balance, balance_part = balance_of_ranks()
    verdicts += [
        *permutation,
        *seek,
        price_of_a_table(),
        price_of_weights(),
        *manifest_of_a_store(),
        *balance,
    ]
    page.write(
        verdicts,
        {
            "1 Packing against trl": COMPETITOR + packing_part,
            "3 Permutation of 10⁸ indices, a million at a time": permutation_part,
            f"4 Seek: a fresh process per line (imports not timed), {SEEK_SHARDS:,} shards, lengths by function": seek_part,
            f"5 Every packing, pack_block of {BLOCK:,} samples": every_packing(),
            f"6 Slowest ÷ mean rank of a step: lognormal lengths (mu 6, sigma 1.2) in rows of {BALANCED_LENGTH:,}": balance_part,
        },
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["seek"]:
        print(json.dumps(seek_here(sys.argv[2])))
    elif sys.argv[1:] in (["balance"], ["scale"]):
        verdicts, part = balance_of_ranks() if sys.argv[1] == "balance" else seek_afresh()
        verdicts += (
            []
            if sys.argv[1] == "balance"
            else [price_of_a_table(), price_of_weights(), *manifest_of_a_store()]
        )
        print("\n".join([*verdict_table(verdicts), "", *part]))
    else:
        main()
