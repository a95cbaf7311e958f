"""Find, identify and read files, wherever they are.  A place (local folders, buckets, web servers) is not a format.

The scheme of a path or URL chooses its place.  All functions raise SourceError.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from penstock import plugins
from penstock.errors import SourceError
from penstock.places.local import LOCAL
from penstock.places.place import File, FileId, OpenUrl, Place
from penstock.words import plural

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")
_MAGIC = re.compile(r"[*?[]")
_NUMBER = re.compile(r"([0-9]+)")
# nanoseconds
_SECOND = 1_000_000_000
_TICK = 20_000_000
_AT_ONCE = 16  # requests
_SHOWN = 300  # characters of a path in an error: a text may be given instead of a path


def open_place(path: str | os.PathLike[str]) -> tuple[Place, str]:
    """Return the place that a path or URL belongs to, and its name there."""
    text = os.fspath(path)
    if not is_remote(text):
        return LOCAL, os.path.expanduser(text) if text[:1] == "~" else text  # noqa: PTH111 - may be a glob
    return _open_url(text), text


def _open_url(url: str) -> Place:
    scheme = url.partition("://")[0]
    try:
        open_url: OpenUrl = plugins.load("places", scheme)
    except KeyError:
        known = ", ".join(f"{each}://" for each in plugins.names("places"))
        expected = f"expected a local path or one of {known}"
        if not known:
            expected = (
                "expected a local path: URLs are opened by the extra `remote` "
                "(penstock.extras.remote), which this installation does not have"
            )
        raise SourceError(
            f"{url[:_SHOWN]}: unknown kind of place {scheme}://, {expected}"
        ) from None
    return open_url(url)


def with_home(path: str | os.PathLike[str]) -> Path:
    """Return a local path with `~` expanded, or as it is if no such user or home folder is known."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises RuntimeError instead


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL."""
    text = os.fspath(path)
    return "://" in text and bool(_SCHEME.match(text))


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the full path or URL; of the hub, with a commit in place of a branch."""
    place, name = open_place(path)
    with _explained(name):
        return place.absolute(name)


def is_web(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is on a web server, which lists nothing."""
    return os.fspath(path).startswith(("http://", "https://"))


def local(path: str | os.PathLike[str]) -> str:
    """Return a path of this machine with `~` expanded; refuse remote places."""
    if is_remote(path):
        raise SourceError(
            f"{os.fspath(path)[:_SHOWN]}: a remote place, expected a local path; download it"
        )
    return open_place(path)[1]


def natural(name: str) -> list[Any]:
    """Sort key under which part-2 comes before part-10: text and numbers in turn."""
    parts: list[Any] = _NUMBER.split(name)
    parts[1::2] = [(int(part), part) for part in parts[1::2]]
    return parts


def find(pattern: str | os.PathLike[str]) -> list[str]:
    """Return the files of a path, a glob (`**` too) or a folder: absolute, in natural order, never an empty list.

    Of a folder: its files that are not hidden, without those in folders below.
    """
    place, text = open_place(pattern)
    if not text:
        raise SourceError("the path is empty, expected a file, a folder or a glob")
    whole = place.absolute(text)
    kind = _kind(place, text)
    if kind == "folder":
        entries = _entries(place, whole)
        # A broken link or a fifo is listed, and refused when it is identified: it must not be left out silently.
        paths = [f"{whole.rstrip('/')}/{name}" for name, is_folder in entries if not is_folder]
        expected = "a file in this folder"
        if folders := len(entries) - len(paths):
            above = text.rstrip("/")
            expected += f"; the folder has {plural(folders, 'folder')} in it: {above}/** selects all files below"
    elif kind or not _MAGIC.search(text):
        paths = [identify(whole).path]
        expected = "a file"
    else:
        with _explained(whole):  # a folder that cannot be listed must not be left out silently
            paths = place.glob(whole)
        expected = f"at least one file to match ({_start(place)})"
    if not paths:
        raise SourceError(f"{text}: nothing found, expected {expected}", code="nothing_found")
    return sorted(paths, key=natural)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is anything of this name, a broken link too."""
    return bool(_kind(*open_place(path)))


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder exists.  False if this process has no permission to see it, or if it cannot be a path at all."""
    return _kind(*open_place(path)) == "folder"


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file exists.  False if this process has no permission to see it."""
    return _kind(*open_place(path)) == "file"


def has_folders(path: str | os.PathLike[str]) -> bool:
    """Whether it is a folder with folders in it that are not hidden."""
    place, name = open_place(path)
    return _kind(place, name) == "folder" and any(
        is_folder for _, is_folder in _entries(place, name)
    )


def identify(path: str | os.PathLike[str]) -> FileId:
    """Return the identity of a file, which must exist and be a regular file."""
    place, name = open_place(path)
    try:
        return place.stat(name)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte
        reason = getattr(error, "strerror", None) or error
        if is_remote(name):  # its text says what to do
            raise SourceError(f"{name[:_SHOWN]}: {reason}") from error
        why = "nothing found, expected a file" if isinstance(error, FileNotFoundError) else reason
        raise SourceError(f"{name[:_SHOWN]}: {why}; check the path ({_start(place)})") from error


def identify_all(paths: Sequence[str]) -> list[FileId]:
    """Return the identity of each file; remote ones are asked for at once, as each answer takes tens of milliseconds."""
    if len(paths) < 2 or not is_remote(paths[0]):
        return [identify(path) for path in paths]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_AT_ONCE, len(paths))) as pool:
        return [*pool.map(identify, paths)]


