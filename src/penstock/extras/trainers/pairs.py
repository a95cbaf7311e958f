"""Templates of a prompt with judged answers: preference pairs and single answers (KTO).

A sequence is a prompt and one answer, as trl's trainers read it: the prompt is rendered with the generation prompt, and the answer begins
where the ids of prompt and answer leave the ids of the prompt.  All of the answer is trained.  A pair is one sample: the tokens of its
chosen sequence, then those of its rejected one; the column `sequence_lengths` says where one ends.  So the length of a pair is what it
costs, and nothing may cut it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np

from penstock.errors import TemplateError
from penstock.reasons import NOTHING_TO_TRAIN
from penstock.templates.chat.choose import chat_template_words
from penstock.templates.chat.options import open_chat
from penstock.templates.chat.steps import split_options
from penstock.templates.conversation import Reader
from penstock.templates.fields import check_choice
from penstock.templates.judged import (
    Sides,
    read_judged,
    read_label,
    read_margin,
    read_pair,
)
from penstock.templates.samples import (
    POLICIES,
    BatchTemplate,
    OnNothing,
    Rendering,
    byte_spans,
    owners,
)
from penstock.templates.tokenizer.byte_offsets import borders
from penstock.templates.tokenizer.tokenizer import Tokenizer, special_found
from penstock.types import (
    DESIRABLE,
    MARGIN,
    PROMPT_CUT,
    SEQUENCE_LENGTHS,
    UNRENDERED,
    Ids,
    Record,
    Samples,
    Values,
)

if TYPE_CHECKING:
    from penstock.templates.chat.template import ChatTemplate

Chat = Annotated[
    bool | None,
    "render plain text with the chat template, too; null: messages and questions only, as in trl",
]
PromptKey = Annotated[str | None, "column with the prompt"]


@dataclass(slots=True)
class ReadRecord:
    """A record as renderings: its prompt, then the prompt with each answer.  is_chat: a chat template rendered them."""

    texts: list[Rendering] = field(default_factory=list)
    is_chat: bool = False
    value: float = 0  # the record's label or margin, where it has one

    @property
    def answers(self) -> list[Rendering]:
        return self.texts[1:] or self.texts


@dataclass(slots=True)
class EncodedAnswers:
    """The sequences of a record, and how many tokens of each are the prompt.  cut: tokens of the prompt alone that are left out."""

    sequences: list[Ids] = field(default_factory=list)
    prompt_length: int = 0
    cut: int = 0


@dataclass(kw_only=True, eq=False, repr=False)
class JudgedTemplate(BatchTemplate):
    """Base: renders the prompts and answers of records, and finds where the answers begin."""

    version: ClassVar[int] = 1  # raise when the same record gives other tokens
    name: ClassVar[str]
    loss_words: ClassVar[str] = "all of each answer"  # what is trained, for reports
    policies: ClassVar[tuple[str, ...]] = POLICIES  # of on_nothing
    reads_flags: ClassVar[bool] = False  # flags of messages: whole answers are trained

    tokenizer: Tokenizer = field(kw_only=False)
    input_key: PromptKey = None
    chat: Chat = None
    options: dict[str, Any] = field(
        default_factory=dict
    )  # of conversations, of their reader and of the chat template

    def __post_init__(self) -> None:
        self.vocab_size = self.tokenizer.vocab_size
        check_choice("on_nothing", self.on_nothing, self.policies)
        self._keys = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name.endswith("_key")
        }
        names = {each.name for each in fields(Reader)}
        self._reader = Reader(
            shape="prompt_completion", **{k: v for k, v in self.options.items() if k in names}
        )
        given = {name: value for name, value in self.options.items() if name not in names}
        self._options, _ = split_options({**given, "train_on": "all"})
        self._chat: ChatTemplate | None = (
            None  # None where the tokenizer has no chat template, or none is asked for
        )
        has_template = self.tokenizer.chat_templates or self._options.chat_template is not None
        if self.chat is not False and (self.chat or has_template):
            self._chat = open_chat(self.tokenizer, reader=self._reader, **given, train_on="all")

    def identity(self) -> dict[str, Any]:
        return {
            "template": self.name,
            "version": self.version,
            "chat": self.chat,
            "keys": self._keys,
            "special_in_text": self._options.special_in_text,
            "on_refused": self._options.on_refused,
            "prefix": list(self.tokenizer.prefix),
            "suffix": list(self.tokenizer.suffix),
            "eos": self._eos,
            "tokenizer": self.tokenizer.identity(),
            "conversations": None if self._chat is None else self._chat.identity(),
        }

    @property
    def _eos(self) -> str:
        return self.tokenizer.special_tokens.get("eos_token", "")

    def with_engine(self, *, fast: bool) -> Self:
        made = super().with_engine(fast=fast)
        made._chat = None if self._chat is None else self._chat.with_engine(fast=fast)
        return made

    @property
    def chat_template(self) -> str | None:
        """The chat template that renders messages; None if all is plain text."""
        return None if self._chat is None else self._chat.chat_template

    def summary(self) -> str:
        text = self.chat_template
        how = "plain text" if text is None else chat_template_words(text, self.tokenizer)
        return f"{self.name}, {how}; loss on {self.loss_words}"

    def rendering(self, record: Record) -> Rendering:
        """The sequences of a record as one text, before `encode` tokenizes them."""
        return Rendering("".join(each.text for each in self._read(record, 0).answers), [])

    def _sides(self, record: Record) -> Sides:
        raise NotImplementedError

    def _value(self, record: Record) -> float:
        return 0

    def _encode(self, records: Sequence[Record]) -> Samples:
        dropped: dict[int, str] = {}
        found: list[ReadRecord] = []
        for number, record in enumerate(records):
            try:
                found.append(self._read(record, number))
            except TemplateError as error:
                self._refuse(number, error, dropped)
                found.append(ReadRecord())
        while (made := self._sequences(found, dropped)) is None:
            pass  # each turn refuses one record more
        return self._samples(found, made, dropped)

    def _refuse(self, place: int, error: TemplateError, dropped: dict[int, str]) -> None:
        """Count a record as dropped, or stop."""
        if self._options.on_refused == "stop":
            raise TemplateError(
                f"{error}; to skip and count such records, pass on_refused='skip'", record=place
            ) from error
        dropped[place] = "template_refused"

    def _read(self, record: Record, number: int) -> ReadRecord:
        sides = self._sides(record)
        value = self._value(record)
        by_template = sides.has_messages or (sides.is_question and self._chat is not None)
        if by_template if self.chat is None else self.chat:
            return ReadRecord(self._rendered(record, sides, number), True, value)
        if sides.has_messages:
            raise TemplateError(
                "the record has messages, but chat=False encodes plain text only; leave chat= out"
            )
        self._refuse_unprinted(record)
        texts = [
            f"{sides.prompt}\n" if sides.is_question else str(sides.prompt)
        ]  # as query_response
        for answer in map(str, sides.answers):
            texts.append(texts[0] + (answer if answer.endswith(self._eos) else answer + self._eos))
        return ReadRecord([self._plain(text) for text in texts], False, value)

    def _refuse_unprinted(self, record: Record) -> None:
        """Refuse what plain text has no place for: trl would leave it out without a word."""
        system = self._reader.system_key
        keys = [system] if isinstance(system, str) else list(system or ())
        for key in (*keys, self._reader.tool_key, self._reader.documents_key):
            if record.get(key):
                raise TemplateError(
                    f"the record has {key!r}, which is not used with plain text; pass chat=True to render the text as a "
                    f"conversation, or remove {key!r}"
                )

    def _plain(self, text: str) -> Rendering:
        """Plain text, in which special tokens that people wrote are found, except for the end that was added."""
        policy = self._options.special_in_text
        size = len(text) - len(self._eos) if self._eos and text.endswith(self._eos) else len(text)
        if policy == "error" and (
            found := [token for token in self.tokenizer.special_added if token in text[:size]]
        ):
            raise special_found(min(found), "the text")
        return Rendering(text, [], plain=[(0, size)] if policy == "text" else [])

    def _rendered(self, record: Record, sides: Sides, number: int) -> list[Rendering]:
        if self._chat is None:
            which = self.tokenizer.path or "the tokenizer"
            raise TemplateError(
                f"the record is a conversation, and {which} has no chat template; pass chat_template=, or chat=True for ChatML"
            )
        answers = sides.answers or ([],)
        given = [
            self._chat.read({**record, "prompt": sides.prompt, "completion": answer})
            for answer in answers
        ]
        render = partial(self._chat.render, record, number=number)
        prompt = replace(given[0], messages=given[0].messages[: given[0].prompt_length])
        texts = [render(prompt, generation_prompt=True)]
        texts += [render(conversation) for conversation in given if sides.answers]
        lost = sorted({name for text in texts for name in text.unrendered})
        if lost and self._options.on_unrendered != "warn":
            raise TemplateError(
                f"the chat template does not print {', '.join(lost)}; remove it, or set on_unrendered"
            )
        return texts

    def _sequences(
        self, found: Sequence[ReadRecord], dropped: dict[int, str]
    ) -> list[EncodedAnswers] | None:
        """Encode all texts at once.  None where a record had to be refused."""
        flat = [text for read in found for text in read.texts]
        ranges = (
            [byte_spans(each.text, each.plain) for each in flat]
            if any(each.plain for each in flat)
            else None
        )
        try:
            if ranges is None:
                ids, offsets = self.tokenizer.encode([each.text for each in flat])
            else:
                encoded = self.tokenizer.encode_spans([each.text for each in flat], plain=ranges)
                ids = encoded.ids
                offsets = encoded.offsets
        except TemplateError as error:
            if error.record is None:
                raise
            place = owners([len(read.texts) for read in found])[error.record]
            self._refuse(place, TemplateError(str(error)), dropped)
            found[place].texts.clear()
            return None
        before, after = (
            np.array(part, np.uint32) for part in (self.tokenizer.prefix, self.tokenizer.suffix)
        )
        arrays = iter([ids[start:stop] for start, stop in pairwise(offsets.tolist())])
        made = []
        for read in found:
            own = list(islice(arrays, len(read.texts)))
            if not read.is_chat and len(before) + len(after):
                own = [np.concatenate((before, array, after)) for array in own]
            answers = own[1:] or own
            length = min((_common(own[0], answer) for answer in answers), default=0)
            made.append(EncodedAnswers(answers, length, len(own[0]) - length if own else 0))
        return made

    def _samples(
        self, found: Sequence[ReadRecord], made: list[EncodedAnswers], dropped: dict[int, str]
    ) -> Samples:
        notes: dict[str, dict[int, int]] = {}
        for place, each in enumerate(made):
            if each.sequences and not self._is_kept(each):
                dropped[place] = NOTHING_TO_TRAIN
                made[place] = EncodedAnswers()
            elif each.cut:
                notes.setdefault(PROMPT_CUT, {})[place] = each.cut
            for text in found[place].answers:
                for name, size in text.unrendered.items():
                    counts = notes.setdefault(f"{UNRENDERED}{name}", {})
                    counts[place] = max(size, counts.get(place, 0))
        empty = [place for place, each in enumerate(made) if not each.sequences]
        dropped |= {place: NOTHING_TO_TRAIN for place in empty if place not in dropped}
        lengths = [[len(ids) for ids in each.sequences] for each in made]
        masks = [
            np.arange(length) >= each.prompt_length
            for each, own in zip(made, lengths, strict=True)
            for length in own
        ]
        return Samples(
            input_ids=np.concatenate(
                [np.zeros(0, np.uint32), *(ids for each in made for ids in each.sequences)]
            ),
            loss_mask=np.concatenate([np.zeros(0, np.bool_), *masks]),
            offsets=borders([sum(own) for own in lengths]),
            dropped=dropped,
            notes=notes,
            assistant_characters=sum(
                text.assistant_characters for read in found for text in read.answers
            ),
            columns=self._values(found, lengths),
        )

    def _is_kept(self, made: EncodedAnswers) -> bool:
        """Whether each answer has a target; nothing predicts a first token."""
        return all(len(ids) > max(made.prompt_length, 1) for ids in made.sequences)

    def _values(self, found: Sequence[ReadRecord], lengths: list[list[int]]) -> dict[str, Values]:
        flat = np.array([length for own in lengths for length in own], np.int32)
        return {SEQUENCE_LENGTHS.name: Values(flat, borders([len(own) for own in lengths]))}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tokenizer!r})"


def _common(first: Ids, second: Ids) -> int:
    """The number of ids with which both begin: tokens may be joined over the border of prompt and answer."""
    size = min(len(first), len(second))
    different = np.flatnonzero(first[:size] != second[:size])
    return int(different[0]) if len(different) else size


@dataclass(kw_only=True, eq=False, repr=False)
class PreferenceTemplate(JudgedTemplate):
    """A prompt with a chosen and a rejected answer: two sequences in one sample."""

    name = "preference"

    chosen_key: Annotated[str | None, "column with the chosen answer"] = None
    rejected_key: Annotated[str | None, "column with the rejected answer"] = None
    margin_key: Annotated[str | None, "column with the margin of a pair, for a reward model"] = None
    on_nothing: OnNothing = "drop"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.columns = (
            (SEQUENCE_LENGTHS,) if self.margin_key is None else (SEQUENCE_LENGTHS, MARGIN)
        )

    def _sides(self, record: Record) -> Sides:
        return read_pair(record, self._keys)

    def _value(self, record: Record) -> float:
        return 0 if self.margin_key is None else read_margin(record, self.margin_key)

    def _values(self, found: Sequence[ReadRecord], lengths: list[list[int]]) -> dict[str, Values]:
        made = super()._values(found, lengths)
        if MARGIN in self.columns:
            made[MARGIN.name] = Values(np.array([read.value for read in found], np.float32))
        return made


@dataclass(kw_only=True, eq=False, repr=False)
class KtoTemplate(JudgedTemplate):
    """A prompt with one answer, and whether the answer is desirable."""

    name = "kto"
    columns = (SEQUENCE_LENGTHS, DESIRABLE)

    output_key: Annotated[str | None, "column with the answer that is judged"] = None
    desirable_key: Annotated[str | None, "column that says whether the answer is desirable"] = None
    on_nothing: OnNothing = "drop"

    def _sides(self, record: Record) -> Sides:
        return read_judged(record, self._keys)

    def _value(self, record: Record) -> float:
        return read_label(record, self.desirable_key)

    def _values(self, found: Sequence[ReadRecord], lengths: list[list[int]]) -> dict[str, Values]:
        labels = np.array([read.value for read in found], np.int8)
        return {**super()._values(found, lengths), DESIRABLE.name: Values(labels)}
