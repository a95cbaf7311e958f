"""What the code of a format is: the options that it takes, and a function that opens files, or a folder, as a source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.sources.bad import BadRows
from penstock.sources.base import RowAccess
from penstock.sources.files import Files
from penstock.sources.rows import FileReader
from penstock.sources.splits import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """What is to be opened as one source."""

    paths: list[str]  # files of the format, or one folder that is a dataset as a whole
    options: Any  # an object of the format's class of options
    cache: Cache
    name: str | None = None
    bad: BadRows = field(default_factory=BadRows)
    split: str | None = None  # of a folder
    defaults: Mapping[str, Any] = field(
        default_factory=dict
    )  # options for datasets that are listed
    purpose: Purpose = "train"

    def folder(self, kind: str) -> Path:
        """Return the one folder that is asked for, of a kind that has no splits."""
        folder = self.folder_with_splits(kind)
        if self.split is not None:
            raise SourceError(
                f"{folder}: split {self.split!r} asked for, but such a folder is one split; leave split out"
            )
        return folder

    def folder_with_splits(self, kind: str) -> Path:
        """Return the one folder that is asked for."""
        if len(self.paths) != 1:
            raise SourceError(
                f"{len(self.paths)} folders of {kind}, expected one; join them with concat"
            )
        return Path(self.paths[0])

    def of_folder(self, files: list[str]) -> "OpenRequest":
        """Return the request for these files of the folder, which gives them its name."""
        return replace(self, paths=files, name=self.name or Path(self.paths[0]).name)


@dataclass(frozen=True, slots=True)
class Opener:
    """The code of a format.

    options: a dataclass; it checks its values when one is made.  Each field is declared with `setting` of settings.py, and nowhere else:
    keywords of `open`, keys of a recipe and their documentation are made from it.
    """

    options: type[Any]
    open: Callable[[OpenRequest], RowAccess]


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of a format that has none."""


def open_files(request: OpenRequest, reader: FileReader) -> Files:
    """Open the files of a request with a reader."""
    return Files(request.paths, reader, cache=request.cache, name=request.name, bad=request.bad)
