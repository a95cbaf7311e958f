"""Which template has this name, and which options does it know?  A wrong option is refused with the one that was meant."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.messages import Reader
from penstock.templates.pretokenized import PretokenizedTemplate
from penstock.templates.prompt_completion import PromptCompletionTemplate
from penstock.templates.segments import SegmentsTemplate
from penstock.templates.text import TextTemplate
from penstock.templates.tokenizers import Tokenizer
from penstock.types import Template

_PLAIN: dict[str, Callable[..., Template]] = {
    "text": TextTemplate,
    "pretokenized": PretokenizedTemplate,
    "segments": SegmentsTemplate,
}
_TWO_SIDED = ("prompt_completion", "query_response")  # plain text or a conversation, see `uses_chat`
_LISTED = ("messages_key", "role_key", "content_key")
_SHAPES: dict[str, tuple[str, ...]] = {  # the reader's own options of each shape
    "messages": _LISTED,
    "sharegpt": _LISTED,
    "alpaca": ("instruction_key", "input_key", "output_key", "history_key", "separator"),
    "prompt_completion": ("input_key", "output_key"),
    "query_response": ("input_key", "output_key"),
}
_EVERY_SHAPE = (
    *("tool_key", "system_key", "documents_key", "kwargs_key"),
    *("role_map", "tool_arguments", "content_parts", "nulls"),
)
_SAME = {"chat": "messages"}
NAMES = ("text", "messages", "chat", "sharegpt", "alpaca", *_TWO_SIDED, "pretokenized", "segments")


def open_template(name: str, tokenizer: Tokenizer | None, options: dict[str, Any]) -> Template:
    """A template by name, with its own options; an option it does not know is an error."""
    chat = uses_chat(name, tokenizer, options)
    known = known_options(name, chat=chat)
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            with_chat = _with_other_chat(name, option, chat=chat)
            raise TemplateError(
                f"template {name!r} has no option {option}; {meant}{with_chat}it has {', '.join(known)}"
            )
    name = _SAME.get(name, name)
    if name == "pretokenized":
        return PretokenizedTemplate(tokenizer, **options)
    if tokenizer is None:
        raise TemplateError(
            "no tokenizer given, expected tokenizer= a tokenizer.json or the folder that holds one "
            "(only template='pretokenized' with vocab_size= does without)"
        )
    options = {key: value for key, value in options.items() if key != "chat"}
    if name in _TWO_SIDED and not chat:
        return PromptCompletionTemplate(tokenizer, usual=name, **options)
    if name in _PLAIN:
        return _PLAIN[name](tokenizer, **options)
    return _open_chat(name, tokenizer, options)


def uses_chat(name: str, tokenizer: Tokenizer | None, options: Mapping[str, Any]) -> bool:
    """Whether a two-sided record becomes a conversation, rendered by a chat template.

    Where `chat` is not given, questions and answers do if there is a chat template: a model tuned for chat expects it.
    A prompt and its completion stay plain text, as in trl.
    """
    if options.get("chat") is not None:
        return bool(options["chat"])
    has_template = bool(tokenizer is not None and tokenizer.chat_templates) or options.get("chat_template") is not None
    return name == "query_response" and has_template


def known_options(name: str, *, chat: bool | None = False) -> list[str]:
    """What `open_template` takes for this name; `chat` is what that option was set to, None where either may come."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise TemplateError(f"template {name!r} is not known; {meant}expected 'auto' or one of {', '.join(NAMES)}")
    name = _SAME.get(name, name)
    if name in _PLAIN:
        return _parameters(_PLAIN[name])
    two_sided = ["chat"] if name in _TWO_SIDED else []
    if two_sided and chat is None:
        return list(dict.fromkeys([*known_options(name, chat=False), *known_options(name, chat=True)]))
    if two_sided and not chat:
        return [*_parameters(PromptCompletionTemplate), *two_sided]
    return [*_SHAPES[name], *_EVERY_SHAPE, *_parameters(_chat_template()), *two_sided]


def _with_other_chat(name: str, option: str, *, chat: bool) -> str:
    """A hint where the option belongs to the other form of a two-sided template."""
    if name not in _TWO_SIDED or option not in known_options(name, chat=not chat):
        return ""
    if chat:
        return "these rows are rendered by the chat template; with chat=False (plain text) it has; "
    return "with chat=True it has; "


def _open_chat(shape: str, tokenizer: Tokenizer, options: dict[str, Any]) -> Template:
    reads = {name: options.pop(name) for name in (*_SHAPES[shape], *_EVERY_SHAPE) if name in options}
    if shape in _TWO_SIDED:
        options.setdefault("train_on", "completion")
    return _chat_template()(tokenizer, reader=Reader(shape=shape, **reads), **options)


def _chat_template() -> Callable[..., Template]:
    from penstock.templates.chat.template import (
        ChatTemplate,  # only where it is asked for: it brings two template engines
    )

    return ChatTemplate


def _parameters(maker: Callable[..., Template]) -> list[str]:
    return [name for name in inspect.signature(maker).parameters if name not in ("tokenizer", "usual", "reader")]
