"""Turn conversations into tokens and loss masks: render the whole conversation once with its chat template, and encode it once.

The rendering itself says which message printed which characters (instrument.py); trained_spans.py finds what of them is trained.
A record's tokens and mask depend on that record, the tokenizer and the options alone.  A conversation whose mask cannot be proven is
refused by name, never guessed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from penstock.cache.memo import warn
from penstock.errors import MediaError, TemplateError
from penstock.reasons import UNANSWERED_REASON
from penstock.templates.chat.abilities import (
    Abilities,
    explain,
    find_abilities,
    missing_tokens,
    printed_by_itself,
)
from penstock.templates.chat.chats import Chats, Request
from penstock.templates.chat.choose import CHATML, chat_template_words, find_templates
from penstock.templates.chat.headers import learn_ends
from penstock.templates.chat.instrument import attribute
from penstock.templates.chat.kinds import ANSWER, USER, Kinds, MadeUp
from penstock.templates.chat.masks import TurnPart, open_masks
from penstock.templates.chat.special_tokens import SpecialFinder
from penstock.templates.chat.steps import ChatStep, Policy, open_steps, split_options
from penstock.templates.chat.unanswered import Unanswered, apply_policy, kind_of, trailing_roles
from penstock.templates.chat.unproven import RenderingsDiffer, Unproven
from penstock.templates.chat.unrendered import NotPrinted
from penstock.templates.conversation import Conversation, Reader, ReadsConversations
from penstock.templates.fields import check_roles
from penstock.templates.flags import refuse_unused_flags, train_weight
from penstock.templates.media_words import part_types
from penstock.templates.meter import LimitExceeded
from penstock.templates.render import Refused, Renderer
from penstock.templates.samples import (
    BatchTemplate,
    Rendering,
    byte_spans,
    moved,
    token_mask,
    token_weights,
)
from penstock.templates.sandbox import known_names
from penstock.templates.tokenizer.byte_offsets import Encoded
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import (
    MOST_DEPTH,
    PARTIAL,
    TRIMMED,
    UNANSWERED,
    UNENDED,
    UNRENDERED,
    WEIGHTS,
    Record,
    Samples,
    Values,
    nests_too_deep,
)

# The first records of each batch are rendered with and without marks, which must agree.  A shard has eight batches or more.
_VERIFIED = 2


_DEEP = f"the record nests too deep, expected at most {MOST_DEPTH} levels"


class ChatTemplate(BatchTemplate):
    """Conversations through a chat template, with the options of ChatOptions."""

    version = 6  # raise when the same record gives other tokens or another mask
    reads_flags = True
    turn_key = "penstock_turn"  # under which fan-out says which of a record's turns is meant

    def __init__(self, tokenizer: Tokenizer, *, reader: ReadsConversations, **options: Any) -> None:
        self.options, for_steps = split_options(options)
        self.on_nothing = self.options.on_nothing
        self.tokenizer: Tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.reader = reader
        train_on = self.options.train_on
        self.train_on = (
            train_on if isinstance(train_on, str) else check_roles(train_on, reader.names)
        )
        self._kwargs = self.options.chat_template_kwargs or {}
        text, for_tools = find_templates(tokenizer, self.options.chat_template)
        self.steps: Mapping[str, ChatStep] = open_steps(tokenizer, reader, for_steps)
        self.columns = (WEIGHTS,) if self.options.message_weights else ()
        for step in self.steps.values():
            self.columns += step.columns
        self.renderer = self._open_renderer(text)
        tree = self.renderer.tree()
        kinds = Kinds(known_names(tree))
        self._chats = Chats(self.renderer, kinds, {**tokenizer.special_tokens, **self._kwargs})
        self.ends = learn_ends(
            self._chats.made_up(False), tokenizer.added_tokens, tokenizer.stop_tokens
        )
        self._masks = open_masks(self._chats, self.ends, self.options, tree)
        self._needs_null = self._chats.needs_null()
        self._special_words = SpecialFinder(tokenizer.special_added)
        self._special = {tokenizer.added_tokens[token]: token for token in tokenizer.special_added}
        self._for_tools: ChatTemplate | None = None  # renders conversations with tools
        if for_tools is not None:
            self._for_tools = ChatTemplate(
                tokenizer, reader=reader, **{**options, "chat_template": for_tools}
            )
        self._check_tokens()
        if fault := self._end_fault():
            warn(fault)

    def _open_renderer(self, text: str) -> Renderer:
        values = {**self.tokenizer.special_tokens, **self._kwargs, "documents": None}
        _check_given(text, values)
        renderer = Renderer(text, today=self.options.today)
        has_parts = any(step.columns for step in self.steps.values())
        renderer.wraps_text = has_parts and renderer.needs_parts({**values, "tools": None})
        return renderer

    def with_engine(self, *, fast: bool) -> "ChatTemplate":
        template = super().with_engine(fast=fast)
        template._for_tools = (
            None if self._for_tools is None else self._for_tools.with_engine(fast=fast)
        )
        return template

    def _check_tokens(self) -> None:
        """Compare what the template prints with the tokenizer: `<|im_end|>` as seven ordinary tokens ends no turn.

        A model may have been trained with headers that are plain text (`<|user|>` of Zephyr): where the template is the tokenizer's own,
        only the end of a turn is checked.
        """
        is_own = self.renderer.text in self.tokenizer.chat_templates.values()
        printed = self.ends.usual if is_own else printed_by_itself(self._chats.made_up)
        missing = missing_tokens(printed, self.tokenizer)
        if not missing:
            return
        named = ", ".join(map(repr, missing[:5]))
        which = (
            "the built-in ChatML template" if self.renderer.text == CHATML else "the chat template"
        )
        fault = (
            f"{which} prints {named}, which {self.tokenizer.path or 'the tokenizer'} does not have as one token: a model would not learn "
            f"where a turn ends"
        )
        if self.options.on_missing_tokens == "stop":
            raise TemplateError(
                f"{fault}; set chat_template to one that fits the tokenizer, add the tokens to it, or pass on_missing_tokens='warn' to "
                f"train them as plain text"
            )
        warn(fault)

    @property
    def chat_template(self) -> str:
        return self.renderer.text

    def summary(self) -> str:
        turns = {
            "assistant": "assistant turns",
            "last": "the last assistant turn",
            "completion": "the answer",
        }
        if isinstance(self.train_on, str):
            loss = turns.get(self.train_on, "all tokens")
        else:
            loss = f"turns of {', '.join(self.train_on)}"
        shape = self.reader.shape if isinstance(self.reader, Reader) else "conversations"
        return f"{shape}, {chat_template_words(self.chat_template, self.tokenizer)}; loss on {loss}"

    @cached_property
    def _abilities(self) -> Abilities:
        return find_abilities(self._chats.made_up)

    @cached_property
    def _why_rendered(self) -> str | None:
        if self._masks.joined is None:
            return "its generation prompt depends on words of messages, or reasoning is not trained"
        made = MadeUp((USER, ANSWER, USER, ANSWER))
        request = self._chats.request(
            Conversation(messages=made.messages), [False, True, False, True]
        )
        return self._masks.joined.why_rendered(request)

    def why_rendered(self) -> str | None:
        """Why plain chats are rendered one by one; None where they are joined from pieces, which gives the same and is faster."""
        return self._why_rendered

    def how_turns_end(self) -> str | None:
        """What is wrong with how turns end, if anything."""
        return self._end_fault() or self._stop_fault()

    def _end_fault(self) -> str | None:
        """Say where no token, or more than one, ends a turn."""
        end = self.ends.usual
        if self.train_on == "all" or self.renderer.has_generation or (not end and self.ends.stops):
            return None  # the next turn's first token may end a turn; what does not end is counted
        if not end:
            return "no token was found that ends a turn in this chat template: a model would not learn to stop"
        ids, _ = self.tokenizer.encode([end])
        if len(ids) <= 1 or any(end.endswith(token) for token in self.ends.added):
            return None
        advice = "add it to the tokenizer, or pass a chat_template that fits the tokenizer"
        return f"the end of a turn, {end!r}, is {len(ids)} tokens here, not one; {advice}"

    def _stop_fault(self) -> str | None:
        """Say where the token that ends a turn is not one at which generation stops."""
        end = self.ends.usual
        stops = self.tokenizer.stop_tokens
        if not end or not stops or self.train_on == "all" or end.endswith(tuple(stops)):
            return None
        token = self.ends.token_ending(end)
        return (
            f"a turn ends with {token!r}, and generation stops at {', '.join(map(repr, sorted(stops)))}: set {token!r} as the eos_token of "
            f"the tokenizer or in generation_config.json, or the trained model goes on after its answer"
        )

    def identity(self) -> dict[str, Any]:
        options = self.options
        parts = {
            "template": "chat",
            "version": self.version,
            "chat_template": self.renderer.text,
            "engine": self.renderer.engine,
            "today": self.renderer.today,
            "reader": self.reader.identity(),
            "train_on": self.train_on,
            "train_reasoning": options.train_reasoning,
            "chat_template_kwargs": self._kwargs,
            "verify": options.verify,  # "all" may find another rendering where "first" did not look
            "on_refused": options.on_refused,
            "on_unrendered": options.on_unrendered,
            "on_unanswered": options.on_unanswered,
            "special_in_text": options.special_in_text,
            "special_tokens": self.tokenizer.special_tokens,
            "stop_tokens": sorted(self.tokenizer.stop_tokens),
            "tokenizer": self.tokenizer.identity(),
            **({} if self._for_tools is None else {"for_tools": self._for_tools.identity()}),
        }
        for name, step in self.steps.items():
            if identity := step.identity():
                parts[name] = {**identity, "text_as_parts": self.renderer.wraps_text}
        return parts

    # Records → samples

    def rendering(self, record: Record) -> Rendering:
        """Return one record as text with its verified trained ranges, before `encode` tokenizes it."""
        return self._rendering(record, 0)

    def outline(self, record: Record) -> list[TurnPart]:
        """The text of `rendering`, cut at the headers and ends of its turns."""
        conversation, trained, chosen, _ = self._read(record)
        if not conversation.messages:
            return []
        parts = chosen._masks.proven.outline(chosen._chats.request(conversation, trained))
        media = self.rendering(record).media if conversation.media else []
        cuts = [each.cut for each in media]
        return [
            replace(part, start=moved(part.start, cuts), stop=moved(part.stop, cuts))
            for part in parts
        ]

    def num_turns(self, record: Record) -> int:
        """How many messages of a record are trained: with fan-out each becomes a sample.  One that cannot be read counts once."""
        try:
            return sum(self._trained(self.read(record)))
        except TemplateError:
            return 1  # the error comes where it can say which record it is

    def _encode(self, records: Sequence[Record]) -> Samples:
        dropped: dict[int, str] = {}
        batch = [
            self._rendering_or_none(number, record, dropped)
            for number, record in enumerate(records)
        ]
        encoded, expansions = self._encoded(batch, dropped)
        columns: dict[str, Values] = {}
        if self.options.message_weights:
            columns[WEIGHTS.name] = Values(token_weights(encoded, batch, self._special))
        texts = [rendering.text for rendering in batch]
        spans = [rendering.spans for rendering in batch]
        samples = Samples(
            input_ids=encoded.ids,
            loss_mask=token_mask(encoded, texts, spans, self._special),
            offsets=encoded.offsets,
            columns=columns,
            dropped=dropped,
            notes=self._notes(batch),
            assistant_characters=sum(rendering.assistant_characters for rendering in batch),
        )
        for expand in expansions:
            samples = expand(samples)
        return samples

    def _rendering_or_none(self, number: int, record: Record, dropped: dict[int, str]) -> Rendering:
        """One record of a batch as text; an empty text, and an entry in `dropped`, for a record that is refused."""
        try:
            return self._rendering(record, number, on_unrendered=self.options.on_unrendered)
        except RecursionError:
            dropped[number] = self._refuse(number, TemplateError(_DEEP))
        except TemplateError as error:
            dropped[number] = self._refuse(number, error)
        return Rendering("", [])

    def _notes(self, batch: Sequence[Rendering]) -> dict[str, dict[int, int]]:
        """What was noticed about the records of a batch: name → number of the record → how much of it."""
        notes: dict[str, dict[int, int]] = {}
        for number, rendering in enumerate(batch):
            counts = {f"{UNRENDERED}{name}": size for name, size in rendering.unrendered.items()}
            if rendering.num_unended:
                counts[UNENDED] = rendering.num_unended
            if rendering.num_partial:
                counts[PARTIAL] = rendering.num_partial
            if rendering.unanswered:
                begin = UNANSWERED if self.options.on_unanswered == "keep" else TRIMMED
                counts[f"{begin}{kind_of(rendering.unanswered)}"] = len(rendering.unanswered)
            for name, size in counts.items():
                notes.setdefault(name, {})[number] = size
        return notes

    def _refuse(self, number: int, error: TemplateError) -> str:
        """The reason under which a record is counted as dropped; an error where the options say stop."""
        if isinstance(error, Unanswered):
            return UNANSWERED_REASON
        policy = self._policy(error)
        if policy.action == "skip":
            return policy.reason
        # where a mask is not proven, the template is the reason more often than the record
        first = "" if isinstance(error, Unproven) else "fix the record, or "
        hint = (
            f"; {first}set {policy.option} to 'skip' to leave such records out (they are counted)"
        )
        if not policy.option or isinstance(error, NotPrinted):  # NotPrinted says so itself
            hint = ""
        kind = MediaError if isinstance(error, MediaError) else TemplateError
        raise kind(f"{error}{hint}", record=number) from error

    def _policy(self, error: TemplateError) -> Policy:
        """What to do with a record that is refused with this error."""
        options = self.options
        if isinstance(error, LimitExceeded | RenderingsDiffer):
            return Policy()
        for step in self.steps.values():
            policy = step.policy(error)
            if policy is not None:
                return policy
        if isinstance(error, NotPrinted):
            return Policy(option="on_unrendered", action=options.on_unrendered, reason="unrendered")
        reason = "mask_unverified" if isinstance(error, Unproven) else "template_refused"
        return Policy(option="on_refused", action=options.on_refused, reason=reason)

    def _encoded(
        self, batch: list[Rendering], dropped: dict[int, str]
    ) -> tuple[Encoded, list[Callable[[Samples], Samples]]]:
        """The tokens, and what steps do with their samples.  A record that is refused is left out, and the rest tried again."""
        while True:
            texts = [rendering.text for rendering in batch]
            plain = None
            if any(rendering.plain for rendering in batch):
                plain = [byte_spans(rendering.text, rendering.plain) for rendering in batch]
            try:
                encoded = self.tokenizer.encode_spans(texts, plain=plain)
                return encoded, [step.expand(encoded, batch) for step in self.steps.values()]
            except TemplateError as error:
                if error.record is None:
                    raise
                dropped[error.record] = self._refuse(error.record, TemplateError(str(error)))
                batch[error.record] = Rendering("", [])

    # One conversation → text and trained spans

    def read(self, record: Record, number: int | None = None) -> Conversation:
        """A record as a conversation.  A content of null is left out, as transformers does, unless the template needs it."""
        conversation = self.reader(record, number)
        for step in self.steps.values():
            conversation = step.read(record, conversation)
        if self._needs_null or self.reader.nulls == "keep":
            return conversation
        messages = conversation.messages
        if all(message.get("content", "") is not None for message in messages):
            return conversation
        without_nulls = [
            m if m.get("content", "") is not None else {k: m[k] for k in m if k != "content"}
            for m in messages
        ]
        return replace(conversation, messages=without_nulls)

    def _read(self, record: Record) -> tuple[Conversation, list[bool], "ChatTemplate", list[str]]:
        """A conversation, which of its messages are trained, the template that renders it, and the roles of unanswered turns."""
        conversation = self.read(record)
        trained = self._trained(conversation)
        unanswered = trailing_roles(conversation, trained)
        if unanswered:
            conversation, trained = apply_policy(
                conversation, trained, unanswered, self.options.on_unanswered
            )
        chosen = self._for_tools if self._for_tools is not None and conversation.tools else self
        if self.turn_key in record:
            conversation, trained = _only_turn(conversation, trained, record[self.turn_key])
            left = len(part_types(conversation.messages)) if conversation.media else 0
            conversation = replace(conversation, media=conversation.media[:left])
            unanswered = []  # a sample of one turn ends with that turn
        return conversation, trained, chosen, unanswered

    def _rendering(self, record: Record, number: int, *, on_unrendered: str = "warn") -> Rendering:
        """A record as text with its trained spans.  number: of the record in its batch."""
        conversation, trained, chosen, unanswered = self._read(record)
        if not conversation.messages:
            return Rendering("", [])
        request = chosen._chats.request(conversation, trained, verify=self._is_verified(number))
        try:
            rendering = chosen._find_mask(request)
        except TemplateError as error:
            if not conversation.media or type(error) not in (TemplateError, Refused):
                raise
            why = "the record has media, which chat templates of text models do not take: choose the chat_template of the model"
            raise TemplateError(f"{error}; {why}", record=error.record) from error
        rendering.unanswered = unanswered
        if self.options.message_weights:
            chosen._weigh(rendering, request)
        if rendering.unrendered and on_unrendered != "warn":
            raise NotPrinted(rendering.unrendered)
        for step in self.steps.values():
            rendering = step.place(record, conversation, rendering, request.context)
        return rendering

    def _is_verified(self, number: int) -> bool:
        """Whether the rendering of this record of a batch is compared with another one."""
        return self.options.verify == "all" or number < _VERIFIED

    def _weigh(self, rendering: Rendering, request: Request) -> None:
        """Give a rendering a weight for each span.  Messages of each weight are found by a rendering of their own."""
        weights = []  # of each message
        messages = request.conversation.messages
        for message, is_trained in zip(messages, request.trained, strict=True):
            weight = train_weight(message, fractions=True)
            weights.append((1.0 if weight is None else weight) if is_trained else 0.0)
        different = sorted(set(weights) - {0.0})
        rendering.weights = different * len(rendering.spans)
        if len(different) < 2:
            return
        rendering.spans = []
        rendering.weights = []
        for value in different:
            trained = [weight == value for weight in weights]
            spans = self._find_mask(replace(request, trained=trained)).spans
            rendering.spans += spans
            rendering.weights += [value] * len(spans)

    def render(
        self,
        record: Record,
        conversation: Conversation,
        *,
        number: int,
        generation_prompt: bool = False,
    ) -> Rendering:
        """A conversation as text, all of it trained; for train_on="all".  number: the first records are verified."""
        chosen = self if self._for_tools is None or not conversation.tools else self._for_tools
        request = chosen._chats.request(
            conversation,
            [True] * len(conversation.messages),
            verify=self._is_verified(number),
            generation_prompt=generation_prompt,
        )
        rendering = chosen._find_mask(request)
        for step in self.steps.values():
            step.refuse(record, conversation, rendering)
        return rendering

    def _find_mask(self, request: Request) -> Rendering:
        """The rendering with its trained spans, and with what special tokens in texts become."""
        try:
            rendering = self._masks.chain.find(request)
        except Refused as error:
            why = explain(request.conversation, self._abilities)
            raise error if why is None else Refused(f"{error}: {why}") from error
        if self.options.special_in_text == "error":
            self._special_words.refuse(request.context)
        elif self.options.special_in_text == "text":
            rendering.plain = self._special_words.places(
                request.context,
                rendering.text,
                lambda changed: attribute(self.renderer.render(changed)).text,
            )
        return rendering

    def _trained(self, conversation: Conversation) -> list[bool]:
        """Return which messages are trained; a message's own flag takes precedence."""
        messages = conversation.messages
        trained = self._chosen_by_role(conversation)
        for place, message in enumerate(messages):
            if len(message) <= 2:
                continue  # a role and content: it has no flag
            weight = train_weight(message, fractions=self.options.message_weights)
            if weight is not None:
                trained[place] = weight > 0
            refuse_unused_flags(
                message, is_trained=trained[place], trains_all=self.train_on == "all"
            )
        return trained

    def _chosen_by_role(self, conversation: Conversation) -> list[bool]:
        """Which messages `train_on` means."""
        messages = conversation.messages
        roles = self.train_on if isinstance(self.train_on, list) else ("assistant",)
        chosen = [message.get("role") in roles for message in messages]
        if self.train_on == "last":
            last = max((place for place, yes in enumerate(chosen) if yes), default=-1)
            return [place == last for place in range(len(messages))]
        if self.train_on == "completion":
            start = conversation.prompt_length
            if start is None:
                raise TemplateError(
                    "train_on='completion' needs records with a prompt and a completion; choose 'assistant' or 'last'"
                )
            return [yes and place >= start for place, yes in enumerate(chosen)]
        return chosen

    def __repr__(self) -> str:
        how = self.renderer.engine if self.why_rendered() else f"joined, {self.renderer.engine}"
        return f"ChatTemplate({how}, train_on={self.train_on!r}, {self.tokenizer!r})"


def _check_given(text: str, values: dict[str, Any]) -> None:
    """Refuse a template, or values for it, that cannot be written as JSON: the key of a store is made of them."""
    if nests_too_deep(values):
        raise TemplateError(f"chat_template_kwargs nest more than {MOST_DEPTH} levels deep")
    try:
        json.dumps([text, values], allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TemplateError(
            "the chat template, or a value that it is given, holds half of a surrogate pair"
        ) from error
    except (TypeError, ValueError) as error:
        raise TemplateError(
            f"chat_template_kwargs are given to the chat template as JSON, and cannot be: {error}"
        ) from error


def _only_turn(
    conversation: Conversation, trained: list[bool], turn: int
) -> tuple[Conversation, list[bool]]:
    """The conversation up to one of its trained messages, which alone is trained."""
    places = [place for place, yes in enumerate(trained) if yes]
    if turn >= len(places):
        return conversation, [False] * len(trained)
    messages = conversation.messages[: places[turn] + 1]
    return replace(conversation, messages=messages), [False] * places[turn] + [True]
