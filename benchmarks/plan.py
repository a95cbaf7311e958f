"""How fast and how full is the plan?  Packing against trl, the permutation, a seek in 10⁹ samples.  Writes results/plan.md.

    python benchmarks/plan.py            all questions, about three minutes
    python benchmarks/plan.py seek all   one seek in this process (the script starts itself so, to measure it fresh)

Every time is the median of repetitions in which the contestants take turns, so that a busy neighbour slows them all alike.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from stand import Page, Timing, Verdict, table, take_turns

from penstock.loader.state import make_state, read_state
from penstock.plan.block import Block, Rows
from penstock.plan.packing import UNBOUNDED, best_fit
from penstock.plan.permutation import Permutation
from penstock.plan.plan import Plan, PlanSource, Position
from penstock.plan.settings import PlanSettings

ROOT = Path(__file__).resolve().parent
MAX_LENGTH = 4096
NUM_SAMPLES = 5_000_000
NUM_COMPARED = 200_000  # trl needs seconds for these
BLOCK = 65_536  # the default of PlanSettings
NUM_INDICES, INDEX_CHUNK = 100_000_000, 1_000_000
SEEK_SAMPLES, SEEK_SHARDS = 1_000_000_000, 100_000
SEEK_ROWS = 64  # rows of the step that is sought
PACKINGS = ("best_fit", "first_fit", "next_fit", "window_100", "concat", "none")
REPEAT = 5


def block_of(lengths: np.ndarray, settings: PlanSettings) -> Block:
    """A block of one source's samples with these lengths."""
    return Block(np.zeros(lengths.size, np.int64), np.arange(lengths.size), lengths, settings, ["made"])


def lognormal_lengths(num_samples: int, seed: int = 0) -> np.ndarray:
    """Mean about 530, 0.6 % at the cap."""
    drawn = np.random.default_rng(seed).lognormal(5.8, 1.0, num_samples)
    return np.clip(drawn, 1, MAX_LENGTH).astype(np.int64)


def fill_of(lengths: np.ndarray, num_rows: int) -> float:
    return int(lengths.sum()) / (num_rows * MAX_LENGTH)


# 1 Packing, against trl


