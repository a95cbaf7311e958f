"""How do these numbers read on a terminal?  Values in, pieces of text out; whoever prints them escapes and colours them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command's help needs the words of this room, not its numbers
    from penstock.report.checks import Checked
    from penstock.report.numbers import EpochNumbers, Fit, Lengths, SourceNumbers
    from penstock.report.speed import Speed
    from penstock.report.walk import RecordWalk, RowWalk, StepWalk, Token

TITLE, DIM = "bold", "dim"
TRAINED, PLAIN, PADDING = "black on green", "", "dim"
_COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "red")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BAR = "█"
_MOST_TOKENS = 4_000  # shown of one row or record
_MOST_TEXT = 4_000
_ANSWERS = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Part:
    """Some text in one style.  `is_marked`: in a pipe, where there are no colours, it stands between brackets."""

    text: str
    style: str = ""
    is_marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A line, or a line of parts, or a table."""

    text: str = ""
    style: str | None = None
    parts: tuple[Part, ...] = ()
    columns: tuple[str, ...] = ()  # those that begin with # are numbers
    rows: tuple[tuple[str, ...], ...] = ()


def title(text: str) -> Piece:
    return Piece(text=text, style=TITLE)


def line(text: str = "", style: str | None = None) -> Piece:
    return Piece(text=text, style=style)


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Piece:
    return Piece(columns=tuple(columns), rows=tuple(tuple(str(cell) for cell in row) for row in rows))


# Sources


def sources(found: "Sequence[SourceNumbers]") -> list[Piece]:
    rows = [
        [
            each.name, _whole(each.rows), _whole(each.samples), _whole(each.tokens), f"{each.trained_share:.1%}",
            _whole(each.rows - each.samples), f"{each.lengths.mean:,.0f}", _whole(each.lengths.p50),
            _whole(each.lengths.p99), _whole(each.lengths.max), size(each.num_bytes),
        ]
        for each in found
    ]  # fmt: skip
    columns = [
        "source",
        "#rows",
        "#samples",
        "#tokens",
        "#trained",
        "#dropped",
        "#mean",
        "#p50",
        "#p99",
        "#max",
        "#on disk",
    ]
    return [table(columns, rows)]


def ledger(found: "Sequence[SourceNumbers]") -> list[Piece]:
    rows = [
        [each.name, drop.reason, _whole(drop.count), ", ".join(drop.first[:2])]
        for each in found
        for drop in each.dropped
    ]
    dropped = (
        [title("dropped"), table(["source", "reason", "#rows", "first"], rows)]
        if rows
        else [line("nothing was dropped", DIM)]
    )
    return [*dropped, *_not_printed(found)]


def _not_printed(found: "Sequence[SourceNumbers]") -> list[Piece]:
    rows = [
        [each.name, lost.field, _whole(lost.count), _whole(lost.characters),
         "" if lost.share is None else f"{lost.share:.1%}", ", ".join(lost.first[:1])]
        for each in found
        for lost in each.unrendered
    ]  # fmt: skip
    columns = ["source", "field", "#rows", "#characters", "#of the assistant's", "first"]
    return [title("not printed by the chat template"), table(columns, rows)] if rows else []


def histogram(found: "Lengths", *, width: int, max_length: int | None = None) -> list[Piece]:
    """A bar for each range of lengths, as long as its share of the samples."""
    counts, edges = found.histogram.counts, found.histogram.edges
    most = max(counts, default=0)
    if not most:
        return [line("no samples", DIM)]
    names = [f"{_whole(low)}–{_whole(high - 1)}" if high - low > 1 else _whole(low) for low, high in pairwise(edges)]
    left = max(map(len, names))
    right = max(len(_whole(amount)) for amount in counts)
    room = max(width - left - right - 12, 10)
    pieces = [title("tokens per sample")]
    for name, low, amount in zip(names, edges, counts, strict=False):
        bar = _BAR * max(round(room * amount / most), 1 if amount else 0)
        beyond = max_length is not None and low >= max_length
        share = f"{_whole(amount):>{right}}  {amount / found.count:6.1%}"
        parts = (Part(f"{name:>{left}}  "), Part(f"{bar:<{room}}", "red" if beyond else "cyan"), Part(f" {share}", DIM))
        pieces.append(Piece(parts=parts))
    if max_length is not None and found.max > max_length:
        pieces.append(line(f"from max_length {_whole(max_length)} on: bars in red", DIM))
    return pieces


