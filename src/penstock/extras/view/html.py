"""Write the report: one HTML page about a run before it starts, with plots, rows as segments and samples as coloured tokens.

    write(loader, "report.html")      write the page of a loader; `page` returns it as text

The page is a pure function of the loader: it holds no time and no machine name, so two pages can be compared.  Its content security
policy loads nothing and runs only its own script, named by its hash: even text that was not escaped could not send anything.
"""

import base64
import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, partial
from importlib import resources
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from penstock import reasons, words
from penstock.errors import PenstockError, PlanError
from penstock.extras.media import report as media
from penstock.extras.view import samples
from penstock.loader import Loader
from penstock.report import numbers, text

NUM_SAMPLES = 24
NUM_ROWS = 24
MOST_BYTES = 3_000_000
_BEGINS = "<!doctype html>\n<!-- penstock report -->\n"
_MOST_CELL = 240  # characters of a name or text; a file name can be of any length
_MOST_TOKEN = 120  # characters
_MOST_LABELS = 9  # below one plot; half of them on a narrow page


def write(
    loader: Loader,
    path: str | os.PathLike[str],
    *,
    stage: Callable[[str], object] = str,
    **options: Any,
) -> int:
    """Write the page, complete or not at all, and return its size in bytes; `options` are those of `page`.

    A file that is not such a page is never replaced.
    """
    target = checked(path)
    content = page(loader, stage=stage, **options).encode("utf-8", "backslashreplace")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise PenstockError(f"{target}: cannot write the report: {error.strerror}") from error
    return len(content)


def checked(path: str | os.PathLike[str]) -> Path:
    """Refuse a path where no page can be written; called before long work begins."""
    target = Path(path)
    begins = b""
    if not target.parent.is_dir():
        raise PenstockError(
            f"{target}: the folder {target.parent} does not exist; create it, or choose another name"
        )
    try:
        if target.exists() and not target.is_dir():
            with target.open("rb") as file:
                begins = file.read(len(_BEGINS))
    except OSError as error:
        raise PenstockError(f"{target}: cannot write the report: {error.strerror}") from error
    if target.is_dir() or begins not in (b"", _BEGINS.encode()):
        raise PenstockError(
            f"{target}: exists and is not a report, so it is not replaced; choose another name"
        )
    return target


def page(
    loader: Loader,
    *,
    title: str = "",
    recipe: str = "",
    num_samples: int = NUM_SAMPLES,
    num_rows: int = NUM_ROWS,
    compare: bool = True,
    overlaps: Sequence[str] = (),
    stage: Callable[[str], object] = str,
) -> str:
    """Return the page.  `recipe` is shown as it is; `compare=False` leaves out other lengths and packings, which take long.

    overlaps: sentences about samples that eval sets share with the training data.

    stage: called with the name of each stage of the work.
    """
    values = _values(
        loader, num_samples=num_samples, num_rows=num_rows, compare=compare, stage=stage
    )
    stage("drawing the page")
    more = f" and {len(values['names']) - 3} more" if len(values["names"]) > 3 else ""
    title = title or ", ".join(values["names"][:3]) + more
    for room in (1.0, 0.6, 0.3, 0.0):  # fewer rows and samples if names are long and hostile
        made = (
            _BEGINS
            + _template()
            .render(values, title=title, recipe=recipe, overlaps=overlaps, room=room)
            .lstrip()
        )
        if len(made.encode("utf-8", "backslashreplace")) < MOST_BYTES:
            break
    return made


def _values(
    loader: Loader,
    *,
    num_samples: int,
    num_rows: int,
    compare: bool,
    stage: Callable[[str], object],
) -> dict[str, Any]:
    """Collect everything that the page shows, by its name in the template."""
    stage("counting tokens")
    stores = numbers.stores(loader)
    sources = numbers.sources(loader)
    choices = samples.choose_samples(loader, num_samples)
    values: dict[str, Any] = {
        "sources": sources,
        "names": list(stores),
        "lengths": numbers.lengths(stores.values()),
        "shares": [samples.trained_shares(store) for store in stores.values()],
        "media": media.media_numbers(stores),
        "dropped": sum(
            (Counter({d.reason: d.count for d in each.dropped}) for each in sources), Counter()
        ),
        "seed": loader.plan.settings.seed,
        "epoch": None,
        "problem": None,
    }
    try:
        stage("packing an epoch")
        drawn = samples.EpochSample(loader, choices, num_rows)
        epoch = numbers.epoch(loader, visit=drawn.add)
    except PlanError as error:  # such as on_overlong="error" and a sample that is too long
        shown = samples.shown_samples(loader, choices, [None] * len(choices))
        return {**values, "samples": shown, "problem": str(error)}
    stage("reading samples")
    values |= {"epoch": epoch, "drawn": drawn, "samples": drawn.samples()}
    if compare:
        stage("comparing other max_length and packings")
    fits = numbers.fits(loader, known=epoch.counters) if compare else ()
    same_length = [fit for fit in fits if fit.max_length == epoch.max_length and not fit.problem]
    return {
        **values,
        "fits": fits,
        "fullest": max(same_length, key=lambda fit: fit.fill, default=None),
        "mixing_notes": [text.mixing_verdict(epoch.mixing), *text.mixing_notes(epoch)],
        "fifth_names": text.fifth_names(epoch.mixing),
    }


