"""Special tokens in a rendering: find those that people wrote, and put those of images, videos and audio clips in place.

A chat template prints one placeholder for each of a record's media.  It is replaced in the rendered text by what the processor puts
there, with one copy of each repeated token.  The text is encoded once, and then the ids of these tokens are repeated.  This gives the
ids that the processor gives, because special tokens cut a text: what is beside them does not depend on how many there are.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.errors import MediaError, TemplateError
from penstock.extras.media.template import MediaReader, MediaReference
from penstock.templates.chat.headers import Unproven
from penstock.templates.samples import Inserted, Rendering, Spans
from penstock.templates.tokenizer.byte_offsets import Encoded, borders, byte_places
from penstock.templates.tokenizer.tokenizer import Tokenizer, special_found
from penstock.types import Bools, Ids, Ints, MediaItem, Values, pack_media

_PLACEHOLDER = "\ufdd1"  # a noncharacter; behind it a number as one character
_FIRST_TOKEN = 0x100


class SpecialFinder:
    """Finds special tokens in the text of messages, not in the text of the template.

    Each is replaced by a placeholder in the messages, tools and documents.  If the rendering with the tokens put back equals the
    rendering of the record as it is, the places of the placeholders are the places of the tokens.
    """

    def __init__(self, special: Collection[str]) -> None:
        self._tokens = sorted(special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._tokens)) or "(?!)")

    def refuse(self, context: dict[str, Any]) -> None:
        """Raise if the text of a message contains a special token."""
        if found := self._hidden(context)[1]:
            raise special_found(found[0], "a message")

    def places(
        self, context: dict[str, Any], text: str, render: Callable[[dict[str, Any]], str]
    ) -> Spans:
        """Character spans of special tokens that people wrote."""
        hidden, written = self._hidden(context)
        if not written:
            return []
        first, *rest = render(hidden).split(_PLACEHOLDER)
        shown = first
        spans = list[tuple[int, int]]()
        for part in rest:
            token = self._tokens[ord(part[0]) - _FIRST_TOKEN]
            spans.append((len(shown), len(shown) + len(token)))
            shown += token + part[1:]
        if shown != text:
            raise Unproven(
                "the chat template looks for a special token that a message holds, so it cannot be encoded as text"
            )
        return spans

    def _hidden(self, context: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The context with placeholders, and the tokens that were replaced."""
        written: list[str] = []

        def hide(match: re.Match[str]) -> str:
            written.append(match[0])
            return f"{_PLACEHOLDER}{chr(_FIRST_TOKEN + self._tokens.index(match[0]))}"

        parts = {
            name: self._changed(context.get(name), hide)
            for name in ("messages", "tools", "documents")
        }
        return {**context, **parts}, written

    def _changed(self, value: Any, hide: Callable[[re.Match[str]], str], key: str = "") -> Any:
        if isinstance(value, str):
            return value if key == "role" else self._pattern.sub(hide, value)
        if isinstance(value, dict):
            return {name: self._changed(inner, hide, name) for name, inner in value.items()}
        if not isinstance(value, list | tuple):
            return value
        texts = [
            part["text"]
            for part in value
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        count = self._pattern.findall
        if len(texts) > 1 and len(count("".join(texts))) > sum(len(count(text)) for text in texts):
            raise Unproven(
                "two parts of a message together form a special token; write the text as one part"
            )
        return [self._changed(inner, hide) for inner in value]


class Placer:
    """Replaces the placeholders of one processor in renderings."""

    def __init__(self, reader: MediaReader, tokenizer: Tokenizer) -> None:
        self._reader = reader
        self._processor = reader.processor
        self._tokenizer = tokenizer

    def place(
        self, made: Rendering, found: Sequence[MediaReference], context: dict[str, Any]
    ) -> Rendering:
        """The rendering with its placeholders replaced; the spans move with the text.

        Placeholders inside `made.plain` are words of the data.  context: what was rendered.
        """
        for each in found:
            self._reader.refuse_kind(each)
        places = self._places(made, found, context)
        if not found:
            return made
        looked = [self._reader.read_header(each) for each in found]
        order = sorted(range(len(found)), key=places.__getitem__)
        parts: list[str] = []
        media: list[Inserted] = []
        place = 0
        length = 0
        for number in order:
            each = found[number]
            header, num_bytes = looked[number]
            begin = places[number]
            end = begin + len(self._processor.placeholder(each.kind))
            pieces = self._reader.expand(each, header)
            text = "".join(piece for piece, _ in pieces)
            parts += [made.text[place:begin], text]
            length += begin - place
            item = MediaItem(
                kind=each.kind,
                number=number,
                place=each.path,
                start=each.start,
                num_bytes=num_bytes,
                size=header.size,
                span=(0, 0),
                rate=header.rate,
            )
            before, after = self._around(made.text, begin, end)
            media.append(
                Inserted(
                    item=item,
                    begin=length,
                    end=length + len(text),
                    untrained=(length - before, length + len(text) + after),
                    repeats=self._repeats(pieces, length),
                    cut=(end, len(text) - (end - begin)),
                )
            )
            length += len(text)
            place = end
        parts.append(made.text[place:])
        cuts = [each.cut for each in media]
        return replace(
            made,
            text="".join(parts),
            spans=_moved(made.spans, cuts),
            plain=_moved(made.plain, cuts),
            media=media,
        )

    def _places(
        self, made: Rendering, found: Sequence[MediaReference], context: dict[str, Any]
    ) -> list[int]:
        """The first characters of the placeholders of `found`; the n-th of a kind belongs to the n-th of that kind."""
        places = [-1] * len(found)
        for kind in self._processor.kinds:
            placeholder = self._processor.placeholder(kind)
            wanted = [number for number, each in enumerate(found) if each.kind == kind]
            printed = [match.start() for match in re.finditer(re.escape(placeholder), made.text)]
            shown = [begin for begin in printed if not _inside(begin, made.plain)]
            if shown and _count(context, placeholder) > len(printed) - len(shown):
                raise MediaError(
                    f"the text of the record holds {placeholder!r}, which stands for {kind}; write <{kind}> with a column "
                    f"'{kind}s' or a part, or pass special_in_text='text' to encode it as text"
                )
            if len(shown) != len(wanted):
                raise MediaError(
                    f"the record has {len(wanted)} of kind {kind}, and the chat template prints {placeholder!r} {len(shown)} times, "
                    f"expected once for each; choose the chat_template of the model"
                )
            for number, begin in zip(wanted, shown, strict=True):
                places[number] = begin
        assert -1 not in places, (places, found)  # `look` refuses other kinds
        return places

    def _around(self, text: str, begin: int, end: int) -> tuple[int, int]:
        """How many characters before and after a placeholder the chat template prints with it."""
        before, after = self._processor.counts.around
        return len(before) * text.endswith(before, 0, begin), len(after) * text.startswith(
            after, end
        )

    def _repeats(
        self, pieces: Sequence[tuple[str, int]], start: int
    ) -> tuple[tuple[int, int, int], ...]:
        repeats = []
        for text, count in pieces:
            if count != 1:
                repeats.append((start, self._repeated(text), count))
            start += len(text)
        return tuple(repeats)

    def _repeated(self, token: str) -> int:
        """The id of a token that is repeated: it must cut texts, so that each copy is one token."""
        if (found := self._tokenizer.added_tokens.get(token)) is None:
            raise TemplateError(
                f"{self._tokenizer.path}: the processor ({self._processor.family}) repeats {token!r}, which is not an added token "
                f"of this tokenizer; use the tokenizer of the same model"
            )
        return found


def _count(context: dict[str, Any], word: str) -> int:
    """How often the texts of a record hold a word."""

    def count(value: Any) -> int:
        if isinstance(value, str):
            return value.count(word)
        inner = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, list | tuple)
            else ()
        )
        texts = [
            part["text"]
            for part in inner
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        across: int = "".join(texts).count(word) - sum(
            text.count(word) for text in texts
        )  # begun in one part, ended in the next
        return across + sum(map(count, inner))

    return sum(count(context.get(name)) for name in ("messages", "tools", "documents"))


def _inside(place: int, spans: Spans) -> bool:
    return any(begin <= place < end for begin, end in spans)


def moved(place: int, cuts: Sequence[tuple[int, int]]) -> int:
    """A place in a text, after placeholders in it were replaced; `cuts` as in Inserted."""
    return place + sum(longer for end, longer in cuts if end <= place)


def _moved(spans: Spans, cuts: Sequence[tuple[int, int]]) -> Spans:
    return [(moved(begin, cuts), moved(end, cuts)) for begin, end in spans]


def count_tokens(encoded: Encoded, batch: Sequence[Rendering]) -> Ints:
    """How many times each token of encoded renderings is repeated; once, unless it stands for media."""
    counts = np.ones(len(encoded.ids), np.int64)
    for number, made in enumerate(batch):
        if made.media:
            tokens = _Tokens(encoded, number, made)
            for place, token, count in (repeat for each in made.media for repeat in each.repeats):
                counts[tokens.at(place, token)] = count
    return counts


def repeat_tokens(
    encoded: Encoded, counts: Ints, mask: Bools, batch: Sequence[Rendering]
) -> tuple[Ids, Bools, Ints, Values]:
    """Ids, loss mask, offsets and the column `media` of encoded renderings; tokens of media are repeated and untrained."""
    new = borders(counts)
    mask = mask.copy()
    values = []
    for number, made in enumerate(batch):
        tokens = _Tokens(encoded, number, made) if made.media else None
        items = []
        for each in made.media:
            assert tokens is not None
            begin, end = tokens.covering(*each.untrained)
            mask[begin:end] = False
            first = new[encoded.offsets[number]]
            start, stop = (
                int(new[token] - first) for token in tokens.covering(each.begin, each.end)
            )
            items.append(replace(each.item, span=(start, stop)))
        values.append(pack_media(items))
    column = Values(
        np.frombuffer(b"".join(values), np.uint8), borders([len(value) for value in values])
    )
    return np.repeat(encoded.ids, counts), np.repeat(mask, counts), new[encoded.offsets], column


class _Tokens:
    """Which tokens cover which characters of one rendering."""

    def __init__(self, encoded: Encoded, number: int, made: Rendering) -> None:
        """number: of the rendering in its batch."""
        first, last = encoded.offsets[number : number + 2].tolist()
        self._first: int = first
        self._number = number
        self._ids = encoded.ids[first:last]
        self._starts = encoded.starts[first:last]
        self._stops = encoded.stops[first:last]
        self._bytes = (
            None if made.text.isascii() else byte_places(made.text)
        )  # None: one byte is one character

    def at(self, place: int, token: int) -> int:
        """The number of the token that begins at a character."""
        found: int = np.searchsorted(self._stops, self._byte(place), side="right").item()
        if found >= len(self._ids) or self._ids[found] != token:
            why = "the tokenizer does not encode a token that stands for media as one token"
            raise Unproven(f"{why}; use the tokenizer of the same model", record=self._number)
        return self._first + found

    def covering(self, begin: int, end: int) -> tuple[int, int]:
        """The tokens that cover the characters begin..end: the first, and the one behind the last."""
        low = np.searchsorted(self._stops, self._byte(begin), side="right")
        high = np.searchsorted(self._starts, self._byte(end), side="left")
        return self._first + int(low), self._first + int(high)

    def _byte(self, place: int) -> int:
        return place if self._bytes is None else int(self._bytes[place])
