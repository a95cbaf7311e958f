"""The base of all templates: samples of batches of records, joined; and loss masks from the trained characters of a rendering."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.reasons import NOTHING_TO_TRAIN
from penstock.templates.tokenizer.byte_offsets import Encoded, borders, byte_places
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import (
    MOST_DEPTH,
    Bools,
    Column,
    Ints,
    MediaItem,
    Record,
    Samples,
    Values,
    join_notes,
    nests_too_deep,
)

POLICIES = ("drop", "stop")  # of on_nothing: leave out and count, or stop
KEEP = "keep"  # instead of a policy: prompts have nothing to train
SPECIAL = ("token", "text", "error")  # of special_in_text: what a special token in a text becomes
IN_TEXT = "how a special token inside a text is encoded: token, text or error"
TRAINED = "what is trained: assistant, last, completion, all, or a list of roles"
OnNothing = Annotated[str, "what to do with a sample without trained tokens: drop or stop"]

_BATCH = 1024  # records encoded at once

T = TypeVar("T")
Spans = list[tuple[int, int]]


class BatchTemplate:
    """Base of all templates: encodes records in batches."""

    tokenizer: Tokenizer | None
    on_nothing: str
    columns: tuple[Column, ...] = ()

    def encode(self, records: Iterable[Record]) -> Samples:
        parts: list[Samples] = []
        first = 0
        rest = iter(records)
        while batch := list(islice(rest, _BATCH)):
            with renumbered(range(first, first + len(batch))):
                try:
                    parts.append(self._encode(batch))
                except RecursionError as error:
                    raise _too_deep(batch) from error
            first += len(batch)
        return join(parts, on_nothing=self.on_nothing, columns=self.columns)

    def _encode(self, records: Sequence[Record]) -> Samples:
        """Encode one batch.  An error names a record by its number in the batch."""
        raise NotImplementedError

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        if self.tokenizer is None:
            raise TemplateError(
                "the samples are ids, and no tokenizer was given; pass tokenizer= to read them as text"
            )
        return self.tokenizer.decode(input_ids)

    def with_engine(self, *, fast: bool) -> Self:
        """The same template; `fast` decides whether fastokens may encode.  `prepare` decides by the size of the data."""
        made = copy.copy(self)
        made.tokenizer = None if self.tokenizer is None else self.tokenizer.with_engine(fast=fast)
        return made


def _too_deep(records: Sequence[Record]) -> TemplateError:
    """Say which record nests too deep.  Sources refuse those they read; a function of the user may still make one."""
    numbers = [number for number, record in enumerate(records) if nests_too_deep(record)]
    return TemplateError(
        f"the record nests more than {MOST_DEPTH} levels deep; remove it",
        record=numbers[0] if numbers else None,
    )


@contextmanager
def renumbered(numbers: Sequence[int]) -> Iterator[None]:
    """Replace the number of the record in an error, by a table: old number → new one."""
    try:
        yield
    except TemplateError as error:
        if error.record is not None:
            error.record = numbers[error.record]
        raise


def owners(counts: Sequence[int]) -> list[int]:
    """For each of the texts of all records the number of its record, which has so many."""
    return [number for number, count in enumerate(counts) for _ in range(count)]


def read_each(read: Callable[[Any], T], records: Iterable[Any]) -> list[T]:
    """Read all records; an error names a record by its number."""
    made = []
    for number, record in enumerate(records):
        try:
            made.append(read(record))
        except TemplateError as error:
            error.record = number
            raise
    return made


def join(
    parts: Sequence[Samples], *, on_nothing: str = "drop", columns: Sequence[Column] = ()
) -> Samples:
    """Join samples.  One without a target loses its tokens and is counted as dropped, or stops the work, unless all are kept."""
    ids = np.concatenate([np.zeros(0, np.uint32), *(part.input_ids for part in parts)])
    mask = np.concatenate([np.zeros(0, np.bool_), *(part.loss_mask for part in parts)])
    lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(part.offsets) for part in parts)])
    firsts = borders([len(part.offsets) - 1 for part in parts]).tolist()
    numbered = list(zip(firsts[:-1], parts, strict=True))  # with the number of their first record
    reasons = {
        first + number: why for first, part in numbered for number, why in part.dropped.items()
    }
    whole = Samples(input_ids=ids, loss_mask=mask, offsets=borders(lengths))
    has_target = (lengths if on_nothing == KEEP else whole.num_targets()) > 0
    dropped = {
        number: reasons.get(number, NOTHING_TO_TRAIN)
        for number in np.flatnonzero(~has_target).tolist()
    }
    empty = next((number for number, why in dropped.items() if why == NOTHING_TO_TRAIN), None)
    if on_nothing == "stop" and empty is not None:
        raise TemplateError(
            "no token of this record is trained, or only its first, which nothing predicts; pass on_nothing='drop' to leave "
            "such records out and count them",
            record=empty,
        )
    kept = np.repeat(has_target, lengths) if dropped else slice(None)
    return Samples(
        input_ids=ids[kept],
        loss_mask=mask[kept],
        offsets=borders(np.where(has_target, lengths, 0)),
        dropped=dropped,
        notes=join_notes((first, part.notes) for first, part in numbered),
        assistant_characters=sum(part.assistant_characters for part in parts),
        columns={column.name: _join_values(column, parts, kept) for column in columns},
    )


def _join_values(column: Column, parts: Sequence[Samples], kept: Any) -> Values:
    """The values of one column, without those of tokens that are dropped."""
    found = [part.columns[column.name] for part in parts]
    values = np.concatenate([np.zeros(0, column.dtype), *(one.values for one in found)])
    if column.per == "token":
        return Values(values[kept])
    if column.per == "sample":
        return Values(values)
    counts = [np.diff(one.offsets) for one in found if one.offsets is not None]
    return Values(values, borders(np.concatenate([np.zeros(0, np.int64), *counts])))


# Masks of rendered conversations: characters → bytes → tokens, a batch at a time


@dataclass(slots=True)
class Rendering:
    """A conversation as text, and the character ranges that are trained."""

    text: str
    spans: Spans
    plain: Spans = field(default_factory=list)  # words of the data: special tokens in them are text
    # Field → its characters that the template does not print.
    unrendered: dict[str, int] = field(default_factory=dict)
    assistant_characters: int = 0  # of the record, printed or not
    num_unended: int = 0  # trained turns that no token ends
    num_partial: int = 0  # trained turns after an incomplete generation prompt
    weights: list[float] | None = None  # of each span; None: they all count 1
    unanswered: list[str] = field(default_factory=list)  # roles of the turns after the last answer
    media: list["Inserted"] = field(default_factory=list)  # in the order of the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """One of a record's media in a rendering: the characters that stand for it, and the tokens among them that are repeated."""

    item: MediaItem  # its span is not known yet
    begin: int  # characters of the text that the processor puts in place of the placeholder
    end: int
    untrained: tuple[int, int]  # the same with what the chat template prints around a placeholder
    repeats: tuple[tuple[int, int, int], ...]  # (first character, token id, how many times)
    # Where the placeholder ended in the text before, and how much longer the text is behind it.
    cut: tuple[int, int]


