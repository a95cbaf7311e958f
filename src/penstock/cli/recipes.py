"""The commands that write recipes.  Each imports what it needs when it runs."""

from pathlib import Path

import click
from click import option

from penstock.cli import screen
from penstock.cli.request import COUNT, Command, CommandRequest, command, talks

_PATH = click.Path(path_type=Path)


@command("tokenizer", "template", metavar="DATA", about="Files, globs or folders.")
@option("-o", "--output", type=_PATH, default="recipe.yaml", help="Where to write the recipe.")
@option(
    "--records",
    "--rows",
    "rows",
    type=COUNT,
    default=1000,
    help="Number of records to tokenize, spread over the data.",
)
@option("--force", is_flag=True, help="Replace the recipe if it exists.")
def init(request: CommandRequest, output: Path, rows: int, force: bool) -> None:
    """Write a recipe for your data.

    Samples records to find the format, the template and lengths in tokens, and prints what it found.  In a folder, files named
    test, dev, valid, val or eval become eval sets.
    """
    from penstock.recipe.draft import VARIABLE, Draft
    from penstock.report.numbers import plain

    check_output(output, force)
    found = Draft(request.data, rows=rows, given=request.keys, **request.given)
    text = found.text(output)
    write_recipe(output, text, force)
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


def check_output(output: Path, force: bool) -> None:
    from penstock.errors import RecipeError

    if output.exists() and not force:
        raise RecipeError(
            f"{output}: exists already; choose another name, or pass --force to replace it"
        )
    if not output.absolute().parent.is_dir():
        raise RecipeError(f"{output}: its folder does not exist; create it first")


def write_recipe(output: Path, text: str, force: bool) -> None:
    """Write all of a recipe, or nothing."""
    from penstock.errors import RecipeError
    from penstock.places.files import open_place

    place, name = open_place(output.resolve())
    try:
        place.create(name, lambda out: out.write(text.encode()), replace=force)
    except OSError as error:
        raise RecipeError(f"{output}: cannot be written: {error.strerror or error}") from error


@click.command(
    cls=Command,
    epilog="In VS Code: yaml-language-server: $schema=recipe.schema.json, as a comment of the recipe.",
)
@talks
def schema() -> None:
    """Print the JSON schema of recipes, with which editors complete keys and check values."""
    from penstock.recipe.schema import recipe_schema

    screen.as_json(recipe_schema())
