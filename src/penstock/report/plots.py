"""How are numbers drawn?  As SVG, without a library.  Places are percentages: a plot is as wide as its page, and its words keep their size.

Colours are classes (c0 … c6 for sources, cx for the rest; trained, plain, pad), so that the page's theme decides.  A title on every mark
says its numbers; whoever draws gives a table of the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.report.markup import attribute, short, words

NUM_COLOURS = 7
_TOP, _BOTTOM = 18, 22  # room above for a mark's name, and below for the axis
_NARROWEST = 0.15  # percent
_MOST_LABELS = 9  # below one plot; half of them on a narrow page

_Level = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: parts from the bottom up, as (class, amount).  `label` stands below its left edge."""

    parts: tuple[tuple[str, float], ...]
    title: str
    label: str = ""
    is_faded: bool = False

    @property
    def total(self) -> float:
        return sum(amount for _, amount in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A piece of a strip, from `start` to `stop` of its length."""

    start: float
    stop: float
    kind: str
    title: str


def colour(source: int) -> str:
    return f"c{source}" if source < NUM_COLOURS else "cx"


def histogram(
    bars: Sequence[Bar], *, label: str, height: int = 210, mark: tuple[float, str] | None = None, end: str = ""
) -> str:
    """Bars of one width.  `mark`: a line at this bar number, with a name.  `end`: the label of the right edge."""
    most = max((bar.total for bar in bars), default=0) or 1
    ticks = _ticks(most)
    ceiling, floor = max(most, ticks[-1]), height - _BOTTOM
    width = 100 / max(len(bars), 1)

    def level(amount: float) -> float:
        return floor - (floor - _TOP) * amount / ceiling

    marks = [f'<line class="grid" x1="0" x2="100%" y1="{_number(level(t))}" y2="{_number(level(t))}"/>' for t in ticks]
    for number, bar in enumerate(bars):
        marks.append(_bar(bar, number * width, width, level, floor))
    marks += [f'<text class="tick" x="0" y="{_number(level(t) - 4)}">{short(t)}</text>' for t in ticks if t]
    labels = [(number, bar.label) for number, bar in enumerate(bars) if bar.label]
    labels = [*labels[:: -(-len(labels) // _MOST_LABELS) or 1], (len(bars), end)]
    for place, (number, name) in enumerate(labels):
        if name:
            anchor = "start" if not number else "end" if number == len(bars) else "middle"
            rare = ' class="rare"' if place % 2 and number != len(bars) else ""
            at = _percent(number * width)
            marks.append(f'<text x="{at}" y="{height - 6}" text-anchor="{anchor}"{rare}>{words(name)}</text>')
    if mark is not None:
        marks.append(_mark(mark[0] * width, mark[1], floor))
    return _svg("plot", height, label, "".join(marks))


def strip(blocks: Sequence[Block], *, label: str, height: int = 16) -> str:
    """Pieces side by side."""
    return _svg("strip", height, label, "".join(_block(block, height) for block in blocks))


def row_strip(blocks: Sequence[Block], trained: Sequence[tuple[int, int]], length: int, *, label: str) -> str:
    """A row: segments above, and below them, as a thin line, the places that are trained."""
    runs = "".join(f"M{start} 0H{stop}V1H{start}Z" for start, stop in trained)
    lane = (
        f'<svg x="0" y="24" width="100%" height="6" viewBox="0 0 {length} 1" preserveAspectRatio="none">'
        f'<rect class="lane" width="{length}" height="1"/><path class="trained" d="{runs}"/></svg>'
    )
    back = '<rect class="pad" width="100%" height="21"/>'
    return _svg("strip", 30, label, back + "".join(_block(block, 21) for block in blocks) + lane)


def meter(value: float, said: str, kind: str = "fill") -> str:
    """A share in a cell: a short bar for the eye, and the number."""
    return (
        f'<svg class="meter" width="96" height="8" aria-hidden="true"><rect class="lane" width="100%" height="8" rx="4"/>'
        f'<rect class="{kind}" width="{_percent(100 * min(max(value, 0.0), 1.0))}" height="8" rx="4"/></svg>'
        f'<span class="beside">{words(said)}</span>'
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """(class, markup of the name)."""
    parts = "".join(
        f'<li><svg width="10" height="10" aria-hidden="true"><rect class="{kind}" width="10" height="10" rx="3"/></svg>{name}</li>'
        for kind, name in entries
    )
    return f'<ul class="legend">{parts}</ul>'


def _bar(bar: Bar, left: float, width: float, level: _Level, floor: float) -> str:
    gap = min(width * 0.08, 0.35)
    parts, under = [], 0.0
    for kind, amount in bar.parts:
        if amount <= 0:
            continue
        top, bottom = level(under + amount), level(under)
        if not under and bottom - top < 1.5:
            top = bottom - 1.5  # a single sample is seen, too
        parts.append(
            f'<rect class="{kind}" x="{_percent(left + gap)}" y="{_number(top)}" width="{_percent(width - 2 * gap)}" '
            f'height="{_number(bottom - top)}"/>'
        )
        under += amount
    faded = ' class="faded"' if bar.is_faded else ""
    hit = f'<rect class="hit" x="{_percent(left)}" y="{_TOP}" width="{_percent(width)}" height="{_number(floor - _TOP)}"/>'
    return f"<g{faded}><title>{words(bar.title)}</title>{''.join(parts)}{hit}</g>"


def _mark(at: float, name: str, floor: float) -> str:
    anchor, shift = ("end", -6) if at > 60 else ("start", 6)
    where = _percent(at)
    return (
        f'<g class="mark"><line x1="{where}" x2="{where}" y1="4" y2="{floor}"/>'
        f'<text x="{where}" dx="{shift}" y="13" text-anchor="{anchor}">{words(name)}</text></g>'
    )


def _block(block: Block, height: int) -> str:
    width = max(100 * (block.stop - block.start), _NARROWEST)
    return (
        f'<rect class="{block.kind}" x="{_percent(100 * block.start)}" width="{_percent(width)}" height="{height}">'
        f"<title>{words(block.title)}</title></rect>"
    )


def _svg(kind: str, height: int, label: str, content: str) -> str:
    return (
        f'<svg class="{kind}" width="100%" height="{height}" role="img" aria-label={attribute(label)}>{content}</svg>'
    )


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to just over `most`."""
    raw = most / 3
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    step = max(step, 1.0) if most >= 1 else step
    return [step * number for number in range(math.ceil(most / step) + 1)]


def _percent(value: float) -> str:
    return f"{_number(value)}%"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
