"""Render a conversation and find its trained spans, in the fastest way that is proven for its kinds of messages.

minijinja renders messages of kinds on which it agrees with jinja2.  Plain chats take the layout of their order of roles (layout.py).  All
others are attributed (attribution.py, trained_spans.py).  What is remembered is learned from made-up messages, never from records.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.chat.attribution import Attribution, attribute
from penstock.templates.chat.headers import Headers, Render
from penstock.templates.chat.kinds import REASONING, Kind, Kinds, MadeUp
from penstock.templates.chat.layout import Layout, learn_layout
from penstock.templates.chat.prompt_reads import known_names, prompt_reads_text
from penstock.templates.chat.trained_spans import Chat, SpanFinder
from penstock.templates.chat.turn_ends import learn_ends
from penstock.templates.chat.values import checked, plain, with_reasoning
from penstock.templates.masks import Rendering
from penstock.templates.messages import Conversation, Message
from penstock.templates.render import Renderer, outcome
from penstock.templates.tokenizers import Tokenizer

# Engines differ about these: white space to Python only, and what minijinja makes of half a surrogate pair.
_ODD = re.compile("[\x1c-\x1f\ufffd]")
_MANY_LAYOUTS = 4096  # orders of roles; beyond these, they are too rare to be worth a layout
_MANY_OPTIONS = 64  # sets of chat_template_kwargs whose headers are remembered

_USER: Kind = ("user", "text")
_LEADS: tuple[tuple[Kind, ...], ...] = ((), (_USER,), (_USER, ("assistant", "text")), (_USER, MadeUp.call_kind()))
_TOOL = {
    "type": "function",
    "function": {
        "name": "penstocktoola",
        "description": "Does.",
        "parameters": {"type": "object", "properties": {"penstockkey": {"type": "string", "description": "A key."}}},
    },
}


class EnginesDiffer(TemplateError):
    """The fast engine cannot be relied on for this template."""


@dataclass(frozen=True, slots=True)
class Annotated:
    """A rendering with its trained spans, and how it was made."""

    made: Rendering
    context: dict[str, Any]
    render: Callable[[dict[str, Any]], str]
    whole: Attribution | None  # None where the rendering is a known layout, which prints every word


class Annotator:
    """Renders the conversations of one chat template."""

    def __init__(
        self,
        renderer: Renderer,
        tokenizer: Tokenizer,
        options: dict[str, Any],
        *,
        train_all: bool,
        train_reasoning: bool,
        verify_all: bool,
    ) -> None:
        """options: template_kwargs.  train_all: the whole text is trained.  verify_all: hold what was learned against every row."""
        self.renderer = renderer
        self._given = {**tokenizer.special_tokens, **options}
        self._train_all, self._train_reasoning, self._verify_all = train_all, train_reasoning, verify_all
        tree = renderer.tree()
        self.learned = not prompt_reads_text(tree)
        self._kinds = Kinds(known_names(tree))
        self._layouts: dict[tuple[tuple[int, ...], tuple[bool, ...]], Layout | None] = {}
        self._finders: dict[str, SpanFinder] = {}  # by the row's own chat_template_kwargs
        self._agreed: dict[int, bool] = {}  # whether minijinja renders messages of a kind as jinja2 does
        self.ends = learn_ends(self._made_up({})(False), tokenizer.added_tokens, tokenizer.stop_tokens)

    def __getstate__(self) -> dict[str, Any]:
        """Headers are learned again in another process."""
        return {**self.__dict__, "_finders": {}}

    @property
    def main_header(self) -> str | None:
        return self._finder({}).main_header

    def annotate(self, conversation: Conversation, trained: list[bool], *, verify: bool) -> Annotated:
        """verify: compare both engines on this conversation."""
        messages = with_reasoning(conversation.messages)
        kinds = [self._kinds.number(message) for message in messages]
        beside = conversation.tools or conversation.documents or conversation.kwargs
        simple = not beside and all(self._kinds[kind][1] == "text" for kind in set(kinds))
        context = checked(self.context(messages, conversation), simple=simple)
        render = self._engine(kinds)
        fast = self.renderer.is_fast and render == self.renderer.render
        if simple and fast and not verify and (made := self._by_layout(context, kinds, trained)) is not None:
            return Annotated(made, context, render, None)
        whole = attribute(render(context))
        if fast:
            if _ODD.search(whole.text) is not None:
                render = self.renderer.render_reference
                whole = attribute(render(context))
            elif verify:
                self._compare(context)
        chat = Chat(context["messages"], kinds, bool(conversation.tools), whole, _first(render, context))
        return Annotated(self._spans(chat, trained, conversation), context, render, whole)

    def _by_layout(self, context: dict[str, Any], kinds: list[int], trained: list[bool]) -> Rendering | None:
        """A chat of nothing but text, if it is printed as made-up ones are."""
        key = (tuple(kinds), tuple(trained))
        if key not in self._layouts:
            if len(self._layouts) > _MANY_LAYOUTS:
                return None
            self._layouts[key] = self._layout(kinds, trained)
        layout = self._layouts[key]
        if layout is None:
            return None
        words = [message["content"] for message in context["messages"]]
        try:
            text = self.renderer.render_plain(context)
        except TemplateError:
            return None
        spans = layout.spans(text, words)
        if spans is None or _ODD.search(text) is not None:
            return None
        said = sum(len(m["content"]) for m in context["messages"] if m["role"] == "assistant")
        return Rendering(text, spans, assistant_characters=said)

    def _layout(self, kinds: list[int], trained: list[bool]) -> Layout | None:
        if not self.renderer.is_fast or not self.learned or not self._train_reasoning or self._train_all:
            return None
        made = MadeUp([self._kinds[kind] for kind in kinds])
        render = self._made_up({})(False)
        try:
            whole = render(made.messages, add_generation_prompt=False)
            found = self._finder({}).find(Chat(made.messages, kinds, False, whole, render), trained, check=True)
        except TemplateError:
            return None
        return None if found.unended or found.num_partial else learn_layout(made, whole.text, found.spans, trained)

    def text(self, conversation: Conversation) -> str | None:
        """A conversation as text; None where the template refuses it."""
        context = plain(self.context(with_reasoning(conversation.messages), conversation))
        found = outcome(self.renderer.render, context)
        return None if found is None else attribute(found).text

    def _spans(self, chat: Chat, trained: list[bool], conversation: Conversation) -> Rendering:
        text = chat.whole.text
        if self._train_all:
            return Rendering(text, [(0, len(text))])
        finder = self._finder(conversation.kwargs, documents=bool(conversation.documents))
        found = finder.find(chat, trained, check=self._verify_all)
        return Rendering(text, found.spans, num_unended=len(found.unended), num_partial=found.num_partial)

    def _finder(self, kwargs: dict[str, Any], *, documents: bool = False) -> SpanFinder:
        key = json.dumps([kwargs, documents], sort_keys=True, default=repr)
        if (known := self._finders.get(key)) is None:
            if len(self._finders) > _MANY_OPTIONS:
                self._finders.clear()
            known = self._finders[key] = SpanFinder(
                Headers(self._made_up(kwargs), self._kinds),
                self.ends,
                learned=self.learned and not documents,
                tagged=self.renderer.has_generation,
                reasoning=self._train_reasoning,
            )
        return known

    def _made_up(self, kwargs: dict[str, Any]) -> Callable[[bool], Render]:
        """Renders made-up messages, with a made-up tool or without."""

        def with_tools(tools: bool) -> Render:
            given = Conversation(messages=[], tools=[_TOOL] if tools else None, kwargs=kwargs)
            return lambda messages, **options: attribute(self.renderer.render(self.context(messages, given, **options)))

        return with_tools

    def _engine(self, kinds: Sequence[int]) -> Callable[[dict[str, Any]], str]:
        """Which engine renders messages of these kinds: minijinja where it renders made-up ones as jinja2 does."""
        if not self.renderer.is_fast:
            return self.renderer.render
        agreed = self._agreed
        for kind in kinds:
            if kind not in agreed:
                agreed[kind] = self._agree(self._kinds[kind])
            if not agreed[kind]:
                return self.renderer.render_reference
        return self.renderer.render

    def _agree(self, kind: Kind) -> bool:
        given = Conversation(messages=[], tools=[_TOOL])
        for lead in _LEADS:
            context = self.context(MadeUp([*lead, kind]).messages, given)
            if outcome(self.renderer.render, context) != outcome(self.renderer.render_reference, context):
                return False
        return True

    def _compare(self, context: dict[str, Any]) -> None:
        expected, made = (outcome(engine, context) for engine in (self.renderer.render_reference, self.renderer.render))
        if expected != made:
            raise EnginesDiffer(
                "minijinja and jinja2 render this conversation in different ways, which made-up ones did not show; "
                "pass template_engine='jinja2', and please report the chat template"
            )

    def forgets(self) -> bool:
        """Whether reasoning of earlier turns is not printed, while that of the last one is."""
        fields = (("content", "text"), *((name, "text") for name in REASONING))
        inline = (("content", "thought"),)
        for answer in (fields, inline):
            made = MadeUp([_USER, ("assistant", answer), _USER, ("assistant", answer)])
            text = outcome(self.renderer.render, self.context(made.messages)) or ""
            if made.words[1][0] not in text and made.words[3][0] in text:
                return True
        return False

    def context(
        self, messages: list[Message], conversation: Conversation | None = None, **options: Any
    ) -> dict[str, Any]:
        given = conversation or Conversation(messages=[])
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
    return lambda messages, **options: attribute(render({**context, "messages": list(messages), **options}))
