"""Steps that extras add to chat templates, such as the media of records: plugins of the group `template_steps`.

A step sees each conversation three times: it reads the record, changes the rendered text, and changes the tokens of encoded renderings.
Without the extra for media, the core refuses records that have some: they would be trained without them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from penstock import plugins
from penstock.errors import MediaError, TemplateError
from penstock.templates.media_words import has_media, has_tags, part_types
from penstock.templates.samples import Rendering
from penstock.templates.tokenizer.byte_offsets import Encoded
from penstock.types import Column, Record, Samples, Source

if TYPE_CHECKING:
    from penstock.templates.chat.options import ChatOptions
    from penstock.templates.conversation import Conversation, ReadsConversations
    from penstock.templates.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to do with a record that is refused.  No option: always stop, whatever the options say."""

    option: str = ""
    action: str = "stop"  # or skip
    reason: str = ""  # under which a skipped record is counted


class ChatStep(Protocol):
    """A step of one opened chat template."""

    columns: tuple[Column, ...]  # that it adds to samples

    def identity(self) -> dict[str, Any]:
        """Everything that changes tokens, as plain JSON values; {} if the step changes none."""
        ...

    def read(self, record: Record, conversation: "Conversation") -> "Conversation":
        """The conversation with what the step takes from the record."""
        ...

    def place(
        self,
        record: Record,
        conversation: "Conversation",
        rendering: Rendering,
        context: dict[str, Any],
    ) -> Rendering:
        """The rendering with what the step puts in it; its spans move with the text.  context: what was rendered."""
        ...

    def refuse(self, record: Record, conversation: "Conversation", rendering: Rendering) -> None:
        """Raise if the record has what the step would put in the rendering; for templates that cannot take it."""
        ...

    def expand(self, encoded: Encoded, batch: Sequence[Rendering]) -> Callable[[Samples], Samples]:
        """Return the function that changes the samples of encoded renderings.  An error names a record by its number in the batch."""
        ...

    def policy(self, error: TemplateError) -> Policy | None:
        """What to do with a record for which the step raised an error; None for errors that are not the step's."""
        ...


@runtime_checkable
class ChatStepMaker(Protocol):
    """What a plugin registers: the options of a step, and how it is opened."""

    # A dataclass of keyword arguments with documentation; they become options of chat templates.
    options: type[Any]

    def complete(
        self,
        options: Mapping[str, Any],
        *,
        tokenizer: "Tokenizer | None",
        source: Source,
        sample: Callable[[], list[Record]],
    ) -> dict[str, Any]:
        """Options with those that follow from the data.  tokenizer: None if no chat template renders the records."""
        ...

    def depends_on(self, tokenizer: "Tokenizer", options: Mapping[str, Any]) -> Any:
        """What decides `identity` besides options and tokenizer, such as a digest of files, as a JSON value; None for nothing."""
        ...

    def open(self, tokenizer: "Tokenizer", reader: "ReadsConversations", options: Any) -> ChatStep:
        """The step, with an object of the class `options`."""
        ...


@runtime_checkable
class HasSteps(Protocol):
    """A template with steps that extras added."""

    steps: Mapping[str, ChatStep]  # by name


def step_makers() -> dict[str, ChatStepMaker]:
    """The makers of all steps, by name."""
    return dict(plugins.every("template_steps"))


def open_steps(
    tokenizer: "Tokenizer", reader: "ReadsConversations", options: Mapping[str, Any]
) -> dict[str, ChatStep]:
    """Open all steps.  options: theirs, without those of the chat template."""
    makers = step_makers()
    steps: dict[str, ChatStep] = {}
    for name, maker in makers.items():
        own = {option: options[option] for option in option_names(maker) if option in options}
        steps[name] = maker.open(tokenizer, reader, maker.options(**own))
    if "media" not in makers:
        extra = plugins.missing("template_steps").get("media", "a plugin")
        why = f"{extra}, which reads them, is not installed; install it, or remove the media"
        steps["media"] = RefuseMedia(why, Policy())
    return steps


def option_names(maker: ChatStepMaker) -> list[str]:
    """The names of a step's options."""
    return [option.name for option in fields(maker.options)]


class RefuseMedia:
    """Refuses records whose media the chat template prints, where nothing can say which tokens they are."""

    columns: tuple[Column, ...] = ()

    def __init__(self, why: str, policy: Policy) -> None:
        """why: nothing can.  policy: what to do with such records."""
        self._why = why
        self._policy = policy

    def identity(self) -> dict[str, Any]:
        return {}

    def read(self, record: Record, conversation: "Conversation") -> "Conversation":
        return conversation

    def place(
        self,
        record: Record,
        conversation: "Conversation",
        rendering: Rendering,
        context: dict[str, Any],
    ) -> Rendering:
        self.refuse(record, conversation, rendering)
        return rendering

    def refuse(self, record: Record, conversation: "Conversation", rendering: Rendering) -> None:
        printed = [
            kind
            for kind in part_types(conversation.messages)
            if not any(name.endswith(f"content[{kind}]") for name in rendering.unrendered)
        ]
        if printed or (has_media(record) and has_tags(conversation)):
            raise MediaError(
                f"the record has media ({', '.join(printed) or 'tags'}), and {self._why}"
            )

    def expand(self, encoded: Encoded, batch: Sequence[Rendering]) -> Callable[[Samples], Samples]:
        return _unchanged

    def policy(self, error: TemplateError) -> Policy | None:
        return self._policy if isinstance(error, MediaError) else None


def _unchanged(samples: Samples) -> Samples:
    return samples


def split_options(options: Mapping[str, Any]) -> "tuple[ChatOptions, dict[str, Any]]":
    """The options of a chat template, and those of its steps."""
    from penstock.templates.chat.options import ChatOptions

    names = {name for maker in step_makers().values() for name in option_names(maker)}
    for_steps = {name: value for name, value in options.items() if name in names}
    own = {name: value for name, value in options.items() if name not in names}
    return ChatOptions(**own), for_steps
