"""Which template do these rows want?  Every shape is tried on every row looked at; one must fit, and only one.

A shape fits the rows when at least 99 % of them look like it; rows whose column is empty say nothing either way.  Fewer,
or two shapes that fit, is an error that says how to choose: a wrong guess would train on the wrong thing, silently.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.errors import TemplateError
from penstock.templates.keys import one_key, query_keys
from penstock.templates.registry import known_options
from penstock.templates.roles import role_names
from penstock.types import Record

_NAME_KEYS = "template='text' with key=, or template='prompt_completion' with input_key= and output_key="
ENOUGH = 0.99  # share of rows

_SHAREGPT = ("conversations", "conversation", "messages")
_COMMON = ("tools", "system", "system_prompt", "documents", "chat_template_kwargs")


@dataclass(frozen=True, slots=True)
class Fit:
    """How one row fits a shape: the options that this takes, and the keys that are used."""

    options: tuple[tuple[str, Any], ...] = ()
    uses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What the rows look like.  `options` go to the template; str() is the line for people."""

    chosen: str
    runner_up: str | None
    scores: dict[str, int]  # rows that fit, by shape
    num_rows: int
    options: dict[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # keys with text that the chosen template does not read

    @property
    def why(self) -> str:
        matching = self.scores[self.chosen]
        sampled = f"{matching:,} of {self.num_rows:,} sampled rows match"
        others = self.scores.get(self.runner_up, 0) if self.runner_up else 0
        second = f"; {others:,} also match {self.runner_up}" if others else ""
        found = "".join(f", {name}: {value}" for name, value in self.options.items())
        unused = f"; columns not used: {', '.join(self.unused)}" if self.unused else ""
        return f"detected template: {self.chosen}{found} ({sampled}{second}{unused})"

    def __str__(self) -> str:
        return self.why


Look = Callable[[Record, Mapping[str, Any]], Fit | bool | None]  # False: the row says nothing about this shape


def detect(records: Sequence[Record], options: Mapping[str, Any]) -> Detection:
    """The template for these rows.  `options` are the user's: they name keys, and rule out templates without them."""
    if not records:
        return Detection(chosen="text", runner_up=None, scores={"text": 0}, num_rows=0)
    counts: Counter[tuple[str, tuple[tuple[str, Any], ...]]] = Counter()
    silent: Counter[str] = Counter()
    uses: dict[str, set[str]] = {name: set() for name in LOOKS}
    for record in records:
        for name, fit in _fits(record, options).items():
            if isinstance(fit, Fit):
                counts[name, fit.options] += 1
                uses[name].update(fit.uses)
            else:
                silent[name] += 1
    _refuse_preferences(records)
    enough = [
        shape for shape, count in counts.most_common() if count >= math.ceil(ENOUGH * (len(records) - silent[shape[0]]))
    ]
    fitting = [shape for shape in enough if not _foreign(shape[0], dict(shape[1]), options)]
    if len(fitting) != 1:
        raise TemplateError(_refusal(records, options, counts, enough, fitting))
    name, found = fitting[0]
    scores = {shape: max((n for (other, _), n in counts.items() if other == shape), default=0) for shape in LOOKS}
    others = sorted((shape for shape in LOOKS if shape != name), key=lambda shape: -scores[shape])
    texts = {key for record in records for key, value in record.items() if isinstance(value, str)}
    return Detection(
        chosen=name,
        runner_up=others[0],
        scores=scores,
        num_rows=len(records),
        options={key: value for key, value in found if key not in options},
        unused=tuple(sorted(texts - uses[name])),
    )


def _fits(record: Record, options: Mapping[str, Any]) -> dict[str, Fit | bool]:
    found: dict[str, Fit | bool] = {}
    for name, look in LOOKS.items():
        fit = look(record, options)
        if fit is not None:
            found[name] = fit
    if isinstance(found.get("alpaca"), Fit) or isinstance(found.get("prompt_completion"), Fit):
        found.pop("query_response", None)  # the same columns under a name that says more
    return found


def _foreign(name: str, found: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """Options of the user that this template does not have."""
    if not options:
        return []
    known = known_options(name, chat={**found, **options}.get("chat"))
    return [option for option in options if option not in known]


def _refuse_preferences(records: Sequence[Record]) -> None:
    """Rows made for another loss would train what was meant as a bad example."""
    pairs = sum("chosen" in record and "rejected" in record for record in records)
    if 2 * pairs > len(records):
        raise TemplateError(
            f"{pairs} of {len(records)} rows have 'chosen' and 'rejected': these are preference pairs, which no template "
            f"makes into samples yet; name a template to train on one part of them"
        )
    judged = sum(
        any(isinstance(record.get(key), bool) for key in ("label", "kto_tag"))
        and any(isinstance(record.get(key), list | str) for key in (*_SHAREGPT, "completion"))
        for record in records
    )
    if 2 * judged > len(records):
        raise TemplateError(
            f"{judged} of {len(records)} rows carry a true/false 'label': they look like examples judged good or bad, and "
            f"the bad ones would be trained too; filter the source, or name the template to train on all of them"
        )


def _refusal(
    records: Sequence[Record],
    options: Mapping[str, Any],
    counts: Counter[tuple[str, tuple[tuple[str, Any], ...]]],
    enough: list[tuple[str, Any]],
    fitting: list[tuple[str, Any]],
) -> str:
    total = len(records)
    if fitting:
        listed = " and ".join(_choice(name, found) for name, found in fitting)
        return f"{len(fitting)} templates fit the {total:,} sampled rows: {listed}; name the one you mean, with its options"
    if enough:
        lacks = "; ".join(
            f"template {name!r} has no option {', '.join(_foreign(name, dict(found), options))}"
            for name, found in enough
        )
        return f"{counts[enough[0]]:,} of {total:,} sampled rows match template {enough[0][0]!r}, but {lacks}"
    if counts:
        (nearest, most), *others = counts.most_common(3)
        also = "".join(f", {count:,} match {_choice(*shape)}" for shape, count in others)
        return (
            f"only {most:,} of {total:,} sampled rows match {_choice(*nearest)}{also}; a template is chosen where {ENOUGH:.0%} match. "
            f"Set template: to get an error with file and line for each row that does not match, or filter the source"
        )
    seen = sorted({f"{name} ({type(value).__name__})" for record in records for name, value in record.items()})
    texts = sorted({str(key) for record in records for key, value in record.items() if isinstance(value, str)})
    hint = f"template='text' with key={texts[0]!r}" if len(texts) == 1 else _NAME_KEYS
    doubtful = query_keys(records[0])
    if all(doubtful):
        hint = f"template='query_response' with input_key= ({', '.join(doubtful[0])}) and output_key= ({', '.join(doubtful[1])})"
    return f"no template fits {total} rows with the keys {', '.join(seen) or '(none)'}; give {hint}, or a Template"


def _choice(name: str, found: Any) -> str:
    return ", ".join([f"template={name!r}", *(f"{key}={value!r}" for key, value in found)])


def _text(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("key", "text")
    return Fit(uses=(key,)) if isinstance(record.get(key), str) else False if _is_null(record, key) else None


def _messages(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("messages_key") or "messages"
    turns = _turns(record.get(key))
    if not turns:
        return False if _is_null(record, key) else None
    role_key = options.get("role_key") or "role"
    return Fit(uses=(key, *_COMMON)) if all(role_key in turn for turn in turns) else None


def _sharegpt(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("messages_key") or one_key(record, _SHAREGPT)
    turns = _turns(record.get(key)) if key else None
    if key is None or not turns:
        return False if key and _is_null(record, key) else None
    usual = key in _SHAREGPT[:2]
    if options.get("role_key"):
        fits = usual and all(options["role_key"] in turn for turn in turns)
    else:
        roles = () if usual else ("role",)  # under another key, turns with a role are messages
        fits = all(_is_turn(turn) and not any(role in turn for role in roles) for turn in turns)
    found = () if usual else (("messages_key", key),)
    return Fit(found, (key, *_COMMON)) if fits else None


def _alpaca(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    instruction = options.get("instruction_key", "instruction")
    input_key, output_key = options.get("input_key") or "input", options.get("output_key") or "output"
    fits = isinstance(record.get(instruction), str) and isinstance(record.get(output_key), str)
    optional = isinstance(record.get(input_key), str | None)
    return Fit(uses=(instruction, input_key, output_key, "history", *_COMMON)) if fits and optional else None


def _prompt_completion(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    input_key = options.get("input_key") or "prompt"
    output_key = options.get("output_key") or one_key(record, ("completion", "response"))
    if input_key != "prompt" or output_key is None:
        return None  # other names: query and response
    return _two_sides(record, input_key, output_key)


def _query_response(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    queries, responses = (
        [options[option]] if options.get(option) else [key for key in found if _is_side(record[key])]
        for option, found in zip(("input_key", "output_key"), query_keys(record), strict=True)
    )
    if len(queries) != 1 or len(responses) != 1:
        return None
    fit = _two_sides(record, queries[0], responses[0])
    if fit is None:
        return None
    return Fit((("input_key", queries[0]), ("output_key", responses[0]), *fit.options), fit.uses)


def _two_sides(record: Record, input_key: str, output_key: str) -> Fit | None:
    sides = [record.get(input_key), record.get(output_key)]
    if not all(map(_is_side, sides)):
        return None
    if all(isinstance(side, str) for side in sides):
        return Fit(uses=(input_key, output_key))
    return Fit((("chat", True),), (input_key, output_key, *_COMMON))


def _pretokenized(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("input_key") or "input_ids"
    ids = record.get(key)
    if isinstance(ids, list):
        return Fit(uses=(key,)) if ids and type(ids[0]) is int else False if not ids else None
    is_array = isinstance(ids, np.ndarray) and ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
    return Fit(uses=(key,)) if is_array else None


def _segments(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("key", "segments")
    segments = _turns(record.get(key))
    if not segments:
        return False if _is_null(record, key) else None
    return Fit(uses=(key,)) if all("text" in segment and "label" in segment for segment in segments) else None


def _is_null(record: Record, key: str) -> bool:
    """A column that is there and empty in this row."""
    value = record.get(key)
    return key in record and (value is None or (isinstance(value, list | dict) and not value))


def _turns(value: Any) -> list[dict[str, Any]] | None:
    """A list of dicts, or JSON text of one (taken for messages when it begins like them)."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        return [{"role": ""}] if '"role"' in value[:200] else None
    if isinstance(value, list) and value and all(isinstance(turn, dict) for turn in value):
        return value
    return None


_ROLES = frozenset(role_names(None))


def _is_turn(turn: dict[str, Any]) -> bool:
    if "from" in turn:
        return "value" in turn
    return "role" in turn or any(isinstance(key, str) and key.lower() in _ROLES for key in turn)


def _is_side(value: Any) -> bool:
    """Text, a message or messages."""
    turns = [value] if isinstance(value, dict) else value if isinstance(value, list) and value else None
    return isinstance(value, str) or bool(turns and all(isinstance(turn, dict) and _is_turn(turn) for turn in turns))


LOOKS: dict[str, Look] = {
    "text": _text,
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "prompt_completion": _prompt_completion,
    "query_response": _query_response,
    "pretokenized": _pretokenized,
    "segments": _segments,
}
