"""Records from Python: a list of dicts, and any iterable of dicts, which is written to the cache as it is read.

A spool is a folder of chunks of JSON lines.  A chunk's name says which rows it holds and carries two links, so that the folder needs no
index and no lock: `first-last-before-after.jsonl` follows the chunk whose `after` is its `before`.  Links are made of content, so chunks of
two streams that differ never join.  `end-rows-after` says that nothing follows.

How many rows there are is known at the end only.  Shards are cut by content while the stream is read, and begin small, so that a Loader
can train on the prefix that there is.  Whatever needs the end reads on to it, says how far it is, and stops at a limit.

A complete spool is read from disk and the stream is not asked again.  An incomplete one continues where it ends: a function with a
parameter `start` is called with the next row, any other is read from its beginning and compared with what it gave before.
"""

import inspect
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock import words
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.fingerprint import Digest, digest, fingerprint
from penstock.places.files import identify, read
from penstock.places.place import FileId
from penstock.sources.base import RowAccess
from penstock.sources.file_source import Part
from penstock.sources.jsonl import JsonlSource
from penstock.sources.parse import has_long_digits, parse
from penstock.sources.python_values import copied, take_bytes
from penstock.sources.text import TextFiles
from penstock.sources.views import Slice
from penstock.types import MOST_DEPTH, BadRow, Ints, Record, nests_too_deep
from penstock.words import plural

_DEEP = f"values that nest more than {MOST_DEPTH} levels deep"

_log = logging.getLogger("penstock")


class ListSource(RowAccess):
    """Records in memory.  They must be plain JSON values, as their text is the content that names a store.

    Images may also be bytes, or images of Pillow.
    """

    shape = "list"

    def __init__(self, records: Sequence[Record], *, name: str = "list") -> None:
        self.name = name
        self._records = list(records)
        for row, record in enumerate(self._records):
            _expect_dict(record, name, row)

    def __len__(self) -> int:
        return len(self._records)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        self._range(start, stop)
        for row in range(start, stop):
            record = self._records[row]
            if nests_too_deep(record):
                raise _refused(self.name, row, _DEEP)
            yield copied(record)

    def digest(self, start: int, stop: int) -> str:
        self._range(start, stop)
        content = Digest()
        for row in range(start, stop):
            content.update(self._text(row))
        return content.hexdigest()

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        borders = [0]
        size = 0
        for row in range(len(self)):
            if size >= num_bytes or row - borders[-1] >= num_rows:
                borders.append(row)
                size = 0
            size += len(self._text(row))
        return np.array([*borders, len(self)] if self._records else [0], dtype=np.int64)

    def _text(self, row: int) -> bytes:
        """Return canonical JSON.  Keys keep their order: a chat template may print a dict as it is."""
        record = self._records[row]
        if _not_json(record) is None:
            return _json_text(record)
        plain, digests = take_bytes(record)
        if fault := _not_json(plain):
            raise _refused(self.name, row, fault)
        # a NUL stands in no JSON text, so this is never the text of another record
        return b"\0".join([_json_text(plain), _json_text(digests)])

    def __repr__(self) -> str:
        return f"ListSource({self.name!r}, {plural(len(self), 'row')})"


def json_line(record: Any, name: str, row: int) -> bytes:
    """Return a record as a line that reads back as the same record; raise BadRecord if there is none."""
    _expect_dict(record, name, row)
    try:
        fault = _not_json(record)
        if fault is None:
            line = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
            if not isinstance(parse(line, exact=has_long_digits(line)), BadRow):
                return line
            fault = "values nested too deep, or too many digits"
    except (UnicodeEncodeError, RecursionError, ValueError) as error:
        fault = f"what JSON cannot hold ({error})"
    refused = _refused(name, row, fault)
    if fault == "a bytes":
        raise BadRecord(f"{refused}; of images, write paths or data: URLs, or pass a list")
    raise refused


def _expect_dict(record: Any, name: str, row: int) -> None:
    if not isinstance(record, dict):
        raise BadRecord(
            f"{name}:{row + 1}: record {row} is a {type(record).__name__}, expected a dict"
        )


def _refused(name: str, row: int, fault: str) -> BadRecord:
    return BadRecord(f"{name}:{row + 1}: record {row} holds {fault}, expected plain JSON values")


