"""Record i of this place: `open_source` turns what a user names into a source."""

from penstock.sources.bad import BadRows
from penstock.sources.concat import Concat, concat, is_source
from penstock.sources.jsonl import JsonlSource
from penstock.sources.memory import ListSource
from penstock.sources.opening import open_source
from penstock.sources.parts import FilesSource, Part
from penstock.sources.shapes import SHAPES, Shape
from penstock.sources.view import RowAccess, View

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
