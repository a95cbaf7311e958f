"""Find the trained spans of a conversation fast: compare its rendering with that of made-up messages of the same kinds.

A layout says what a template prints between the strings of the messages.  It is learned once for each order of kinds from made-up messages,
whose trained spans are found in the usual way.  A rendering that equals the layout with the real strings in it, letter by letter, has the
layout's spans; only what is printed of the tools may differ.  Any other rendering takes the usual way.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from penstock.templates.chat.headers import num_common
from penstock.templates.chat.instrument import Attribution, PrintedRun
from penstock.templates.chat.kinds import read_kind
from penstock.templates.chat.trained_spans import places
from penstock.templates.chat.unrendered import absent_fields
from penstock.templates.conversation import Message
from penstock.templates.samples import Spans

_to_json = json.JSONEncoder(ensure_ascii=False).encode

Edge = tuple[int, int]  # a place in a layout: a literal part, and characters behind its start


@dataclass(frozen=True, slots=True)
class Layout:
    # What the template prints: literal text at even places, "" for a string at odd ones.
    parts: list[str]
    # Which of the messages' strings stand at the odd places; -1: what is printed of the tools.
    order: list[int]
    num_strings: int  # of the messages; not all need be printed
    trained: list[tuple[Edge, Edge]]
    absent: frozenset[tuple[int, str]]  # message and field, where a field is not printed

    def spans(self, text: str, strings: Sequence[Any]) -> Spans | None:
        """The trained spans of a text, if it is this layout with these strings."""
        if len(strings) != self.num_strings:  # more calls than made-up messages have
            return None
        texts = _as_text(strings)
        starts = self._starts(text, texts) or self._starts(text, [some.strip() for some in texts])
        if starts is None:
            return None
        return [(starts[a] + begin, starts[b] + end) for (a, begin), (b, end) in self.trained]

    def _starts(self, text: str, strings: list[str]) -> list[int] | None:
        """Where each part starts."""
        # the last one is the tools
        parts = self.parts.copy()
        strings = [*strings, ""]
        parts[1::2] = [strings[number] for number in self.order]
        if -1 in self.order:
            place = 2 * self.order.index(-1) + 1
            begin = sum(map(len, parts[:place]))
            size = len(text) - sum(map(len, parts))
            parts[place] = text[begin : begin + max(size, 0)]
        return [0, *accumulate(map(len, parts))] if "".join(parts) == text else None


def has_layouts(kind: Any) -> bool:
    """Return whether the strings of such messages are all that a template can print of them."""
    if not isinstance(kind, tuple):
        return kind not in ("blank", "thought", "big", "float", "exponent")
    what, inside = kind
    if what == "dict":
        return all(
            has_layouts(inner) and (key != "content" or inner[0] != "list") for key, inner in inside
        )
    return what != "list" or all(map(has_layouts, inside))


def strings_of(message: Message) -> list[str]:
    """All strings of a message, as a template may print them."""
    strings: list[Any] = []
    read_kind("", message, strings)
    return _as_text(strings)


def _as_text(strings: Sequence[Any]) -> list[str]:
    return [some if type(some) is str else _to_json(some) for some in strings]


def learn_layout(
    messages: Sequence[Message], whole: Attribution, without_tools: str | None, trained: Spans
) -> Layout | None:
    """The layout of a rendering of made-up messages; None if the place of a string is ambiguous.

    without_tools: the rendering without tools, where the conversation has some.
    """
    text = whole.text
    slots = list[tuple[int, int, int]]()
    number = 0
    for place, message in enumerate(messages):
        own = whole.runs_of(place) or [PrintedRun(0, len(text), place)]
        strings = strings_of(message)
        for index, string in enumerate(strings):
            if string not in strings[:index]:  # reasoning has several names
                starts = [start for run in own for start in places(text, string, *run[:2])]
                slots += [(start, start + len(string), number) for start in starts]
            number += 1
    if without_tools is not None and without_tools != text:
        start = num_common(text, without_tools)
        stop = len(text) - num_common(text[start:][::-1], without_tools[::-1])
        if start >= stop or any(begin < stop and end > start for begin, end in trained):
            return None
        slots.append((start, stop, -1))
    slots.sort()
    borders = [0, *(border for slot in slots for border in slot[:2]), len(text)]
    if borders != sorted(borders):  # strings that overlap
        return None
    edges = [[_edge(place, borders) for place in span] for span in trained]
    if any(edge is None for pair in edges for edge in pair):
        return None
    parts = [
        text[start:stop] if place % 2 == 0 else ""
        for place, (start, stop) in enumerate(pairwise(borders))
    ]
    order = [slot[2] for slot in slots]
    return Layout(
        parts, order, number, [(a, b) for a, b in edges if a and b], absent_fields(messages, whole)
    )


def _edge(place: int, borders: list[int]) -> Edge | None:
    """Return the part that contains a place and the offset in it; None if the place is inside a string."""
    for part in range(0, len(borders) - 1, 2):
        if borders[part] <= place <= borders[part + 1]:
            return part, place - borders[part]
    return None
