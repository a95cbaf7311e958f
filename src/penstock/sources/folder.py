"""Which files does a folder's own description mean?  Those inside the folder, whatever the description says."""

import json
import os
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from penstock.errors import SourceError
from penstock.files import read


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON file that describes its folder."""
    try:
        found = json.loads(read(str(path)))
    except (ValueError, RecursionError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path}: not JSON: {error}; make the folder again") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path}: a JSON {type(found).__name__}, expected an object; make the folder again")
    return found


def inside(folder: Path, name: Any, *, named_by: Path) -> str:
    """The file of this name.  A description comes from elsewhere and must not lead to other places of this machine."""
    is_name = isinstance(name, str) and name and "\0" not in name
    absolute = is_name and (PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive)
    if not is_name or absolute or ".." in name.replace("\\", "/").split("/"):
        raise SourceError(f"{named_by}: names the file {name!r}, expected one inside its folder")
    path = folder / name
    home, real = os.path.realpath(folder), os.path.realpath(path)
    if os.path.commonpath([home, real]) != home:
        raise SourceError(f"{named_by}: names the file {name!r}, a link that leads out of its folder to {real}")
    if not Path(real).is_file():
        raise SourceError(f"{path}: missing, but {named_by} names it; restore the file or make the folder again")
    return str(path)
