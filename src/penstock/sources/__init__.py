"""Record i of this place: `open_source` turns what a user names into a source."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import find
from penstock.sources.bad import BadRows
from penstock.sources.concat import Concat, concat, is_source
from penstock.sources.jsonl import JsonlSource
from penstock.sources.memory import ListSource
from penstock.sources.parts import FilesSource, Part
from penstock.sources.shapes import SHAPES, Shape  # a new shape is a line in shapes.py
from penstock.sources.view import RowAccess, View
from penstock.types import Record

__all__ = [
    "SHAPES",
    "BadRows",
    "Concat",
    "FilesSource",
    "JsonlSource",
    "ListSource",
    "Part",
    "RowAccess",
    "Shape",
    "View",
    "concat",
    "is_source",
    "open_source",
]


def open_source(
    place: Any,
    *,
    cache: Cache,
    name: str | None = None,
    shape: str | None = None,
    bad: BadRows | None = None,
    **options: Any,
) -> RowAccess:
    """A path, a glob, a folder, a list of those, or a list of dicts.  `options` are the shape's own."""
    if isinstance(place, RowAccess):
        return place
    if isinstance(place, str | os.PathLike):
        return _open_files([place], cache, name, shape, bad, options)
    if isinstance(place, Sequence) and not isinstance(place, bytes | bytearray):
        if place and all(isinstance(part, str | os.PathLike) for part in place):
            return _open_files(list(place), cache, name, shape, bad, options)
        records: Sequence[Record] = place
        return ListSource(records, name=name or "list")
    raise SourceError(
        f"cannot open a {type(place).__name__} as a source; expected a path, a glob, a folder, a list of paths "
        f"or a list of dicts"
    )


def _open_files(
    places: list[str | os.PathLike[str]],
    cache: Cache,
    name: str | None,
    shape: str | None,
    bad: BadRows | None,
    options: dict[str, Any],
) -> RowAccess:
    known = tuple(suffix for each in SHAPES.values() for suffix in each.suffixes)
    paths = [path for place in places for path in find(place, suffixes=known)]
    shapes = {shape or _shape_of(path) for path in paths}
    if len(shapes) > 1:
        raise SourceError(
            f"files of several shapes ({', '.join(sorted(shapes))}); open each by itself and join them with concat"
        )
    found = SHAPES[shapes.pop()]
    source = getattr(import_module(f"penstock.sources.{found.module}"), found.source)
    if name is None:
        # one file: its own name; several: the folder they share
        name = Path(paths[0]).stem if len(paths) == 1 else Path(os.path.commonpath(paths)).name or "files"
    opened: RowAccess = source(paths, cache=cache, name=name, bad=bad, **options)
    return opened


def _shape_of(path: str) -> str:
    for name, shape in SHAPES.items():
        if path.endswith(shape.suffixes):
            return name
    known = ", ".join(suffix for shape in SHAPES.values() for suffix in shape.suffixes)
    raise SourceError(f"{path}: unknown shape {Path(path).suffix!r}, expected one of {known}; or name it with shape=")
