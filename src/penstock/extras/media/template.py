"""The images, videos and audio clips of records: where a record names them, how large they are, and their bytes.

`collect` is the only function that knows how records write media.  `prepare` uses it to count tokens, and the loader to find bytes that
are in the record itself.
"""

import base64
import binascii
import io
import os
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from penstock.errors import MediaError, SourceChanged, SourceError, TemplateError
from penstock.extras.media.families import Pieces
from penstock.extras.media.headers import MAX_IMAGE_PIXELS, FileHeader, Kind, read_header
from penstock.extras.media.processors import Processor
from penstock.places.files import identify, is_remote, open_file, read_file, with_home
from penstock.places.place import File
from penstock.templates.conversation import Conversation, Message, ReadsConversations
from penstock.templates.fields import kind as kind_of
from penstock.templates.media_words import COLUMNS, KINDS, TAGS, TYPES, part_types
from penstock.types import MediaItem, Record

# Keys of a part that change what a processor does with it.  They are refused: the processor's own settings count.
_SETTINGS = (
    *(
        "min_pixels",
        "max_pixels",
        "total_pixels",
        "resized_height",
        "resized_width",
        "fps",
        "nframes",
        "num_frames",
    ),
    *("min_frames", "max_frames", "video_start", "video_end", "sampling_rate"),
)
_SHOWN = 60  # characters of a value in an error


@dataclass(frozen=True, slots=True)
class MediaReference:
    """An image, a video or an audio clip that a record names: by a path, perhaps with a range of bytes, or with its bytes."""

    kind: Kind
    path: str | None = None
    data: bytes | None = None
    start: int = 0
    num_bytes: int | None = None  # None: to the end of the file


# Records → messages with bare parts, and what they stand for


MediaColumns = Mapping[str, Sequence[str]]  # the columns of a record that may list media
USUAL_COLUMNS: MediaColumns = {str(kind): names for kind, names in COLUMNS.items()}


def collect(
    record: Record, conversation: Conversation, columns: MediaColumns = USUAL_COLUMNS
) -> Conversation:
    """The conversation with a bare part {"type": "image"} for each of its media, and references to these media, in the same order.

    A tag such as <image> becomes a part, filled from the record's columns in order; so does a part that names nothing itself.
    """
    waiting = {kind: _column(record, kind, columns[kind]) for kind in KINDS}
    named = {TYPES[name] for name in part_types(conversation.messages)}
    num_listed = {kind: len(listed) for kind, listed in waiting.items()}
    # without a column, <image> is a word of the text; with an empty column, or one that the user has named, its image is missing
    by_tags = [
        kind
        for kind in KINDS
        if kind not in named
        and (
            columns[kind] is not USUAL_COLUMNS[kind]
            or any(name in record for name in columns[kind])
        )
    ]
    if not named and not by_tags:
        return conversation
    found: list[MediaReference] = []
    messages: list[Message] = []
    for place, message in enumerate(conversation.messages):
        content = message.get("content")
        if by_tags and isinstance(content, str):
            content = _split(content, by_tags)
        elif by_tags and isinstance(content, list):
            content = [new for part in content for new in _split_part(part, by_tags)]
        if isinstance(content, list):
            what = f"message {place} ({message.get('role')})"
            content = [_part(part, what, waiting, found, columns) for part in content]
            message = {**message, "content": content}
        messages.append(message)
    for kind, rest in waiting.items():
        if rest:
            name = next(name for name in columns[kind] if record.get(name))
            held = num_listed[kind] - len(rest)
            raise MediaError(
                f"column {name!r} lists {num_listed[kind]} of kind {kind}, but the messages have {held} tags or parts; write <{kind}> "
                f"in the text where each belongs, or a part {{'type': '{kind}'}}"
            )
    return replace(conversation, messages=messages, media=found) if found else conversation


def _column(record: Record, kind: Kind, names_of_kind: Sequence[str]) -> list[MediaReference]:
    """The media of one kind in the record's columns."""
    made: list[list[MediaReference]] = []
    for name in names_of_kind:
        value = record.get(name)
        is_nan = isinstance(value, float) and value != value
        if value is None or is_nan or (isinstance(value, str | list | dict) and not value):
            continue  # NaN is what tables use for an absent value
        listed = list(value) if isinstance(value, list | tuple) else [value]
        made.append(
            [
                _found(kind, each, f"column {name!r}, place {place}")
                for place, each in enumerate(listed)
            ]
        )
    if len(made) == 2 and made[0] != made[1]:
        names = " and ".join(map(repr, names_of_kind))
        raise MediaError(
            f"columns {names} hold different media, expected one of them; remove the other column"
        )
    return made[0] if made else []