def fits(found: "Sequence[Fit]", *, chosen: tuple[int, str]) -> list[Piece]:
    rows = []
    for fit in found:
        here = "←" if (fit.max_length, fit.packing) == chosen else ""
        if fit.problem:
            rows.append([_whole(fit.max_length), fit.packing, "", "", "", "", "", fit.problem])
            continue
        fill = f"{fit.fill:.2%}" if fit.rows else "–"  # no rows are neither full nor empty
        rows.append([
            _whole(fit.max_length), fit.packing, _whole(fit.rows), _whole(fit.steps), fill,
            _whole(fit.samples_dropped), _whole(fit.samples_cut), here,
        ])  # fmt: skip
    return [
        title("max_length and packing, side by side"),
        table(["#max_length", "packing", "#rows", "#steps", "#fill", "#dropped", "#cut", ""], rows),
    ]


# Plans


def epoch(found: "EpochNumbers") -> list[Piece]:
    run = "endless" if found.steps_of_run is None else f"{_whole(found.steps_of_run)} in the run"
    step = f"{found.batch_size} × {found.world_size} ranks; {found.tokens_per_step:,.0f} tokens on average"
    filled = f"{found.fill:.2%} filled ({found.packing}, overflow {found.overflow})"
    rows = [
        ["steps", f"{_whole(found.steps)} per epoch, {run}"],
        ["step", f"{_whole(found.rows_per_step)} rows: {step}"],
        ["rows", f"{_whole(found.rows)} of up to {_whole(found.max_length)} tokens, {filled}"],
        ["tail", _tail(found)],
        ["lost", _lost(found)],
        ["plan", f"{found.plan[:16]} (data, settings, seed {found.seed})"],
        ["order", f"{found.order} (every row of epoch {found.epoch})"],
    ]
    samples = max(sum(each.samples for each in found.shares), 1)
    shares = [
        [each.name, _whole(each.samples), f"{each.samples / samples:.2%}", _whole(each.tokens), f"{each.share:.2%}"]
        for each in found.shares
    ]
    columns = ["source", "#samples", "#of samples", "#tokens", "#of tokens"]
    return [table(["", "per epoch"], rows), title("shares"), table(columns, shares)]


def _tail(found: "EpochNumbers") -> str:
    if not found.tail_rows:
        return f"{found.tail}: the last step is full"
    counters, rows = found.counters, f"{found.tail_rows} of {found.rows_per_step} rows"
    what = {
        "pad": f"filled up with {count(counters.rows_padded, 'empty row')}",
        "drop": f"dropped, with {counters.samples_dropped['tail']:,} samples",
        "repeat": f"filled up with {count(counters.rows_repeated, 'row')} of the epoch's start",
        "wrap": "filled up from the next epoch",
        "error": "refused",
    }[found.tail]
    return f"{found.tail}: the last step has {rows} and is {what}"


def _lost(found: "EpochNumbers") -> str:
    counters = found.counters
    parts = [f"{count(lost, 'sample')} {reason}" for reason, lost in counters.samples_dropped.items() if lost]
    parts += [f"{counters.samples_truncated:,} samples cut"] if counters.samples_truncated else []
    parts += [f"{counters.samples_split:,} samples split, which loses nothing"] if counters.samples_split else []
    return ", ".join(parts) or "nothing"


# Rows and records


def record(found: "RecordWalk") -> list[Piece]:
    pieces = [
        Piece(parts=(Part(f"{found.source} row {found.sample}", TITLE), Part(f"  {found.where}", DIM))),
        title("raw"),
        Piece(parts=(Part(_short(found.raw)),)),
    ]
    if found.rendered is not None:
        pieces += [title("rendered"), Piece(parts=(Part(_short(found.rendered)),))]
    pieces.append(
        Piece(parts=(Part(f"{len(found.tokens):,} tokens, {found.trained:,} ", TITLE), Part("trained", TRAINED, True)))
    )
    pieces += tokens(found.tokens)
    pieces.append(title("lands"))
    pieces.append(line(found.outcome))
    pieces += [
        line(
            f"epoch {at.epoch}, step {at.step}, rank {at.rank}, row {at.row}, places {at.place}–{at.place + at.stop - at.start - 1}"
            f" (tokens {at.start}–{at.stop - 1})"
        )
        for at in found.landings
    ]
    return pieces


