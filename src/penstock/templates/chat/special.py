"""Find special tokens that stand in people's words, not in what the template prints.

Each is replaced by a placeholder in the messages, tools and documents.  If the rendering with the tokens put back equals the rendering
of the record as it is, the places of the placeholders are the places of the tokens.
"""

import re
from collections.abc import Callable, Collection
from typing import Any

from penstock.templates.chat.headers import Unproven

_PLACEHOLDER = "\ufdd1"  # a noncharacter; behind it a number as one character
_FIRST = 0x100
_PARTS = ("messages", "tools", "documents")


class SpecialFinder:
    def __init__(self, special: Collection[str]) -> None:
        self._pattern = (
            re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True)))) if special else None
        )
        self._tokens = sorted(special)

    def first_in(self, context: dict[str, Any]) -> str | None:
        """A special token in people's words."""
        found: list[str] = []
        if self._pattern is not None:
            self._changed(context, lambda match: found.append(match[0]) or match[0])  # type: ignore[func-returns-value]
        return found[0] if found else None

    def places(
        self, context: dict[str, Any], text: str, render: Callable[[dict[str, Any]], str]
    ) -> list[tuple[int, int]]:
        """Character spans of special tokens that people wrote."""
        if self._pattern is None:
            return []
        written: list[str] = []

        def hide(match: re.Match[str]) -> str:
            written.append(match[0])
            return f"{_PLACEHOLDER}{chr(_FIRST + self._tokens.index(match[0]))}"

        hidden = self._changed(context, hide)
        if not written:
            return []
        rendered = render(hidden)
        pieces, spans, size = [], list[tuple[int, int]](), 0
        for number, part in enumerate(rendered.split(_PLACEHOLDER)):
            token = self._tokens[ord(part[0]) - _FIRST] if number else ""
            if number:
                spans.append((size, size + len(token)))
            pieces += [token, part[1:] if number else part]
            size += len(token) + len(pieces[-1])
        if "".join(pieces) != text:
            raise Unproven(
                "the chat template looks for a special token that a message holds, so it cannot be encoded as text"
            )
        return spans

    def _changed(self, context: dict[str, Any], change: Callable[[re.Match[str]], str]) -> dict[str, Any]:
        assert self._pattern is not None
        return {**context, **{name: _walk(context.get(name), self._pattern, change) for name in _PARTS}}


def _walk(value: Any, pattern: re.Pattern[str], change: Callable[[re.Match[str]], str], key: str = "") -> Any:
    if isinstance(value, str):
        return value if key == "role" else pattern.sub(change, value)
    if isinstance(value, dict):
        return {name: _walk(inner, pattern, change, name) for name, inner in value.items()}
    if not isinstance(value, list | tuple):
        return value
    texts = [part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if len(texts) > 1 and len(pattern.findall("".join(texts))) > sum(len(pattern.findall(text)) for text in texts):
        raise Unproven("two parts of a message make up a special token between them; write the text as one part")
    return [_walk(inner, pattern, change) for inner in value]
