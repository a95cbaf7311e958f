"""What if no shape fits?  A function of yours: record → ids, segments or a conversation, with a version that you raise."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from penstock.errors import TemplateError
from penstock.templates.messages import Conversation
from penstock.templates.pieces import encode_pieces
from penstock.templates.plain import PlainText
from penstock.templates.pretokenized import PretokenizedTemplate
from penstock.templates.samples import Tokens
from penstock.templates.segments import read_pieces
from penstock.templates.tokenizers import SpecialInText, Tokenizer
from penstock.types import Bools, Ids, Record, Samples

if TYPE_CHECKING:
    from penstock.templates.chat.template import ChatTemplate

_EXPECTED = "a dict with input_ids, a list of {text, label}, or a Conversation"


class PassOn:
    """Reader of what is a conversation already."""

    def __call__(self, record: Record, number: int | None = None) -> Conversation:
        conversation: Conversation = record["conversation"]
        return conversation

    def identity(self) -> dict[str, Any]:
        return {"shape": "conversation"}


class FunctionTemplate(PlainText):
    """What `function` makes of a record, encoded.  Raise `version` when the function changes: it is part of the key.

    The function must not depend on anything but the record; for worker processes it must stand at the top of a module.
    bos, eos: for segments.  chat: options of the chat template ({} for none), needed where it gives conversations.
    """

    version = 1  # ours, of what is done with the function's answer

    def __init__(
        self,
        function: Callable[[Record], Any],
        tokenizer: Tokenizer,
        *,
        version: str,
        bos: bool | str | None = None,
        eos: bool | str | None = False,
        special_in_text: SpecialInText = "token",
        on_nothing: str = "drop",
        chat: dict[str, Any] | None = None,
    ) -> None:
        if not callable(function):
            raise TemplateError(f"the function is {type(function).__name__}, expected something to call with a record")
        if not isinstance(version, str) or not version:
            raise TemplateError(
                f"version is {version!r}, expected text such as '1': it tells stores made by an older function apart"
            )
        self.function = function
        self.function_version = version
        super().__init__(tokenizer, bos=bos, eos=eos, special_in_text=special_in_text, on_nothing=on_nothing)
        self._ids = PretokenizedTemplate(tokenizer)
        self._chat = None if chat is None else _open_chat(tokenizer, chat)

    def with_engine(self, *, fast: bool) -> Self:
        made = super().with_engine(fast=fast)
        made._chat = None if self._chat is None else self._chat.with_engine(fast=fast)
        return made

    @property
    def name(self) -> str:
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return f"{named.__module__}.{named.__qualname__}"

    def _own_identity(self) -> dict[str, Any]:
        return {
            "template": "function",
            "function": self.name,
            "function_version": self.function_version,
            "ids": self._ids.identity(),
            "chat": None if self._chat is None else self._chat.identity(),
        }

    def _encode(self, records: Sequence[Record]) -> Tokens:
        """Answers of one kind are encoded together, then all are put back in the order of their records."""
        kinds: dict[Callable[..., Tokens], list[tuple[int, Any]]] = {}
        for number, record in enumerate(records):
            answer = self.function(record)
            kinds.setdefault(self._kind(answer, number), []).append((number, answer))
        samples: dict[int, tuple[Ids, Bools]] = {}
        dropped: dict[int, str] = {}
        for encode, numbered in kinds.items():
            try:
                tokens = encode([answer for _, answer in numbered])
            except TemplateError as error:
                place = None if error.record is None else numbered[error.record][0]
                raise TemplateError(f"{self.name} gave an answer that cannot be used: {error}", record=place) from error
            dropped |= {numbered[place][0]: reason for place, reason in tokens.dropped.items()}
            borders = np.cumsum(tokens.lengths)[:-1]
            parts = zip(np.split(tokens.ids, borders), np.split(tokens.mask, borders), strict=True)
            samples |= {number: part for (number, _), part in zip(numbered, parts, strict=True)}
        ordered = [samples[number] for number in range(len(records))]
        return Tokens(
            ids=np.concatenate([ids for ids, _ in ordered]),
            mask=np.concatenate([mask for _, mask in ordered]),
            lengths=np.array([len(ids) for ids, _ in ordered], np.int64),
            dropped=dropped,
        )

    def _kind(self, answer: Any, number: int) -> Callable[..., Tokens]:
        if isinstance(answer, Conversation):
            if self._chat is None:
                raise TemplateError(f"{self.name} gave a Conversation; pass chat={{}}, or its options", record=number)
            return self._encode_conversations
        if isinstance(answer, dict) and "input_ids" in answer:
            return self._encode_ids
        if isinstance(answer, list):
            return self._encode_segments
        raise TemplateError(
            f"{self.name} gave {type(answer).__name__} {str(answer)[:60]!r}, expected {_EXPECTED}", record=number
        )

    def _encode_ids(self, answers: list[Record]) -> Tokens:
        return _tokens(self._ids.encode(answers))

    def _encode_segments(self, answers: list[Any]) -> Tokens:
        pieces = [read_pieces(answer, "its list", number) for number, answer in enumerate(answers)]
        return encode_pieces(self.tokenizer, pieces, self._ends, special=self.special_in_text)

    def _encode_conversations(self, answers: list[Conversation]) -> Tokens:
        assert self._chat is not None  # _kind has looked
        return _tokens(self._chat.encode({"conversation": answer} for answer in answers))

    def __repr__(self) -> str:
        return f"FunctionTemplate({self.name}, version {self.function_version!r}, {self.tokenizer!r})"


def _open_chat(tokenizer: Tokenizer, options: dict[str, Any]) -> "ChatTemplate":
    from penstock.templates.chat.template import ChatTemplate  # only where there are conversations

    return ChatTemplate(tokenizer, reader=PassOn(), **options)


def _tokens(samples: Samples) -> Tokens:
    return Tokens(
        ids=samples.input_ids, mask=samples.loss_mask, lengths=np.diff(samples.offsets), dropped=samples.dropped
    )
