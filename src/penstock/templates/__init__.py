"""Record → tokens and loss mask: `open_template` turns what a user names into a template, `detect` finds the name.

`ChatTemplate` is imported when it is first asked for: it needs jinja2, which takes a while to import.
"""

from typing import TYPE_CHECKING, Any

from penstock.templates.conversation import Conversation, Reader
from penstock.templates.detect import Detection, detect
from penstock.templates.function import FunctionTemplate
from penstock.templates.pretokenized import PretokenizedTemplate
from penstock.templates.registry import known_options, open_template, template_names
from penstock.templates.shapes import Fit, RecordShape
from penstock.templates.spec import TemplateSpec
from penstock.templates.text import PromptCompletionTemplate, SegmentsTemplate, TextTemplate
from penstock.templates.tokenizer.engines import bytes_to_encode, fast_bytes
from penstock.templates.tokenizer.tokenizer import Tokenizer, open_tokenizer
from penstock.types import Column

if TYPE_CHECKING:
    from penstock.templates.chat.template import ChatTemplate

__all__ = [
    "ChatTemplate",
    "Column",
    "Conversation",
    "Detection",
    "Fit",
    "FunctionTemplate",
    "PretokenizedTemplate",
    "PromptCompletionTemplate",
    "Reader",
    "RecordShape",
    "SegmentsTemplate",
    "TemplateSpec",
    "TextTemplate",
    "Tokenizer",
    "bytes_to_encode",
    "detect",
    "fast_bytes",
    "known_options",
    "open_template",
    "open_tokenizer",
    "template_names",
]


def __getattr__(name: str) -> Any:
    if name == "ChatTemplate":
        from penstock.templates.chat.template import ChatTemplate

        return ChatTemplate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
