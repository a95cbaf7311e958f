"""Chapters of the report about stores and plans: values in, markup out, with a table below each plot."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from penstock.report import plots
from penstock.report.markup import data, figure, folded, share, short, table, words
from penstock.report.numbers import EpochNumbers, Fit, Lengths, SourceNumbers
from penstock.report.plots import Bar, Block
from penstock.report.survey import SHARE_BINS, SHARES_LOOKED
from penstock.report.text import size

MOST_SOURCES = 100  # in a table
_MOST_STRIPS = 20
_MOST_LISTED = 5


def tiles(sources: Sequence[SourceNumbers], epoch: EpochNumbers | None) -> str:
    """The few numbers that people ask for first."""
    rows, samples = sum(each.rows for each in sources), sum(each.samples for each in sources)
    tokens, trained = sum(each.tokens for each in sources), sum(each.trained for each in sources)
    found = [
        ("records", _big(rows), f"in {len(sources)} source{'s' * (len(sources) != 1)}"),
        ("samples", _big(samples), f"{rows - samples:,} records gave none" if rows > samples else "one of each record"),
        ("tokens", _big(tokens), f"{tokens / samples:,.0f} per sample" if samples else ""),
        ("trained", share(trained, tokens), f"{short(trained)} of the tokens"),
    ]
    if epoch is not None:
        lost = epoch.counters.samples_dropped.total() - epoch.counters.samples_dropped["empty"]
        whole = f"of {samples:,} samples" if lost else "all samples are used"
        found += [
            ("dropped per epoch", f"{lost:,}", whole),
            (
                "steps per epoch",
                f"{epoch.steps:,}",
                f"{epoch.batch_size} rows × {epoch.world_size} rank{'s' * (epoch.world_size != 1)}",
            ),
            ("tokens per step", _big(round(epoch.tokens_per_step)), "on average"),
            (
                "filled",
                share(epoch.fill) if epoch.rows else "–",
                f"{epoch.packing}, rows of {epoch.max_length:,} tokens",
            ),
        ]
    parts = "".join(
        f"<div><dt>{name}</dt><dd>{words(value)}<small>{words(more)}</small></dd></div>" for name, value, more in found
    )
    return f'<dl class="tiles">{parts}</dl>'


def _big(number: int) -> str:
    return f"{number:,}" if number < 100_000 else short(number)


def remarks(sources: Sequence[SourceNumbers], epoch: EpochNumbers | None, fits: Sequence[Fit]) -> str:
    """Notable facts in sentences, warnings first."""
    said = _remarks_of_sources(sources)
    tokens, trained = sum(each.tokens for each in sources), sum(each.trained for each in sources)
    if tokens and trained == tokens:
        said.append(("ok", "Every token is trained."))
    elif tokens and trained < 0.05 * tokens:
        said.append(
            (
                "warn",
                f"Only {share(trained, tokens)} of the tokens are trained: check the loss mask in the samples below.",
            )
        )
    if epoch is not None:
        said += _remarks_of_epoch(epoch, sources, fits)
    said.sort(key=lambda each: each[0] != "warn")
    parts = "".join(f'<li class="{kind}"><span>{text}</span></li>' for kind, text in said)
    return f'<ul class="remarks">{parts}</ul>' if parts else ""


def _remarks_of_sources(sources: Sequence[SourceNumbers]) -> list[tuple[str, str]]:
    rows, lost = sum(each.rows for each in sources), sum(each.rows - each.samples for each in sources)
    if not lost:
        return []
    worst = max(sources, key=lambda each: (each.rows - each.samples) / max(each.rows, 1))
    part = share(worst.rows - worst.samples, worst.rows)
    named = f", the largest share in {data(worst.name, most=60)} ({part})" if len(sources) > 1 else ""
    kind = _kind(worst.rows - worst.samples, worst.rows)
    return [(kind, f"{lost:,} of {rows:,} records ({share(lost, rows)}) were dropped when prepared{named}.")]


def _remarks_of_epoch(
    epoch: EpochNumbers, sources: Sequence[SourceNumbers], fits: Sequence[Fit]
) -> list[tuple[str, str]]:
    said, counters = [], epoch.counters
    overlong, lost = counters.samples_dropped["overlong"], counters.tokens_dropped["overlong"]
    if overlong:
        text = (
            f"{overlong:,} of {counters.samples:,} samples ({share(overlong, counters.samples)}) are longer than max_length "
            f"({epoch.max_length:,}) and are dropped"
        )
        said.append((_kind(lost, counters.tokens_in), f"{text}, with {share(lost, counters.tokens_in)} of the tokens."))
    if counters.samples_truncated:
        lost = counters.tokens_dropped["truncated"]
        text = f"{counters.samples_truncated:,} samples are cut at max_length, which loses {share(lost, counters.tokens_in)}"
        said.append((_kind(lost, counters.tokens_in), f"{text} of the tokens."))
    if lost := counters.tokens_dropped["nothing_to_train"]:
        text = f"{share(lost, counters.tokens_in)} of the tokens are dropped: they were cut off from everything that is trained"
        said.append((_kind(lost, counters.tokens_in), f"{text}."))
    rivals = [fit for fit in fits if fit.max_length == epoch.max_length and not fit.problem]
    best = max(rivals, key=lambda fit: fit.fill, default=None)
    if not epoch.rows:
        said.append(("warn", "No sample is left to train on: an epoch has no rows."))
    elif epoch.fill < 0.9:
        better = f" Packing {best.packing} fills {share(best.fill)}." if best and best.fill > epoch.fill + 0.02 else ""
        said.append(("warn", f"Rows are {share(epoch.fill)} filled with tokens, the rest is padding.{better}"))
    times = [
        (part.samples / each.samples if each.samples else 1, each)
        for part, each in zip(epoch.shares, sources, strict=True)
    ]
    again = [f"{data(each.name, most=60)} {count:.1f} times" for count, each in times if count > 1.05]
    partly = [f"{data(each.name, most=60)} {share(count)}" for count, each in times if count < 0.95 and each.weight]
    if not epoch.mixing.is_even:
        said.append(("warn", f"The order is not evenly mixed: {data(epoch.mixing.where)}."))
    if again:
        said.append(("ok", f"The weights repeat samples within an epoch: {_listed(again)}."))
    if partly:
        said.append(("ok", f"The weights use only part of these data sets per epoch: {_listed(partly)}."))
    return said


def _kind(lost: int, whole: int) -> str:
    return "warn" if lost > 0.01 * whole else "ok"


def _listed(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _MOST_LISTED} more" if len(parts) > _MOST_LISTED else ""
    return ", ".join(parts[:_MOST_LISTED]) + more


# Lengths


def lengths(sources: Sequence[SourceNumbers], together: Lengths, max_length: int | None) -> str:
    edges = together.histogram.edges
    stacks = [_on(edges, each, "counts") for each in sources], [_on(edges, each, "tokens") for each in sources]
    marked = None if max_length is None else _place(edges, max_length)
    mark = None if marked is None or max_length is None else (marked, f"max_length {max_length:,}")
    figures = []
    for what, stack in zip(("samples", "tokens"), stacks, strict=True):
        total = sum(map(sum, stack))
        bars = [_length_bar(edges, number, stack, sources, what, total, max_length) for number in range(len(edges) - 1)]
        label = f"Histogram of tokens per sample, counting {what}; median {together.p50:,}, longest {together.max:,}."
        end = "" if any(bar.label for bar in bars[-2:]) else f"{edges[-1]:,}"  # they would touch
        title = "Sample lengths" if what == "samples" else "Tokens by sample length"
        figures.append(figure(title, plots.histogram(bars, label=label, mark=mark, end=end)))
    ranges = [_range(low, high) for low, high in pairwise(edges)]
    counts, tokens = together.histogram.counts, together.histogram.tokens
    rows = [
        [
            ranges[i],
            f"{counts[i]:,}",
            share(counts[i], together.count),
            f"{tokens[i]:,}",
            share(tokens[i], together.total),
        ]
        for i in range(len(ranges))
    ]
    numbers = table(["tokens per sample", "#samples", "#share", "#tokens", "#share of tokens"], rows, caption="Lengths")
    facts = (
        f"Tokens per sample: median {together.p50:,}, mean {together.mean:,.0f}, p90 {together.p90:,}, p99 {together.p99:,}, "
        f"shortest {together.min:,}, longest {together.max:,}. Each bar is half a power of two wide."
    )
    pair = f'<div class="pair">{"".join(figures)}</div>'
    return f'<p class="note">{facts}</p>{_sources_legend(sources)}{pair}{folded("The numbers", numbers)}'


def _on(edges: Sequence[int], each: SourceNumbers, what: str) -> list[int]:
    """A source's bins on the edges of all."""
    own = dict(zip(each.lengths.histogram.edges, getattr(each.lengths.histogram, what), strict=False))
    return [own.get(edge, 0) for edge in edges[:-1]]


