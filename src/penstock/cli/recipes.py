"""The commands that write recipes.  Each imports what it needs when it runs."""

from pathlib import Path

import click
from click import option

from penstock.cli import screen
from penstock.cli.request import COUNT, Request, command
from penstock.words import plural

_PATH = click.Path(path_type=Path)


@command("tokenizer", "template", metavar="DATA", about="Files, globs or folders.")
@option("-o", "--output", type=_PATH, default="recipe.yaml", help="Where to write the recipe.")
@option("--rows", type=COUNT, default=1000, help="Rows to tokenize, spread over the data.")
@option("--force", is_flag=True, help="Replace the recipe if it exists.")
def init(request: Request, output: Path, rows: int, force: bool) -> None:
    """Write a recipe for your data.

    Samples rows to find the format, the template and lengths in tokens, and prints what it found.  In a folder, files named
    test, dev, valid, val or eval become eval sets.
    """
    from penstock.recipe.draft import VARIABLE, Draft
    from penstock.report.numbers import plain

    _check_output(output, force)
    found = Draft(request.data, rows=rows, given=request.keys, **request.given)
    text = found.text(output)
    _write(output, text, force)
    if request.json:
        screen.as_json({"recipe": str(output), "text": text, **plain(found.facts())})
        return
    for finding in found.findings:
        screen.say(finding)
    name_it = (
        f"name a tokenizer in it, or set the variable {VARIABLE}; then "
        if found.is_estimate
        else ""
    )
    screen.say(f"wrote {output}; next: {name_it}penstock check {output}", style="bold")


def _check_output(output: Path, force: bool) -> None:
    from penstock.errors import RecipeError

    if output.exists() and not force:
        raise RecipeError(
            f"{output}: exists already; choose another name, or pass --force to replace it"
        )
    if not output.absolute().parent.is_dir():
        raise RecipeError(f"{output}: its folder does not exist; create it first")


def _write(output: Path, text: str, force: bool) -> None:
    """Write all of a recipe, or nothing."""
    from penstock.errors import RecipeError
    from penstock.places.files import open_place

    place, name = open_place(output.resolve())
    try:
        place.create(name, lambda out: out.write(text.encode()), replace=force)
    except OSError as error:
        raise RecipeError(f"{output}: cannot be written: {error.strerror or error}") from error


@click.command("import")
@click.argument("file", type=_PATH)
@option(
    "--from",
    "tool",
    type=click.Choice(["trl", "axolotl", "llama-factory", "lmms-engine"]),
    help="The tool, if keys do not tell.",
)
@option(
    "--dataset-info",
    type=_PATH,
    help="The dataset_info.json of LLaMA-Factory, if it is not in dataset_dir.",
)
@option("-o", "--output", type=_PATH, default="recipe.yaml", help="Where to write the recipe.")
@option("--force", is_flag=True, help="Replace the recipe if it exists.")
@option("--json", "as_json", is_flag=True, help="Print one JSON value, for scripts.")
def import_(
    file: Path,
    tool: str | None,
    dataset_info: Path | None,
    output: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Write a recipe from a config of trl, axolotl, LLaMA-Factory or LMMS-Engine.

    FILE is their YAML, a shell script with their command line, or a Python script that makes an SFTConfig, DPOConfig, KTOConfig or
    GRPOConfig; nothing of it is run.  Every key of FILE is in the recipe: translated, or as a comment that says why not.
    """
    from penstock.extras.imports.foreign import import_config
    from penstock.recipe.recipe import Recipe

    _check_output(output, force)
    found = import_config(file, tool=tool, dataset_info=dataset_info)
    text = found.text(output)
    Recipe.read(output, text=text)  # a recipe that does not load is not written
    _write(output, text, force)
    if as_json:
        screen.as_json(
            {"recipe": str(output), "tool": found.tool, "text": text, "unknown": found.unknown}
        )
        return
    total = plural(len(found.given), "key")
    screen.say(
        f"{found.tool}: {found.num_translated} of {total} translated, the others are comments"
    )
    if found.computed:
        names = ", ".join(found.computed)
        screen.say(
            f"computed by the script, write the values into the recipe: {names}", style="yellow"
        )
    if found.unknown:
        screen.say(
            f"{plural(len(found.unknown), 'key')} not known here: {', '.join(found.unknown)}",
            style="yellow",
        )
    screen.say(f"wrote {output}; next: penstock check {output}", style="bold")
