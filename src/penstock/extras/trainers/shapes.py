"""The shapes of records that trainers of judged answers read: preference pairs, single answers (KTO) and judged steps."""

from collections.abc import Mapping
from typing import Any

from penstock.extras.trainers.pairs import KtoTemplate, PreferenceTemplate
from penstock.extras.trainers.stepwise import StepwiseTemplate
from penstock.templates.fields import is_null, is_side, one_key
from penstock.templates.judged import (
    CHOSEN,
    COMPLETION,
    INPUT,
    LABELS,
    MESSAGES,
    REJECTED,
    prompt_keys,
)
from penstock.templates.shapes import BESIDE_TURNS, Fit, RecordShape
from penstock.types import Record


def _like_preference(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    chosen = options.get("chosen_key") or one_key(record, CHOSEN)
    rejected = options.get("rejected_key") or one_key(record, REJECTED)
    if chosen is None or rejected is None:
        return None
    if not (is_side(record.get(chosen)) and is_side(record.get(rejected))):
        return False if is_null(record, chosen) or is_null(record, rejected) else None
    margin = record.get("margin")
    has_margin = isinstance(margin, int | float) and not isinstance(margin, bool)
    uses = (chosen, rejected, *prompt_keys(record, options), "margin", INPUT, *BESIDE_TURNS)
    return Fit((("margin_key", "margin"),) if has_margin else (), uses)


def _like_kto(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    label = options.get("desirable_key") or next(
        (key for key in LABELS if isinstance(record.get(key), bool)), None
    )
    if label is None or not isinstance(record.get(label), bool | int):
        return None
    prompts = prompt_keys(record, options)
    answer = options.get("output_key") or one_key(record, COMPLETION)
    fits = any(key in MESSAGES for key in prompts) or (
        prompts and answer and is_side(record.get(answer))
    )
    return (
        Fit(uses=(label, *prompts, *([answer] if answer else []), INPUT, *BESIDE_TURNS))
        if fits
        else None
    )


def _like_stepwise(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    prompt = options.get("input_key") or "prompt"
    steps, labels = (options.get(f"{name}_key") or name for name in ("completions", "labels"))
    found = record.get(steps)
    fits = isinstance(found, list) and all(isinstance(step, str) for step in found)
    fits = fits and isinstance(record.get(prompt), str) and isinstance(record.get(labels), list)
    return Fit(uses=(prompt, steps, labels)) if fits else None


PREFERENCE = RecordShape(
    name="preference",
    looks_like=_like_preference,
    template=PreferenceTemplate,
    has_messages=True,
    is_packed=False,
    is_exclusive=True,
)
KTO = RecordShape(
    name="kto",
    looks_like=_like_kto,
    template=KtoTemplate,
    has_messages=True,
    is_packed=False,
    is_exclusive=True,
)
STEPWISE = RecordShape(
    name="stepwise",
    looks_like=_like_stepwise,
    template=StepwiseTemplate,
    is_packed=False,
    is_exclusive=True,
)
