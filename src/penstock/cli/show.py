"""`penstock show`: one record through every stage, or the rows of a step."""

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import arguments, screen

if TYPE_CHECKING:
    from penstock.api import OpenSet
    from penstock.plan.settings import PlanSettings
    from penstock.report.walk import RecordWalk


def show(
    data: arguments.Data,
    row: Annotated[int | None, typer.Option(help="Which record, counted from 0; -1 is the last.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="A step instead: its rows, drawn as segments.")] = None,
    random: Annotated[bool, typer.Option("--random", help="Some record.")] = False,
    source: arguments.Source = None,
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = None,
    train_on: arguments.TrainOn = None,
    chat_template: arguments.ChatTemplate = None,
    option: arguments.Options = None,
    part: arguments.Part = "train",
    max_length: arguments.MaxLength = None,
    batch_size: arguments.BatchSize = None,
    world_size: arguments.WorldSize = 1,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """One record through every stage.

    Raw, rendered, as tokens (trained or not), and the row in which it lands; or with --step, the rows of a step drawn as segments.
    Of data that is not prepared, one record is read and its place in training is not shown; --step prepares all of it first.
    """
    if sum((row is not None, step is not None, random)) > 1:
        raise typer.BadParameter("give one of --row, --step and --random")
    words = arguments.template_text(chat_template)
    screen.listen(json=json)
    recipe = arguments.recipe(
        data, option, tokenizer=tokenizer, template=template, train_on=train_on, chat_template=words,
        cache_dir=cache_dir, max_length=max_length, batch_size=batch_size,
    )  # fmt: skip
    from penstock import api
    from penstock.report import numbers, text, walk

    opened = api.open_recipe(recipe, part=part)
    loader = arguments.prepared_loader(recipe, opened, part=part, world_size=world_size)
    if loader is None and step is None:
        alone = _alone(opened, recipe.plan_settings(part), source, None if random else row or 0)
        if json:
            screen.as_json({**numbers.plain(alone), "packed_row": None})
        else:
            screen.show(text.record(alone))
        return
    if loader is None:  # the rows of a step depend on the length of every sample
        loader = arguments.loader(recipe, part=part, world_size=world_size, json=json)
    number = arguments.source_number(loader, source)
    if step is not None:
        rows = [walk.row(loader, step, place) for place in range(loader.batch_size * world_size)]
        if json:
            screen.as_json([numbers.plain(each) for each in rows])
            return
        for each in rows:
            screen.show(text.row(each, width=screen.width()))
            screen.show(text.tokens(each.tokens))
        return
    length = len(loader.stores[number])
    chosen = secrets.randbelow(max(length, 1)) if random else row or 0
    found = walk.record(loader, chosen, source=number)
    lands = found.landings[0] if found.landings else None
    drawn = None if lands is None else walk.row(loader, lands.step, lands.row * world_size + lands.rank)
    if json:
        screen.as_json({**numbers.plain(found), "packed_row": None if drawn is None else numbers.plain(drawn)})
        return
    screen.show(text.record(found))
    if drawn is not None:
        screen.show(text.row(drawn, width=screen.width()))


def _alone(opened: "list[OpenSet]", settings: "PlanSettings", source: str | None, row: int | None) -> "RecordWalk":
    """One record of data that is not prepared; None: some record."""
    from penstock import api
    from penstock.report import walk

    names = [each.name for each in opened]
    if source is not None and source not in names:
        raise typer.BadParameter(f"source {source!r} is not there, expected one of {', '.join(names)}")
    chosen = opened[0 if source is None else names.index(source)]
    some = secrets.randbelow(max(len(chosen.source), 1)) if row is None else row
    number, store = api.prepare_row(chosen, some)
    return walk.unprepared(store, settings, number, chosen.name)
