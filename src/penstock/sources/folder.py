"""Which files does a folder's own description mean?  Those inside the folder, whatever the description says."""

import json
import os
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from penstock.errors import SourceError
from penstock.files import read

METADATA = "metadata.json"  # lists the chunks of a folder


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


def listed_chunks(folder: Path, suffix: str) -> dict[str, int]:
    """Chunks that a folder's metadata.json lists, in its order → samples; it must agree with itself and with the folder."""
    path = folder / METADATA
    metadata = read_json(path)
    entries = metadata.get("batch_files")
    if not isinstance(entries, list) or not entries:
        raise SourceError(f"{path}: batch_files is {str(entries)[:50]}, expected a list of chunks")
    chunks: dict[str, int] = {}
    for entry in entries:
        samples = entry.get("samples") if isinstance(entry, dict) else None
        if type(samples) is not int or samples < 0:
            raise SourceError(f"{path}: a chunk is {str(entry)[:80]}, expected {{path, samples}}")
        chunk = inside(folder, entry.get("path"), named_by=path)
        if chunk in chunks:
            raise SourceError(f"{path}: lists {entry['path']!r} twice; make the folder again")
        chunks[chunk] = samples
    total = metadata.get("total_samples")
    if total != sum(chunks.values()):
        raise SourceError(f"{path}: total_samples is {total}, but its chunks hold {sum(chunks.values())}")
    # sequifier leaves out a chunk that it failed to read, and with it the samples
    strange = sorted(str(found) for found in folder.glob(f"*{suffix}") if str(found) not in chunks)
    if strange:
        raise SourceError(f"{strange[0]}: not listed in {path}; list it there, or remove it from the folder")
    return chunks


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