def moved(place: int, cuts: Sequence[tuple[int, int]]) -> int:
    """A place in a text, after placeholders in it were replaced; `cuts` as in Inserted."""
    return place + sum(longer for end, longer in cuts if end <= place)


def covered(size: int, spans: Spans) -> Bools:
    """(size,) True inside the spans."""
    inside = np.zeros(size, np.bool_)
    for begin, end in spans:
        inside[begin:end] = True
    return inside


def runs(flags: Bools) -> Spans:
    """Ranges in which flags are True."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def byte_spans(text: str, spans: Spans) -> Spans:
    """Character ranges as byte ranges of the text's UTF-8."""
    if text.isascii() or not spans:
        return spans
    places = byte_places(text)
    return [(int(places[begin]), int(places[end])) for begin, end in spans]


def token_mask(
    encoded: Encoded,
    texts: Sequence[str],
    spans: Sequence[Spans],
    special: Mapping[int, str] | None = None,
) -> Bools:
    """Tokens that cover a character of a span, for all texts.  `special`: the texts of special tokens, which may cover blanks, too.

    A token without bytes (added by a normalizer) counts as the byte after it, or the last byte of its text.
    """
    owners = [number for number, own in enumerate(spans) for _ in own]
    change = np.zeros(len(encoded.ids) + 1, np.int32)
    if owners:
        # All texts one after another: first places in characters, then in bytes.  One search finds the tokens of all spans.
        edges = borders([len(text) for text in texts])
        flat = np.array([span for own in spans for span in own], np.int64) + edges[owners, None]
        is_ascii = all(text.isascii() for text in texts)
        data = np.frombuffer(
            b"" if is_ascii else b"".join([text.encode() for text in texts]), np.uint8
        )
        inner = np.flatnonzero((data & 0xC0) == 0x80)  # bytes that continue a character
        inner -= np.arange(len(inner))  # the characters that begin before each of them
        bases, begins, ends = (
            at + np.searchsorted(inner, at, side="right") for at in (edges, *flat.T)
        )
        counts = np.diff(encoded.offsets)
        base = np.repeat(bases[:-1], counts)
        starts = encoded.starts + base
        stops = encoded.stops + base
        if (starts == stops).any():  # added by a normalizer
            starts = np.minimum(starts, np.repeat(bases[1:], counts) - 1)
            stops = np.maximum(stops, starts + 1)
        low = np.searchsorted(stops, begins, side="right")
        high = np.searchsorted(starts, ends, side="left")
        begins -= bases[owners]
        if special:
            low += _only_blanks(encoded, low, begins, [texts[owner] for owner in owners], special)
        np.add.at(change, low, 1)
        np.add.at(change, np.maximum(high, low), -1)
    mask: Bools = np.cumsum(change[:-1]) > 0
    return mask


