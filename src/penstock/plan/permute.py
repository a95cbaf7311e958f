"""Which place does index i get?  A keyed permutation of range(n) with O(1) memory and random access both ways.

Up to `_TABLE` indices: a table sorted by hashed keys, which is an ideal shuffle.  Above: a Feistel network over the digits of
i in a mixed radix a × b ≥ n with a ≈ b ≈ √n, so that only about one index in √n leaves the range and has to walk on (a power-of-two
network would make up to every second one walk).  The round function is a real hash: with a weak one (x·const + key) the parity of an
index survives all rounds.  Speed and statistics: benchmarks/plan.py, tests/plan/test_permute.py.
"""

from math import isqrt

import numpy as np

from penstock.plan.seeds import Words, keyed_words
from penstock.types import Ints

_TABLE = 4096
_ROUNDS = 6  # four pass every statistic we test; two more cost 30 % and leave a margin
_CHUNK = 1 << 14  # scratch arrays of a chunk stay in the level-2 cache

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLY = np.uint64(0x9E3779B97F4A7C15)


class Permutation:
    """A bijection of range(size).  `perm[i]` is the place of index i, `perm.index(p)` the index at place p."""

    __slots__ = ("_forward_table", "_inverse_table", "_keys", "_radix_high", "_radix_low", "size")

    def __init__(self, size: int, key: int) -> None:
        assert 0 <= size < 1 << 62, size
        self.size = size
        self._forward_table: Ints | None = None
        self._inverse_table: Ints | None = None
        if size <= _TABLE:
            self._inverse_table = np.argsort(keyed_words(key, size), kind="stable")
            self._forward_table = np.empty(size, np.int64)
            self._forward_table[self._inverse_table] = np.arange(size)
            return
        high = isqrt(size - 1) + 1
        self._radix_high = np.uint64(high)
        self._radix_low = np.uint64(-(-size // high))
        self._keys = keyed_words(key, _ROUNDS)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, indices: Ints) -> Ints:
        """Places of `indices` (any shape of int64 array, each in 0 ≤ i < size)."""
        if self._forward_table is not None:
            return self._forward_table[indices]
        return self._walk(indices, inverse=False)

    def index(self, places: Ints) -> Ints:
        """The indices at `places`: the inverse of `perm[...]`."""
        if self._inverse_table is not None:
            return self._inverse_table[places]
        return self._walk(places, inverse=True)

    def _walk(self, values: Ints, *, inverse: bool) -> Ints:
        flat = np.ascontiguousarray(values, np.int64).reshape(-1)
        assert flat.size == 0 or (flat.min() >= 0 and flat.max() < self.size), "index out of range"
        out = np.empty(flat.shape, np.uint64)
        network = self._backward if inverse else self._forward
        limit = np.uint64(self.size)
        for start in range(0, flat.size, _CHUNK):
            chunk = network(flat[start : start + _CHUNK].view(np.uint64))
            outside = np.flatnonzero(chunk >= limit)
            while outside.size:  # cycle walking: apply again until back in range, which a bijection always is
                chunk[outside] = network(chunk[outside])
                outside = outside[chunk[outside] >= limit]
            out[start : start + _CHUNK] = chunk
        return out.view(np.int64).reshape(np.shape(values))

    def _forward(self, values: Words) -> Words:
        high, low = _digits(values, self._radix_low)
        for r in range(0, _ROUNDS, 2):
            high += _round(low, self._keys[r], self._radix_high)
            _wrap(high, self._radix_high)
            low += _round(high, self._keys[r + 1], self._radix_low)
            _wrap(low, self._radix_low)
        high *= self._radix_low
        high += low
        return high

    def _backward(self, values: Words) -> Words:
        high, low = _digits(values, self._radix_low)
        for r in range(_ROUNDS - 2, -1, -2):
            low += self._radix_low - _round(high, self._keys[r + 1], self._radix_low)
            _wrap(low, self._radix_low)
            high += self._radix_high - _round(low, self._keys[r], self._radix_high)
            _wrap(high, self._radix_high)
        high *= self._radix_low
        high += low
        return high


def _digits(values: Words, radix: np.uint64) -> tuple[Words, Words]:
    """np.divmod, but numpy divides by a scalar with SIMD only in `//`: five times faster."""
    high = values // radix
    return high, values - high * radix


def _wrap(digit: Words, radix: np.uint64) -> None:
    """Digits < 2 × radix, brought below radix in place: what is already there wraps round to a huge number and loses."""
    np.minimum(digit, digit - radix, out=digit)


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
