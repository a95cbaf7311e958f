"""webdataset: tars in which a sample is a run of neighbouring members with one key.

One pass over the headers finds where samples begin; the cache keeps it.  A record is read by walking over the headers of its sample.  The
bytes of images, audio and video are not read: the record says where they are.  Only a digest reads them.

A sample is a bad row if one of its members cannot be read, if it has a field twice, or if another sample of the tar has its key: its
members are then not neighbours.  Where the tar is damaged, the unfinished sample and everything behind it is one bad row, the last one.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.cache.checked import Loaded
from penstock.errors import SourceChanged, SourceError
from penstock.extras.media.samples import (
    Blob,
    SampleOptions,
    add_sample,
    is_read,
    sample_record,
    split_name,
)
from penstock.extras.media.tar import BLOCK, Member, TarDamage, members, read_member
from penstock.fingerprint import Digest, digest
from penstock.places.files import open_file
from penstock.places.place import File, FileId
from penstock.sources.base import content_of
from penstock.sources.compressed import is_compressed
from penstock.sources.files import Files
from penstock.sources.index import MANY, SMALL, WORD, known_of, row_counts
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.rows import FileReader, FileRecords
from penstock.types import BadRow, Ints, Record

_log = logging.getLogger("penstock")

_KIND = "webdataset 1"  # of the index: raise the number when it is made in another way
Sample = tuple[str, dict[str, Blob]]  # key, and a file for each field


@dataclass(frozen=True, slots=True)
class SampleIndex:
    """Where the samples of a tar are."""

    table: Ints  # (num_rows + 1, 3): first byte; bytes that records before it take; another sample with its key, or -1
    damage: tuple[int, str] | None  # byte, and what was found there
    left_out: int  # members without a key and an extension
    example: str  # the first of them


class _Scan:
    """Finds samples; holds 32 bytes for each."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._begins: list[int] = []
        self._weights: list[int] = []
        self._hashes: list[int] = []
        self._key: str | None = None
        self._weight = 0
        self._left_out: list[int | str] = [0, ""]

    def run(self) -> tuple[memoryview, Any]:
        """Return the table as bytes, and the rest as a JSON value."""
        damage = None
        end = self._file.identity.size
        try:
            for member in members(self._file):
                self._take(member)
                end = member.end
        except TarDamage as error:
            if error.byte == 0:
                raise SourceError(
                    f"{self._file.identity.path}: cannot be read as a tar: {error.why}; make it again"
                ) from error
            damage = (error.byte, error.why)
            end = self._file.identity.size
            named = split_name(error.name)
            if self._key is None or (
                named is not None and named[0] != self._key
            ):  # the sample before it is whole
                self._begin(error.byte, "")
        self._file.check()
        others = self._others(np.array(self._hashes, np.uint64))
        table = [[*self._begins, end], [*self._weights, self._weight], [*others.tolist(), -1]]
        return memoryview(np.array(table, WORD).T.tobytes()), [damage, *self._left_out]

    def _take(self, member: Member) -> None:
        found = None if member.is_folder else split_name(member.name)
        if found is None:
            if not member.is_folder:
                self._left_out = [int(self._left_out[0]) + 1, self._left_out[1] or member.name]
            return
        key, field = found
        if key != self._key:
            self._begin(member.header, key)
        self._weight += BLOCK + (member.num_bytes if is_read(field) else 0)

    def _begin(self, byte: int, key: str) -> None:
        self._key = key
        self._begins.append(byte)
        self._weights.append(self._weight)
        self._hashes.append(int(digest(key.encode())[:16], 16))

    def _others(self, hashes: "np.ndarray[tuple[int], np.dtype[np.uint64]]") -> Ints:
        """Return for each sample another one with the same key, or -1."""
        others = np.full(len(hashes), -1, np.int64)
        order = np.argsort(hashes, kind="stable")
        for place in np.flatnonzero(np.diff(hashes[order]) == 0).tolist():
            one, two = order[place : place + 2].tolist()
            if self._key_at(one) == self._key_at(two):
                others[two] = one
                others[one] = two if others[one] < 0 else others[one]
        return others

    def _key_at(self, row: int) -> str:
        member = read_member(self._file, self._begins[row])
        found = None if member is None else split_name(member.name)
        return "" if found is None else found[0]


def index_samples(file: File, cache: Cache) -> SampleIndex:
    """Return the index of a tar: from the cache, or by one pass over its headers."""
    scan = _Scan(file).run
    is_small = file.identity.size <= SMALL
    found = Loaded(*scan()) if is_small else known_of([file.identity], cache, kind=_KIND, find=scan)
    damage, left_out, example = found.value
    table = np.frombuffer(found.payload, WORD).reshape(-1, 3)
    return SampleIndex(table, None if damage is None else tuple(damage), left_out, example)


