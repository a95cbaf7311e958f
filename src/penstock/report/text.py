"""Lay out numbers, records and rows for a terminal: values in, pieces of text out; the command line escapes and colours them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from penstock.reasons import EMPTY, in_plans
from penstock.words import escape, percent, plural, size

if TYPE_CHECKING:  # checks.py imports this module
    from penstock.loader.worst import WorstStep
    from penstock.plan.counters import Counters
    from penstock.report.checks import Checked
    from penstock.report.numbers import EpochNumbers, Lengths, PackingFit, SourceNumbers
    from penstock.report.progress import Speed
    from penstock.report.record import Token
    from penstock.report.tenths import Mixing
    from penstock.report.trace import PieceNote, RecordTrace, RowTrace, StepTrace

_TITLE = "bold"
_DIM = "dim"
_COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "red")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BAR = "█"
_LONG_BAR = "░"
_ANSWERS = {"ok": "green", "warn": "yellow", "fail": "red"}
_MOST_SOURCES = 8  # in the table of an epoch's tenths
_MOST_TOKENS = _MOST_TEXT = 4_000  # tokens of one row or record, and characters, that are shown
_MOST_LANDINGS = 16
_TRAINED = "black on green"
# part of a turn → style, style where it is trained, brackets where there are no colours
_TURN_STYLES = {
    "header": ("cyan", "black on cyan", "‹›"),
    "end": ("magenta", "bold black on green", "«»"),
}


@dataclass(frozen=True, slots=True)
class StyledText:
    """Some text in one style.  `plain`: what is written in its place in a pipe, where there are no colours."""

    text: str
    style: str = ""
    plain: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock:
    """A line, or a line of parts, or a table.  `indent`: columns that further lines of a long line are moved to the right."""

    text: str = ""
    indent: int = 0
    style: str | None = None
    parts: tuple[StyledText, ...] = ()
    columns: tuple[str, ...] = ()  # those that begin with # are numbers
    rows: tuple[tuple[str, ...], ...] = ()


def title(text: str) -> TextBlock:
    return TextBlock(text=text, style=_TITLE)


def line(text: str, style: str | None = None) -> TextBlock:
    return TextBlock(text=text, style=style)


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> TextBlock:
    """Lay out a table; integers get thousands separators."""
    cells = (
        tuple(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row) for row in rows
    )
    return TextBlock(columns=tuple(columns), rows=tuple(cells))


# Sources


def sources(found: "Sequence[SourceNumbers]") -> list[TextBlock]:
    columns = "dataset,#records,#samples,#tokens,#trained tokens,#trained,#mean,#median,#p99,#longest,#on disk"
    rows = []
    for each in found:
        own = each.lengths
        counts = [
            each.rows,
            each.samples,
            each.tokens,
            each.trained,
            percent(each.trained, each.tokens),
        ]
        rows.append(
            [
                each.name,
                *counts,
                f"{own.mean:,.0f}",
                own.p50,
                own.p99,
                own.max,
                size(each.num_bytes),
            ]
        )
    note = line("mean, median, p99, longest: tokens per sample", _DIM)
    return [title("prepared"), table(columns.split(","), rows), note]


def dropped(
    found: "Sequence[SourceNumbers]", counters: "Counters | None" = None, *, settings: str = ""
) -> list[TextBlock]:
    """Show what is dropped: records when they are prepared, and samples when they are packed under the recipe's settings."""
    drops = [(each.name, drop) for each in found for drop in each.dropped]
    fields = [(each.name, field) for each in found for field in each.unrendered]
    pieces = [
        line(f"dropped when prepared: none of {plural(sum(each.rows for each in found), 'record')}")
    ]
    if drops:
        of_rows = {each.name: each.rows for each in found}
        rows = [
            [
                name,
                drop.reason,
                drop.count,
                percent(drop.count, of_rows[name]),
                ", ".join(drop.first[:2]),
            ]
            for name, drop in drops
        ]
        pieces = [
            title("dropped when prepared"),
            table(["dataset", "reason", "#records", "#of all", "first"], rows),
        ]
    if counters is not None:
        pieces.append(line(f"dropped when packed ({settings}), per epoch: {lost(counters)}"))
        pieces += (
            [line(f"split when packed, per epoch: {words}")] if (words := _split(counters)) else []
        )
    if fields:
        columns = ["dataset", "field", "#records", "#characters", "#of the assistant's", "first"]
        rows = [
            [
                name,
                x.field,
                x.count,
                x.characters or "–",
                "" if x.share is None else f"{x.share:.1%}",
                x.first[0],
            ]
            for name, x in fields
        ]
        pieces += [title("not printed by the chat template"), table(columns, rows)]
    for each in found:
        pieces += [
            line(f"{each.name}: {odd.said} (first {', '.join(odd.first[:2])})")
            for odd in each.turns
        ]
    return pieces


