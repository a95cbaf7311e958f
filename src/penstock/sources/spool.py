"""How does a stream get random access?  It is written down as it is read: row i is asked for, rows up to i are in the cache.

A spool is a folder of chunks, plain JSON lines.  A chunk's name says which rows it holds and carries two links, so that the
folder needs no index and no lock: `first-last-before-after.jsonl` follows the chunk whose `after` is its `before`.  Links
are made of content, so chunks of two streams that differ never join.  `end-rows-after` says that nothing follows.

The rows of a whole spool come from disk and the stream is not asked again.  A part of one goes on where it ends: a function
with a parameter `start` is called with the next row, any other is read from its beginning and held to what it gave before.
"""

import inspect
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, overload

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import FileId, identify, read
from penstock.fingerprint import Digest, digest, fingerprint
from penstock.sources.jsonl import JsonlSource
from penstock.sources.memory import json_line
from penstock.sources.parse import has_long_digits, parse
from penstock.sources.parts import Part
from penstock.sources.view import RowAccess, Slice
from penstock.types import BadRow, Ints, Record, Where

_FLUSH_ROWS = 1 << 16
_FLUSH_BYTES = 16 << 20  # held in memory until it is written
_FLUSH_SECONDS = 10.0  # what a kill can cost a slow stream
_START = "0" * 16

