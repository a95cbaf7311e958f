"""The flags with which a message says whether it is trained: one table of the names that frameworks use, and how they are read.

A flag that is read wrongly trains what its author excluded, so a value that is not understood is an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import TemplateError


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskFlag:
    """A key of a message, or of a part of its content, that decides about its loss.

    excludes: the value with which a message is not trained.
    is_weight: the value may also be another number, a weight of the message's loss.
    only_excludes: the other value means "as if the key were absent"; without it, that value trains a message of any role.
    """

    name: str
    used_by: str
    excludes: int = 0
    is_weight: bool = False
    only_excludes: bool = False


MASK_FLAGS: dict[str, MaskFlag] = {
    flag.name: flag
    for flag in (
        MaskFlag(name="train", used_by="axolotl"),
        MaskFlag(name="training", used_by="axolotl (older data)"),
        MaskFlag(name="trainable", used_by="tinker-cookbook"),
        MaskFlag(name="loss", used_by="ms-swift, XTuner", is_weight=True),
        MaskFlag(name="loss_mask", used_by="verl (data with a mask per message)"),
        MaskFlag(name="loss_scale", used_by="ms-swift", is_weight=True),
        MaskFlag(name="loss_weight", used_by="LLaMA-Factory", is_weight=True),
        MaskFlag(
            name="weight",
            used_by="OpenAI, mistral-finetune, axolotl, Together, Fireworks",
            is_weight=True,
        ),
        MaskFlag(name="step_loss_mask", used_by="slime, miles", only_excludes=True),
        MaskFlag(name="masked", used_by="torchtune", excludes=1),
    )
}
TRAIN_DETAIL = "train_detail"  # axolotl's: spans of a message's content with a flag of their own

_NAMES = frozenset(MASK_FLAGS)
_REASONING = ("reasoning_content", "reasoning", "thinking")

# Stores keep weights as float32: others would become 0 or infinite.
_SMALLEST = 2.0**-126
_LARGEST = 2.0**127


def train_weight(message: Mapping[str, Any], *, fractions: bool) -> float | None:
    """The weight of a message in the loss: 0 is not trained; None if it does not say.  fractions: allow others than 0 and 1."""
    if _NAMES.isdisjoint(message):
        return None
    weights: dict[str, float] = {}
    for name, flag in MASK_FLAGS.items():
        value = message.get(name)
        if value is None:
            continue
        weight = _weight(flag, value, fractions=fractions)
        if flag.only_excludes and weight:
            continue
        weights[name] = weight
    if len(set(weights.values())) > 1:
        raise TemplateError(
            f"a message's fields contradict each other about its loss: {weights} (0: not trained)"
        )
    return next(iter(weights.values()), None)


def _weight(flag: MaskFlag, value: Any, *, fractions: bool) -> float:
    """Read the value of a flag as a weight."""
    is_number = isinstance(value, bool | int | float)
    if is_number and value in (0, 1):
        return float(value != flag.excludes)
    is_weight = is_number and flag.is_weight and _SMALLEST <= value <= _LARGEST
    if is_weight and fractions:
        return float(value)
    expected = "true, false, 0 or 1"
    if is_weight:
        expected += "; pass message_weights=True to keep the weights of messages for the loss"
    elif flag.is_weight and fractions:
        expected += ", or a finite weight above 0"
    raise TemplateError(f"a message's {flag.name!r} is {value!r}, expected {expected}")


def has_flag(part: Mapping[str, Any]) -> bool:
    """Whether a message, or a part of its content, has a flag that is not null."""
    return not _NAMES.isdisjoint(part) and any(part.get(name) is not None for name in _NAMES)


def refuse_unused_flags(message: Mapping[str, Any], *, is_trained: bool, trains_all: bool) -> None:
    """Raise where flags of a message, or of spans of its content, would have no effect."""
    if trains_all and (train_weight(message, fractions=True) == 0 or TRAIN_DETAIL in message):
        raise TemplateError(
            "train_on='all' trains every token, and a message says that it is not trained; choose train_on='assistant' or a "
            "list of roles, or remove the flag"
        )
    for name in _REASONING:
        parts = message.get(name)
        if isinstance(parts, list) and any(isinstance(p, dict) and has_flag(p) for p in parts):
            raise TemplateError(
                f"{name!r} is a list of parts with flags of their own, which are read in 'content' only; write it as text, "
                f"and train_reasoning=False to exclude reasoning"
            )
    if not is_trained and _trains_a_part(message.get(TRAIN_DETAIL)):
        raise TemplateError(
            f"{TRAIN_DETAIL} trains a part of a message that is not trained; add train: true to the message, and train: false "
            f"to its other parts"
        )


def _trains_a_part(details: Any) -> bool:
    if not isinstance(details, list | tuple):
        return False
    return any(isinstance(detail, dict) and detail.get("train") is True for detail in details)


def details_of_parts(parts: Sequence[Mapping[str, Any]], what: str) -> tuple[str, list[Any]]:
    """Return the text of parts of a content of which some have flags, and the flags as `train_detail`, as axolotl reads them."""
    texts: list[str] = []
    details: list[dict[str, Any]] = []
    size = 0
    for part in parts:
        text = next((part[key] for key in ("text", "value", "content") if key in part), None)
        if part.get("type") != "text" or not isinstance(text, str):
            raise TemplateError(
                f"{what} has parts with flags of their own next to a part of type {part.get('type')!r}; flags of parts need a "
                f"content of text parts only"
            )
        weight = train_weight(part, fractions=False)
        if weight is not None and text:
            span = {"begin_offset": size, "end_offset": size + len(text) - 1}
            details.append({**span, "train": weight == 1})
        texts.append(text)
        size += len(text)
    return "".join(texts), details