def settled(file: FileId) -> bool:
    """Return whether the clock has moved on since the last write, so that another write would get another time.

    Kernels stamp in ticks of up to 10 ms, so this waits until 20 ms have passed: what is kept about a file must not depend on how soon
    after its last write it was opened.  A time of whole seconds comes from a file system that counts in those; nothing waits for it.
    A remote file has an ETag for this: its time comes from another clock.
    """
    if is_remote(file.path):
        return file.has_strong_etag
    written = file.ctime_ns or file.mtime_ns
    tick = _TICK if written % _SECOND else 2 * _SECOND
    left = written + tick - time.time_ns()
    if 0 <= left <= _TICK == tick:
        time.sleep((left + 1) / _SECOND)
    return time.time_ns() - written > tick


def open_file(identity: FileId) -> File:
    """Open a file that was identified."""
    place, name = open_place(identity.path)
    with _explained(name):
        return place.open(name, identity)


def read_file(identity: FileId) -> bytes:
    """Return all of a small file that was identified.  No file stays open."""
    place, name = open_place(identity.path)
    with _explained(name):
        return place.read(name, identity)


def read(path: str | os.PathLike[str]) -> bytes:
    """Return all of a small file."""
    place, name = open_place(path)
    with _explained(name):
        return place.read(name)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn an OSError into a SourceError with the path."""
    try:
        yield
    except OSError as error:
        advice = (
            "" if is_remote(path) else "; check the path and its permissions"
        )  # else the text says what to do
        raise SourceError(f"{error.filename or path}: {error.strerror}{advice}") from error


def _kind(place: Place, name: str) -> str:
    with _explained(name):
        return place.kind(name)


def _start(place: Place) -> str:
    """Say what names are relative to."""
    folder = place.absolute("")
    return f"in {folder}" if is_remote(folder) else f"current folder: {folder}"


def _entries(place: Place, folder: str) -> list[tuple[str, bool]]:
    with _explained(folder):
        return [entry for entry in place.entries(folder) if entry[0][0] != "."]


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON file that describes its folder."""
    raw = read(path)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON: {error}; make the folder again") from error
    if not isinstance(value, dict):
        raise SourceError(
            f"{path}: a JSON {type(value).__name__}, expected an object; make the folder again"
        )
    return value


def is_inner_name(name: Any) -> bool:
    """Return whether a name, as it is written, stays in its folder."""
    if not isinstance(name, str) or not name or "\0" in name or _SCHEME.match(name):
        return False
    absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive
    return not absolute and ".." not in name.replace("\\", "/").split("/")


def inside(folder: Path, name: Any, *, named_by: Path) -> str:
    """Return the path of a file that a downloaded description names; refuse names that lead out of its folder."""
    if not is_inner_name(name):
        raise SourceError(f"{named_by}: names the file {name!r}, expected one inside its folder")
    path = folder / name
    above = os.path.realpath(folder)
    real = os.path.realpath(path)
    if os.path.commonpath([above, real]) != above:
        raise SourceError(
            f"{named_by}: names the file {name!r}, a link that leads out of its folder to {real}"
        )
    if not is_file(real):
        raise SourceError(
            f"{path}: missing, but {named_by} names it; restore the file or make the folder again"
        )
    return str(path)
