"""How fast and how full do lengths become rows?  Over distributions and row lengths, beside trl and first-fit decreasing in numba.

python benchmarks/pack.py [--quick | --tiny]
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from stand import Benchmark, Report, sized, take_turns

from penstock.plan.packing import UNBOUNDED, best_fit

NUM_SAMPLES = sized(100_000, 300, 50_000)
CAPACITIES = sized((2048, 8192, 32_768, 131_072), (4096,), (4096,))
MOST_TOKENS = sized(50_000_000, 200_000)
REPEAT = sized(3, 1, 5)
GROUP = 100_000  # what multipack packs at once

BENCHMARK = Benchmark(
    title="Packing: lengths to rows",
    question="How fast and how full do lengths become rows?",
    measures=("plan.packing",),
    peers={
        "trl": "`pack_dataset(strategy='bfd')` with all samples in one batch, its fullest setting, ids of int32 and no other column. "
        "It also moves tokens, which `best_fit` leaves to the loader: [plan](plan.md) has both moving them",
        "numba": f"first-fit decreasing in groups of {GROUP:,}, compiled, with a tree that finds the row in O(log n): our own stand-in "
        "for axolotl's multipack sampler, which cannot be installed alone and looks at its open rows one by one",
    },
    notes=(
        f"{NUM_SAMPLES:,} samples, or as many as hold {MOST_TOKENS:,} tokens, cut to the row; medians of {REPEAT} repetitions in "
        "which the contestants take turns",
        "Over bound: rows beyond what any packing needs (tokens over row length, or samples of more than half a row). "
        "It is not always in reach: no long-tailed sample is under 60 tokens, no alpaca-like one under 20, so smaller gaps stay",
    ),
)


def lognormal(rng: np.random.Generator, _: int) -> np.ndarray:
    return rng.lognormal(5.8, 1.0, NUM_SAMPLES)


def short(rng: np.random.Generator, _: int) -> np.ndarray:
    """As instructions with answers in the manner of Alpaca: median 90, hardly any over 1,000."""
    return rng.lognormal(4.5, 0.7, NUM_SAMPLES) + 20


def long_tailed(rng: np.random.Generator, _: int) -> np.ndarray:
    """Pareto: most are short, a few hundredths hold half of the tokens."""
    return 60 * (1 + rng.pareto(1.1, NUM_SAMPLES))


def all_equal(rng: np.random.Generator, capacity: int) -> np.ndarray:
    """A little over a third of a row: two fit, and no packing in the world can use the rest."""
    return np.full(NUM_SAMPLES, capacity * 0.36)


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "lognormal": lognormal,
    "alpaca-like": short,
    "long-tailed": long_tailed,
    "all equal": all_equal,
}


def compiled_first_fit() -> Callable[[np.ndarray, int], int]:
    """The number of rows, by a compiled function."""
    import numba

    @numba.njit
    def first_fit_decreasing(lengths: np.ndarray, capacity: int) -> int:
        # The leftmost row with room is found in a tree of the largest free spaces: O(n log n).
        size = 1
        while size < lengths.size:
            size *= 2
        free = np.full(2 * size, capacity, np.int64)
        rows = 0
        for length in np.sort(lengths)[::-1]:
            node = 1
            while node < size:
                node = 2 * node if free[2 * node] >= length else 2 * node + 1
            rows = max(rows, node - size + 1)
            free[node] -= length
            node //= 2
            while node:
                free[node] = max(free[2 * node], free[2 * node + 1])
                node //= 2
        return rows

    def multipack(lengths: np.ndarray, capacity: int) -> int:
        groups = range(0, lengths.size, GROUP)
        return sum(
            first_fit_decreasing(lengths[start : start + GROUP], capacity) for start in groups
        )

    multipack(np.array([3, 2, 1]), 4)  # compiled before the clock starts
    return multipack


def trl_rows(lengths: np.ndarray, capacity: int) -> Callable[[], int]:
    import datasets
    import pyarrow as pa
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    ids = pa.LargeListArray.from_arrays(
        pa.array(offsets), pa.array(np.zeros(offsets[-1], np.int32))
    )
    data = datasets.Dataset(pa.table({"input_ids": ids}))
    return lambda: len(
        pack_dataset(data, seq_length=capacity, strategy="bfd", map_kwargs={"batch_size": None})
    )


def bound_of(lengths: np.ndarray, capacity: int) -> int:
    """Rows that any packing needs: all tokens, or one row for each sample of more than half a row, whichever is more.

    For equal lengths: as many to a row as fit.
    """
    if lengths.min() == lengths.max():
        return -(-lengths.size // (capacity // int(lengths[0])))
    return max(-(-int(lengths.sum()) // capacity), int((lengths > capacity / 2).sum()))


SIDES = {"trl": "trl bfd", "numba": "first-fit decreasing in numba"}


def main(report: Report) -> None:
    multipack = compiled_first_fit() if report.has("numba") else None
    lines = []
    worst: dict[str, Any] = {}
    over_bound, rows_saved = [], []
    for name, distribution in DISTRIBUTIONS.items():
        for capacity in CAPACITIES:
            drawn = distribution(np.random.default_rng(0), capacity)
            lengths = np.clip(drawn, 1, capacity).astype(np.int64)
            most = int(np.searchsorted(np.cumsum(lengths), MOST_TOKENS))  # trl holds them, twice
            lengths = lengths[:most]
            works: dict[str, Callable[[], int]] = {
                "penstock": lambda lengths=lengths, capacity=capacity: (
                    int(best_fit(lengths, capacity, UNBOUNDED).max()) + 1
                )
            }
            if multipack is not None:
                works["numba"] = lambda lengths=lengths, capacity=capacity: multipack(
                    lengths, capacity
                )
            if report.has("trl"):
                works["trl"] = trl_rows(lengths, capacity)
            sized_works = {side: (lengths.size, work) for side, work in works.items()}
            timings, rows = take_turns(sized_works, REPEAT)
            bound, tokens = bound_of(lengths, capacity), int(lengths.sum())
            cells = [name, f"{capacity:,}", f"{tokens / bound / capacity:.3%}"]
            for side in ("penstock", *SIDES):
                if side not in works:
                    cells += ["", "", ""]
                    continue
                cells += [
                    f"{tokens / rows[side] / capacity:.3%}",
                    f"{rows[side] / bound - 1:.3%}",
                    f"{timings[side].per_sample:.3f}",
                ]
            for side in SIDES:
                if side not in works:
                    cells.append("")
                    continue
                ratio = timings[side].per_sample / timings["penstock"].per_sample
                cells.append(f"{ratio:.1f}")
                if side not in worst or ratio < worst[side][0]:
                    worst[side] = (ratio, timings[side], timings["penstock"])
            lines.append(cells)
            over_bound.append(rows["penstock"] / bound - 1)
            others = [rows[side] for side in SIDES if side in works]
            rows_saved.append(min(others, default=rows["penstock"]) / rows["penstock"] - 1)
    if "trl" in worst:
        what = f"slowest case against {SIDES['trl']}, per sample"
        report.ratio("trl", what, *worst["trl"][1:], peer="trl", at_least=100, digits=0)
    if "numba" in worst:
        what = f"slowest case against {SIDES['numba']}, per sample"
        report.ratio("multipack", what, *worst["numba"][1:], peer="numba", at_least=1)
    emptiest = 100 * max(over_bound)
    report.number("over_bound", "emptiest case: rows over the lower bound", emptiest, "%", digits=3)
    fewest = 100 * min(rows_saved)
    what = "rows that the better of the peers needs beyond ours, least of all cases"
    report.number("rows_saved", what, fewest, "%", digits=3, at_least=0)
    columns = [
        f"{side} {what}" for side in ("ours", *SIDES) for what in ("fill", "over bound", "µs")
    ]
    header = ["lengths", "row", "bound's fill", *columns, "× trl", "× numba"]
    report.table("Every case", header, lines)


if __name__ == "__main__":
    BENCHMARK.run(main)
