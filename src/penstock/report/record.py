"""Show one record as text, and its sample token by token: the text of each token, and in a conversation its turn."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.report.columns import reported_values
from penstock.store import Sample, Store
from penstock.templates.protocols import HasTurns, Renders, tokenizer_of
from penstock.types import Bools

_MOST_BITS = 4_096  # of an integer that is written out; Python refuses to print very large ones
_MOST_BYTES = 32  # shown of a byte string
_MOST_VALUES = 2_000  # shown of an array or a list
_MOST_DEPTH = 60
_MOST_PARTS = 8  # tokens that may share one character


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token.  If several tokens share a character, the first has it as its text, and the others have "".

    Tokens of a conversation also say which message printed them (-1: none did), its role, and their part of its turn:
    "header", "body", "end", or "between" turns.
    """

    id: int
    text: str
    trained: bool
    message: int = -1
    role: str = ""
    part: str = ""


PADDING = Token(id=-1, text="", trained=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The tokens of one message.  `header`, `body` and `end` count tokens."""

    message: int  # counted from 0
    role: str
    start: int  # its first token
    stop: int  # after its last one
    header: int
    body: int
    end: int
    trained: int  # targets among them


def record_text(record: Any) -> str:
    """Return a record as indented JSON, whatever it holds: values that JSON does not know become text in angle brackets."""
    return json.dumps(_json_value(record, 0), indent=2, ensure_ascii=False)


def _json_value(value: Any, depth: int) -> Any:
    match value:
        case None | bool() | str():
            return value
        case _ if depth > _MOST_DEPTH:
            return f"<{type(value).__name__}, nested deeper than {_MOST_DEPTH} levels>"
        case Mapping():
            return {
                key if isinstance(key, str) else str(_json_value(key, 0)): _json_value(
                    part, depth + 1
                )
                for key, part in value.items()
            }
        case list() | tuple() | set() | frozenset() | np.ndarray():
            values = np.atleast_1d(value) if isinstance(value, np.ndarray) else value
            parts = [
                _json_value(part, depth + 1)
                for part, _ in zip(values, range(_MOST_VALUES), strict=False)
            ]
            left = len(values) - _MOST_VALUES
            return [*parts, f"<{left:,} more values>"] if left > 0 else parts
        case np.generic() if not isinstance(value.item(), np.generic):
            return _json_value(value.item(), depth + 1)
        case int():
            return (
                value
                if value.bit_length() <= _MOST_BITS
                else f"<integer of {value.bit_length():,} bits>"
            )
        case float():
            return value if math.isfinite(value) else f"<{value}>"
        case bytes() | bytearray() | memoryview():
            more = " …" if len(value) > _MOST_BYTES else ""
            return f"<{len(value):,} bytes: {bytes(value[:_MOST_BYTES]).hex(' ')}{more}>"
    try:
        return f"<{type(value).__name__} {value}>"
    except Exception:  # the user's own object may fail to print
        return f"<{type(value).__name__}>"


def rendered_text(store: Store, record: dict[str, Any]) -> str | None:
    """Return the text of a conversation, as its chat template renders it; None for other templates, and if it is refused now."""
    template = store.template
    try:
        return template.rendering(record).text if isinstance(template, Renders) else None
    except PenstockError:
        return None


def sample_tokens(
    store: Store,
    sample: Sample,
    record: dict[str, Any],
    rendered: str | None,
    shown: Sequence[slice] = (slice(None),),
) -> tuple[Token, ...]:
    """Return the tokens of a sample that are in `shown`, one part after the other.

    Texts are cut from the rendered text if its ids are these, else decoded, which takes a while for a very long sample.
    """
    ids = sample.input_ids.tolist()
    mask = sample.loss_mask.tolist()
    mask[:1] = [False] * len(mask[:1])  # no token predicts the first one
    places = [place for part in shown for place in range(*part.indices(len(ids)))]
    texts = None if rendered is None else _cut_text(store, sample, rendered)
    if texts is None:
        texts = [""] * len(ids)
        for start, stop, _ in (part.indices(len(ids)) for part in shown):
            texts[start:stop] = _decoded(store, sample.input_ids, start, stop)
    turns = list(_turn_of_each(store, record, texts, mask, rendered))
    return tuple(
        Token(id=ids[place], text=texts[place], trained=mask[place], **turns[place])
        for place in places
    )


def _turn_of_each(
    store: Store, record: dict[str, Any], texts: list[str], mask: list[bool], rendered: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the message, role and part of each token; {} if the texts are not the rendered text of a conversation."""
    template = store.template
    if not isinstance(template, HasTurns) or "".join(texts) != rendered:
        yield from ({} for _ in texts)
        return
    parts = template.outline(record)
    place = 0
    at = 0
    for text, trained in zip(texts, mask, strict=True):
        while (
            text and at + 1 < len(parts) and parts[at].stop <= place
        ):  # a token without text shares a character
            at += 1
        place = place + len(text)
        own = parts[at]
        if trained and own.name == "header" and own.stop < place:
            own = parts[at + 1]  # it crosses the border, and is trained for what follows it
        yield {"message": own.message, "role": own.role, "part": own.name}


def turns_of(tokens: Sequence[Token]) -> tuple[Turn, ...]:
    """Return the turns of a sample's tokens, by message."""
    places: dict[int, list[int]] = {}
    for place, token in enumerate(tokens):
        if token.message >= 0:
            places.setdefault(token.message, []).append(place)
    turns = []
    for message, own in sorted(places.items()):
        count = Counter(tokens[place].part for place in own)
        sizes = {part: count[part] for part in ("header", "body", "end")}
        trained = sum(tokens[place].trained for place in own)
        role = tokens[own[0]].role
        turns.append(
            Turn(
                message=message, role=role, start=own[0], stop=own[-1] + 1, trained=trained, **sizes
            )
        )
    return tuple(turns)


def _cut_text(store: Store, sample: Sample, rendered: str) -> list[str] | None:
    """Cut the rendered text into the texts of the tokens; None if its ids are others: special tokens in a message stay letters."""
    tokenizer = tokenizer_of(store.template)
    encoded = None if tokenizer is None else tokenizer.encode_spans([rendered])
    written = _written_once(sample, tokenizer)
    if encoded is None or not np.array_equal(encoded.ids, sample.input_ids[written]):
        return None
    raw = rendered.encode()
    stops = [0]
    for stop in encoded.stops.tolist():
        while (
            stop < len(raw) and raw[stop] & 0xC0 == 0x80
        ):  # inside a character: it belongs to its first token
            stop += 1
        stops.append(max(stop, stops[-1]))
    texts = iter([raw[start:stop].decode(errors="replace") for start, stop in pairwise(stops)])
    return [next(texts) if once else "" for once in written.tolist()]


def _written_once(sample: Sample, tokenizer: Any) -> Bools:
    """False for copies of special tokens that stand for an image or the like: the rendered text has each of them once."""
    ids = sample.input_ids
    written = np.ones(len(ids), np.bool_)
    special_ids = [tokenizer.added_tokens[token] for token in tokenizer.special_added]
    for _, report, value in reported_values(sample):
        for start, stop in report.spans(value):
            repeats = ids[start + 1 : stop] == ids[start : stop - 1]
            is_special = np.isin(ids[start + 1 : stop], special_ids)
            written[start + 1 : stop] = ~(repeats & is_special)
    return written


def _decoded(store: Store, ids: Any, start: int, stop: int) -> list[str]:
    """Decode tokens start..stop one by one, each after the one before: a tokenizer may drop the blank that a text begins with."""
    try:
        store.template.decode(ids[:1])
    except PenstockError:
        return [f"[{number}]" for number in ids[start:stop].tolist()]  # no tokenizer
    texts: list[str] = []
    place = start
    while place < stop:
        for size in range(1, _MOST_PARTS + 1):
            text = _decoded_after(store, ids, place, size)
            if "\ufffd" not in text or place + size >= len(ids):
                break
        else:
            size = 1
            text = _decoded_after(store, ids, place, 1)
        texts += [text, *[""] * (size - 1)]
        place += size
    return texts[: max(stop - start, 0)]


def _decoded_after(store: Store, ids: Any, place: int, size: int) -> str:
    if not place:
        return store.template.decode(ids[:size])
    before = store.template.decode(ids[place - 1 : place])
    both = store.template.decode(ids[place - 1 : place + size])
    return (
        both[len(before) :]
        if both.startswith(before)
        else store.template.decode(ids[place : place + size])
    )
