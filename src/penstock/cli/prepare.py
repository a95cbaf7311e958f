"""`penstock prepare`: records become samples on disk."""

from typing import Annotated

import typer

from penstock.cli import arguments, screen


def prepare(
    data: arguments.Data,
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = "auto",
    train_on: arguments.TrainOn = None,
    chat_template: arguments.ChatTemplate = None,
    option: arguments.Options = None,
    name: arguments.Name = None,
    num_proc: Annotated[int | None, typer.Option(min=1, help="Processes; else all cores.")] = None,
    cache_dir: arguments.CacheDir = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Make every shard anew.")] = False,
    json: arguments.Json = False,
) -> None:
    """Turn records into samples on disk; what is there already is not made again."""
    import logging

    from penstock import api
    from penstock.store.listing import summary

    logger = logging.getLogger("penstock")
    logger.addHandler(
        screen.LogLines(logging.WARNING if json else logging.INFO, skip="build")
    )  # its line is our answer
    logger.setLevel(logging.WARNING if json else logging.INFO)
    options = arguments.template_options(option, train_on=train_on, chat_template=chat_template)
    with screen.interruptible():
        store = api.prepare(
            arguments.place(data),
            tokenizer=tokenizer,
            template=template,
            name=name,
            cache_dir=cache_dir,
            num_proc=num_proc,
            refresh=refresh,
            progress="none" if json else "auto",
            **options,
        )
    if json:
        screen.as_json(summary(store))
    else:
        screen.say(f"{store.fingerprint[:8]}  {store.name}: {store.describe()}")
        screen.note(f"in {store.cache.root}")
