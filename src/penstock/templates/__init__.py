"""Record → tokens and loss mask: `open_template` turns what a user names into a template, `detect` finds the name."""

from penstock.templates.conversation import Conversation, Reader
from penstock.templates.detect import Detection, detect
from penstock.templates.function import FunctionTemplate
from penstock.templates.pretokenized import PretokenizedTemplate
from penstock.templates.registry import open_template
from penstock.templates.spec import TemplateSpec
from penstock.templates.text import PromptCompletionTemplate, SegmentsTemplate, TextTemplate
from penstock.templates.tokenizer.engines import is_worth_fast
from penstock.templates.tokenizer.tokenizer import Tokenizer, open_tokenizer
from penstock.types import Column

__all__ = [
    "Column",
    "Conversation",
    "Detection",
    "FunctionTemplate",
    "PretokenizedTemplate",
    "PromptCompletionTemplate",
    "Reader",
    "SegmentsTemplate",
    "TemplateSpec",
    "TextTemplate",
    "Tokenizer",
    "detect",
    "is_worth_fast",
    "open_template",
    "open_tokenizer",
]
