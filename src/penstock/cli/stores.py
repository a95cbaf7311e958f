"""`penstock verify`, and `penstock cache ls | rm | prune | why`: check, list, remove and explain what is in the cache."""

import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

import click
from click import UsageError, option
from click.exceptions import Exit

from penstock.cli import screen
from penstock.cli.answers import (
    answers,
    of_cache_ls,
    of_cache_prune,
    of_cache_rm,
    of_cache_why,
    of_verify,
)
from penstock.cli.request import RECIPE, Command, CommandRequest, command, complete_files, of_cache
from penstock.words import plural, size

if TYPE_CHECKING:
    from penstock.cache import Cache
    from penstock.store.verify import Report

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@answers(of_cache_ls)
@click.command(cls=Command)
@of_cache
def ls(cache_dir: str | None, json: bool) -> None:
    """List the stores, the last used first."""
    from penstock.cache import open_cache
    from penstock.store.inventory import list_stores

    cache = open_cache(cache_dir)
    listing = list_stores(cache)
    if json:
        screen.as_json({"root": cache.where, **asdict(listing)})
        return
    rows = []
    for info in listing.stores:
        counts = (f"{info.counts.rows:,}", f"{info.counts.tokens:,}") if info.counts else ("?", "?")
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.used))
        problem = info.problem or ""
        rows.append([info.store[:8], info.name, *counts, size(info.num_bytes), used, problem])
    if rows:
        screen.table(["store", "data", "#records", "#tokens", "#size", "last used", ""], rows)
    unfinished = (
        f", {plural(listing.num_unfinished, 'shard')} of unfinished stores"
        if listing.num_unfinished
        else ""
    )
    screen.note(
        f"{cache.where}: {plural(len(rows), 'store')}{unfinished}, {size(listing.num_bytes)}"
    )


@answers(of_cache_rm)
@click.command(cls=Command)
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@option(
    "--force", is_flag=True, help="Also a store that was used lately: a process may have it open."
)
@of_cache
def rm(stores: tuple[str, ...], force: bool, cache_dir: str | None, json: bool) -> None:
    """Remove stores, and the shards that no other store needs.

    STORE: a fingerprint, or how it begins; or the name of data.
    """
    from penstock.cache import open_cache
    from penstock.store.inventory import remove

    cache = open_cache(cache_dir)
    removed = [remove(name, cache, force=force) for name in stores]
    if json:
        screen.as_json([{"store": name, "num_bytes": num_bytes} for name, num_bytes in removed])
        return
    for name, num_bytes in removed:
        screen.say(f"{name[:8]} removed, {size(num_bytes)} free")


@answers(of_cache_prune)
@click.command(cls=Command)
@option("--max-bytes", help="What may stay, such as 200G; else PENSTOCK_CACHE_MAX.")
@option("--older-than", help="Remove what was not used for so long, such as 30d.")
@of_cache
def prune(max_bytes: str | None, older_than: str | None, cache_dir: str | None, json: bool) -> None:
    """Remove the least recently used files, and files of killed processes; never what was used within a day."""
    from penstock.cache import open_cache, parse_size
    from penstock.store.inventory import prune as prune_cache

    cache = open_cache(cache_dir)
    most = cache.max_bytes if max_bytes is None else parse_size(max_bytes)
    if most is None and older_than is None:
        raise UsageError("give --max-bytes or --older-than, or set PENSTOCK_CACHE_MAX")
    seconds = None if older_than is None else _seconds(older_than)
    pruned = prune_cache(cache, max_bytes=most, older_than=seconds)
    if json:
        screen.as_json(asdict(pruned))
        return
    kept = f"; {pruned.num_recent} more were used within a day" if pruned.num_recent else ""
    removed = f"{plural(pruned.num_files, 'file')} removed ({size(pruned.num_bytes)}), {plural(len(pruned.stores), 'store')} among them"
    screen.say(f"{removed}; {size(pruned.num_left)} stay{kept}")


