"""Write the viewer as one HTML file that needs no server: its pages, and the answers that they ask for, inlined as JSON.

The file is a pure function of the loader: it holds no time and no machine name, so two of them can be compared.  Its content security
policy loads nothing and runs only its own script, named by its hash: even text that was not escaped could not send anything.
"""

import base64
import hashlib
import html
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, PlanError
from penstock.extras.view.choices import Choice, choose_samples
from penstock.extras.view.summary import summary
from penstock.extras.view.thumbnails import SIDE, Thumbnails
from penstock.extras.view.view import Viewer
from penstock.loader import Loader
from penstock.report.numbers import stores
from penstock.store.counts import Counts
from penstock.words import escape, shortened, spread

MOST_BYTES = 3_000_000  # of samples and steps
_BEGINS = "<!doctype html>\n<!-- penstock report -->\n"
_BINS = "300"  # of the plots over steps
_HEAD = 1_000  # tokens shown of a long sample
_MOST_TITLE = 120  # characters
_MOST_TEXT = 20_000  # characters shown of a record
_POLL_SECONDS = 0.02
_FILES = ("page.css", "app.css")
# Each after those that it imports.
_MODULES = (
    *(
        "answers.js",
        "dom.js",
        "chart.js",
        "list.js",
        "sample.js",
        "samples.js",
        "run.js",
        "data.js",
    ),
    *("what_if.js", "live.js", "losses.js", "app.js"),
)
_IMPORT = re.compile(r'^import \{ (?P<names>[^}]*) \} from "\./(?P<module>[\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(
    r"^export (?P<declared>(?:async )?(?:class|const|function) (?P<name>\w+))", re.MULTILINE
)
_IN_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}

