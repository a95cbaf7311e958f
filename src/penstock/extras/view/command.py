"""`penstock view` and `penstock report`: show data in a browser, or write it as one page.  They import what they need when they run."""

import os
import shlex
import sys
from pathlib import Path

import click
from click import IntRange, option

from penstock.cli import screen
from penstock.cli.request import LOADER, RECIPE, Request, command
from penstock.words import size

_PATH = click.Path(path_type=Path)


@command(*RECIPE, *LOADER)
@option("-o", "--output", type=_PATH, default="report.html", help="Where the page goes.")
@option("--samples", type=IntRange(0, 500), default=24, help="Samples to show, chosen at random.")
@option("--rows", type=IntRange(1, 500), default=24, help="Rows to draw, spread over the epoch.")
@option(
    "--compare/--no-compare",
    default=True,
    help="Also compare other lengths and packings; packs all data again.",
)
@option("--title", help="The page's title; else the recipe's name.")
def report(
    request: Request, output: Path, samples: int, rows: int, compare: bool, title: str | None
) -> None:
    """Write one page with plots and samples.

    Lengths, trained tokens, data sets, what is dropped, packing, rows as segments, samples with their tokens in colour.  The page
    is one file that loads nothing.  It contains text of your data.
    """
    from penstock.extras.view import html
    from penstock.recipe.run import recipe_overlaps
    from penstock.report import numbers
    from penstock.report.progress import stages

    html.checked(output)
    recipe = request.recipe()
    loader = request.loader(recipe)
    file = Path(recipe.file or "")
    named = "" if file.stem == "recipe" else file.stem
    overlaps = recipe_overlaps(recipe, numbers.stores(loader)) if request.part == "train" else []
    with stages("none" if request.json else "auto") as stage:
        num_bytes = html.write(
            loader,
            output,
            title=title or named,
            recipe=recipe.to_yaml(file.parent),
            num_samples=samples,
            num_rows=rows,
            compare=compare,
            overlaps=[str(overlap) for overlap in overlaps],
            stage=stage,
        )
    if request.json:
        screen.as_json(
            {"page": str(output), "num_bytes": num_bytes, "plan": loader.plan.fingerprint}
        )
    else:
        screen.say(f"{output}: {size(num_bytes)}, open it in a browser")


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
def view(request: Request, port: int, host: str | None, browser: bool, run_id: str | None) -> None:
    """Look at data, tokens and the plan in the browser.

    Scroll and search records, see each as data, text and tokens, click through the steps of the run, try other settings, watch a
    running job.  Only reads: data that is not prepared is shown as records.  Ends with Ctrl-C.
    """
    from penstock.cache import Cache
    from penstock.extras.view.server import LOOPBACK, listening, serve
    from penstock.extras.view.view import View
    from penstock.recipe.run import open_recipe, opened_settings

    recipe = request.recipe()
    opened = open_recipe(recipe, part=request.part, rows=1, skip_bad=True)
    loader = request.prepared_loader(recipe, opened)
    options = recipe.loader_options(request.part)
    file = Path(recipe.file or "")
    prepare_it = shlex.join(["penstock", "prepare", *request.data])
    page = View(
        loader,
        opened,
        settings=opened_settings(recipe, opened, part=request.part),
        title=file.name,
        recipe=recipe.to_yaml(file.parent),
        command=prepare_it,
        skip=options.get("skip_steps", ()),
        cache=Cache(recipe.settings.get("cache_dir")).root,
        run_id=run_id or options.get("run_id"),
    )
    if loader is None:
        screen.note(f"not prepared: only records are shown; to see the plan, run {prepare_it}")
    host = host or LOOPBACK
    with listening(host, port) as (listener, token, url):
        if request.json:
            screen.as_json({"url": url})
        else:
            screen.say(f"{url}  (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser:
            open_browser(url)
        serve(page, listener, token, host)


def open_browser(url: str) -> None:
    """Open a page, if there is a screen; without one, a browser of text would take over the terminal."""
    if sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        import webbrowser

        webbrowser.open(url)
