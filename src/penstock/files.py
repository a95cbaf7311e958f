"""Where do bytes come from?  List, identify, read a range.  The only file that knows a place; local folders for now."""

import contextlib
import fnmatch
import functools
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.errors import SourceChanged, SourceError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MAGIC = re.compile(r"[*?[]")
_LINE = 64  # bytes of a cache line
_MAX_OPEN = 64
_SHOWN = 300  # characters of a path in an error: somebody may give us a text instead


@dataclass(frozen=True, slots=True)
class FileId:
    """Which file this is, as far as a quick look can tell; content is the truth, this only saves reading it."""

    path: str  # absolute
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int = 0  # moves with every write, and nobody can put it back; a new link or mode moves it, too


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which part-2 comes before part-10."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)


def find(pattern: str | os.PathLike[str]) -> list[str]:
    """Files that a path, a glob (`**` too) or a folder stands for, absolute, in natural order; never an empty list.

    Of a folder: what lies directly in it and is not hidden.
    """
    text = local(pattern)
    if not text:
        raise SourceError("the path is empty, expected a file, a folder or a glob")
    whole = str(Path(text).absolute())
    if is_folder(text):
        inside = _inside(whole)
        found = [
            entry.path for entry in inside if not entry.is_dir()
        ]  # a link that leads nowhere is an error, not a gap
        folders = len(inside) - len(found)
        expected = "a file in this folder"
        if folders:
            expected += f"; there are {folders} folders in it: {text.rstrip('/')}/** stands for all files below"
    elif os.path.lexists(text) or not _MAGIC.search(text):
        found, expected = [whole], "a file"
        identify(whole)  # before anybody wonders what shape it has
    else:
        found = _matches(whole)
        expected = f"at least one file to match (current folder: {Path.cwd()})"
    if not found:
        raise SourceError(f"{text}: nothing there, expected {expected}")
    return sorted(found, key=natural)


def is_folder(place: str | os.PathLike[str]) -> bool:
    """Whether a folder lies there; of what may not be looked at, or can be no path at all, nobody knows one."""
    return os.path.isdir(local(place))  # noqa: PTH112 - Path raises at names that are too long


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file lies there, as far as one may look."""
    return os.path.isfile(path)  # noqa: PTH113 - Path raises where one may not


def has_folders(place: str | os.PathLike[str]) -> bool:
    """Whether it is a folder in which others lie that are not hidden."""
    return is_folder(place) and any(entry.is_dir() for entry in _inside(local(place)))


def local(place: str | os.PathLike[str]) -> str:
    """A place on this machine, with `~` spelled out."""
    text = os.path.expanduser(os.fspath(place))  # noqa: PTH111 - a glob is no path
    if re.match(r"[a-z][a-z0-9+.-]+://", text):
        raise SourceError(f"{text}: remote places are not built yet; copy the files to a local folder")
    return text


def identify(path: str) -> FileId:
    """A quick look at a file that must be there and be readable as a file."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError) as error:  # ValueError: a NUL byte
        reason = getattr(error, "strerror", None) or error
        why = "nothing there, expected a file" if isinstance(error, FileNotFoundError) else reason
        raise SourceError(f"{path[:_SHOWN]}: {why}; check the path (current folder: {Path.cwd()})") from error
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{path}: not a regular file, and random access needs one; copy it to a file first")
    return _file_id(path, status)


def changed(known: FileId) -> int:
    """When a file last changed in any way, in ns; nobody can set that time, other than that of the last write.

    SourceChanged where it is no longer the file that was identified, or where the clock has not moved on since, so that
    another change could get the same time.
    """
    status = os.stat(known.path)  # noqa: PTH116
    tick = 2_000_000_000 if status.st_ctime_ns % 1_000_000_000 == 0 else 20_000_000
    if _file_id(known.path, status) != known or time.time_ns() - status.st_ctime_ns <= tick:
        raise SourceChanged(f"{known.path}: changed since it was opened, or just now; open the source again")
    return status.st_ctime_ns