def _length_bar(
    edges: Sequence[int], number: int, stack: Sequence[Sequence[int]], sources: Sequence[SourceNumbers], what: str,
    total: int, max_length: int | None,
) -> Bar:  # fmt: skip
    low, high = edges[number], edges[number + 1]
    amount = sum(counts[number] for counts in stack)
    title = f"{_range(low, high)} tokens: {amount:,} {what} ({share(amount, total)})"
    if len(sources) > 1:
        listed = [(counts[number], each.name) for counts, each in zip(stack, sources, strict=True) if counts[number]]
        title += "".join(f"; {name} {count:,}" for count, name in listed[:12])
    return Bar(
        parts=_stacked([counts[number] for counts in stack]),
        title=title,
        label=f"{low:,}" if low and low & (low - 1) == 0 else "",
        is_faded=max_length is not None and low >= max_length,
    )


def _stacked(amounts: Sequence[int]) -> tuple[tuple[str, float], ...]:
    """Sources that have a colour of their own, and the others together."""
    own = [(plots.colour(source), float(amount)) for source, amount in enumerate(amounts[: plots.NUM_COLOURS])]
    return (*own, ("cx", float(sum(amounts[plots.NUM_COLOURS :]))))


def _place(edges: Sequence[int], length: int) -> float | None:
    """Where a length lies, in bars from the left; None outside."""
    for number, (low, high) in enumerate(pairwise(edges)):
        if low < length <= high:
            return number + (math.log(length / low) / math.log(high / low) if low else 1.0)
    return None


