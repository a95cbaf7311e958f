"""Draw rows as coloured segments and samples as coloured tokens; as many as fit into a number of bytes."""

from collections.abc import Sequence

import numpy as np

from penstock.report import plots
from penstock.report.markup import data, folded, inside, share, shortened, table, words
from penstock.report.plots import Block
from penstock.report.survey import DrawnRow, Shown, spread
from penstock.report.walk import Landing, Segment, Token

_ROWS_BYTES = 600_000
_SAMPLES_BYTES = 1_600_000
_MOST_SEGMENTS = 300  # of a row; what is left of it is drawn as one
_MOST_TOKEN = 120  # characters


def rows(found: Sequence[DrawnRow], names: Sequence[str], num_rows: int, *, room: float = 1.0) -> str:
    """Rows from all over an epoch; `room` is the part of the usual bytes that they may take."""
    numbers = {name: number for number, name in enumerate(names)}
    made = [_row(each, numbers) for each in found]
    parts = [made[number] for number in _within(room * _ROWS_BYTES, made)]
    said = f"{len(parts):,} of {num_rows:,} rows, evenly spread" if len(parts) < num_rows else f"All {num_rows:,} rows"
    more = f" ({len(made)} would make this page too large)" if len(parts) < len(made) else ""
    note = (
        f'<p class="note">{said}, in the order of the epoch{more}. Each piece is a sample; the line below it marks the tokens that are '
        "trained; grey is padding.</p>"
    )
    named = [(plots.colour(number), data(name, most=60)) for name, number in list(numbers.items())[: plots.NUM_COLOURS]]
    rest = [("cx", f"{len(names) - plots.NUM_COLOURS} more")] if len(names) > plots.NUM_COLOURS else []
    legend = plots.legend([*named, *rest, ("trained", "trained"), ("pad", "padding")])
    return f'{note}{legend}<ol class="rows">{"".join(parts)}</ol>'


def _row(each: DrawnRow, numbers: dict[str, int]) -> str:
    row, shades = each.row, _shades(each.row.segments)
    blocks = [
        Block(
            start=part.place / row.max_length,
            stop=(part.place + part.stop - part.start) / row.max_length,
            kind=plots.colour(numbers[part.source]) + " alt" * shades[place],
            title=f"{part.where} ({part.source}), {_piece(part)}, {part.trained:,} trained",
        )
        for place, part in enumerate(row.segments[:_MOST_SEGMENTS])
    ]
    rest = row.segments[_MOST_SEGMENTS:]
    if rest:
        title = f"{len(rest):,} more samples"
        blocks.append(
            Block(start=rest[0].place / row.max_length, stop=row.used / row.max_length, kind="cx", title=title)
        )
    count = f"{len(row.segments):,} sample{'s' * (len(row.segments) != 1)}"
    where = f"step {row.step:,}, rank {row.rank}, row {row.row}"
    facts = f"{count}, {share(row.used, row.max_length)} filled, {share(row.trained, row.max_length)} trained"
    strip = plots.row_strip(blocks, each.trained, row.max_length, label=f"{where}: {facts}")
    listed = [
        [f"{part.place:,}", data(part.where), data(part.source, most=60), _piece(part), f"{part.trained:,}"]
        for part in row.segments[:40]
    ]
    caption = f"{where}: its samples" + (f", the first 40 of {len(row.segments):,}" if len(row.segments) > 40 else "")
    below = folded(
        f"{where}: {facts}",
        table(["#from token", "~record", "data set", "tokens", "#trained"], listed, caption=caption),
    )
    return f"<li>{strip}{below}</li>"


def _shades(parts: Sequence[Segment]) -> list[bool]:
    """Neighbours of one source take turns, so that their border is seen."""
    shades: list[bool] = []
    for place, part in enumerate(parts):
        shades.append(place > 0 and parts[place - 1].source == part.source and not shades[-1])
    return shades


def _piece(part: Segment) -> str:
    if part.stop - part.start == part.length:
        return f"all {part.length:,} tokens"
    return f"tokens {part.start:,}–{part.stop - 1:,} of {part.length:,}"


