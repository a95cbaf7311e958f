"""Which characters of a rendered conversation did the assistant write?  Dye them before rendering, look for the dye after it.

Every character of a trained field is moved into a private-use plane, except white space and tags (`<…>`), which templates trim and
compare.  Where a template escapes a field as JSON, only ASCII letters and digits are dyed, so that escaping stays the same.  The first
letter of every message that is not trained gets a mark of its own: there a turn ends.  Moving the characters back gives the plain
text and their places at once; numpy does it in one pass over the whole conversation.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.types import Bools

_SHIFT = 0xF0000  # plane 0 → plane 15, plane 1 (emoji) → plane 16
_SHIFT32 = np.uint32(_SHIFT)
_MARKS = 0xFD800  # plane 15 over the surrogates, where no dyed character can be: one mark per untrained message
_NUM_MARKS = 2048
_TAG = re.compile(r"<[^<>\n]{0,80}>")
_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")

Codes = npt.NDArray[np.uint32]


def _table(dyed: Any) -> Codes:
    """Code point of plane 0 → what it becomes."""
    codes = np.arange(0x10000, dtype=np.uint32)
    chosen = np.array([dyed(chr(code)) and not 0xD800 <= code < 0xE000 for code in range(0x10000)])
    return np.where(chosen, codes + _SHIFT, codes).astype(np.uint32)


FULL = _table(lambda character: not character.isspace() and character > "\x1f")
GENTLE = _table(lambda character: character.isascii() and character.isalnum())


class Dye:
    """The strings of one conversation, dyed together and handed out again in the order in which they were given."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._gentle: list[bool] = []
        self._marked: dict[str, str] = {}  # mark → the letter it stands for

    def add(self, text: str, *, gentle: bool) -> None:
        self._texts.append(text)
        self._gentle.append(gentle)

    def dyed(self) -> list[str]:
        joined = "\n".join(self._texts)  # a newline is never dyed and never part of a tag
        codes: Any  # uint8 where that is enough
        if joined.isascii():
            codes = np.frombuffer(joined.encode(), np.uint8)
            changed = FULL[codes]
        else:
            codes = _codes(joined)
            changed = np.where(codes < 0x20000, codes + _SHIFT, codes)
            plane_0 = codes < 0x10000
            changed[plane_0] = FULL[codes[plane_0]]
        if any(self._gentle):
            self._dye_gently(codes, changed)
        if "<" in joined:
            for tag in _TAG.finditer(joined):
                changed[tag.start() : tag.end()] = codes[tag.start() : tag.end()]
        whole, out, start = _text(changed), [], 0
        for text in self._texts:
            out.append(whole[start : start + len(text)])
            start += len(text) + 1
        return out

    def _dye_gently(self, codes: Any, changed: Codes) -> None:
        gentle = np.repeat(self._gentle, [len(text) + 1 for text in self._texts])[: len(codes)]
        chosen = codes[gentle].astype(np.uint32)
        changed[gentle] = np.where(chosen < 0x10000, GENTLE[chosen & 0xFFFF], chosen)

    def mark(self, text: str) -> str:
        """`text` with its first letter or digit replaced by a mark; as it is where there is none outside tags."""
        number = len(self._marked)
        if number >= _NUM_MARKS:
            return text
        for place, letter in enumerate(text[:200]):  # behind a wall of punctuation: not worth more
            if letter.isalnum() and letter < "\U00010000" and not (place and _in_tag(text, place)):
                mark = chr(_MARKS + number)
                self._marked[mark] = letter
                return f"{text[:place]}{mark}{text[place + 1 :]}"
        return text

    def undo(self, rendered: str) -> "Undyed":
        """Plain text, and where the dye and the marks are."""
        marks = []
        for mark, letter in self._marked.items():
            place = rendered.find(mark)
            if place >= 0:
                marks.append(place)
                rendered = rendered.replace(mark, letter)
        codes = _codes(rendered)
        dyed = codes >= _SHIFT
        return Undyed(text=_text(codes - dyed * _SHIFT32), dyed=dyed, marks=marks)


@dataclass(frozen=True, slots=True)
class Undyed:
    """A rendering with the dye taken out."""

    text: str
    dyed: Bools  # (len(text),) written by whoever is trained
    marks: list[int]  # places at which messages that are not trained begin


def has_private(text: str) -> bool:
    """Characters that look like dye: such a conversation cannot be dyed."""
    return not text.isascii() and _PRIVATE.search(text) is not None


def _in_tag(text: str, place: int) -> bool:
    """Whether a tag is open at `place`."""
    opened = text.rfind("<", max(0, place - 80), place)
    return opened >= 0 and _TAG.match(text, opened) is not None and text.find(">", opened) > place


def _codes(text: str) -> Codes:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32, copy=False)


def _text(codes: Codes) -> str:
    return codes.tobytes().decode("utf-32-le", "surrogatepass")
