"""Folders of images, audio or video: with a metadata file that names them, or with a text or JSON file next to each of them.

A metadata file (`metadata.jsonl`, `.csv`, `.parquet`) is that of `datasets`: its column `file_name` becomes `image`, `audio` or `video`, by
the file's extension, and `file_names` becomes `images` and so on; `before_file_name` becomes `before`.  The value is
`{"bytes": None, "path"}`, or a list of those.  A name that leads out of the folder, or names no file, makes a bad record.

Without one, files of one name make a sample, as in a tar (samples.py): `7.jpg` and `7.txt` are the record with the key `7`.

A digest reads the files, too, so that a changed image is a changed record.  The stamp has the size and times of all of them.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import SourceError
from penstock.extras.media.samples import (
    METADATA_NAMES,
    Blob,
    SampleOptions,
    add_sample,
    is_read,
    media_column,
    sample_record,
)
from penstock.fingerprint import Digest
from penstock.places.files import find, identify, is_file, is_inner_name, open_file
from penstock.places.place import FileId
from penstock.sources.base import content_of
from penstock.sources.files import Files
from penstock.sources.formats import format_of, is_data_file
from penstock.sources.opener import NoOptions, Opener, OpenRequest, open_files
from penstock.sources.parse import parse, record_bytes
from penstock.sources.rows import FileReader, FileRecords, RemovesNulls
from penstock.types import BadRow, Ints, Record, RemovedNulls

_log = logging.getLogger("penstock")

_HEAD = 1 << 16  # bytes of a metadata file that are read to see what it is
_ONE = "file_name"
_MANY = "file_names"


def is_media_folder(path: str) -> bool:
    """Return whether a metadata file here names files."""
    with contextlib.suppress(SourceError):
        return any(
            is_file(Path(path) / name) and _names_files(f"{path}/{name}") for name in METADATA_NAMES
        )
    return False


def is_sample_folder(path: str) -> bool:
    """Return whether an image, audio or video here has a text of the same name next to it, and no file holds records."""
    with contextlib.suppress(SourceError):
        paths = find(path)
        if not any(map(media_column, paths)) or any(
            is_data_file(each) and not is_read(each) for each in paths
        ):
            return False
        found = _grouped(paths)
        return any(
            any(map(media_column, fields)) and any(map(is_read, fields))
            for fields in found.values()
        )
    return False


def _names_files(path: str) -> bool:
    """Return whether the first record of a metadata file has a column with names of files."""
    columns: Iterable[Any]
    if path.endswith(".parquet"):
        import pyarrow.parquet as pq

        with contextlib.suppress(Exception):  # whatever pyarrow raises for a file that is none
            return any(_column(name) for name in pq.read_schema(path).names)
        return False
    known = identify(path)
    head = (
        open_file(known)
        .read(0, min(_HEAD, known.size))
        .lstrip(b"\xef\xbb\xbf \t\r\n")
        .partition(b"\n")[0]
    )
    if path.endswith(".csv"):
        columns = head.decode(errors="replace").strip().replace('"', "").split(",")
    else:
        first = parse(head, exact=False)
        columns = first if isinstance(first, dict) else ()
    return any(_column(name) for name in columns)


def _column(name: str) -> tuple[str, str] | None:
    """Return (prefix, kind) of a column that names files: ("", "file_name"), ("before", "file_name")."""
    for ending in (_ONE, _MANY):
        if name == ending or name.endswith(f"_{ending}"):
            return name[: -len(ending)].rstrip("_"), ending
    return None


class FolderRows(FileRecords):
    """One metadata file, with the files that it names."""

    def __init__(self, inner: FileRecords, folder: str) -> None:
        self._inner = inner
        self._folder = folder
        self.file = inner.file
        self.num_bytes = inner.num_bytes

    def __len__(self) -> int:
        return len(self._inner)

    def locate(self, row: int) -> tuple[int, int]:
        return self._inner.locate(row)

    def raw(self, row: int) -> bytes:
        return self._inner.raw(row)

    def borders(self, num_bytes: int) -> Ints:
        return self._inner.borders(num_bytes)

    def close(self) -> None:
        self._inner.close()

    def removed_nulls(self, row: int) -> RemovedNulls:
        if isinstance(self._inner, RemovesNulls):
            return self._inner.removed_nulls(row)
        return RemovedNulls()

    def record(self, row: int) -> Record | BadRow:
        return self._filled(self._inner.record(row))[0]

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for found in self._inner.records(first, last):
            yield self._filled(found)[0]

    def records_at(self, rows: Ints) -> list[Record | BadRow]:
        return [self._filled(found)[0] for found in self._inner.records_at(rows)]

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        for found in self._inner.records(first, last):
            record, paths = self._filled(found)
            if isinstance(record, BadRow):
                content.update(content_of(record))
                continue
            content.update(record_bytes(record))
            for path in paths:
                blob = _blob(path)
                content.update(blob.num_bytes.to_bytes(8, "little"))
                blob.add_digest(content)

    def media(self) -> Iterator[str]:
        """Yield the paths of all files that records name."""
        for found in self._inner.records(0, len(self)):
            yield from self._filled(found)[1]

    def _filled(self, found: Record | BadRow) -> tuple[Record | BadRow, list[str]]:
        """Return a record with its files in place of their names, and their paths."""
        if isinstance(found, BadRow):
            return found, []
        record: Record = {}
        paths: list[str] = []
        for name, value in found.items():
            if (column := _column(name)) is None or value is None:
                record[name] = value
                continue
            prefix, ending = column
            names = value if ending == _MANY else [value]
            kinds = self._kinds(name, names)
            if isinstance(kinds, BadRow):
                return kinds, []
            if not prefix and len(kinds) > 1:
                return _bad(
                    f"{name!r} names files of several kinds: {', '.join(sorted(kinds))}"
                ), []
            target = prefix or next(iter(kinds), "images")
            here = [f"{self._folder}/{each}" for each in names]
            values = [{"bytes": None, "path": path} for path in here]
            if ending == _MANY:
                record[target] = values
            else:
                record[prefix or target.removesuffix("s")] = values[0]
            paths += here
        return record, paths

    def _kinds(self, column: str, names: Any) -> set[str] | BadRow:
        """Return the kinds of files that a record names, as columns of media, or why they cannot be used."""
        if not isinstance(names, list):
            return _bad(f"{column!r} is {names!r}, expected a list of names")
        kinds: set[str] = set()
        for name in names:
            if not is_inner_name(name):
                return _bad(f"the file name {name!r} is not the name of a file inside the folder")
            if (kind := media_column(name)) is None:
                return _bad(
                    f"the file {name!r} is neither an image nor a video nor audio, by its extension"
                )
            if not is_file(f"{self._folder}/{name}"):
                return _bad(f"the file {name!r} is missing in {self._folder}")
            kinds.add(kind)
        return kinds


def _bad(message: str) -> BadRow:
    return BadRow(reason="bad_member", message=message)


def _blob(path: str) -> Blob:
    file = open_file(identify(path))
    return Blob(path.rpartition("/")[2], path, 0, file.identity.size, file.read, is_range=False)


class MediaFolderReader(FileReader):
    """Reads a metadata file as the source of its format does, with the files that its records name."""

    format = "media_folder"

    def __init__(self, metadata: Files, folder: str) -> None:
        self.options = metadata.reader.options
        self._metadata = metadata
        self._folder = folder

    def open_rows(self, file: FileId) -> FolderRows:
        return FolderRows(self._metadata.reader.open_rows(file), self._folder)

    def weight(self, file: FileId) -> int | None:
        return self._metadata.reader.weight(file)

    def media(self) -> Iterator[FileId]:
        for file in self._metadata.identities:
            for path in self.open_rows(file).media():
                yield identify(path)


def open_media_folder(request: OpenRequest) -> Files:
    """Open a folder with a metadata file that names images, audio or video."""
    folder = request.folder("media")
    metadata = [f"{folder}/{name}" for name in METADATA_NAMES if is_file(folder / name)]
    if len(metadata) != 1:
        files = ", ".join(metadata) or "none"
        raise SourceError(f"{folder}: expected one of {', '.join(METADATA_NAMES)}, found {files}")
    if not _names_files(metadata[0]):
        raise SourceError(f"{metadata[0]}: no column {_ONE!r} or '…_{_ONE}', which names the files")
    request = request.of_folder(metadata)
    opener = format_of(metadata[0]).load()
    inner = opener.open(replace(request, options=opener.options()))
    assert isinstance(inner, Files)  # metadata files are JSONL, CSV or Parquet
    return open_files(request, MediaFolderReader(inner, str(folder)))


MEDIA_FOLDER = Opener(NoOptions, open_media_folder)


class SampleRows(FileRecords):
    """One sample of a folder: one record."""

    def __init__(
        self, identity: FileId, key: str, fields: dict[str, str], options: SampleOptions
    ) -> None:
        self.file = open_file(identity)
        self.num_bytes = identity.size
        self._key = key
        self._fields = fields
        self._options = options

    def __len__(self) -> int:
        return 1

    def record(self, row: int) -> Record | BadRow:
        found = sample_record(self._key, self._blobs(), self._options)
        self.file.check()
        return found

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for row in range(first, last):
            yield self.record(row)

    def locate(self, row: int) -> tuple[int, int]:
        return 1, 0

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        for _ in range(first, last):
            add_sample(content, self._key, self._blobs(), self._options)

    def _blobs(self) -> dict[str, Blob]:
        return {field: _blob(path) for field, path in self._fields.items()}


class SampleFolderReader(FileReader):
    """Opens samples: files of one name."""

    format = "sample_folder"

    def __init__(
        self, samples: dict[str, tuple[str, dict[str, str]]], options: SampleOptions
    ) -> None:
        """samples: key and files by field of each sample, by the file that a record comes from."""
        self.options: SampleOptions = options
        self._samples = samples

    def open_rows(self, file: FileId) -> FileRecords:
        key, fields = self._samples[file.path]
        return SampleRows(file, key, fields, self.options)

    def counts(self, files: Sequence[FileId]) -> list[int]:
        return [1] * len(files)

    def media(self) -> Iterator[FileId]:
        for home, (_, fields) in self._samples.items():
            yield from (identify(path) for path in fields.values() if path != home)


def open_sample_folder(request: OpenRequest) -> Files:
    """Open a folder in which files of one name make a sample, such as 7.jpg and 7.txt."""
    folder = request.folder("samples")
    paths = find(folder)
    samples = {_home(fields): (key, fields) for key, fields in _grouped(paths).items()}
    num_left_out = len(paths) - sum(len(fields) for _, fields in samples.values())
    if num_left_out:
        _log.info("%s: %d files belong to no sample and are left out", folder, num_left_out)
    if not samples:
        raise SourceError(
            f"{folder}: no samples, expected files of one name such as 7.jpg and 7.txt"
        )
    reader = SampleFolderReader(samples, request.options)
    return open_files(request.of_folder(list(samples)), reader)


SAMPLE_FOLDER = Opener(SampleOptions, open_sample_folder)


def _grouped(paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return files by name and extension: media, text and JSON, in natural order."""
    found: dict[str, dict[str, str]] = {}
    for path in paths:
        key, dot, field = path.rpartition("/")[2].rpartition(".")
        field = field.lower()
        if (
            not key
            or not dot
            or not (media_column(field) or (is_read(field) and is_data_file(path)))
        ):
            continue
        fields = found.setdefault(key, {})
        if field in fields:
            raise SourceError(
                f"{path}: {fields[field]} is the same field of the same sample; remove one of them"
            )
        fields[field] = path
    return found


def _home(fields: dict[str, str]) -> str:
    """Return the file that a record comes from, for people: its text if it has one."""
    return next(
        (path for field, path in fields.items() if is_read(field)), next(iter(fields.values()))
    )
