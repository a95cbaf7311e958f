"""Which special tokens may a text hold?  Those its template wrote; what somebody wrote into a field stays text."""

import re
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import TemplateError
from penstock.templates.token_bytes import Encoded, by_reference, byte_places
from penstock.types import Ints

if TYPE_CHECKING:
    import tokenizers

Ranges = Sequence[tuple[int, int]]  # (start, stop) in bytes of one text, in order, without overlap

_MARK = "\ufdd0\ufdd5\ufddb"  # noncharacters: Unicode promises that no text means anything by them
_WORD = re.compile(r"\w")


def inside(encoded: Encoded, marks: Ints, plain: Sequence[Ranges]) -> Ints:
    """Those of `marks` (places of tokens) whose bytes touch a range of their text."""
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(plain)), dtype=np.int64).reshape(-1, 2)
    owner = np.repeat(np.arange(len(plain)), [len(ranges) for ranges in plain]) << 40  # longer than any text
    starts, stops = flat[:, 0] + owner, flat[:, 1] + owner
    assert (starts <= stops).all() and (starts[1:] >= stops[:-1]).all(), "ranges are not in order or overlap"
    starts, stops = starts[starts < stops], stops[starts < stops]
    text = (np.searchsorted(encoded.offsets, marks, side="right") - 1) << 40
    following = np.searchsorted(stops, encoded.starts[marks] + text, side="right")  # first range that ends behind it
    begins = np.append(starts, np.iinfo(np.int64).max)[following]
    return marks[begins < encoded.stops[marks] + text]


class SelectiveReference:
    """`tokenizers` with special tokens only where they are wanted.

    Every special token gets a twin that no text can hold: its content behind noncharacters, an added token that is not
    special.  The engine takes special tokens for text, and the wanted ones are written as their twins, which cut the
    text, take blanks along and ask for word borders just as the originals do.  Slow, and only for texts that need it.
    """

    def __init__(self, engine: "tokenizers.Tokenizer", *, unknown: int | None) -> None:
        engine.post_processor = None
        engine.encode_special_tokens = True
        added = engine.get_added_tokens_decoder()
        self._ids = {token.content: number for number, token in added.items() if token.special}
        self._single = {token.content for token in added.values() if token.single_word}
        longest_first = sorted((token.content for token in added.values()), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        engine.add_tokens([_twin(token) for token in added.values() if token.special])
        self._engine = engine
        self._special = np.array([number for number in self._ids.values() if number != unknown], dtype=np.uint32)

    def encode(self, texts: Sequence[str], record: int, plain: Ranges) -> Encoded:
        """Ids of one of the texts; special tokens that touch a range of `plain` are text."""
        text = texts[record]
        if _MARK in text:
            reason = "the text holds the noncharacters U+FDD0 U+FDD5 U+FDDB beside a special token; remove them"
            raise TemplateError(reason, record=record)
        wanted = self._wanted(text, plain)
        pieces, done = [], 0
        for start, _ in wanted:
            pieces += [text[done:start], _MARK]
            done = start
        pieces.append(text[done:])
        encoding = self._engine.encode("".join(pieces), add_special_tokens=False)
        is_twin = np.array([_MARK in token for token in encoding.tokens], dtype=np.bool_)
        assert is_twin.sum() == len(wanted), (text, wanted)
        encoded = by_reference([text], [_Shifted(encoding, [start for start, _ in wanted])])
        if (leaked := np.isin(encoded.ids, self._special) & ~is_twin).any():
            token = self._engine.id_to_token(int(encoded.ids[leaked][0]))
            reason = f"special token {token!r} stands in the text; this vocabulary has it as a word and cannot spell it"
            raise TemplateError(f"{reason}; choose special_in_text='token' to let it be one", record=record)
        encoded.ids[is_twin] = [self._ids[text[start:stop]] for start, stop in wanted]
        return encoded

    def _wanted(self, text: str, plain: Ranges) -> list[tuple[int, int]]:
        """Where special tokens stand that touch no range: (start, stop) in characters."""
        places = byte_places(text)
        starts, stops = (np.searchsorted(places, [pair[side] for pair in plain]) for side in (0, 1))
        wanted, at = [], 0
        while match := self._pattern.search(text, at):
            start, stop = match.span()
            at = stop
            if match[0] not in self._ids or (match[0] in self._single and _inside_word(text, start, stop)):
                continue
            if ((starts < stop) & (stops > start) & (starts < stops)).any():
                at = start + 1  # text after all: another token may begin within it
            else:
                wanted.append((start, stop))
        return wanted


class _Shifted:
    """An encoding seen without the marks in its text."""

    def __init__(self, encoding: "tokenizers.Encoding", marks: list[int]) -> None:
        self.ids = encoding.ids
        with_marks = np.array(marks, dtype=np.int64) + len(_MARK) * np.arange(
            len(marks)
        )  # where they stand in the marked text
        chars = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        self.offsets = chars - len(_MARK) * np.searchsorted(with_marks, chars, side="left")


def _twin(token: "tokenizers.AddedToken") -> "tokenizers.AddedToken":
    import tokenizers

    return tokenizers.AddedToken(
        _MARK + token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=False,
    )


def _inside_word(text: str, start: int, stop: int) -> bool:
    """Whether a letter stands directly before or after: a token for single words is none there."""
    return bool(_WORD.match(text[start - 1 : start]) or _WORD.match(text[stop : stop + 1]))
