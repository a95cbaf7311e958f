"""`penstock prepare`: tokenize records into the cache."""

from typing import Annotated

import typer

from penstock.cli import arguments, screen


def prepare(
    data: arguments.Data,
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = None,
    train_on: arguments.TrainOn = None,
    chat_template: arguments.ChatTemplate = None,
    option: arguments.Options = None,
    name: arguments.Name = None,
    num_proc: arguments.NumProc = None,
    cache_dir: arguments.CacheDir = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Make every shard again.")] = False,
    json: arguments.Json = False,
) -> None:
    """Tokenize all data sets of a recipe into the cache.

    Eval sets too.  What the cache has is not made again; an interrupted run continues where it stopped.
    """
    words = arguments.template_text(chat_template)
    screen.listen(json=json)
    recipe = arguments.recipe(
        data, option, tokenizer=tokenizer, template=template, train_on=train_on, chat_template=words, name=name,
        num_proc=num_proc, cache_dir=cache_dir, refresh=refresh or None, progress="none" if json else "auto",
    )  # fmt: skip
    from penstock import api
    from penstock.store.listing import summary

    stores = []
    with screen.interruptible():
        for part in recipe.parts:
            stores += [(part, name, store) for name, store in api.prepare_recipe(recipe, part=part).items()]
    if json:
        found = [{"part": part, "data_set": name, **summary(store)} for part, name, store in stores]
        screen.as_json(found if recipe.file else summary(stores[0][2]))
        return
    for part, name, store in stores:
        called = store.name if not recipe.file else name if part == "train" else f"{name} (eval)"
        screen.say(f"{store.fingerprint[:8]}  {called}: {store.describe()}")
    screen.note(f"in {stores[0][2].cache.root}")
