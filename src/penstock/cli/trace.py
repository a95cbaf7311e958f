"""`penstock trace`: which records are in that batch."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import arguments, screen


def trace(
    data: arguments.Data,
    step: Annotated[int, typer.Option(min=0, help="Which step, counted from 0.")],
    rank: Annotated[int | None, typer.Option(min=0, help="Which rank; else all of them.")] = None,
    world_size: arguments.WorldSize = 1,
    state: Annotated[
        Path | None, typer.Option(help="A saved state, as JSON: steps from there on, under another world size too.")
    ] = None,
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = None,
    option: arguments.Options = None,
    part: arguments.Part = "train",
    max_length: arguments.MaxLength = None,
    batch_size: arguments.BatchSize = None,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Which records are in a batch.

    By file and line, without running anything.  Data that is not prepared is prepared first: where a record lands depends on the
    lengths of all.
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
    from penstock.report import numbers, text, walk

    if state is not None:
        loader.load_state_dict(arguments.state(state))
    found = walk.step(loader, step, rank=rank)
    if json:
        screen.as_json(numbers.plain(found))
        return
    screen.show(text.trace(found))