def tokens(found: "Sequence[Token]") -> list[Piece]:
    """Token texts in colour; neighbours of one kind are one part.  Padding is counted, not drawn."""
    parts: list[Part] = []
    shown = found[:_MOST_TOKENS]
    run, padding = "", 0
    for place, token in enumerate(shown):
        run += token.text
        padding += token.id < 0
        last = place + 1 == len(shown) or _kind(shown[place + 1]) != _kind(token)
        if last and _kind(token) == PADDING:
            parts.append(Part(f" [{padding} padding]", PADDING))
            run, padding = "", 0
        elif last:
            parts.append(Part(run, _kind(token), _kind(token) == TRAINED))
            run = ""
    if len(found) > len(shown):
        parts.append(Part(f" … {len(found) - len(shown):,} more tokens", DIM))
    return [Piece(parts=tuple(parts))] if parts else [line("(no tokens)", DIM)]


def _kind(token: "Token") -> str:
    return PADDING if token.id < 0 else TRAINED if token.trained else PLAIN


def row(found: "RowWalk", *, width: int) -> list[Piece]:
    """A row drawn as segments, a letter for each, and whose they are."""
    room = max(width - 2, 20)
    parts, drawn = [], 0
    for number, segment in enumerate(found.segments):
        end = round(room * (segment.place + segment.stop - segment.start) / found.max_length)
        parts.append(Part(_letter(number) * max(end - drawn, 1), _COLOURS[number % len(_COLOURS)]))
        drawn = max(end, drawn + 1)
    if drawn < room and found.padding:
        parts.append(Part("·" * (room - drawn), PADDING))
    where = f"step {found.step}, rank {found.rank}, row {found.row}"
    head = (
        f"{where}: {found.used:,} of {found.max_length:,} places, {found.trained:,} trained, {found.padding:,} padding"
    )
    if not found.segments:
        return [title(f"{where}: empty, it fills up the step"), Piece(parts=tuple(parts))]
    rows = [
        [
            _letter(number), segment.where, segment.source,
            f"{segment.start}–{segment.stop - 1} of {segment.length:,}", _whole(segment.trained),
        ]
        for number, segment in enumerate(found.segments)
    ]  # fmt: skip
    return [title(head), Piece(parts=tuple(parts)), table(["", "record", "source", "tokens", "#trained"], rows)]


def trace(found: "StepWalk") -> list[Piece]:
    who = "all ranks" if found.rank is None else f"rank {found.rank}"
    head = f"step {found.step} of epoch {found.epoch}, {who}: {count(len(found.rows), 'row')}; plan {found.plan[:8]}"
    rows: list[list[object]] = []
    for each in found.rows:
        for segment in each.segments:
            piece = f"{segment.start}–{segment.stop - 1}"
            rows.append([each.rank, each.row, segment.place, segment.where, segment.source, piece])
        if not each.segments:
            rows.append([each.rank, each.row, 0, "(empty: fills up the step)", "", ""])
    return [title(head), table(["#rank", "#row", "#place", "record", "source", "tokens"], rows)]


# Verdicts and speeds


def checked(found: "Checked") -> list[Piece]:
    pieces = [title(f"{found.source}: {found.num_rows:,} rows, about {found.estimated_tokens:,} tokens")]
    for verdict in found.verdicts:
        places = f" (first {', '.join(verdict.first[:2])})" if verdict.first and verdict.answer != "ok" else ""
        parts = (
            Part(f"{verdict.answer:<5}", _ANSWERS[verdict.answer]),
            Part(f"{verdict.question:<16}"),
            Part(f"{verdict.why}{places}"),
        )
        pieces.append(Piece(parts=parts))
    return pieces


def speeds(found: "Sequence[Speed]") -> list[Piece]:
    rows = []
    for speed in found:
        feeds = "" if speed.headroom is None else f"{speed.headroom:.1f} × the appetite"
        rows.append(
            [speed.what, f"{speed.tokens_per_second:,.0f}", _whole(speed.tokens), f"{speed.seconds:.2f}", feeds]
        )
    return [table(["", "#tokens/s", "#tokens", "#seconds", ""], rows)]


def count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def size(number: int) -> str:
    for unit, amount in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= amount:
            return f"{number / amount:.1f} {unit}"
    return f"{number} B"


def _letter(number: int) -> str:
    return _LETTERS[number % len(_LETTERS)]


def _whole(number: int) -> str:
    return f"{number:,}"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} … {len(text) - _MOST_TEXT:,} more characters"
