"""Any iterable of records as a source.  It is read once, and written to a file as it is read: its spool.

How many records there are is known at the end only.  Shards are cut by content while the stream is read, and begin small, so that a Loader
can train on the prefix that there is.  Whatever needs the end reads on to it, says how far it is, and stops at a limit.

When the stream has ended, its spool is published in the cache as one file.  With a version it is found again, and the stream is not asked.
A stream that was not read to its end, because its process was stopped, is read again from its beginning.
"""

import logging
import os
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

import numpy as np

from penstock import words
from penstock.cache import Cache, checked
from penstock.errors import SourceError, StoreError
from penstock.fingerprint import Digest, fingerprint
from penstock.places.files import identify, settled
from penstock.settings import setting
from penstock.sources.base import RowAccess, Stamp
from penstock.sources.iterate import Place, Walked, row_of
from penstock.sources.jsonl import JsonDecoder
from penstock.sources.memory import json_line
from penstock.sources.views import Slice
from penstock.types import BadRow, Ints, Record
from penstock.words import plural

_log = logging.getLogger("penstock")

_BLOCK = 1 << 20  # bytes that are written, read or copied at once
_ROWS = 1 << 14  # read at once
_SAY_SECONDS = 10.0  # between lines that say how far a stream is read
_FIRST_SHARD = 256  # rows; shards double until they have as many rows as those of files
_SPOOL_BYTES = 32 << 30  # of a stream whose end is needed, or that is trained on
_AT_ONCE = 64  # rows read on while the end of a shard is looked for
_NOTHING = object()


class _Growing:
    """The spool of a stream that is being read: a file without a name, which ends with this process.

    It has lines of JSON: record i is bytes starts[i]..starts[i + 1].
    """

    def __init__(self, folder: str) -> None:
        self.starts = array("q", [0])
        self._held = bytearray()  # the last lines, not yet in the file
        self._num_written = 0
        import tempfile  # only here: it imports random and hashlib

        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                self._fd = os.dup(file.fileno())
        except OSError as error:
            raise StoreError(
                f"{folder}: a stream cannot be written to it: {error.strerror}; choose another cache_dir"
            ) from error
        weakref.finalize(self, os.close, self._fd)

    def add(self, line: bytes) -> None:
        self._held += line
        self.starts.append(self.starts[-1] + len(line))
        if len(self._held) >= _BLOCK:
            self._flush()

    def read(self, start: int, stop: int) -> bytes:
        if start >= self._num_written:
            held = self._held
            return bytes(held[start - self._num_written : stop - self._num_written])
        if stop > self._num_written:
            self._flush()
        return os.pread(self._fd, stop - start, start)

    def _flush(self) -> None:
        """Write what is held."""
        data = bytes(self._held)
        try:
            while data:
                written = os.pwrite(self._fd, data, self._num_written)
                self._num_written += written
                data = data[written:]
        except OSError as error:
            raise StoreError(
                f"a stream cannot be written to the cache: {error.strerror}; free some space"
            ) from error
        self._held = bytearray()

    def publish(self, cache: Cache, name: str) -> "_Published":
        """Copy all lines, and the table of where they begin, to one file of the cache."""
        num_bytes = self.starts[-1]

        def write(out: IO[bytes]) -> int:
            for start in range(0, num_bytes, _BLOCK):
                out.write(self.read(start, min(start + _BLOCK, num_bytes)))
            out.write(np.array(self.starts, "<i8").tobytes())
            return num_bytes

        checked.publish(cache, name, write)
        published = _Published.find(cache, name)
        if published is None:
            raise StoreError(
                f"{cache.path(name)}: not what was just written; does another program write to the cache?"
            )
        return published


