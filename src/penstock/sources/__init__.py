"""Record i of this place: `open_source` turns what a user names into a source."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import find
from penstock.sources.jsonl import JsonlSource
from penstock.sources.memory import ListSource
from penstock.sources.view import RowAccess, View
from penstock.types import Record

SUFFIXES = (".jsonl", ".ndjson")

__all__ = ["JsonlSource", "ListSource", "RowAccess", "View", "open_source"]


def open_source(place: Any, *, cache: Cache, name: str | None = None) -> RowAccess:
    """A path, a glob, a folder, a list of those, or a list of dicts."""
    if isinstance(place, RowAccess):
        return place
    if isinstance(place, str | os.PathLike):
        return _open_files([place], cache, name)
    if isinstance(place, Sequence) and not isinstance(place, bytes | bytearray):
        if place and all(isinstance(part, str | os.PathLike) for part in place):
            return _open_files(list(place), cache, name)
        records: Sequence[Record] = place
        return ListSource(records, name=name or "list")
    raise SourceError(
        f"cannot open a {type(place).__name__} as a source; expected a path, a glob, a folder, a list of paths "
        f"or a list of dicts"
    )


def is_source(place: Any) -> bool:
    """Whether this already speaks the protocol, ours or a user's."""
    return all(hasattr(place, method) for method in ("records", "where", "digest", "cuts", "__len__", "__getitem__"))


def _open_files(places: list[str | os.PathLike[str]], cache: Cache, name: str | None) -> JsonlSource:
    paths = [path for place in places for path in find(place, suffixes=SUFFIXES)]
    for path in paths:
        if Path(path).suffix not in SUFFIXES:
            raise SourceError(f"{path}: unknown shape {Path(path).suffix!r}, expected one of {', '.join(SUFFIXES)}")
    if name is None:
        # one file: its own name; several: the folder they share
        name = Path(paths[0]).stem if len(paths) == 1 else Path(os.path.commonpath(paths)).name or "files"
    return JsonlSource(paths, cache=cache, name=name)
