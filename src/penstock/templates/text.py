"""Templates of plain text.  Each record becomes pieces of text, each with a flag that says whether it is trained.

The pieces of a record are encoded as one text, so that no border between them changes a token.  A token that holds any byte of a
trained piece is trained: the model must write those bytes, and no other token has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Any, ClassVar

import numpy as np

from penstock.errors import TemplateError
from penstock.templates.fields import (
    check_choice,
    kind,
    one_key,
    query_pair,
    text_under,
    value_under,
)
from penstock.templates.media_words import has_media, refuse_tags
from penstock.templates.samples import (
    IN_TEXT,
    POLICIES,
    SPECIAL,
    TRAINED,
    BatchTemplate,
    OnNothing,
    Spans,
    read_each,
    token_mask,
)
from penstock.templates.tokenizer.byte_offsets import borders
from penstock.templates.tokenizer.tokenizer import SpecialInText, Tokenizer
from penstock.types import Bools, Ids, Ints, Record, Samples

TRAIN_ON = (
    "completion",
    "all",
    "assistant",
    "last",
)  # the last two are chat's words for the completion
_SEGMENTS = "a list of {text, label}"

Piece = tuple[str, bool]  # text, and whether it is trained
AddEos = Annotated[
    bool | str | None,
    "add an end token: true, false, the token itself, or null for what the tokenizer does",
]


@dataclass(kw_only=True, eq=False, repr=False)
class PlainText(BatchTemplate):
    """Base of the templates of plain text: the tokenizer, BOS and EOS, special tokens in texts, samples without a target.

    A text that already has BOS or EOS gets no second one.
    """

    version: ClassVar[int]  # raise when the same record gives other tokens
    train_prefix: ClassVar[bool] = False  # whether a BOS that is put before a text is trained

    tokenizer: Tokenizer = field(kw_only=False)
    bos: Annotated[
        bool | str | None,
        "add a beginning token: true, false, the token itself, or null for what the tokenizer does",
    ] = None
    eos: AddEos = None
    special_in_text: Annotated[SpecialInText, IN_TEXT] = "token"
    on_nothing: OnNothing = "drop"

    def __post_init__(self) -> None:
        check_choice("on_nothing", self.on_nothing, POLICIES)
        check_choice("special_in_text", self.special_in_text, SPECIAL)
        self.vocab_size = self.tokenizer.vocab_size
        self._ends = find_ends(self.tokenizer, bos=self.bos, eos=self.eos)

    def identity(self) -> dict[str, Any]:
        return {
            **self._own_identity(),
            "version": self.version,
            "special_in_text": self.special_in_text,
            "prefix": list(self._ends.prefix),
            "suffix": list(self._ends.suffix),
            "tokenizer": self.tokenizer.identity(),
        }

    def _own_identity(self) -> dict[str, Any]:
        """The template's name, and the options that change its tokens."""
        raise NotImplementedError

    def _encode(self, records: Sequence[Record]) -> Samples:
        return self._encode_pieces(read_each(self._checked, records))

    def _checked(self, record: Record) -> list[Piece]:
        pieces = self._pieces(record)
        if has_media(record):
            refuse_tags(record, (text for text, _ in pieces))
        return pieces

    def _pieces(self, record: Record) -> list[Piece]:
        """The pieces of a record."""
        raise NotImplementedError

    def _encode_pieces(self, texts: Sequence[Sequence[Piece]]) -> Samples:
        """Tokens of each text with BOS and EOS.  A text without a trained token gets none: EOS alone is nothing to learn."""
        joined = [
            pieces[0][0] if len(pieces) == 1 else "".join([text for text, _ in pieces])
            for pieces in texts
        ]
        if all(is_trained for pieces in texts for _, is_trained in pieces):
            ids, offsets = self.tokenizer.encode(joined, special=self.special_in_text)
            bare = Samples(input_ids=ids, loss_mask=np.ones(len(ids), np.bool_), offsets=offsets)
            return self._ends.around(bare, train_prefix=self.train_prefix)
        encoded = self.tokenizer.encode_spans(joined, special=self.special_in_text)
        lengths = np.diff(encoded.offsets)
        mask = token_mask(encoded, joined, [trained_spans(pieces) for pieces in texts])
        counts = borders(mask)
        has_target = counts[encoded.offsets[1:]] > counts[encoded.offsets[:-1]]
        kept = np.repeat(has_target, lengths)
        offsets = borders(np.where(has_target, lengths, 0))
        bare = Samples(input_ids=encoded.ids[kept], loss_mask=mask[kept], offsets=offsets)
        return self._ends.around(bare, train_prefix=self.train_prefix)

    def __repr__(self) -> str:
        own = {name: value for name, value in self._own_identity().items() if name != "template"}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in own.items())}, {self.tokenizer!r})"