def length_range(low: int, high: int) -> str:
    """Name the lengths above `low`, up to `high`."""
    return f"{low + 1:,}–{high:,}" if high - low > 1 else f"{high:,}"


def histogram(found: "Lengths", *, width: int, max_length: int | None = None) -> list[TextBlock]:
    """Draw a bar for each range of lengths, as long as its share of the samples."""
    counts = found.histogram.counts
    edges = found.histogram.edges
    if not found.count:
        return [line("no samples", _DIM)]
    names = [length_range(low, high) for low, high in pairwise(edges)]
    left = max(map(len, names))
    right = max(len(f"{amount:,}") for amount in counts)
    room = max(width - left - right - 12, 10)
    pieces = [title(f"tokens per sample, {plural(found.count, 'sample')}")]
    for name, low, amount in zip(names, edges, counts, strict=False):
        beyond = max_length is not None and low >= max_length
        drawn = (_LONG_BAR if beyond else _BAR) * max(
            round(room * amount / max(counts)), 1 if amount else 0
        )
        share = StyledText(f" {amount:>{right},}  {percent(amount, found.count):>6}", _DIM)
        bar = StyledText(f"{drawn:<{room}}", "red" if beyond else "cyan")
        pieces.append(TextBlock(parts=(StyledText(f"{name:>{left}}  "), bar, share)))
    if max_length is not None and found.max > max_length:
        across = any(low < max_length < high for low, high in pairwise(edges))
        also = "; max_length lies within the last bar before them" if across else ""
        pieces.append(line(f"{_LONG_BAR} longer than max_length ({max_length:,}){also}", _DIM))
    return pieces


def fits(found: "Sequence[PackingFit]", *, chosen: tuple[int, str]) -> list[TextBlock]:
    columns = [
        "#max_length",
        "packing",
        "#rows",
        "#steps",
        "#filled",
        "#variation",
        "#dropped",
        "#cut or split",
        "problem",
    ]
    rows: list[list[object]] = []
    for fit in found:
        fill = f"{fit.fill:.2%}" if fit.rows else "–"  # without rows there is nothing to fill
        numbers = (
            [""] * 6
            if fit.problem
            else [
                fit.rows,
                fit.steps,
                fill,
                f"{fit.variation:.2f}",
                fit.samples_dropped,
                fit.samples_cut,
            ]
        )
        here = " ←" if (fit.max_length, fit.packing) == chosen else ""
        rows.append([fit.max_length, fit.packing + here, *numbers, fit.problem or ""])
    used = len(columns) - (not any(fit.problem for fit in found))
    return [
        title("max_length and packing compared, per epoch"),
        table(columns[:used], [row[:used] for row in rows]),
        line(
            "← this recipe; variation: of samples per row, standard deviation ÷ mean; dropped, cut or split: number of samples",
            _DIM,
        ),
    ]


# Plans


def epoch(found: "EpochNumbers") -> list[TextBlock]:
    filled = f"{found.fill:.2%} filled ({found.packing})" if found.rows else "nothing to train on"
    has_tokens = found.kind != "records"
    size_of_rows = f"{found.rows:,}, each of up to {found.max_length:,} tokens, {filled}"
    rows = [
        ["steps", _steps(found)],
        [
            "rows per step",
            _rows_per_step(found),
        ],
        *([["tokens per step", f"{found.tokens_per_step:,.0f} on average"]] if has_tokens else []),
        *([["slowest rank", str(found.balance)]] if found.world_size > 1 and has_tokens else []),
        ["rows", size_of_rows if has_tokens else f"{found.rows:,}, each a plain record"],
        *([["samples per row", _samples_per_row(found)]] if found.rows and has_tokens else []),
        ["last step", _last_step(found)],
        ["dropped", f"{lost(found.counters)} (on_overlong: {found.on_overlong})"],
        *([["split", words]] if (words := _split(found.counters)) else []),
        ["plan", f"{found.plan[:16]} (fingerprint of data, settings and seed {found.seed})"],
        ["order", f"{found.order} (digest of every row of epoch {found.epoch})"],
    ]
    samples = max(sum(each.samples for each in found.shares), 1)
    shares = [
        [each.name, each.samples, f"{each.samples / samples:.2%}", each.tokens, f"{each.share:.2%}"]
        for each in found.shares
    ]
    columns = ["dataset", "#samples", "#of samples", "#tokens", "#of tokens"]
    shown = len(columns) if has_tokens else len(columns) - 2
    parts = table(columns[:shown], [share[:shown] for share in shares])
    return [
        title(f"epoch {found.epoch}"),
        table(["", ""], rows),
        title("in the rows of an epoch"),
        parts,
    ]