Stage = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What goes into the file."""

    title: str = ""  # else the names of the datasets
    recipe: str = ""
    num_samples: int = (
        24  # chosen at random; the longest, the shortest and some that were dropped are added
    )
    num_steps: int = 6  # spread over the first epoch
    compare: bool = True  # also other lengths and packings, which takes long
    overlaps: Sequence[str] = ()  # sentences about samples that eval sets share with training data
    part: str = "train"  # of the recipe, that is shown
    parts: Mapping[str, Counts | None] | None = (
        None  # all of them, with what they contain if it is prepared
    )


def write(
    loader: Loader,
    path: str | os.PathLike[str],
    export: Export | None = None,
    *,
    stage: Stage = str,
) -> int:
    """Write the file, complete or not at all, and return its size in bytes.  A file that is not such a page is never replaced.

    stage: called with the name of each stage of the work.
    """
    target = checked(path)
    content = page(loader, export or Export(), stage=stage).encode()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise PenstockError(f"{target}: cannot write the page: {error.strerror}") from error
    return len(content)


def checked(path: str | os.PathLike[str]) -> Path:
    """Refuse a path where no page can be written; called before long work begins."""
    target = Path(path)
    if not target.parent.is_dir():
        raise PenstockError(
            f"{target}: the folder {target.parent} does not exist; create it, or choose another name"
        )
    begins = b""
    try:
        if target.is_file():
            with target.open("rb") as file:
                begins = file.read(len(_BEGINS))
    except OSError as error:
        raise PenstockError(f"{target}: cannot write the page: {error.strerror}") from error
    if target.is_dir() or begins not in (b"", _BEGINS.encode()):
        raise PenstockError(
            f"{target}: exists and is not a page of penstock, so it is not replaced; choose another name"
        )
    return target


def page(loader: Loader, export: Export, *, stage: Stage = str) -> str:
    """Return the file's text."""
    answers = collect(loader, export, stage=stage)
    stage("drawing the page")
    styles = "".join(_static(name) for name in _FILES)
    script = bundle()
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(styles)}'; script-src '{_hash(script)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    title = html.escape(escape(answers["overview"]["title"]))
    parts = {
        "<title>penstock view</title>": f"<title>{title} – penstock</title>",
        "<!doctype html>\n": f"{_BEGINS}",
        '<link rel="stylesheet" href="page.css">\n': f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n',
        '<link rel="stylesheet" href="app.css">': f"<style>{styles}</style>",
        '<script type="module" src="app.js"></script>\n': "",
        "</body>": f'<script type="application/json" id="answers">{_in_html(answers)}</script>\n<script>{script}</script>\n</body>',
    }
    text = _static("index.html")
    for old, new in parts.items():
        assert text.count(old) == 1, f"index.html must have {old!r} once"
        text = text.replace(old, new)
    return text


def collect(loader: Loader, export: Export, *, stage: Stage = str) -> dict[str, Any]:
    """Return every answer that the page may ask for, by name and then by what was asked."""
    view = Viewer(
        loader,
        [],
        settings=loader.plan.settings,
        title=shortened(export.title or _names(loader), _MOST_TITLE),
        recipe=export.recipe,
        part=export.part,
        parts=export.parts,
        thumbnails=Thumbnails(
            SIDE
        ),  # one for all samples, so that their pictures stay small together
    )
    answers: dict[str, Any] = {
        "summary": summary(loader, compare=export.compare, overlaps=export.overlaps, stage=stage)
    }
    stage("reading samples")
    asked_run = {"epoch": "0", "bins": _BINS}
    answers["run"] = _answer(view, "run", asked_run)
    answers["overview"] = {**_finished_overview(view), "exported": True}
    choices = choose_samples(loader, export.num_samples)
    samples = {row: _sample(view, row, choice) for row, choice in _rows(view, choices)}
    answers["samples"] = _within(samples, MOST_BYTES)
    steps = {step: _answer(view, "step", {"step": str(step)}) for step in _steps(answers, export)}
    answers["steps"] = _within(steps, MOST_BYTES // 3)
    answers["overview"]["steps"] = list(answers["steps"])
    return answers


def _names(loader: Loader) -> str:
    """Name the datasets."""
    names = list(stores(loader))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _answer(view: Viewer, name: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """Ask until the work in the background is done; a refusal is an answer with `error`."""
    while True:
        try:
            answer = view.answer(name, asked)
        except PlanError as error:
            return {"error": str(error)}
        assert answer is not None
        progress = answer.get("progress")
        if progress is None or progress["over"]:
            problem = None if progress is None else progress["error"]
            return answer if problem is None else {"error": problem}
        time.sleep(_POLL_SECONDS)


def _finished_overview(view: Viewer) -> dict[str, Any]:
    assert view.facts is not None
    view.facts.job.wait(None)
    return _answer(view, "overview", {})


def _rows(view: Viewer, choices: Iterable[Choice]) -> list[tuple[int, Choice]]:
    """Number the chosen samples over all sources."""
    return [(int(view.starts[choice.source]) + choice.sample, choice) for choice in choices]


def _sample(view: Viewer, row: int, choice: Choice) -> dict[str, Any]:
    """Return what the page shows of one sample: its line in the list, itself, and where it is trained."""
    asked = {"row": str(row)}
    sample = _answer(view, "sample", asked)
    sample["tokens"] = sample["tokens"][:_HEAD]
    for name in ("raw", "rendered"):
        sample[name] = sample[name][:_MOST_TEXT]
    [line] = view.listed([row])
    return {
        "line": {**line, "why": choice.why},
        "sample": sample,
        "positions": _answer(view, "positions", {**asked, "epoch": "0"}),
    }


def _steps(answers: Mapping[str, Any], export: Export) -> list[int]:
    """Choose steps of the first epoch, evenly spread."""
    if "error" in answers["run"]:
        return []
    first = answers["run"]["first_step"]
    return [first + step for step in spread(answers["run"]["numbers"]["steps"], export.num_steps)]


def _within(parts: Mapping[int, Any], num_bytes: int) -> dict[int, Any]:
    """Return these parts, or evenly spread ones that fit into `num_bytes`, and at least one."""
    numbers = list(parts)
    sizes = [len(_in_html(parts[number])) for number in numbers]
    kept = list(range(len(numbers)))
    while len(kept) > 1 and sum(sizes[place] for place in kept) > num_bytes:
        kept = spread(len(numbers), len(kept) - 1)
    return {numbers[place]: parts[numbers[place]] for place in kept}


def bundle() -> str:
    """Return the viewer's modules as one script: each becomes a function that returns what it exports."""
    parts = ['"use strict";', "const modules = {};"]
    for name in _MODULES:
        source = _static(name)
        exported = [match["name"] for match in _EXPORT.finditer(source)]
        source = _IMPORT.sub(r'const { \g<names> } = modules["\g<module>"];', source)
        source = _EXPORT.sub(r"\g<declared>", source)
        assert "\nimport " not in source and "\nexport " not in source, f"{name} cannot be bundled"
        parts.append(
            f'modules["{name}"] = (() => {{\n{source}\nreturn {{ {", ".join(exported)} }};\n}})();'
        )
    return "\n".join(parts)


def _static(name: str) -> str:
    return resources.files("penstock.extras.view").joinpath("static", name).read_text("utf-8")


def _in_html(value: Any) -> str:
    """Return JSON that cannot end the element it stands in.  It is ASCII, so a lone surrogate of the data stays its escape."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char, escaped in _IN_HTML.items():
        text = text.replace(char, escaped)
    return text


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