def _seconds(text: str) -> float:
    """Parse a duration such as 12h or 30d."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise UsageError(f"{text!r}: expected a duration such as 90m, 12h, 30d or 4w")
    return float(parts[1]) * _SECONDS[parts[2]]


@answers(of_cache_why)
@command(*RECIPE, "name")
def why(request: CommandRequest) -> None:
    """Say why `prepare` with the same arguments would not find its store: the differences from the nearest store."""
    recipe = request.recipe()
    from penstock.recipe.run import why_recipe

    answers = [
        (part, name, answer)
        for part in recipe.parts
        for name, answer in why_recipe(recipe, part=part).items()
    ]
    if request.json:
        found = [
            {"part": part, "data_set": name, **asdict(answer)} for part, name, answer in answers
        ]
        screen.as_json(found if recipe.file else asdict(answers[0][2]))
        return
    for _, name, answer in answers:
        if recipe.file:
            screen.say(name, style="bold")
        for line in answer.lines:
            screen.say(line)


@answers(of_verify)
@click.command(cls=Command)
@click.argument("stores", nargs=-1, metavar="[STORE]...", shell_complete=complete_files)
@option(
    "--all",
    "every",
    is_flag=True,
    help="Every store of the cache, and every index and spool of its sources.",
)
@of_cache
def verify(stores: tuple[str, ...], every: bool, cache_dir: str | None, json: bool) -> None:
    """Check every byte of a store against its digests.

    STORE: a recipe, a fingerprint or how it begins, or the name of data.  Exit code 1 if something is wrong.
    """
    from penstock.cache import open_cache
    from penstock.cli.main import in_command_words
    from penstock.store.verify import verify as verify_store
    from penstock.store.verify import verify_all

    if every == bool(stores):
        raise UsageError("name one or more stores, or give --all")
    cache = open_cache(cache_dir)
    named = (found for name in stores for found in _find_stores(name, cache_dir))
    found = (
        chain(verify_all(cache), _verify_sources(cache))
        if every
        else (verify_store(*each) for each in named)
    )
    reports = []
    for report in found:
        reports.append(report)
        if not json:
            screen.say(report, style="green" if report.is_whole else "red")
            for problem in report.problems:
                screen.say(f"  {in_command_words(str(problem))}")
    if json:
        screen.as_json([{**asdict(report), "is_whole": report.is_whole} for report in reports])
    elif not reports:
        screen.say(f"no stores in {cache.where}")
    if not all(report.is_whole for report in reports):
        raise Exit(1)


def _verify_sources(cache: "Cache") -> "Iterator[Report]":
    """One report of everything that sources keep, if there is anything."""
    from penstock.sources.index import verify_files
    from penstock.store.verify import Problem, Report

    files = list(verify_files(cache))
    problems = [
        Problem(file=file.name, reason=file.problem) for file in files if file.problem is not None
    ]
    if files:
        num_bytes = sum(file.num_bytes for file in files)
        yield Report(
            store="sources", num_files=len(files), num_bytes=num_bytes, problems=tuple(problems)
        )


def _find_stores(name: str, cache_dir: str | None) -> "Iterator[tuple[str, Cache]]":
    """The store that a name means, or each store that a recipe needs."""
    from penstock.cache import open_cache
    from penstock.errors import StoreError
    from penstock.store.inventory import find_store

    if not name.endswith((".yaml", ".yml")):
        cache = open_cache(cache_dir)
        yield find_store(name, cache), cache
        return
    from penstock.recipe.run import why_recipe

    recipe = CommandRequest([name], {}, {"cache_dir": cache_dir} if cache_dir else {}).recipe()
    cache = open_cache(recipe.settings.get("cache_dir"))
    answers = [pair for part in recipe.parts for pair in why_recipe(recipe, part=part).items()]
    for data_set, answer in answers:
        if not answer.is_hit:
            raise StoreError(
                f"{name}: {data_set!r} is not prepared in {cache.where}; run: penstock prepare {name}"
            )
    yield from ((store, cache) for store in dict.fromkeys(answer.store for _, answer in answers))
