"""Put the tokens of images, videos and audio clips in the place of their placeholders.

A chat template prints one placeholder for each of a record's media.  It is replaced in the rendered text by what the processor puts
there, with one copy of each repeated token.  The text is encoded once, and then the ids of these tokens are repeated.  This gives the
ids that the processor gives, because special tokens cut a text: what is next to them does not depend on how many there are.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.errors import MediaError, TemplateError
from penstock.extras.media.template import MediaReader, MediaReference
from penstock.templates.chat.unproven import Unproven
from penstock.templates.samples import Inserted, Rendering, Spans, moved
from penstock.templates.tokenizer.byte_offsets import Encoded, borders, byte_places
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import MEDIA, Ints, MediaItem, Samples, Values, pack_media


class Placer:
    """Replaces the placeholders of one processor in renderings."""

    def __init__(self, reader: MediaReader, tokenizer: Tokenizer) -> None:
        self._reader = reader
        self._processor = reader.processor
        self._tokenizer = tokenizer

    def place(
        self, rendering: Rendering, media: Sequence[MediaReference], context: dict[str, Any]
    ) -> Rendering:
        """The rendering with its placeholders replaced; the spans move with the text.

        Placeholders inside `rendering.plain` are words of the data.  context: what was rendered.
        """
        for reference in media:
            self._reader.refuse_kind(reference)
        begins = self._places(rendering, media, context)
        if not media:
            return rendering
        headers = [self._reader.read_header(reference) for reference in media]
        parts: list[str] = []
        inserted: list[Inserted] = []
        done = 0  # characters of the old text
        length = 0  # of the new text
        for number in sorted(range(len(media)), key=begins.__getitem__):
            reference = media[number]
            header, num_bytes = headers[number]
            begin = begins[number]
            end = begin + len(self._processor.placeholder(reference.kind))
            pieces = self._reader.expand(reference, header)
            text = "".join(piece for piece, _ in pieces)
            parts += [rendering.text[done:begin], text]
            length += begin - done
            item = MediaItem(
                kind=reference.kind,
                number=number,
                place=reference.path,
                start=reference.start,
                num_bytes=num_bytes,
                size=header.size,
                span=(0, 0),
                rate=header.rate,
            )
            before, after = self._around(reference.kind, rendering.text, begin, end)
            inserted.append(
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
            done = end
        parts.append(rendering.text[done:])
        cuts = [each.cut for each in inserted]
        return replace(
            rendering,
            text="".join(parts),
            spans=_moved(rendering.spans, cuts),
            plain=_moved(rendering.plain, cuts),
            media=inserted,
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

    def _around(self, kind: str, text: str, begin: int, end: int) -> tuple[int, int]:
        """How many characters before and after a placeholder the chat template prints with it."""
        before, after = self._processor.counts.around_of(kind)
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


def _moved(spans: Spans, cuts: Sequence[tuple[int, int]]) -> Spans:
    return [(moved(begin, cuts), moved(end, cuts)) for begin, end in spans]


def count_repeats(encoded: Encoded, batch: Sequence[Rendering]) -> Ints:
    """How many times each token of encoded renderings is repeated; once, unless it stands for media."""
    counts = np.ones(len(encoded.ids), np.int64)
    for number, rendering in enumerate(batch):
        if not rendering.media:
            continue
        tokens = _Tokens(encoded, number, rendering)
        for inserted in rendering.media:
            for place, token, count in inserted.repeats:
                counts[tokens.at(place, token)] = count
    return counts


def with_repeats(
    samples: Samples, counts: Ints, encoded: Encoded, batch: Sequence[Rendering]
) -> Samples:
    """Samples of encoded renderings with the column `media`; tokens of media are repeated and untrained."""
    new_places = borders(counts)
    mask = samples.loss_mask.copy()
    values = []
    for number, rendering in enumerate(batch):
        items = []
        if rendering.media:
            tokens = _Tokens(encoded, number, rendering)
            first = new_places[encoded.offsets[number]]
            for inserted in rendering.media:
                untrained = slice(*tokens.covering(*inserted.untrained))
                mask[untrained] = False
                start, stop = tokens.covering(inserted.begin, inserted.end)
                span = (int(new_places[start] - first), int(new_places[stop] - first))
                items.append(replace(inserted.item, span=span))
        values.append(pack_media(items))
    mask = np.repeat(mask, counts)
    columns = {
        name: Values(np.repeat(column.values, counts) * mask)  # weights; nothing untrained has one
        for name, column in samples.columns.items()
    }
    media = np.frombuffer(b"".join(values), np.uint8)
    columns[MEDIA.name] = Values(media, borders([len(value) for value in values]))
    return replace(
        samples,
        input_ids=np.repeat(samples.input_ids, counts),
        loss_mask=mask,
        offsets=new_places[encoded.offsets],
        columns=columns,
    )


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
