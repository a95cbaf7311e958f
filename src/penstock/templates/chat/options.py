"""The options of a chat template.  They are apart from the template, so that a recipe can be checked without jinja2."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import TemplateError
from penstock.settings import setting
from penstock.templates.fields import check_choice
from penstock.templates.samples import IN_TEXT, POLICIES, SPECIAL, TRAINED, OnNothing

# The choices of on_unanswered; chat/unanswered.py says what they do.
ON_UNANSWERED = ("keep", "drop", "trim", "trim_tools")

if TYPE_CHECKING:
    from penstock.templates.chat.template import ChatTemplate
    from penstock.templates.conversation import ReadsConversations
    from penstock.templates.tokenizer.tokenizer import Tokenizer


def open_chat(
    tokenizer: "Tokenizer", *, reader: "ReadsConversations", **options: Any
) -> "ChatTemplate":
    """Open a ChatTemplate, which imports jinja2."""
    from penstock.templates.chat.template import ChatTemplate

    return ChatTemplate(tokenizer, reader=reader, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Keyword arguments of ChatTemplate."""

    chat_template: str | None = setting(
        "a chat template, the name of one that the tokenizer has, or a file that holds one", None
    )
    train_on: str | Sequence[str] = setting(TRAINED, "assistant")
    train_reasoning: bool = setting("whether the reasoning of a trained turn is trained", True)
    chat_template_kwargs: dict[str, Any] | None = setting(
        "variables for the chat template", None, former="template_kwargs"
    )
    today: str = setting("the date that the chat template sees", "2025-01-01")
    message_weights: bool = setting(
        "keep weights of messages such as 0.5, as a weight of each token in the batch", False
    )
    verify: str = setting(
        "conversations rendered a second time to verify their masks: first (a few of every shard) or all",
        "first",
    )
    on_refused: str = setting(
        "what to do with a conversation that the chat template refuses: stop or skip", "stop"
    )
    on_missing_tokens: str = setting(
        "what to do where the chat template prints special tokens that the tokenizer does not have as one token: stop or warn",
        "stop",
    )
    on_nothing: OnNothing = "drop"
    on_unrendered: str = setting(
        "what to do with a record that has fields the chat template does not print: warn (and count), stop or skip",
        "warn",
    )
    on_unanswered: str = setting(
        "what to do with a conversation that ends with a user turn or a tool result: keep (and count), drop, trim (remove the turns "
        "after the last answer) or trim_tools (remove trailing tool results, drop those that then end with a user turn, as SkyRL does)",
        "keep",
    )
    special_in_text: str = setting(IN_TEXT, "token")

    def __post_init__(self) -> None:
        check_choice("verify", self.verify, ("first", "all"))
        check_choice("on_refused", self.on_refused, ("stop", "skip"))
        check_choice("on_missing_tokens", self.on_missing_tokens, ("stop", "warn"))
        check_choice("on_nothing", self.on_nothing, POLICIES)
        check_choice("on_unrendered", self.on_unrendered, ("warn", "stop", "skip"))
        check_choice("on_unanswered", self.on_unanswered, ON_UNANSWERED)
        check_choice("special_in_text", self.special_in_text, SPECIAL)
        if isinstance(self.train_on, str):
            known = ("assistant", "last", "completion", "all")
            check_choice(
                "train_on", self.train_on, known, more=", or a list of roles such as ['user']"
            )
        if self.message_weights and self.train_on == "all":
            raise TemplateError(
                "message_weights=True weighs trained messages, and train_on='all' trains all text; choose one"
            )
        kwargs = self.chat_template_kwargs or {}
        if kwargs.get("add_generation_prompt"):
            raise TemplateError(
                "chat_template_kwargs has add_generation_prompt, which has no effect: a training sample ends with its last message; "
                "leave it out"
            )
        for name in ("messages", "tools", "documents"):
            if name in kwargs:
                raise TemplateError(
                    f"chat_template_kwargs has {name!r}, which has no effect: each record gives its own; leave it out"
                )
