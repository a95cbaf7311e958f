"""Render a conversation and find its trained spans, in the fastest way that is proven for its kinds of messages.

Conversations take the layout of their order of kinds (layout.py).  All others are attributed (instrument.py, trained_spans.py).  What is
remembered is learned from made-up messages, never from records.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import orjson

from penstock.errors import TemplateError
from penstock.templates.chat.headers import Headers, Render, learn_ends
from penstock.templates.chat.instrument import MARK, Attribution, attribute
from penstock.templates.chat.kinds import TOOL, Kinds, MadeUp, role_of, with_reasoning
from penstock.templates.chat.layout import Layout, has_layouts, learn_layout, strings_of
from penstock.templates.chat.options import ChatOptions
from penstock.templates.chat.trained_spans import Chat, SpanFinder
from penstock.templates.chat.unrendered import Unrendered, count_words
from penstock.templates.conversation import Conversation, Message
from penstock.templates.meter import MADE_UP
from penstock.templates.render import Renderer, outcome
from penstock.templates.samples import Rendering, Spans
from penstock.templates.sandbox import known_names, prompt_reads_text
from penstock.templates.tokenizer.tokenizer import Tokenizer

_MANY_ORDERS = 4096  # orders of kinds; beyond these, they are too rare to be worth a layout
_MANY_OPTIONS = 64  # sets of chat_template_kwargs whose headers are remembered
_STRICT = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
HEADER = "header"
BODY = "body"
END = "end"
BETWEEN = "between"
_CALLED = "penstockcalled"  # the name of a made-up call


class RenderingsDiffer(TemplateError):
    """Two ways to find the text and mask of a conversation disagree: neither can be relied on for this template."""


@dataclass(frozen=True, slots=True)
class Annotated:
    """A rendering with its trained spans, and how it was made."""

    made: Rendering
    context: dict[str, Any]
    render: Callable[[dict[str, Any]], str]


@dataclass(frozen=True, slots=True)
class TurnPart:
    """Consecutive characters of a rendering that one message printed, and which part of its turn they are."""

    start: int
    stop: int
    message: int  # -1 where no message printed it
    role: str
    name: str  # header, body, end; "between" for white space behind the end, and for what no message printed


@dataclass(frozen=True, slots=True)
class _Order:
    """What is known of conversations whose messages are of these kinds, in this order."""

    is_simple: bool  # nothing but roles and text
    answers: list[int]  # places of the assistant's messages
    layouts: (
        dict[tuple[bool, ...], Layout | None] | None
    )  # by (has tools, *trained); None: always the usual way
    once: set[tuple[bool, ...]] = field(
        default_factory=set
    )  # keys of layouts that one conversation had


class Annotator:
    """Renders the conversations of one chat template."""

    def __init__(self, renderer: Renderer, tokenizer: Tokenizer, options: ChatOptions) -> None:
        self.renderer = renderer
        self._options = options
        self._given = {**tokenizer.special_tokens, **(options.chat_template_kwargs or {})}
        tree = renderer.tree()
        self.learned = not prompt_reads_text(tree)
        self._kinds = Kinds(known_names(tree))
        self.unrendered = Unrendered(self._text, self._kinds)
        self._orders: dict[tuple[int, ...], _Order] = {}
        self._finders: dict[str, SpanFinder] = {}  # by the row's own chat_template_kwargs
        self.needs_null = self._needs_null()
        self.ends = learn_ends(
            self._made_up({}, False), tokenizer.added_tokens, tokenizer.stop_tokens
        )

    def __getstate__(self) -> dict[str, Any]:
        """Headers and layouts are learned again in another process."""
        return {**self.__dict__, "_finders": {}, "_orders": {}}

    def annotate(
        self,
        conversation: Conversation,
        trained: list[bool],
        *,
        verify: bool,
        generation_prompt: bool = False,
    ) -> Annotated:
        """Render a conversation.

        verify: render it with and without marks, and compare.  generation_prompt: print it at the end, for train_on="all".
        """
        messages = with_reasoning(conversation.messages)
        kinds, strings = self._kinds.read(messages)
        order = self._orders.get(kinds) or self._order(kinds)
        beside = conversation.documents or conversation.kwargs
        given = self.context(messages, conversation, add_generation_prompt=generation_prompt)
        context = _checked(
            given, strings if order.is_simple and not beside and not conversation.tools else None
        )
        render = self.renderer.render
        by_layout: Rendering | None = None
        if order.layouts is not None and not beside and context is given:
            by_layout = self._by_layout(order, kinds, strings, conversation, context, trained)
            if by_layout is not None and not verify:
                return Annotated(by_layout, context, render)
        whole = attribute(render(context))
        if self._options.train_on == "all":
            made = Rendering(whole.text, [(0, len(whole.text))])
        else:
            chat = Chat(
                context["messages"], kinds, bool(conversation.tools), whole, _first(render, context)
            )
            finder = self._finder(conversation.kwargs, documents=bool(conversation.documents))
            made = finder.find(chat, trained, check=self._options.verify == "all")
        if verify:
            self._compare(whole.text, made, by_layout, context)
        made.unrendered = self.unrendered.find(conversation, kinds, whole.text, whole.printed_by)
        made.assistant_characters, _ = count_words(conversation.messages, ())
        return Annotated(made, context, render)

    def _compare(
        self, text: str, made: Rendering, by_layout: Rendering | None, context: dict[str, Any]
    ) -> None:
        """Raise where a rendering with marks is not the plain one, or has another mask than a layout gives it."""
        advice = "please report the chat template"
        if self.renderer.render_plain(context) != text:
            raise RenderingsDiffer(
                f"the chat template prints this conversation in another way when its messages are marked; {advice}"
            )
        if by_layout is not None and by_layout.spans != made.spans:
            raise RenderingsDiffer(
                f"the trained parts of this conversation are not those of made-up conversations of its kind; {advice}"
            )

    def _order(self, kinds: tuple[int, ...]) -> _Order:
        renderer = self.renderer
        different = set(kinds)
        is_simple = all(self._kinds.is_text(kind) for kind in different)
        can = self.learned and self._options.train_reasoning and self._options.train_on != "all"
        if not is_simple:
            can = (
                can
                and not renderer.has_generation
                and all(has_layouts(self._kinds[kind]) for kind in different)
            )
        answers = [
            place for place, kind in enumerate(kinds) if role_of(self._kinds[kind]) == "assistant"
        ]
        known = _Order(is_simple, answers, {} if can else None)
        if len(self._orders) < _MANY_ORDERS:
            self._orders[kinds] = known
        return known

    def _by_layout(
        self,
        order: _Order,
        kinds: tuple[int, ...],
        strings: list[Any],
        conversation: Conversation,
        context: dict[str, Any],
        trained: list[bool],
    ) -> Rendering | None:
        """The conversation, if it is printed as made-up ones are."""
        assert order.layouts is not None
        key = (bool(conversation.tools), *trained)
        if key not in order.layouts:
            if (
                not order.is_simple and key not in order.once
            ):  # orders with tools may be too many to be worth learning
                order.once.add(key)
                return None
            if len(order.layouts) > _MANY_ORDERS:
                return None
            order.layouts[key] = self._layout(kinds, trained, key[0])
        if (layout := order.layouts[key]) is None:
            return None
        try:
            text = self.renderer.render_plain(context)
        except TemplateError:
            return None
        spans = layout.spans(text, strings)
        if spans is None:
            return None
        if order.is_simple:
            said = sum([len(strings[place]) for place in order.answers])
            missing = dict[str, int]()
        if not order.is_simple or layout.absent:
            said, missing = count_words(conversation.messages, layout.absent)
        missing |= self.unrendered.unused(conversation) if conversation.tools else {}
        return Rendering(text, spans, unrendered=missing, assistant_characters=said)

    def _layout(self, kinds: Sequence[int], trained: list[bool], tools: bool) -> Layout | None:
        made = MadeUp([self._kinds[kind] for kind in kinds])
        render = self._made_up({}, tools)
        try:
            whole = render(made.messages, add_generation_prompt=False)
            found = self._finder({}).find(
                Chat(made.messages, kinds, tools, whole, render), trained, check=True
            )
            bare = (
                self._made_up({}, False)(made.messages, add_generation_prompt=False).text
                if tools
                else None
            )
        except TemplateError:
            return None
        places = [number for number, chosen in enumerate(trained) if chosen]
        usual = all(self._ends_by_itself(made, whole, number, found.spans) for number in places)
        if not usual or found.num_unended or found.num_partial:
            return None
        return learn_layout(made.messages, whole, bare, found.spans)

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
        said = strings_of(made.messages[number])
        last = max(
            (text.rfind(some, begin, end) + len(some) for some in said if some in text[begin:end]),
            default=begin,
        )
        return self.renderer.has_generation or self.ends.stops_at(text, last, end)

    def outline(self, conversation: Conversation) -> list[TurnPart]:
        """A rendered conversation, cut at the headers and ends of its turns.  A message without a known header is all body."""
        context = _checked(self.context(with_reasoning(conversation.messages), conversation), None)
        render = self.renderer.render
        messages = context["messages"]
        whole = attribute(render(context))
        kinds, _ = self._kinds.read(messages)
        chat = Chat(messages, kinds, bool(conversation.tools), whole, _first(render, context))
        finder = self._finder(conversation.kwargs, documents=bool(conversation.documents))
        drawn: list[tuple[int, int, int, str]] = []  # later ones cover earlier ones
        ends = []
        for number in range(len(messages)):
            own = whole.runs_of(number)
            spans = finder.turn(chat, number)
            drawn += [(start, stop, number, BETWEEN if spans else BODY) for start, stop, _ in own]
            if spans:
                drawn.append((own[0][0], spans[0][0], number, HEADER))
                drawn += [(start, stop, number, BODY) for start, stop in spans]
                ends.append((self.ends.begin(whole.text, *spans[-1]), spans[-1][1], number, END))
        drawn += ends  # last, as the next message may have printed the token that ends this one
        painted = [(-1, BETWEEN)] * len(whole.text)
        for start, stop, number, name in drawn:
            painted[start:stop] = [(number, name)] * max(stop - start, 0)
        found = []
        place = 0
        for (number, name), group in groupby(painted):
            stop = place + len(list(group))
            role = str(messages[number].get("role", "")) if number >= 0 else ""
            found.append(TurnPart(place, stop, number, role, name))
            place = stop
        return found

    def _text(self, conversation: Conversation) -> str | None:
        """A conversation as text; None where the template refuses it."""
        context = plain(self.context(with_reasoning(conversation.messages), conversation))
        found = outcome(self.renderer.render, context)
        return None if found is None else attribute(found).text

    def _finder(self, kwargs: dict[str, Any], *, documents: bool = False) -> SpanFinder:
        key = json.dumps([kwargs, documents], sort_keys=True, default=repr)
        if (known := self._finders.get(key)) is None:
            if len(self._finders) > _MANY_OPTIONS:
                self._finders.clear()
            known = self._finders[key] = SpanFinder(
                Headers(partial(self._made_up, kwargs), self._kinds),
                self.ends,
                learned=self.learned and not documents,
                tagged=self.renderer.has_generation,
                reasoning=self._options.train_reasoning,
            )
        return known

    def made_up(self, tools: bool) -> Render:
        """Renders made-up messages, with a made-up tool or without."""
        return self._made_up({}, tools)

    def _made_up(self, kwargs: dict[str, Any], tools: bool) -> Render:
        """Renders made-up messages, with a made-up tool or without."""
        given = Conversation(messages=[], tools=[TOOL] if tools else None, kwargs=kwargs)
        return lambda messages, **options: attribute(
            self.renderer.render(self.context(messages, given, **options), MADE_UP)
        )

    def _needs_null(self) -> bool:
        """Whether calls are printed beside a content of null and not beside none at all, as by DeepSeek-V3's template."""
        asked = {"role": "user", "content": "question"}
        for arguments in ({"key": "value"}, '{"key": "value"}'):
            call = {
                "id": "a23456789",
                "type": "function",
                "function": {"name": _CALLED, "arguments": arguments},
            }
            called = {"role": "assistant", "tool_calls": [call]}
            answers = {**called, "content": None}, called
            contexts = [
                self.context([asked, answer], Conversation(messages=[], tools=[TOOL]))
                for answer in answers
            ]
            beside, alone = (
                _CALLED in (outcome(partial(self.renderer.render, limits=MADE_UP), each) or "")
                for each in contexts
            )
            if beside and not alone:
                return True
        return False

    def context(
        self, messages: Sequence[Message], given: Conversation, **options: Any
    ) -> dict[str, Any]:
        return {
            **self._given,
            **given.kwargs,
            "messages": messages,
            "tools": given.tools,
            "documents": given.documents,
            "add_generation_prompt": False,
            **options,
        }


