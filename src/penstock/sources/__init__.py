"""Record i of this place: `open_source` turns what a user names into a source."""

from penstock.sources.bad import BadRows
from penstock.sources.base import RowAccess
from penstock.sources.concat import Concat, concat, is_source
from penstock.sources.file_source import FilesSource, Part
from penstock.sources.formats import Format, formats
from penstock.sources.jsonl import JsonlSource
from penstock.sources.memory import ListSource
from penstock.sources.open import open_source
from penstock.sources.views import View

__all__ = [
    "BadRows",
    "Concat",
    "FilesSource",
    "Format",
    "JsonlSource",
    "ListSource",
    "Part",
    "RowAccess",
    "View",
    "concat",
    "formats",
    "is_source",
    "open_source",
]
