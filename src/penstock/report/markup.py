"""How does text become part of a page?  Escaped always, and nothing hides: control, format and bidi characters are spelled out.

Whatever comes from data, file names, settings or errors goes through `data` (between tags) or `attribute` (inside one).
"""

import html
from collections.abc import Iterable, Sequence

from penstock.report.escape import escape

MOST_CELL = 240  # characters of data in a cell or a title; names of files can be of any length
_KINDS = {"#": ' class="n"', "~": ' class="w"'}
_BLANKS = {"\n": "<u>↵</u>\n", "\t": "<u>⇥</u>\t"}


def data(value: object, *, most: int | None = MOST_CELL) -> str:
    """Text of the data, between tags: by itself in its direction, with all that hides spelled out."""
    return f"<bdi>{inside(shortened(str(value), most))}</bdi>"


def inside(text: str, *, blanks: bool = False) -> str:
    """The same without a tag around it.  `blanks`: ends of lines and tabs stay, and are marked."""
    if text.isascii() and text.isprintable():
        return html.escape(text)
    return "".join(_char(char, blanks) for char in text).replace("</s><s>", "")


def words(value: object, *, most: int | None = MOST_CELL) -> str:
    """Text where no tags can be: in a title or an attribute."""
    return html.escape(escape(shortened(str(value), most)))


def attribute(value: object, *, most: int | None = MOST_CELL) -> str:
    """A quoted attribute's value."""
    return f'"{words(value, most=most)}"'


def shortened(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[:most]} … {len(text) - most:,} more characters"


def short(number: float) -> str:
    """For people: 1.24 M."""
    for unit, amount in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= amount:
            return f"{number / amount:.3g} {unit}" if number < 999.5 * amount else f"{number / amount:,.0f} {unit}"
    return f"{number:,.3g}" if number != int(number) else f"{int(number):,}"


def share(part: float, whole: float = 1.0) -> str:
    """A percentage that says neither 0 nor 100 where it is not."""
    if not whole:
        return "–"
    value = part / whole
    if 0 < value < 0.0005:
        return "<\u00a00.1\u00a0%"
    if 0.9995 <= value < 1:
        return ">\u00a099.9\u00a0%"
    return f"{100 * value:.1f}".removesuffix(".0") + "\u00a0%"  # a line does not end before the sign


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> str:
    """Cells are markup already.  Columns whose names begin with # are numbers, with ~ long words that may break anywhere."""
    kinds = [_KINDS.get(column[:1], "") for column in columns]
    head = "".join(
        f'<th scope="col"{kind}>{html.escape(column.lstrip("#~"))}</th>'
        for column, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label={attribute(caption)}><table>'
        f"<caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def figure(title: str, plot: str, *, note: str = "", numbers: str = "") -> str:
    """A plot under its title; `note` is markup that says how to read it, `numbers` is a table of what it shows."""
    said = f'<p class="note">{note}</p>' if note else ""
    below = folded("The numbers", numbers) if numbers else ""
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{said}{plot}{below}</figure>"


def _char(char: str, blanks: bool) -> str:
    if blanks and char in _BLANKS:
        return _BLANKS[char]
    spelled = escape(char)
    if spelled == char and char.isspace() and char != " ":
        spelled = f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"  # a blank that is none
    return html.escape(char) if spelled == char else f"<s>{spelled}</s>"
