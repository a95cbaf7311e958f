"""Render conversations with the variables that a chat template is given: a record's, made-up ones, and parts of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import orjson

from penstock.errors import TemplateError
from penstock.templates.chat.headers import Render
from penstock.templates.chat.instrument import MARK, Attribution, attribute
from penstock.templates.chat.kinds import TOOL, Kinds, MadeUp, text_kind, with_reasoning
from penstock.templates.conversation import Conversation, Message
from penstock.templates.meter import MADE_UP
from penstock.templates.render import Renderer, outcome

_STRICT = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_CALLED = "penstockcalled"  # the name of a made-up call


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages and their rendering."""

    messages: Sequence[Message]
    kinds: Sequence[int]  # numbers of their kinds
    tools: bool
    whole: Attribution
    render: Render  # of the first messages of this conversation

    def with_made_up(self, number: int) -> tuple[str, Attribution]:
        """A made-up word, and the rendering with that in place of all that one message says."""
        made = MadeUp([text_kind(self.messages[number].get("role"))])
        messages = [*self.messages[:number], *made.messages, *self.messages[number + 1 :]]
        return made.words[0][0], self.render(messages)


@dataclass(eq=False)
class Request:
    """A conversation whose rendering and mask are asked for."""

    conversation: Conversation
    trained: list[bool]  # which of its messages are
    is_verified: bool  # compare the rendering with another one
    kinds: tuple[int, ...]
    strings: list[Any]  # texts and objects of the messages
    is_simple: bool  # the messages are nothing but roles and text
    is_usual: bool  # nothing next to messages and tools decides what is printed
    context: dict[str, Any]  # what the template is given
    renderer: Renderer

    @cached_property
    def chat(self) -> Chat:
        """The conversation rendered with marks."""
        whole = attribute(self.renderer.render(self.context))
        return Chat(
            self.context["messages"], self.kinds, bool(self.conversation.tools), whole, self._first
        )

    def _first(self, messages: Sequence[Message], **options: Any) -> Attribution:
        """Render the first messages of the conversation with its own options."""
        context = {**self.context, "messages": list(messages), **options}
        return attribute(self.renderer.render(context))


class Chats:
    """Renders the conversations of one chat template."""

    def __init__(self, renderer: Renderer, kinds: Kinds, variables: dict[str, Any]) -> None:
        """variables: those that every conversation has."""
        self.renderer = renderer
        self.kinds = kinds
        self._variables = variables

    def request(
        self,
        conversation: Conversation,
        trained: list[bool],
        *,
        verify: bool = False,
        generation_prompt: bool = False,
    ) -> Request:
        """Ask for a rendering and its mask.  generation_prompt: print it at the end, for train_on="all"."""
        messages = with_reasoning(conversation.messages)
        kinds, strings = self.kinds.read(messages)
        is_simple = all(map(self.kinds.is_text, set(kinds)))
        is_bare = not conversation.documents and not conversation.kwargs
        has_only_strings = is_simple and is_bare and not conversation.tools
        given = self.context(messages, conversation, add_generation_prompt=generation_prompt)
        context = _checked(given, strings if has_only_strings else None)
        return Request(
            conversation=conversation,
            trained=trained,
            is_verified=verify,
            kinds=kinds,
            strings=strings,
            is_simple=is_simple,
            is_usual=is_bare and context is given,
            context=context,
            renderer=self.renderer,
        )

    def context(
        self, messages: Sequence[Message], conversation: Conversation, **options: Any
    ) -> dict[str, Any]:
        """What the template is given."""
        return {
            **self._variables,
            **conversation.kwargs,
            "messages": messages,
            "tools": conversation.tools,
            "documents": conversation.documents,
            "add_generation_prompt": False,
            **options,
        }

    def text(self, conversation: Conversation) -> str | None:
        """A conversation as text; None where the template refuses it."""
        context = plain(self.context(with_reasoning(conversation.messages), conversation))
        rendered = outcome(self.renderer.render, context)
        return None if rendered is None else attribute(rendered).text

    def made_up(self, tools: bool, kwargs: dict[str, Any] | None = None) -> Render:
        """Renders made-up messages, with a made-up tool or without."""
        beside = Conversation(messages=[], tools=[TOOL] if tools else None, kwargs=kwargs or {})

        def render(messages: Sequence[Message], **options: Any) -> Attribution:
            context = self.context(messages, beside, **options)
            return attribute(self.renderer.render(context, MADE_UP))

        return render

    def needs_null(self) -> bool:
        """Whether calls are printed next to a content of null and not next to none at all, as by DeepSeek-V3's template."""
        for arguments in ({"key": "value"}, '{"key": "value"}'):
            call = {
                "id": "a23456789",
                "type": "function",
                "function": {"name": _CALLED, "arguments": arguments},
            }
            answer: Message = {"role": "assistant", "tool_calls": [call]}
            if self._prints_call({**answer, "content": None}) and not self._prints_call(answer):
                return True
        return False

    def _prints_call(self, answer: Message) -> bool:
        question = {"role": "user", "content": "question"}
        context = self.context([question, answer], Conversation(messages=[], tools=[TOOL]))
        render: Callable[[dict[str, Any]], str] = partial(self.renderer.render, limits=MADE_UP)
        return _CALLED in (outcome(render, context) or "")


def _checked(context: dict[str, Any], strings: list[str] | None) -> dict[str, Any]:
    """The context of plain values.  `strings`: all that it holds, if that is text only."""
    if strings is not None:
        has_mark = MARK in "".join(strings)
    else:
        try:
            has_mark = MARK.encode() in orjson.dumps(context, option=_STRICT)
        except TypeError:
            # something else than JSON, a number of more than 64 bits, or half of a surrogate pair
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
