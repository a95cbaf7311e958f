"""The words by which records name images, videos and audio clips: columns, types of parts, and tags in texts.

The core only finds them, so that no record loses its media silently.  Media themselves are read by the extra `media`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from penstock.errors import MediaError
from penstock.templates.conversation import Conversation, Message
from penstock.types import Record

KINDS: tuple[Literal["image", "video", "audio"], ...] = ("image", "video", "audio")
COLUMNS = {kind: (f"{kind}s", kind) for kind in KINDS}  # of a record: images or image …
_COLUMN_NAMES = frozenset(name for names in COLUMNS.values() for name in names)
TAGS = re.compile("<(image|video|audio)>")
# Types of content parts, as different libraries name them.
TYPES = {
    name: kind for kind in KINDS for name in (kind, f"{kind}_url", f"input_{kind}", f"{kind}_path")
}


def has_media(record: Record) -> bool:
    """Whether a record has a column with media."""
    if _COLUMN_NAMES.isdisjoint(record):  # nearly always
        return False
    return any(record.get(name) for name in _COLUMN_NAMES)


def has_tags(conversation: Conversation) -> bool:
    """Whether a message holds a tag such as <image>."""
    texts = (message.get("content") for message in conversation.messages)
    return any(isinstance(text, str) and TAGS.search(text) for text in texts)


def refuse_tags(record: Record, texts: Iterable[str]) -> None:
    """Raise for a plain text with tags for the media of its record: it would be trained without them."""
    if has_media(record) and any(map(TAGS.search, texts)):
        raise MediaError(
            "the record has media and tags for them in its text, and only conversations take media; write messages, pass chat=True for "
            "a prompt with an answer, or remove the column with the media to train the tags as text"
        )


def mentions_media(record: Record) -> bool:
    """Whether a record may have media, in whatever shape it is: a column of them, or a part of a message, perhaps in JSON text."""
    return has_media(record) or any(map(_mentions, record.values()))


def _mentions(value: Any) -> bool:
    if isinstance(value, str):  # JSON text of messages
        return (
            value.lstrip()[:1] == "["
            and '"type"' in value
            and any(f'"{name}"' in value for name in TYPES)
        )
    messages = value if isinstance(value, list | tuple) else [value]
    return any(
        isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in TYPES
        for message in messages
        if isinstance(message, dict)
        for content in message.values()
        if isinstance(content, list | tuple)
        for part in content
    )


def part_types(messages: Sequence[Message]) -> list[str]:
    """The types of the media parts of messages, in order."""
    lists = [content for message in messages if isinstance(content := message.get("content"), list)]
    if not lists:
        return []
    types = [part.get("type") for parts in lists for part in parts if isinstance(part, dict)]
    return [name for name in types if isinstance(name, str) and name in TYPES]
