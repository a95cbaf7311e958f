"""Lay out numbers for a terminal: values in, pieces of text out; the command line escapes and colours them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `penstock --help` needs this module, not the numbers
    from penstock.plan.counters import Counters
    from penstock.report.checks import Checked
    from penstock.report.numbers import EpochNumbers, Fit, Lengths, SourceNumbers
    from penstock.report.speed import Speed
    from penstock.report.walk import RecordWalk, RowWalk, StepWalk, Token

TITLE, DIM = "bold", "dim"
TRAINED, PLAIN, PADDING = "black on green", "", "dim"
_COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "red")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BAR, _LONG_BAR = "█", "░"
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
    """A line, or a line of parts, or a table.  `indent`: columns that further lines of a long line are moved to the right."""

    text: str = ""
    indent: int = 0
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
            each.name, _whole(each.rows), _whole(each.samples), _whole(each.tokens), _whole(each.trained),
            percent(each.trained, each.tokens), f"{each.lengths.mean:,.0f}", _whole(each.lengths.p50),
            _whole(each.lengths.p99), _whole(each.lengths.max), size(each.num_bytes),
        ]
        for each in found
    ]  # fmt: skip
    columns = [
        "data set",
        "#records",
        "#samples",
        "#tokens",
        "#trained tokens",
        "#trained",
        "#mean",
        "#median",
        "#p99",
        "#longest",
        "#on disk",
    ]
    note = line("mean, median, p99, longest: tokens per sample", DIM)
    return [title("prepared"), table(columns, rows), note]


def ledger(found: "Sequence[SourceNumbers]", counters: "Counters | None" = None, *, settings: str = "") -> list[Piece]:
    """What is dropped: records when they are prepared, and samples when they are packed under the recipe's settings."""
    rows = [
        [each.name, drop.reason, _whole(drop.count), ", ".join(drop.first[:2])]
        for each in found
        for drop in each.dropped
    ]
    records = sum(each.rows for each in found)
    pieces = [title("dropped when prepared"), table(["data set", "reason", "#records", "first"], rows)]
    if not rows:
        pieces = [line(f"dropped when prepared: none of {count(records, 'record')}")]
    if counters is not None:
        pieces.append(line(f"dropped when packed ({settings}), per epoch: {lost(counters)}"))
    return [*pieces, *_not_printed(found)]


def _not_printed(found: "Sequence[SourceNumbers]") -> list[Piece]:
    rows = [
        [each.name, lost.field, _whole(lost.count), _whole(lost.characters),
         "" if lost.share is None else f"{lost.share:.1%}", ", ".join(lost.first[:1])]
        for each in found
        for lost in each.unrendered
    ]  # fmt: skip
    columns = ["data set", "field", "#rows", "#characters", "#of the assistant's", "first"]
    return [title("not printed by the chat template"), table(columns, rows)] if rows else []


def histogram(found: "Lengths", *, width: int, max_length: int | None = None) -> list[Piece]:
    """A bar for each range of lengths, as long as its share of the samples."""
    counts, edges = found.histogram.counts, found.histogram.edges
    most = max(counts, default=0)
    if not most:
        return [line("no samples", DIM)]
    names = [f"{_whole(low + 1)}–{_whole(high)}" if high - low > 1 else _whole(high) for low, high in pairwise(edges)]
    left = max(map(len, names))
    right = max(len(_whole(amount)) for amount in counts)
    room = max(width - left - right - 12, 10)
    pieces = [title(f"tokens per sample, {count(found.count, 'sample')}")]
    for name, low, amount in zip(names, edges, counts, strict=False):
        bar = max(round(room * amount / most), 1 if amount else 0)
        beyond = max_length is not None and low >= max_length
        drawn = (_LONG_BAR if beyond else _BAR) * bar
        share = f"{_whole(amount):>{right}}  {percent(amount, found.count):>6}"
        style = "red" if beyond else "cyan"
        parts = (Part(f"{name:>{left}}  "), Part(f"{drawn:<{room}}", style), Part(f" {share}", DIM))
        pieces.append(Piece(parts=parts))
    if max_length is not None and found.max > max_length:
        across = any(low < max_length < high for low, high in pairwise(edges))
        also = "; max_length lies within the last bar before them" if across else ""
        pieces.append(line(f"{_LONG_BAR} longer than max_length ({_whole(max_length)}){also}", DIM))
    return pieces


