"""A sample as files: those of one name and different extensions, in a tar or in a folder.  Each extension is a field of the record.

| extension | value |
|---|---|
| `json`, `jsn` | parsed; the members of the one object in `.json` are fields of the record themselves |
| `txt`, `text`, `transcript` | text |
| `cls`, `cls2`, `class`, `count`, `index`, `inx`, `id` | an integer |
| any other, such as `jpg` | where its bytes are: `{"bytes": None, "path", "start", "num_bytes"}` |

The names and the rule for keys are those of webdataset.  Nothing is unpickled.  Templates look for media by kind, so images, videos and
audio are also listed, in the order of the files, under `images`, `videos` and `audios`, unless the JSON object has values there itself.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import SourceError
from penstock.fingerprint import Digest
from penstock.settings import setting
from penstock.sources.bad import not_utf8
from penstock.sources.parse import has_long_digits, parse_value
from penstock.types import BadRow, Record

METADATA_NAMES = (
    "metadata.jsonl",
    "metadata.csv",
    "metadata.parquet",
)  # files that name those of a folder
KEY = "__key__"
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_NOT_DATA = re.compile(r"__[^/]*__($|/)")
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a sample: a file, or a range of bytes in a tar."""

    name: str  # for errors
    path: str
    start: int
    num_bytes: int
    read: Callable[[int, int], bytes]
    is_range: bool = True

    def whole(self) -> bytes:
        return self.read(self.start, self.start + self.num_bytes)

    def reference(self) -> Record:
        """Return where its bytes are, as `datasets` writes an image that is not loaded."""
        place = {"start": self.start, "num_bytes": self.num_bytes} if self.is_range else {}
        return {"bytes": None, "path": self.path, **place}

    def add_digest(self, content: Digest) -> None:
        """Add all its bytes."""
        for start in range(self.start, self.start + self.num_bytes, _READ):
            content.extend(self.read(start, min(start + _READ, self.start + self.num_bytes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """Options of sources whose samples are files."""

    merge_json: bool = setting(
        "of WebDataset: members of the object in .json are fields of the record, else it is the field json",
        True,
    )
    max_row_bytes: int = setting("the largest text or JSON that is read, in bytes", 256 << 20)

    def __post_init__(self) -> None:
        if type(self.merge_json) is not bool:
            raise SourceError(f"merge_json is {self.merge_json!r}, expected true or false")
        if type(self.max_row_bytes) is not int or self.max_row_bytes < 1:
            raise SourceError(f"max_row_bytes is {self.max_row_bytes!r}, expected a number ≥ 1")


def split_name(name: str) -> tuple[str, str] | None:
    """Return (key, field) of a file's name; None if it has none of them and belongs to no sample."""
    found = None if _NOT_DATA.match(name) else _NAME.fullmatch(name)
    return None if found is None else (found[1], found[2].lower())


def is_read(field: str) -> bool:
    """Return whether the bytes of a field are part of the record."""
    return field.rpartition(".")[2].lower() in _DECODERS


def sample_record(key: str, fields: dict[str, Blob], options: SampleOptions) -> Record | BadRow:
    """Return the record of a sample."""
    record: Record = {KEY: key}
    for field, blob in fields.items():
        value = _value(field, blob, options.max_row_bytes)
        if isinstance(value, BadRow):
            return BadRow(reason=value.reason, message=f"{blob.name!r}: {value.message}")
        if field != "json" or not options.merge_json or not isinstance(value, dict):
            record[field] = value
            continue
        taken = {KEY, *fields} - {"json"}
        if clash := next((name for name in value if name in taken), None):
            why = f"{blob.name!r} has the key {clash!r}, which is a field of the sample, too"
            return BadRow(
                reason="duplicate_key", message=f"{why}; rename it, or pass merge_json=False"
            )
        record |= value
    for column, listed in _media(record, fields).items():
        if not record.get(column):  # null or an empty list says nothing
            record[column] = listed
    return record


def media_column(field: str) -> str | None:
    """Return the column that lists files with this extension: images, videos or audios; None for other files."""
    return MEDIA_COLUMNS.get(field.rpartition(".")[2].lower())


def _media(record: Record, fields: Iterable[str]) -> dict[str, list[Any]]:
    listed: dict[str, list[Any]] = {}
    for field in fields:
        if (column := media_column(field)) is not None:
            listed.setdefault(column, []).append(dict(record[field]))
    return listed


def add_sample(content: Digest, key: str, fields: dict[str, Blob], options: SampleOptions) -> None:
    """Add a sample to a digest: key, names, sizes and all bytes of its files.

    Of files that the record refers to, also where they are: a store keeps that.
    """
    too_long = [
        field
        for field, blob in fields.items()
        if is_read(field) and blob.num_bytes > options.max_row_bytes
    ]
    files: list[list[Any]] = [
        [field, blob.num_bytes]
        if is_read(field)
        else [field, blob.num_bytes, blob.path, blob.start]
        for field, blob in fields.items()
    ]
    content.update(json.dumps([options.merge_json, too_long, key, files]).encode())
    for blob in fields.values():
        blob.add_digest(content)


def _value(field: str, blob: Blob, limit: int) -> Any:
    decode = _DECODERS.get(field.rpartition(".")[2])
    if decode is None:
        return blob.reference()
    if blob.num_bytes > limit:
        message = f"{blob.num_bytes:,} bytes, expected at most max_row_bytes={limit:,}"
        return BadRow(reason="too_long", message=message)
    return decode(blob.whole())


def _json(raw: bytes) -> Any:
    return parse_value(raw, exact=has_long_digits(raw))


def _text(raw: bytes) -> Any:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return not_utf8(raw, error)


def _int(raw: bytes) -> Any:
    text = raw.strip()
    if not re.fullmatch(rb"[+-]?[0-9]{1,1000}", text):
        return BadRow(reason="bad_value", message=f"{text[:40]!r} is not an integer")
    return int(text)


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("json", "jsn"), _json),
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _int),
}
# Extension of a file → the column that lists such files.
MEDIA_COLUMNS = {
    **dict.fromkeys(
        ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "ppm"), "images"
    ),
    **dict.fromkeys(("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg"), "videos"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"), "audios"),
}