def _split(text: str, kinds: Sequence[str]) -> str | list[Message]:
    """A text with tags as parts; the text itself if it has none."""
    parts: list[Message] = []
    place = 0
    for match in TAGS.finditer(text):
        if match[1] not in kinds:
            continue
        if match.start() > place:
            parts.append({"type": "text", "text": text[place : match.start()]})
        parts.append({"type": match[1]})
        place = match.end()
    if not parts:
        return text
    return [*parts, {"type": "text", "text": text[place:]}] if place < len(text) else parts


def _split_part(part: Any, kinds: Sequence[str]) -> list[Any]:
    """A part of a message, as several if it is a text with tags."""
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    parts = _split(text, kinds) if isinstance(text, str) else text
    return parts if isinstance(parts, list) else [part]


def _part(
    part: Any,
    what: str,
    waiting: Mapping[Kind, list[MediaReference]],
    found: list[MediaReference],
    columns: MediaColumns,
) -> Any:
    """One part of a message; media parts lose everything but their kind."""
    if not isinstance(part, dict) or (kind := TYPES.get(str(part.get("type")))) is None:
        return (
            part
            if not isinstance(part, dict)
            else {key: part[key] for key in part if part[key] is not None}
        )
    for name in _SETTINGS:
        if part.get(name) is not None:
            raise MediaError(
                f"{what}: a part of type {kind!r} has {name!r}, which has no effect; set it in the processor's files"
            )
    value = _value(part, kind)
    if value is None:
        if not waiting[kind]:
            raise MediaError(
                f"{what}: a tag or part of kind {kind} has no file or bytes of its own, and none is left in column "
                f"{' or '.join(map(repr, columns[kind]))}; list one for each tag, or write {{'type': '{kind}', '{kind}': path}}"
            )
        found.append(waiting[kind].pop(0))
    else:
        found.append(_found(kind, value, what))
    return {"type": kind}


def _value(part: Message, kind: Kind) -> Any:
    """What a part holds: a path, a URL, bytes or a mapping; None if it names nothing."""
    usual = (kind, f"{kind}_url", f"input_{kind}", f"{kind}_path")
    for key in (*usual, "path", "url", "source", "value", "data", "base64"):
        if (value := part.get(key)) is not None:
            return (
                {"base64": value} if key in ("data", "base64") and isinstance(value, str) else value
            )
    return {"bytes": part["bytes"]} if part.get("bytes") is not None else None


def _found(kind: Kind, value: Any, what: str) -> MediaReference:
    """Media from the value that names it."""
    if isinstance(value, str):
        return _from_text(kind, value, what)
    if isinstance(value, bytes | bytearray | memoryview):
        return MediaReference(kind, data=bytes(value))
    if isinstance(value, dict):
        data = value.get("bytes")
        if isinstance(data, bytes | bytearray | memoryview):
            return MediaReference(kind, data=bytes(data))
        for key in ("base64", "data"):
            if isinstance(value.get(key), str):
                return MediaReference(kind, data=_decoded(value[key], what))
        for key in ("path", "url", kind, f"{kind}_url"):
            if isinstance(value.get(key), str):
                made = _from_text(kind, value[key], what)
                return made if value.get("start") is None else _ranged(made, value, what)
    shown = (
        f"{kind_of(value)} {str(value)[:_SHOWN]!r}"
        if not isinstance(value, dict)
        else f"a dict with {sorted(value)}"
    )
    raise MediaError(
        f"{what}: the {kind} is {shown}, expected a path, a data URL, bytes, or {{'bytes': …, 'path': …}}; pass the "
        f"file or its bytes, not a decoded image"
    )


def _ranged(found: MediaReference, value: Record, what: str) -> MediaReference:
    """The same, as a range of its file."""
    start = value["start"]
    size = value.get("num_bytes")
    if not isinstance(start, int) or not isinstance(size, int) or min(start, size) < 0:
        raise MediaError(
            f"{what}: start is {start!r} and num_bytes {size!r}, expected two whole numbers, 0 or more"
        )
    return replace(found, start=start, num_bytes=size)


