"""Two chapters of the report: what is dropped, and how full the rows are, with other ways to pack."""

from collections import Counter
from collections.abc import Sequence

from penstock.plan.counters import Counters
from penstock.report import plots
from penstock.report.chapters import MOST_SOURCES, captioned
from penstock.report.markup import data, figure, share, table, words
from penstock.report.numbers import EpochNumbers, Fit, SourceNumbers
from penstock.report.plots import Bar, Block
from penstock.report.survey import FILL_BINS, Survey

_MOST_REASONS = 20
_WHY_LOST = {
    "empty": "dropped when prepared",
    "overlong": "longer than max_length",
    "truncated": "cut at max_length",
    "nothing_to_train": "pieces with no tokens to train on",
    "tail": "in the last step of the epoch, which is not full",
}


def drops(sources: Sequence[SourceNumbers], counters: Counters | None) -> str:
    """What was read and is not trained on, by reason."""
    rows = []
    for each in sources:
        for drop in each.dropped:
            places = ", ".join(data(place) for place in drop.first[:3])
            meter = plots.meter(drop.count / each.rows, share(drop.count, each.rows), "lost")
            rows.append(
                [
                    data(each.name),
                    data(drop.reason),
                    f"{drop.count:,}",
                    meter,
                    places,
                ]
            )
    columns = ["data set", "reason", "#records", "#share of its records", "~first"]
    parts = [_flow(sources, counters), "<h3>Dropped when prepared</h3>"]
    caption = captioned("Records that gave no sample", len(rows))
    none = f"<p>None: all {sum(each.rows for each in sources):,} records became samples.</p>"
    parts.append(table(columns, rows[:MOST_SOURCES], caption=caption) if rows else none)
    parts.append(_not_printed(sources))
    if counters is not None:
        parts += ["<h3>Dropped when packed, per epoch</h3>", _lost(counters)]
    return "".join(parts)


def _not_printed(sources: Sequence[SourceNumbers]) -> str:
    """Fields that the chat template leaves out of the text."""
    rows = [
        [
            data(each.name),
            data(lost.field),
            f"{lost.count:,}",
            f"{lost.characters:,}",
            "" if lost.share is None else f"{lost.share:.1%}",
            ", ".join(data(place) for place in lost.first[:3]),
        ]
        for each in sources
        for lost in each.unrendered
    ]
    if not rows:
        return ""
    columns = ["source", "field", "#rows", "#characters", "#share of the assistant's characters", "~first"]
    caption = captioned("Fields that the chat template does not print", len(rows))
    return f"<h3>Not printed</h3>{table(columns, rows[:MOST_SOURCES], caption=caption)}"


def _flow(sources: Sequence[SourceNumbers], counters: Counters | None) -> str:
    """What is kept of all records, and of all tokens of an epoch, and what is lost by reason."""
    rows = sum(each.rows for each in sources)
    dropped: Counter[str] = Counter()
    for each in sources:
        dropped.update({drop.reason: drop.count for drop in each.dropped})
    lines = [_kept("records, when prepared", "records become samples", rows - dropped.total(), dropped)]
    if counters is not None:
        lost = Counter({reason: count for reason, count in counters.tokens_dropped.items() if count})
        lines.append(_kept("tokens, when packed", "tokens are in rows", counters.tokens_out, lost))
    return figure("What is kept", "".join(lines))


def _kept(name: str, what: str, kept: int, lost: Counter[str]) -> str:
    total = max(kept + lost.total(), 1)
    blocks, done = (
        [Block(start=0, stop=kept / total, kind="kept", title=f"{kept:,} {what} ({share(kept, total)})")],
        kept,
    )
    for reason, count in lost.most_common(_MOST_REASONS):
        title = f"{reason}: {count:,} ({share(count, total)})"
        blocks.append(Block(start=done / total, stop=(done + count) / total, kind="lost", title=title))
        done += count
    label = f"{name}: {share(kept, total)} kept"
    strip = plots.strip(blocks, label=label, height=16)
    return f'<div class="line"><span>{name}</span><b>{share(kept, total)} kept</b>{strip}</div>'


def _lost(counters: Counters) -> str:
    reasons = [r for r in _WHY_LOST if r != "empty" and (counters.samples_dropped[r] or counters.tokens_dropped[r])]
    rows = []
    for reason in reasons:
        samples = counters.samples_dropped[reason] or (counters.samples_truncated if reason == "truncated" else 0)
        tokens = counters.tokens_dropped[reason]
        meter = plots.meter(tokens / max(counters.tokens_in, 1), share(tokens, counters.tokens_in), "lost")
        rows.append([reason, _WHY_LOST[reason], f"{samples:,}", f"{tokens:,}", meter])
    if counters.samples_split:
        rows.append(["split", "continued in another row", f"{counters.samples_split:,}", "0", "–"])
    if not rows:
        return f"<p>None: all {counters.samples:,} samples, with {counters.tokens_in:,} tokens, are in rows.</p>"
    columns = ["reason", "", "#samples", "#tokens", "#share of the tokens"]
    return table(columns, rows, caption="Samples and tokens that are in no row")


# Packing


def packing(epoch: EpochNumbers, found: Survey, fits: Sequence[Fit]) -> str:
    total, bars = sum(found.fills), []
    for number, count in enumerate(found.fills):
        low = 100 * number // FILL_BINS
        name = f"{low}–{low + 100 // FILL_BINS} %" if number < FILL_BINS else "100 %"
        title = f"{name} full: {count:,} rows ({share(count, total)})"
        label = f"{low} %" if low % 20 == 0 and number < FILL_BINS else ""
        bars.append(Bar(parts=(("fill", float(count)),), title=title, label=label))
    rows = [[bar.title.partition(" full")[0], f"{bar.total:,.0f}", share(bar.total, total)] for bar in bars]
    histogram = figure(
        "Filled share of each row",
        plots.histogram(bars, label=f"Histogram of how full each of {total:,} rows is.", height=200, end="full"),
        note=f"{total:,} rows of {epoch.max_length:,} tokens, {share(epoch.fill)} filled; {found.mean_samples:,.1f} samples in a row on "
        f"average, at most {found.most_samples:,}. The last bar counts rows without padding.",
        numbers=table(["filled", "#rows", "#share"], rows, caption="Rows by filled share"),
    )
    return histogram + _fits(epoch, fits) if fits else histogram


def _fits(epoch: EpochNumbers, fits: Sequence[Fit]) -> str:
    rows = []
    for fit in fits:
        here = (fit.max_length, fit.packing) == (epoch.max_length, epoch.packing)
        name = f"<strong>{words(fit.packing)}</strong> ← this recipe" if here else words(fit.packing)
        if fit.problem:
            rows.append([f"{fit.max_length:,}", name, data(fit.problem), "–", "–", "–", "–"])
            continue
        rows.append([
            f"{fit.max_length:,}", name, plots.meter(fit.fill, share(fit.fill)), f"{fit.rows:,}", f"{fit.steps:,}",
            f"{fit.samples_dropped:,}", f"{fit.samples_cut:,}",
        ])  # fmt: skip
    columns = ["#max_length", "packing", "#filled", "#rows", "#steps", "#samples dropped", "#samples cut"]
    return "<h3>max_length and packing compared</h3>" + table(
        columns, rows, caption="The same data under other settings, per epoch"
    )