def _json_text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _not_json(value: Any) -> str | None:
    """Name what in a record JSON would change: tuples, keys that are not strings, NaN, subclasses; or that it nests too deep."""
    return _DEEP if nests_too_deep(value) else _not_json_inside(value)


def _not_json_inside(value: Any) -> str | None:
    kind = type(value)
    if kind is dict:
        for key, inner in value.items():
            if type(key) is not str:
                return f"the key {key!r} of type {type(key).__name__}"
            if fault := _not_json_inside(inner):
                return fault
        return None
    if kind is list:
        return next((fault for inner in value if (fault := _not_json_inside(inner))), None)
    if kind is float and not math.isfinite(value):
        return f"the number {value}"
    return None if kind in (str, int, float, bool, type(None)) else f"a {kind.__name__}"


_FLUSH_ROWS = 1 << 16
_FLUSH_BYTES = 16 << 20  # held in memory until it is written
_FLUSH_SECONDS = 10.0  # what a kill can cost a slow stream
_SAY_SECONDS = 10.0  # between lines that say how far a stream is read
_FIRST_SHARD = 256  # rows; shards double until they have as many rows as those of files
_SPOOL_BYTES = 32 << 30  # of a stream whose end is needed, or that is trained on
_AT_ONCE = 64  # rows read on while the end of a shard is looked for
_START = "0" * 16
_NOTHING = object()

_CHUNK = re.compile(r"(\d+)-(\d+)-([0-9a-f]{16})-([0-9a-f]{16})\.jsonl")
_END = re.compile(r"end-(\d+)-([0-9a-f]{16})")


class Chunk(NamedTuple):
    """Rows first..last of a stream, on disk."""

    first: int
    last: int
    before: str
    after: str

    @classmethod
    def parse(cls, name: str) -> "Chunk | None":
        found = _CHUNK.fullmatch(name)
        return cls(int(found[1]), int(found[2]), found[3], found[4]) if found else None

    @property
    def name(self) -> str:
        return f"{self.first:012}-{self.last:012}-{self.before}-{self.after}.jsonl"


@dataclass(slots=True)
class _Cutting:
    """Where the shards of a stream end, as far as it was looked at."""

    num_bytes: int  # a shard ends when it has so many bytes,
    num_rows: int  # or so many rows; the first ones have fewer
    borders: list[int] = field(default_factory=lambda: [0])
    row: int = 0  # the next one to look at
    size: int = 0  # bytes since the last border

    def add(self, size: int) -> None:
        """Look at one more row."""
        self.row += 1
        self.size += size
        most = min(_FIRST_SHARD << min(len(self.borders) - 1, 32), self.num_rows)
        if self.size >= self.num_bytes or self.row - self.borders[-1] >= most:
            self.borders.append(self.row)
            self.size = 0


