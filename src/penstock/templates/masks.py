"""Which tokens lie in the trained characters of a text?  Characters → bytes → tokens, a batch at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.templates.token_bytes import Encoded
from penstock.types import Bools, Ints

Spans = list[tuple[int, int]]


@dataclass(slots=True)
class Rendering:
    """A conversation as text, and the character ranges that are trained."""

    text: str
    spans: Spans
    plain: Spans = field(default_factory=list)  # somebody's words in which special tokens are text
    unrendered: dict[str, int] = field(default_factory=dict)  # field → its characters that the template does not print
    assistant_characters: int = 0  # of the record, printed or not
    num_unended: int = 0  # trained turns that no token ends
    num_partial: int = 0  # trained turns before which only a part of the generation prompt stands


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
    """Character ranges, ascending, as byte ranges of the text's UTF-8."""
    if text.isascii():
        return spans
    found, place, size = [], 0, 0
    for begin, end in spans:  # each character is encoded once
        size += len(text[place:begin].encode())
        start = size
        size += len(text[begin:end].encode())
        found.append((start, size))
        place = end
    return found


def token_mask(encoded: Encoded, batch: Sequence[Rendering], special: Mapping[int, str]) -> Bools:
    """Tokens that cover a character of a span, for all texts.  `special`: the texts of special tokens, which may cover blanks, too."""
    owners = [number for number, rendering in enumerate(batch) for _ in rendering.spans]
    change = np.zeros(len(encoded.ids) + 1, np.int32)
    if owners:
        spans = [span for rendering in batch for span in byte_spans(rendering.text, rendering.spans)]
        begins, ends = np.array(spans, np.int64).T
        # Token ranges relative to their text become increasing over the whole batch: one search finds all spans.
        sizes = [len(r.text) if r.text.isascii() else len(r.text.encode()) for r in batch]
        bases: Ints = np.concatenate(([0], np.cumsum(np.array(sizes, np.int64) + 1)))[:-1]
        base = np.repeat(bases, np.diff(encoded.offsets))
        low = np.searchsorted(encoded.stops + base, begins + bases[owners], side="right")
        high = np.searchsorted(encoded.starts + base, ends + bases[owners], side="left")
        low += _behind(encoded, low, begins, [batch[owner].text for owner in owners], special)
        np.add.at(change, low, 1)
        np.add.at(change, np.maximum(high, low), -1)
    mask: Bools = np.cumsum(change[:-1]) > 0
    return mask


def _behind(encoded: Encoded, first: Ints, begins: Ints, texts: Sequence[str], special: Mapping[int, str]) -> Bools:
    """Whether the first token of a span is a special one that stands before it, and only took blanks of it along."""
    behind = np.zeros(len(first), np.bool_)
    inside = np.flatnonzero(first < len(encoded.ids))
    for span in inside[encoded.starts[first[inside]] < begins[inside]].tolist():
        token, begin = int(first[span]), int(begins[span])
        start, stop = int(encoded.starts[token]), int(encoded.stops[token])
        content = special.get(int(encoded.ids[token]), "")
        behind[span] = bool(content) and content.encode() in texts[span].encode()[start : min(begin, stop)]
    return behind