def _range(low: int, high: int) -> str:
    """Lengths above `low`, up to `high`."""
    return f"{low + 1:,}–{high:,}" if high - low > 1 else f"{high:,}"


def _sources_legend(sources: Sequence[SourceNumbers]) -> str:
    if len(sources) < 2:
        return ""
    named = [
        (plots.colour(number), data(each.name, most=60)) for number, each in enumerate(sources[: plots.NUM_COLOURS])
    ]
    rest = len(sources) - plots.NUM_COLOURS
    return plots.legend([*named, *([("cx", f"{rest} more")] if rest > 0 else [])])


# Trained and sources


def trained(sources: Sequence[SourceNumbers], shares: Sequence[Sequence[int]]) -> str:
    strips = []
    for each in sources[:_MOST_STRIPS]:
        part = each.trained_share
        blocks = [
            Block(start=0, stop=part, kind="trained", title=f"trained: {each.trained:,} tokens ({share(part)})"),
            Block(
                start=part,
                stop=1,
                kind="plain",
                title=f"not trained: {each.tokens - each.trained:,} tokens ({share(1 - part)})",
            ),
        ]
        strips.append(
            f'<div class="line"><span>{data(each.name, most=60)}</span><b>{share(each.trained, each.tokens)}</b>'
            f"{plots.strip(blocks if each.tokens else [], label=f'{each.name}: {share(part)} of the tokens are trained')}</div>"
        )
    legend = plots.legend([("trained", "trained: in the loss"), ("plain", "not trained: context only")])
    rows = [
        [data(each.name), f"{each.tokens:,}", f"{each.trained:,}", share(each.trained, each.tokens)]
        for each in sources[:MOST_SOURCES]
    ]
    numbers = table(
        ["data set", "#tokens", "#trained", "#share"],
        rows,
        caption=captioned("Trained tokens by data set", len(sources)),
    )
    first = figure("Share of the tokens that is trained", "".join(strips), note=legend, numbers=numbers)
    return f'<div class="pair">{first}{_trained_histogram(sources, shares)}</div>'