class SpooledSource(JsonlSource):
    """Any iterable of records.  `len` and negative rows read it to its end; everything else as far as it must.

    version: with it and a name the spool is kept and found again; without, it is removed with this process.
    spool_bytes: stop with an error when so many bytes of it are on disk.
    """

    shape = "iterable"
    is_stream = True
    rows_are_lines = (
        False  # a chunk is read as a part, which checks it against the digest in its name
    )
    OPTIONS = ("version", "spool_bytes")

    def __init__(
        self,
        make: Any,
        *,
        cache: Cache,
        name: str | None = None,
        version: str | int | None = None,
        spool_bytes: int = _SPOOL_BYTES,
        **rest: Any,
    ) -> None:
        if type(spool_bytes) is not int or spool_bytes < 1:
            raise SourceError(f"spool_bytes is {spool_bytes!r}, expected a number of bytes ≥ 1")
        if version is not None and name is None:
            raise SourceError(
                "version is given without name; both together say which stream a kept spool holds"
            )
        function: Callable[..., Any] = getattr(
            make, "func", make
        )  # a partial is called by what it wraps
        name = name or getattr(function, "__name__", type(make).__name__)
        super().__init__(
            [], cache=cache if version is not None else Cache.temporary(), name=name, **rest
        )
        self._make: Any = make
        self._begun = False
        self._spool_bytes = spool_bytes
        self._on_disk = 0  # bytes
        self._cuttings: dict[tuple[int, int], _Cutting] = {}
        self._shard_digests: dict[tuple[int, int], str] = {}
        self._reads_to_end = False  # something needs the number of rows
        self._said_at = time.monotonic()
        self._folder = f"iterables/{fingerprint(['iterable', self.name, version])}"
        self.cache.hold(self._folder)  # pruning must not remove a chunk of a chain that is read
        chunks, self._ended = _read_folder(self.cache, self._folder)
        self._after = _START  # the link of the last chunk
        self._chunks: list[Chunk] = []
        for chunk in chunks:
            self._append(chunk)
        self._tail: list[bytes] = []  # lines not yet on disk
        self._verified: set[str] = set()  # chunks whose content was compared with their names
        self._begin_process()

    def _begin_process(self) -> None:
        """A stream belongs to one process: a forked copy would share its files, and so its position in them."""
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._stream: Iterator[Any] | None = None
        self._unsaved = 0  # bytes in the tail
        self._saved_at = time.monotonic()

    def _append(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        identity = identify(self.cache.path(f"{self._folder}/{chunk.name}"))
        self.identities.append(identity)
        self._on_disk += identity.size
        self._first_rows.append(chunk.last)
        self._after = chunk.after

    def part(self, identity: FileId) -> Part:
        name = identity.path.rpartition("/")[2]
        if name not in self._verified and (fault := chunk_fault(name, read(identity.path))):
            advice = "the file is damaged: remove its folder, and the stream is spooled again"
            raise SourceError(f"{identity.path}: {fault}; {advice}")
        self._verified.add(name)
        return super().part(identity)

    def __len__(self) -> int:
        return self._reach(None)

    def __getitem__(self, row: Any, /) -> Any:
        """A slice that counts from the start and knows its end reads no further than that."""
        if (
            isinstance(row, slice)
            and row.stop is not None
            and min(row.start or 0, row.stop, row.step or 1) >= 0
        ):
            return Slice(self, range(self._reach(row.stop))[row])
        return super().__getitem__(row)

    def __iter__(self) -> Iterator[Record]:
        """Yield rows as they come: the first does not wait for the last."""
        row = 0
        while (known := self._reach(row + 1)) > row:
            yield from self.records(row, known)  # type: ignore[misc]  # a line is read back before it is written
            row = known

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        while start < stop:
            with self._lock:
                on_disk = self._first_rows[-1]
                lines = self._tail[max(0, start - on_disk) : max(0, stop - on_disk)]
            if start < on_disk:
                yield from super().records(start, min(stop, on_disk))
                start = min(stop, on_disk)
            else:
                yield from (parse(line, exact=has_long_digits(line)) for line in lines)
                start = stop

    def records_at(self, rows: Ints) -> list[Record]:
        if rows.size:
            self._range(0, int(rows.max()) + 1)
            with self._lock:
                if self._first_rows[-1] <= int(rows.max()):
                    self._flush()
        return super().records_at(rows)

    locate = RowAccess.locate
    stamp = RowAccess.stamp  # chunks may still be added

    def digest(self, start: int, stop: int) -> str:
        self._range(start, stop)
        with self._lock:
            self._flush()
        return super().digest(start, stop)

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Shards begin small and double; where they end depends on the records before only."""
        self._reach(None)
        cutting = self._cut(num_bytes, num_rows)
        borders = cutting.borders
        is_whole = borders[-1] == self._known
        return np.array(borders if is_whole else [*borders, self._known], dtype=np.int64)

    def shard_end(self, shard: int, *, num_bytes: int, num_rows: int) -> int | None:
        """Return the row after the last one of a shard, as `cuts` has it; None if there is no such shard.  Reads no more than that."""
        with self._lock:
            while True:
                borders = self._cut(num_bytes, num_rows).borders
                if shard + 1 < len(borders):
                    return borders[shard + 1]
                if self._ended:
                    has_rest = shard + 1 == len(borders) and borders[-1] < self._known
                    return self._known if has_rest else None
                self._reach(self._known + _AT_ONCE)

    def _cut(self, num_bytes: int, num_rows: int) -> _Cutting:
        """Look at the rows that are known, and return where shards end."""
        cutting = self._cuttings.setdefault((num_bytes, num_rows), _Cutting(num_bytes, num_rows))
        for size in self._line_sizes(cutting.row):
            cutting.add(size)
        return cutting

    def _line_sizes(self, start: int) -> Iterator[int]:
        """Yield the bytes of each known row from `start` on."""
        on_disk = self._first_rows[-1]
        chunks = list(zip(self._chunks, self.identities, strict=True)) if start < on_disk else []
        for chunk, identity in chunks:
            if chunk.last > start:
                lines = read(identity.path).splitlines(keepends=True)
                yield from (len(line) for line in lines[max(start - chunk.first, 0) :])
        yield from (len(line) for line in self._tail[max(start - on_disk, 0) :])

    def has_row(self, row: int) -> bool:
        """Whether there is a row of this number; reads the stream up to it."""
        return self._reach(row + 1) > row

    @property
    def has_ended(self) -> bool:
        """Whether the stream was read to its end, so that the number of its rows is known."""
        return self._ended

    def shard_digest(self, start: int, stop: int) -> str:
        """Return `digest` of a shard; the records of one shard are read for it once in the life of the spool."""
        known = self._shard_digests.get((start, stop))
        if known is None:
            prefix = f"{self._folder}/shard-{start:012}-{stop:012}-"
            names = [name for name in self.cache.names(self._folder) if name.startswith(prefix)]
            if len(names) == 1:
                known = names[0].removeprefix(prefix)
            else:
                known = self.digest(start, stop)
                self.cache.publish(f"{prefix}{known}", lambda out: None)
            self._shard_digests[start, stop] = known
        return known

    @property
    def files(self) -> list[str]:
        return []  # chunks are the cache's own; a row comes from the stream

    _record = RowAccess._record

    def _row(self, row: int) -> int:
        return row if row >= 0 and self._reach(row + 1) > row else RowAccess._row(self, row)

    def _range(self, start: int, stop: int) -> None:
        if not (0 <= start <= stop and self._reach(stop) >= stop):
            RowAccess._range(self, start, stop)

    @property
    def _known(self) -> int:
        return self._first_rows[-1] + len(self._tail)

    def _reach(self, upto: int | None) -> int:
        """Read on until there are `upto` rows, or to the end; return how many there are."""
        if self._process != os.getpid():
            self._begin_process()
        if upto is None and not self._reads_to_end:
            self._reads_to_end = True
            self._said_at = time.monotonic()
        while not self._ended and (upto is None or self._known < upto):
            with self._lock:
                if not self._ended and (upto is None or self._known < upto):
                    self._pull()
        return self._known

    def _pull(self) -> None:
        """Read one more row, or find the end."""
        row = self._known
        line = b""
        try:
            if self._stream is None:
                self._stream = self._begin()
            if (record := next(self._stream, _NOTHING)) is not _NOTHING:
                line = json_line(record, self.name, row)
        except Exception as error:
            self._stream = None  # a row that failed must be asked for again, not skipped
            self._flush()
            if isinstance(error, SourceError):
                raise
            why = f"the iterable raised {type(error).__name__}: {error}"
            raise SourceError(f"{self.name}:{row + 1}: {why}; rows 0..{row} are kept") from error
        if not line:
            self._flush()
            self.cache.publish(
                f"{self._folder}/end-{self._known:012}-{self._after}", lambda out: None
            )
            self._ended = True
            self._stream = self._make = None  # free what they hold
            return
        self._tail.append(line)
        self._unsaved += len(line)
        self._refuse_endless()
        is_full = len(self._tail) >= _FLUSH_ROWS or self._unsaved >= _FLUSH_BYTES
        if is_full or time.monotonic() - self._saved_at > _FLUSH_SECONDS:
            self._flush()

    def _refuse_endless(self) -> None:
        """Say how far the stream is read while this takes long, and stop where it would fill the disk."""
        total = self._on_disk + self._unsaved
        if total > self._spool_bytes:
            self._flush()
            raise SourceError(
                f"{self.name}: {self._known:,} records ({words.size(total)}) were read from this stream and written to the cache, and it "
                f"has not ended; pass spool_bytes={2 * self._spool_bytes} to allow more, take a part of it (source[:1_000_000]), or end "
                f"the iterable"
            )
        now = time.monotonic()
        if self._reads_to_end and now - self._said_at > _SAY_SECONDS:
            self._said_at = now
            _log.warning(
                "%s: %s records (%s) read so far; the stream is read to its end, because the number of its records is needed; a Loader "
                "with shuffle_window=N or shuffle=False trains on what there is (for tokens, prepare with background=True)",
                self.name,
                f"{self._known:,}",
                words.size(total),
            )

    def _flush(self) -> None:
        """Write the tail as a chunk."""
        if self._tail:
            data = b"".join(self._tail)
            first = self._first_rows[-1]
            chunk = Chunk(
                first, first + len(self._tail), self._after, _link(self._after, digest(data))
            )
            self.cache.publish(f"{self._folder}/{chunk.name}", lambda out: out.write(data))
            self._tail = []  # a new list: a reader may still hold the old one
            self._append(chunk)
        self._unsaved = 0
        self._saved_at = time.monotonic()

    def _begin(self) -> Iterator[Any]:
        """Return the stream, at the row that comes next."""
        if _takes_start(self._make):
            return iter(self._make(start=self._known))
        if isinstance(self._make, Iterator) and self._begun:
            why = "an iterator can be read only once, and this one was begun before a fork or an error"
            raise SourceError(f"{self.name}: {why}; give a function that makes it")
        self._begun = True
        stream = iter(self._make) if isinstance(self._make, Iterable) else iter(self._make())
        for chunk in self._chunks:
            content = Digest()
            for row in range(chunk.first, chunk.last):
                content.extend(self._again(stream, row))
            if _link(chunk.before, content.hexdigest()) != chunk.after:
                raise self._other(f"rows {chunk.first}..{chunk.last} differ")
        for row, line in enumerate(self._tail, self._first_rows[-1]):
            if self._again(stream, row) != line:
                raise self._other(f"row {row} differs")
        return stream

    def _again(self, stream: Iterator[Any], row: int) -> bytes:
        if (record := next(stream, _NOTHING)) is _NOTHING:
            raise self._other(f"it ends at row {row}")
        return json_line(record, self.name, row)

    def _other(self, found: str) -> SourceError:
        before = f"from what was spooled before ({self._known} rows)"
        return SourceError(
            f"{self.name}: {found} {before}; if the stream has changed, pass another version="
        )

    def snapshot(self, start: int, stop: int) -> TextFiles | None:
        """None while an iterator is being read: no copy of it can go on, and its rows are read from the spool itself."""
        return None if self._is_open_iterator else super().snapshot(start, stop)

    @property
    def _is_open_iterator(self) -> bool:
        return not self._ended and isinstance(self._make, Iterator)

    def __getstate__(self) -> dict[str, Any]:
        if self._is_open_iterator:
            advice = "read it to the end first with len(source), or give a function that makes it"
            raise SourceError(
                f"{self.name}: an iterator cannot be sent to another process; {advice}"
            )
        with self._lock:
            self._flush()
        return {
            key: value
            for key, value in super().__getstate__().items()
            if key not in ("_lock", "_stream")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_process()

    def __repr__(self) -> str:
        return f"SpooledSource({self.name!r}, {plural(self._known, 'row')}{'' if self._ended else ' so far'})"


def chunk_fault(name: str, data: bytes) -> str | None:
    """Return what is wrong with a chunk of this name and content, or None."""
    chunk = Chunk.parse(name)
    if chunk is None:
        return "not the name of a chunk"
    is_whole = _link(chunk.before, digest(data)) == chunk.after
    return None if is_whole else "not what was written, by the digest in its name"


def _link(before: str, content: str) -> str:
    return fingerprint([before, content])[:16]


def _read_folder(cache: Cache, folder: str) -> tuple[list[Chunk], bool]:
    """Return the chunks of a spool, and whether they are complete.  Of several writers' chains: a complete one, else the longest."""
    names = [name.rpartition("/")[2] for name in cache.names(folder)]
    by_end = {
        (chunk.last, chunk.after): chunk
        for name in names
        if (chunk := Chunk.parse(name)) is not None
    }
    ends = [(int(parts[1]), parts[2]) for name in names if (parts := _END.fullmatch(name))]
    for last, after in [*ends, *sorted(by_end, reverse=True)]:
        chain: list[Chunk] = []
        end: tuple[int, str] = (last, after)
        while (chunk := by_end.get(end)) is not None and chunk.first < chunk.last:
            chain.append(chunk)
            end = (chunk.first, chunk.before)
        if end == (0, _START):
            return chain[::-1], (last, after) in ends
    return [], False


def _takes_start(make: Any) -> bool:
    if isinstance(make, Iterable):
        return False
    try:
        return "start" in inspect.signature(make).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