def _rows_per_step(found: "EpochNumbers") -> str:
    ranks = f"{found.batch_size} per rank × {plural(found.world_size, 'rank')}"
    if found.most_tokens_per_step is None:
        return f"{found.rows_per_step:,}: {ranks}"
    return f"as many as {found.most_tokens_per_step:,} tokens hold, at most {found.rows_per_step:,}: {ranks}"


def _steps(found: "EpochNumbers") -> str:
    """The steps that are delivered, and those that skip_steps leaves out."""
    per_epoch = f"{found.steps - found.steps_skipped:,} per epoch"
    if found.steps_skipped:
        per_epoch += f" ({plural(found.steps, 'step')} without the {found.steps_skipped:,} that skip_steps leaves out)"
    if found.steps_of_run is None:
        return f"{per_epoch}, without end"
    of_run = f"{found.steps_of_run - found.steps_of_run_skipped:,} in the whole run"
    if found.steps_of_run_skipped:
        of_run += f" ({found.steps_of_run_skipped:,} left out)"
    return f"{per_epoch}, {of_run}"


def _samples_per_row(found: "EpochNumbers") -> str:
    own = f"{found.samples_per_row:,.1f} on average, variation {found.variation:.2f}"
    other = found.alternative
    if other is None:
        return own
    return f"{own} ({other.packing}, first block: variation {other.variation:.2f}, {other.fill:.2%} filled)"


def worst(found: "WorstStep") -> list[TextBlock]:
    """Show the steps that need the most memory."""
    what = {
        "most tokens in a batch": found.tokens,
        "longest row": found.row,
        "most media in a batch": found.media,
    }
    rows = [
        [name, each.amount, each.step, each.rank] for name, each in what.items() if each is not None
    ]
    return [
        title(f"the worst of {plural(found.num_steps, 'step')}"),
        table(["", "#amount", "#step", "#rank"], rows),
    ]


def no_step(found: "EpochNumbers") -> str:
    """Say why an epoch has no step."""
    count = found.counters
    if count.samples_in and not count.samples:
        return f"the run has no step: none of {plural(count.samples_in, 'record')} gave a sample"
    reasons = ", ".join(
        f"{lost:,} ({percent(lost, count.samples)}) {reason}"
        for reason, lost in count.samples_dropped.items()
        if reason != "empty"
    )
    advice = (
        "; raise max_length"
        if {"overlong", "nothing_to_train"} & count.samples_dropped.keys()
        else ""
    )
    if found.rows:
        needed = plural(found.rows_per_step, "row")
        advice = f"; a step takes {needed}, the epoch has {found.rows:,}: choose a smaller batch size or another last_step"
    advice += (
        ", or choose on_overlong: split or truncate" if count.samples_dropped["overlong"] else ""
    )
    why = (
        f"of {plural(count.samples, 'sample')} none is left: {reasons}"
        if reasons
        else "there are no samples"
    )
    return f"the run has no step: {why}{advice}"


def _last_step(found: "EpochNumbers") -> str:
    if not found.rows:
        return "there is none: no sample is left to train on"
    if not found.last_step_rows:
        if found.most_tokens_per_step is not None:
            return "full: all ranks have equally many rows"
        return f"full ({found.rows_per_step:,} of {found.rows_per_step:,} rows)"
    padded = found.counters.rows_padded
    full = f"{found.rows_of_full_step:,}"
    what = {
        "pad": f"filled up with {plural(padded, 'empty row')}" if padded else _shorter(found),
        "drop": f"dropped, with {plural(found.counters.samples_dropped['last_step'], 'sample')}",
        "repeat": f"filled up with {plural(found.counters.rows_repeated, 'row')} from the start of the epoch",
        "wrap": "filled up from the next epoch",
        "error": "refused",
    }[found.last_step]
    return f"{found.last_step_rows:,} of {full} rows, {what} (last_step: {found.last_step})"


