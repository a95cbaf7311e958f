"""Open a template by its name and options."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from penstock import plugins
from penstock.errors import TemplateError
from penstock.templates.chat.options import ChatOptions, open_chat
from penstock.templates.chat.steps import option_names, step_makers
from penstock.templates.conversation import Reader
from penstock.templates.pretokenized import PretokenizedTemplate
from penstock.templates.shapes import RecordShape, shapes
from penstock.templates.text import PlainText
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Record, Source, Template
from penstock.words import did_you_mean

_OF_EVERY_TEXT = inspect.signature(PlainText).parameters.keys()

# No template: a recipe serves the records themselves, as a Loader of a source does.
RECORDS = "records"

# All of a judged answer is trained, and nothing of a prompt.
_OF_TRAINING = ("train_on", "train_reasoning", "message_weights", "on_nothing")


def open_template(name: str, tokenizer: Tokenizer | None, options: Mapping[str, Any]) -> Template:
    """Open a template by name, with its options; an unknown option is an error."""
    is_chat = uses_chat(name, tokenizer, options)
    _refuse_unknown(name, options, is_chat=is_chat)
    shape = _shape(name)
    if shape.template is PretokenizedTemplate:
        return PretokenizedTemplate(tokenizer, **options)
    if tokenizer is None:
        raise TemplateError(
            "no tokenizer given; pass tokenizer='Qwen/Qwen3-0.6B', or the path of a tokenizer.json or of the folder that holds one "
            "(only template='pretokenized' with vocab_size= needs none)",
            code="no_tokenizer",
        )
    if shape.has_messages:
        assert shape.template is not None
        own, for_chat = _split(options, _parameters(shape.template))
        return shape.template(tokenizer, **own, options=for_chat)
    _, rest = _split(options, ["chat"])
    if shape.template is not None and not (is_chat and shape.reads):
        return shape.template(tokenizer, **rest)
    for_reader, for_chat = _split(rest, [*shape.options, *_of_every_shape()])
    if shape.template is not None:
        for_chat.setdefault("train_on", "completion")
    return open_chat(tokenizer, reader=Reader(shape=shape.name, **for_reader), **for_chat)


def _refuse_unknown(name: str, options: Mapping[str, Any], *, is_chat: bool) -> None:
    names = known_options(name, chat=is_chat)
    for option in options:
        if option not in names:
            from penstock.aliases import instead  # only for an error

            hint = instead(option, options[option], names, function="prepare")
            raise TemplateError(
                f"template {name!r} has no option {option}{hint}{'' if hint.endswith('?') else ';'} "
                f"{_other_chat(name, option, chat=is_chat)}it has {', '.join(names)}"
            )


def _split(
    options: Mapping[str, Any], names: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of these names, and the others."""
    named = {name: value for name, value in options.items() if name in names}
    others = {name: value for name, value in options.items() if name not in names}
    return named, others


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
    as_text = [] if shape.template is None else _parameters(shape.template)
    as_chat = [*shape.options, *_of_every_shape(), *_chat_options()]
    if shape.has_messages:
        options = [*as_text, *(option for option in as_chat if option not in _OF_TRAINING)]
    elif shape.reads is None:
        options = as_text
    elif not _is_two_sided(shape):
        options = as_chat
    elif chat is None:
        options = [*as_text, *as_chat, "chat"]
    else:
        options = [*(as_chat if chat else as_text), "chat"]
    return list(dict.fromkeys(options))


def _chat_options() -> list[str]:
    """The options of chat templates, and of the steps that extras add to them."""
    for_steps = [option for maker in step_makers().values() for option in option_names(maker)]
    return [*_parameters(ChatOptions), *for_steps]


def _parameters(maker: Callable[..., Any]) -> list[str]:
    """The options of a template, its own first."""
    parameters = inspect.signature(maker).parameters
    names = [name for name in parameters if name not in ("tokenizer", "usual", "options")]
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
    missing = plugins.missing("templates")
    if name in missing:
        raise TemplateError(f"template {name!r} needs {missing[name]}, which is not installed")
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
        return (
            "these records are rendered by the chat template; with chat=False (plain text) it has; "
        )
    return "with chat=True it has; "


def renders_chat(name: str, tokenizer: Tokenizer | None, options: Mapping[str, Any]) -> bool:
    """Whether a template of this name renders all its records with a chat template."""
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
    """The options of a template with those that follow from the data, such as the folder of media.  sample: gives some records."""
    completed = dict(options)
    for maker in step_makers().values():
        chat_tokenizer = tokenizer if renders_chat(name, tokenizer, completed) else None
        completed = maker.complete(
            completed, tokenizer=chat_tokenizer, source=source, sample=sample
        )
    return completed
