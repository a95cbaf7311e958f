"""Record i of this place: `open_source` turns what a user names into a source."""

from penstock.sources.bad import BadRows
from penstock.sources.base import RowAccess
from penstock.sources.concat import Concat, concat, is_source
from penstock.sources.files import Files
from penstock.sources.formats import Format, formats
from penstock.sources.memory import ListSource
from penstock.sources.open import open_source
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.rows import FileReader, Rows
from penstock.sources.stream import StreamSource
from penstock.sources.text import record_unit
from penstock.sources.views import View

__all__ = [
    "BadRows",
    "Concat",
    "FileReader",
    "Files",
    "Format",
    "ListSource",
    "OpenRequest",
    "Opener",
    "RowAccess",
    "Rows",
    "StreamSource",
    "View",
    "concat",
    "formats",
    "is_source",
    "open_files",
    "open_source",
    "record_unit",
]
