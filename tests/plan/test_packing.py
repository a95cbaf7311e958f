"""Packers: capacity is kept, every piece has one row, and the results match slow and plain versions of the same idea."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Overlong, PlanError
from penstock.plan import PlanSettings
from penstock.plan.block import Block
from penstock.plan.packing import (
    UNBOUNDED,
    _close_gaps,
    argsort_small,
    best_fit,
    first_fit,
    mixed_fit,
    next_fit,
    parse_packing,
    window_fit,
)

pieces = st.lists(st.integers(1, 40), max_size=200).map(lambda values: np.array(values, np.int64))
bounds = st.sampled_from([1, 2, 5, UNBOUNDED])
count_rows = parse_packing("best_fit").count_rows


@given(
    pieces,
    st.integers(40, 90),
    bounds,
    st.sampled_from(
        ["mixed_fit", "best_fit", "first_fit", "next_fit", "window_3", "window_500", "none"]
    ),
    st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)
def test_rows_keep_their_bounds(lengths, capacity, bound, name, repeats):
    """Also where sources repeat: a row of several sections is the last row of its first section, and the only one."""
    sections = np.cumsum(np.random.default_rng(lengths.size).random(lengths.size) < repeats)
    rows = parse_packing(name).assign(lengths, capacity, bound, sections)
    assert rows.size == lengths.size
    loads, counts = np.bincount(rows, weights=lengths), np.bincount(rows)
    assert (counts > 0).all()  # rows are numbered without holes
    assert rows.size == 0 or (loads.max() <= capacity and counts.max() <= bound)
    borders = [sections[rows == row] for row in range(counts.size)]
    spans = sorted((int(each.min()), int(each.max())) for each in borders)
    for (_, last), (first, _) in pairwise(spans):
        assert last <= first


@given(pieces, st.lists(st.integers(0, 60), max_size=60), bounds)
def test_gaps_are_closed_as_in_the_slow_version(lengths, gaps, bound):
    """Gaps as long as a piece, then the largest gap: it takes the longest piece that fits, and what is left of it is a gap again."""
    left = sorted(lengths.tolist())
    spaces = [[gap, bound] for gap in gaps]
    for row in spaces:
        if row[0] in left:
            left.remove(row[0])
            row[0] = 0
    while True:
        fitting = [row for row in spaces if row[1] and left and left[0] <= row[0]]
        if not fitting:
            break
        row = max(fitting, key=lambda row: row[0])
        longest = max(length for length in left if length <= row[0])
        left.remove(longest)
        row[0] -= longest
        row[1] -= 1
    rows = _close_gaps(np.array(gaps, np.int64), np.full(len(gaps), bound), lengths)
    is_placed = rows >= 0
    taken = np.bincount(rows[is_placed], weights=lengths[is_placed], minlength=len(gaps))
    assert (taken <= gaps).all()
    assert (np.bincount(rows[is_placed], minlength=len(gaps)) <= bound).all()
    if bound == UNBOUNDED:
        assert sorted((np.array(gaps) - taken).tolist()) == sorted(row[0] for row in spaces)
        assert sorted(lengths[~is_placed].tolist()) == left


@given(pieces, st.integers(40, 90), bounds)
def test_best_fit_equals_the_slow_version(lengths, capacity, bound):
    """Longest piece first, into the open row with the least sufficient space: as many rows, the same loads."""
    spaces: list[list[int]] = []  # [space, pieces]
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [row for row in spaces if row[0] >= length and row[1] < bound]
        if fitting:
            row = min(fitting, key=lambda row: row[0])
            row[0] -= length
            row[1] += 1
        else:
            spaces.append([capacity - length, 1])
    rows = best_fit(lengths, capacity, bound)
    assert count_rows(lengths, capacity, bound) == (rows.max() + 1 if rows.size else 0)
    if bound == UNBOUNDED:
        loads = np.bincount(rows, weights=lengths).astype(int)
        assert sorted(capacity - row[0] for row in spaces) == sorted(loads.tolist())


@given(pieces, st.integers(40, 90), bounds)
def test_first_fit_equals_the_slow_version(lengths, capacity, bound):
    spaces: list[list[int]] = []
    expected = []
    for length in lengths.tolist():
        row = next(
            (i for i, (space, left) in enumerate(spaces) if space >= length and left), len(spaces)
        )
        if row == len(spaces):
            spaces.append([capacity, bound])
        spaces[row] = [spaces[row][0] - length, spaces[row][1] - 1]
        expected.append(row)
    assert first_fit(lengths, capacity, bound).tolist() == expected


@given(pieces, st.integers(40, 90), bounds)
def test_next_fit_equals_the_slow_version(lengths, capacity, bound):
    row, space, left, expected = -1, 0, 0, []
    for length in lengths.tolist():
        if length > space or not left:
            row, space, left = row + 1, capacity, bound
        space, left = space - length, left - 1
        expected.append(row)
    assert next_fit(lengths, capacity, bound).tolist() == expected


def test_a_window_larger_than_the_data_and_a_window_of_one():
    lengths = np.array([9, 5, 1, 6, 4])
    assert window_fit(lengths, 10, UNBOUNDED, 1000).tolist() == [0, 1, 0, 2, 1]
    assert window_fit(lengths, 10, UNBOUNDED, 1).tolist() == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(0, 1 << 40), max_size=100))
def test_argsort_small_is_stable(values):
    array = np.array(values, np.int64)
    assert argsort_small(array).tolist() == np.argsort(array, kind="stable").tolist()


def test_best_fit_fills_rows():
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.8, 1.0, 65_536), 1, 4096).astype(np.int64)
    assert lengths.sum() / (count_rows(lengths, 4096, UNBOUNDED) * 4096) > 0.995


def lengths_of(mu: float, sigma: float, least: int, capacity: int, num_samples=65_536):
    drawn = np.random.default_rng(0).lognormal(mu, sigma, num_samples) + least
    return np.clip(drawn, 1, capacity).astype(np.int64)


@pytest.mark.parametrize(
    ("lengths", "capacity", "fill", "variation"),
    [
        (lengths_of(6, 1.2, 0, 4096), 4096, 0.9996, 0.60),
        (
            lengths_of(4.5, 0.7, 20, 1024),
            1024,
            0.990,
            0.25,
        ),  # alpaca-like, as in benchmarks/pack.py
        (lengths_of(5.8, 1.0, 0, 4096), 4096, 0.9996, 0.45),
        (lengths_of(4.5, 0.7, 20, 4096), 4096, 0.998, 0.16),
    ],
    ids=["lognormal", "alpaca-like", "benchmark", "alpaca-like in long rows"],
)
def test_rows_of_mixed_fit_are_full_and_look_like_random_draws(lengths, capacity, fill, variation):
    """N18: best_fit gives whole rows to samples of one length, so that rows differ in what they hold and cost."""
    rows = {packer: packer(lengths, capacity, UNBOUNDED) for packer in (mixed_fit, best_fit)}
    counts = {packer: np.bincount(found) for packer, found in rows.items()}
    fills = {packer: lengths.sum() / (each.size * capacity) for packer, each in counts.items()}
    assert fills[mixed_fit] >= fill
    assert fills[mixed_fit] > fills[best_fit] - 0.0015
    assert counts[mixed_fit].std() / counts[mixed_fit].mean() <= variation
    assert counts[best_fit].std() / counts[best_fit].mean() > 2 * variation
    in_order = np.bincount(first_fit(lengths, capacity, UNBOUNDED))  # in random order
    drawn = in_order.std() / in_order.mean()
    assert counts[mixed_fit].std() / counts[mixed_fit].mean() < 1.2 * drawn


def test_rows_of_mixed_fit_hold_all_lengths_in_their_shares():
    """Over rows, the share of short, middling and long samples varies as in rows of random draws, not from 0 to 1."""
    lengths = lengths_of(4.5, 0.7, 20, 1024)
    third = np.searchsorted(np.quantile(lengths, [1 / 3, 2 / 3]), lengths)
    for packer, low, high in ((mixed_fit, 0.10, 0.20), (best_fit, 0.30, 1.0)):
        rows = packer(lengths, 1024, UNBOUNDED)
        share = np.bincount(rows, weights=third == 0) / np.bincount(rows)
        assert low < share.std() < high, packer.__name__


@pytest.mark.parametrize(
    ("low", "high", "capacity", "max_per_row"),
    [
        (1, 2048, 2048, UNBOUNDED),
        (512, 1536, 2048, UNBOUNDED),
        (1, 3, 3, UNBOUNDED),
        (1, 300, 2048, 7),
    ],
)
def test_evenly_spread_lengths_need_no_more_rows_than_with_best_fit(
    low, high, capacity, max_per_row
):
    """Rows of random neighbours needed up to 7 % more rows there, and were less alike than those of best_fit."""
    lengths = np.random.default_rng(0).integers(low, high + 1, 20_000)
    rows = mixed_fit(lengths, capacity, max_per_row)
    best = best_fit(lengths, capacity, max_per_row)
    assert rows.max() + 1 <= 1.005 * (best.max() + 1)


@pytest.mark.parametrize("number", [400, 4000])
@pytest.mark.parametrize("lengths", ["uniform", "normal", "narrow"])
def test_rows_of_two_or_three_samples_are_nearly_as_full_as_those_of_best_fit(number, lengths):
    """Random rows alone would leave up to 4 % more padding: few samples close the gap of a row."""
    rng = np.random.default_rng(0)
    drawn = {
        "uniform": rng.integers(40, 161, number),
        "normal": np.clip(rng.normal(100, 30, number), 30, 256).astype(np.int64),
        "narrow": np.clip(rng.normal(100, 20, number), 30, 256).astype(np.int64),
    }[lengths]
    mixed = mixed_fit(drawn, 256, UNBOUNDED).max() + 1
    best = best_fit(drawn, 256, UNBOUNDED).max() + 1
    assert mixed < 1.015 * best < first_fit(drawn, 256, UNBOUNDED).max() + 1


def test_a_small_block_is_packed_as_full_as_first_fit():
    for number in (1, 2, 10, 100, 500):
        lengths = lengths_of(6, 1.2, 0, 4096, number)
        rows = {
            packer: packer(lengths, 4096, UNBOUNDED).max() + 1 for packer in (mixed_fit, first_fit)
        }
        assert rows[mixed_fit] <= rows[first_fit]


def test_bfd_is_another_name_of_best_fit():
    """N19: `packing_strategy: bfd` is known in recipes."""
    assert PlanSettings(max_length=8, packing="bfd") == PlanSettings(
        max_length=8, packing="best_fit"
    )
    assert PlanSettings(max_length=8).packing == "mixed_fit"


def block_of(lengths, settings: PlanSettings) -> Block:
    array = np.array(lengths, np.int64)
    return Block(
        np.zeros(array.size, np.int64), np.arange(array.size) + 100, array, settings, ["made"]
    )


def rows_of(lengths, **options) -> tuple[list, object]:
    settings = PlanSettings(**{"max_length": 10, "shuffle": False, **options})
    packed = block_of(lengths, settings).pack(epoch=0, number=0)
    rows, counters = packed.rows, packed.counters
    assert block_of(lengths, settings).num_rows() == rows.num_rows
    return [
        [(int(s["sample"]) - 100, int(s["start"]), int(s["stop"])) for s in rows[r]]
        for r in range(rows.num_rows)
    ], counters


def test_concat_cuts_one_stream():
    rows, counters = rows_of([4, 0, 13, 5], packing="concat")
    assert rows == [[(0, 0, 4), (2, 0, 6)], [(2, 6, 13), (3, 0, 3)], [(3, 3, 5)]]
    assert (
        counters.samples_split == 2
        and counters.samples_dropped == {"empty": 1}
        and counters.tokens_out == 22
    )


def test_concat_with_alignment_starts_samples_at_multiples():
    rows, _ = rows_of([3, 9, 2], packing="concat", align=4)  # room for 8 in 10
    assert rows == [[(0, 0, 3), (1, 0, 4)], [(1, 4, 9)], [(2, 0, 2)]]


@pytest.mark.parametrize(
    ("on_overlong", "expected", "dropped"),
    [
        ("drop", [[(0, 0, 4)], [(2, 0, 10)]], {"overlong": 23}),
        ("truncate", [[(0, 0, 4)], [(1, 0, 10)], [(2, 0, 10)]], {"truncated": 13}),
        ("split", [[(0, 0, 4), (1, 20, 23)], [(1, 0, 10)], [(1, 10, 20)], [(2, 0, 10)]], {}),
    ],
)
def test_overlong_samples(on_overlong, expected, dropped):
    rows, counters = rows_of([4, 23, 10], on_overlong=on_overlong)
    assert rows == expected
    assert counters.tokens_dropped == dropped
    assert counters.samples_dropped.total() == (on_overlong == "drop")
    assert (counters.samples_truncated, counters.samples_split) == (
        on_overlong == "truncate",
        on_overlong == "split",
    )


def test_overlong_error_names_the_sample():
    with pytest.raises(
        Overlong,
        match=r"sample 101 of source 'made' has 23 tokens, max_length is 10 .*on_overlong='drop'",
    ):
        rows_of([4, 23], on_overlong="error")


def test_alignment_is_counted_before_capacity():
    rows, _ = rows_of([3, 3, 3], align=8, max_length=16)  # three times 8 places do not fit into 16
    assert sorted(len(row) for row in rows) == [1, 2]


def test_groups_hold_alike_lengths():
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 500, 1000)
    settings = PlanSettings(max_length=500, packing="group_16")
    rows = block_of(lengths, settings).pack(epoch=0, number=0).rows
    sizes = (rows.spans["stop"] - rows.spans["start"])[: 1000 // 16 * 16].reshape(-1, 16)
    assert (sizes.max(axis=1) - sizes.min(axis=1)).mean() < 12
    assert (np.diff(sizes[:, 0]) < 0).any()  # the groups themselves are shuffled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": "ffd"}, "packing 'ffd' is not known; choose mixed_fit, best_fit"),
        ({"packing": "window_0"}, "window_N"),
        ({"on_overlong": "cut"}, "on_overlong is 'cut', expected one of drop"),
        ({"last_step": "last"}, "last_step is 'last', expected one of pad"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": 4.5}, "max_length is 4.5"),
        ({"align": 16}, "align 16 is larger than max_length 10"),
        ({"shuffle_window": 0}, "shuffle_window is 0"),
        ({"shuffle_window": "some"}, "shuffle_window is 'some'"),
        ({"weights": ("1", "-1")}, "weight -1 is not positive"),
        ({"weights": ("1", "many")}, "not all numbers"),
        ({"mix_by": "tokens"}, "mix_by='tokens' has no effect without weights"),
        (
            {"stopping_strategy": "all_exhausted"},
            "stopping_strategy=.* has no effect without weights",
        ),
        ({"shuffle": "false"}, "shuffle is 'false'"),
        ({"packing": None}, "packing is None, expected text"),
        ({"block": True}, "block is True"),
        ({"packing": "concat", "on_overlong": "error"}, "has no effect"),
        ({"packing": "concat", "max_per_row": 3}, "cannot limit the samples of a row"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"weights": ("1",), "mix_by": "bytes"}, "mix_by is 'bytes'"),
        ({"weights": ("1",), "stopping_strategy": "never"}, "stopping_strategy is 'never'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(PlanError, match=message):
        PlanSettings(**{"max_length": 10, **options})


@pytest.mark.parametrize(
    ("name", "is_packed", "cuts", "orders", "number"),
    [
        ("mixed_fit", True, False, False, 0),
        ("best_fit", True, False, False, 0),
        ("window_64", True, False, False, 64),
        ("concat", True, True, False, 0),
        ("none", False, False, False, 0),
        ("group_16", False, False, True, 16),
    ],
)
def test_the_name_of_a_packing_says_what_it_does(name, is_packed, cuts, orders, number):
    found = parse_packing(name)
    assert (found.name, found.number) == (name, number)
    assert (found.is_packed, found.cuts, found.orders) == (is_packed, cuts, orders)
    assert PlanSettings(max_length=8, packing=name).method is found  # parsed once


@pytest.mark.parametrize(
    "name", ["window_N", "group_N", "window_0", "group_", "none_3", "best_fit_2", "", "window_٣", 3]
)
def test_other_names_of_packings_are_refused(name):
    with pytest.raises(
        PlanError,
        match="is not known; choose mixed_fit, best_fit, first_fit, next_fit, window_N, concat, none or",
    ):
        parse_packing(name)
