"""Choose a max_length for samples that were looked at, and say what it loses."""

from dataclasses import dataclass

import numpy as np

from penstock.report.text import percent
from penstock.types import Ints

_KEEP = 0.999  # share of the trained tokens that a sensible max_length keeps
_SHORTEST, _LONGEST = 1_024, 32_768  # that is chosen where nobody says which


@dataclass(frozen=True, slots=True, kw_only=True)
class LostShare:
    """What a max_length loses, and of how much."""

    samples: int
    of_samples: int
    tokens: int
    of_tokens: int
    trained: int  # targets
    of_trained: int

    @property
    def trained_share(self) -> float:
        return self.trained / self.of_trained if self.of_trained else 0.0

    def describe(self, what: str = "dropped") -> str:
        """`what` becomes of samples that are too long."""
        if not self.samples:
            return f"no sample is longer (0 of {self.of_samples:,})"
        many = f"{self.samples:,} of {self.of_samples:,} samples ({percent(self.samples, self.of_samples)})"
        return (
            f"{many} are longer and will be {what}, with {percent(self.tokens, self.of_tokens)} of the tokens and "
            f"{percent(self.trained, self.of_trained)} of the trained tokens"
        )


def sensible_length(lengths: Ints, trained: Ints, model_max_length: int | None = None) -> int:
    """The smallest power of two from 1,024 on that keeps 99.9 % of the trained tokens, where longer samples are dropped.

    At most 32,768, and at most what the model was made for.
    """
    most = min(_LONGEST, model_max_length or _LONGEST)
    enough, step = _KEEP * int(trained.sum()), _SHORTEST
    while step < most and int(trained[lengths <= step].sum()) < enough:
        step *= 2
    return min(step, most)


def lost_share(lengths: Ints, trained: Ints, max_length: int) -> LostShare:
    """What is lost where samples longer than max_length are dropped.  `trained`: targets of each sample."""
    over = lengths > max_length
    return LostShare(
        samples=int(np.count_nonzero(over)), of_samples=lengths.size,
        tokens=int(lengths[over].sum()), of_tokens=int(lengths.sum()),
        trained=int(trained[over].sum()), of_trained=int(trained.sum()),
    )  # fmt: skip
