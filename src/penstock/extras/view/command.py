"""`penstock view` and `penstock report`: show a run in a browser, or write it as one file.  They import what they need when they run."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import IntRange, option
from click.core import ParameterSource

from penstock.cli import screen
from penstock.cli.answers import Schema, answers, either, record
from penstock.cli.request import LOADER, RECIPE, CommandRequest, command
from penstock.words import size

if TYPE_CHECKING:
    from penstock.loader import Loader

_PATH = click.Path(path_type=Path)


def _of_exports(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of what is written as one file."""
    added = [
        option(
            "--samples",
            type=IntRange(0, 500),
            default=24,
            help="Samples in the file, chosen at random; the longest, the shortest and some that were dropped come with them.",
        ),
        option(
            "--steps",
            type=IntRange(0, 500),
            default=6,
            help="Steps in the file, spread over the epoch.",
        ),
        option(
            "--compare/--no-compare",
            default=True,
            help="Also compare other lengths and packings; packs all data again.",
        ),
        option("--title", help="The file's title; else the recipe's name."),
    ]
    for add in reversed(added):
        function = add(function)
    return function


def _of_page() -> Schema:
    return record(page=str, num_bytes=int, plan=str)


@answers(_of_page)
@command(*RECIPE, *LOADER)
@option("-o", "--output", type=_PATH, default="report.html", help="Where the file goes.")
@_of_exports
def report(
    request: CommandRequest,
    output: Path,
    samples: int,
    steps: int,
    compare: bool,
    title: str | None,
) -> None:
    """Write the viewer's pages as one file.

    The same as penstock view --export: lengths, trained tokens, datasets, what is dropped, packing, steps as rows, samples with their
    tokens in colour.  The file loads nothing and needs no server.  It contains text of your data.
    """
    _export(request, output, samples=samples, steps=steps, compare=compare, title=title)


@answers(lambda: either(record(url=str), _of_page()))
@command(*RECIPE, *LOADER)
@option("--port", type=IntRange(0, 65535), default=0, help="Port to listen on; 0 is a free one.")
@option(
    "--host",
    help="Address to listen on, which lets other machines in; else only this machine can reach it.",
)
@option(
    "--browser/--no-browser",
    default=True,
    help="Also open the page in a browser, if there is a screen.",
)
@option("--run-id", help="Show the running job of this name; else the recipe's run_id.")
@option("--export", type=_PATH, help="Write the pages to this file instead, and end.")
@_of_exports
def view(
    request: CommandRequest,
    port: int,
    host: str | None,
    browser: bool,
    run_id: str | None,
    export: Path | None,
    **of_export: Any,
) -> None:
    """Look at data, tokens and the plan in the browser.

    Scroll and search records, see each as data, text and tokens, click through the steps of the run, try other settings, watch a
    running job.  Only reads: data that is not prepared is shown as records.  Ends with Ctrl-C.  With --export, all data is prepared, and
    the pages are written as one file that needs no server; --samples, --steps, --compare and --title are for that file.
    """
    if export is None:
        _serve(request, port=port, host=host, browser=browser, run_id=run_id)
    else:
        _export(request, export, **of_export)


def _export(
    request: CommandRequest,
    output: Path,
    *,
    samples: int,
    steps: int,
    compare: bool,
    title: str | None,
) -> None:
    from penstock.extras.view.export import Export, checked, write
    from penstock.recipe.run import prepared_counts, recipe_overlaps
    from penstock.report import numbers
    from penstock.report.progress import stages

    checked(output)
    recipe = request.recipe()
    loader = request.loader(recipe)
    file = Path(recipe.file or "")
    overlaps = recipe_overlaps(recipe, numbers.stores(loader)) if request.part == "train" else []
    export = Export(
        title=title or ("" if file.stem == "recipe" else file.stem),
        recipe=recipe.to_yaml(file.parent),
        num_samples=samples,
        num_steps=steps,
        compare=compare,
        overlaps=[str(overlap) for overlap in overlaps],
        part=request.part,
        parts=prepared_counts(recipe),
    )
    with stages(screen.progress(as_json=request.json)) as stage:
        num_bytes = write(loader, output, export, stage=stage)
    if request.json:
        plan = loader.plan.fingerprint
        screen.as_json({"page": str(output), "num_bytes": num_bytes, "plan": plan})
    else:
        screen.say(f"{output}: {size(num_bytes)}, open it in a browser")


def _serve(
    request: CommandRequest, *, port: int, host: str | None, browser: bool, run_id: str | None
) -> None:
    from penstock.cache import open_cache
    from penstock.extras.view.server import LOOPBACK, listening, serve
    from penstock.extras.view.view import Viewer
    from penstock.recipe.run import open_recipe, opened_settings, prepared_counts

    recipe = request.recipe()
    opened = open_recipe(recipe, part=request.part, rows=1, skip_bad=True)
    loader = request.prepared_loader(recipe, opened)
    options = recipe.loader_options(request.part)
    cache = open_cache(recipe.settings.get("cache_dir")).root
    run_id = run_id or options.get("run_id")
    if loader is not None and run_id is not None:
        request = _as_the_job(request, loader, cache, run_id)
        loader = request.prepared_loader(recipe.changed(**request.given), opened)
    file = Path(recipe.file or "")
    prepare_it = shlex.join(["penstock", "prepare", *request.data])
    page = Viewer(
        loader,
        opened,
        settings=opened_settings(recipe, opened, part=request.part),
        title=file.name,
        recipe=recipe.to_yaml(file.parent),
        command=prepare_it,
        skip=options.get("skip_steps", ()),
        cache=cache,
        run_id=run_id,
        part=request.part,
        parts=prepared_counts(recipe),
    )
    if loader is None:
        screen.note(f"not prepared: only records are shown; to see the plan, run {prepare_it}")
    host = host or LOOPBACK
    with (
        listening(host, port) as (listener, token, url),
        contextlib.suppress(KeyboardInterrupt),  # Ctrl-C ends it, also before the first request
    ):
        if request.json:
            screen.as_json({"url": url})
        else:
            screen.say(f"{url}  (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser:
            open_browser(url)
        serve(page, listener, token, host)


def _as_the_job(
    request: CommandRequest, loader: "Loader", cache: Path, run_id: str
) -> CommandRequest:
    """Take ranks and batch size of a job that runs this plan, unless the command line says them: then its steps are those shown."""
    from penstock.loader.status import read_status

    plan = loader.plan.fingerprint
    states = [state for state in read_status(cache, str(run_id)) if state["plan"] == plan]
    source = click.get_current_context().get_parameter_source("world_size")
    if not states or source is not ParameterSource.DEFAULT or "batch_size" in request.given:
        return request
    newest = max(states, key=lambda state: float(state["written"]))
    ranks = int(newest["world_size"])
    rows = int(newest["batch_size"])
    if (ranks, rows) != (loader.world.size, loader.batch_size):
        screen.note(f"as run {run_id}: --world-size {ranks} --batch-size {rows}")
    given = {**request.given, "batch_size": rows}
    return replace(request, world_size=ranks, given=given)


def open_browser(url: str) -> None:
    """Open a page, if there is a screen; without one, a browser of text would take over the terminal."""
    if sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        import webbrowser

        webbrowser.open(url)