class _Published:
    """The spool of a stream that has ended.  Pickles as its name."""

    def __init__(self, cache: Cache, name: str, loaded: checked.Loaded) -> None:
        num_bytes = loaded.value
        assert isinstance(num_bytes, int)
        self.starts: Ints = np.frombuffer(loaded.payload[num_bytes:], "<i8")
        self._payload = loaded.payload
        self._cache = cache
        self._name = name

    @classmethod
    def find(cls, cache: Cache, name: str) -> "_Published | None":
        loaded = checked.load(cache, name)
        return None if loaded is None else cls(cache, name, loaded)

    @classmethod
    def reopen(cls, cache: Cache, name: str) -> "_Published":
        published = cls.find(cache, name)
        if published is None:
            raise SourceError(
                f"{cache.path(name)}: the spool is gone or damaged; open the stream again"
            )
        return published

    def read(self, start: int, stop: int) -> bytes:
        return bytes(self._payload[start:stop])

    def stamp(self) -> Stamp:
        file = identify(self._cache.path(self._name))
        return (
            ["stream", file.path, file.size, file.inode, file.ctime_ns] if settled(file) else None
        )

    def __reduce__(self) -> tuple[Callable[[Cache, str], "_Published"], tuple[Cache, str]]:
        return _Published.reopen, (self._cache, self._name)


