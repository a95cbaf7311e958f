"""Find the trained spans of plain chats fast: what a template prints around messages that are nothing but text.

A layout is learned once for each order of roles from made-up messages, with their trained spans found in the usual way.  A rendering
that equals the layout with the real words in it, letter by letter, has the layout's spans.  Any other rendering takes the usual way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from penstock.templates.chat.kinds import MadeUp

Spans = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Layout:
    pieces: list[str]  # what stands before the first message's words, between them, and behind the last
    turns: list[tuple[int, int, int]]  # (message, how far before its words it is trained, how far behind them)

    def spans(self, text: str, words: list[str]) -> Spans | None:
        """What is trained of a text, if it is these words in this layout."""
        found = self._filled(text, words)
        return found if found is not None else self._filled(text, [some.strip() for some in words])

    def _filled(self, text: str, words: list[str]) -> Spans | None:
        parts = [""] * (2 * len(words) + 1)
        parts[::2], parts[1::2] = self.pieces, words
        if "".join(parts) != text:
            return None
        ends = list(accumulate(map(len, parts)))
        return [(ends[2 * place] - before, ends[2 * place + 1] + behind) for place, before, behind in self.turns]


def learn_layout(made: MadeUp, text: str, spans: Spans, trained: Sequence[bool]) -> Layout | None:
    """The layout of a rendering of made-up messages; None where their words do not come out once and in order."""
    words = [some[0] for some in made.words]
    starts = [text.find(word) for word in words]
    stops = [start + len(word) for start, word in zip(starts, words, strict=True)]
    borders = [0, *(border for pair in zip(starts, stops, strict=True) for border in pair), len(text)]
    places = [place for place, yes in enumerate(trained) if yes]
    once = all(text.count(word) == 1 for word in words)
    if not once or borders != sorted(borders) or len(places) != len(spans):
        return None
    turns = []
    for place, (start, stop) in zip(places, spans, strict=True):
        before, behind = borders[2 * place], borders[2 * place + 3]  # the words around these
        if not before <= start <= starts[place] <= stops[place] <= stop <= behind:
            return None
        turns.append((place, starts[place] - start, stop - stops[place]))
    pieces = [text[start:stop] for start, stop in list(pairwise(borders))[::2]]
    return Layout(pieces, turns)