@dataclass(kw_only=True, eq=False, repr=False)
class TextTemplate(PlainText):
    """The string under `key`, after BOS if the tokenizer adds one, and before EOS.  All of it is trained."""

    version = 2
    train_prefix = True

    key: Annotated[str, "column with the text"] = "text"

    def summary(self) -> str:
        return f"text in {self.key!r}; loss on all tokens"

    def _own_identity(self) -> dict[str, Any]:
        return {"template": "text", "key": self.key}

    def _pieces(self, record: Record) -> list[Piece]:
        return [(text_under(record, self.key, "key"), True)]


@dataclass(kw_only=True, eq=False, repr=False)
class SegmentsTemplate(PlainText):
    """Segments {text, label} under `key`; those with a true label are trained.  No EOS by default: the data holds it."""

    version = 1

    key: Annotated[str, "column with the list of segments"] = "segments"
    eos: AddEos = False

    def _own_identity(self) -> dict[str, Any]:
        return {"template": "segments", "key": self.key}

    def _pieces(self, record: Record) -> list[Piece]:
        return read_pieces(
            value_under(record, self.key, "key", expected=_SEGMENTS), f"key {self.key!r}"
        )


@dataclass(kw_only=True, eq=False, repr=False)
class PromptCompletionTemplate(PlainText):
    """prompt + separator + completion + EOS, trained on the completion and EOS, or on all of it.

    usual: the names to search if no key is given: "prompt_completion" or "query_response".
    A record with an empty completion has nothing to train: a missing answer must not teach the model to answer nothing.
    """

    version = 1

    usual: str = "prompt_completion"
    input_key: Annotated[str | None, "column with the prompt"] = None
    output_key: Annotated[str | None, "column with the answer"] = None
    separator: Annotated[str | None, "text between prompt and answer"] = None
    train_on: Annotated[str, TRAINED] = "completion"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.separator is None
        ):  # prompts are written to be continued; questions seldom end with whitespace
            self.separator = "\n" if self.usual == "query_response" else ""
        self.train_on = (
            "all" if check_choice("train_on", self.train_on, TRAIN_ON) == "all" else "completion"
        )

    def summary(self) -> str:
        loss = "all tokens" if self.train_on == "all" else "the answer"
        return f"{self.usual}, plain text; loss on {loss}"

    def _own_identity(self) -> dict[str, Any]:
        options = {
            name: getattr(self, name)
            for name in ("input_key", "output_key", "separator", "train_on")
        }
        return {"template": self.usual, **options}

    def _pieces(self, record: Record) -> list[Piece]:
        input_key = self.input_key or "prompt"
        output_key = self.output_key or one_key(record, ("completion", "response")) or "completion"
        if self.usual == "query_response":
            input_key, output_key = query_pair(record, self.input_key, self.output_key)
        for key in (input_key, output_key):
            if isinstance(record.get(key), list | dict):
                raise TemplateError(
                    f"key {key!r} is {kind(record[key])}, expected a string; chat=True takes messages"
                )
        prompt = text_under(record, input_key, "input_key")
        completion = text_under(record, output_key, "output_key")
        if not completion:
            return []
        return [(f"{prompt}{self.separator}", self.train_on == "all"), (completion, True)]


