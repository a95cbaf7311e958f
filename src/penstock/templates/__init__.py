"""Record → tokens and loss mask: `open_template` turns what a user names into a template, `detect` finds the name."""

from penstock.templates.detect import Detection, detect
from penstock.templates.function import FunctionTemplate
from penstock.templates.messages import Conversation, Reader
from penstock.templates.pretokenized import PretokenizedTemplate
from penstock.templates.prompt_completion import PromptCompletionTemplate
from penstock.templates.registry import open_template
from penstock.templates.remembered import remembered_template
from penstock.templates.segments import SegmentsTemplate
from penstock.templates.text import TextTemplate
from penstock.templates.tokenizer_engines import is_worth_fast
from penstock.templates.tokenizers import Tokenizer, open_tokenizer

__all__ = [
    "Conversation",
    "Detection",
    "FunctionTemplate",
    "PretokenizedTemplate",
    "PromptCompletionTemplate",
    "Reader",
    "SegmentsTemplate",
    "TextTemplate",
    "Tokenizer",
    "detect",
    "is_worth_fast",
    "open_template",
    "open_tokenizer",
    "remembered_template",
]
