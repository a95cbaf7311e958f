"""Which order does the user want?  All knobs of the plan as one frozen value, checked once."""

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.plan.pack import check_packing
from penstock.types import Ints

OVERFLOWS = ("drop", "truncate", "split", "error")
TAILS = ("pad", "drop", "repeat", "error", "wrap")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Everything that decides the order of rows, apart from the data.  Batch size and ranks are not here: they only slice."""

    max_length: int
    packing: str = "best_fit"
    overflow: str = "drop"
    shuffle: bool = True
    window: int | str | None = None  # shards shuffled together; "all" is a full shuffle, None the default of 16
    seed: int = 0
    tail: str = "pad"
    weights: tuple[str, ...] | None = None  # exact decimal or fractional numbers, one per source
    mix_by: str = "rows"
    stop: str = "first"
    block: int = 65_536  # samples packed together
    align: int = 1  # each sample takes a multiple of this many places in a row
    max_per_row: int | None = None

    def __post_init__(self) -> None:
        check_packing(self.packing)
        _check_choice("overflow", self.overflow, OVERFLOWS)
        _check_choice("tail", self.tail, TAILS)
        _check_choice("mix_by", self.mix_by, ("rows", "tokens"))
        _check_choice("stop", self.stop, ("first", "all"))
        for name, least in (("max_length", 1), ("block", 1), ("align", 1), ("max_per_row", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise PlanError(f"{name} is {value!r}, expected a whole number ≥ {least}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise PlanError(f"seed is {self.seed!r}, expected a whole number")
        window = self.window
        if window not in (None, "all") and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
            raise PlanError(f"window is {window!r}, expected a number of shards ≥ 1, 'all' or None")
        if self.align > self.max_length:
            raise PlanError(f"align {self.align} is larger than max_length {self.max_length}; no sample would fit")
        if self.packing == "concat" and self.max_per_row is not None:
            raise PlanError(
                "packing 'concat' cuts one stream and cannot bound samples per row; drop max_per_row or choose best_fit"
            )
        if self.weights is not None:
            for weight in self.exact_weights() or []:
                if weight <= 0:
                    raise PlanError(f"weight {weight} is not positive; leave the source out instead")

    @property
    def capacity(self) -> int:
        """Places of a row that aligned samples can fill."""
        return self.max_length // self.align * self.align

    @property
    def window_shards(self) -> int | None:
        if self.window == "all":
            return None
        return 16 if self.window is None else int(self.window)

    @property
    def ramps(self) -> bool:
        """Do the first epoch's blocks grow?  Not under a full shuffle, whose first samples lie anywhere."""
        return not (self.shuffle and self.window == "all")

    def aligned(self, lengths: Ints) -> Ints:
        return lengths if self.align == 1 else -(-lengths // self.align) * self.align

    def exact_weights(self) -> list[Fraction] | None:
        """Weights as exact fractions: sums of floats would drift over 10⁹ samples, and differ between machines."""
        if self.weights is None:
            return None
        try:
            return [Fraction(weight) for weight in self.weights]
        except (ValueError, ZeroDivisionError) as error:
            raise PlanError(f"weights {list(self.weights)} are not all numbers: {error}") from None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def weights_as_text(weights: "list[float] | tuple[float, ...] | np.ndarray | None") -> tuple[str, ...] | None:
    """0.1 means one tenth, as written, not the nearest binary fraction."""
    return None if weights is None else tuple(repr(w) if isinstance(w, float) else str(w) for w in weights)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PlanError(f"{name} is {value!r}, expected one of {', '.join(choices)}")
