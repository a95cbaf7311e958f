"""Show how mixed an epoch is: as a table on a terminal, and as a chapter of the report."""

from collections.abc import Sequence

from penstock.plan.mixing import FIFTHS, TENTHS, MixedSource, Mixing
from penstock.report import plots
from penstock.report.markup import data, figure, share, table
from penstock.report.numbers import EpochNumbers
from penstock.report.plots import Bar
from penstock.report.text import DIM, Piece, line, title
from penstock.report.text import table as text_table

_MOST_SOURCES = 8
_LARGE = 0.1  # a difference that only few samples explain


def pieces(found: EpochNumbers) -> list[Piece]:
    """What was not used, and a table: a column for each tenth of the epoch, a line for each source and each fifth of it."""
    made = [line(f"not used: {words}") for words in _unused(found)]
    if not found.rows:
        return made
    mixing = found.mixing
    rows = [
        [name, f"{100 * whole:.0f}%", *(f"{100 * part:.0f}%" for part in tenths)]
        for each in mixing.sources[:_MOST_SOURCES]
        for name, whole, tenths in _lines(each, alone=len(mixing.sources) == 1)
    ]
    columns = ["", "#epoch", *(f"#{tenth + 1}" for tenth in range(TENTHS))]
    more = len(mixing.sources) - _MOST_SOURCES
    return [
        *made,
        title(f"how mixed: shares of the {mixing.unit} in each tenth of the epoch"),
        text_table(columns, rows),
        *([line(f"and {more:,} more sources; --json has all of them", DIM)] if more > 0 else []),
        line(verdict(mixing), None if mixing.is_even else "yellow"),
    ]


def verdict(mixing: Mixing) -> str:
    if mixing.is_even:
        points = f"{100 * mixing.largest_difference:.1f} percentage points"
        is_large = mixing.largest_difference > _LARGE
        most = f"with so few samples, as much as {points}" if is_large else f"the largest difference is {points}"
        return f"every tenth is like the whole epoch, within sampling error ({most})"
    return f"the tenths of the epoch differ by more than chance: {mixing.where}"


def chapter(found: EpochNumbers) -> str:
    """Bars for each tenth of the epoch: parts of a bar are sources, or the fifths of one source."""
    mixing = found.mixing
    note = f"A bar is a tenth of the epoch, its parts are shares of the {mixing.unit}. Well mixed, all bars are alike."
    parts = [
        f'<p class="note">{data(words)}</p>'
        for words in (verdict(mixing), *map("Not used: {}.".format, _unused(found)))
    ]
    if len(mixing.sources) > 1:
        named = [(each.name, each.tenths) for each in mixing.sources]
        parts.append(_figure("Sources in each tenth of the epoch", named, note))
    for each in mixing.sources[:_MOST_SOURCES]:
        named = [(_rows(fifth), tenths) for fifth, tenths in enumerate(each.fifths)]
        parts.append(
            _figure(
                "Fifths of a source in each tenth of the epoch", named, f"Source {data(each.name, most=60)}. {note}"
            )
        )
    return "".join(parts)


def _figure(heading: str, named: Sequence[tuple[str, Sequence[float]]], note: str) -> str:
    bars = [
        Bar(
            parts=tuple((plots.colour(number), 100 * tenths[tenth]) for number, (_, tenths) in enumerate(named)),
            title=f"tenth {tenth + 1}: " + ", ".join(f"{name} {share(tenths[tenth])}" for name, tenths in named[:12]),
            label=str(tenth + 1),
        )
        for tenth in range(TENTHS)
    ]
    rows = [[data(name), *(share(part) for part in tenths)] for name, tenths in named[:100]]
    numbers = table(["", *(f"#{tenth + 1}" for tenth in range(TENTHS))], rows, caption=heading)
    plot = plots.histogram(bars, label=f"{heading}, in percent.", height=120)
    colours = plots.legend([(plots.colour(number), data(name, most=60)) for number, (name, _) in enumerate(named[:7])])
    return figure(heading, plot + colours, note=note, numbers=numbers)


def _lines(each: MixedSource, *, alone: bool) -> list[tuple[str, float, Sequence[float]]]:
    """(name, share in the epoch, shares in its tenths)."""
    fifths: list[tuple[str, float, Sequence[float]]] = [
        (_rows(fifth) if alone else f"· {_rows(fifth)}", each.fifth_shares[fifth], each.fifths[fifth])
        for fifth in range(FIFTHS)
    ]
    return fifths if alone else [(each.name, each.share, each.tenths), *fifths]


def _rows(fifth: int) -> str:
    return f"rows {100 * fifth // FIFTHS}–{100 * (fifth + 1) // FIFTHS} %"


def _unused(found: EpochNumbers) -> list[str]:
    """Sources that an epoch does not come to the end of, because another one is used up."""
    used_up = [each.name for each in found.shares if not each.unused]
    return [
        f"{each.unused:,} samples of {each.name} ({each.unused_share:.1%} of them), because the epoch ends when "
        f"{used_up[0] if used_up else 'another source'} is used up; stop: all goes on until every source is"
        for each in found.shares
        if each.unused
    ]