def read_pieces(segments: Any, what: str) -> list[Piece]:
    """The pieces of a list of {text, label}."""
    if not isinstance(segments, list | tuple):
        raise TemplateError(f"{what} is {kind(segments)}, expected {_SEGMENTS}")
    pieces = []
    for place, segment in enumerate(segments):
        fields = segment if isinstance(segment, dict) else {}
        text = fields.get("text")
        label = fields.get("label")
        if not isinstance(text, str) or not isinstance(label, bool | int) or label not in (0, 1):
            raise TemplateError(
                f"{what}, segment {place} is {str(segment)[:80]!r}, expected {{'text': a string, 'label': true or false}}"
            )
        pieces.append((text, bool(label)))
    return pieces


def trained_spans(pieces: Sequence[Piece]) -> Spans:
    """The characters of the trained pieces, in the text that all pieces make."""
    stops = accumulate(len(text) for text, _ in pieces)
    return [
        (stop - len(text), stop)
        for (text, flag), stop in zip(pieces, stops, strict=True)
        if flag and text
    ]


@dataclass(frozen=True, slots=True)
class SampleEnds:
    """Ids to put before and after every text that does not have them already.  A text without tokens gets none."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def around(self, bare: Samples, *, train_prefix: bool) -> Samples:
        """Put the ids around each text.  The suffix is trained if the token before it is: a model that writes a text must end it."""
        starts = bare.offsets[:-1]
        stops = bare.offsets[1:]
        lengths = np.diff(bare.offsets)
        has_prefix = _match(bare.input_ids, starts, lengths, self.prefix)
        has_suffix = _match(bare.input_ids, stops - len(self.suffix), lengths, self.suffix)
        before = (lengths > 0) & ~has_prefix
        after = (lengths > 0) & ~has_suffix
        begins = starts[before]
        ends = stops[after]
        # a suffix comes before the prefix of the next text, which is inserted at the same place
        places = np.concatenate(
            (np.repeat(ends, len(self.suffix)), np.repeat(begins, len(self.prefix)))
        )
        tokens = np.concatenate(
            (np.tile(self.suffix, len(ends)), np.tile(self.prefix, len(begins)))
        )
        trained = np.repeat(bare.loss_mask[ends - 1], len(self.suffix))
        flags = np.concatenate((trained, np.full(len(places) - len(trained), train_prefix)))
        return Samples(
            input_ids=np.insert(bare.input_ids, places, tokens),
            loss_mask=np.insert(bare.loss_mask, places, flags),
            offsets=borders(lengths + len(self.prefix) * before + len(self.suffix) * after),
        )


def _match(ids: Ids, places: Ints, lengths: Ints, expected: tuple[int, ...]) -> Bools:
    """Whether each text has the expected ids at its place."""
    found = lengths >= max(len(expected), 1)
    for step, token in enumerate(expected):
        found[found] = ids[places[found] + step] == token
    return found


def find_ends(
    tokenizer: Tokenizer, *, bos: bool | str | None, eos: bool | str | None
) -> SampleEnds:
    """BOS and EOS.  None: as the tokenizer says.  True: it must name one.  False: none.  A string: that token."""
    return SampleEnds(_prefix(tokenizer, bos), _suffix(tokenizer, eos))


def _prefix(tokenizer: Tokenizer, bos: bool | str | None) -> tuple[int, ...]:
    if bos is False:
        return ()
    if isinstance(bos, str):
        return (tokenizer.token_id(bos),)
    if bos is True and not tokenizer.prefix:
        return (_required(tokenizer, "bos", tokenizer.bos_id),)
    return tokenizer.prefix


def _suffix(tokenizer: Tokenizer, eos: bool | str | None) -> tuple[int, ...]:
    """What the tokenizer puts behind a text, and the end token if it is not there already."""
    suffix = tokenizer.suffix
    if eos is False:
        return suffix
    end = tokenizer.token_id(eos) if isinstance(eos, str) else tokenizer.eos_id
    if eos is True:
        end = _required(tokenizer, "eos", end)
    return suffix if end is None or suffix[-1:] == (end,) else (*suffix, end)


def _required(tokenizer: Tokenizer, name: str, token: int | None) -> int:
    if token is None:
        raise TemplateError(
            f"{tokenizer!r} names no {name}_token (in tokenizer_config.json next to it); pass {name}='<the token>', or {name}=False",
            code="no_special_token",
        )
    return token
