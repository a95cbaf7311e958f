"""Where do words stand in a rendering, if a template puts the same things around them whatever they are?  In their mould.

A mould is what a template puts around messages of nothing but words, learned once for each order of roles, by dye, from words
of our own.  If a rendering is the mould with the words in it, letter by letter, it is known where they stand, and it was not even
touched.  If it is not, nothing is said, and stitches or dye have to find out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from penstock.errors import TemplateError
from penstock.templates.masks import Rendering, Spans
from penstock.templates.messages import Message


@dataclass(frozen=True, slots=True)
class Mould:
    pieces: list[str]  # what stands around the words: before the first, between them, behind the last
    turns: list[tuple[int, int, int]]  # (message, how far before its words it is trained, how far behind them)

    def spans(self, text: str, words: list[str]) -> Spans | None:
        """What is trained of a text, if it is these words in this mould."""
        found = self._filled(text, words)
        return found or self._filled(text, [some.strip() for some in words])  # as many templates have it

    def _filled(self, text: str, words: list[str]) -> Spans | None:
        parts = [""] * (2 * len(words) + 1)
        parts[::2], parts[1::2] = self.pieces, words
        if "".join(parts) != text:
            return None
        ends = list(accumulate(map(len, parts)))
        return [(ends[2 * place] - before, ends[2 * place + 1] + behind) for place, before, behind in self.turns]


def learn_mould(
    rendering: Callable[[list[Message], list[bool]], Rendering], roles: Sequence[str], trained: Sequence[bool]
) -> Mould | None:
    """The mould of messages in this order; None where words do not come out as they went in."""
    words = [f"penstock{place}words" for place in range(len(roles))]
    messages = [{"role": role, "content": some} for role, some in zip(roles, words, strict=True)]
    try:
        made = rendering(messages, list(trained))
    except TemplateError:  # a real conversation will say why
        return None
    starts = [made.text.find(some) for some in words]
    stops = [start + len(some) for start, some in zip(starts, words, strict=True)]
    borders = [0, *(border for pair in zip(starts, stops, strict=True) for border in pair), len(made.text)]
    once = all(made.text.count(some) == 1 for some in words)
    places = [place for place, yes in enumerate(trained) if yes]
    if not once or borders != sorted(borders) or len(places) != len(made.spans):
        return None
    turns = []
    for place, (start, stop) in zip(places, made.spans, strict=True):
        before, behind = borders[2 * place], borders[2 * place + 3]  # the words around these
        if not (before <= start <= starts[place] and stops[place] <= stop <= behind):
            return None
        turns.append((place, starts[place] - start, stop - stops[place]))
    pieces = [made.text[start:stop] for start, stop in list(pairwise(borders))[::2]]
    return Mould(pieces, turns)
