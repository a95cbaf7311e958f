"""Objects by relative names, and small files of remote places (tokenizers, recipes) as local files, fetched once for each version."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

from penstock.cache.cache import Cache
from penstock.errors import SourceError
from penstock.extras.remote.object_store import ObjectPlace
from penstock.fingerprint import fingerprint
from penstock.places.files import identify, open_place, read_file
from penstock.places.place import FileId


class Bucket:
    """Objects below a URL, by relative names."""

    def __init__(self, url: str) -> None:
        self.url = url
        place = open_place(url)[0]
        assert isinstance(place, ObjectPlace)
        self.place = place

    def full(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def stat(self, name: str) -> FileId:
        return self.place.stat(self.full(name))

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        return self.place.entries(self.full(folder))

    def scan(self, folder: str) -> Iterator[FileId]:
        return self.place.scan(self.full(folder))

    def remove(self, name: str) -> None:
        self.place.remove(self.full(name))

    def create(
        self, name: str, write: Callable[[IO[bytes]], object], *, replace: bool = False
    ) -> int:
        return self.place.create(self.full(name), write, replace=replace)

    def read(self, name: str) -> bytes:
        return self.place.read_now(self.full(name))


def fetch_folder(url: str, names: Sequence[str], cache: Cache | None = None) -> Path:
    """Return a local folder with those of these files that a remote folder has, in the versions that it has now.

    A version is a size, a time and an ETag; the folder is named by the versions of all files, so that files are never mixed.
    """
    place = cache or Cache()
    local = place.local if place.is_remote else place  # type: ignore[attr-defined]
    with ThreadPoolExecutor(len(names)) as pool:
        found = {
            name: file
            for name, file in zip(
                names, pool.map(_version, [f"{url}/{n}" for n in names]), strict=True
            )
            if file
        }
    versions = [[file.path, file.size, file.mtime_ns, file.etag] for file in found.values()]
    key = fingerprint(versions)
    folder = f"fetched/{key[:2]}/{key}"
    for name, file in found.items():
        if local.size(f"{folder}/{name}", hold=False) != file.size:
            local.publish(f"{folder}/{name}", partial(_copy, file), replace=True, hold=False)
    local.hold(folder)
    return local.path(folder)


def _copy(file: FileId, out: IO[bytes]) -> None:
    out.write(read_file(file))


def _version(url: str) -> FileId | None:
    try:
        return identify(url)
    except SourceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
