"""`penstock verify`: check that the files of a store are as they were written."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import arguments, screen

if TYPE_CHECKING:
    from penstock.cache import Cache
    from penstock.store.verify import Report


def verify(
    store: Annotated[
        list[str] | None, typer.Argument(help="Recipes; or fingerprints, how they begin, names of data.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every store of the cache, and every index and spool of its sources.")
    ] = False,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Check every byte of a store against its digests.

    Exit code 1 if something is wrong.
    """
    from penstock.cache import Cache
    from penstock.store.verify import verify as verify_store
    from penstock.store.verify import verify_all

    if every == bool(store):
        raise typer.BadParameter("name one or more stores, or give --all")
    cache = Cache(cache_dir)
    named = (place for wanted in store or [] for place in _stores(wanted, cache_dir))
    found = chain(verify_all(cache), _sources(cache)) if every else (verify_store(*place) for place in named)
    reports = []
    for report in found:
        reports.append(report)
        if not json:
            screen.say(report, style="green" if report.is_whole else "red")
            for problem in report.problems:
                screen.say(f"  {problem}")
    if json:
        screen.as_json([{**asdict(report), "is_whole": report.is_whole} for report in reports])
    elif not reports:
        screen.say(f"no stores in {cache.root}")
    if not all(report.is_whole for report in reports):
        raise typer.Exit(1)


def _sources(cache: "Cache") -> "Iterator[Report]":
    """One report of everything that sources keep, if there is anything."""
    from penstock.sources.verify import verify_files
    from penstock.store.verify import Problem, Report

    files = list(verify_files(cache))
    problems = [Problem(file=file.name, reason=file.problem) for file in files if file.problem is not None]
    if files:
        num_bytes = sum(file.num_bytes for file in files)
        yield Report(store="sources", num_files=len(files), num_bytes=num_bytes, problems=tuple(problems))


def _stores(wanted: str, cache_dir: Path | None) -> "Iterator[tuple[str, Cache]]":
    """What is meant: one store, or each that a recipe needs, once."""
    from penstock.cache import Cache
    from penstock.errors import StoreError
    from penstock.store.listing import find_store

    if not wanted.endswith((".yaml", ".yml")):
        cache = Cache(cache_dir)
        yield find_store(wanted, cache), cache
        return
    from penstock import api

    recipe = arguments.recipe([wanted], None, cache_dir=cache_dir)
    cache = Cache(recipe.settings.get("cache_dir"))
    answers = [pair for part in recipe.parts for pair in api.why_recipe(recipe, part=part).items()]
    for name, answer in answers:
        if not answer.is_hit:
            raise StoreError(f"{wanted}: {name!r} is not prepared in {cache.root}; run: penstock prepare {wanted}")
    yield from ((found, cache) for found in dict.fromkeys(answer.store for _, answer in answers))
