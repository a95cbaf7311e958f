"""`penstock init`: look at data and write a recipe for it."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import arguments, screen


def init(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="Files, globs or folders.")],
    tokenizer: arguments.Tokenizer = None,
    template: Annotated[str | None, typer.Option(help="How records become samples; else it is detected.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="Any key of a recipe, or option of the source, such as eos=false or record=file; again for more.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the recipe.")] = Path("recipe.yaml"),
    rows: Annotated[int, typer.Option(min=1, help="Rows to tokenize, spread over the data.")] = 1000,
    force: Annotated[bool, typer.Option("--force", help="Replace the recipe if it exists.")] = False,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Write a recipe for your data.

    Samples rows to find the format, the template and lengths in tokens, and prints what it found.  In a folder, files named
    test, dev, valid, val or eval become eval sets.
    """
    screen.listen(json=json)
    from penstock.recipe.draft import draft
    from penstock.recipe.files import write_new
    from penstock.recipe.layout import VARIABLE
    from penstock.report.numbers import plain

    write_new(output, None, force=force)  # before the work
    found = draft(
        arguments.place(data), output=output, tokenizer=tokenizer, cache_dir=cache_dir, rows=rows,
        template=template, given=arguments.recipe_keys(option),
    )  # fmt: skip
    write_new(output, found.text, force=force)
    if json:
        screen.as_json({"recipe": str(output), **plain(found)})
        return
    for finding in found.findings:
        screen.say(finding)
    name_it = f"name a tokenizer in it, or set the variable {VARIABLE}; then " if found.is_estimate else ""
    screen.say(f"wrote {output}; next: {name_it}penstock check {output}", style="bold")
