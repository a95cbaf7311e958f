"""Cut a text that is given as tokens between two of its characters, and encode it again around the cut.

A model that fills in the middle is given a prefix that ends inside a word.  Its tokens are those of the prefix, and not the first ones of
the word.  Far from the cut, tokens stay as they are: only a few on both sides are encoded again, and only if they are encoded to the same
tokens without a cut; else more of them are taken, at last the whole text.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.extras.objectives.noise import Floats
from penstock.extras.objectives.token_bytes import TokenBytes, read_bpe
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Ids, Ints

_NEAR = 8  # tokens on each side of a cut


@dataclass(frozen=True, slots=True)
class _Text:
    """Tokens of a text, with the bytes of each."""

    ids: Ids
    content: bytes
    ends: Ints  # where each token ends in the bytes
    characters: Ints  # where each character begins, and the end of the text

    def begin_of(self, token: int) -> int:
        """Return where a token begins; of the number after the last one, where the text ends."""
        return int(self.ends[token - 1]) if token else 0


@dataclass(frozen=True, slots=True)
class _Window:
    """Tokens first..last, and the bytes that are encoded again, at whose places `cuts` the text is cut."""

    first: int
    last: int
    cuts: tuple[int, ...]


class CharacterCuts:
    """Cuts texts of one tokenizer."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        """name: of the dataset."""
        self._tokenizer = tokenizer
        self._bytes = TokenBytes(tokenizer, read_bpe("fim", name, tokenizer))

    def cut(self, ids: Ids, places: Floats) -> tuple[Ids, Ids, Ids]:
        """Return prefix, middle and suffix.  places: two draws, from 0 up to but not 1, as places among the text's characters."""
        text = self._read(ids)
        borders = text.characters[(places * text.characters.size).astype(np.int64)]
        first, second = sorted(self._beside_added(text, int(border)) for border in borders)
        windows = self._windows(text, first, second)
        pieces = self._encode(text, windows)
        if len(windows) == 1:
            window = windows[0]
            prefix, middle, suffix = pieces[0]
            before = ids[: window.first]
            after = ids[window.last :]
            return np.concatenate([before, prefix]), middle, np.concatenate([suffix, after])
        left, right = windows
        between = ids[left.last : right.first]
        prefix = np.concatenate([ids[: left.first], pieces[0][0]])
        middle = np.concatenate([pieces[0][1], between, pieces[1][0]])
        suffix = np.concatenate([pieces[1][1], ids[right.last :]])
        return prefix, middle, suffix

    def _read(self, ids: Ids) -> _Text:
        parts = self._bytes.of(ids)
        content = b"".join(parts)
        every = np.frombuffer(content, np.uint8)
        begins = np.flatnonzero((every & 0xC0) != 0x80)
        return _Text(
            ids=ids,
            content=content,
            ends=np.cumsum([len(part) for part in parts], dtype=np.int64),
            characters=np.append(begins, len(content)),
        )

    def _beside_added(self, text: _Text, border: int) -> int:
        """Return the place of a cut, or the begin of the added token that it would cut."""
        token = int(np.searchsorted(text.ends, border, side="right"))
        begin = text.begin_of(token)
        if token < text.ids.size and border > begin and self._bytes.is_added(text.ids[[token]])[0]:
            return begin
        return border

    def _windows(self, text: _Text, first: int, second: int) -> list[_Window]:
        """Return what is encoded again: one window around both cuts, or one around each if they are far from each other."""
        left = self._window(text, (first,))
        right = self._window(text, (second,))
        if left.last <= right.first:
            return [left, right]
        return [self._window(text, (first, second))]

    def _window(self, text: _Text, cuts: tuple[int, ...]) -> _Window:
        """Return the smallest window that is encoded to its own tokens, or the whole text."""
        tokens = np.searchsorted(text.ends, np.array(cuts), side="right")
        size = _NEAR
        while True:
            first = self._at_character(text, max(0, int(tokens[0]) - size), -1)
            last = self._at_character(text, min(text.ids.size, int(tokens[-1]) + 1 + size), 1)
            window = _Window(first, last, cuts)
            if last - first == text.ids.size or self._is_stable(text, window):
                return window
            size *= 4

    @staticmethod
    def _at_character(text: _Text, token: int, step: int) -> int:
        """Return the nearest token, in steps of `step`, that begins with a character, or the end of the text."""
        while 0 < token < text.ids.size:
            begin = text.begin_of(token)
            place = int(np.searchsorted(text.characters, begin))
            if text.characters[place] == begin:
                break
            token += step
        return token

    def _is_stable(self, text: _Text, window: _Window) -> bool:
        (found,) = self._encoded([self._bytes_of(text, window)])
        return np.array_equal(found, text.ids[window.first : window.last])

    def _encode(self, text: _Text, windows: list[_Window]) -> list[list[Ids]]:
        """Return the tokens of the pieces of each window."""
        found = []
        for window in windows:
            begin = text.begin_of(window.first)
            content = self._bytes_of(text, window)
            borders = [0, *(cut - begin for cut in window.cuts), len(content)]
            pieces = [content[low:high] for low, high in pairwise(borders)]
            found.append(self._encoded(pieces))
        return found

    def _bytes_of(self, text: _Text, window: _Window) -> bytes:
        return text.content[text.begin_of(window.first) : text.begin_of(window.last)]

    def _encoded(self, pieces: list[bytes]) -> list[Ids]:
        texts = [piece.decode("utf-8", "replace") for piece in pieces]
        ids, offsets = self._tokenizer.encode(texts)
        return [ids[start:stop].astype(np.uint32) for start, stop in pairwise(offsets.tolist())]