def samples(found: Sequence[Shown], names: Sequence[str], seed: int, *, room: float = 1.0) -> str:
    """A browser of samples: a list, and one of them with its tokens in colour.  Without scripts, all of them below each other."""
    made = [_sample(number, each, names) for number, each in enumerate(found)]
    kept = _within(room * _SAMPLES_BYTES, made)
    left = len(found) - len(kept)
    by_chance = sum(found[number].why == "random" for number in kept)
    more = f" {left} more were left out: the page would be too large." if left else ""
    note = (
        f'<p class="note">{len(kept)} samples: {by_chance} at random (seed {seed}), the others because they are the '
        f"longest, the shortest, or the first that were dropped.{more}</p>"
    )
    key = (
        '<p class="key tokens"><b>trained</b> <i>not trained</i> <b class="sp">special</b> <i class="sp">special, not trained</i> '
        '<s>\\u200b</s> a character that would hide <output id="token" aria-live="polite"></output></p>'
    )
    picks = "".join(_pick(number, found[number]) for number in kept)
    search = (
        '<p class="search" hidden><input id="search" type="search" placeholder="Find in samples" aria-label="Find in samples">'
        '<button type="button" id="before" aria-label="Previous sample">←</button>'
        '<button type="button" id="after" aria-label="Next sample">→</button></p>'
    )
    shown = "".join(made[number] for number in kept)
    listed = f'<nav aria-label="Samples">{search}<ol>{picks}</ol></nav>'
    return f'{note}{key}<div class="browser">{listed}<div class="shown">{shown}</div></div>'


def _pick(number: int, each: Shown) -> str:
    return (
        f'<li><a href="#sample-{number}"><svg width="10" height="10" aria-hidden="true"><rect class="{plots.colour(each.source)}" '
        f'width="10" height="10" rx="3"/></svg><span>{data(_tail_of(each.where), most=80)}</span><small>{words(each.why)}, '
        f"{each.num_tokens:,} tokens</small></a></li>"
    )


def _sample(number: int, each: Shown, names: Sequence[str]) -> str:
    chips = f'<span class="chip">{data(names[each.source], most=60)}</span><span class="chip">{words(each.why)}</span>'
    head = f"<header><h3>{data(each.where)}</h3>{chips}</header>"
    counted = f"{each.num_tokens:,} tokens, {each.trained:,} trained ({share(each.trained, each.num_tokens)})"
    facts = f"<p>{counted if each.num_tokens else 'No tokens'}. {words(_sentence(each.outcome))}</p>"
    places = "".join(f"<li>{_landing(landing)}</li>" for landing in each.landings[:4])
    more = f"<li>and {len(each.landings) - 4} more</li>" if len(each.landings) > 4 else ""
    lands = f'<ul class="lands">{places}{more}</ul>' if places else ""
    cut = each.raw_length - len(each.raw)
    beyond = f"\n… {cut:,} more characters" if cut else ""
    raw = folded("The record as it is in the data", f'<pre class="raw" tabindex="0">{_lines(each.raw)}{beyond}</pre>')
    return f'<article id="sample-{number}">{head}{facts}{lands}{_tokens(each)}{raw}</article>'


def _tokens(each: Shown) -> str:
    if not each.num_tokens:
        return ""
    hidden = each.num_tokens - len(each.head) - len(each.tail)
    gap = f"<em>… {hidden:,} tokens are not shown …</em>" if hidden else ""
    ids = " ".join(str(token.id) for token in (*each.head, *each.tail))
    drawn = "".join(_token(token, each.special) for token in each.head)
    last = "".join(_token(token, each.special) for token in each.tail)
    first = len(each.head) + hidden
    return (
        f'<div class="tokens text" tabindex="0" role="region" aria-label="Tokens" data-ids="{ids}" data-head="{len(each.head)}" '
        f'data-tail="{first}">{drawn}{gap}{last}</div>'
    )


def _token(token: Token, special: frozenset[int]) -> str:
    tag, kind = "b" if token.trained else "i", ' class="sp"' if token.id in special else ""
    text = shortened(token.text, _MOST_TOKEN)
    return f"<{tag}{kind}>{inside(text, blanks=True)}</{tag}>"


def _lines(text: str) -> str:
    """JSON as it is laid out; what hides inside a line is spelled out."""
    return "\n".join(inside(line) for line in text.split("\n"))


def _landing(landing: Landing) -> str:
    last = landing.place + landing.stop - landing.start - 1
    tokens = f"tokens {landing.start:,}–{landing.stop - 1:,}"
    return (
        f"epoch {landing.epoch}, <strong>step {landing.step:,}</strong>, rank {landing.rank}, row {landing.row}, "
        f"{tokens} of the sample at {landing.place:,}–{last:,} of the row"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""


def _tail_of(where: str) -> str:
    """The file's name and the line: in a list, folders only take room."""
    name = where.rpartition("/")[2] or where
    return name if len(name) <= 30 else f"{name[:14]}…{name[-15:]}"


def _within(num_bytes: float, made: Sequence[str]) -> list[int]:
    """Numbers of those that fit, evenly apart where not all do."""
    sizes = np.array([len(part.encode("utf-8", "replace")) for part in made], np.int64)
    kept = spread(len(made), len(made))
    while len(kept) > 1 and sizes[kept].sum() > num_bytes:
        fewer = int(len(kept) * num_bytes / sizes[kept].sum())
        kept = spread(len(made), max(min(fewer, len(kept) - 1), 1))
    return [int(number) for number in kept]
