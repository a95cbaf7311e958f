"""The keyed permutation is a bijection with random access both ways, and looks like chance."""

import numpy as np
import pytest

from penstock.plan.permutation import Permutation, derive

SIZES = [0, 1, 2, 3, 5, 64, 1000, 4095, 4096, 4097, 5000, 65_535, 65_536, 65_537, 99_991, 1 << 17]


@pytest.mark.parametrize("size", SIZES)
def test_is_a_bijection_with_its_inverse(size):
    for key in range(3):
        permutation = Permutation(size, derive(7, "test", key))
        everything = np.arange(size)
        places = permutation[everything]
        assert np.array_equal(np.sort(places), everything)
        assert np.array_equal(permutation.index(places), everything)
        some = everything[:: max(1, size // 7)]
        assert np.array_equal(permutation[some], places[some])


@pytest.mark.parametrize("size", range(1, 300))
def test_small_sizes_are_bijections(size):
    assert sorted(Permutation(size, size)[np.arange(size)].tolist()) == list(range(size))


def test_reaches_far_without_memory():
    permutation = Permutation(10**15 + 37, 5)
    indices = np.array([0, 1, 2, 10**15, 10**15 + 36, 123_456_789_012])
    places = permutation[indices]
    assert len(set(places.tolist())) == 6
    assert np.array_equal(permutation.index(places), indices)


def test_keys_give_different_orders():
    everything = np.arange(10_000)
    orders = {Permutation(10_000, derive(0, "epoch", e))[everything].tobytes() for e in range(50)}
    assert len(orders) == 50
    assert derive(0, 1) != derive(1, 0)  # what `seed + epoch` would confuse


# What a random permutation shows, within noise.  Limits: five standard deviations of numpy's own permutation, or the exact law.


def keys(count: int) -> list[int]:
    return [derive(2024, "statistics", k) for k in range(count)]


@pytest.mark.parametrize("size", [1 << 16, 1 << 18])
def test_flipping_an_input_bit_changes_every_output_bit_half_of_the_time(size):
    everything, bits = np.arange(size), size.bit_length() - 1
    limit = 5 / np.sqrt(size / 2)
    for key in keys(3):
        places = Permutation(size, key)[everything]
        for bit in range(bits):
            change = places ^ places[everything ^ (1 << bit)]
            for out in range(bits):
                assert abs(2 * np.mean((change >> out) & 1) - 1) < limit + 0.01


@pytest.mark.parametrize("size", [1 << 18, 200_003])
def test_neighbours_part_like_strangers(size):
    for key in keys(8):
        places = Permutation(size, key)[np.arange(size // 2 * 2)]
        differences = places[0::2] ^ places[1::2]
        distinct = len(np.unique(differences)) / differences.size
        assert abs(distinct - _distinct_share(size)) < 0.01
        near = np.mean(places[0::2] * 16 // size == places[1::2] * 16 // size)
        assert abs(near - 1 / 16) < 5 * np.sqrt(1 / 16 * 15 / 16 / (size / 2))


def _distinct_share(size: int) -> float:
    """Share of distinct XOR differences of random pairs: measured on numpy's permutation, the reference for looking like chance."""
    places = np.random.Generator(np.random.PCG64(1)).permutation(size)[: size // 2 * 2]
    return len(np.unique(places[0::2] ^ places[1::2])) / (size // 2)


@pytest.mark.parametrize("lag", [1, 2, 3, 16, 257])
def test_no_serial_correlation(lag):
    size = 100_003
    for key in keys(8):
        places = Permutation(size, key)[np.arange(size)].astype(float)
        correlation = np.corrcoef(places[:-lag], places[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(size)


@pytest.mark.parametrize("size", [3, 5, 12, 50, 5003])
def test_every_index_lands_everywhere_equally_often(size):
    """Chi-square of the place of several indices over many keys."""
    num_keys, bins = (6000, min(size, 50))
    watched = np.array(sorted({0, 1, size // 2, size - 1}))
    counts = np.zeros((watched.size, bins))
    for key in keys(num_keys):
        counts[np.arange(watched.size), Permutation(size, key)[watched] * bins // size] += 1
    widths = np.bincount(np.arange(size) * bins // size, minlength=bins) / size
    for row in counts:
        chi_square = float(((row - num_keys * widths) ** 2 / (num_keys * widths)).sum())
        freedom = bins - 1
        assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_all_orders_of_four_are_equally_likely():
    counts: dict[bytes, int] = {}
    for key in keys(6000):
        order = Permutation(4, key)[np.arange(4)].tobytes()
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    chi_square = sum((count - 250) ** 2 / 250 for count in counts.values())
    assert chi_square < 23 + 5 * np.sqrt(46)


def test_batches_of_a_sorted_source_hold_every_part_of_it():
    """What a trainer would notice: a source sorted by label, cut into batches of 256 after shuffling."""
    size, labels = 1 << 17, 8
    for key in keys(4):
        label = Permutation(size, key).index(np.arange(size)) * labels // size
        counts = np.stack(
            [np.bincount(batch, minlength=labels) for batch in label.reshape(-1, 256)]
        )
        chi_square = ((counts - 32) ** 2 / 32).sum(axis=1)
        assert abs(chi_square.mean() - (labels - 1)) < 5 * np.sqrt(2 * (labels - 1) / len(counts))