def _shorter(found: "EpochNumbers") -> str:
    idle = max(found.world_size - found.last_step_rows, 0)
    if not idle:
        return "a shorter batch: no row is added"
    return f"no row is added: {plural(idle, 'rank')} of {found.world_size:,} get an empty batch"


def lost(counters: "Counters") -> str:
    """Say what a plan drops or cuts off in an epoch: how many samples of how many, why, and how many tokens."""
    whole = f"of {plural(counters.samples, 'sample')}"
    parts = [
        f"{number:,} {whole} ({percent(number, counters.samples)}, "
        f"{in_plans(reason)}, {plural(counters.tokens_dropped[reason], 'token')})"
        for reason, number in counters.samples_dropped.items()
        if number and reason != EMPTY  # the store reports those
    ]
    if counters.samples_truncated:
        cut = plural(counters.tokens_dropped["truncated"], "token")
        parts.append(f"{counters.samples_truncated:,} {whole} cut at max_length, {cut} lost")
    if counters.pieces_dropped:
        parts.append(
            f"{plural(counters.pieces_dropped, 'piece')} of split samples (nothing to train on)"
        )
    return "; ".join(parts) or f"none {whole}"


def _split(counters: "Counters") -> str:
    """Count samples that lie in several rows, which is not a loss; empty if there are none."""
    number = counters.samples_split
    return (
        f"{number:,} of {plural(counters.samples, 'sample')}, over several rows" if number else ""
    )


def mixing(found: "EpochNumbers") -> list[TextBlock]:
    """Show what is not used or repeated, and a table: a column for each tenth of the epoch, a line for each source and its fifths."""
    notes = [line(note) for note in mixing_notes(found)]
    mixing = found.mixing
    if not found.rows:
        return notes
    is_mixture = len(mixing.sources) > 1
    rows = []
    for each in mixing.sources[:_MOST_SOURCES]:
        lines = [(each.name, each.share, each.tenths)] if is_mixture else []
        lines += zip(fifth_names(mixing), each.fifth_shares, each.fifths, strict=True)
        for number, (name, whole, tenths) in enumerate(lines):
            shares = (f"{100 * part:.0f}%" for part in (whole, *tenths))
            rows.append([f"· {name}" if number and is_mixture else name, *shares])
    columns = ["", "#epoch", *(f"#{tenth + 1}" for tenth in range(len(mixing.sources[0].tenths)))]
    more = len(mixing.sources) - _MOST_SOURCES
    return [
        *notes,
        title(f"how mixed: shares of the {mixing.unit} in each tenth of the epoch"),
        table(columns, rows),
        *([line(f"and {more:,} more sources; --json has all of them", _DIM)] if more > 0 else []),
        line(mixing_verdict(mixing), None if mixing.is_even else "yellow"),
    ]


def fifth_names(mixing: "Mixing") -> list[str]:
    fifths = len(mixing.sources[0].fifths)
    return [
        f"records {100 * fifth // fifths}–{100 * (fifth + 1) // fifths} %"
        for fifth in range(fifths)
    ]


def mixing_verdict(mixing: "Mixing") -> str:
    if not mixing.is_even:
        return f"the tenths of the epoch differ by more than chance: {mixing.where}"
    points = f"{100 * mixing.largest_difference:.1f} percentage points"
    few = mixing.largest_difference > 0.1  # only few samples explain such a difference
    most = (
        f"with so few samples, as much as {points}"
        if few
        else f"the largest difference is {points}"
    )
    return f"every tenth is like the whole epoch, within sampling error ({most})"