_CHUNK = re.compile(r"(\d+)-(\d+)-([0-9a-f]{16})-([0-9a-f]{16})\.jsonl")
_END = re.compile(r"end-(\d+)-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows first..last of a stream, on disk."""

    name: str
    first: int
    last: int
    before: str
    after: str


class SpooledSource(JsonlSource):
    """Any iterable of records.  `len` and negative rows read it to its end; everything else as far as it must."""

    shape = "iterable"
    rows_are_lines = False  # a chunk is read as a part, which holds it to the digest in its name
    OPTIONS = ("version",)

    def __init__(
        self, make: Any, *, cache: Cache, name: str | None = None, version: str | int | None = None, **rest: Any
    ) -> None:
        """`version`: with it and a name the spool is kept and found again; without, it is gone with this process."""
        if version is not None and name is None:
            raise SourceError("version is given without name; both together say which stream a kept spool holds")
        super().__init__(
            [], cache=cache if version is not None else Cache.temporary(), name=name or _name(make), **rest
        )
        self._make: Any = make
        self._folder = f"iterables/{fingerprint(['iterable', self.name, version])}"
        self.cache.hold(self._folder)  # a chain that is read must not lose a chunk to tidying up
        self._chunks, self._ended = _read_folder(self.cache, self._folder)
        self.identities = [identify(str(self.cache.path(f"{self._folder}/{chunk.name}"))) for chunk in self._chunks]
        self._first_rows = [0, *(chunk.last for chunk in self._chunks)]
        self._tail: list[bytes] = []  # lines not yet on disk
        self._verified: set[str] = set()  # chunks whose content was held to their names
        self._begin_process()

    def _begin_process(self) -> None:
        """A stream under way belongs to one process: a forked copy would share its files, and so its place in them."""
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._stream: Iterator[Any] | None = None
        self._unsaved = 0  # bytes in the tail
        self._saved_at = time.monotonic()

    def part(self, identity: FileId) -> Part:
        part = super().part(identity)
        chunk = next(chunk for chunk in self._chunks if identity.path.endswith(chunk.name))
        if chunk.name not in self._verified:
            if not is_whole(chunk, read(identity.path)):
                raise SourceError(
                    f"{identity.path}: not what was written, by the digest in its name; the file is damaged: remove its folder, "
                    f"and it is spooled again"
                )
            self._verified.add(chunk.name)
        if part.num_rows != chunk.last - chunk.first:
            raise SourceError(
                f"{identity.path}: {part.num_rows} rows, expected {chunk.last - chunk.first}; the file is damaged: "
                f"remove its folder, and it is spooled again"
            )
        return part

    def __len__(self) -> int:
        return self._reach(None)

    @overload
    def __getitem__(self, row: int, /) -> Record: ...
    @overload
    def __getitem__(self, row: slice, /) -> Slice: ...
    def __getitem__(self, row: int | slice, /) -> Record | Slice:
        """A slice that counts from the start and knows its end reads no further than that."""
        if isinstance(row, slice) and row.stop is not None and min(row.start or 0, row.stop, row.step or 1) >= 0:
            return Slice(self, range(self._reach(row.stop))[row])
        return super().__getitem__(row)

    def __iter__(self) -> Iterator[Record]:
        """Rows as they come: the first does not wait for the last."""
        row = 0
        while (known := self._reach(row + 1)) > row:
            for record in self.records(row, known):
                assert not isinstance(record, BadRow)  # what is written was read back before
                yield record
            row = known

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        while start < stop:
            with self._lock:
                on_disk = self._first_rows[-1]
                lines = self._tail[max(0, start - on_disk) : max(0, stop - on_disk)]
            if start < on_disk:
                upto = min(stop, on_disk)
                yield from super().records(start, upto)
                start = upto
            else:
                yield from map(_parsed, lines)
                start = stop

    def where(self, row: int) -> Where:
        return Where(file=self.name, line=self._row(row) + 1)

    def digest(self, start: int, stop: int) -> str:
        self._range(start, stop)
        with self._lock:
            self._flush()
        return super().digest(start, stop)

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        self._reach(None)
        return super().cuts(num_bytes=num_bytes, num_rows=num_rows)

    @property
    def files(self) -> list[str]:
        return []  # chunks are the cache's own; a row's home is the stream

    def _record(self, row: int) -> Record:
        record = next(self.records(row, row + 1))
        assert not isinstance(record, BadRow)
        return record

    def _row(self, row: int) -> int:
        return row if row >= 0 and self._reach(row + 1) > row else RowAccess._row(self, row)

    def _range(self, start: int, stop: int) -> None:
        if not (0 <= start <= stop and self._reach(stop) >= stop):
            RowAccess._range(self, start, stop)

    def _reach(self, upto: int | None) -> int:
        """Read on until there are `upto` rows, or to the end; how many there are."""
        if self._process != os.getpid():
            self._begin_process()
        while not self._ended and (upto is None or self._known < upto):
            with self._lock:
                if not self._ended and (upto is None or self._known < upto):
                    self._pull()
        return self._known

    @property
    def _known(self) -> int:
        return int(self._first_rows[-1]) + len(self._tail)

    def _pull(self) -> None:
        """One more row, or the end."""
        row = self._known
        try:
            if self._stream is None:
                self._stream = self._begin()
            record = next(self._stream, _NOTHING)
            line = b"" if record is _NOTHING else json_line(record, self.name, row)
        except SourceError:
            self._give_up()
            raise
        except Exception as error:
            self._give_up()
            raise SourceError(
                f"{self.name}:{row + 1}: the iterable raised {type(error).__name__}: {error}; rows 0..{row} are kept"
            ) from error
        if record is not _NOTHING:
            self._tail.append(line)
            self._unsaved += len(line)
        if record is _NOTHING or self._is_due():
            self._flush()
        if record is _NOTHING:
            self._end()

    def _give_up(self) -> None:
        """What was read is kept, the stream is not: a row that failed must be asked for again, not stepped over."""
        self._stream = None
        self._flush()

    def _is_due(self) -> bool:
        if len(self._tail) >= _FLUSH_ROWS or self._unsaved >= _FLUSH_BYTES:
            return True
        return time.monotonic() - self._saved_at > _FLUSH_SECONDS

    def _flush(self) -> None:
        """Give the tail a name on disk."""
        if self._tail:
            data = b"".join(self._tail)
            first, before = self._first_rows[-1], self._chunks[-1].after if self._chunks else _START
            last, after = first + len(self._tail), _link(before, digest(data))
            chunk = Chunk(f"{first:012}-{last:012}-{before}-{after}.jsonl", first, last, before, after)
            name = f"{self._folder}/{chunk.name}"
            self.cache.publish(name, lambda out: out.write(data))
            self._chunks.append(chunk)
            self.identities.append(identify(str(self.cache.path(name))))
            self._tail = []  # a new list: a reader may still hold the old one
            self._first_rows.append(last)
        self._unsaved, self._saved_at = 0, time.monotonic()

    def _end(self) -> None:
        after = self._chunks[-1].after if self._chunks else _START
        self.cache.publish(f"{self._folder}/end-{self._known:012}-{after}", lambda out: None)
        self._ended = True
        self._stream = self._make = None  # nobody needs them any more; whatever they hold may go

    def _begin(self) -> Iterator[Any]:
        """The stream, at the row that comes next."""
        if _takes_start(self._make):
            return iter(self._make(start=self._known))
        if _is_iterator(self._make) and getattr(self, "_begun", False):
            raise SourceError(
                f"{self.name}: an iterator can be read only once, and this one was begun before a fork or an error; "
                f"give a function that makes it"
            )
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
        record = next(stream, _NOTHING)
        if record is _NOTHING:
            raise self._other(f"it ends at row {row}")
        return json_line(record, self.name, row)

    def _other(self, found: str) -> SourceError:
        return SourceError(
            f"{self.name}: {found} from what was spooled before ({self._known} rows); "
            f"if the stream has changed, pass another version="
        )

    def __getstate__(self) -> dict[str, Any]:
        if not self._ended and _is_iterator(self._make):
            raise SourceError(
                f"{self.name}: an iterator cannot go to another process; read it to the end first with len(source), "
                f"or give a function that makes it"
            )
        with self._lock:
            self._flush()
        return {key: value for key, value in super().__getstate__().items() if key not in ("_lock", "_stream")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_process()

    def __repr__(self) -> str:
        return f"SpooledSource({self.name!r}, {self._known:_} rows{'' if self._ended else ' so far'})"


_NOTHING = object()


def _parsed(line: bytes) -> Record | BadRow:
    return parse(line, exact=has_long_digits(line))


def parse_chunk(name: str) -> Chunk | None:
    """What a chunk's name says of it; None where it is no chunk."""
    parts = _CHUNK.fullmatch(name)
    return Chunk(name, int(parts[1]), int(parts[2]), parts[3], parts[4]) if parts else None


def is_whole(chunk: Chunk, data: bytes) -> bool:
    """Whether this is the content that a chunk's name was made of."""
    return _link(chunk.before, digest(data)) == chunk.after


def _link(before: str, content: str) -> str:
    return fingerprint([before, content])[:16]


def _read_folder(cache: Cache, folder: str) -> tuple[list[Chunk], bool]:
    """The chunks of a spool, and whether they are all.  Several writers may have left several chains: a whole one, else the longest."""
    path = cache.path(folder)
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    chunks = [chunk for name in names if (chunk := parse_chunk(name)) is not None]
    by_end = {(chunk.last, chunk.after): chunk for chunk in chunks}
    ends = [(int(parts[1]), parts[2]) for name in names if (parts := _END.fullmatch(name))]
    for last, after in ends:
        if (chain := _chain(by_end, last, after)) is not None:
            return chain, True
    for last, after in sorted(by_end, reverse=True):
        if (chain := _chain(by_end, last, after)) is not None:
            return chain, False
    return [], False


def _chain(by_end: dict[tuple[int, str], Chunk], last: int, after: str) -> list[Chunk] | None:
    """The chunks that lead from row 0 to here, if none is missing."""
    chain: list[Chunk] = []
    while (last, after) != (0, _START):
        chunk = by_end.get((last, after))
        if chunk is None or chunk.first >= chunk.last:
            return None
        chain.append(chunk)
        last, after = chunk.first, chunk.before
    return chain[::-1]


def _takes_start(make: Any) -> bool:
    if isinstance(make, Iterable):
        return False
    try:
        return "start" in inspect.signature(make).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False


def _is_iterator(make: Any) -> bool:
    return isinstance(make, Iterator)


def _name(make: Any) -> str:
    named: Callable[..., Any] = getattr(make, "func", make)  # a partial is called by what it wraps
    return getattr(named, "__name__", type(make).__name__)