def fits(found: "Sequence[Fit]", *, chosen: tuple[int, str]) -> list[Piece]:
    rows = []
    for fit in found:
        here = " ←" if (fit.max_length, fit.packing) == chosen else ""
        if fit.problem:
            rows.append([_whole(fit.max_length), fit.packing + here, "", "", "", "", "", fit.problem])
            continue
        fill = f"{fit.fill:.2%}" if fit.rows else "–"  # without rows there is nothing to fill
        rows.append([
            _whole(fit.max_length), fit.packing + here, _whole(fit.rows), _whole(fit.steps), fill,
            _whole(fit.samples_dropped), _whole(fit.samples_cut), "",
        ])  # fmt: skip
    columns = ["#max_length", "packing", "#rows", "#steps", "#filled", "#dropped", "#cut", "problem"]
    used = len(columns) - (not any(fit.problem for fit in found))
    return [
        title("max_length and packing compared, per epoch"),
        table(columns[:used], [row[:used] for row in rows]),
        line("← this recipe; dropped, cut: number of samples", DIM),
    ]


# Plans


def epoch(found: "EpochNumbers") -> list[Piece]:
    run = "without end" if found.steps_of_run is None else f"{_whole(found.steps_of_run)} in the whole run"
    step = f"{found.batch_size} per rank × {count(found.world_size, 'rank')}"
    filled = f"{found.fill:.2%} filled ({found.packing})" if found.rows else "nothing to train on"
    rows = [
        ["steps", f"{_whole(found.steps)} per epoch, {run}"],
        ["rows per step", f"{_whole(found.rows_per_step)}: {step}"],
        ["tokens per step", f"{found.tokens_per_step:,.0f} on average"],
        ["rows", f"{_whole(found.rows)}, each of up to {_whole(found.max_length)} tokens, {filled}"],
        ["last step", _tail(found)],
        ["dropped", f"{lost(found.counters)} (overflow: {found.overflow})"],
        ["plan", f"{found.plan[:16]} (fingerprint of data, settings and seed {found.seed})"],
        ["order", f"{found.order} (digest of every row of epoch {found.epoch})"],
    ]
    samples = max(sum(each.samples for each in found.shares), 1)
    shares = [
        [each.name, _whole(each.samples), f"{each.samples / samples:.2%}", _whole(each.tokens), f"{each.share:.2%}"]
        for each in found.shares
    ]
    columns = ["data set", "#samples", "#of samples", "#tokens", "#of tokens"]
    return [title(f"epoch {found.epoch}"), facts(rows), title("in the rows of an epoch"), table(columns, shares)]


def no_step(found: "EpochNumbers") -> str:
    """Why an epoch has no step."""
    dropped = found.counters.samples_dropped
    if found.counters.samples_in and not found.counters.samples:
        return f"the run has no step: none of {count(found.counters.samples_in, 'record')} gave a sample"
    reasons = ", ".join(f"{lost:,} {reason}" for reason, lost in dropped.items() if lost and reason != "empty")
    advice = "; raise max_length" if dropped["overlong"] or dropped["nothing_to_train"] else ""
    advice += ", or choose overflow: split or truncate" if dropped["overlong"] else ""
    why = f"of {count(found.counters.samples, 'sample')} none is left: {reasons}" if reasons else "there are no samples"
    return f"the run has no step: {why}{advice}"


def _tail(found: "EpochNumbers") -> str:
    if not found.rows:
        return "there is none: no sample is left to train on"
    if not found.tail_rows:
        return f"full ({found.rows_per_step:,} of {found.rows_per_step:,} rows)"
    counters, rows = found.counters, f"{found.tail_rows:,} of {found.rows_per_step:,} rows"
    what = {
        "pad": f"filled up with {count(counters.rows_padded, 'empty row')}",
        "drop": f"dropped, with {counters.samples_dropped['tail']:,} samples",
        "repeat": f"filled up with {count(counters.rows_repeated, 'row')} from the start of the epoch",
        "wrap": "filled up from the next epoch",
        "error": "refused",
    }[found.tail]
    return f"{rows}, {what} (tail: {found.tail})"


_REASONS = {
    "overlong": "too long",
    "tail": "in the last step",
    "empty": "dropped when prepared",
    "nothing_to_train": "pieces with nothing to train on",
}


