"""`penstock cache ls | rm | prune | why`: list, remove and explain what is in the cache."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli import arguments, screen

commands = typer.Typer(
    help="List, remove and explain what is in the cache.", no_args_is_help=True, rich_markup_mode=None
)

Stores = Annotated[list[str], typer.Argument(help="Fingerprints, or how they begin; or names of data.")]


@commands.command("ls")
def ls(cache_dir: arguments.CacheDir = None, json: arguments.Json = False) -> None:
    """List the stores, the last used first."""
    from penstock.cache import Cache
    from penstock.store.listing import list_stores

    cache = Cache(cache_dir)
    listing = list_stores(cache)
    if json:
        screen.as_json({"root": str(cache.root), **asdict(listing)})
        return
    rows = []
    for info in listing.stores:
        counts = (f"{info.counts.rows:,}", f"{info.counts.tokens:,}") if info.counts else ("?", "?")
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.used))
        state = info.problem or ("in use" if info.is_held else "")
        rows.append([info.store[:8], info.name, *counts, screen.num_bytes(info.num_bytes), used, state])
    if rows:
        screen.table(["store", "data", "#rows", "#tokens", "#size", "last used", ""], rows)
    unfinished = f", {listing.num_unfinished:,} shards of unfinished stores" if listing.num_unfinished else ""
    screen.note(f"{cache.root}: {len(rows)} stores{unfinished}, {screen.num_bytes(listing.num_bytes)}")


@commands.command("rm")
def rm(store: Stores, cache_dir: arguments.CacheDir = None, json: arguments.Json = False) -> None:
    """Remove stores, and the shards that no other store needs."""
    from penstock.cache import Cache
    from penstock.store.listing import remove

    cache = Cache(cache_dir)
    removed = [remove(wanted, cache) for wanted in store]
    if json:
        screen.as_json([{"store": name, "num_bytes": num_bytes} for name, num_bytes in removed])
        return
    for name, num_bytes in removed:
        screen.say(f"{name[:8]} removed, {screen.num_bytes(num_bytes)} free")


@commands.command("prune")
def prune(
    max_bytes: Annotated[str | None, typer.Option(help="What may stay, such as 200G; else PENSTOCK_CACHE_MAX.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Remove what was not used for so long, such as 30d.")] = None,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Remove what was not used for longest, and what killed processes left; never what is in use."""
    from penstock.cache import Cache, parse_size
    from penstock.store.prune import prune as prune_cache

    cache = Cache(cache_dir)
    most = cache.max_bytes if max_bytes is None else parse_size(max_bytes)
    if most is None and older_than is None:
        raise typer.BadParameter("give --max-bytes or --older-than, or set PENSTOCK_CACHE_MAX")
    pruned = prune_cache(
        cache, max_bytes=most, older_than=None if older_than is None else arguments.seconds(older_than)
    )
    if json:
        screen.as_json(asdict(pruned))
        return
    held = f"; {pruned.num_held} more are in use" if pruned.num_held else ""
    screen.say(
        f"{pruned.num_files:,} files removed ({screen.num_bytes(pruned.num_bytes)}), {len(pruned.stores)} stores among them; "
        f"{screen.num_bytes(pruned.num_left)} stay{held}"
    )


@commands.command("why")
def why(
    data: arguments.Data,
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = None,
    train_on: arguments.TrainOn = None,
    chat_template: arguments.ChatTemplate = None,
    option: arguments.Options = None,
    name: arguments.Name = None,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Say why `prepare` with the same arguments would not find its store: what differs from the nearest one."""
    words = arguments.template_text(chat_template)
    recipe = arguments.recipe(
        data, option, tokenizer=tokenizer, template=template, train_on=train_on, chat_template=words, name=name,
        cache_dir=cache_dir,
    )  # fmt: skip
    from penstock import api

    answers = [
        (part, name, answer) for part in recipe.parts for name, answer in api.why_recipe(recipe, part=part).items()
    ]
    if json:
        found = [{"part": part, "data_set": name, **asdict(answer)} for part, name, answer in answers]
        screen.as_json(found if recipe.file else asdict(answers[0][2]))
        return
    for _, name, answer in answers:
        if recipe.file:
            screen.say(name, style="bold")
        for line in answer.lines:
            screen.say(line)
