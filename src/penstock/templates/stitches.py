"""Where do somebody's words stand in a rendering, if they came out as they went in?  A stitch at their first and last letter tells.

Two letters of each string are replaced by characters that no text has.  If the strings come out once, in order, with
everything between their stitches unchanged, that is all there is to know, for a quarter of the price of dye (dye.py).  Tool
calls, and messages of who is not trained, may be missing whole.  If anything else is different, nothing is said, and the dye has
to find out.
"""

import numpy as np

from penstock.templates.dye import Palette, Turns, Undyed, has_foreign

_FIRST = 0x40000  # planes 4–13 are not in use
_MOST = 0x90000
_LEAST = chr(_FIRST)


class Stitches:
    """The strings of one conversation, in the order of printing."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._sewn: list[tuple[str, str, int]] = []  # (with stitches, without, author), white space aside
        self._num = 0
        self._gave_up = False
        self._calls: set[int] = set()  # which of the strings are parts of a tool call
        self.is_blank = False  # whether a string was without words

    def add(self, text: str, author: int) -> str:
        """`text` with stitches."""
        first, last = self._palette.letter(text), self._palette.last_letter(text)
        if first is None or last is None:
            if text and not text.isspace():
                self._gave_up = True
            else:
                self.is_blank = True
            return text
        one, two = chr(_FIRST + self._num), chr(_FIRST + self._num + 1)
        self._num += 2
        begin, end = (
            self._palette.around(text, first),
            len(text.rstrip()),
        )  # with quotes and the like, which are not sewn
        inner = f"{one}{text[first + 1 : last]}{two}" if first < last else one
        sewn = f"{text[begin:first]}{inner}{text[last + 1 : end]}"
        self._sewn.append((sewn, text[begin:end], author))
        return f"{text[:begin]}{sewn}{text[end:]}"

    def call(self, text: str, author: int) -> str:
        """`text`, a part of a tool call, with stitches: a template that knows no tools leaves it out whole."""
        before = len(self._sewn)
        sewn = self.add(text, author)
        self._calls.update(range(before, len(self._sewn)))
        return sewn

    def mark(self, text: str) -> str:
        """`text` with one stitch, at its first letter, for who is not trained; as it is where there is no place for one."""
        place = self._palette.letter(text)
        if place is None:
            return text
        one = chr(_FIRST + self._num)
        self._num += 2
        self._sewn.append((one, text[place], -1))
        return f"{text[:place]}{one}{text[place + 1 :]}"

    def undo(self, rendered: str) -> Undyed | None:
        """Plain text, and where the strings are; None if there is more to it."""
        if self._gave_up or self._num > _MOST:
            return None
        pieces: list[str] = []
        places: list[int] = []
        turns: Turns = []
        marks: list[int] = []
        done = size = 0  # of the rendering, of the plain text
        before = None
        for number, (sewn, text, author) in enumerate(self._sewn):
            place = rendered.find(sewn, done)
            if place < 0:
                if (author < 0 or number in self._calls) and not _any_of(sewn, rendered):
                    continue  # left out; any stitch of it that is elsewhere is found below
                return None
            size += place - done
            pieces += (rendered[done:place], text)
            if author < 0:
                marks.append(size)
            else:
                last = size + len(text) - 1
                turns.append((size if author != before else turns.pop()[0], last))
                before = author
                places += (size, last)
            done = place + len(sewn)
            size += len(text)
        pieces.append(rendered[done:])
        plain = "".join(pieces)
        if has_foreign(plain):
            return None
        return Undyed(text=plain, places=np.array(places, np.intp), turns=turns, marks=marks, hollow=[], bold=False)


def _any_of(sewn: str, rendered: str) -> bool:
    """Whether a stitch of this string is anywhere in a rendering."""
    return any(letter in rendered for letter in sewn if letter >= _LEAST)
