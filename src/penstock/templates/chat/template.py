"""Turn conversations into tokens and loss masks: rendered once, whole, by their own chat template; encoded once.

The rendering itself says which message printed which characters (instrument.py, attribution.py); trained_spans.py finds what of them is
trained.  A record's tokens and mask depend on that record, the tokenizer and the options alone.  A conversation whose mask cannot be
proven is refused by name, never guessed.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.templates.builtin import CHATML, find_templates
from penstock.templates.chat.annotate import Annotated, Annotator, EnginesDiffer
from penstock.templates.chat.attribution import attribute
from penstock.templates.chat.headers import Unproven
from penstock.templates.chat.special import SpecialFinder
from penstock.templates.masks import Rendering, byte_spans, token_mask
from penstock.templates.messages import Conversation, Message, train_flag
from penstock.templates.probes import probes
from penstock.templates.render import Renderer
from penstock.templates.roles import check_roles
from penstock.templates.samples import POLICIES, SPECIAL, Tokens, check_choice, check_template_kwargs, join
from penstock.templates.sandbox import LimitExceeded
from penstock.templates.token_bytes import Encoded
from penstock.templates.tokenizers import Tokenizer
from penstock.templates.trial import open_untrusted
from penstock.templates.unrendered import Unrendered
from penstock.types import PARTIAL, UNENDED, UNRENDERED, Record, Samples

_log = logging.getLogger("penstock")

_FIRST_ROWS = 16  # of every shard: rendered by both engines, which must agree
_BATCH = 512
_OPTIONS = (
    *("train_on", "train_reasoning", "template_kwargs", "verify", "on_refused", "on_nothing", "on_unrendered"),
    *("special_in_text", "template_engine"),
)


class _NotPrinted(TemplateError):
    """A record has fields that the chat template does not print."""


_REASONS = {Unproven: "mask_unverified", _NotPrinted: "unrendered"}


@dataclass(slots=True)
class _Run:
    """The records handed to one encoder.  Nothing here changes their tokens."""

    on_refused: str
    on_unrendered: str = "warn"
    num_records: int = 0  # that were rendered
    dropped: dict[int, str] = field(default_factory=dict)

    def refused(self, number: int, error: TemplateError) -> None:
        stops = self.on_unrendered == "stop" if isinstance(error, _NotPrinted) else self.on_refused == "stop"
        final = isinstance(error, LimitExceeded | EnginesDiffer)
        if stops or final:
            told = final or isinstance(error, _NotPrinted)  # the message says what to do
            hint = "" if told else "; fix the record, or set on_refused to 'skip' (skips are counted)"
            raise TemplateError(f"{error}{hint}", record=number) from error
        self.dropped[number] = next(
            (why for kind, why in _REASONS.items() if isinstance(error, kind)), "template_refused"
        )


class ChatTemplate:
    """Conversations through a chat template.

    train_on: "assistant", "last" (the last assistant turn), "completion" (what follows the prompt), "all", or a list of roles.
    verify: "first" rows of every shard, or "all".  on_refused: "stop", or "skip" and count.
    on_unrendered: records with fields that the chat template does not print: "warn" and count, "stop", or "skip" and count.
    special_in_text: what a special token in a message becomes: "token", "text", or "error" (a refusal).
    template_engine: "auto" renders with minijinja where it agrees with jinja2; "jinja2" always with that.
    """

    version = 3  # raise when the same record gives other tokens
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
        on_unrendered: str = "warn",
        special_in_text: str = "token",
        template_engine: str = "auto",
    ) -> None:
        check_choice("verify", verify, ("first", "all"))
        check_choice("on_refused", on_refused, ("stop", "skip"))
        check_choice("on_nothing", on_nothing, POLICIES)
        check_choice("on_unrendered", on_unrendered, ("warn", "stop", "skip"))
        check_choice("special_in_text", special_in_text, SPECIAL)
        check_choice("template_engine", template_engine, ("auto", "jinja2"))
        if isinstance(train_on, str):
            check_choice("train_on", train_on, ("assistant", "last", "completion", "all"))
        else:
            train_on = check_roles(train_on, getattr(reader, "names", {}))
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.reader = reader
        self.train_on = train_on
        self.train_reasoning = train_reasoning
        self.template_kwargs = check_template_kwargs(template_kwargs)
        self.verify = verify
        self.on_refused = on_refused
        self.on_nothing = on_nothing
        self.on_unrendered = on_unrendered
        self.special_in_text = special_in_text
        self.template_engine = template_engine
        text, for_tools = find_templates(tokenizer, chat_template)
        self.renderer = self._open_renderer(text, today)
        self._annotator = self._open_annotator()
        self.ends = self._annotator.ends
        self._special_words = SpecialFinder(tokenizer.special_added)
        self._special = {tokenizer.added_tokens[token]: token for token in tokenizer.special_added}
        self._unrendered = Unrendered(self._annotator.text)
        self._for_tools: ChatTemplate | None = None  # renders conversations with tools
        if for_tools is not None:
            options = {name: getattr(self, name) for name in _OPTIONS}
            self._for_tools = ChatTemplate(tokenizer, reader=reader, chat_template=for_tools, today=today, **options)
        if remark := self.how_turns_end():
            _log.warning("%s", remark)

    def _open_renderer(self, text: str, today: str) -> Renderer:
        given = {**self.tokenizer.special_tokens, **self.template_kwargs}
        contexts = [
            {
                **given,
                "messages": probe.messages,
                "tools": probe.tools,
                "documents": None,
                "add_generation_prompt": prompt,
            }
            for probe in probes()
            for prompt in (False, True)
        ]
        if text == CHATML:
            renderer = Renderer(text, today=today)
            renderer.try_fast(contexts)
        else:
            renderer = open_untrusted(text, today=today, contexts=contexts, cache=self.tokenizer.cache)
        return renderer if self.template_engine == "auto" else Renderer(text, today=today)

    def _open_annotator(self) -> Annotator:
        return Annotator(
            self.renderer,
            self.tokenizer,
            self.template_kwargs,
            train_all=self.train_on == "all",
            train_reasoning=self.train_reasoning,
            verify_all=self.verify == "all",
        )

    def with_engine(self, *, fast: bool) -> "ChatTemplate":
        """The same template; `fast` decides whether fastokens may encode.  `prepare` decides by the size of the data."""
        made = copy.copy(self)
        made.tokenizer = self.tokenizer.with_engine(fast=fast)
        made._for_tools = None if self._for_tools is None else self._for_tools.with_engine(fast=fast)
        return made

    def how_turns_end(self) -> str | None:
        """What is wrong with how turns end, if anything."""
        if self.train_on == "all" or self.renderer.has_generation:
            return None
        end = self.ends.usual
        if not end:
            if self.ends.stops:
                return None  # the next turn's first token may end it; what does not end is counted
            return "no token was found that ends a turn in this chat template: a model would not learn to stop"
        ids, _ = self.tokenizer.encode([end])
        if any(end.endswith(token) for token in self.ends.added):
            return None
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
            "on_unrendered": self.on_unrendered,
            "special_in_text": self.special_in_text,
            "special_tokens": self.tokenizer.special_tokens,
            "stop_tokens": sorted(self.tokenizer.stop_tokens),
            "tokenizer": self.tokenizer.identity(),
            **({} if self._for_tools is None else {"for_tools": self._for_tools.identity()}),
        }

    def describe(self) -> str:
        """How this template renders, and how it finds what is trained."""
        header = self._annotator.main_header
        how = "the template's generation tags" if self.renderer.has_generation else "what each message printed"
        learned = (
            ""
            if self._annotator.learned
            else "; the generation prompt depends on what messages say, so headers are found anew for each"
        )
        lines = (
            f"rendered by {self.renderer.engine} ({self.renderer.reason})",
            f"trained characters found by {how}; header {header!r}, end of turn {self.ends.usual or 'not found'!r}{learned}",
            "earlier turns lose their reasoning, which is not trained then; fan_out=True makes a sample of each turn"
            if self._annotator.forgets()
            else "",
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
        return partial(self._encode, run=_Run(self.on_refused, self.on_unrendered))

    def _encode(self, records: Iterable[Record], run: _Run) -> Samples:
        run.dropped = {}
        parts: list[Tokens] = []
        batch: list[Rendering] = []
        first = 0
        for number, record in enumerate(records):
            try:
                made = self._rendering(record, number, run)
                if made.unrendered and self.on_unrendered != "warn":
                    raise _NotPrinted(_not_printed(made.unrendered))
                batch.append(made)
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
        notes: dict[str, dict[int, int]] = {}
        for number, made in enumerate(batch):
            for name, characters in made.unrendered.items():
                notes.setdefault(f"{UNRENDERED}{name}", {})[number] = characters
            for name, turns in ((UNENDED, made.num_unended), (PARTIAL, made.num_partial)):
                if turns:
                    notes.setdefault(name, {})[number] = turns
        return Tokens(
            ids=encoded.ids,
            mask=token_mask(encoded, batch, self._special),
            lengths=np.diff(encoded.offsets),
            dropped=dropped,
            notes=notes,
            assistant_characters=sum(made.assistant_characters for made in batch),
        )

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

    # One conversation → text and trained spans

    def _rendering(self, record: Record, number: int, run: _Run) -> Rendering:
        conversation = self.reader(record, number)
        chosen = self if self._for_tools is None or not conversation.tools else self._for_tools
        return chosen._rendered(record, conversation, run)

    def _rendered(self, record: Record, conversation: Conversation, run: _Run) -> Rendering:
        trained = self._trained(conversation)
        if self.turn_key in record:
            conversation, trained = _only_turn(conversation, trained, record[self.turn_key])
        if not conversation.messages:
            return Rendering("", [])
        verify = self.verify == "all" or run.num_records < _FIRST_ROWS
        found = self._annotator.annotate(conversation, trained, verify=verify)
        made = self._with_special(found)
        if (whole := found.whole) is not None:
            made.unrendered, made.assistant_characters = self._unrendered.find(
                conversation, made.text, lambda number: whole.text if (own := whole.printed_by(number)) is None else own
            )
        return made

    def _with_special(self, found: Annotated) -> Rendering:
        if self.special_in_text == "error" and (token := self._special_words.first_in(found.context)) is not None:
            raise TemplateError(
                f"special token {token!r} stands in a message; choose special_in_text='token' to let it be one, "
                f"or 'text' to encode its letters"
            )
        if self.special_in_text == "text":
            plain = self._special_words.places(
                found.context, found.made.text, lambda changed: attribute(found.render(changed)).text
            )
            return replace(found.made, plain=plain)
        return found.made

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

    def __repr__(self) -> str:
        return f"ChatTemplate({self.renderer.engine}, train_on={self.train_on!r}, {self.tokenizer!r})"


def _only_turn(conversation: Conversation, trained: list[bool], turn: int) -> tuple[Conversation, list[bool]]:
    """The conversation up to one of its trained messages, which alone is trained."""
    places = [place for place, yes in enumerate(trained) if yes]
    if turn >= len(places):
        return conversation, [False] * len(trained)
    messages = conversation.messages[: places[turn] + 1]
    return replace(conversation, messages=messages), [False] * places[turn] + [True]


def _not_printed(fields: dict[str, int]) -> str:
    listed = ", ".join(f"{name} ({characters:,} characters)" for name, characters in fields.items())
    return (
        f"the chat template does not print {listed}; choose a chat_template that does, remove what it does not print, or pass "
        f"on_unrendered='warn' (count such records) or 'skip' (leave them out and count them)"
    )


def _flag(message: Message) -> bool | None:
    """What a message says of its own loss; one with just a role and content says nothing."""
    return None if len(message) == 2 else train_flag(message)
