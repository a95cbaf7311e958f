"""Random numbers that are a function of (seed, objective, source, pass, sample): no generator, and no order in which they are drawn.

The seed of a pass over a source is derived from a named path, as all seeds of a plan are.  Samples and draws are counted words of it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.plan.permutation import Words, derive, words_at
from penstock.types import Ints

Floats = npt.NDArray[np.float64]

_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Noise:
    """The random numbers of one objective over the sources of a run."""

    seed: int
    objective: str
    names: tuple[str, ...]  # of the sources

    def keys(self, source: int, samples: Ints, passes: Ints) -> Words:
        """Return the key of each sample in a pass: all its draws follow from it."""
        keys = np.empty(samples.size, np.uint64)
        for number in np.unique(passes).tolist():
            chosen = passes == number
            path = ("objective", self.objective, self.names[source], number)
            of_pass = np.uint64(derive(self.seed, *path))
            keys[chosen] = words_at(of_pass, samples[chosen].astype(np.uint64))
        return keys


def draws(keys: Words, count: int, *, first: int = 0) -> Floats:
    """Return draws `first`, `first` + 1, … of each key, evenly from 0 up to but not 1: (len(keys), count)."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return _as_floats(words_at(keys[:, None], numbers[None, :]))


def draws_of(key: np.uint64, count: int, *, first: int = 0) -> Floats:
    """Return `count` draws of one key."""
    return _as_floats(words_at(key, np.arange(first, first + count, dtype=np.uint64)))


def _as_floats(words: Words) -> Floats:
    floats: Floats = (words >> np.uint64(11)).astype(np.float64) * _UNIT
    return floats
