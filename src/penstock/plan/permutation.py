"""Derived seeds, and a keyed permutation of range(n) with O(1) memory and random access both ways.

Up to `_TABLE` indices: a table sorted by hashed keys, which is an ideal shuffle.  Above: a Feistel network over the digits of
i in a mixed radix a × b ≥ n with a ≈ b ≈ √n, so that only about one index in √n leaves the range and has to be mapped again (with a
power-of-two network, up to every second one).  The round function is a real hash: with a weak one (x·const + key) the parity of an
index survives all rounds.  Speed and statistics: benchmarks/plan.py, tests/plan/test_permutation.py.
"""

import hashlib
from math import isqrt

import numpy as np
import numpy.typing as npt

from penstock.types import Ints

Words = npt.NDArray[np.uint64]

_TABLE = 4096
_ROUNDS = 6  # four pass every statistic we test; two more cost 30 % and leave a margin
_CHUNK = 1 << 14  # scratch arrays of a chunk stay in the level-2 cache
_HALF = np.uint64(32)
_MULTIPLY = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio


def derive(seed: int, *path: str | int) -> int:
    """Return the child seed of a named path.  `seed + epoch` would make (seed 0, epoch 1) equal (seed 1, epoch 0)."""
    assert all(type(part) in (int, str) for part in (seed, *path)), (
        "other types may be equal and print differently"
    )
    return int.from_bytes(
        hashlib.blake2b(repr((seed, *path)).encode(), digest_size=8).digest(), "little"
    )


def keyed_words(key: int, num_words: int) -> Words:
    """Return `num_words` pseudorandom 64-bit words: splitmix64 counted from `key`."""
    return words_at(np.uint64(key), np.arange(num_words, dtype=np.uint64))


def words_at(keys: Words | np.uint64, numbers: Words) -> Words:
    """Return the words of these numbers, from 0 on, in the sequences of these keys."""
    words: Words = (numbers + np.uint64(1)) * _MULTIPLY + keys
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


class Permutation:
    """A bijection of range(size).  `perm[i]` is the place of index i, `perm.index(p)` the index at place p."""

    def __init__(self, size: int, key: int) -> None:
        assert 0 <= size < 1 << 62, size
        self.size = size
        self._tables: tuple[Ints, Ints] | None = None  # place of each index, index at each place
        if size <= _TABLE:
            order = np.argsort(keyed_words(key, size), kind="stable")
            self._tables = np.argsort(order), order
            return
        high = isqrt(size - 1) + 1
        self._radices = np.uint64(high), np.uint64(-(-size // high))
        self._keys = keyed_words(key, _ROUNDS)

    def __getitem__(self, indices: Ints) -> Ints:
        """Places of `indices` (any shape of int64 array, each in 0 ≤ i < size)."""
        return self._map(indices, inverse=False)

    def index(self, places: Ints) -> Ints:
        """The indices at `places`: the inverse of `perm[...]`."""
        return self._map(places, inverse=True)

    def _map(self, values: Ints, *, inverse: bool) -> Ints:
        if self._tables is not None:
            return self._tables[inverse][values]
        flat = np.ascontiguousarray(values, np.int64).reshape(-1)
        assert flat.size == 0 or (flat.min() >= 0 and flat.max() < self.size), "index out of range"
        out = np.empty(flat.shape, np.uint64)
        limit = np.uint64(self.size)
        for start in range(0, flat.size, _CHUNK):
            chunk = self._network(flat[start : start + _CHUNK].view(np.uint64), inverse)
            outside = np.flatnonzero(chunk >= limit)
            while (
                outside.size
            ):  # cycle walking: apply again until back in range, which a bijection always is
                chunk[outside] = self._network(chunk[outside], inverse)
                outside = outside[chunk[outside] >= limit]
            out[start : start + _CHUNK] = chunk
        return out.view(np.int64).reshape(np.shape(values))

    def _network(self, values: Words, inverse: bool) -> Words:
        """Apply the rounds, or undo them in reverse order: even rounds change the high digit, odd rounds the low one."""
        low_radix = self._radices[1]
        high = (
            values // low_radix
        )  # numpy uses SIMD to divide by a scalar only in `//`: five times faster than divmod
        digits = high, values - high * low_radix
        for number in range(_ROUNDS - 1, -1, -1) if inverse else range(_ROUNDS):
            digit = digits[number % 2]
            radix = self._radices[number % 2]
            change = _round(digits[1 - number % 2], self._keys[number], radix)
            digit += radix - change if inverse else change
            np.minimum(
                digit, digit - radix, out=digit
            )  # below radix again: a negative difference wraps to a huge number
        high *= low_radix
        high += digits[1]
        return high


def _round(digit: Words, key: np.uint64, radix: np.uint64) -> Words:
    """A hash of `digit` (< 2³¹) under `key`, scaled to 0 ≤ … < radix."""
    word = digit * _MULTIPLY
    word ^= key
    word ^= word >> _HALF
    word *= _MULTIPLY
    word >>= _HALF
    word *= radix
    word >>= _HALF
    return word
