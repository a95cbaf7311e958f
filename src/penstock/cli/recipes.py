"""The commands that write recipes.  Each imports what it needs when it runs."""

from pathlib import Path

import click
from click import option

from penstock.cli import screen
from penstock.cli.answers import answers, of_init, of_schema, schema_of
from penstock.cli.request import COUNT, Command, CommandRequest, command, talks

_PATH = click.Path(path_type=Path)


@answers(of_init)
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


@answers(of_schema)
@click.command(
    cls=Command,
    epilog="In VS Code: yaml-language-server: $schema=recipe.schema.json, as a comment of the recipe.",
)
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
@option("--json", is_flag=True, help="Print JSON, as it always does.")
@talks
@click.pass_context
def schema(context: click.Context, command: tuple[str, ...], json: bool) -> None:
    """Print the JSON schema of recipes, or of what a command prints with --json.

    Editors complete keys and check values with the schema of recipes.  COMMAND is the name of a command, such as check or cache ls.
    """
    if not command:
        from penstock.recipe.schema import recipe_schema

        screen.as_json(recipe_schema())
        return
    found = context.find_root().command
    for word in command:
        inner = found.get_command(context, word) if isinstance(found, click.Group) else None
        if inner is None:
            raise click.UsageError(f"no such command: {' '.join(command)}")
        found = inner
    if isinstance(found, click.Group):
        names = ", ".join(found.list_commands(context))
        raise click.UsageError(f"{' '.join(command)} has several commands: {names}; add one")
    screen.as_json(schema_of(found, " ".join(command)))
