"""Find the template for some rows: each shape is tried on each row, and exactly one must fit.

A shape fits if at least 99 % of the rows look like it; rows whose column is empty do not count.  Otherwise, or if two shapes fit, an error
says how to choose: a wrong guess would silently train on the wrong thing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.fields import query_keys
from penstock.templates.judged import CHOSEN, REJECTED
from penstock.templates.registry import known_options
from penstock.templates.shapes import SHAPES, Fit
from penstock.types import Record

ENOUGH = 0.99  # share of rows

_Found = tuple[tuple[str, Any], ...]  # options that a shape needs for a row
_Candidate = tuple[str, _Found]  # the name of a shape, with those options


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
        sampled = f"{self.scores[self.chosen]:,} of {self.num_rows:,} sampled rows match"
        others = self.scores.get(self.runner_up, 0) if self.runner_up else 0
        second = f"; {others:,} also match {self.runner_up}" if others else ""
        found = "".join(f", {name}: {value}" for name, value in self.options.items())
        unused = f"; columns not used: {', '.join(self.unused)}" if self.unused else ""
        return f"detected template: {self.chosen}{found} ({sampled}{second}{unused})"

    def __str__(self) -> str:
        return self.why


def detect(records: Sequence[Record], options: Mapping[str, Any]) -> Detection:
    """The template for these rows.  `options` are the user's: they name keys, and rule out templates without them."""
    if not records:
        return Detection(chosen="text", runner_up=None, scores={"text": 0}, num_rows=0)
    counts: Counter[_Candidate] = Counter()
    num_empty: Counter[str] = Counter()
    uses: dict[str, set[str]] = {name: set() for name in SHAPES}
    for record in records:
        for name, fit in _fits(record, options).items():
            if isinstance(fit, Fit):
                counts[name, fit.options] += 1
                uses[name].update(fit.uses)
            else:
                num_empty[name] += 1
    least = {name: math.ceil(ENOUGH * (len(records) - num_empty[name])) for name in SHAPES}
    enough = [candidate for candidate, count in counts.most_common() if count >= least[candidate[0]]]
    fitting = [candidate for candidate in enough if not _foreign(candidate, options)]
    if len(fitting) != 1:
        raise TemplateError(_refusal(records, options, counts, enough, fitting))
    name, found = fitting[0]
    scores = {shape: max((n for (other, _), n in counts.items() if other == shape), default=0) for shape in SHAPES}
    texts = {key for record in records for key, value in record.items() if isinstance(value, str)}
    return Detection(
        chosen=name,
        runner_up=max((shape for shape in SHAPES if shape != name), key=scores.__getitem__),
        scores=scores,
        num_rows=len(records),
        options={key: value for key, value in found if key not in options},
        unused=tuple(sorted(texts - uses[name])),
    )


def _fits(record: Record, options: Mapping[str, Any]) -> dict[str, Fit | bool]:
    """How a row fits the shapes that it may have; False for one whose column is empty."""
    tried = {name: shape.looks_like(record, options) for name, shape in SHAPES.items()}
    found = {name: fit for name, fit in tried.items() if fit is not None}
    if isinstance(found.get("alpaca"), Fit) or isinstance(found.get("prompt_completion"), Fit):
        found.pop("query_response", None)  # the same columns under a name that says more
    for name in ("preference", "kto", "stepwise"):  # as anything else, the bad examples would be trained, too
        if isinstance(found.get(name), Fit):
            return {name: found[name]}
    if _has_answers(record):
        return {}  # a pair that nothing reads; what else is in the row is not all that it says
    if any(isinstance(fit, Fit) for name, fit in found.items() if name != "prompt"):
        found.pop("prompt", None)  # a prompt with its answer
    return found


def _has_answers(record: Record) -> bool:
    """Whether a row has a chosen and a rejected answer, however they are written."""
    return all(any(record.get(key) is not None for key in names) for names in (CHOSEN, REJECTED))


def _foreign(candidate: _Candidate, options: Mapping[str, Any]) -> list[str]:
    """Options of the user that this template does not have."""
    if not options:
        return []
    name, found = candidate
    known = known_options(name, chat={**dict(found), **options}.get("chat"))
    return [option for option in options if option not in known]


def _refusal(
    records: Sequence[Record],
    options: Mapping[str, Any],
    counts: Counter[_Candidate],
    enough: list[_Candidate],
    fitting: list[_Candidate],
) -> str:
    """Return the error that says why no template was chosen, and what to do."""
    total = len(records)
    if fitting:
        listed = " and ".join(map(_choice, fitting))
        return f"{len(fitting)} templates fit the {total:,} sampled rows: {listed}; name the one you mean, with its options"
    if enough:
        lacks = "; ".join(f"template {each[0]!r} has no option {', '.join(_foreign(each, options))}" for each in enough)
        return f"{counts[enough[0]]:,} of {total:,} sampled rows match template {enough[0][0]!r}, but {lacks}"
    if counts:
        (nearest, most), *others = counts.most_common(3)
        also = "".join(f", {count:,} match {_choice(candidate)}" for candidate, count in others)
        return (
            f"only {most:,} of {total:,} sampled rows match {_choice(nearest)}{also}; a template is chosen if {ENOUGH:.0%} match. "
            f"Set template: to get an error with file and line for each row that does not match, or filter the source"
        )
    keys = sorted({f"{name} ({type(value).__name__})" for record in records for name, value in record.items()})
    texts = sorted({str(key) for record in records for key, value in record.items() if isinstance(value, str)})
    queries, responses = (", ".join(names) for names in query_keys(records[0]))
    hint = "template='text' with key=, or template='prompt_completion' with input_key= and output_key="
    if any(map(_has_answers, records)):
        hint = "template='preference', whose chosen_key= and rejected_key= name text or messages, or the template of another part"
    elif queries and responses:
        hint = f"template='query_response' with input_key= ({queries}) and output_key= ({responses})"
    elif len(texts) == 1:
        hint = f"template='text' with key={texts[0]!r}"
    return f"no template fits {total} rows with the keys {', '.join(keys) or '(none)'}; give {hint}, or a Template"


def _choice(candidate: _Candidate) -> str:
    name, found = candidate
    return ", ".join([f"template={name!r}", *(f"{key}={value!r}" for key, value in found)])
