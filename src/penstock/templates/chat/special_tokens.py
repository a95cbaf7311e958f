"""Find the special tokens that people wrote in the text of messages."""

import re
from collections.abc import Callable, Collection
from typing import Any

from penstock.templates.chat.unproven import Unproven
from penstock.templates.samples import Spans
from penstock.templates.tokenizer.tokenizer import special_found

_PLACEHOLDER = "\ufdd1"  # a noncharacter; behind it a number as one character
_FIRST_TOKEN = 0x100


class SpecialFinder:
    """Finds special tokens in the text of messages, not in the text of the template.

    Each is replaced by a placeholder in the messages, tools and documents.  If the rendering with the tokens put back equals the
    rendering of the record as it is, the places of the placeholders are the places of the tokens.
    """

    def __init__(self, special: Collection[str]) -> None:
        self._tokens = sorted(special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._tokens)) or "(?!)")

    def refuse(self, context: dict[str, Any]) -> None:
        """Raise if the text of a message contains a special token."""
        if found := self._hidden(context)[1]:
            raise special_found(found[0], "a message")

    def places(
        self, context: dict[str, Any], text: str, render: Callable[[dict[str, Any]], str]
    ) -> Spans:
        """Character spans of special tokens that people wrote."""
        hidden, written = self._hidden(context)
        if not written:
            return []
        first, *rest = render(hidden).split(_PLACEHOLDER)
        shown = first
        spans = list[tuple[int, int]]()
        for part in rest:
            token = self._tokens[ord(part[0]) - _FIRST_TOKEN]
            spans.append((len(shown), len(shown) + len(token)))
            shown += token + part[1:]
        if shown != text:
            raise Unproven(
                "the chat template looks for a special token that a message holds, so it cannot be encoded as text"
            )
        return spans

    def _hidden(self, context: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The context with placeholders, and the tokens that were replaced."""
        written: list[str] = []

        def hide(match: re.Match[str]) -> str:
            written.append(match[0])
            return f"{_PLACEHOLDER}{chr(_FIRST_TOKEN + self._tokens.index(match[0]))}"

        parts = {
            name: self._changed(context.get(name), hide)
            for name in ("messages", "tools", "documents")
        }
        return {**context, **parts}, written

    def _changed(self, value: Any, hide: Callable[[re.Match[str]], str], key: str = "") -> Any:
        if isinstance(value, str):
            return value if key == "role" else self._pattern.sub(hide, value)
        if isinstance(value, dict):
            return {name: self._changed(inner, hide, name) for name, inner in value.items()}
        if not isinstance(value, list | tuple):
            return value
        texts = [
            part["text"]
            for part in value
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        count = self._pattern.findall
        if len(texts) > 1 and len(count("".join(texts))) > sum(len(count(text)) for text in texts):
            raise Unproven(
                "two parts of a message together form a special token; write the text as one part"
            )
        return [self._changed(inner, hide) for inner in value]