def _from_text(kind: Kind, text: str, what: str) -> MediaReference:
    if text.startswith("data:"):
        head, comma, body = text.partition(",")
        if not comma or ";base64" not in head:
            raise MediaError(
                f"{what}: a data URL that begins {head[:_SHOWN]!r}, expected data:{kind}/…;base64,…"
            )
        if head[5:].partition("/")[0] not in (kind, "application", ""):
            raise MediaError(
                f"{what}: a data URL of type {head[5:_SHOWN]!r} expected data:{kind}/…"
            )
        return MediaReference(kind, data=_decoded(body, what))
    path = text.removeprefix("file://")
    if not path or "\0" in path:
        raise MediaError(
            f"{what}: the path {text[:_SHOWN]!r} is empty or holds a NUL, expected the path of the {kind}"
        )
    return MediaReference(kind, path=path)


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(
            f"{what}: not base64 ({error}): {text[:20]!r}; write the bytes again"
        ) from error


# Files


class MediaReader:
    """Reads the media of records: their sizes for `prepare`, their bytes for the loader.  Safe to call from threads."""

    version = 1  # raise when the same record gives other media items

    def __init__(
        self,
        processor: Processor,
        reader: ReadsConversations,
        *,
        root: str | None,
        folders: str | Sequence[str] = (),
        max_image_pixels: int = MAX_IMAGE_PIXELS,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        """reader: record → Conversation.  root: the folder that paths are relative to; None: the current folder.

        columns: of the records, by the kind of media that they list, where they do not have the usual names.

        folders: more folders that files may be in.  A record that names a file outside of them and of the root is refused: records come
        from others, and must not choose which of the user's files are read.
        """
        self.processor = processor
        self.root = real_folder(root or "")
        listed = [folders] if isinstance(folders, str) else folders
        self.folders = tuple(sorted({real_folder(each) for each in listed}))
        self.max_image_pixels = max_image_pixels
        self.named_columns = dict(columns or {})
        self.columns: MediaColumns = {
            **USUAL_COLUMNS,
            **{kind: (name,) for kind, name in self.named_columns.items()},
        }
        self._reader = reader

    @property
    def is_remote(self) -> bool:
        """Whether media may be read from other machines."""
        return any(map(is_remote, (self.root, *self.folders)))

    def identity(self) -> dict[str, Any]:
        """Everything that changes which media stand in a sample, as plain JSON values.

        With the folders: equal records in two folders name different files, and a record that names a file elsewhere is refused.
        """
        identity = {
            "version": self.version,
            "processor": self.processor.identity(),
            "root": self.root,
            "max_image_pixels": self.max_image_pixels,
        }
        if self.folders:
            identity["folders"] = list(self.folders)
        if self.named_columns:
            identity["columns"] = dict(sorted(self.named_columns.items()))
        return identity

    def collect(self, record: Record) -> list[MediaReference]:
        """All media of a record, in the order of their numbers."""
        return collect(record, self._reader(record, None), self.columns).media

    def path_of(self, place: str) -> str:
        """The full path or URL of a place as a record writes it."""
        if is_remote(place):
            return place
        if is_remote(self.root):
            return f"{self.root}/{place.removeprefix('./')}"
        return os.path.join(self.root, os.path.expanduser(place))  # noqa: PTH118, PTH111 - stays text, as records write it

    def allowed_path_of(self, place: str) -> str:
        """The same; raises for a file outside of the folders that may be read, also by way of `..` and links."""
        path = self.path_of(place)
        allowed = (self.root, *self.folders)
        if is_remote(path):
            return _allowed_url(path, allowed)
        real = os.path.realpath(path)
        if any(_is_inside(real, folder) for folder in allowed):
            return path
        target = "" if real == path else f", which is {real},"
        raise MediaError(
            f"{path}{target} is outside of the folders that media may be read from ({', '.join(allowed)}); if the record may "
            f"name it, set media_folders to {os.path.dirname(real)!r}"  # noqa: PTH120 - text, as above
        )

    def read_header(self, found: MediaReference) -> tuple[FileHeader, int]:
        """The header of one of a record's media, and how many bytes it has."""
        name = self._name(found)
        try:
            if found.data is not None:
                file: BinaryIO = io.BytesIO(found.data)
                return self._header(found.kind, file), len(found.data)
            assert found.path is not None
            version = identify(self.allowed_path_of(found.path))
            size = version.size - found.start if found.num_bytes is None else found.num_bytes
            whole = (
                found.start == 0 and size != version.size
            )  # a range begins behind the header of an archive
            if whole or not 0 <= found.start <= found.start + size <= version.size:
                rule = (
                    "a range that begins at 0 must be the whole file"
                    if whole
                    else "correct start and num_bytes"
                )
                raise MediaError(
                    f"the record names bytes {found.start:,} to {found.start + size:,}, and the file has {version.size:,} bytes; {rule}"
                )
            with io.BufferedReader(_Range(open_file(version), found.start, size)) as file:
                return self._header(found.kind, file), size
        except SourceError as error:  # its message names the path
            raise MediaError(f"{error} (media_root is {self.root})") from error
        except MediaError as error:
            named = str(error) if str(error).startswith(name) else f"{name}: {error}"
            raise type(error)(named) from error

    def expand(self, found: MediaReference, header: FileHeader) -> Pieces:
        """The text that the processor puts in place of the placeholder; errors name the file."""
        try:
            return self.processor.expand(found.kind, header.size, header.rate)
        except MediaError as error:
            raise type(error)(f"{self._name(found)}: {error}") from error

    def refuse_kind(self, found: MediaReference) -> None:
        """Raise for a kind that the processor does not take."""
        if found.kind not in self.processor.kinds:
            family = self.processor.family
            able = ", ".join(self.processor.kinds)
            raise MediaError(
                f"{self._name(found)}: the processor ({family}) takes {able}, not {found.kind}; remove it"
            )

    def _header(self, kind: Kind, file: BinaryIO) -> FileHeader:
        return read_header(kind, file, max_image_pixels=self.max_image_pixels)

    def _name(self, found: MediaReference) -> str:
        return f"{found.kind} in the record" if found.path is None else self.path_of(found.path)

    def bytes_of(
        self, item: MediaItem, record: Callable[[], Record], part: slice = slice(None)
    ) -> bytes:
        """The bytes of one media item, or a part of them; `record` is called only where they are in the record itself.

        Raises SourceChanged if there are more or fewer than when the sample was prepared.
        """
        if item.place is None:
            found = self.collect(record())
            data = found[item.number].data if item.number < len(found) else None
            if data is None or len(data) != item.num_bytes:
                size = "no bytes" if data is None else f"{len(data):,} bytes"
                raise SourceChanged(
                    _changed(f"{item.kind} {item.number} of the record", size, item)
                )
            return data[part]
        path = self.allowed_path_of(item.place)
        version = identify(path)
        end = item.start + item.num_bytes
        if version.size < end or (item.start == 0 and version.size != end):
            raise SourceChanged(_changed(path, f"{version.size:,} bytes", item))
        start, stop, _ = part.indices(item.num_bytes)
        if is_remote(path) and stop - start == version.size:
            return read_file(version)  # in one request
        return open_file(version).read(item.start + start, item.start + stop)


def real_folder(folder: str | os.PathLike[str]) -> str:
    """One name of a folder: a path without links, or a URL without a slash at its end."""
    if not is_remote(folder):
        return str(with_home(folder).resolve())
    url = os.fspath(folder).rstrip("/")
    if _leads_up(url):
        raise TemplateError(f"media are read from {url!r}, expected a URL without '..'")
    return url


def _leads_up(url: str) -> bool:
    """Whether a URL, as it is or as a server decodes it, has a part `..`."""
    decoded = urllib.parse.unquote(url).replace("\\", "/")
    return ".." in decoded.partition("://")[2].split("/")


def _allowed_url(url: str, allowed: Sequence[str]) -> str:
    """The URL; raises for one that does not begin with a URL that media may be read from, or that leads up from it."""
    if _leads_up(url):
        raise MediaError(f"{url}: a URL with '..', which may lead to other files; write it without")
    if any(url.startswith(f"{folder}/") for folder in allowed if is_remote(folder)):
        return url
    folder = url.rpartition("/")[0]
    raise MediaError(
        f"{url} is outside of the places that media may be read from ({', '.join(allowed)}); if the record may name it, set "
        f"media_folders to {folder!r}"
    )


def _is_inside(path: str, folder: str) -> bool:
    """Whether a real path lies in a real folder."""
    return path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


def _changed(name: str, found: str, item: MediaItem) -> str:
    what = f"it has {found}, but had {item.num_bytes:,}"
    return f"{name}: changed since it was prepared: {what}; restore the file, or prepare again with refresh=True"


class _Range(io.RawIOBase):
    """A range of a file as a file of its own."""

    def __init__(self, file: File, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self._size = size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._size - self._place))
        if size:
            view = memoryview(buffer)[:size]
            self._file.readinto(view, self._start + self._place)
            self._place += size
        return size
