"""`penstock verify`: is what lies on disk what was written?"""

from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli import arguments, screen


def verify(
    store: Annotated[
        list[str] | None, typer.Argument(help="Fingerprints, or how they begin; or names of data.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every store of the cache.")] = False,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Read every byte of a store and hold it to its digests; ends with 1 where something is wrong."""
    from penstock.cache import Cache
    from penstock.store.listing import find_store
    from penstock.store.verify import verify as verify_store
    from penstock.store.verify import verify_all

    if every == bool(store):
        raise typer.BadParameter("name one or more stores, or give --all")
    cache = Cache(cache_dir)
    found = verify_all(cache) if every else (verify_store(find_store(wanted, cache), cache) for wanted in store or [])
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
