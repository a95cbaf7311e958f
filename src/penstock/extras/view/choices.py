"""Choose which samples a page shows that cannot ask for more.  The same loader gives the same choice."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.loader import Loader
from penstock.plan.permutation import derive, keyed_words
from penstock.report.numbers import stores
from penstock.store import Store

_MOST_ENDS = 8  # sources whose longest and shortest samples are shown
_MOST_DROPS = 12  # dropped records that are shown
_DROPS_EACH = 2  # of one reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A sample, and why it was chosen."""

    source: int
    sample: int
    why: str


def choose_samples(loader: Loader, num_samples: int) -> list[Choice]:
    """Choose the longest and shortest sample of each source, some at random, and the first that were dropped, by source.

    The random ones depend on the plan's seed and the name of the source.
    """
    by_source = list(stores(loader).values())
    chosen: dict[tuple[int, int], str] = {}
    for source, store in enumerate(by_source):
        lengths = store.lengths
        if source < _MOST_ENDS and lengths.any():
            longest = int(lengths.argmax())
            shortest = int(np.where(lengths > 0, lengths, lengths.max()).argmin())
            chosen.setdefault((source, longest), "longest")
            chosen.setdefault((source, shortest), "shortest")
        num_here = num_samples // len(by_source) + (source < num_samples % len(by_source))
        key = derive(loader.plan.settings.seed, "report", loader.plan.sources[source].name)
        for sample in _random_samples(lengths, num_here, key):
            chosen.setdefault((source, sample), "random")
    for source, row, reason in _dropped(by_source)[:_MOST_DROPS]:
        chosen.setdefault((source, row), f"dropped: {reason}")
    return [
        Choice(source=source, sample=sample, why=why)
        for (source, sample), why in sorted(chosen.items())
    ]


def _dropped(by_source: Sequence[Store]) -> list[tuple[int, int, str]]:
    """Return source, record and reason of the first records that gave no sample, a few of each reason."""
    return [
        (source, int(row), reason)
        for source, store in enumerate(by_source)
        for reason, dropped in store.counts.dropped.items()
        for row in dropped.rows[:_DROPS_EACH]
    ]


def _random_samples(lengths: npt.NDArray[np.int32], count: int, key: int) -> list[int]:
    """Return up to `count` samples that have tokens."""
    if lengths.size <= count:
        return [int(number) for number in np.flatnonzero(lengths)]
    tries = (keyed_words(key, 8 * count) % np.uint64(lengths.size)).astype(np.int64)
    with_tokens = dict.fromkeys(int(number) for number in tries if lengths[number] > 0)
    return list(with_tokens)[:count]
