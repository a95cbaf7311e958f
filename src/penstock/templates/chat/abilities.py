"""What a chat template can print, found with made-up conversations: which special tokens, which roles, whether tools.

`missing_tokens` compares a template with a tokenizer before any record is read.  `explain` says why a template refuses a conversation,
where its own words do not.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.errors import TemplateError
from penstock.templates.chat.instrument import Attribution
from penstock.templates.chat.kinds import (
    ANSWER,
    CALL,
    RESULT,
    SYSTEM,
    TOOL,
    USER,
    Kind,
    MadeUp,
    text_kind,
)
from penstock.templates.conversation import Conversation
from penstock.templates.media_words import part_types
from penstock.templates.tokenizer.tokenizer import Tokenizer

# Renders made-up messages, with a made-up tool or without.
MadeUpRender = Callable[[bool], Callable[..., Attribution]]

# Text that only special tokens look like.  [INST], <think> and <tool_call> are not here: many models know them as plain text.
_LIKE_A_TOKEN = re.compile(
    r"<\|[^\s<>|]{1,60}\|>|<｜[^\s<>｜]{1,60}｜>|<\|[a-z_]{1,40}>|<[a-z_]{1,40}\|>|</?s>|<(?:bos|eos)>|<(?:start|end)_of_[a-z]+>"
)
# Conversations in which a message of the role is at the place that follows.  Some templates print a system message only where a user
# has the last word.
_DEVELOPER = text_kind("developer")
_ROLES: dict[str, tuple[int, Sequence[Sequence[Kind]]]] = {
    "system": (0, [(SYSTEM, USER, ANSWER), (SYSTEM, USER)]),
    "developer": (0, [(_DEVELOPER, USER, ANSWER), (_DEVELOPER, USER)]),
    "user": (0, [(USER, ANSWER), (USER,)]),
    "assistant": (1, [(USER, ANSWER)]),
    "tool": (2, [(USER, CALL, RESULT, ANSWER), (USER, CALL, RESULT)]),
}
_CALL_ID = re.compile("[a-zA-Z0-9]{9}")


def missing_tokens(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return what is written like a special token and is not one token of the tokenizer."""
    written = dict.fromkeys(_LIKE_A_TOKEN.findall(text))
    others = [token for token in written if token not in tokenizer.added_tokens]
    return [token for token in others if len(tokenizer.encode([token])[0]) != 1]


def printed_by_itself(render: MadeUpRender) -> str:
    """Return what a template prints around made-up messages, in several shapes."""
    texts = []
    for kinds in ((USER, ANSWER, USER, ANSWER), (SYSTEM, USER, ANSWER)):
        try:
            texts.append(render(False)(MadeUp(kinds).messages, add_generation_prompt=True).text)
        except TemplateError:
            continue  # some templates have no system message
    return "\n".join(texts)


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a chat template prints of made-up conversations."""

    roles: tuple[str, ...]  # whose words it prints
    has_tools: bool  # whether it prints tools, calls or results


def find_abilities(render: MadeUpRender) -> Abilities:
    """Try every role, and tools."""
    roles = tuple(role for role in _ROLES if _prints_role(render, role))
    return Abilities(roles=roles, has_tools=_prints_tools(render))


def _prints_role(render: MadeUpRender, role: str) -> bool:
    """Return whether a template prints the words of a role in one of its conversations."""
    place, conversations = _ROLES[role]
    for kinds in conversations:
        made_up = MadeUp(kinds)
        printed = _printed(render, made_up, tools=role == "tool")
        if any(word in printed for word in made_up.words[place]):
            return True
    return False


def _prints_tools(render: MadeUpRender) -> bool:
    """Return whether a template prints the name of a tool that is called, or only offered."""
    name = TOOL["function"]["name"]
    called = _printed(render, MadeUp((USER, CALL, RESULT, ANSWER)), tools=True)
    offered = _printed(render, MadeUp((USER, ANSWER)), tools=True)
    return name in called or name in offered


def _printed(render: MadeUpRender, made: MadeUp, *, tools: bool) -> str:
    try:
        return render(tools)(made.messages, add_generation_prompt=False).text
    except TemplateError:
        return ""


def explain(conversation: Conversation, abilities: Abilities) -> str | None:
    """Return why a template refuses a conversation and what to do, where its abilities tell."""
    messages = conversation.messages
    media = part_types(messages)
    if media:
        return (
            f"a message has a content part of type {media[0]!r}; if this chat template takes only text, use the tokenizer and the "
            f"processor of a model that takes such media, or remove the parts"
        )
    if any(isinstance(message.get("content"), list) for message in messages):
        return (
            "the content of a message is a list of parts; if this chat template takes only text, set content_parts='text', which joins "
            "the texts of the parts"
        )
    roles = dict.fromkeys(str(message.get("role")) for message in messages)
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    known = f"it knows the roles {', '.join(abilities.roles)}" if abilities.roles else ""
    if (calls or "tool" in roles) and not abilities.has_tools:
        return (
            f"this chat template has no tools ({known}); choose the chat_template of a model that has them, or write each call as text "
            f"of the assistant and each result as a user turn"
        )
    unknown = [role for role in roles if role not in abilities.roles]
    if unknown and abilities.roles:
        named = ", ".join(map(repr, unknown))
        return (
            f"this chat template does not know the role {named} ({known}); choose another chat_template, or name one that it knows with "
            f"role_map={{{unknown[0]!r}: 'user'}}"
        )
    ids = [call.get("id") for call in calls if isinstance(call, dict)]
    ids += [message.get("tool_call_id") for message in messages if message.get("role") == "tool"]
    odd = [one for one in ids if not (isinstance(one, str) and _CALL_ID.fullmatch(one))]
    if odd:
        return (
            f"the id of a tool call is {odd[0]!r}; templates of Mistral take ids of 9 letters or digits only, the same in the call's id "
            f"and in the result's tool_call_id"
        )
    return None
