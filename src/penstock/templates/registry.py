"""Find the template for some rows, and open a template by its name and options.

Detection tries each shape on each row, and exactly one must fit.  A shape fits if at least 99 % of the rows look like it; rows whose
column is empty do not count.  Otherwise, or if two shapes fit, an error says how to choose: a wrong guess would silently train on the
wrong thing.
"""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.chat.options import ChatOptions, open_chat
from penstock.templates.chat.steps import option_names, step_makers
from penstock.templates.conversation import Reader
from penstock.templates.fields import query_keys
from penstock.templates.judged import CHOSEN, REJECTED
from penstock.templates.pretokenized import PretokenizedTemplate
from penstock.templates.shapes import Fit, RecordShape, shapes
from penstock.templates.text import PlainText
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Record, Source, Template
from penstock.words import did_you_mean, plural

_OF_EVERY_TEXT = inspect.signature(PlainText).parameters.keys()

RECORDS = (
    "records"  # no template: a recipe serves the records themselves, as a Loader of a source does
)

# All of a judged answer is trained, and nothing of a prompt.
_OF_TRAINING = ("train_on", "train_reasoning", "message_weights", "on_nothing")

ENOUGH = 0.99  # share of rows

_Found = tuple[tuple[str, Any], ...]  # options that a shape needs for a row
_Candidate = tuple[str, _Found]  # the name of a shape, with those options


def open_template(name: str, tokenizer: Tokenizer | None, options: dict[str, Any]) -> Template:
    """Open a template by name, with its options; an unknown option is an error."""
    chat = uses_chat(name, tokenizer, options)
    known = known_options(name, chat=chat)
    options = dict(options)
    for option in options:
        if option not in known:
            raise TemplateError(
                f"template {name!r} has no option {option}{did_you_mean(option, known) or ';'} "
                f"{_other_chat(name, option, chat=chat)}it has {', '.join(known)}"
            )
    shape = _shape(name)
    if shape.template is PretokenizedTemplate:
        return PretokenizedTemplate(tokenizer, **options)
    if tokenizer is None:
        raise TemplateError(
            "no tokenizer given, expected tokenizer= a tokenizer.json or the folder that holds one "
            "(only template='pretokenized' with vocab_size= does without)"
        )
    if shape.has_messages:
        assert shape.template is not None
        own = {name: options.pop(name) for name in _parameters(shape.template) if name in options}
        return shape.template(tokenizer, **own, options=options)
    options.pop("chat", None)
    if shape.template is not None and not (chat and shape.reads):
        return shape.template(tokenizer, **options)
    reads = {
        key: options.pop(key) for key in (*shape.options, *_of_every_shape()) if key in options
    }
    if shape.template is not None:
        options.setdefault("train_on", "completion")
    return open_chat(tokenizer, reader=Reader(shape=shape.name, **reads), **options)


def uses_chat(name: str, tokenizer: Tokenizer | None, options: Mapping[str, Any]) -> bool:
    """Whether a record with two sides becomes a conversation, rendered by a chat template.

    Without the option `chat`, questions and answers do if there is a chat template: a model tuned for chat expects it.
    A prompt and its completion stay plain text, as in trl.
    """
    if options.get("chat") is not None:
        return bool(options["chat"])
    has_template = (
        bool(tokenizer is not None and tokenizer.chat_templates)
        or options.get("chat_template") is not None
    )
    return name == "query_response" and has_template


def known_options(name: str, *, chat: bool | None = False) -> list[str]:
    """The options of `open_template` for this name; `chat` is the value of that option, None for either."""
    if name == RECORDS:
        return []
    shape = _shape(name)
    if shape.reads is None:
        own = _parameters(shape.template)
        more = [
            *_of_every_shape(),
            *(name for name in _chat_options() if name not in _OF_TRAINING),
        ]
        return list(dict.fromkeys([*own, *more])) if shape.has_messages else own
    as_chat = [*shape.options, *_of_every_shape(), *_chat_options()]
    if not _is_two_sided(shape):
        return as_chat
    as_text = _parameters(shape.template)
    found = [*as_text, *as_chat] if chat is None else as_chat if chat else as_text
    return list(dict.fromkeys([*found, "chat"]))


def _chat_options() -> list[str]:
    """The options of chat templates, and of the steps that extras add to them."""
    for_steps = [option for maker in step_makers().values() for option in option_names(maker)]
    return [*_parameters(ChatOptions), *for_steps]


def _parameters(maker: Callable[..., Any] | None) -> list[str]:
    """The options of a template, its own first."""
    assert maker is not None
    found = inspect.signature(maker).parameters
    names = [name for name in found if name not in ("tokenizer", "usual", "options")]
    return sorted(names, key=_OF_EVERY_TEXT.__contains__)


def template_names() -> list[str]:
    """Return the names and aliases of all templates."""
    return [name for shape in shapes().values() for name in (shape.name, shape.alias) if name]


@cache
def _of_every_shape() -> list[str]:
    """Return the options of the reader of conversations that do not depend on the shape."""
    of_some_shapes = {option for shape in shapes().values() for option in shape.options}
    names = [option.name for option in fields(Reader) if option.init]
    return [name for name in names if name not in {"shape", *of_some_shapes}]


def _shape(name: str) -> RecordShape:
    if name == RECORDS:
        raise TemplateError(
            "template 'records' makes no tokens, so nothing can be prepared, checked or shown; penstock.load and penstock.Prompts serve "
            "the records themselves"
        )
    for shape in shapes().values():
        if name in (shape.name, shape.alias):
            return shape
    known = template_names()
    raise TemplateError(
        f"template {name!r} is not known{did_you_mean(name, known) or ';'} expected 'auto' or one of {', '.join(known)}"
    )