def packed_tokens(rows: Rows, tokens: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows as tokens: (flat tokens, border of each row), the same thing trl's Arrow table holds."""
    begin = offsets[rows.spans["sample"]]
    first, last = begin + rows.spans["start"], begin + rows.spans["stop"]
    flat = np.concatenate([tokens[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)])
    borders = np.concatenate(([0], np.cumsum(last - first)))[rows.starts]
    return flat, borders


def in_small_blocks(lengths: np.ndarray, size: int) -> int:
    """Number of rows when only `size` samples are packed together."""
    return sum(
        int(best_fit(lengths[i : i + size], MAX_LENGTH, UNBOUNDED).max()) + 1 for i in range(0, lengths.size, size)
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
            "pack_block + tokens, 200 k": (NUM_COMPARED, lambda: packed_tokens(block(few)[0], tokens, offsets)),
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
        assert sum(len(chunk.flatten()) for chunk in packed.chunks) == tokens.size, "trl lost tokens"
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
    by_turn = [a / trl.num_samples * ours.num_samples / b for a, b in zip(trl.wall, ours.wall, strict=True)]
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
        ["contestant", "samples", "seconds (min–max)", "CPU s", "µs per sample", "× trl", "× trl, CPU", "fill"],
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
    plan = Plan([source], lambda _, samples: lengths[samples], PlanSettings(max_length=MAX_LENGTH, block=BLOCK))
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
        verdicts.append(Verdict(f"3 permutation of 10⁸, {name}: M/s", f"{speed:.1f}", "≥ 20", speed >= 20))
    rows = [[name, t.spread(), f"{median(t.cpu):.3f}", f"{1 / t.per_sample:.1f}"] for name, t in timings.items()]
    return verdicts, table(["direction", "seconds (min–max)", "CPU s", "M/s"], rows)


# 4 Seek


def made_up_lengths(_: int, samples: np.ndarray) -> np.ndarray:
    """A length for any of 10⁹ samples without a table of them: the sample's hash picks one of 65,536 lognormal draws."""
    hashed = samples.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return _DRAWS[(hashed >> np.uint64(48)).astype(np.int64)]


_DRAWS = lognormal_lengths(65_536, seed=2)


def seek_plan(window: str) -> Plan:
    sizes = np.full(SEEK_SHARDS, SEEK_SAMPLES // SEEK_SHARDS)
    settings = PlanSettings(max_length=MAX_LENGTH, block=BLOCK, window=window)
    return Plan([PlanSource(name="made-up", key="0" * 64, shard_sizes=sizes)], made_up_lengths, settings)


def seek_here(window: str) -> dict[str, Any]:
    """Runs in a fresh process: from nothing to the step at 90 %, then once more through a saved state."""
    position = Position(block=int(SEEK_SAMPLES * 0.9) // BLOCK, row=1000, rows=117_000_000)  # `rows` only counts along
    begin = time.perf_counter()
    plan = seek_plan(window)
    step = plan.step(position, SEEK_ROWS)
    seconds = time.perf_counter() - begin
    assert step is not None
    assert step.num_real == SEEK_ROWS
    saved = json.dumps(make_state(plan, position, 1_800_000))

    begin = time.perf_counter()
    plan = seek_plan(window)
    again = plan.step(read_state(json.loads(saved), plan)[0], SEEK_ROWS)
    resume = time.perf_counter() - begin
    assert again is not None
    assert (again.rows.spans == step.rows.spans).all()
    # VmHWM, not getrusage: a child's ru_maxrss begins at what its parent held when it forked.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    return {"seconds": seconds, "resume": resume, "megabytes": peak, "state": len(saved)}


def seek_afresh() -> tuple[list[Verdict], list[str]]:
    found: dict[str, list[dict[str, Any]]] = {"auto": [], "all": []}
    for _ in range(REPEAT):
        for window, runs in found.items():
            command = [sys.executable, __file__, "seek", window]
            runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    verdicts, rows = [], []
    for window, runs in found.items():
        seconds, resume = (median(run[key] for run in runs) for key in ("seconds", "resume"))
        peak, state = (max(run[key] for run in runs) for key in ("megabytes", "state"))
        name = f"4 seek to 90 % of 10⁹, window={window}"
        verdicts += [
            Verdict(f"{name}: seconds", f"{seconds:.3f}", "≤ 1", seconds <= 1),
            Verdict(f"{name}: seconds, from saved JSON", f"{resume:.3f}", "≤ 1", resume <= 1),
            Verdict(f"{name}: peak MB of the process", f"{peak:.0f}", "≤ 300", peak <= 300),
            Verdict(f"{name}: saved state, bytes", f"{state}", "≤ 1024", state <= 1024),
        ]
        rows += [
            [window, *(f"{run[key]:.3f}" for key in ("seconds", "resume")), f"{run['megabytes']:.0f}"] for run in runs
        ]
    return verdicts, table(["window", "Plan → Step, s", "Plan + saved state → Step, s", "peak MB"], rows)


def price_of_a_table() -> Verdict:
    """A step *number* instead of a saved position needs the rows of every block: measured on some, told for all."""
    settings = PlanSettings(max_length=MAX_LENGTH, block=BLOCK)
    lengths = [made_up_lengths(0, np.arange(i * BLOCK, (i + 1) * BLOCK)) for i in range(20)]
    timings, _ = take_turns({"count": (1, lambda: [block_of(of, settings).num_rows() for of in lengths])}, REPEAT)
    seconds = timings["count"].seconds / len(lengths) * SEEK_SAMPLES / BLOCK
    return Verdict("4 plan.seek(step number) in 10⁹: rows of every block (extrapolated)", f"{seconds:.0f} s", "")


# 5 Every packing


def every_packing() -> list[str]:
    lengths = lognormal_lengths(BLOCK)

    def pack(name: str) -> Callable[[], Any]:
        settings = PlanSettings(max_length=MAX_LENGTH, packing=name)
        return lambda: block_of(lengths, settings).pack(epoch=0, number=0)

    timings, results = take_turns({name: (BLOCK, pack(name)) for name in PACKINGS}, REPEAT)
    rows = [[name, t.spread(), f"{t.per_sample:.3f}", f"{results[name][1].fill:.4%}"] for name, t in timings.items()]
    return table(["packing", "seconds (min–max)", "µs per sample", "fill"], rows)


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
    verdicts += [*permutation, *seek, price_of_a_table()]
    page.write(
        verdicts,
        {
            "1 Packing against trl": COMPETITOR + packing_part,
            "3 Permutation of 10⁸ indices, a million at a time": permutation_part,
            f"4 Seek: a fresh process per line (imports not timed), {SEEK_SHARDS:,} shards, lengths by function": seek_part,
            f"5 Every packing, pack_block of {BLOCK:,} samples": every_packing(),
        },
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["seek"]:
        print(json.dumps(seek_here(sys.argv[2])))
    else:
        main()
