"""What some templates can do besides encoding: code that needs it asks whether a template is of the protocol."""

from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Record, Template

if TYPE_CHECKING:
    from penstock.templates.chat.masks import TurnPart
    from penstock.templates.samples import Rendering


@runtime_checkable
class HasTokenizer(Protocol):
    """A template with a tokenizer; None where the records are ids and no tokenizer was given."""

    tokenizer: Tokenizer | None


def tokenizer_of(template: Template) -> Tokenizer | None:
    """The tokenizer of a template, if it has one."""
    return template.tokenizer if isinstance(template, HasTokenizer) else None


@runtime_checkable
class ChoosesEngine(Protocol):
    """A template for which `prepare` decides, by the size of the data, whether fastokens may encode."""

    def with_engine(self, *, fast: bool) -> Self: ...


@runtime_checkable
class Renders(Protocol):
    """A template that renders a record as text before it is encoded."""

    def rendering(self, record: Record) -> "Rendering": ...


@runtime_checkable
class HasTurns(Protocol):
    """A template of conversations: a record has turns, and fan-out makes a sample of each trained one."""

    turn_key: str  # under which fan-out says which of a record's turns is meant

    def num_turns(self, record: Record) -> int: ...
    def outline(self, record: Record) -> "list[TurnPart]": ...


@runtime_checkable
class EndsTurns(Protocol):
    """A template that knows which token ends a turn."""

    def how_turns_end(self) -> str | None:
        """What is wrong with how turns end, if anything."""
        ...


@runtime_checkable
class UsesChatTemplate(Protocol):
    """A template that renders records with a chat template, unless that is None."""

    chat_template: str | None
    reads_flags: bool  # whether flags of messages decide what is trained


@runtime_checkable
class JoinsChats(Protocol):
    """A template of conversations that need not be rendered one by one where a proof says what is printed."""

    def why_rendered(self) -> str | None:
        """Why plain chats are rendered one by one; None where they are joined from pieces."""
        ...


@runtime_checkable
class DescribesItself(Protocol):
    """A template that says in a few words what renders the records, and which tokens are trained."""

    def summary(self) -> str: ...