def read(path: str) -> bytes:
    """A small file, whole."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}; check the path and its permissions") from error


def read_small(known: FileId) -> bytes:
    """All of a small file, if it still is the one that was identified.  Four system calls, and no file stays open."""
    try:
        fd = os.open(known.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError as error:
        raise SourceChanged(f"{known.path}: changed while open: was removed; open the source again") from error
    except OSError as error:
        raise SourceError(f"{known.path}: {error.strerror}; check the path and its permissions") from error
    try:
        data = os.read(fd, known.size + 1)
        while len(data) < known.size and (
            more := os.read(fd, known.size + 1 - len(data))
        ):  # a network may give it in pieces
            data += more
        status = os.fstat(fd)  # after reading: a write in between has moved its time
    except OSError as error:
        raise SourceError(f"{known.path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    now = (status.st_ino, status.st_size, status.st_mtime_ns, len(data))
    if now != (known.inode, known.size, known.mtime_ns, known.size):
        raise SourceChanged(
            f"{known.path}: changed while open: has {status.st_size} bytes, last written at {status.st_mtime_ns} ns, expected "
            f"{known.size} bytes written at {known.mtime_ns} ns; open the source again"
        )
    return data


def max_open() -> int:
    """How many files of data to keep open: few beside what the process may, as one may be mapped as well, and others need some."""
    if resource is None:
        return _MAX_OPEN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if soft < 0 else max(1, min(_MAX_OPEN, soft // 8))  # below 0: as many as you like


class RangeFile:
    """Any range of one file, from any thread or forked process: reads share no cursor.  Pickles as its identity."""

    def __init__(self, identity: FileId) -> None:
        self.identity = identity
        self._fd = -1
        try:
            self._fd = os.open(identity.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise SourceError(f"{identity.path}: {error.strerror}; check the path and its permissions") from error
        if (
            os.fstat(self._fd).st_ino != identity.inode
        ):  # opened again, later or elsewhere, by a path that now means another
            raise self._changed("another file has taken its place")
        self.check()

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes start..stop."""
        try:
            data = os.pread(self._fd, stop - start, start)
            while len(data) < stop - start:  # Linux hands out at most 2 GiB at once
                more = os.pread(self._fd, stop - start - len(data), start + len(data))
                if not more:
                    raise self._changed(f"ends at byte {start + len(data)}")
                data += more
        except OSError as error:
            raise SourceError(f"{self.identity.path}: cannot read bytes {start}..{stop}: {error.strerror}") from error
        return data

    def readinto(self, buffer: bytearray | memoryview, start: int) -> int:
        """Fill `buffer` from byte `start` on; how many bytes there were."""
        try:
            return os.preadv(self._fd, [buffer], start)
        except OSError as error:
            raise SourceError(f"{self.identity.path}: cannot read at byte {start}: {error.strerror}") from error

    def check(self) -> None:
        """Raise if the file has been written to since it was identified."""
        status = os.fstat(self._fd)
        known = self.identity
        if status.st_nlink and status.st_size == known.size and status.st_mtime_ns == known.mtime_ns:
            return
        if not status.st_nlink:
            raise self._changed("was removed or replaced")
        raise self._changed(f"has {status.st_size} bytes, last written at {status.st_mtime_ns} ns")

    def _changed(self, found: str) -> SourceChanged:
        known = self.identity
        return SourceChanged(
            f"{known.path}: changed while open: {found}, expected {known.size} bytes written at {known.mtime_ns} ns; "
            f"open the source again"
        )

    def __reduce__(self) -> tuple[type["RangeFile"], tuple[FileId]]:
        return RangeFile, (self.identity,)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        if getattr(self, "_fd", -1) >= 0:
            close(self._fd)


def buffer(num_bytes: int) -> memoryview:
    """Room for `readinto`.  Kernels copy several times slower to where malloc puts large blocks, 16 bytes into a page (AMD Zen)."""
    room = np.empty(num_bytes + _LINE, dtype=np.uint8)
    first = -room.ctypes.data % _LINE
    return room.data[first : first + num_bytes]


def _file_id(path: str, status: os.stat_result) -> FileId:
    return FileId(
        path=path,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        inode=status.st_ino,
        ctime_ns=status.st_ctime_ns,
    )


def _inside(folder: str) -> list[os.DirEntry[str]]:
    """What lies in a folder and is not hidden."""
    with _listing(folder), os.scandir(folder) as entries:
        return [entry for entry in entries if entry.name[0] != "."]


@contextlib.contextmanager
def _listing(folder: str) -> Iterator[None]:
    """A folder that cannot be listed is an error with its name: what lies in it would be missing in silence."""
    try:
        yield
    except OSError as error:
        name = error.filename or folder
        raise SourceError(f"{name}: {error.strerror}; check the folder and its permissions") from error


def _matches(pattern: str) -> list[str]:
    """Files that match, each once: `**` follows links to folders, and passes again where one leads back up.

    Folders that are really called so come first: brackets in their names are no pattern.
    """
    whole = Path(pattern)
    folder = next((parent for parent in whole.parents if is_folder(parent)), None)
    if folder is None:
        return []
    real = functools.cache(os.path.realpath)
    homes: dict[str, str] = {}
    for path in sorted(_glob(str(folder), whole.relative_to(folder).parts, ()), key=len):
        above, name = os.path.split(path)
        homes.setdefault(os.path.join(real(above), name), path)  # noqa: PTH118
    return list(homes.values())


def _glob(folder: str, parts: tuple[str, ...], above: tuple[str, ...]) -> Iterator[str]:
    """Files below a folder that match, part by part, as `glob` understands them.  `above`: real paths on the way down a `**`.

    Not by `glob` itself, which leaves out what it may not list without a word.
    """
    head, rest = parts[0], parts[1:]
    with _listing(folder):
        if head != "**" and not _MAGIC.search(head):
            path = os.path.join(folder, head)  # noqa: PTH118
            if _lies_there(path):
                yield from _glob(path, rest, above) if rest and is_folder(path) else () if rest else _file(path)
            return
        inside = _inside(folder) if head[0] != "." else list(os.scandir(folder))
        if head == "**":
            above = (*above, os.path.realpath(folder))
            if rest:
                yield from _glob(folder, rest, above)
            for entry in inside:
                if not entry.is_dir():
                    yield from () if rest else (entry.path,)
                elif os.path.realpath(entry.path) not in above:
                    yield from _glob(entry.path, parts, above)
            return
        for entry in inside:
            if _fits(head, entry.name) and entry.is_dir() == bool(rest):
                yield from _glob(entry.path, rest, above) if rest else (entry.path,)


def _lies_there(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _file(path: str) -> tuple[str, ...]:
    return () if is_folder(path) else (path,)


def _fits(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(os.path.normcase(name), os.path.normcase(pattern))
