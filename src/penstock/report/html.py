"""Write the report: one HTML page about a run before it begins, with plots, rows as segments, samples as coloured tokens.

    write(loader, "report.html")      the page of a loader; `page` gives it as text

It is a pure function of the loader: no clock, no machine, so two pages can be compared.  Its content security policy lets it
load nothing and run only its own script, which is named by its hash: text that was not escaped could not send anything either.
"""

import base64
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from penstock.errors import PenstockError, PlanError
from penstock.loader import Loader
from penstock.report import chapters, gallery, ledger, mixing, numbers
from penstock.report.markup import data, folded, inside, table, words
from penstock.report.survey import Shown, Survey, chosen, shown, survey, trained_shares

NUM_SAMPLES, NUM_ROWS = 24, 24
MOST_BYTES = 3_000_000
_BEGINS = "<!doctype html>\n<!-- penstock report -->\n"
_MOST_RECIPE = 20_000
_VERSION = version("penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """All that a page shows.  Without a plan, `problem` says why."""

    sources: tuple[numbers.SourceNumbers, ...]
    lengths: numbers.Lengths
    shares: tuple[tuple[int, ...], ...]
    samples: tuple[Shown, ...]
    epoch: numbers.EpochNumbers | None = None
    survey: Survey | None = None
    fits: tuple[numbers.Fit, ...] = ()
    problem: str | None = None


def write(
    loader: Loader, path: str | os.PathLike[str], *, title: str = "", recipe: str = "", num_samples: int = NUM_SAMPLES,
    num_rows: int = NUM_ROWS, compare: bool = True, stage: Callable[[str], object] = str,
) -> int:  # fmt: skip
    """Write the page, whole or not at all; return its size in bytes.  A file that is no such page is never replaced.

    stage: called with what is done next, for those who wait.
    """
    target = checked(path)
    made = page(
        loader, title=title, recipe=recipe, num_samples=num_samples, num_rows=num_rows, compare=compare, stage=stage
    )
    content = made.encode("utf-8", "backslashreplace")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise PenstockError(f"{target}: the report cannot be written there: {error.strerror}") from error
    return len(content)


def checked(path: str | os.PathLike[str]) -> Path:
    """A place where a page can be written; asked before long work begins."""
    target = Path(path)
    if not target.parent.is_dir():
        raise PenstockError(f"{target}: there is no folder {target.parent}; create it, or choose another name")
    if not _is_ours(target):
        raise PenstockError(f"{target}: this file is not a report and is not replaced; choose another name")
    return target


def page(
    loader: Loader, *, title: str = "", recipe: str = "", num_samples: int = NUM_SAMPLES, num_rows: int = NUM_ROWS,
    compare: bool = True, stage: Callable[[str], object] = str,
) -> str:  # fmt: skip
    """The page.  `recipe` is shown as it is written; `compare=False` leaves out other lengths and packings, which take long."""
    found = gather(loader, num_samples=num_samples, num_rows=num_rows, compare=compare, stage=stage)
    stage("drawing the page")
    name = title or _name([source.name for source in found.sources])
    for room in (1.0, 0.6, 0.3, 0.0):  # less of rows and samples, where names are long and hostile
        made = _whole(_body(found, name, recipe, loader.plan.settings.seed, room), name)
        if len(made.encode("utf-8", "backslashreplace")) < MOST_BYTES:
            break
    return made


def _whole(body: str, name: str) -> str:
    css, script = _part("page.css"), _part("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'"
    )
    return (
        f'{_BEGINS}<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><meta name="generator" content="penstock {_VERSION}">'
        f"<title>{words(name, most=80)} – Penstock report</title><style>{css}</style></head>\n"
        f"<body>{body}<script>{script}</script></body></html>\n"
    )


def gather(
    loader: Loader, *, num_samples: int, num_rows: int, compare: bool, stage: Callable[[str], object] = str
) -> Gathered:
    stage("counting tokens")
    stores = numbers.stores(loader)
    picks = chosen(loader, num_samples=num_samples)
    sources, shares = numbers.sources(loader), tuple(trained_shares(store) for store in stores)
    lengths = numbers.lengths(stores)
    try:
        stage("packing an epoch")
        epoch = numbers.epoch(loader)
        stage("reading rows and samples")
        seen = survey(loader, picks, num_rows=num_rows)
    except PlanError as error:  # such as overflow="error" and a sample that is too long: what was prepared is shown
        samples = tuple(shown(loader, pick, None) for pick in picks)
        return Gathered(sources=sources, lengths=lengths, shares=shares, samples=samples, problem=str(error))
    if compare:
        stage("comparing other max_length and packings")
    fits = numbers.fits(loader) if compare else ()
    return Gathered(
        sources=sources, lengths=lengths, shares=shares, samples=seen.samples, epoch=epoch, survey=seen, fits=fits
    )


def _body(found: Gathered, name: str, recipe: str, seed: int, room: float) -> str:
    epoch, names = found.epoch, [source.name for source in found.sources]
    parts = [
        ("lengths", "Lengths", chapters.lengths(found.sources, found.lengths, epoch.max_length if epoch else None)),
        ("trained", "Trained", chapters.trained(found.sources, found.shares)),
        ("sources", "Data sets", chapters.all_sources(found.sources, epoch)),
        ("drops", "Dropped", ledger.drops(found.sources, epoch.counters if epoch else None)),
    ]
    if epoch is not None and found.survey is not None:
        parts += [
            ("packing", "Packing", ledger.packing(epoch, found.survey, found.fits)),
            ("mixing", "Mixing", mixing.chapter(epoch)),
            ("rows", "Rows", gallery.rows(found.survey.rows, names, epoch.rows, room=room)),
        ]
    parts += [
        ("samples", "Samples", gallery.samples(found.samples, names, seed, room=room)),
        ("identity", "Fingerprints", _identity(found, recipe)),
    ]
    links = "".join(f'<li><a href="#{key}">{words(heading)}</a></li>' for key, heading, _ in parts)
    sections = "".join(
        f'<section id="{key}" aria-labelledby="h-{key}"><h2 id="h-{key}">{words(heading)}</h2>{content}</section>'
        for key, heading, content in parts
    )
    problem = (
        f'<p class="problem" role="alert">No epoch can be planned: {data(found.problem)}</p>' if found.problem else ""
    )
    return (
        f'<a class="skip" href="#lengths">Skip to the plots</a><header class="top"><div><p class="brand">Penstock report</p>'
        f'<h1>{data(name, most=120)}</h1></div><button type="button" id="theme" hidden>Theme: system</button></header>'
        f'<nav class="contents" aria-label="Contents"><ul>{links}</ul></nav><main>'
        f"{chapters.tiles(found.sources, epoch)}{problem}{chapters.remarks(found.sources, epoch, found.fits)}{sections}</main>"
        f"<footer><p>Made by penstock {_VERSION}. This page is one file and loads nothing; it shows text of your data, "
        "so share it only with people who may see them.</p></footer>"
    )


def _name(sources: list[str]) -> str:
    more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
    return ", ".join(sources[:3]) + more


def _identity(found: Gathered, recipe: str) -> str:
    rows = [[data(each.name), f"<code>{words(each.store)}</code>"] for each in found.sources[: chapters.MOST_SOURCES]]
    parts = [table(["data set", "~store"], rows, caption=chapters.captioned("Stores", len(found.sources)))]
    if found.epoch is not None:
        facts = [
            ["plan", f"<code>{words(found.epoch.plan)}</code>", "data, settings and seed"],
            [
                "order",
                f"<code>{words(found.epoch.order)}</code>",
                f"every row of epoch {found.epoch.epoch}, in its order",
            ],
        ]
        parts.append(table(["", "~digest", "of"], facts, caption="Plan"))
    if recipe:
        lines = "\n".join(inside(line) for line in recipe[:_MOST_RECIPE].split("\n"))
        parts.append(folded("The recipe", f'<pre class="raw" tabindex="0">{lines}</pre>'))
    return "".join(parts)


@cache
def _part(name: str) -> str:
    return resources.files("penstock.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _is_ours(target: Path) -> bool:
    """Nothing there, nothing in it, or a page like this."""
    try:
        if not target.exists():
            return True
        if not target.is_file():
            return False
        with target.open("rb") as file:
            begins = file.read(len(_BEGINS))
    except OSError as error:
        raise PenstockError(f"{target}: the report cannot be written there: {error.strerror}") from error
    return not begins or begins == _BEGINS.encode()
