"""Which characters of a rendered conversation did the assistant write?  Dye them before rendering, look for the dye after it.

Every character of a trained field is moved into a plane that Unicode does not use, except white space, which templates trim, and
the constants that the template itself looks for (reads.py).  The first letter of a message that is not trained gets a mark of its own:
there a turn ends.  Moving the characters back gives the plain text and their places at once; numpy does it in one pass over
the whole conversation.
"""

import re
import string
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError

_DYE = 0x40000  # planes 0–3 → 4–7; no text has a character of planes 4–13 before Unicode gives one out
_UNDYE = np.uint32(_DYE - 1)
_NEXT = np.uint32(_DYE)  # planes 4–7 → 8–11: every second author has another ink
_MARKS = 0xC0000  # plane 12: one for each message that is not trained
_HOLLOW = 0xC8000  # stands where a trained message is empty
_ALONE = 0xCC000  # and there is no thought before it either
_ONCE = 0xD0000  # plane 13: names that templates may repeat
_PUT_IN = 0xE0000  # behind all of these
_NOBODY = -1  # who is not trained
_NEAR = 200  # characters in which a letter is looked for
_FOREIGN = re.compile("[\U00040000-\U000dffff]")

Turns = list[tuple[int, int]]
Codes = npt.NDArray[np.uint32]


class Unverified(TemplateError):
    """What the assistant wrote cannot be told from the rendering."""


@cache
def _full() -> Codes:
    """Code point of plane 0 → what it becomes; white space, control characters and surrogates stay."""
    codes = np.arange(0x10000, dtype=np.uint32)
    chosen = (codes > 0x1F) & ~((codes >= 0xD800) & (codes < 0xE000))
    chosen[[ord(space) for space in re.findall(r"\s", "".join(map(chr, range(0x10000))))]] = False
    return np.where(chosen, codes | _DYE, codes).astype(np.uint32)


class Palette:
    """What is not dyed: white space, and what a template looks for."""

    def __init__(self, needles: tuple[str, ...], *, json: bool) -> None:
        self._given = needles, json
        self._table = _full().copy()
        for needle in ('"', "\\", *needles) if json else needles:
            if len(needle) == 1 and ord(needle) < 0x10000:
                self._table[ord(needle)] = ord(needle)
        self._needles = tuple(needle for needle in needles if len(needle) > 1 and not needle.isspace())
        held = "".join(re.escape(needle) for needle in needles if len(needle) == 1) + ('"\\\\' if json else "")
        self._free = re.compile(f"[^\\s\\x00-\\x1f\\ud800-\\udfff\\U00040000-\\U0010ffff{held}]")
        self._in_needles = frozenset("".join(self._needles))
        self._needle = re.compile("|".join(map(re.escape, self._needles)) or "(?!)")
        self._reach = max(map(len, self._needles), default=0)
        self._surely_free = frozenset(self._free.findall(string.printable)) - self._in_needles

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
        if text[:1] in self._surely_free:
            return 0
        place = 0
        while found := self._free.search(text, place, _NEAR):  # behind a wall of white space: not worth more
            place = found.start()
            if not self._in_needle(text, place):
                return place
            place += 1
        return None

    def last_letter(self, text: str) -> int | None:
        """Where the last one stands, if only white space and single characters that are held back follow it."""
        end = len(text.rstrip())
        if text[end - 1 : end] in self._surely_free:
            return end - 1
        for place in range(end - 1, max(end - _NEAR, 0) - 1, -1):
            if self._free.match(text, place):
                return None if self._in_needle(text, place) else place
        return None

    def around(self, text: str, place: int) -> int:
        """Where the words begin whose first letter stands at `place`; there, if what precedes it is more than quotes and the like."""
        begin = place - len(text[:place].lstrip())
        return place if begin == place or self._needle.search(text, begin, place + self._reach) else begin

    def _in_needle(self, text: str, place: int) -> bool:
        """Whether a needle is so near that it might hold this character."""
        return text[place] in self._in_needles and (
            self._needle.search(text, max(0, place - self._reach), place + self._reach) is not None
        )


_BOLD = Palette((), json=False)


