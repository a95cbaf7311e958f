"""`penstock plan`: steps, rows and tokens of an epoch; and whether a saved state fits."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import arguments, screen


def plan(
    data: arguments.Data,
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = None,
    option: arguments.Options = None,
    part: arguments.Part = "train",
    max_length: arguments.MaxLength = None,
    batch_size: arguments.BatchSize = None,
    world_size: arguments.WorldSize = 1,
    epoch: Annotated[int, typer.Option(min=0, help="Which epoch, counted from 0.")] = 0,
    compare: Annotated[
        Path | None, typer.Option(help="A saved state, as JSON: does it fit?  Exit code 1 if not.")
    ] = None,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Show the steps, rows, tokens and shares of an epoch.

    With a digest of its order; --compare says whether a saved state fits.
    """
    screen.listen(json=json)
    recipe = arguments.recipe(
        data,
        option,
        tokenizer=tokenizer,
        template=template,
        cache_dir=cache_dir,
        max_length=max_length,
        batch_size=batch_size,
    )
    loader = arguments.loader(recipe, part=part, world_size=world_size, json=json)
    from penstock.report import mixing, numbers, resume, text

    found = numbers.epoch(loader, epoch)
    fit = None if compare is None else resume.compare(loader, arguments.state(compare))
    if json:
        screen.as_json({**numbers.plain(found), **({} if fit is None else {"state": numbers.plain(fit)})})
    else:
        screen.show([*text.epoch(found), *mixing.pieces(found)])
        if fit is not None:
            screen.say(f"{compare}: {fit.why}", style="green" if fit.fits else "red")
    if not found.rows and not json:
        screen.say(text.no_step(found), style="red")
    if not found.rows or (fit is not None and not fit.fits):
        raise typer.Exit(1)