@dataclass(slots=True)
class _Cutting:
    """Where the shards of a stream end, as far as it was looked at."""

    num_bytes: int  # a shard ends when it has so many bytes,
    num_rows: int  # or so many rows; the first ones have fewer
    borders: list[int] = field(default_factory=lambda: [0])
    row: int = 0  # the next one to look at
    size: int = 0  # bytes since the last border

    def add(self, size: int) -> None:
        """Look at one more record."""
        self.row += 1
        self.size += size
        most = min(_FIRST_SHARD << min(len(self.borders) - 1, 32), self.num_rows)
        if self.size >= self.num_bytes or self.row - self.borders[-1] >= most:
            self.borders.append(self.row)
            self.size = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of an iterable."""

    version: str | int | None = setting(
        "for an iterable: with it and a name, what was read of it is kept and found again", None
    )
    spool_bytes: int = setting(
        "for an iterable: an error when so many bytes of it are on disk", _SPOOL_BYTES
    )

    def __post_init__(self) -> None:
        if type(self.spool_bytes) is not int or self.spool_bytes < 1:
            raise SourceError(
                f"spool_bytes is {self.spool_bytes!r}, expected a number of bytes ≥ 1"
            )


class StreamSource(RowAccess):
    """Any iterable of records.  `len` and negative numbers read it to its end; everything else as far as it must.

    A stream belongs to one process.  A forked or pickled copy of one that has not ended reads it again, from its beginning.
    """

    format = "iterable"
    is_stream = True
    cache: Cache

    def __init__(
        self,
        make: Iterable[Record] | Callable[[], Iterable[Record]],
        options: StreamOptions,
        *,
        cache: Cache,
        name: str | None = None,
    ) -> None:
        """make: an iterable, or a function that returns one."""
        version = options.version
        if version is not None and name is None:
            raise SourceError(
                "version is given without name; both together say which stream a kept spool holds"
            )
        self.name = name or _name_of(make)
        self.cache = Cache.temporary() if version is None else cache
        self._make: Any = make
        self._options = options
        self._spool_name = f"iterables/{fingerprint(['stream', self.name, version])}"
        self._published = None if version is None else _Published.find(cache, self._spool_name)
        self._cuttings: dict[tuple[int, int], _Cutting] = {}
        self._shard_digests: dict[tuple[int, int], str] = {}
        self._decoder = JsonDecoder(unique_keys=False)
        self._is_begun = False
        self._begin_process()

    @property
    def _guard(self) -> threading.RLock:
        """The lock of this process: a fork may have copied one that was held."""
        if self._process != os.getpid():
            self._begin_process()
        return self._lock

    def _begin_process(self) -> None:
        """Forget what a stream that is being read has given: a copy would share the place in its files."""
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._iterator: Iterator[Any] | None = None
        self._growing: _Growing | None = None
        self._reads_to_end = False  # something needs the number of rows
        self._said_at = time.monotonic()

    # What is known

    @property
    def has_ended(self) -> bool:
        """Whether the stream was read to its end, so that the number of its records is known."""
        return self._published is not None

    @property
    def num_known(self) -> int:
        """How many records were read so far."""
        if self._published is not None:
            return len(self._published.starts) - 1
        return 0 if self._growing is None else len(self._growing.starts) - 1

    def _lines(self) -> _Growing | _Published:
        lines = self._published or self._growing
        assert lines is not None  # rows are known
        return lines

    def has_row(self, row: int) -> bool:
        """Whether there is a record of this number; reads the stream up to it."""
        return self._reach(row + 1) > row

    def __len__(self) -> int:
        return self._reach(None)

    # Records

    def __getitem__(self, row: Any, /) -> Any:
        """A number, and a slice that counts from the start and knows its end, read no further than that."""
        if type(row) is int:
            return self._record(self._row(row))  # without the length: the stream may have no end
        is_bounded = isinstance(row, slice) and row.stop is not None
        if is_bounded and min(row.start or 0, row.stop, row.step or 1) >= 0:
            return Slice(self, range(self._reach(row.stop))[row])
        return super().__getitem__(row)

    def __iter__(self) -> Iterator[Record]:
        """Yield records as they come: the first does not wait for the last."""
        row = 0
        while self.has_row(row):
            num_known = self.num_known
            yield from self.records(row, num_known)  # type: ignore[misc]  # a line is read back before it is written
            row = num_known

    def walk(self, after: Place = None) -> Iterator[Walked]:
        row = row_of(after)
        while self.has_row(row):
            num_known = self.num_known
            for record in self.records(row, num_known):
                row += 1
                yield Walked(record, {"row": row}, partial(self.locate, row - 1))

    @property
    def has_unread_stream(self) -> bool:
        return not self.has_ended

    @property
    def is_counted(self) -> bool:
        return self.has_ended

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        for raw, edges in self._chunks(start, stop):
            yield from self._decoder.decode_all(raw, edges)

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[bytes, list[int]]]:
        """Yield the bytes of neighbouring records, and where each begins in them."""
        while start < stop:
            with self._guard:
                lines = self._lines()
                edges = np.array(lines.starts[start : min(start + _ROWS, stop) + 1])
                count = max(1, int(np.searchsorted(edges, edges[0] + _BLOCK, side="right")) - 1)
                raw = lines.read(edges.item(0), edges.item(count))
            yield raw, (edges[: count + 1] - edges[0]).tolist()
            start += count

    def digest(self, start: int, stop: int) -> str:
        """Return the digest that a file of these lines has."""
        self._range(start, stop)
        content = Digest()
        for raw, _ in self._chunks(start, stop):
            content.extend(raw)
        return content.hexdigest()

    def stamp(self) -> Stamp:
        return None if self._published is None else self._published.stamp()

    # Shards

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Shards begin small and double; where they end depends on the records before only."""
        count = self._reach(None)
        borders = self._cut(num_bytes, num_rows).borders
        is_whole = borders[-1] == count
        return np.array(borders if is_whole else [*borders, count], dtype=np.int64)

    def shard_end(self, shard: int, *, num_bytes: int, num_rows: int) -> int | None:
        """Return the record after the last one of a shard, as `cuts` has it; None after the last shard.  Reads no more than that."""
        while True:
            borders = self._cut(num_bytes, num_rows).borders
            if shard + 1 < len(borders):
                return borders[shard + 1]
            if self.has_ended:
                has_rest = shard + 1 == len(borders) and borders[-1] < self.num_known
                return self.num_known if has_rest else None
            self._reach(self.num_known + _AT_ONCE)

    def _cut(self, num_bytes: int, num_rows: int) -> _Cutting:
        """Look at the records that are known, and return where shards end."""
        with self._guard:
            cutting = self._cuttings.setdefault(
                (num_bytes, num_rows), _Cutting(num_bytes, num_rows)
            )
            num_known = self.num_known
            if cutting.row < num_known:
                starts = np.array(self._lines().starts[cutting.row : num_known + 1])
                for size in np.diff(starts).tolist():
                    cutting.add(size)
        return cutting

    def shard_digest(self, start: int, stop: int) -> str:
        """Return `digest` of a shard; its records are read for it once."""
        digest = self._shard_digests.get((start, stop))
        if digest is None:
            digest = self.digest(start, stop)
            self._shard_digests[start, stop] = digest
        return digest

    # Reading

    def _row(self, row: int) -> int:
        return row if type(row) is int and row >= 0 and self.has_row(row) else super()._row(row)

    def _range(self, start: int, stop: int) -> None:
        if not (0 <= start <= stop and self._reach(stop) >= stop):
            super()._range(start, stop)

    def _reach(self, upto: int | None) -> int:
        """Read on until there are `upto` records, or to the end; return how many there are."""
        guard = self._guard
        if upto is None and not self._reads_to_end:
            self._reads_to_end = True
            self._said_at = time.monotonic()
        while not self.has_ended and (upto is None or self.num_known < upto):
            with guard:
                if not self.has_ended and (upto is None or self.num_known < upto):
                    self._pull()
        return self.num_known

    def _pull(self) -> None:
        """Read one more record, or find the end."""
        if self._growing is None:
            self._growing = _Growing(str(self.cache.root))
        row = self.num_known
        try:
            if self._iterator is None:
                self._iterator = self._begin()
            record = next(self._iterator, _NOTHING)
            line = b"" if record is _NOTHING else json_line(record, self.name, row)
        except Exception as error:
            self._iterator = None  # a row that failed must be asked for again, not skipped
            if isinstance(error, SourceError):
                raise
            raise SourceError(
                f"{self.name}:{row + 1}: the iterable raised {type(error).__name__}: {error}; "
                f"the {plural(row, 'record')} before it can be read"
            ) from error
        if not line:
            self._published = self._growing.publish(self.cache, self._spool_name)
            self._growing = self._iterator = self._make = None  # free what they hold
            return
        self._growing.add(line)
        self._refuse_endless(self._growing.starts[-1])

    def _begin(self) -> Iterator[Any]:
        """Return the stream, at the record that comes next.  After an error it gives again what it has given."""
        if isinstance(self._make, Iterator) and self._is_begun:
            raise SourceError(
                f"{self.name}: an iterator can be read only once, and this one was begun before a fork or an error; "
                f"give a function that makes it"
            )
        self._is_begun = True
        stream = iter(self._make) if isinstance(self._make, Iterable) else iter(self._make())
        for row in range(self.num_known):
            self._expect_same(row, next(stream, _NOTHING))
        return stream

    def _expect_same(self, row: int, record: object) -> None:
        """Raise SourceError unless a stream that is read again gives the record that it gave before."""
        lines = self._lines()
        line = lines.read(lines.starts[row], lines.starts[row + 1])
        if record is _NOTHING:
            difference = f"it ends at record {row}"
        elif json_line(record, self.name, row) != line:
            difference = f"record {row} differs"
        else:
            return
        raise SourceError(
            f"{self.name}: {difference} from what the stream gave before ({self.num_known} records); open it again"
        )

    def _refuse_endless(self, num_bytes: int) -> None:
        """Say how far the stream is read while this takes long, and stop where it would fill the disk."""
        num_rows = f"{self.num_known:,}"
        if num_bytes > self._options.spool_bytes:
            raise SourceError(
                f"{self.name}: {num_rows} records ({words.size(num_bytes)}) were read from this stream and written to the cache, and it "
                f"has not ended; pass spool_bytes={2 * self._options.spool_bytes} to allow more, take a part of it (source[:1_000_000]), "
                f"or end the iterable"
            )
        now = time.monotonic()
        if self._reads_to_end and now - self._said_at > _SAY_SECONDS:
            self._said_at = now
            _log.warning(
                "%s: %s records (%s) read so far; the stream is read to its end, because the number of its records is needed; a Loader "
                "with shuffle_window=N or shuffle=False trains on what there is (for tokens, prepare with background=True)",
                self.name,
                num_rows,
                words.size(num_bytes),
            )

    def snapshot(self, start: int, stop: int) -> "StreamSource | None":
        """The records of a spool stay as they are."""
        return self if self.has_ended else None

    def __getstate__(self) -> dict[str, Any]:
        if not self.has_ended and isinstance(self._make, Iterator):
            raise SourceError(
                f"{self.name}: an iterator cannot be sent to another process; read it to the end first with len(source), "
                f"or give a function that makes it"
            )
        of_process = ("_lock", "_iterator", "_growing")
        return {name: value for name, value in self.__dict__.items() if name not in of_process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_process()

    def __repr__(self) -> str:
        so_far = "" if self.has_ended else " so far"
        return f"StreamSource({self.name!r}, {plural(self.num_known, 'record')}{so_far})"


def _name_of(make: object) -> str:
    function = getattr(make, "func", make)  # a partial is called by what it wraps
    return getattr(function, "__name__", None) or type(make).__name__
