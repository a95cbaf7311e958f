"""Small files of remote places (tokenizers, recipes) as local files, fetched once for each version."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

from penstock.cache.cache import Cache, open_cache
from penstock.errors import SourceError
from penstock.fingerprint import fingerprint
from penstock.places.files import identify, read_file
from penstock.places.place import FileId


def fetch_folder(url: str, names: Sequence[str], cache: Cache | None = None) -> Path:
    """Return a local folder with those of these files that a remote folder has, in the versions that it has now.

    A version is a size, a time and an ETag; the folder is named by the versions of all files, so that files are never mixed.
    """
    here = (cache or open_cache()).here
    with ThreadPoolExecutor(len(names)) as pool:
        versions = list(pool.map(_version, [f"{url}/{name}" for name in names]))
    files = {name: file for name, file in zip(names, versions, strict=True) if file is not None}
    stamps = [[file.path, file.size, file.mtime_ns, file.etag] for file in files.values()]
    key = fingerprint(stamps)
    folder = f"fetched/{key[:2]}/{key}"
    for name, file in files.items():
        copy = f"{folder}/{name}"
        if here.size(copy) == file.size:
            here.renew(copy)
        else:
            here.publish(copy, partial(_copy, file), replace=True)
    return here.path(folder)


def _copy(file: FileId, out: IO[bytes]) -> None:
    out.write(read_file(file))


def _version(url: str) -> FileId | None:
    try:
        return identify(url)
    except SourceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