def token_weights(
    encoded: Encoded, batch: Sequence[Rendering], special: Mapping[int, str]
) -> npt.NDArray[np.float32]:
    """The weight of each token: that of the span that it covers, 0 outside of all.  One in spans of two weights is refused."""
    given = [made.weights or [1.0] * len(made.spans) for made in batch]
    found = np.zeros(len(encoded.ids), np.float32)
    for value in sorted({weight for weights in given for weight in weights}):
        own = [
            [span for span, weight in zip(made.spans, weights, strict=True) if weight == value]
            for made, weights in zip(batch, given, strict=True)
        ]
        mask = token_mask(encoded, [made.text for made in batch], own, special)
        if (twice := mask & (found > 0)).any():
            record = (
                int(np.searchsorted(encoded.offsets, np.flatnonzero(twice)[0], side="right")) - 1
            )
            reason = (
                "a token belongs to two messages of different weights, so its weight is not known"
            )
            raise TemplateError(f"{reason}; give these messages one weight", record=record)
        found[mask] = value
    return found


def _only_blanks(
    encoded: Encoded, first: Ints, begins: Ints, texts: Sequence[str], special: Mapping[int, str]
) -> Bools:
    """Whether the first token of a span is a special token before it that only covers blanks of the span."""
    found = np.zeros(len(first), np.bool_)
    inside = np.flatnonzero(first < len(encoded.ids))
    for span in inside[encoded.starts[first[inside]] < begins[inside]].tolist():
        token = int(first[span])
        begin = int(begins[span])
        start = int(encoded.starts[token])
        stop = int(encoded.stops[token])
        content = special.get(int(encoded.ids[token]), "")
        found[span] = (
            bool(content) and content.encode() in texts[span].encode()[start : min(begin, stop)]
        )
    return found
