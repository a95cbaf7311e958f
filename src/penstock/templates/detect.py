"""Find the template for some records.

Each shape is tried on each record, and exactly one must fit.  A shape fits if at least 99 % of them look like it; records whose column is
empty do not count.  Otherwise, or if two shapes fit, an error says how to choose: a wrong guess would silently train on the wrong thing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock import plugins
from penstock.errors import TemplateError
from penstock.templates.fields import query_keys
from penstock.templates.judged import CHOSEN, REJECTED
from penstock.templates.registry import known_options
from penstock.templates.shapes import Fit, shapes
from penstock.types import Record
from penstock.words import plural

ENOUGH = 0.99  # share of rows

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What the records look like.  `options` go to the template; str() is the line for people."""

    chosen: str
    runner_up: str | None
    scores: dict[str, int]  # rows that fit, by shape
    num_rows: int
    options: dict[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # keys with text that the chosen template does not read

    @property
    def why(self) -> str:
        sampled = f"{self.scores[self.chosen]:,} of {self.num_rows:,} sampled records match"
        others = self.scores.get(self.runner_up, 0) if self.runner_up else 0
        second = f"; {others:,} also match {self.runner_up}" if others else ""
        options = "".join(f", {name}: {value}" for name, value in self.options.items())
        unused = f"; columns not used: {', '.join(self.unused)}" if self.unused else ""
        return f"detected template: {self.chosen}{options} ({sampled}{second}{unused})"

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A shape, with the options that it needs for a record."""

    name: str
    options: tuple[tuple[str, Any], ...]

    def foreign(self, given: Options) -> list[str]:
        """Options of the user that this template does not have."""
        if not given:
            return []
        known = self._known_options(given)
        return [option for option in given if option not in known]

    def lacks(self, given: Options) -> str:
        """Say which options of the user this template does not have, and what to write in place of the first."""
        from penstock.aliases import instead  # only for an error

        first, *others = self.foreign(given)
        hint = instead(first, given[first], self._known_options(given), function="prepare")
        return f"template {self.name!r} has no option {', '.join([first, *others])}{hint}"

    def _known_options(self, given: Options) -> Sequence[str]:
        chat = {**dict(self.options), **given}.get("chat")
        return known_options(self.name, chat=chat)

    def __str__(self) -> str:
        """As it is chosen."""
        options = [f"{key}={value!r}" for key, value in self.options]
        return ", ".join([f"template={self.name!r}", *options])


class _Votes:
    """How many records look like which candidate."""

    def __init__(self, records: Sequence[Record], options: Options) -> None:
        """options: the user's; they name keys."""
        self.counts: Counter[_Candidate] = Counter()
        self.uses: dict[str, set[str]] = {name: set() for name in shapes()}  # keys that are read
        num_empty: Counter[str] = Counter()
        for record in records:
            for name, fit in _fits(record, options).items():
                if isinstance(fit, Fit):
                    self.counts[_Candidate(name, fit.options)] += 1
                    self.uses[name].update(fit.uses)
                else:
                    num_empty[name] += 1
        self._least = {
            name: math.ceil(ENOUGH * (len(records) - num_empty[name])) for name in shapes()
        }

    def enough(self) -> list[_Candidate]:
        """Candidates that enough records look like, those with most records first."""
        return [
            candidate
            for candidate, count in self.counts.most_common()
            if count >= self._least[candidate.name]
        ]

    def scores(self) -> dict[str, int]:
        """The most records that look like one candidate of each shape."""
        scores = dict.fromkeys(shapes(), 0)
        for candidate, count in self.counts.items():
            scores[candidate.name] = max(scores[candidate.name], count)
        return scores


def detect(records: Sequence[Record], options: Options) -> Detection:
    """The template for these records.  `options` are the user's: they name keys, and rule out templates without them."""
    if not records:
        raise TemplateError("there are no records to detect a template from; name the template")
    votes = _Votes(records, options)
    fitting = [candidate for candidate in votes.enough() if not candidate.foreign(options)]
    if len(fitting) != 1:
        raise TemplateError(_refusal(records, options, votes, fitting))
    chosen = fitting[0]
    scores = votes.scores()
    others = [name for name in shapes() if name != chosen.name]
    texts = {key for record in records for key, value in record.items() if isinstance(value, str)}
    return Detection(
        chosen=chosen.name,
        runner_up=max(others, key=scores.__getitem__),
        scores=scores,
        num_rows=len(records),
        options={key: value for key, value in chosen.options if key not in options},
        unused=tuple(sorted(texts - votes.uses[chosen.name])),
    )


def _fits(record: Record, options: Options) -> dict[str, Fit | bool]:
    """Return what the shapes that a record may have say of it: how it fits, or False if their column is empty in this record."""
    said_by_all = {name: shape.looks_like(record, options) for name, shape in shapes().items()}
    said = {name: fit for name, fit in said_by_all.items() if fit is not None}
    fitting = _fitting(said)
    if "alpaca" in fitting or "prompt_completion" in fitting:
        said.pop("query_response", None)  # the same columns under a name that says more
    for name, fit in _fitting(said).items():
        if shapes()[name].is_exclusive:
            return {name: fit}
    if _has_answers(record):
        return {}  # a pair that no shape reads: another shape would train on a part of the row only
    usual = {name: fit for name, fit in said.items() if not shapes()[name].is_last_resort}
    return usual if _fitting(usual) else said


def _fitting(said: Mapping[str, Fit | bool]) -> dict[str, Fit]:
    """Return the shapes that fit, without those whose column is empty."""
    return {name: fit for name, fit in said.items() if isinstance(fit, Fit)}


def _has_answers(record: Record) -> bool:
    """Whether a record has a chosen and a rejected answer, however they are written."""
    return all(any(record.get(key) is not None for key in names) for names in (CHOSEN, REJECTED))


def _refusal(
    records: Sequence[Record], options: Options, votes: _Votes, fitting: Sequence[_Candidate]
) -> str:
    """Return the error that says why no template was chosen, and what to do."""
    total = len(records)
    if fitting:
        listed = " and ".join(map(str, fitting))
        return f"{len(fitting)} templates fit the {total:,} sampled records: {listed}; name the one you mean, with its options"
    enough = votes.enough()
    if enough:
        lacks = "; ".join(candidate.lacks(options) for candidate in enough)
        count = votes.counts[enough[0]]
        return (
            f"{count:,} of {total:,} sampled records match template {enough[0].name!r}, but {lacks}"
        )
    if votes.counts:
        (nearest, most), *others = votes.counts.most_common(3)
        also = "".join(f", {count:,} match {candidate}" for candidate, count in others)
        return (
            f"only {most:,} of {total:,} sampled records match {nearest}{also}; a template is chosen if {ENOUGH:.0%} match. "
            f"Set template: to get an error with file and line for each record that does not match, or filter the source"
        )
    fields = {
        f"{name} ({type(value).__name__})" for record in records for name, value in record.items()
    }
    keys = ", ".join(sorted(fields)) or "(none)"
    return f"no template fits {plural(total, 'record')} with the keys {keys}; give {_hint(records)}, or a Template"


def _hint(records: Sequence[Record]) -> str:
    """Which template to name for records that fit none."""
    if any(map(_has_answers, records)):
        extra = plugins.missing("templates").get("preference")
        if extra is not None:
            return f"the template of another part; pairs need {extra}, which is not installed"
        return "template='preference', whose chosen_key= and rejected_key= name text or messages, or the template of another part"
    queries, responses = (", ".join(names) for names in query_keys(records[0]))
    if queries and responses:
        return (
            f"template='query_response' with input_key= ({queries}) and output_key= ({responses})"
        )
    texts = {key for record in records for key, value in record.items() if isinstance(value, str)}
    if len(texts) == 1:
        return f"template='text' with key={str(texts.pop())!r}"
    return (
        "template='text' with key=, or template='prompt_completion' with input_key= and output_key="
    )
