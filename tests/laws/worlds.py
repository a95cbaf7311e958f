"""Random recipes, and an oracle that counts with multiplicity and never asks the plan what it should have done."""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from penstock.plan import Counters, Plan, PlanSettings, PlanSource, Position
from tests.policy import RANDOM_EXAMPLES, SOAK

MUTANT = bool(os.environ.get("PENSTOCK_MUTANT"))


def examples(count: int):
    """`count` random recipes in `make test`, thirty times as many in `make soak`."""
    return settings(
        max_examples=count * 30 if SOAK else count,
        phases=[Phase.generate]
        if MUTANT
        else list(Phase),  # a mutant need only be noticed, not explained
        deadline=None,
        derandomize=not RANDOM_EXAMPLES,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


PACKINGS = [
    "mixed_fit",
    "best_fit",
    "first_fit",
    "next_fit",
    "window_1",
    "window_5",
    "window_9999",
    "concat",
    "none",
    "group_4",
]
TAILS = ["pad", "drop", "repeat", "wrap"]


@dataclass(frozen=True)
class World:
    """A recipe with its data: everything a test needs to build the same plan again, in this process or another."""

    lengths: tuple[np.ndarray, ...]
    shard_size: int
    settings: PlanSettings
    epochs: int
    masks: tuple[list[np.ndarray], ...] | None = (
        None  # per source and sample: which tokens are trained; None is all
    )

    def plan(self) -> Plan:
        sources = [
            PlanSource(
                name=f"source {i}",
                key=f"key {i}",
                shard_sizes=shard_sizes(len(lengths), self.shard_size),
            )
            for i, lengths in enumerate(self.lengths)
        ]
        targets = None if self.masks is None else self.targets
        return Plan(
            sources,
            lambda source, samples: self.lengths[source][samples],
            self.settings,
            targets=targets,
        )

    def targets(
        self, source: int, samples: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> np.ndarray:
        pieces = zip(samples.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return np.array([self.has_target(source, *piece) for piece in pieces], np.bool_)

    def has_target(self, source: int, sample: int, start: int, stop: int) -> bool:
        """Whether a token of the piece is trained and is not its first."""
        return self.masks is None or bool(self.masks[source][sample][start + 1 : stop].any())

    def wanted(self, source: int, sample: int) -> np.ndarray:
        """Which tokens of a sample must reach a row; written down again here, not asked of the plan.  Not for rows of a stream."""
        length, recipe = int(self.lengths[source][sample]), self.settings
        wanted = np.zeros(length, np.bool_)
        room = recipe.max_length // recipe.align * recipe.align
        if recipe.packing == "concat" or length <= room:
            wanted[:] = True
        elif recipe.on_overlong == "truncate":
            wanted[:room] = self.has_target(source, sample, 0, room)
        elif recipe.on_overlong == "split":
            for start in range(0, length, room):
                wanted[start : start + room] = self.has_target(
                    source, sample, start, min(start + room, length)
                )
        return wanted

    @property
    def drops_rows(self) -> bool:
        """Whether rows of a stream may be left out, so that tokens of a sample are not known by the sample alone."""
        return self.settings.packing == "concat" and self.masks is not None


def shard_sizes(num_samples: int, shard_size: int) -> np.ndarray:
    """Uneven shards, one of them empty, so that nothing may count on equal sizes."""
    sizes, left, turn = [0], num_samples, 0
    while left:
        size = min(left, shard_size + turn % 3)
        sizes.append(size)
        left, turn = left - size, turn + 1
    return np.array(sizes, np.int64)


@st.composite
def source_lengths(draw, most: int):
    count = draw(st.one_of(st.integers(0, 40), st.integers(0, most)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["mixed", "equal", "zeros", "one huge", "tiny", "all too long"]))
    if kind == "mixed":
        return rng.integers(0, 120, count)
    if kind == "equal":
        return np.full(count, draw(st.integers(1, 70)))
    if kind == "zeros":
        return rng.integers(0, 2, count) * rng.integers(0, 60, count)
    if kind == "all too long":
        return rng.integers(100, 300, count)
    lengths = rng.integers(1, 9, count)
    if kind == "one huge" and count:
        lengths[draw(st.integers(0, count - 1))] = 1000
    return lengths


def random_masks(lengths: np.ndarray, kind: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Every sample has a target, as in a store: a trained token that is not its first."""
    masks = []
    for length in lengths.tolist():
        share = {"few": 0.02, "half": 0.5, "end": 0.0, "edges": 0.0}[kind]
        mask = rng.random(length) < share
        if kind == "edges":  # first tokens of pieces, which are trained and are no targets
            mask[:: int(rng.integers(1, 70))] = True
        if length:
            mask[length - 1 if kind == "end" else int(rng.integers(1, length))] = True
        masks.append(mask)
    return masks


@st.composite
def worlds(
    draw,
    *,
    most: int = 5000,
    tails=tuple(TAILS),
    packings=tuple(PACKINGS),
    weighted=None,
    masked=None,
):
    num_sources = draw(st.integers(1, 6))
    lengths = tuple(draw(source_lengths(most // num_sources)) for _ in range(num_sources))
    weights = None
    if weighted if weighted is not None else draw(st.booleans()):
        # Few samples: under stopping_strategy="all_exhausted" a light source makes the heavy ones repeat up to a hundred times.
        lengths = tuple(
            values[:100] if values[:100].any() else np.array([3, 5, 8]) for values in lengths
        )
        weights = tuple(str(draw(st.sampled_from([1, 2, 3, 7, 0.1]))) for _ in lengths)
    packing = draw(st.sampled_from(packings))
    on_overlong = draw(
        st.sampled_from(["drop", "split"] if packing == "concat" else ["drop", "truncate", "split"])
    )
    max_length = draw(st.integers(8, 128))
    if (
        weights is not None and on_overlong == "drop" and packing != "concat"
    ):  # a source must have something left to give
        lengths = tuple(
            values if (values[values <= 8] > 0).any() else np.append(values, 4)
            for values in lengths
        )
    masks = None
    if masked if masked is not None else draw(st.booleans()):
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        kinds = [draw(st.sampled_from(["few", "half", "end", "edges"])) for _ in lengths]
        lengths = tuple(
            np.where(values == 1, 2, values) for values in lengths
        )  # one token is no target
        if weights is not None:
            lengths = tuple(np.append(values, 4) for values in lengths)
        masks = tuple(
            random_masks(values, kind, rng) for values, kind in zip(lengths, kinds, strict=True)
        )
    shuffle = draw(st.booleans())
    recipe = PlanSettings(
        max_length=max_length,
        packing=packing,
        on_overlong=on_overlong,
        shuffle=shuffle,
        shuffle_window=draw(st.sampled_from(["auto", "all", 1, 3])),
        seed=draw(st.integers(0, 2**63)),
        last_step=draw(st.sampled_from(tails)),
        weights=weights,
        mix_by=draw(st.sampled_from(["samples", "tokens"])) if weights else None,
        stopping_strategy=draw(st.sampled_from(["first_exhausted", "all_exhausted"]))
        if weights
        else None,
        block=draw(st.sampled_from([1, 50, 600, 65_536] if most <= 300 else [50, 600, 65_536])),
        align=draw(st.sampled_from([1, 1, 8])),
        max_per_row=None if packing == "concat" else draw(st.sampled_from([None, None, 1, 3])),
        balance=draw(
            st.sampled_from(
                ["none", "rank", "block"] if shuffle and packing != "group_4" else ["none", "rank"]
            )
        ),
        balance_rows=draw(st.sampled_from([1, 7, 256])),
        cost_attention=draw(st.sampled_from([1, 1, 0])),
        cost_linear=draw(st.sampled_from([24_576, 10])),
    )
    return World(lengths, draw(st.integers(1, 200)), recipe, draw(st.integers(1, 3)), masks)


def through_json(position: Position) -> Position:
    return Position(**json.loads(json.dumps(asdict(position))))


def as_list(rows) -> list[list[tuple[int, int, int, int]]]:
    """Rows as plain lists, to compare order."""
    flat = rows.spans.tolist()
    starts = rows.starts.tolist()
    return [flat[a:b] for a, b in pairwise(starts)]


def straight(world: World, num_rows: int) -> list:
    """All rows of an uncut run, epoch by epoch, without padding and repeats; tails are not dropped."""
    whole = replace(world, settings=replace(world.settings, last_step="pad"))
    epochs = [[] for _ in range(world.epochs)]
    for step in whole.plan().steps(num_rows=num_rows, epochs=world.epochs):
        epochs[step.epoch] += as_list(step.rows)[: step.num_real]
    return epochs


def check_row(row: list, world: World) -> None:
    """A row holds at most max_length places after alignment, at most max_per_row samples, and a target."""
    recipe = world.settings
    used = sum(-(-(stop - start) // recipe.align) * recipe.align for _, _, start, stop in row)
    assert 0 < used <= recipe.max_length
    assert all(
        0 <= start < stop <= world.lengths[source][sample] for source, sample, start, stop in row
    )
    assert any(world.has_target(*span) for span in row)
    assert recipe.max_per_row is None or len(row) <= recipe.max_per_row
    if recipe.packing in ("none", "group_4"):
        assert len(row) == 1


def coverage(rows: list, world: World) -> list[np.ndarray]:
    """How often every token of every sample was handed over: one array over all tokens of each source."""
    out = []
    for number, lengths in enumerate(world.lengths):
        offsets = np.concatenate(([0], np.cumsum(lengths + 1)))
        change = np.zeros(offsets[-1] + 1, np.int64)
        spans = np.array(
            [span for row in rows for span in row if span[0] == number], np.int64
        ).reshape(-1, 4)
        np.add.at(change, offsets[spans[:, 1]] + spans[:, 2], 1)
        np.add.at(change, offsets[spans[:, 1]] + spans[:, 3], -1)
        out.append(np.cumsum(change)[:-1])
    return out


def samples_seen(rows: list, world: World) -> list[np.ndarray]:
    """How often each sample was handed over; fails when some of its tokens came more often than others."""
    seen = []
    for source, (covered, lengths) in enumerate(
        zip(coverage(rows, world), world.lengths, strict=True)
    ):
        offsets = np.concatenate(([0], np.cumsum(lengths + 1)))
        times = np.zeros(len(lengths), np.int64)
        for sample, length in enumerate(lengths.tolist()):
            wanted = world.wanted(source, sample)
            counts = covered[offsets[sample] : offsets[sample] + length]
            assert (counts[~wanted] == 0).all(), f"tokens beyond what sample {sample} should give"
            if wanted.any():
                assert (counts[wanted] == counts[wanted][0]).all(), (
                    f"sample {sample} was handed over in part"
                )
                times[sample] = counts[wanted][0]
        seen.append(times)
    return seen


def check_passes(rows: list, world: World) -> None:
    """A token comes for the nth time only after every token of its source that is delivered at all has come n - 1 times."""
    times = [
        [np.zeros(length, np.int64) for length in lengths.tolist()] for lengths in world.lengths
    ]
    wanted = [
        [world.wanted(source, sample) for sample in range(len(lengths))]
        for source, lengths in enumerate(world.lengths)
    ]
    passes = [0 for _ in world.lengths]  # over each source that are complete
    left = [sum(int(each.sum()) for each in samples) for samples in wanted]  # of the current one
    total = list(left)
    for row in rows:
        for source, sample, start, stop in row:
            before = times[source][sample][start:stop]
            assert (before == passes[source]).all(), (
                f"source {source} gives sample {sample} again, and {left[source]} of its tokens are left in pass {passes[source]}"
            )
            before += 1
            left[source] -= stop - start
            if not left[source]:
                passes[source] += 1
                left[source] = total[source]


def delivered(world: World) -> list[np.ndarray]:
    """Tokens of each sample that reach a row, per source."""
    return [
        np.array(
            [int(world.wanted(source, sample).sum()) for sample in range(len(lengths))], np.int64
        )
        for source, lengths in enumerate(world.lengths)
    ]


def check_counters(found: Counters) -> None:
    """No counter is negative, and what comes in goes out or is dropped."""
    for name in Counters.__slots__:
        value = getattr(found, name)
        assert min(value.values(), default=1) > 0 if isinstance(value, Counter) else value >= 0, (
            f"{name}: {found}"
        )
    assert found.tokens_in == found.tokens_out + found.tokens_dropped.total()
    assert found.samples_in == found.samples_out + found.samples_dropped.total()
    assert found.samples_out == found.samples_by_source.total()


def row_counter(rows: list) -> Counter:
    return Counter(tuple(map(tuple, row)) for row in rows)


def rows_upto(world: World, epochs: int) -> list[int]:
    """Samples that each source must have delivered after so many epochs of a mixture by rows, by the definition in words."""
    weights = [
        Fraction(w) / sum(map(Fraction, world.settings.weights)) for w in world.settings.weights
    ]
    choose = min if world.settings.stopping_strategy == "first_exhausted" else max
    counts = [int(np.count_nonzero(tokens)) for tokens in delivered(world)]
    rows = choose(Fraction(n) / w for n, w in zip(counts, weights, strict=True))
    return [ceil(rows * w * epochs) for w in weights]
