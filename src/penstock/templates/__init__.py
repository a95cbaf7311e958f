"""Record → tokens and loss mask: `open_template` turns what a user names into a template."""

import inspect
from collections.abc import Sequence
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.text import TextTemplate
from penstock.templates.tokenizers import Tokenizer, open_tokenizer
from penstock.types import Record, Template

_NAMED = {"text": TextTemplate}

__all__ = ["TextTemplate", "Tokenizer", "detect", "open_template", "open_tokenizer"]


def open_template(name: str, tokenizer: Tokenizer, options: dict[str, Any]) -> Template:
    """A template by name, with its own options; an option it does not know is an error."""
    if name not in _NAMED:
        raise TemplateError(f"template {name!r} is not known, expected 'auto' or one of {', '.join(sorted(_NAMED))}")
    known = [key for key in inspect.signature(_NAMED[name]).parameters if key != "tokenizer"]
    if unknown := sorted(set(options) - set(known)):
        raise TemplateError(f"template {name!r} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    return _NAMED[name](tokenizer, **options)


def detect(records: Sequence[Record], options: dict[str, Any]) -> str:
    """The name of the template that fits these rows, or an error that says what was found."""
    key = options.get("key", "text")
    if all(isinstance(record.get(key), str) for record in records):
        return "text"
    seen = {f"{name} ({type(value).__name__})" for record in records for name, value in record.items()}
    raise TemplateError(
        f"no template fits {len(records)} rows with the keys {', '.join(sorted(seen)) or '(none)'}; expected a string "
        f"under {key!r} (template 'text'): name another with key=, or pass a Template"
    )
