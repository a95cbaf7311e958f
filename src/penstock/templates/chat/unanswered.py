"""Conversations that end with a turn that nothing answers: a question, or the results of tools.

Nothing after the last answer is trained.  Frameworks treat such conversations differently: SkyRL removes trailing tool results and
leaves out conversations that then end with a user turn; others train them as they are.
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock.errors import TemplateError
from penstock.templates.conversation import Conversation
from penstock.templates.media_words import part_types

_TOOL_ROLES = frozenset(("tool", "ipython", "environment", "function", "observation"))


class Unanswered(TemplateError):
    """A conversation that ends with a turn that nothing answers, where on_unanswered drops such conversations."""


def trailing_roles(conversation: Conversation, trained: Sequence[bool]) -> list[str]:
    """Return the roles of the messages after the last answer: an assistant's message, or one that is trained.

    Empty without such a message: then nothing is trained at all, which is counted under its own reason.
    """
    roles: list[str] = []
    for place in reversed(range(len(conversation.messages))):
        role = str(conversation.messages[place].get("role"))
        if trained[place] or role == "assistant":
            return roles[::-1]
        roles.append(role)
    return []


def kind_of(roles: Sequence[str]) -> str:
    """Name what a conversation ends with, for counting."""
    return "tool result" if roles[-1] in _TOOL_ROLES else f"{roles[-1]} turn"


def apply_policy(
    conversation: Conversation, trained: list[bool], roles: Sequence[str], policy: str
) -> tuple[Conversation, list[bool]]:
    """Return the conversation without the trailing messages that the policy removes; raise Unanswered where it drops it."""
    if policy == "keep":
        return conversation, trained
    removed = len(roles)
    if policy == "trim_tools":
        removed = 0
        while removed < len(roles) and roles[-1 - removed] in _TOOL_ROLES:
            removed += 1
    if policy == "drop" or removed < len(roles):
        raise Unanswered(
            f"the conversation ends with a {kind_of(roles)} that nothing answers, and on_unanswered={policy!r} drops it"
        )
    messages = conversation.messages[: len(conversation.messages) - removed]
    media = conversation.media
    if media:
        media = media[: len(part_types(messages))]
    return replace(conversation, messages=messages, media=media), trained[: len(messages)]
