"""What a new kind of place implements.  `penstock.testing.check_place` checks it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal, Protocol


class Explained(OSError):
    """An error of a place whose text says what failed and what to do; others say only what failed."""


@dataclass(frozen=True, slots=True)
class FileId:
    """One version of one file, by its metadata.  It saves reading the content again, and never replaces a digest."""

    path: str  # an absolute path or a URL
    size: int
    mtime_ns: int
    inode: int = 0  # local files
    ctime_ns: int = (
        0  # changes with every write, link or mode, and cannot be set back; of objects as mtime_ns
    )
    etag: str = ""  # objects

    @property
    def mtime(self) -> float:
        """When it was written, in seconds."""
        return self.mtime_ns / 1e9

    @property
    def has_strong_etag(self) -> bool:
        """Whether the ETag changes with every byte; a weak one may not."""
        return bool(self.etag) and not self.etag.startswith("W/")


class File(Protocol):
    """An open file: any range of it, from any thread or process.  Raises SourceError; SourceChanged if it was written to."""

    identity: FileId
    on_disk: bool  # its bytes are on a disk of this machine, so that `map` costs nothing

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes start..stop."""

    def readinto(self, buffer: bytearray | memoryview, start: int) -> int:
        """Fill `buffer` from byte `start` on; return the number of bytes."""

    def map(self) -> Any:
        """Return the whole file as a buffer.  Call `check` before each use."""

    def check(self) -> None:
        """Raise SourceChanged if the file has changed since it was identified."""


class Place(Protocol):
    """Files by name.  Methods raise OSError, such as FileNotFoundError; callers say what it means for the user.

    Correctness never rests on `create` alone: names of files that several writers make say what the content is.
    """

    def absolute(self, name: str) -> str:
        """Return the full path or URL of a name; of "", the folder that names are relative to."""

    def glob(self, pattern: str) -> list[str]:
        """Return the paths of files that match, each once."""

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        """Return the names in a folder, and whether each is a folder, in any order."""

    def scan(self, folder: str) -> Iterator[FileId]:
        """Yield all files below a folder."""

    def stat(self, name: str) -> FileId:
        """Return the present version of a file."""

    def kind(self, name: str) -> Literal["file", "folder", "other", ""]:
        """Say what has this name: "" for nothing, or if this process may not know."""

    def open(self, name: str, version: FileId) -> File:
        """Open this version of a file; raise SourceChanged if there is another one."""

    def read(self, name: str, version: FileId | None = None) -> bytes:
        """Return all of a small file; raise SourceChanged if it is not this version."""

    def create(
        self, name: str, write: Callable[[IO[bytes]], object], *, replace: bool = False
    ) -> int:
        """Write a file that is complete as soon as it has its name; return its size.

        Without `replace`, a file of that name stays; raise FileExistsError if its bytes differ.
        """

    def remove(self, name: str) -> None:
        """Remove a file.  One that is missing is not an error."""


# What a plugin of the group "places" is, under the name of its scheme: it returns the place that a URL belongs to.
OpenUrl = Callable[[str], Place]
