"""Find the trained spans of a conversation with a chain of finders, each of which answers, or asks the next one and adds to its answer.

    JoinedMasks      answers without rendering, if a proof says what the template prints of messages of these kinds
    CountedFields    adds what the chat template does not print
    VerifiedText     compares the rendering with one without marks
    ProvenMasks      follows what each message printed, and proves where its turn begins and ends; or WholeText, for train_on="all"

What is remembered is learned from made-up messages, never from records.  Each finder but the last can be left out: without JoinedMasks,
texts and masks are the same, and every conversation is rendered.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Protocol

from jinja2 import nodes

from penstock.templates.chat.chats import Chat, Chats, Request
from penstock.templates.chat.headers import Ends, Headers
from penstock.templates.chat.joined import JoinedMasks, TurnsOfMadeUp, all_of_made_up
from penstock.templates.chat.options import ChatOptions
from penstock.templates.chat.trained_spans import SpanFinder
from penstock.templates.chat.unproven import RenderingsDiffer
from penstock.templates.chat.unrendered import Unrendered, count_words
from penstock.templates.conversation import Conversation
from penstock.templates.samples import Rendering
from penstock.templates.sandbox import prompt_reads_text

_MANY_OPTIONS = 64  # sets of chat_template_kwargs whose headers are remembered

HEADER = "header"
BODY = "body"
END = "end"
BETWEEN = "between"


class MaskFinder(Protocol):
    """Finds the trained spans of conversations, or refuses those whose spans cannot be proven."""

    def find(self, request: Request) -> Rendering: ...


@dataclass(frozen=True, slots=True)
class TurnPart:
    """Consecutive characters of a rendering that one message printed, and which part of its turn they are."""

    start: int
    stop: int
    message: int  # -1 where no message printed it
    role: str
    name: str  # header, body, end; "between" for whitespace behind the end, and for what no message printed


@dataclass(frozen=True, slots=True)
class OpenedMasks:
    """The finders of a chat template."""

    chain: MaskFinder
    proven: "ProvenMasks"  # its last one, which also knows the parts of turns
    joined: JoinedMasks | None  # its first one, if it can be there


def open_masks(chats: Chats, ends: Ends, options: ChatOptions, tree: nodes.Template) -> OpenedMasks:
    """The chain of finders of a chat template, whose syntax tree is given."""
    is_learned = not prompt_reads_text(tree)
    proven = ProvenMasks(chats, ends, options, is_learned=is_learned)
    trains_all = options.train_on == "all"
    unrendered = Unrendered(chats.text, chats.kinds)
    masks: MaskFinder = WholeText() if trains_all else proven
    masks = CountedFields(VerifiedText(masks), unrendered)
    joined = None
    if trains_all:
        joined = JoinedMasks(masks, chats, unrendered, all_of_made_up)
    elif is_learned and options.train_reasoning:
        joined = JoinedMasks(masks, chats, unrendered, TurnsOfMadeUp(proven.find_made_up, ends))
    return OpenedMasks(joined or masks, proven, joined)


class WholeText:
    """Trains all of the rendering."""

    def find(self, request: Request) -> Rendering:
        text = request.chat.whole.text
        return Rendering(text, [(0, len(text))])


class ProvenMasks:
    """Finds turns by what each message printed, and proves them."""

    def __init__(self, chats: Chats, ends: Ends, options: ChatOptions, *, is_learned: bool) -> None:
        """is_learned: whether made-up messages tell headers."""
        self._chats = chats
        self._ends = ends
        self._is_learned = is_learned
        self._reasoning = options.train_reasoning
        self._checks_all = options.verify == "all"
        self._finders: dict[str, SpanFinder] = {}  # by the row's own chat_template_kwargs

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_finders": {}}  # learned again in another process

    def find(self, request: Request) -> Rendering:
        finder = self._finder_of(request.conversation)
        return finder.find(request.chat, request.trained, check=self._checks_all)

    def find_made_up(self, chat: Chat, trained: Sequence[bool]) -> Rendering:
        """The mask of made-up messages."""
        return self._finder({}, has_documents=False).find(chat, trained)

    def _finder_of(self, conversation: Conversation) -> SpanFinder:
        return self._finder(conversation.kwargs, has_documents=bool(conversation.documents))

    def _finder(self, kwargs: dict[str, Any], *, has_documents: bool) -> SpanFinder:
        key = json.dumps([kwargs, has_documents], sort_keys=True, default=repr)
        if key not in self._finders:
            if len(self._finders) > _MANY_OPTIONS:
                self._finders.clear()
            chats = self._chats
            self._finders[key] = SpanFinder(
                Headers(partial(chats.made_up, kwargs=kwargs), chats.kinds),
                self._ends,
                learned=self._is_learned and not has_documents,
                tagged=chats.renderer.has_generation,
                reasoning=self._reasoning,
            )
        return self._finders[key]

    def outline(self, request: Request) -> list[TurnPart]:
        """A rendered conversation, cut at the headers and ends of its turns.  A message without a known header is all body."""
        chat = request.chat
        text = chat.whole.text
        finder = self._finder_of(request.conversation)
        painted = [(-1, BETWEEN)] * len(text)  # of each character: its message and its part

        def paint(start: int, stop: int, number: int, name: str) -> None:
            painted[start:stop] = [(number, name)] * max(stop - start, 0)

        ends = []
        for number in range(len(chat.messages)):
            runs = chat.whole.runs_of(number)
            spans = finder.turn(chat, number)
            for start, stop, _ in runs:
                paint(start, stop, number, BETWEEN if spans else BODY)
            if spans:
                paint(runs[0][0], spans[0][0], number, HEADER)
                for start, stop in spans:
                    paint(start, stop, number, BODY)
                ends.append((self._ends.begin(text, *spans[-1]), spans[-1][1], number))
        for start, stop, number in ends:
            # last, as the next message may have printed the token that ends this one
            paint(start, stop, number, END)
        parts = []
        start = 0
        for (number, name), characters in groupby(painted):
            stop = start + len(list(characters))
            role = str(chat.messages[number].get("role", "")) if number >= 0 else ""
            parts.append(TurnPart(start, stop, number, role, name))
            start = stop
        return parts


class VerifiedText:
    """Raises where a rendering with marks is not the plain one, if that is asked for."""

    def __init__(self, inner: MaskFinder) -> None:
        self._inner = inner

    def find(self, request: Request) -> Rendering:
        rendering = self._inner.find(request)
        if request.is_verified and request.renderer.render_plain(request.context) != rendering.text:
            raise RenderingsDiffer(
                "the chat template prints this conversation in another way when its messages are marked"
            )
        return rendering


class CountedFields:
    """Counts the characters of the record, and those of fields that are not printed."""

    def __init__(self, inner: MaskFinder, unrendered: Unrendered) -> None:
        self._inner = inner
        self._unrendered = unrendered

    def find(self, request: Request) -> Rendering:
        rendering = self._inner.find(request)
        conversation = request.conversation
        rendering.unrendered = self._unrendered.find(
            conversation, request.kinds, rendering.text, request.chat.whole.printed_by
        )
        rendering.assistant_characters, _ = count_words(conversation.messages, ())
        return rendering