def _first(render: Callable[[dict[str, Any]], str], context: dict[str, Any]) -> Render:
    """Renders the first messages of a conversation with its own options."""
    return lambda messages, **options: attribute(
        render({**context, "messages": list(messages), **options})
    )


def _checked(context: dict[str, Any], strings: list[str] | None) -> dict[str, Any]:
    """The context of plain values.  `strings`: all that it holds, if that is text only."""
    if strings is not None:
        has_mark = MARK in "".join(strings)
    else:
        try:
            has_mark = MARK.encode() in orjson.dumps(context, option=_STRICT)
        except (
            TypeError
        ):  # something else than JSON, a number of more than 64 bits, or half of a surrogate pair
            context = plain(context)
            has_mark = ascii(MARK)[1:-1] in ascii(context)
    if has_mark:
        raise TemplateError(
            f"the record contains {MARK!r}, which Penstock uses to mark messages; remove it"
        )
    return context


def plain(value: Any) -> Any:
    """Return the same with plain values only: a template must not get objects with methods, such as an array that can write files."""
    kind = type(value)
    if kind is dict:
        return {plain(key): plain(inner) for key, inner in value.items()}
    if kind is list:
        return [plain(inner) for inner in value]
    if kind is tuple:
        return tuple(plain(inner) for inner in value)
    if kind in (str, int, float, bool, type(None)):
        return value
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a number of numpy
        return plain(value.item())
    return plain(dict(value)) if isinstance(value, dict) else f"<{kind.__name__}>"
