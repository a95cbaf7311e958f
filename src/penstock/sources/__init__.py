"""Record i of this place: `open_source` turns what a user names into a source."""

from penstock.sources.bad import BadRows
from penstock.sources.base import RowAccess
from penstock.sources.concat import Concat, concat, is_source
from penstock.sources.files import Files
from penstock.sources.formats import Format, formats
from penstock.sources.interleave import interleave
from penstock.sources.iterate import RecordIterator
from penstock.sources.memory import ListSource
from penstock.sources.open import open_source
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.rows import FileReader, FileRecords
from penstock.sources.stream import StreamSource
from penstock.sources.text import record_unit
from penstock.sources.views import View

__all__ = [
    "BadRows",
    "Concat",
    "FileReader",
    "FileRecords",
    "Files",
    "Format",
    "ListSource",
    "OpenRequest",
    "Opener",
    "RecordIterator",
    "RowAccess",
    "StreamSource",
    "View",
    "concat",
    "formats",
    "interleave",
    "is_source",
    "open_files",
    "open_source",
    "record_unit",
]
