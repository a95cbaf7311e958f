"""Which tokens and which loss mask does a conversation get?  Rendered once, whole, by its own chat template; encoded once.

What is trained is found on that one rendering, by dye (dye.py, turns.py) or by the template's `{% generation %}` tags, and
verified: the undyed text must equal the plain rendering.  A conversation is rendered plainly too, by both engines, if it is among the
first ones or holds something that none before it held; by one engine, if the template might see the dye (reads.py).
A conversation whose marks cannot be verified is an event, never a guess.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.templates.builtin import CHATML, find_templates
from penstock.templates.colours import Atom, aliased, atoms, is_plain, plain
from penstock.templates.dye import Unverified
from penstock.templates.ink import Ink, Render
from penstock.templates.masks import Rendering, byte_spans, token_mask
from penstock.templates.messages import Conversation, Message, train_flag
from penstock.templates.moulds import Mould, learn_mould
from penstock.templates.probes import probes
from penstock.templates.render import Renderer, outcome
from penstock.templates.roles import check_roles
from penstock.templates.samples import POLICIES, SPECIAL, Tokens, check_choice, join
from penstock.templates.sandbox import LimitExceeded
from penstock.templates.token_bytes import Encoded
from penstock.templates.tokenizers import Tokenizer
from penstock.templates.trial import open_untrusted
from penstock.types import Record, Samples

_log = logging.getLogger("penstock")

_FIRST_ROWS = 16  # of every shard: rendered by both engines, dyed and plain
_ODD_SPACE = "\x1c\x1d\x1e\x1f"  # white space to Python, not to minijinja
_BATCH = 512

_MANY_MOULDS = 4096  # beyond these, orders of roles are too rare to be worth one
_MANY_MISFITS = 50  # after so many no mould is tried: a second rendering for nothing

_OPTIONS = (
    *("train_on", "train_reasoning", "template_kwargs", "verify", "on_refused", "on_nothing", "special_in_text"),
)

Shape = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """What conversations of one shape have in common."""

    trained: list[bool]  # for each message
    atoms: set[Atom]
    mould: Mould | None = None


@dataclass(slots=True)
class _Run:
    """What one encoder has met so far.  Tokens depend on the records handed to it, and on nothing before them."""

    on_refused: str
    num_records: int = 0  # that it has rendered
    seen: set[Atom] = field(default_factory=set)  # in conversations that were verified
    odd: set[Atom] = field(default_factory=set)  # in one that minijinja rendered in another way
    dropped: dict[int, str] = field(default_factory=dict)
    reference: bool = False  # whether minijinja was caught at it with nothing odd in sight
    shapes: dict[Shape, "_Known"] = field(default_factory=dict)
    misfits: int = 0  # conversations that were not in their mould, less those that were
    for_tools: "_Run | None" = None  # of the template for conversations with tools

    def refused(self, number: int, error: TemplateError) -> None:
        if self.on_refused == "stop" or isinstance(error, LimitExceeded):
            limit = isinstance(error, LimitExceeded)
            hint = "" if limit else "; fix the record, or pass on_refused='skip' (skips are counted)"
            raise TemplateError(f"{error}{hint}", record=number) from error
        self.dropped[number] = "mask_unverified" if isinstance(error, Unverified) else "template_refused"


class ChatTemplate:
    """Conversations through a chat template.

    train_on: "assistant", "last" (the last assistant turn), "completion" (what follows the prompt), "all", or a list of roles.
    verify: "first" rows of every shard, or "all".  on_refused: "stop", or "skip" and count.
    special_in_text: what a special token in a message becomes: "token", "text", or "error" (a refusal).
    """

    version = 2  # raise when the same record gives other tokens
    turn_key = "penstock_turn"  # under which fan-out says which of a record's turns is meant

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        reader: Any,
        chat_template: str | None = None,
        train_on: str | Sequence[str] = "assistant",
        train_reasoning: bool = True,
        template_kwargs: dict[str, Any] | None = None,
        today: str = "2025-01-01",
        verify: str = "first",
        on_refused: str = "stop",
        on_nothing: str = "drop",
        special_in_text: str = "token",
    ) -> None:
        check_choice("verify", verify, ("first", "all"))
        check_choice("on_refused", on_refused, ("stop", "skip"))
        check_choice("on_nothing", on_nothing, POLICIES)
        check_choice("special_in_text", special_in_text, SPECIAL)
        if isinstance(train_on, str):
            check_choice("train_on", train_on, ("assistant", "last", "completion", "all"))
        else:
            train_on = check_roles(train_on, getattr(reader, "names", {}))
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.reader = reader
        self.train_on = train_on
        self.train_reasoning = train_reasoning
        self.template_kwargs = dict(template_kwargs or {})
        self.verify = verify
        self.on_refused = on_refused
        self.on_nothing = on_nothing
        self.special_in_text = special_in_text
        text, for_tools = find_templates(tokenizer, chat_template)
        self.renderer = self._open_renderer(text, today)
        self.ink = Ink(self.renderer, self._context, tokenizer.special_added, reasoning=train_reasoning)
        self._special = {tokenizer.added_tokens[token]: token for token in tokenizer.special_added}
        self._moulds: dict[Shape, Mould | None] = {}
        self._for_tools: ChatTemplate | None = None  # renders conversations with tools
        if for_tools is not None:
            options = {name: getattr(self, name) for name in _OPTIONS}
            self._for_tools = ChatTemplate(tokenizer, reader=reader, chat_template=for_tools, today=today, **options)
        if remark := self.how_turns_end():
            _log.warning("%s", remark)

    def _open_renderer(self, text: str, today: str) -> Renderer:
        contexts = [
            self._context(probe.messages, probe, add_generation_prompt=prompt)
            for probe in probes()
            for prompt in (False, True)
        ]
        if text != CHATML:
            return open_untrusted(text, today=today, contexts=contexts, cache=None)
        renderer = Renderer(text, today=today)
        renderer.try_fast(contexts)
        return renderer

    def how_turns_end(self) -> str | None:
        """What is wrong with it, if anything."""
        if self.train_on == "all":
            return None
        if not self.ink.turns.ends:
            none = "no token was found that ends a turn in this chat template: a model would not learn to stop"
            return None if self.renderer.has_generation else none
        end = self.ink.turns.ends[0]
        ids, _ = self.tokenizer.encode([end])
        advice = "add it to the tokenizer, or pass the chat_template that goes with it"
        return f"the end of a turn, {end!r}, is {len(ids)} tokens here, not one; {advice}" if len(ids) > 1 else None

    def identity(self) -> dict[str, Any]:
        return {
            "template": "chat",
            "version": self.version,
            "chat_template": self.renderer.text,
            "engine": self.renderer.engine,
            "today": self.renderer.today,
            "reader": self.reader.identity(),
            "train_on": self.train_on,
            "train_reasoning": self.train_reasoning,
            "template_kwargs": self.template_kwargs,
            "verify": self.verify,  # "all" may find another rendering where "first" did not look
            "on_refused": self.on_refused,
            "special_in_text": self.special_in_text,
            "special_tokens": self.tokenizer.special_tokens,
            "tokenizer": self.tokenizer.identity(),
            **({} if self._for_tools is None else {"for_tools": self._for_tools.identity()}),
        }

    def describe(self) -> str:
        """How this template renders, how it finds what is trained, and what it does to earlier turns."""
        turns, reason = self.ink.turns, self.ink.reads.reason
        how = "generation tags" if self.renderer.has_generation else "mould, stitches or dye"
        twice = f"every conversation is rendered twice, as the template might see the dye ({reason})" if reason else ""
        forgets = (
            "earlier turns lose their reasoning, which is not trained then; fan_out=True makes a sample of each turn"
        )
        lines = (
            f"rendered by {self.renderer.engine} ({self.renderer.reason})",
            f"trained characters found by {how}; header {turns.header!r}, "
            f"end of turn {', '.join(map(repr, turns.ends)) or 'not found'}",
            twice,
            forgets if self.ink.forgets else "",
            f"conversations with tools: {self._for_tools.describe()}" if self._for_tools is not None else "",
        )
        return "\n".join(filter(None, lines))

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        return self.tokenizer.decode(input_ids)

    # Records → samples

    def encode(self, records: Iterable[Record]) -> Samples:
        return self.encoder()(records)

    def encoder(self) -> Callable[[Iterable[Record]], Samples]:
        """`encode` for the records of a shard in several parts: what was verified in one counts in the next."""
        return partial(self._encode, run=_Run(self.on_refused))

    def _encode(self, records: Iterable[Record], run: _Run) -> Samples:
        run.dropped = {}
        parts: list[Tokens] = []
        batch: list[Rendering] = []
        first = 0
        for number, record in enumerate(records):
            try:
                batch.append(self._rendering(record, number, run))
            except TemplateError as error:
                run.refused(number, error)
                batch.append(Rendering("", []))
            run.num_records += 1
            if len(batch) == _BATCH:
                parts.append(self._tokens(batch, first, run))
                batch, first = [], number + 1
        return join([*parts, self._tokens(batch, first, run)], on_nothing=self.on_nothing)

    def rendering(self, record: Record) -> Rendering:
        """One record as text with its trained ranges, verified: what `encode` makes tokens of."""
        return self._rendering(record, 0, _Run("stop"))

    def num_turns(self, record: Record) -> int:
        """How many messages of a record are trained: with fan-out each becomes a sample.  One that cannot be read counts once."""
        try:
            return sum(self._trained(self.reader(record, 0)))
        except TemplateError:
            return 1  # the error comes where it can say which record it is

    def _tokens(self, batch: list[Rendering], first: int, run: _Run) -> Tokens:
        while (encoded := self._encoded(batch, first, run)) is None:
            pass  # each turn refuses one record more
        dropped = {number - first: why for number, why in run.dropped.items() if number >= first}
        lengths = np.diff(encoded.offsets)
        return Tokens(ids=encoded.ids, mask=token_mask(encoded, batch, self._special), lengths=lengths, dropped=dropped)

    def _encoded(self, batch: list[Rendering], first: int, run: _Run) -> Encoded | None:
        """None where a record had to be refused, and left out of the batch."""
        texts = [rendering.text for rendering in batch]
        held = any(rendering.plain for rendering in batch)
        ranges = [byte_spans(rendering.text, rendering.plain) for rendering in batch] if held else None
        try:
            return self.tokenizer.encode_spans(texts, plain=ranges)
        except TemplateError as error:
            if error.record is None:
                raise
            run.refused(first + error.record, TemplateError(str(error)))
            batch[error.record] = Rendering("", [])
            return None

    # One conversation → text and trained ranges

    def _rendering(self, record: Record, number: int, run: _Run) -> Rendering:
        conversation = self.reader(record, number)
        if self._for_tools is None or not conversation.tools:
            return self._rendered(record, conversation, run)
        run.for_tools = run.for_tools or _Run(self.on_refused)
        made = self._for_tools._rendered(record, conversation, run.for_tools)
        run.for_tools.num_records += 1
        return made

    def _rendered(self, record: Record, conversation: Conversation, run: _Run) -> Rendering:
        if self.turn_key in record:
            conversation, trained = _only_turn(conversation, self._trained(conversation), record[self.turn_key])
            known = _Known(trained, self._atoms(conversation))
        elif (shape := _shape(conversation)) is None:
            known = _Known(self._trained(conversation), self._atoms(conversation))
        elif (met := run.shapes.get(shape)) is not None:
            known = met
        else:
            known = run.shapes[shape] = self._known(conversation, shape)
        if not conversation.messages:
            return Rendering("", [])
        context = self._context(aliased(conversation.messages), conversation)
        if not is_plain(known.atoms):
            context = plain(context)
        fresh = known.atoms - run.seen
        check = self.verify == "all" or run.num_records < _FIRST_ROWS or bool(fresh)
        render = self._render(context, run, known.atoms, fresh) if check else self._known_render(run, known.atoms)
        made = self._moulded(known, context, render, run)
        if made is None:
            made = self._trained_text(known.trained, context, render, check=check)
        if not check and any(space in made.text for space in _ODD_SPACE):
            made = self._trained_text(known.trained, context, self.renderer.render_reference, check=True)
        run.seen |= fresh  # behind what may be refused: it would not be verified the next time
        return self._with_special(made, context, render)

    def _known(self, conversation: Conversation, shape: Shape) -> _Known:
        """Of a conversation that is nothing but words."""
        trained = self._trained(conversation)
        if shape not in self._moulds and len(self._moulds) < _MANY_MOULDS:
            self._moulds[shape] = self._mould(conversation, trained)
        return _Known(trained, self._atoms(conversation), self._moulds.get(shape))

    def _mould(self, conversation: Conversation, trained: list[bool]) -> Mould | None:
        if self.train_on == "all" or not self.train_reasoning or self.renderer.has_generation or not any(trained):
            return None  # nothing to find, or tags or the end of a thought to look for

        def rendering(messages: list[Message], trained: list[bool]) -> Rendering:
            return self.ink.by_dye(self.renderer.render, self._context(messages), trained, check=True)

        return learn_mould(rendering, [message["role"] for message in conversation.messages], trained)

    def _moulded(self, known: _Known, context: dict[str, Any], render: Render, run: _Run) -> Rendering | None:
        if known.mould is None or run.misfits > _MANY_MISFITS:
            return None
        text = render(context)
        words = [message["content"] for message in context["messages"]]
        spans = known.mould.spans(text, words)
        run.misfits += -1 if spans is not None else 1
        return None if spans is None else Rendering(text, spans)

    def _atoms(self, conversation: Conversation) -> set[Atom]:
        others = {"tools": conversation.tools, "documents": conversation.documents, "kwargs": conversation.kwargs}
        return atoms(aliased(conversation.messages), others, self.ink.reads.keys)

    def _known_render(self, run: _Run, found: set[Atom]) -> Render:
        if run.reference or (run.odd and found & run.odd):
            return self.renderer.render_reference
        return self.renderer.render

    def _render(self, context: dict[str, Any], run: _Run, found: set[Atom], fresh: set[Atom]) -> Render:
        """With which engine: jinja2 where minijinja says something else, now and whenever the same things come up."""
        render = self._known_render(run, found)
        if self.renderer.is_fast and render == self.renderer.render:
            expected, made = (outcome(engine, context) for engine in (self.renderer.render_reference, render))
            if expected != made:
                _log.info("minijinja renders a conversation in another way than jinja2, which renders its like now")
                run.odd |= fresh
                run.reference = run.reference or not fresh
                return self.renderer.render_reference
        return render

    def _with_special(self, made: Rendering, context: dict[str, Any], render: Render) -> Rendering:
        if self.special_in_text == "error" and (token := self.ink.special_in(context)) is not None:
            raise TemplateError(
                f"special token {token!r} stands in a message; choose special_in_text='token' to let it be one, "
                f"or 'text' to encode its letters"
            )
        if self.special_in_text == "text" and (words := self.ink.words(render, context, made.text)):
            return replace(made, plain=words)
        return made

    def _trained_text(self, trained: list[bool], context: dict[str, Any], render: Render, *, check: bool) -> Rendering:
        if self.train_on == "all":
            text = self.ink.plain(render, context)
            return Rendering(text, [(0, len(text))])
        check = check or self.ink.reads.reason is not None
        plainly = self.renderer.has_generation and self.train_reasoning
        if plainly and all(
            yes == (m.get("role") == "assistant") for m, yes in zip(context["messages"], trained, strict=True)
        ):
            return self.ink.by_tags(render, context, trained, check=check)
        return self.ink.by_dye(render, context, trained, check=check)

    def _trained(self, conversation: Conversation) -> list[bool]:
        """Which messages are trained; a message's own word counts most."""
        messages = conversation.messages
        roles = self.train_on if isinstance(self.train_on, list) else ["assistant"]
        chosen = [message.get("role") in roles for message in messages]
        if self.train_on == "last":
            last = max((place for place, yes in enumerate(chosen) if yes), default=-1)
            chosen = [place == last for place in range(len(messages))]
        if self.train_on == "completion":
            start = conversation.prompt_length
            if start is None:
                raise TemplateError(
                    "train_on='completion' needs records with a prompt and a completion; choose 'assistant' or 'last'"
                )
            chosen = [yes and place >= start for place, yes in enumerate(chosen)]
        for place, message in enumerate(messages):
            if (flag := _flag(message)) is not None:
                chosen[place] = flag
        return chosen

    def _context(
        self, messages: list[Message], conversation: Conversation | None = None, **options: Any
    ) -> dict[str, Any]:
        given = conversation or Conversation(messages=[])
        return {
            **self.tokenizer.special_tokens,
            **self.template_kwargs,
            **given.kwargs,
            "messages": messages,
            "tools": given.tools,
            "documents": given.documents,
            "add_generation_prompt": False,
            **options,
        }

    def __repr__(self) -> str:
        return f"ChatTemplate({self.renderer.engine}, train_on={self.train_on!r}, {self.tokenizer!r})"


def _only_turn(conversation: Conversation, trained: list[bool], turn: int) -> tuple[Conversation, list[bool]]:
    """The conversation up to one of its trained messages, which alone is trained."""
    places = [place for place, yes in enumerate(trained) if yes]
    if turn >= len(places):
        return conversation, [False] * len(trained)
    messages = conversation.messages[: places[turn] + 1]
    return replace(conversation, messages=messages), [False] * places[turn] + [True]


def _shape(conversation: Conversation) -> Shape | None:
    """Who speaks, where nothing but words is said: all that decides who is trained and what is checked."""
    if conversation.tools or conversation.documents or conversation.kwargs:
        return None
    messages = conversation.messages
    roles = [
        m["role"] for m in messages if len(m) == 2 and type(c := m.get("content")) is str and c and not c.isspace()
    ]
    return (conversation.prompt_length, *roles) if len(roles) == len(messages) else None


def _flag(message: Message) -> bool | None:
    """What a message says of its own loss; one with just a role and content says nothing."""
    return None if len(message) == 2 else train_flag(message)
