"""Objects of a bucket by relative names."""

from collections.abc import Callable, Iterator
from typing import IO

from penstock.extras.remote.object_store import ObjectPlace
from penstock.places.files import open_place
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
        self,
        name: str,
        write: Callable[[IO[bytes]], object],
        *,
        replace: bool = False,
        durable: bool = True,
    ) -> int:
        """Create an object; the store always keeps it."""
        return self.place.create(self.full(name), write, replace=replace)

    def read(self, name: str) -> bytes:
        return self.place.read_now(self.full(name))
