"""Values in notebooks: a source with its first records, a sample and a batch with their tokens in colour, and tables of numbers.

Everything is a piece of HTML without a script.  Text of the data is escaped, and characters that hide are spelled out.
"""

import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.loader import Batch, Loader
from penstock.plan.counters import Counters
from penstock.plan.plan import Plan
from penstock.reasons import meaning
from penstock.report.numbers import plain
from penstock.report.record import Token, rendered_text, sample_tokens
from penstock.sources.base import RowAccess
from penstock.store import Sample, Store
from penstock.store.loaded import AbsentRecords
from penstock.templates.protocols import tokenizer_of
from penstock.words import escape, percent, plural, shortened

_MOST_RECORDS = 5
_MOST_CHARACTERS = 300  # of a record
_MOST_ROWS = 4  # of a batch
_MOST_TOKENS = 160  # of a row or a sample
_STYLE = (
    "<style>.penstock{font-size:13px;line-height:1.5}.penstock table{border-collapse:collapse;margin:.4em 0}"
    ".penstock td,.penstock th{text-align:left;padding:.15em .8em .15em 0;border-bottom:1px solid #8884;vertical-align:top}"
    ".penstock .tokens{font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:.3em 0;max-width:60em}"
    ".penstock .tokens b,.penstock .tokens i{font-weight:400;font-style:normal;border-radius:3px;box-shadow:inset 0 0 0 1px #8884}"
    ".penstock .tokens b{background:#2fa86844;box-shadow:inset 0 -2px 0 #1f8a56}"
    ".penstock .soft{opacity:.7}</style>"
)


def _page(*parts: str) -> str:
    return f'<div class="penstock">{_STYLE}{"".join(parts)}</div>'


def _text(value: object) -> str:
    return html.escape(escape(str(value)))


def _head(value: object) -> str:
    return f"<p><code>{_text(repr(value))}</code></p>"


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _note(text: str) -> str:
    return f'<p class="soft">{_text(text)}</p>'


def _tokens(tokens: Sequence[Token], is_trained: Sequence[bool] | None = None) -> str:
    """Draw tokens; the trained ones are green."""
    parts = []
    for place, token in enumerate(tokens):
        trained = token.trained if is_trained is None else is_trained[place]
        mark = "b" if trained else "i"
        ends = "\n" * token.text.count("\n")
        parts.append(f"<{mark}>{_text(token.text)}</{mark}>{ends}")
    return f'<div class="tokens">{"".join(parts)}</div>'


def source(value: RowAccess) -> str:
    """Show the first records of a source."""
    rows = []
    for number in range(min(_MOST_RECORDS, _length(value))):
        try:
            record = shortened(str(value[number]), _MOST_CHARACTERS)
        except PenstockError as error:
            record = str(error)
        rows.append((number, record))
    return _page(_head(value), _table(["row", "record"], rows))


def _length(value: Any) -> int:
    try:
        return len(value)
    except (TypeError, PenstockError):  # a stream whose end was not read
        return 0


def store(value: Store) -> str:
    """Show the numbers of a store, and its first sample."""
    if value.manifest is None:
        return _page(_head(value), _note("it is still being made"))
    parts = [_head(value), _note(value.describe())]
    with_tokens = np.flatnonzero(value.lengths)
    if with_tokens.size:
        parts.append(_sample_tokens(value, value[int(with_tokens[0])]))
    return _page(*parts)


def sample(value: Sample) -> str:
    """Show the tokens of a sample."""
    return _page(_head(value), _sample_tokens(value._store, value))


def _sample_tokens(owner: Store, value: Sample) -> str:
    shown = _tokens(_first_tokens(owner, value, 0, len(value)))
    rest = len(value) - _MOST_TOKENS
    more = _note(f"and {plural(rest, 'token')} more") if rest > 0 else ""
    return f"{shown}{more}"


def _first_tokens(owner: Store, value: Sample, start: int, stop: int) -> tuple[Token, ...]:
    part = slice(start, min(stop, start + _MOST_TOKENS))
    if isinstance(owner.source, AbsentRecords):
        return _without_record(owner, value, part)
    record = owner.source[value.row]
    return sample_tokens(owner, value, record, rendered_text(owner, record), (part,))


