"""`penstock import`: write a recipe from the configuration of another tool."""

from pathlib import Path

import click
from click import option

from penstock.cli import screen
from penstock.cli.answers import answers, record
from penstock.cli.recipes import check_output, write_recipe
from penstock.cli.request import Command, talks
from penstock.words import plural

_PATH = click.Path(path_type=Path)


@answers(lambda: record(recipe=str, tool=str, text=str, unknown=list[str]))
@click.command("import", cls=Command)
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
@option("--json", is_flag=True, help="Print one JSON value, for scripts.")
@talks
def import_(
    file: Path,
    tool: str | None,
    dataset_info: Path | None,
    output: Path,
    force: bool,
    json: bool,
) -> None:
    """Write a recipe from a config of trl, axolotl, LLaMA-Factory or LMMS-Engine.

    FILE is their YAML, a shell script with their command line, or a Python script that makes an SFTConfig, DPOConfig, KTOConfig or
    GRPOConfig; nothing of it is run.  Every key of FILE is in the recipe: translated, or as a comment that says why not.
    """
    from penstock.extras.imports.foreign import import_config
    from penstock.recipe.recipe import Recipe

    check_output(output, force)
    found = import_config(file, tool=tool, dataset_info=dataset_info)
    text = found.text(output)
    Recipe.read(output, text=text)  # a recipe that does not load is not written
    write_recipe(output, text, force)
    if json:
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