def mixing_notes(found: "EpochNumbers") -> list[str]:
    """Name the sources that an epoch uses only in part, and those that it repeats."""
    ended = next((each.name for each in found.shares if not each.unused), "another source")
    largest = min(found.shares, key=lambda each: each.times)
    notes = [
        f"not used: {each.unused:,} samples of {each.name} ({each.unused_share:.1%} of them), because the epoch ends when "
        f"{ended} is used up; stopping_strategy: all_exhausted goes on until every source is"
        for each in found.shares
        if each.unused
    ]
    for each in found.shares:
        if found.stopping_strategy == "all_exhausted" and each.times > largest.times:
            in_run = (
                ""
                if each.times_in_run is None
                else f" and {each.times_in_run:,.2f} times in the run"
            )
            notes.append(
                f"repeated: each sample of {each.name} is used {each.times:,.2f} times per epoch{in_run}, because the epoch goes on "
                f"until {largest.name} is used up (stopping_strategy: all_exhausted); stopping_strategy: "
                f"first_exhausted ends it with the first source that is"
            )
    return notes


# Records, rows and steps


def record(found: "RecordTrace") -> list[TextBlock]:
    """Show a record as data, as tokens by turn, and where it is trained."""
    parts = (
        f" in sequences of {' and '.join(map(str, found.sequences))}"
        if len(found.sequences) > 1
        else ""
    )
    head = f"sample: {plural(len(found.tokens), 'token')}{parts}, {found.trained:,} "
    legend = [StyledText(head, _TITLE), StyledText("trained", _TRAINED, "⟦trained⟧")]
    for name, part in (("header", "header"), ("end of turn", "end")) if found.turns else ():
        style, _, brackets = _TURN_STYLES[part]
        legend += [StyledText(", "), StyledText(name, style, f"{brackets[0]}{name}{brackets[1]}")]
    more = (
        f" … {len(found.raw) - _MOST_TEXT:,} more characters" if len(found.raw) > _MOST_TEXT else ""
    )
    turns = [
        [x.message, x.role, f"{x.start}–{x.stop - 1}", x.header, x.body, x.end, x.trained]
        for x in found.turns
    ]
    columns = ["#message", "role", "tokens", "#header", "#body", "#end", "#trained"]
    return [
        TextBlock(
            parts=(
                StyledText(escape(f"{found.source}, record {found.sample}"), _TITLE),
                StyledText(escape(f"  {found.where}"), _DIM),
            )
        ),
        title("record, as it is in the data"),
        TextBlock(parts=(StyledText(f"{found.raw[:_MOST_TEXT]}{more}"),)),
        TextBlock(parts=tuple(legend)),
        *tokens(found.tokens),
        *(
            piece
            for name, said in found.columns.items()
            for piece in (title(name), *map(line, said))
        ),
        *([title("turns: tokens of each message"), table(columns, turns)] if turns else []),
        title("position in training"),
        line(found.outcome),
        *(
            line(
                f"epoch {at.epoch}, step {at.step:,}, rank {at.rank}, row {at.row}: tokens {at.start}–{at.stop - 1} of the sample "
                f"at {at.place}–{at.place + at.stop - at.start - 1} of the row"
            )
            for at in found.landings[:_MOST_LANDINGS]
        ),
        *(
            [line(f"and {rest:,} more")]
            if (rest := len(found.landings) - _MOST_LANDINGS) > 0
            else []
        ),
    ]


def tokens(found: "Sequence[Token]") -> list[TextBlock]:
    """Show token texts in colour, each turn on its own line.  Padding is counted, not drawn."""
    parts: list[StyledText] = []
    # the message whose tokens are drawn, and whether they are trained
    owner = -1
    inside = False
    kinds = groupby(
        found[:_MOST_TOKENS], lambda token: (token.message, token.part, token.trained, token.id < 0)
    )
    for (message, name, trained, is_padding), group in kinds:
        run = list(group)
        if inside and (not trained or message != owner):
            parts.append(StyledText("", "", "⟧"))
            inside = False
        if is_padding:
            parts.append(StyledText(f" [{len(run)} padding]", _DIM))
            continue
        if message >= 0 and message != owner:
            fresh = not parts or parts[-1].text.endswith("\n")
            parts.append(StyledText(f"{'' if fresh else chr(10)}[{message} {run[0].role}] ", _DIM))
        style, style_trained, brackets = _TURN_STYLES.get(name, ("", _TRAINED, ""))
        text = "".join(token.text for token in run)
        marked = f"{'⟦' if trained and not inside else ''}{brackets[:1]}{text}{brackets[1:]}"
        parts.append(StyledText(text, style_trained if trained else style, marked))
        owner = message
        inside = trained
    if inside:
        parts.append(StyledText("", "", "⟧"))
    if len(found) > _MOST_TOKENS:
        parts.append(StyledText(f" … {len(found) - _MOST_TOKENS:,} more tokens", _DIM))
    return [TextBlock(parts=tuple(parts))] if parts else [line("(no tokens)", _DIM)]


