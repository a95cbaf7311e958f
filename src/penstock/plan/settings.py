"""The settings that decide the order of rows: one frozen value, checked once.  Its fields carry their own documentation."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.plan.objectives import read_objective
from penstock.plan.packing import PACKINGS, Packing, parse_packing
from penstock.settings import check_settings, setting, whole_number
from penstock.types import Ints

WINDOWS = ("auto", "all")  # or a number of shards

_OVERFLOWS = ("drop", "truncate", "split", "error")
_TAILS = ("pad", "drop", "repeat", "error", "wrap")
_AUTO_WINDOW = 1024  # shards
# cost of a row of so many tokens: the sum over a rank's rows fits into 64 bits
_MOST_COST = 1 << 50
_LONGEST = 1 << 24
_STAGES = 16  # of equal weights, that a ramp between two points of a table of weights becomes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Everything that decides the order of rows, apart from the data.  Batch size and ranks are not here: they only slice it."""

    max_length: int = setting(
        "tokens per row; of pairs, tokens of each of the two sequences", 4096, whole=True, least=1
    )
    packing: str = setting(f"how samples share a row: {', '.join(PACKINGS)}", "mixed_fit")
    on_overlong: str = setting(
        "what to do with samples longer than max_length: drop, truncate, split or error",
        "drop",
        choices=_OVERFLOWS,
        former="overflow",
    )
    shuffle: bool = setting(
        "whether each epoch has a new random order", True, choices=(True, False)
    )
    shuffle_window: int | str = setting(
        "shards shuffled together: auto (all; 1,024 at a time where there are more), all, or a number",
        "auto",
        choices=WINDOWS,
        whole=True,
        least=1,
        former="window",
    )
    seed: int = setting("decides the order: the same seed gives the same order", 0, whole=True)
    last_step: str = setting(
        "what to do with a last step of an epoch that is not full: pad, drop, repeat, error or wrap",
        "pad",
        choices=_TAILS,
        former="tail",
    )
    weights: tuple[str, ...] | None = setting(
        "one weight per source, as exact decimals or fractions", None
    )
    mix_by: str | None = setting(
        "whether weights are shares of samples (the default) or of tokens",
        None,
        choices=(None, "samples", "tokens"),
        former_values={"rows": "samples"},
    )
    stopping_strategy: str | None = setting(
        "when an epoch with weights ends: first_exhausted (the default) when one dataset ends, all_exhausted when all have",
        None,
        choices=(None, "first_exhausted", "all_exhausted"),
        former="stop",
        former_values={"first": "first_exhausted", "all": "all_exhausted"},
    )
    block: int = setting("number of samples that are packed as a unit", 65_536, whole=True, least=1)
    overlap: bool = setting(
        "with packing: concat, each row begins with the last token of the row before, so that it predicts this row's first new token",
        False,
        choices=(True, False),
    )
    align: int = setting(
        "pad each sample to a multiple of this many tokens in its row", 1, whole=True, least=1
    )
    max_per_row: int | None = setting(
        "maximum number of samples per row", None, choices=(None,), whole=True, least=1
    )
    balance: str = setting(
        "rank assigns the rows of a step to ranks by cost, so that ranks finish together; none assigns them round-robin; block "
        "also puts rows of similar cost into the same step",
        "rank",
        choices=("none", "rank", "block"),
    )
    balance_rows: int = setting(
        "with balance: block, the number of rows of similar cost that stay together; a few times the rows of a step is good",
        256,
        whole=True,
        least=1,
    )
    cost_attention: int = setting(
        "weight of attention in the cost of a row: this × the sum of the squared lengths of its samples; 0 for models without attention",
        1,
        whole=True,
        least=0,
    )
    cost_linear: int = setting(
        "weight of the linear layers in the cost of a row: this × its tokens; set it to 6 × the model's hidden size (the default is for "
        "4,096)",
        24_576,
        whole=True,
        least=0,
    )

    objective: Mapping[str, Any] | str | None = setting(
        "what a sample becomes on its way into a row, again in each epoch: the name of an objective, such as fim, span_corruption, "
        "masked_diffusion or bpe_dropout, or a mapping of its name and settings; null: samples stay as they were prepared",
        None,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "packing", self.method.name)
        object.__setattr__(self, "objective", read_objective(self.objective))
        self._check_together()

    def _check_together(self) -> None:
        """Refuse settings that contradict each other, or that would have no effect."""
        if self.align > self.max_length:
            raise PlanError(
                f"align {self.align} is larger than max_length {self.max_length}; no sample would fit"
            )
        cuts = f"packing {self.packing!r} cuts samples wherever a row ends"
        weights = self.exact_weights()
        if self.method.cuts and self.max_per_row is not None:
            raise PlanError(
                f"{cuts} and cannot limit the samples of a row; remove max_per_row or choose mixed_fit"
            )
        if self.method.cuts and self.on_overlong in ("error", "truncate"):
            raise PlanError(f"{cuts}, so on_overlong={self.on_overlong!r} has no effect; remove it")
        if self.overlap:
            self._check_overlap()
        for name in ("mix_by", "stopping_strategy"):
            if weights is None and getattr(self, name) is not None:
                raise PlanError(
                    f"{name}={getattr(self, name)!r} has no effect without weights, because every epoch then has each sample once; "
                    f"give each dataset a weight, or leave {name} out"
                )
        for weight in weights or []:
            if weight <= 0:
                raise PlanError(f"weight {weight} is not positive; leave the source out instead")
        self._check_balance()

    def _check_overlap(self) -> None:
        if not self.method.cuts:
            raise PlanError(
                f"overlap is for rows that are cut from one stream, and packing {self.packing!r} keeps samples whole; choose "
                f"packing='concat', or leave overlap out"
            )
        if self.align > 1 or self.max_length < 2:
            setting_name, least = ("align", "1") if self.align > 1 else ("max_length", "at least 2")
            raise PlanError(
                f"overlap with {setting_name} {getattr(self, setting_name)}: rows share one token, so {setting_name} must be {least}"
            )

    def _check_balance(self) -> None:
        if self.balance == "block" and (self.method.orders or not self.shuffle):
            other = f"packing={self.packing!r}" if self.method.orders else "shuffle=False"
            raise PlanError(
                f"balance='block' orders rows by their cost, and {other} orders them otherwise; choose one"
            )
        tokens = min(
            self.max_length, _LONGEST
        )  # a larger max_length means no limit; samples are not that long
        cost = tokens * (self.cost_attention * tokens + self.cost_linear)
        if not 0 < cost < _MOST_COST:
            raise PlanError(
                f"cost_attention {self.cost_attention} and cost_linear {self.cost_linear} make a row of {tokens} tokens cost "
                f"{cost}; expected more than 0 and less than 2⁵⁰. Only the ratio of the two matters"
            )

    @property
    def method(self) -> Packing:
        """The packing, parsed."""
        return parse_packing(self.packing)

    @property
    def capacity(self) -> int:
        """Tokens of a row that aligned samples can fill."""
        return self.max_length // self.align * self.align

    @property
    def is_local(self) -> bool:
        """Whether the first samples of an epoch lie in a few shards, so that training can start while shards are being made."""
        return not (self.shuffle and self.shuffle_window in WINDOWS)

    def window_borders(self, num_shards: int) -> Ints:
        """Return 0 = b0 < b1 < … = num_shards: where windows begin in a source's shard order.

        All windows have one size.  Under "auto" a rest of less than half a window joins the last one, since a window of a few shards
        would mix the samples of those shards only.
        """
        size = {"auto": _AUTO_WINDOW, "all": max(num_shards, 1)}.get(
            str(self.shuffle_window)
        ) or int(self.shuffle_window)
        borders = [*range(0, num_shards, size), num_shards]
        if (
            self.shuffle_window == "auto"
            and len(borders) > 2
            and 2 * (num_shards - borders[-2]) < size
        ):
            del borders[-2]
        return np.array(borders, np.int64)

    def aligned(self, lengths: Ints) -> Ints:
        """Tokens that pieces of these lengths take in a row."""
        return lengths if self.align == 1 else -(-lengths // self.align) * self.align

    def cost(self, lengths: Ints) -> Ints:
        """Estimated work on samples of these lengths: attention grows with the square, everything else with the tokens."""
        return lengths * (self.cost_attention * lengths + self.cost_linear)

    def of_order(self) -> dict[str, Any]:
        """The settings that decide the global order, by name.

        Without balance="block", no balance does: it moves rows inside a step.  A run without an objective has the order that it had
        before there were any, so it is left out then.
        """
        return {
            name: value
            for name, value in asdict(self).items()
            if (self.balance == "block" or name not in BALANCE)
            and (name != "objective" or value is not None)
        }

    def exact_weights(self) -> list[Fraction] | None:
        """Weights as exact fractions: sums of floats would drift over 10⁹ samples, and differ between machines."""
        return None if self.weights is None else _fractions(self.weights)


BALANCE = ("balance", "balance_rows", "cost_attention", "cost_linear")
DEFAULTS = {each.name: each.default for each in fields(PlanSettings) if each.default is not MISSING}


def weights_as_text(weights: Sequence[Any] | None) -> tuple[str, ...] | None:
    """Return exact weights: 0.1 is one tenth, not the nearest binary fraction; 1 and 1.0 are the same weight."""
    texts = (
        None
        if weights is None
        else [repr(float(w)) if isinstance(w, float) else str(w) for w in weights]
    )
    return None if texts is None else tuple(map(str, _fractions(texts)))


def _fractions(weights: Sequence[str]) -> list[Fraction]:
    try:
        return [Fraction(weight) for weight in weights]
    except (ValueError, ZeroDivisionError) as error:
        raise PlanError(f"weights {list(weights)} are not all numbers: {error}") from None


def tabled(weights: Sequence[Any], *, ramps: bool) -> list[tuple[int, list[str]]]:
    """Return (point, weights) for every point of tables of weights; ramps: in equal stages between two points."""
    tables = [weight if isinstance(weight, Mapping) else {0: weight} for weight in weights]
    exact = []
    for table in tables:
        points = [whole_number("a point in a table of weights", point, least=0) for point in table]
        if 0 not in points:
            raise PlanError(
                f"a table of weights begins at 0, and this one at {min(points, default='nothing')}"
            )
        exact.append(
            dict(
                zip(points, map(Fraction, weights_as_text(list(table.values())) or ()), strict=True)
            )
        )
    points = sorted({point for table in exact for point in table})
    if ramps:
        points = sorted(
            {a + (b - a) * k // _STAGES for a, b in pairwise(points) for k in range(_STAGES)}
            | {*points}
        )
    return [
        (point, [str(_weight(table, point, ramps=ramps)) for table in exact]) for point in points
    ]


def _weight(table: Mapping[int, Fraction], point: int, *, ramps: bool) -> Fraction:
    """Return the weight at a point: that of the last entry, or on the line to the next one."""
    before = max(known for known in table if known <= point)
    after = min((known for known in table if known > point), default=None)
    if after is None or not ramps:
        return table[before]
    return table[before] + (table[after] - table[before]) * Fraction(point - before, after - before)
