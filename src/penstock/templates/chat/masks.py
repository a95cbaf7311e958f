"""Find the trained spans of a conversation with a chain of finders, each of which answers, or asks the next one and adds to its answer.

    LayoutMasks      answers if the rendering is that of made-up messages of the same kinds, letter by letter
    CountedFields    adds what the chat template does not print
    VerifiedText     compares the rendering with one without marks
    ProvenMasks      follows what each message printed, and proves where its turn begins and ends; or WholeText, for train_on="all"

What is remembered is learned from made-up messages, never from records.  Each finder but the last can be left out: without LayoutMasks,
masks are the same and take four times as long.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Protocol

from penstock.errors import TemplateError
from penstock.templates.chat.chats import Chat, Chats, Request
from penstock.templates.chat.headers import Ends, Headers
from penstock.templates.chat.instrument import Attribution
from penstock.templates.chat.kinds import MadeUp, role_of
from penstock.templates.chat.layout import Layout, has_layouts, learn_layout, strings_of
from penstock.templates.chat.options import ChatOptions
from penstock.templates.chat.trained_spans import SpanFinder
from penstock.templates.chat.unrendered import Unrendered, count_words
from penstock.templates.conversation import Conversation
from penstock.templates.samples import Rendering, Spans
from penstock.templates.sandbox import prompt_reads_text

_MANY_ORDERS = 4096  # orders of kinds; beyond these, they are too rare to be worth a layout
_MANY_OPTIONS = 64  # sets of chat_template_kwargs whose headers are remembered
_REPORT = "please report the chat template"

HEADER = "header"
BODY = "body"
END = "end"
BETWEEN = "between"


class RenderingsDiffer(TemplateError):
    """Two ways to find the text and mask of a conversation disagree: neither can be relied on for this template."""


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
    name: str  # header, body, end; "between" for white space behind the end, and for what no message printed


def open_masks(chats: Chats, ends: Ends, options: ChatOptions) -> "tuple[MaskFinder, ProvenMasks]":
    """The chain of finders of a chat template, and its last one, which also knows the parts of turns."""
    is_learned = not prompt_reads_text(chats.renderer.tree())
    proven = ProvenMasks(chats, ends, options, is_learned=is_learned)
    trains_all = options.train_on == "all"
    unrendered = Unrendered(chats.text, chats.kinds)
    masks: MaskFinder = WholeText() if trains_all else proven
    masks = CountedFields(VerifiedText(masks), unrendered)
    if is_learned and options.train_reasoning and not trains_all:
        masks = LayoutMasks(masks, proven, chats, ends, unrendered)
    return masks, proven


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
        """The mask of made-up messages, with every check."""
        return self._finder({}, has_documents=False).find(chat, trained, check=True)

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
                f"the chat template prints this conversation in another way when its messages are marked; {_REPORT}"
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


@dataclass(frozen=True, slots=True)
class _Order:
    """What is known of conversations whose messages are of these kinds, in this order."""

    answers: list[int]  # places of the assistant's messages
    has_layouts: bool
    # By (has tools, *trained); None: this one takes the usual way.
    layouts: dict[tuple[bool, ...], Layout | None] = field(default_factory=dict)
    once: set[tuple[bool, ...]] = field(default_factory=set)  # keys that one conversation had


class LayoutMasks:
    """Answers at once where the rendering is the layout of its order of kinds (layout.py); else asks the next finder."""

    def __init__(
        self,
        inner: MaskFinder,
        proven: ProvenMasks,
        chats: Chats,
        ends: Ends,
        unrendered: Unrendered,
    ) -> None:
        """proven: finds the masks of made-up messages.  unrendered: knows whether tools are printed."""
        self._inner = inner
        self._proven = proven
        self._chats = chats
        self._ends = ends
        self._unrendered = unrendered
        self._orders: dict[tuple[int, ...], _Order] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_orders": {}}  # learned again in another process

    def find(self, request: Request) -> Rendering:
        by_layout = self._by_layout(request) if request.is_usual else None
        if by_layout is not None and not request.is_verified:
            return by_layout
        rendering = self._inner.find(request)
        if by_layout is not None and by_layout.spans != rendering.spans:
            raise RenderingsDiffer(
                f"the trained parts of this conversation are not those of made-up conversations of its kind; {_REPORT}"
            )
        return rendering

    def _by_layout(self, request: Request) -> Rendering | None:
        """The conversation, if it is printed as made-up ones are."""
        order = self._orders.get(request.kinds) or self._new_order(request)
        layout = self._layout(order, request) if order.has_layouts else None
        if layout is None:
            return None
        try:
            text = request.renderer.render_plain(request.context)
        except TemplateError:
            return None
        spans = layout.spans(text, request.strings)
        if spans is None:
            return None
        conversation = request.conversation
        if request.is_simple and not layout.absent:  # nearly always
            said = sum([len(request.strings[place]) for place in order.answers])
            missing: dict[str, int] = {}
        else:
            said, missing = count_words(conversation.messages, layout.absent)
        if conversation.tools:
            missing |= self._unrendered.unused(conversation)
        return Rendering(text, spans, unrendered=missing, assistant_characters=said)

    def _new_order(self, request: Request) -> _Order:
        kinds = [self._chats.kinds[number] for number in request.kinds]
        can_be_laid_out = request.is_simple
        if not can_be_laid_out and not request.renderer.has_generation:
            can_be_laid_out = all(map(has_layouts, set(kinds)))
        answers = [place for place, kind in enumerate(kinds) if role_of(kind) == "assistant"]
        order = _Order(answers, can_be_laid_out)
        if len(self._orders) < _MANY_ORDERS:
            self._orders[request.kinds] = order
        return order

    def _layout(self, order: _Order, request: Request) -> Layout | None:
        """The layout of such conversations, learned when the second one comes: orders with tools may be too many to be worth it."""
        key = (bool(request.conversation.tools), *request.trained)
        if key not in order.layouts:
            if not request.is_simple and key not in order.once:
                order.once.add(key)
                return None
            if len(order.layouts) > _MANY_ORDERS:
                return None
            order.layouts[key] = self._learn(request)
        return order.layouts[key]

    def _learn(self, request: Request) -> Layout | None:
        made = MadeUp([self._chats.kinds[number] for number in request.kinds])
        has_tools = bool(request.conversation.tools)
        render = self._chats.made_up(has_tools)
        without_tools = None
        try:
            whole = render(made.messages, add_generation_prompt=False)
            chat = Chat(made.messages, request.kinds, has_tools, whole, render)
            rendering = self._proven.find_made_up(chat, request.trained)
            if has_tools:
                render_bare = self._chats.made_up(False)
                without_tools = render_bare(made.messages, add_generation_prompt=False).text
        except TemplateError:
            return None
        if rendering.num_unended or rendering.num_partial:
            return None
        for number, is_trained in enumerate(request.trained):
            if is_trained and not self._ends_by_itself(made, whole, number, rendering.spans):
                return None
        return learn_layout(made.messages, whole, without_tools, rendering.spans)

    def _ends_by_itself(self, made: MadeUp, whole: Attribution, number: int, spans: Spans) -> bool:
        """Return whether an answer is one run with one span, whose end follows from the text that the template prints after its strings.

        Elsewhere what a message says may decide where its turn ends, or that it is refused.
        """
        runs = whole.runs_of(number)
        text = whole.text
        inside = [span for span in spans if runs and runs[0][0] <= span[0] < runs[0][1]]
        if len(runs) != 1 or len(inside) != 1 or made.messages[number].get("role") != "assistant":
            return False
        begin, end = inside[0]
        printed = [said for said in strings_of(made.messages[number]) if said in text[begin:end]]
        last = max((text.rfind(said, begin, end) + len(said) for said in printed), default=begin)
        return self._chats.renderer.has_generation or self._ends.stops_at(text, last, end)
