"""Which order does the user want?  All knobs of the plan as one frozen value, checked once."""

import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.plan.pack import check_packing
from penstock.types import Ints

OVERFLOWS = ("drop", "truncate", "split", "error")
TAILS = ("pad", "drop", "repeat", "error", "wrap")
WINDOWS = ("auto", "all")  # or a number of shards

_AUTO_WINDOW = 1024  # shards


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Everything that decides the order of rows, apart from the data.  Batch size and ranks are not here: they only slice."""

    max_length: int
    packing: str = "best_fit"
    overflow: str = "drop"
    shuffle: bool = True
    window: int | str = "auto"  # shards shuffled together; "auto": all, or 1,024 at random where there are more; "all"
    seed: int = 0
    tail: str = "pad"
    weights: tuple[str, ...] | None = None  # exact decimal or fractional numbers, one per source
    mix_by: str | None = None  # with weights: "rows" (the default) or "tokens"
    stop: str | None = None  # with weights: when the "first" source (the default) or "all" have been through
    block: int = 65_536  # samples packed together
    align: int = 1  # each sample takes a multiple of this many places in a row
    max_per_row: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_length", 1), ("block", 1), ("align", 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=least))
        if self.max_per_row is not None:
            object.__setattr__(self, "max_per_row", whole_number("max_per_row", self.max_per_row, least=1))
        if not (isinstance(self.window, str) and self.window in WINDOWS):
            object.__setattr__(self, "window", whole_number("window", self.window, least=1, other=WINDOWS))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, least=None))
        object.__setattr__(self, "packing", check_packing(self.packing))
        _check_choice("overflow", self.overflow, OVERFLOWS)
        _check_choice("tail", self.tail, TAILS)
        _check_choice("shuffle", self.shuffle, (True, False))
        _check_choice("mix_by", self.mix_by, (None, "rows", "tokens"))
        _check_choice("stop", self.stop, (None, "first", "all"))
        self._check_together()

    def _check_together(self) -> None:
        """Settings that would be ignored, or that contradict each other, are refused rather than passed over."""
        if self.align > self.max_length:
            raise PlanError(f"align {self.align} is larger than max_length {self.max_length}; no sample would fit")
        if self.packing == "concat" and self.max_per_row is not None:
            raise PlanError(
                "packing 'concat' cuts one stream and cannot bound samples per row; drop max_per_row or choose best_fit"
            )
        if self.packing == "concat" and self.overflow in ("error", "truncate"):
            raise PlanError(
                f"packing 'concat' cuts every sample where a row ends, so overflow={self.overflow!r} has no use"
            )
        weights = self.exact_weights()
        if weights is None and (self.mix_by is not None or self.stop is not None):
            raise PlanError(
                "mix_by and stop say how weights are meant, and no weights were given: every source comes exactly once"
            )
        for weight in weights or []:
            if weight <= 0:
                raise PlanError(f"weight {weight} is not positive; leave the source out instead")

    @property
    def capacity(self) -> int:
        """Places of a row that aligned samples can fill."""
        return self.max_length // self.align * self.align

    def window_borders(self, num_shards: int) -> Ints:
        """0 = b0 < b1 < … = num_shards: places in a source's shard order at which a window begins.

        Windows have one size.  Under "auto", a rest of less than half a window joins the last one: a window of a few
        shards would hold a few shards' samples only.
        """
        if self.window == "all" or not num_shards:
            return np.array([0, num_shards] if num_shards else [0], np.int64)
        size = _AUTO_WINDOW if self.window == "auto" else int(self.window)
        borders = [*range(0, num_shards, size), num_shards]
        if self.window == "auto" and len(borders) > 2 and 2 * (num_shards - borders[-2]) < size:
            del borders[-2]
        return np.array(borders, np.int64)

    @property
    def is_local(self) -> bool:
        """Whether the first samples of an epoch lie in a few shards, so that a run can start while shards are being made."""
        return not (self.shuffle and self.window in WINDOWS)

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


def weights_as_text(weights: Sequence[Any] | None) -> tuple[str, ...] | None:
    """0.1 means one tenth, as written, not the nearest binary fraction; 1 and 1.0 are the same weight."""
    if weights is None:
        return None
    try:
        return tuple(str(Fraction(repr(float(w)) if isinstance(w, float) else str(w))) for w in weights)
    except (ValueError, ZeroDivisionError) as error:
        raise PlanError(f"weights {list(weights)} are not all numbers: {error}") from None


def whole_number(name: str, value: Any, *, least: int | None, other: Sequence[str] = ()) -> int:
    """`value` as a plain int, also from numpy; a bool or 2.0 is a mistake.  `other`: words that the error offers as well."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_) or (least is not None and number < least):
        bound = "" if least is None else f" ≥ {least}"
        raise PlanError(f"{name} is {value!r}, expected {' or '.join([f'a whole number{bound}', *other])}")
    return int(number)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if not any(value is choice or (type(value) is str and value == choice) for choice in choices):
        raise PlanError(f"{name} is {value!r}, expected one of {', '.join(str(choice) for choice in choices)}")