def _is_two_sided(shape: RecordShape) -> bool:
    """Whether records of this shape become plain text or a conversation."""
    return shape.reads is not None and shape.template is not None


def _other_chat(name: str, option: str, *, chat: bool) -> str:
    """A hint if the option belongs to the other form of a two-sided template."""
    if not _is_two_sided(_shape(name)) or option not in known_options(name, chat=not chat):
        return ""
    if chat:
        return "these rows are rendered by the chat template; with chat=False (plain text) it has; "
    return "with chat=True it has; "


def renders_chat(name: str, tokenizer: Tokenizer | None, options: Mapping[str, Any]) -> bool:
    """Whether a template of this name renders all its rows with a chat template."""
    shape = _shape(name)
    if tokenizer is None:
        return False
    return uses_chat(name, tokenizer, options) if _is_two_sided(shape) else shape.reads is not None


def complete_options(
    name: str,
    tokenizer: Tokenizer | None,
    options: Mapping[str, Any],
    *,
    source: Source,
    sample: Callable[[], list[Record]],
) -> dict[str, Any]:
    """The options of a template with those that follow from the data, such as the folder of media.  sample: gives some rows."""
    made = dict(options)
    for maker in step_makers().values():
        chat_tokenizer = tokenizer if renders_chat(name, tokenizer, made) else None
        made = maker.complete(made, tokenizer=chat_tokenizer, source=source, sample=sample)
    return made


# Detection


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
        raise TemplateError("there are no rows to detect a template from; name the template")
    counts: Counter[_Candidate] = Counter()
    num_empty: Counter[str] = Counter()
    uses: dict[str, set[str]] = {name: set() for name in shapes()}
    for record in records:
        for name, fit in _fits(record, options).items():
            if isinstance(fit, Fit):
                counts[name, fit.options] += 1
                uses[name].update(fit.uses)
            else:
                num_empty[name] += 1
    least = {name: math.ceil(ENOUGH * (len(records) - num_empty[name])) for name in shapes()}
    enough = [
        candidate for candidate, count in counts.most_common() if count >= least[candidate[0]]
    ]
    fitting = [candidate for candidate in enough if not _foreign(candidate, options)]
    if len(fitting) != 1:
        raise TemplateError(_refusal(records, options, counts, enough, fitting))
    name, found = fitting[0]
    scores = {
        shape: max((n for (other, _), n in counts.items() if other == shape), default=0)
        for shape in shapes()
    }
    texts = {key for record in records for key, value in record.items() if isinstance(value, str)}
    return Detection(
        chosen=name,
        runner_up=max((shape for shape in shapes() if shape != name), key=scores.__getitem__),
        scores=scores,
        num_rows=len(records),
        options={key: value for key, value in found if key not in options},
        unused=tuple(sorted(texts - uses[name])),
    )


def _fits(record: Record, options: Mapping[str, Any]) -> dict[str, Fit | bool]:
    """How a row fits the shapes that it may have; False for one whose column is empty."""
    tried = {name: shape.looks_like(record, options) for name, shape in shapes().items()}
    found = {name: fit for name, fit in tried.items() if fit is not None}
    if isinstance(found.get("alpaca"), Fit) or isinstance(found.get("prompt_completion"), Fit):
        found.pop("query_response", None)  # the same columns under a name that says more
    for name, fit in found.items():
        if isinstance(fit, Fit) and shapes()[name].is_exclusive:
            return {name: fit}
    if _has_answers(record):
        return {}  # a pair that nothing reads; what else is in the row is not all that it says
    usual = {name: fit for name, fit in found.items() if not shapes()[name].is_last_resort}
    return usual if any(isinstance(fit, Fit) for fit in usual.values()) else found


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
        lacks = "; ".join(
            f"template {each[0]!r} has no option {', '.join(_foreign(each, options))}"
            for each in enough
        )
        return f"{counts[enough[0]]:,} of {total:,} sampled rows match template {enough[0][0]!r}, but {lacks}"
    if counts:
        (nearest, most), *others = counts.most_common(3)
        also = "".join(f", {count:,} match {_choice(candidate)}" for candidate, count in others)
        return (
            f"only {most:,} of {total:,} sampled rows match {_choice(nearest)}{also}; a template is chosen if {ENOUGH:.0%} match. "
            f"Set template: to get an error with file and line for each row that does not match, or filter the source"
        )
    keys = sorted(
        {f"{name} ({type(value).__name__})" for record in records for name, value in record.items()}
    )
    texts = sorted(
        {str(key) for record in records for key, value in record.items() if isinstance(value, str)}
    )
    queries, responses = (", ".join(names) for names in query_keys(records[0]))
    hint = (
        "template='text' with key=, or template='prompt_completion' with input_key= and output_key="
    )
    if any(map(_has_answers, records)):
        hint = "template='preference', whose chosen_key= and rejected_key= name text or messages, or the template of another part"
        if "preference" not in shapes():
            hint = "the template of another part; pairs need penstock.extras.trainers, which is not installed"
    elif queries and responses:
        hint = (
            f"template='query_response' with input_key= ({queries}) and output_key= ({responses})"
        )
    elif len(texts) == 1:
        hint = f"template='text' with key={texts[0]!r}"
    return f"no template fits {plural(total, 'row')} with the keys {', '.join(keys) or '(none)'}; give {hint}, or a Template"


def _choice(candidate: _Candidate) -> str:
    name, found = candidate
    return ", ".join([f"template={name!r}", *(f"{key}={value!r}" for key, value in found)])
