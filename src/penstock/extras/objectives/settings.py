"""The settings of each objective: the keys below `objective:` in a recipe, besides its name."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from penstock.errors import PlanError
from penstock.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class FimSettings:
    """Of `fim`: fill in the middle."""

    rate: float = setting(
        "the share of samples that are rearranged; the others stay as they are", 0.5
    )
    spm_rate: float = setting(
        "the share of rearranged samples in the order suffix, prefix, middle; the others are prefix, suffix, middle",
        0.5,
    )
    level: str = setting(
        "where a text is cut: between tokens, or between characters, where the tokens around a cut are encoded again",
        "token",
        choices=("token", "character"),
    )
    sentinels: Sequence[str] | None = setting(
        "the tokens before prefix, suffix and middle, in this order; null: those of the tokenizer whose names are known",
        None,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_share("rate", self.rate)
        check_share("spm_rate", self.spm_rate)
        if self.sentinels is not None:
            check_names("sentinels", self.sentinels, count=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCorruptionSettings:
    """Of `span_corruption`: gaps of a text are the target, as T5 learns."""

    noise_density: float = setting("the share of tokens that are removed", 0.15)
    mean_span_length: float = setting("tokens of a gap, on average", 3.0)
    layout: str = setting(
        "joined: inputs and targets are one sequence, and the targets are trained; encoder_decoder: a batch has input_ids of the inputs "
        "and labels of the targets",
        "joined",
        choices=("joined", "encoder_decoder"),
    )
    sentinels: str = setting(
        "the names of the tokens that stand for gaps, with {} for their number from 0 on",
        "<extra_id_{}>",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_share("noise_density", self.noise_density, is_open=True)
        check_number("mean_span_length", self.mean_span_length, least=1.0)
        if not isinstance(self.sentinels, str) or self.sentinels.count("{}") != 1:
            raise PlanError(
                f"sentinels is {self.sentinels!r}, expected a name with one {{}}, such as '<extra_id_{{}}>'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedDiffusionSettings:
    """Of `masked_diffusion`: tokens are replaced by a mask token, as LLaDA learns."""

    p_min: float = setting(
        "the least probability with which the tokens of a sample are masked", 0.001
    )
    p_max: float = setting("the largest; each sample draws its own, evenly between both", 1.0)
    block_size: int | None = setting(
        "each block of so many tokens of a sample draws a probability of its own; null: the sample draws one",
        None,
        choices=(None,),
        whole=True,
        least=1,
    )
    mask_token: str | None = setting(
        "the token that replaces others; null: the mask token of the tokenizer", None
    )
    mask_special: bool = setting(
        "special tokens that are trained, such as an end of turn, are masked like others; false: never",
        True,
        choices=(True, False),
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_share("p_min", self.p_min)
        check_share("p_max", self.p_max)
        if not 0 < self.p_min <= self.p_max:
            raise PlanError(
                f"p_min is {self.p_min} and p_max {self.p_max}, expected 0 < p_min ≤ p_max: the weight of a masked token is 1 / p"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BpeDropoutSettings:
    """Of `bpe_dropout`: words are cut into other tokens than usual."""

    rate: float = setting("the probability with which each merge of two tokens is left out", 0.1)

    def __post_init__(self) -> None:
        check_settings(self)
        check_share("rate", self.rate)


def check_share(name: str, value: Any, *, is_open: bool = False) -> None:
    """Refuse anything but a number from 0 to 1; is_open: 0 and 1 too."""
    check_number(name, value)
    is_share = 0 < value < 1 if is_open else 0 <= value <= 1
    if not is_share:
        borders = "more than 0 and less than 1" if is_open else "from 0 to 1"
        raise PlanError(f"{name} is {value!r}, expected a share: a number {borders}")


def check_number(name: str, value: Any, *, least: float | None = None) -> None:
    """Refuse anything but a finite number."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or value != value or abs(value) == float("inf"):
        raise PlanError(f"{name} is {value!r}, expected a number")
    if least is not None and value < least:
        raise PlanError(f"{name} is {value!r}, expected at least {least:g}")


def check_names(name: str, value: Any, *, count: int) -> None:
    """Refuse anything but so many different names."""
    is_list = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if not is_list or len(set(value)) != count or len(value) != count:
        raise PlanError(f"{name} is {value!r}, expected a list of {count} different tokens")