class Dye:
    """The strings of one conversation, dyed together and handed out again in the order in which they were given.

    A mark is a string too, of one letter.  What comes out of a template is compared with what went in: nearly always all
    of it is there in the same order, and then everything is known without a further look.
    """

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._texts: list[str] = []
        self._authors: list[int] = []  # of each text
        self._marks: dict[int, int] = {}  # text that is a mark → its code
        self._given: Codes = np.zeros(0, np.uint32)  # all that was changed, in order
        self._letters: Codes = self._given  # what it was before
        self._counts: list[int] = []  # changed characters of each text
        self._inks: dict[int, int] = {}  # code of a mark → the ink of its author
        self._bold = False

    def add(self, text: str, author: int) -> str:
        self._texts.append(text)
        self._authors.append(author)
        return text

    def mark(self, text: str) -> str:
        """`text` with its first letter replaced by a mark; as it is where there is none."""
        return self._marked(text, _MARKS, _NOBODY)

    def once(self, text: str, author: int) -> str:
        """The same with a mark that counts as the author's dye where it is met first."""
        return self._marked(text, _ONCE, author)

    def _marked(self, text: str, base: int, author: int) -> str:
        _check_planes(text)
        place = self._palette.letter(text)
        if place is None or len(self._marks) >= _HOLLOW - _MARKS:
            return text
        code = base + len(self._marks)
        self._marks[len(self._texts)] = code
        self.add(text[place], author)
        return f"{text[:place]}{chr(code)}{text[place + 1 :]}"

    def dyed(self) -> list[str]:
        """The texts in colour, without the marks.  An author who is left without any gets it all the same, needles or not."""
        if not self._texts:
            return []
        joined = "\n".join([*self._texts, ""])  # a newline is never dyed
        _check_planes(joined)
        changed = self._palette.dyed(joined)
        sizes = np.array([len(text) + 1 for text in self._texts])
        starts = np.cumsum(sizes) - sizes
        is_dyed = changed >> 18 == 1
        self._counts = np.add.reduceat(is_dyed, starts, dtype=np.int64).tolist()
        if 0 in self._counts and self._dye_pale(changed, starts.tolist()):
            is_dyed = changed >> 18 == 1
        shifts, ink, before = [], 0, _NOBODY
        for author, num in zip(self._authors, self._counts, strict=True):
            if num and author not in (before, _NOBODY):
                ink, before = 1 - ink, author
            shifts.append(ink * _DYE)
        self._inks = {code: 1 + shifts[number] // _DYE for number, code in self._marks.items()}
        changed = changed + np.repeat(np.array(shifts, np.uint32), sizes) * is_dyed
        if self._marks:
            changed[starts[list(self._marks)]] = list(self._marks.values())
        self._given = changed[is_dyed]
        self._letters = codes_of(joined)[is_dyed]
        whole = text_of(changed)
        texts = enumerate(zip(starts.tolist(), self._texts, strict=True))
        return [whole[start : start + len(text)] for number, (start, text) in texts if number not in self._marks]

    def _dye_pale(self, changed: Codes, starts: list[int]) -> bool:
        """Dye those who have no colour; whether there was one."""
        vivid = {author for author, num in zip(self._authors, self._counts, strict=True) if num}
        for number, (text, author) in enumerate(zip(self._texts, self._authors, strict=True)):
            if self._counts[number] or author in vivid or not text or text.isspace():
                continue
            bold = _BOLD.dyed(text)
            self._counts[number] = int((bold >> 18 == 1).sum())
            if not self._counts[number]:
                raise Unverified(f"a message holds nothing that can be dyed: {text[:20]!r}")
            changed[starts[number] : starts[number] + len(text)] = bold
            self._bold = True
        return self._bold

    def undo(self, rendered: str, *, ordered: bool = True) -> "Undyed":
        """Plain text, and where the dye and the marks are.  `ordered`: the texts must come out once, in the order they were given."""
        codes = codes_of(rendered)
        places = np.flatnonzero(codes >= _DYE)
        if not np.array_equal(codes[places], self._given):
            return self._undo_changed(codes, ordered=ordered)
        codes = codes.copy()
        codes[places] = self._letters
        edges, marks, done, author = [0], [], 0, None
        for number, num in enumerate(self._counts):
            if self._authors[number] == _NOBODY:
                marks.append(done)
            elif num:
                if self._authors[number] != author and author is not None:
                    edges.append(done - len(marks))
                author = self._authors[number]
            done += num
        marked = places[marks].tolist()
        places = np.delete(places, marks) if marks else places
        edges = [*edges, len(places)] if len(places) else [0]
        turns = _turns(places, edges)
        return Undyed(text=text_of(codes), places=places, turns=turns, marks=marked, hollow=[], bold=self._bold)

    def _undo_changed(self, codes: Codes, *, ordered: bool) -> "Undyed":
        """Where something is missing, doubled, put in or in another order."""
        ink = codes >> 18  # 0: as it was; 1, 2: the two inks; 3: put in, or beyond
        dyed = (ink == 1) | (ink == 2)
        if ordered:
            self._check_order(codes[dyed])
        letters = dict(zip(self._marks.values(), (ord(self._texts[number]) for number in self._marks), strict=True))
        codes, marks, hollow, met = codes.copy(), [], [], set()
        for place in np.flatnonzero((codes >= _MARKS) & (codes < _PUT_IN)).tolist():
            code = int(codes[place])
            if _HOLLOW <= code < _ONCE:
                hollow.append(place)
                dyed[place] = True
                continue
            if code not in letters or (code in met and code < _HOLLOW):
                raise Unverified("the chat template prints a message twice")
            codes[place] = letters[code]
            if code < _HOLLOW:
                marks.append(place)
            elif code not in met:
                dyed[place], ink[place] = True, self._inks[code]
            met.add(code)
        inked = np.flatnonzero(dyed & (ink < 3))  # without what stands in empty messages
        changes = inked[1:][np.diff(ink[inked]) != 0].tolist()
        text = text_of(np.where(dyed & (codes >= _DYE), codes & _UNDYE, codes))
        places = np.flatnonzero(dyed)
        alone = [place for place in hollow if codes[place] >= _ALONE]
        borders = [*changes, *marks, *alone, *(place + 1 for place in alone)]
        edges = sorted({0, len(places), *np.searchsorted(places, borders).tolist()})
        turns = _turns(places, edges)
        return Undyed(text=text, places=places, turns=turns, marks=marks, hollow=hollow, bold=self._bold)

    def _check_order(self, found: Codes) -> None:
        """What an author wrote comes out once, authors in order; some of it may be missing, as templates drop old thoughts."""
        given: dict[int, str] = {}
        place = 0
        for number, num in enumerate(self._counts):
            if number not in self._marks and num:
                author = self._authors[number]
                given[author] = given.get(author, "") + text_of(self._given[place : place + num])
            place += num
        waiting = list(given.values())[::-1]
        edges = [0, *(np.flatnonzero(np.diff(found >> 18)) + 1).tolist(), len(found)]
        for start, stop in pairwise(edges):
            run = text_of(found[start:stop])
            rest = Counter(run)
            while rest and waiting:
                words = waiting.pop()
                if ord(words[0]) >> 18 == ord(run[0]) >> 18:
                    rest -= Counter(words)
            if rest:
                raise Unverified("the chat template repeats or rearranges what the assistant wrote")


def hollow_mark(number: int, *, alone: bool) -> str:
    """Stands in an empty message, so that its place can be found.  alone: nothing else of it is dyed."""
    return chr((_ALONE if alone else _HOLLOW) + number)


def has_foreign(text: str) -> bool:
    """Whether a text holds characters of planes that are not in use."""
    return not text.isascii() and _FOREIGN.search(text) is not None


def _check_planes(text: str) -> None:
    if has_foreign(text):
        raise Unverified("a message holds characters of planes that Unicode does not use, which the dye needs")


@dataclass(frozen=True, slots=True)
class Undyed:
    """A rendering with the dye taken out."""

    text: str
    places: npt.NDArray[np.intp]  # of characters written by whoever is trained, ascending
    turns: Turns  # the first and the last place of each author, in order
    marks: list[int]  # places at which messages that are not trained begin
    hollow: list[int]  # places of characters that stand in empty messages
    bold: bool  # whether something was dyed that the template may look for


def _turns(places: npt.NDArray[np.intp], edges: list[int]) -> Turns:
    """Turn i is places[edges[i]:edges[i + 1]]."""
    return [(int(places[start]), int(places[stop - 1])) for start, stop in pairwise(edges)]


def codes_of(text: str) -> Codes:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32, copy=False)


def text_of(codes: Codes) -> str:
    return codes.tobytes().decode("utf-32-le", "surrogatepass")
