"""Which randomness belongs to this name?  A child seed is the hash of its path; nothing is ever added to a seed."""

import hashlib

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

# The finaliser of splitmix64: a bijection on 64 bits in which every input bit reaches every output bit.
_MULTIPLY_1, _MULTIPLY_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN = 0x9E3779B97F4A7C15


def derive(seed: int, *path: str | int) -> int:
    """Child seed of a named path.  `seed + epoch` would make (seed 0, epoch 1) repeat (seed 1, epoch 0)."""
    assert all(type(part) in (int, str) for part in (seed, *path)), "other types may be equal and print differently"
    digest = hashlib.blake2b(repr((seed, *path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def keyed_words(key: int, num_words: int) -> Words:
    """`num_words` independent-looking 64-bit words: splitmix64 counted from `key`."""
    counter = np.arange(1, num_words + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
    return _scramble(counter)


def _scramble(words: Words) -> Words:
    words ^= words >> np.uint64(30)
    words *= _MULTIPLY_1
    words ^= words >> np.uint64(27)
    words *= _MULTIPLY_2
    words ^= words >> np.uint64(31)
    return words