def _without_record(owner: Store, value: Sample, part: slice) -> tuple[Token, ...]:
    """Return tokens of a loaded store: with their ids for texts, if it was loaded without its tokenizer."""
    if tokenizer_of(owner.template) is not None:
        return sample_tokens(owner, value, {}, None, (part,))
    places = range(*part.indices(len(value)))
    mask = value.loss_mask.tolist()
    ids = value.input_ids.tolist()
    # no token predicts the first one
    return tuple(
        Token(id=ids[place], text=f"{ids[place]} ", trained=place > 0 and mask[place])
        for place in places
    )


def batch(value: Batch) -> str:
    """Show the arrays of a batch, and the first rows as tokens in colour, with the file and line of each piece."""
    arrays = [
        (name, "×".join(map(str, array.shape)) or "scalar", array.dtype)
        for name, array in value.items()
        if hasattr(array, "shape") and hasattr(array, "dtype")
    ]
    trained = plural(value.trained, "trained token")
    parts = [_note(f"batch of step {value.step:,}, {trained}")]
    parts.append(_table(["array", "shape", "type"], arrays))
    stores = value._stores
    if not stores:
        parts.append(_note("it came from another process, without its stores"))
        return _page(*parts)
    for number in range(min(_MOST_ROWS, value.rows.num_rows)):
        parts.append(_row(value, stores, number))
    rest = value.rows.num_rows - _MOST_ROWS
    if rest > 0:
        parts.append(_note(f"and {plural(rest, 'row')} more"))
    return _page(*parts)


def _row(value: Batch, stores: Sequence[Any], number: int) -> str:
    """Draw the pieces of a row, until they have as many tokens as are shown."""
    parts = [f"<p><b>row {number}</b></p>"]
    left = _MOST_TOKENS
    spans = value.rows[number].tolist()
    for done, (source_number, sample_number, start, stop) in enumerate(spans):
        owner = stores[source_number]
        if left <= 0 or not isinstance(owner, Store):
            parts.append(_note(f"and {plural(len(spans) - done, 'piece')} more"))
            break
        size = min(stop - start, left)
        made = owner[sample_number]
        tokens = _first_tokens(owner, made, start, start + size)
        left -= size
        where = owner.source.locate(sample_number)
        # no token of its row predicts the first one of a piece
        is_trained = [token.trained and place > 0 for place, token in enumerate(tokens)]
        parts.append(_note(f"{where}, tokens {start:,}–{stop - 1:,}"))
        parts.append(_tokens(tokens, is_trained))
    if not spans:
        parts.append(_note("no sample: it fills up the last step"))
    return "".join(parts)


def loader(value: Loader) -> str:
    """Show the settings that matter, the position and what was delivered."""
    run = value.run
    settings = run.plan.settings
    rows: list[tuple[str, object]] = [
        ("datasets", ", ".join(run.names)),
        (
            "rank",
            f"{value.world.rank} of {value.world.size}, {plural(value.batch_size, 'row')} each",
        ),
        ("rows", f"{settings.max_length:,} tokens, packing {settings.packing}"),
        ("position", f"step {run.cursor.step:,}, epoch {run.cursor.position.epoch}"),
        ("plan", run.plan.fingerprint[:8]),
    ]
    return _page(_head(value), _table(["", ""], rows), _counters(value.counters))


def plan(value: Plan) -> str:
    """Show the sources and settings of a plan."""
    weights = value.settings.weights or [None] * len(value.sources)
    sources = [
        (each.name, f"{each.num_samples:,}", "" if weight is None else weight)
        for each, weight in zip(value.sources, weights, strict=False)
    ]
    settings = [(name, setting) for name, setting in plain(value.settings).items()]
    return _page(
        _head(value),
        _table(["dataset", "samples", "weight"], sources),
        f"<details><summary>settings</summary>{_table(['setting', 'value'], settings)}</details>",
    )


def counters(value: Counters) -> str:
    """Show what was delivered and what was dropped."""
    return _page(_counters(value))


def _counters(value: Counters) -> str:
    rows: list[tuple[str, object, object]] = [
        ("samples", f"{value.samples_out:,} of {value.samples:,}", ""),
        ("tokens", f"{value.tokens_out:,} of {value.tokens_in:,}", ""),
        ("rows", f"{value.rows:,}", f"{value.fill:.1%} filled"),
    ]
    for reason, number in sorted(value.samples_dropped.items()):
        if number:
            share = percent(number, value.samples_in)
            rows.append((f"dropped: {reason}", f"{number:,} ({share})", meaning(reason)))
    if value.samples_truncated:
        rows.append(("cut", f"{value.samples_truncated:,}", "longer than max_length"))
    return _table(["", "", ""], rows)
