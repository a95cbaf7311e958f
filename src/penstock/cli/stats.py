"""`penstock stats`: lengths, tokens, what is dropped, and what another max_length or packing would give."""

from typing import Annotated

import typer

from penstock.cli import arguments, screen


def stats(
    data: arguments.Data,
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = None,
    option: arguments.Options = None,
    part: arguments.Part = "train",
    max_length: arguments.MaxLength = None,
    batch_size: arguments.BatchSize = None,
    world_size: arguments.WorldSize = 1,
    compare_length: Annotated[
        list[int] | None, typer.Option(min=1, help="A max_length to compare; again for more.")
    ] = None,
    compare_packing: Annotated[list[str] | None, typer.Option(help="A packing to compare; again for more.")] = None,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Show lengths, tokens, what is dropped, and other packings.

    Tokens and trained tokens of each data set, a histogram of lengths, what is dropped and where, and the same data under
    other max_length and packings.
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
    from penstock.report import numbers, text

    sources = numbers.sources(loader)
    lengths = numbers.lengths(numbers.stores(loader))
    fits = numbers.fits(loader, max_lengths=compare_length, packings=compare_packing)
    settings = loader.plan.settings
    counters = numbers.counters(loader)
    if json:
        screen.as_json(
            {
                "sources": numbers.plain(sources),
                "lengths": numbers.plain(lengths),
                "max_length": settings.max_length,
                "packing": settings.packing,
                "counters": numbers.plain(counters),
                "fits": numbers.plain(fits),
            }
        )
        return
    said = f"max_length {settings.max_length:,}, overflow {settings.overflow}"
    screen.show(text.sources(sources))
    screen.show(text.histogram(lengths, width=screen.width(), max_length=settings.max_length))
    screen.show(text.ledger(sources, counters, settings=said))
    screen.show(text.fits(fits, chosen=(settings.max_length, settings.packing)))
