"""Find the chat template of a tokenizer; else the built-in ChatML."""

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cache.memo import warn
from penstock.errors import TemplateError

if TYPE_CHECKING:
    from penstock.templates.tokenizer.tokenizer import Tokenizer

_TOOLS = "the built-in ChatML template has no form for tools; set chat_template to that of a model that knows them"

CHATML = (
    "{%- macro words(content) %}"
    "{%- if content is string %}{{- content }}"
    "{%- elif content is iterable %}{%- for part in content %}"
    "{%- if part.type != 'text' %}{{- raise_exception('the built-in ChatML template prints text only, not ' + part.type) }}"
    "{%- endif %}{{- part.text }}{%- endfor %}{%- endif %}"
    "{%- endmacro %}"
    "{%- if tools %}{{- raise_exception('" + _TOOLS + "') }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.tool_calls or message.role == 'tool' %}{{- raise_exception('"
    + _TOOLS
    + "') }}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' %}"
    "{%- generation %}"
    "{%- if message.reasoning_content %}{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{%- endif %}"
    "{{- words(message.content) + '<|im_end|>' }}{%- endgeneration %}{{- '\n' }}"
    "{%- else %}{{- words(message.content) + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def find_templates(tokenizer: "Tokenizer", given: str | None) -> tuple[str, str | None]:
    """The text of the chat template; and of another one for tools, if the tokenizer has one and none was given.

    The one given or named, else the tokenizer's, else the built-in ChatML, the most common form.
    """
    known = tokenizer.chat_templates
    named = ", ".join(sorted(known)) or "none"
    if given is not None:
        if given not in known and "{" not in given:
            raise TemplateError(
                f"chat_template {given[:60]!r} is neither a template nor the name of one; the tokenizer has {named}"
            )
        return known.get(given, given), None
    which = tokenizer.path or "the tokenizer"
    if not known:
        warn(
            f"{which} has no chat template; the built-in ChatML template is used: set chat_template to another one"
        )
        return CHATML, None
    if "default" not in known:
        raise TemplateError(
            f"{which} has no chat template named 'default'; choose one with chat_template=: {named}"
        )
    return known["default"], known.get("tool_use")


def chat_template_words(text: str, tokenizer: "Tokenizer") -> str:
    """Say which chat template this is."""
    if text in tokenizer.chat_templates.values():
        where = Path(tokenizer.path).parent.name if tokenizer.path else "the tokenizer"
        return f"chat template of {where}"
    return "the built-in ChatML template" if text == CHATML else "the chat_template of the recipe"