def row(found: "RowTrace", *, width: int) -> list[TextBlock]:
    """Draw a row as segments, a letter for each, and list their records."""
    room = max(width - 2, 20)
    parts = []
    rows = []
    drawn = 0
    for number, part in enumerate(found.segments):
        letter = _LETTERS[number % len(_LETTERS)]
        end = round(room * (part.place + part.stop - part.start) / found.max_length)
        parts.append(StyledText(letter * max(end - drawn, 1), _COLOURS[number % len(_COLOURS)]))
        drawn = max(end, drawn + 1)
        tokens_of = f"{part.start:,}–{part.stop - 1:,} of {part.length:,}"
        rows.append([letter, part.where, part.source, tokens_of, part.trained])
    if drawn < room and found.padding:
        parts.append(StyledText("·" * (room - drawn), _DIM))
    where = f"step {found.step:,}, rank {found.rank}, row {found.row}"
    strip = TextBlock(parts=tuple(parts))
    if not found.segments:
        return [title(f"{where}: empty, it fills up the last step"), strip]
    filled = f"{found.used:,} of {found.max_length:,} tokens, {found.trained:,} trained, {found.padding:,} padding"
    return [
        title(f"{where}: {filled}"),
        strip,
        table(["", "record", "dataset", "tokens", "#trained"], rows),
    ]


def step(found: "StepTrace", notes: "Sequence[PieceNote]" = ()) -> list[TextBlock]:
    """Lay out the pieces of a step.  notes: each adds a column with what it says of a source's sample."""
    ranks = "all ranks" if found.rank is None else f"rank {found.rank}"
    head = f"step {found.step} of epoch {found.epoch}, {ranks}: {plural(len(found.rows), 'row')}; plan {found.plan[:8]}"
    rows: list[list[object]] = []
    for each in found.rows:
        for part in each.segments:
            rows.append(
                [
                    each.rank,
                    each.row,
                    part.place,
                    part.where,
                    part.source,
                    f"{part.start}–{part.stop - 1}",
                    *(note(part.source, part.sample) for note in notes),
                ]
            )
        if not each.segments:
            empty = "(empty row: fills up the last step)"
            rows.append([each.rank, each.row, 0, empty, "", "", *("" for _ in notes)])
    columns = ["#rank", "#row", "#from token", "record", "dataset", "tokens of it"]
    return [title(head), table([*columns, *("note" for _ in notes)], rows)]


# Verdicts and speeds


def checked(found: "Checked", *, verbose: bool = True) -> list[TextBlock]:
    """Lay out the verdicts about a dataset.  verbose: also those that are ok."""
    sampled = f"; {found.looked:,} of them checked" if found.looked < found.num_rows else ""
    pieces = [
        title(
            f"{found.source}: {plural(found.num_rows, 'record')}, about {found.estimated_tokens:,} tokens{sampled}"
        )
    ]
    for verdict in found.verdicts:
        if verdict.answer == "ok" and not verbose:
            continue
        places = (
            f" (first {', '.join(verdict.first[:2])})"
            if verdict.first and verdict.answer != "ok"
            else ""
        )
        answer = StyledText(f"{verdict.answer:<5}", _ANSWERS[verdict.answer])
        parts = (
            answer,
            StyledText(f"{verdict.question:<21}"),
            StyledText(escape(f"{verdict.why}{places}")),
        )
        pieces.append(TextBlock(parts=parts, indent=26))
    return pieces


def speeds(found: "Sequence[Speed]") -> list[TextBlock]:
    rows = []
    for speed in found:
        feeds = "" if speed.headroom is None else f"{speed.headroom:.1f} × what the model takes"
        rows.append(
            [
                speed.what,
                f"{speed.tokens_per_second:,.0f}",
                speed.tokens,
                f"{speed.seconds:.2f}",
                feeds,
            ]
        )
    return [table(["", "#tokens/s", "#tokens", "#seconds", ""], rows)]