def lost(counters: "Counters") -> str:
    """What a plan drops or cuts in an epoch: how many samples of how many, why, and how many tokens."""
    whole = f"of {count(counters.samples, 'sample')}"
    parts = []
    for reason, number in counters.samples_dropped.items():
        if number and reason != "empty":  # those the store reports
            tokens = f", {count(counters.tokens_dropped[reason], 'token')}"
            parts.append(f"{_whole(number)} {whole} ({_REASONS.get(reason, reason)}{tokens})")
    if counters.samples_truncated:
        cut = count(counters.tokens_dropped["truncated"], "token")
        parts.append(f"{_whole(counters.samples_truncated)} {whole} cut at max_length, {cut} lost")
    if counters.samples_split:
        nothing = "" if counters.pieces_dropped else ", nothing lost"
        parts.append(f"{_whole(counters.samples_split)} {whole} split over several rows{nothing}")
    if counters.pieces_dropped:
        parts.append(f"{count(counters.pieces_dropped, 'piece')} of split samples in which nothing is trained")
    return "; ".join(parts) or f"none {whole}"


# Rows and records


def record(found: "RecordWalk") -> list[Piece]:
    counted = f"sample: {count(len(found.tokens), 'token')}, {_whole(found.trained)} "
    pieces = [
        Piece(parts=(Part(f"{found.source}, record {found.sample}", TITLE), Part(f"  {found.where}", DIM))),
        title("record, as it is in the data"),
        Piece(parts=(Part(_short(found.raw)),)),
        Piece(parts=(Part(counted, TITLE), Part("trained", TRAINED, True))),
        *tokens(found.tokens),
        title("position in training"),
        line(found.outcome),
    ]  # fmt: skip
    pieces += [
        line(
            f"epoch {at.epoch}, step {_whole(at.step)}, rank {at.rank}, row {at.row}: tokens {at.start}–{at.stop - 1} of the sample "
            f"at {at.place}–{at.place + at.stop - at.start - 1} of the row"
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
    where = f"step {found.step:,}, rank {found.rank}, row {found.row}"
    head = (
        f"{where}: {found.used:,} of {found.max_length:,} tokens, {found.trained:,} trained, {found.padding:,} padding"
    )
    if not found.segments:
        return [title(f"{where}: empty, it fills up the last step"), Piece(parts=tuple(parts))]
    rows = [
        [
            _letter(number), segment.where, segment.source,
            f"{segment.start:,}–{segment.stop - 1:,} of {segment.length:,}", _whole(segment.trained),
        ]
        for number, segment in enumerate(found.segments)
    ]  # fmt: skip
    return [title(head), Piece(parts=tuple(parts)), table(["", "record", "data set", "tokens", "#trained"], rows)]


def trace(found: "StepWalk") -> list[Piece]:
    who = "all ranks" if found.rank is None else f"rank {found.rank}"
    head = f"step {found.step} of epoch {found.epoch}, {who}: {count(len(found.rows), 'row')}; plan {found.plan[:8]}"
    rows: list[list[object]] = []
    for each in found.rows:
        for segment in each.segments:
            piece = f"{segment.start}–{segment.stop - 1}"
            rows.append([each.rank, each.row, segment.place, segment.where, segment.source, piece])
        if not each.segments:
            rows.append([each.rank, each.row, 0, "(empty row: fills up the last step)", "", ""])
    return [title(head), table(["#rank", "#row", "#from token", "record", "data set", "tokens of it"], rows)]


# Verdicts and speeds


def checked(found: "Checked") -> list[Piece]:
    pieces = [title(f"{found.source}: {count(found.num_rows, 'row')}, about {found.estimated_tokens:,} tokens")]
    for verdict in found.verdicts:
        places = f" (first {', '.join(verdict.first[:2])})" if verdict.first and verdict.answer != "ok" else ""
        parts = (
            Part(f"{verdict.answer:<5}", _ANSWERS[verdict.answer]),
            Part(f"{verdict.question:<19}"),
            Part(f"{verdict.why}{places}"),
        )
        pieces.append(Piece(parts=parts, indent=24))
    return pieces


def speeds(found: "Sequence[Speed]") -> list[Piece]:
    rows = []
    for speed in found:
        feeds = "" if speed.headroom is None else f"{speed.headroom:.1f} × what the model takes"
        rows.append(
            [speed.what, f"{speed.tokens_per_second:,.0f}", _whole(speed.tokens), f"{speed.seconds:.2f}", feeds]
        )
    return [table(["", "#tokens/s", "#tokens", "#seconds", ""], rows)]


def facts(rows: Iterable[Iterable[str]]) -> Piece:
    """Names and what is said of them, in two columns."""
    return table(["", ""], rows)


def percent(part: float, whole: float) -> str:
    """A share in percent that says 0.0% or 100.0% only where it is exactly that."""
    share = part / whole if whole else 0.0
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


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