class TarRows(FileRecords):
    """One tar."""

    def __init__(self, file: File, index: SampleIndex, options: SampleOptions) -> None:
        self.file = file
        self._index = index
        self._options = options
        self.num_bytes = index.table.item(-1, 1)

    def __len__(self) -> int:
        return len(self._index.table) - 1

    def record(self, row: int) -> Record | BadRow:
        sample = self._sample(row)
        found = sample if isinstance(sample, BadRow) else sample_record(*sample, self._options)
        self.file.check()
        return found

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for row in range(first, last):
            yield self.record(row)

    def locate(self, row: int) -> tuple[int, int]:
        return row + 1, self._index.table.item(row, 0)

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add keys, names and all bytes of samples: this reads the images, too."""
        for row in range(first, last):
            sample = self._sample(row)
            if isinstance(sample, BadRow):
                content.update(content_of(sample))
            else:
                add_sample(content, *sample, self._options)

    def borders(self, num_bytes: int) -> Ints:
        """Cut by what records take: a shard holds as much text as one of another format, however large the images are."""
        weights = self._index.table[:, 1]
        found = [
            bisect_left(weights, size, hi=len(self)) for size in range(0, self.num_bytes, num_bytes)
        ]
        return np.array(found, dtype=np.int64)

    def _sample(self, row: int) -> Sample | BadRow:
        index = self._index
        if index.damage is not None and row == len(self) - 1:
            byte, why = index.damage
            message = f"the tar is damaged at byte {byte}: {why}; samples from here on cannot be found, make it again"
            return BadRow(reason="bad_tar", message=message)
        at = index.table.item(row, 0)
        end = index.table.item(row + 1, 0)
        key = None
        fields = dict[str, Blob]()
        for member in self._members(at, end):
            found = None if member.is_folder else split_name(member.name)
            if found is None:
                continue
            key, field = found
            if member.problem:
                message = f"{member.name!r} (byte {member.header}) {member.problem}, expected a plain file"
                return BadRow(reason="bad_member", message=message)
            if field in fields:
                message = f"{member.name!r} (byte {member.header}): the sample has the field {field!r} twice"
                return BadRow(reason="duplicate_key", message=message)
            path = self.file.identity.path
            fields[field] = Blob(member.name, path, member.start, member.num_bytes, self.file.read)
        if key is None:
            raise self._changed(at)
        if (other := index.table.item(row, 2)) >= 0:
            there = f"at byte {index.table.item(other, 0)} (sample {other + 1})"
            message = f"the key {key!r} is also {there}; the members of a sample must be neighbours, so sort the tar"
            return BadRow(reason="split_sample", message=message)
        return key, fields

    def _members(self, at: int, end: int) -> Iterator[Member]:
        while at < end:
            try:
                member = read_member(self.file, at)
            except TarDamage:
                member = None
            if member is None:
                raise self._changed(at)
            yield member
            at = member.end

    def _changed(self, at: int) -> SourceChanged:
        self.file.check()
        return SourceChanged(
            f"{self.file.identity.path}: no header at byte {at}, where one was; open the source again"
        )


class TarReader(FileReader):
    """Opens tars of samples."""

    format = "webdataset"

    def __init__(self, options: SampleOptions, cache: Cache) -> None:
        self.options: SampleOptions = options
        self._cache = cache

    def open_rows(self, file: FileId) -> FileRecords:
        if is_compressed(file.path) or file.path.lower().endswith(".tgz"):
            why = "a compressed tar has no random access, and media do not get smaller; unpack it to a plain .tar"
            raise SourceError(f"{file.path}: {why}")
        opened = open_file(file)
        index = index_samples(opened, self._cache)
        if index.left_out:
            why = "members without a key and an extension are left out, as webdataset does, such as"
            _log.info("%s: %d %s %r", file.path, index.left_out, why, index.example)
        return TarRows(opened, index, self.options)

    def counts(self, files: Sequence[FileId]) -> list[int] | None:
        if len(files) < MANY:
            return None
        return row_counts(
            files,
            self._cache,
            kind=_KIND,
            count=lambda number: len(self.open_rows(files[number])),
        )

    def weight(self, file: FileId) -> None:
        """What records take, however large the images are."""
        return


def open_webdataset(request: OpenRequest) -> Files:
    """Open tars of samples.  A record has the sample's key as `__key__` and a field for each extension (samples.py says how)."""
    return open_files(request, TarReader(request.options, request.cache))


WEBDATASET = Opener(SampleOptions, open_webdataset)