def _trained_histogram(sources: Sequence[SourceNumbers], shares: Sequence[Sequence[int]]) -> str:
    looked, bars = sum(map(sum, shares)), []
    for number in range(SHARE_BINS):
        amounts = [counts[number] for counts in shares]
        low, high = 100 * number // SHARE_BINS, 100 * (number + 1) // SHARE_BINS
        title = f"{low}–{high} % trained: {sum(amounts):,} samples ({share(sum(amounts), looked)})"
        bars.append(Bar(parts=_stacked(amounts), title=title, label=f"{low} %" if low % 20 == 0 else ""))
    label = f"Histogram of the share of each sample that is trained, of {looked:,} samples."
    rows = [[bar.title.partition(":")[0], f"{bar.total:,.0f}", share(bar.total, looked)] for bar in bars]
    each = (
        f" (up to {SHARES_LOOKED:,} of each source, from all over)" if looked < sum(s.samples for s in sources) else ""
    )
    return figure(
        "Trained share of each sample",
        plots.histogram(bars, label=label, height=180, end="100 %"),
        note=f"{looked:,} samples{each}.",
        numbers=table(["trained", "#samples", "#share"], rows, caption="Samples by their trained share"),
    )


def all_sources(sources: Sequence[SourceNumbers], epoch: EpochNumbers | None) -> str:
    """Each source: what it holds, and what it gives to an epoch."""
    tokens = sum(each.tokens for each in sources)
    strips = [_share_strip("prepared", [(each.name, each.tokens) for each in sources])]
    if epoch is not None:
        strips.append(_share_strip("in an epoch", [(each.name, each.tokens) for each in epoch.shares]))
    columns = [
        "data set",
        "#records",
        "#samples",
        "#tokens",
        "#share of tokens",
        "#median length",
        "#longest",
        "#on disk",
    ]
    columns += ["#weight"] * any(each.weight for each in sources) + [
        "#share of the epoch’s tokens",
        "#times per epoch",
    ] * (epoch is not None)
    rows = []
    for number, each in enumerate(sources[:MOST_SOURCES]):
        dot = plots.legend([(plots.colour(number), data(each.name))])
        row = [
            dot, f"{each.rows:,}", f"{each.samples:,}", f"{each.tokens:,}", share(each.tokens, tokens),
            f"{each.lengths.p50:,}", f"{each.lengths.max:,}", size(each.num_bytes),
        ]  # fmt: skip
        row += [_weight(each)] * any(each.weight for each in sources)
        if epoch is not None:
            given = epoch.shares[number]
            row += [share(given.share), f"{given.samples / each.samples:.2f} ×" if each.samples else "–"]
        rows.append(row)
    seen = table(columns, rows, caption=captioned("Data sets", len(sources)))
    return (figure("Tokens by data set", "".join(strips)) if len(sources) > 1 else "") + seen


def _weight(each: SourceNumbers) -> str:
    return f"{float(Fraction(each.weight)):g}" if each.weight else "–"


def _share_strip(name: str, amounts: Sequence[tuple[str, int]]) -> str:
    total, blocks, done = sum(amount for _, amount in amounts), [], 0
    others = sum(amount for _, amount in amounts[MOST_SOURCES:])
    for number, (source, amount) in enumerate([*amounts[:MOST_SOURCES], ("others", others)]):
        if amount:
            title = f"{source}: {amount:,} tokens ({share(amount, total)})"
            blocks.append(
                Block(start=done / total, stop=(done + amount) / total, kind=plots.colour(number), title=title)
            )
        done += amount
    label = f"{name}: " + ", ".join(f"{source} {share(amount, total)}" for source, amount in amounts[:12])
    return (
        f'<div class="line"><span>{name}</span><b>{short(total)}</b>{plots.strip(blocks, label=label, height=20)}</div>'
    )


def captioned(words: str, total: int) -> str:
    """A table's caption, which says so where rows are left out."""
    return words if total <= MOST_SOURCES else f"{words}, the first {MOST_SOURCES} of {total:,}"