@cache
def _template() -> Template:
    files = resources.files("penstock.extras.view")
    source, css, script = (
        files.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html.j2", "css", "js")
    )
    environment = Environment(
        autoescape=True,
        finalize=_plain,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {
        "big": lambda number: f"{number:,}" if number < 100_000 else words.short_number(number),
        "comma": "{:,}".format,
        "coord": lambda value: f"{value:.2f}".rstrip("0").rstrip("."),
        "data": _data,
        "lines": partial(_visible, shown={"\n": "\n"}),
        "meaning": reasons.meaning,
        "percent": share,
        "plural": words.plural,
        "short": words.short_number,
        "size": words.size,
        "token": lambda text: _visible(
            words.shortened(text, _MOST_TOKEN), {"\n": "<u>↵</u>\n", "\t": "<u>⇥</u>\t"}
        ),
        "weight": lambda weight: f"{float(Fraction(weight)):g}" if weight else "–",
    }
    environment.globals |= {
        "axis_labels": _axis_labels,
        "bins": samples.BINS,
        "css": Markup(css),
        "length_mark": _length_mark,
        "length_range": text.length_range,
        "masks_read": samples.MASKS_READ,
        "num_head": samples.HEAD,
        "pairwise": pairwise,
        "policy": Markup(
            f"default-src 'none'; img-src data:; style-src '{_hash(css)}'; script-src '{_hash(script)}'; base-uri 'none'; "
            "form-action 'none'; require-trusted-types-for 'script'"
        ),
        "script": Markup(script),
        "share": share,
        "shortened": words.shortened,
        "ticks": _ticks,
        "version": version("penstock"),
        "within": _within,
        "zip": lambda *parts: list(zip(*parts, strict=True)),
    }
    return environment.from_string(source)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# Text


def share(part: float, whole: float = 1.0) -> str:
    """Return a percentage as `percent` does, without ".0" and with blanks that do not break."""
    if not whole:
        return "–"
    short = words.percent(part, whole).replace(".0%", "%").replace("%", "\u00a0%")
    return short.replace("<", "<\u00a0").replace(">", ">\u00a0")


def _plain(value: Any) -> Any:
    """Bound every text of the template, and spell out characters that hide; jinja2 escapes it then."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return words.escape(words.shortened(value, _MOST_CELL)) if is_text else value


def _data(value: str, most: int = _MOST_CELL) -> Markup:
    """Mark up text of the data: in its own direction, with characters that hide in red."""
    return Markup("<bdi>{}</bdi>").format(_visible(words.shortened(value, most), {}))


def _visible(text: str, shown: dict[str, str]) -> Markup:
    """Escape text, with characters that hide in red; those in `shown` become this markup."""
    if text.isascii() and text.isprintable():
        return escape(text)
    return Markup(
        "".join(shown.get(char) or _visible_char(char) for char in text).replace("</s><s>", "")
    )


def _visible_char(char: str) -> str:
    spelled = words.escape(char)
    if spelled == char and char.isspace() and char != " ":  # another blank than the usual one
        spelled = f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"
    return escape(char) if spelled == char else f"<s>{spelled}</s>"


def _within(made: Sequence[str], num_bytes: float) -> list[int]:
    """Return which of these fit into `num_bytes`: all, or some evenly spread, and at least one."""
    sizes = [len(part.encode("utf-8", "replace")) for part in made]
    kept = list(range(len(made)))
    while len(kept) > 1 and (total := sum(sizes[number] for number in kept)) > num_bytes:
        kept = words.spread(
            len(made), max(min(int(len(kept) * num_bytes / total), len(kept) - 1), 1)
        )
    return kept


# Axes of the plots


def _ticks(most: float) -> list[float]:
    """Return round numbers from 0 up to at least `most`."""
    most = most or 1
    power = 10.0 ** math.floor(math.log10(most / 3))
    step = next(factor * power for factor in (1, 2, 5, 10) if 3 * factor * power >= most)
    step = max(step, 1.0 if most >= 1 else 0.0)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def _axis_labels(labels: Sequence[str], end: str) -> list[tuple[int, str, bool]]:
    """Return (bar number, label, whether a narrow page leaves it out); `end` labels the right edge."""
    found = [(number, label) for number, label in enumerate(labels) if label]
    found = found[:: max(-(-len(found) // _MOST_LABELS), 1)]
    shown = [(number, label, place % 2 == 1) for place, (number, label) in enumerate(found)]
    return [*shown, (len(labels), end, False)] if end else shown


def _length_mark(edges: Sequence[int], max_length: int) -> tuple[float, str] | None:
    """Return (position in bars from the left, name) of max_length; None outside the plot."""
    for number, (low, high) in enumerate(pairwise(edges)):
        if low < max_length <= high:
            inside = math.log(max_length / low) / math.log(high / low) if low else 1.0
            return number + inside, f"max_length {max_length:,}"
    return None
