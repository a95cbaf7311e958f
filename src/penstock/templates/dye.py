"""Which characters of a rendered conversation did the assistant write?  Dye them before rendering, look for the dye after it.

Every character of a trained field is moved into a plane that Unicode does not use, except white space, which templates trim, and
the constants that the template itself looks for (reads.py).  The first letter of a message that is not trained gets a mark of its own:
there a turn ends.  Moving the characters back gives the plain text and their places at once; numpy does it in one pass over
the whole conversation.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.types import Bools

_DYE = 0x40000  # planes 0–3 → 4–7; no text has a character of planes 4–13 before Unicode gives one out
_UNDYE = np.uint32(_DYE - 1)
_NEXT = np.uint32(_DYE)  # planes 4–7 → 8–11: every second author has another ink
_MARKS = 0xC0000  # plane 12: one for each message that is not trained
_HOLLOW = 0xC8000  # stands where a trained message is empty
_ONCE = 0xD0000  # plane 13: names that templates may repeat
_PUT_IN = 0xE0000  # behind all of these
_FOREIGN = re.compile("[\U00040000-\U000dffff]")

Codes = npt.NDArray[np.uint32]


class Unverified(TemplateError):
    """What the assistant wrote cannot be told from the rendering."""


def _table(dyed: Callable[[str], bool]) -> Codes:
    """Code point of plane 0 → what it becomes."""
    codes = np.arange(0x10000, dtype=np.uint32)
    chosen = np.array([not 0xD800 <= code < 0xE000 and dyed(chr(code)) for code in range(0x10000)])
    return np.where(chosen, codes | _DYE, codes).astype(np.uint32)


_FULL = _table(lambda character: not character.isspace() and character > "\x1f")


class Palette:
    """What is not dyed: white space, and what a template looks for."""

    def __init__(self, needles: tuple[str, ...], *, json: bool) -> None:
        self._given = needles, json
        self._table = _FULL.copy()
        for needle in ('"', "\\", *needles) if json else needles:
            if len(needle) == 1 and ord(needle) < 0x10000:
                self._table[ord(needle)] = ord(needle)
        self._needles = [needle for needle in needles if len(needle) > 1 and not needle.isspace()]

    def __reduce__(self) -> tuple[Any, ...]:
        needles, json = self._given
        return partial(Palette, json=json), (needles,)

    def dyed(self, text: str) -> Codes:
        if text.isascii():
            codes: Any = np.frombuffer(text.encode(), np.uint8)
            changed = self._table[codes]
        else:
            codes = codes_of(text)
            changed = np.where(codes < _DYE, codes | np.uint32(_DYE), codes)
            plane_0 = codes < 0x10000
            changed[plane_0] = self._table[codes[plane_0]]
        for needle in self._needles:
            place = text.find(needle)
            while place >= 0:
                changed[place : place + len(needle)] = codes[place : place + len(needle)]
                place = text.find(needle, place + 1)
        return np.asarray(changed, np.uint32)

    def letter(self, text: str) -> int | None:
        """Where the first character stands that can be dyed."""
        for place, letter in enumerate(text[:200]):  # behind a wall of punctuation: not worth more
            if letter < "\U00010000" and self._table[ord(letter)] >= _DYE:
                if any(
                    text.find(needle, max(0, place - len(needle) + 1), place + len(needle)) >= 0
                    for needle in self._needles
                ):
                    continue
                return place
        return None


_BOLD = Palette((), json=False)


class Dye:
    """The strings of one conversation, dyed together and handed out again in the order in which they were given."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._texts: list[str] = []
        self._letters: list[int] = []  # mark → the letter it stands for
        self._given: Codes = np.zeros(0, np.uint32)  # all that was dyed, in order
        self._author_sizes = np.zeros(0, np.int64)  # how much of it each wrote
        self._bold = False

    @property
    def num_texts(self) -> int:
        return len(self._texts)

    def keep(self, text: str) -> str:
        self._texts.append(text)
        return text

    def dyed(self, authors: Sequence[int] = ()) -> list[str]:
        """The texts in colour.  An author (a number for each text) who is left without any gets it all the same, needles or not."""
        joined = "\n".join(self._texts)  # a newline is never dyed
        _check_planes(joined)
        changed = self._palette.dyed(joined)
        out = self._cut(changed)
        if not authors:
            return out
        pale = [text == new and text != "" and not text.isspace() for text, new in zip(self._texts, out, strict=True)]
        if any(pale):
            self._dye_pale(changed, out, pale, authors)
        sizes = [len(text) + 1 for text in self._texts]
        inks = np.cumsum([0, *(a != b for a, b in pairwise(authors))])  # 0, 0, 1, 2 …: which of the authors
        number = np.repeat(inks, sizes)[: len(changed)]
        is_dyed = changed >> 18 == 1
        changed += (is_dyed & (number & 1 == 1)) * _NEXT
        self._given = changed[is_dyed]
        self._author_sizes = np.bincount(number[is_dyed], minlength=int(inks[-1]) + 1)
        return self._cut(changed)

    def _dye_pale(self, changed: Codes, out: list[str], pale: list[bool], authors: Sequence[int]) -> None:
        vivid = {author for author, text, new in zip(authors, self._texts, out, strict=True) if text != new}
        start = 0
        for text, is_pale, author in zip(self._texts, pale, authors, strict=True):
            if is_pale and author not in vivid:
                changed[start : start + len(text)] = _BOLD.dyed(text)
                self._bold = True
                if not (changed[start : start + len(text)] >> 18 == 1).any():
                    raise Unverified(f"a message holds nothing that can be dyed: {text[:20]!r}")
            start += len(text) + 1

    def _cut(self, changed: Codes) -> list[str]:
        whole, out, start = text_of(changed), [], 0
        for text in self._texts:
            out.append(whole[start : start + len(text)])
            start += len(text) + 1
        return out

    def mark(self, text: str) -> str:
        """`text` with its first letter replaced by a mark; as it is where there is none."""
        return self._marked(text, _MARKS)

    def once(self, text: str) -> str:
        """The same with a mark that counts as dye where it is met first."""
        return self._marked(text, _ONCE)

    def _marked(self, text: str, base: int) -> str:
        _check_planes(text)
        place = self._palette.letter(text)
        if place is None or len(self._letters) >= _HOLLOW - _MARKS:
            return text
        self._letters.append(ord(text[place]))
        return f"{text[:place]}{chr(base + len(self._letters) - 1)}{text[place + 1 :]}"

    def undo(self, rendered: str, *, ordered: bool = True) -> "Undyed":
        """Plain text, and where the dye and the marks are.  `ordered`: the texts must come out once, in the order they were given."""
        codes = codes_of(rendered)
        ink = codes >> 18  # 0: as it was; 1, 2: the two inks; 3: put in, or beyond
        dyed = (ink == 1) | (ink == 2)
        if ordered:
            self._check_order(codes[dyed])
        marks: list[int] = []
        hollow: list[int] = []
        put_in = np.flatnonzero((codes >= _MARKS) & (codes < _PUT_IN)).tolist()
        if put_in:
            codes = codes.copy()
            first: set[int] = set()
            for place in put_in:
                code = int(codes[place])
                if _HOLLOW <= code < _ONCE:
                    hollow.append(place)
                    dyed[place] = True
                    continue
                number = code - (_MARKS if code < _HOLLOW else _ONCE)
                if number >= len(self._letters) or (code in first and code < _HOLLOW):
                    raise Unverified("the chat template prints a message twice")
                codes[place] = self._letters[number]
                if code < _HOLLOW:
                    marks.append(place)
                elif code not in first:
                    dyed[place] = True
                first.add(code)
        places = np.flatnonzero((ink == 1) | (ink == 2))
        turns = places[1:][np.diff(ink[places]) != 0].tolist()
        text = text_of(np.where(dyed & (codes >= _DYE), codes & _UNDYE, codes))
        return Undyed(text=text, dyed=dyed, marks=marks, turns=turns, hollow=hollow, bold=self._bold)

    def _check_order(self, found: Codes) -> None:
        """What an author wrote comes out once, authors in order; some of it may be missing, as templates drop old thoughts."""
        if np.array_equal(found, self._given):
            return
        edges = [0, *(np.flatnonzero(np.diff(found >> 18)) + 1).tolist(), len(found)]
        stops = np.cumsum(self._author_sizes).tolist()
        author, num_authors = 0, len(stops)
        for start, stop in pairwise(edges):
            run = found[start:stop]
            rest = Counter(text_of(run))
            while rest and author < num_authors:
                given = self._given[stops[author - 1] if author else 0 : stops[author]]
                author += 1
                if len(given) and given[0] >> 18 == run[0] >> 18:
                    rest -= Counter(text_of(given))
            if rest:
                raise Unverified("the chat template repeats or rearranges what the assistant wrote")


def hollow_mark(number: int) -> str:
    """Stands in an empty message, so that its place can be found."""
    return chr(_HOLLOW + number)


def _check_planes(text: str) -> None:
    if not text.isascii() and _FOREIGN.search(text):
        raise Unverified("a message holds characters of planes that Unicode does not use, which the dye needs")


@dataclass(frozen=True, slots=True)
class Undyed:
    """A rendering with the dye taken out."""

    text: str
    dyed: Bools  # (len(text),) written by whoever is trained
    marks: list[int]  # places at which messages that are not trained begin
    turns: list[int]  # places at which somebody else's dye begins
    hollow: list[int]  # places of characters that stand in empty messages
    bold: bool = False  # whether something was dyed that the template may look for


def codes_of(text: str) -> Codes:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32, copy=False)


def text_of(codes: Codes) -> str:
    return codes.tobytes().decode("utf-32-le", "surrogatepass")
