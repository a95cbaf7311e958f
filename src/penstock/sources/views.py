"""Views of a source: slices, selections, filters, maps, one record per turn.

A view keeps record numbers, not records; it reads its source when asked.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.cache import Cache
from penstock.cache.checked import Json
from penstock.errors import BadRecord, SourceError
from penstock.fingerprint import Digest, digest
from penstock.sources.bad import BadRows, ProcessLock, Unreadable
from penstock.sources.base import RowAccess, Stamp, answer, at_most, content_of, distinct
from penstock.sources.iterate import Place, Walked, row_of
from penstock.types import BadRow, Ints, Record, RemovedNulls, Source, Where
from penstock.words import plural

if TYPE_CHECKING:
    from penstock.sources.filter import FilterCount, RecordFilter

_log = logging.getLogger("penstock")

_BLOCK = 1 << 16  # rows of a view that are taken together


class View(RowAccess):
    """Records made of the records of one source.  This class shows a source as it is: a user's own class, for one."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.format = source.format if isinstance(source, RowAccess) else ""
        self._source = source

    @property
    def _ours(self) -> RowAccess | None:
        """The source if it is one of this package: a user's own class has the methods of `Source` only."""
        return self._source if isinstance(self._source, RowAccess) else None

    @property
    def cache(self) -> Cache | None:  # type: ignore[override]
        return self._ours.cache if self._ours is not None else None

    @property
    def files(self) -> list[str]:
        return self._ours.files if self._ours is not None else []

    @property
    def below(self) -> RowAccess:
        """The source; a user's own class as a view of it."""
        return View(self._source) if self._ours is None else self._ours

    @property
    def has_unread_stream(self) -> bool:
        return self._ours is not None and self._ours.has_unread_stream

    @property
    def is_counted(self) -> bool:
        return self._ours is None or self._ours.is_counted

    def outline(self) -> Json:
        return self._outlined("view")

    def _outlined(self, kind: str, *arguments: Json) -> Json:
        """Return this view and its arguments over the outline of the source."""
        inner = "rows" if self._ours is None else self._ours.outline()
        return [kind, *arguments, inner]

    def __len__(self) -> int:
        return len(self._source)

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        return self._source.records(start, stop)

    def locate(self, row: int) -> Where:
        return self._source.locate(row)

    def digest(self, start: int, stop: int) -> str:
        return self._source.digest(start, stop)

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        return self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)

    def records_at(self, rows: Ints) -> list[Record]:
        return records_at(self._source, rows)

    def unreadable(self) -> Unreadable:
        return self._ours.unreadable() if self._ours is not None else super().unreadable()

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        return self._ours.removed_nulls(rows) if self._ours is not None else RemovedNulls()

    def number_columns(self) -> dict[str, str]:
        return self._ours.number_columns() if self._ours is not None else {}

    def left_out(self) -> "list[FilterCount]":
        return self._ours.left_out() if self._ours is not None else []

    def _stamp(self, kind: str, *more: Stamp) -> Stamp:
        """Return the source's stamp and what this view adds to it."""
        inner = self._ours.stamp() if self._ours is not None else None
        return None if inner is None else [kind, inner, *more]

    def _policies(self) -> list[BadRows]:
        return self._ours._policies() if self._ours is not None else []

    def _record(self, row: int) -> Record:
        return self._source[row]

    def __repr__(self) -> str:
        return repr(self._source)


class ChosenRows(View):
    """Some records of a source.  A subclass gives their numbers as a range, or as an array if they follow no rule."""

    @property
    @abstractmethod
    def rows(self) -> range | Ints: ...

    def __len__(self) -> int:
        return len(self.rows)

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        for first in range(start, stop, _BLOCK):
            for begin, end in runs(self.rows[first : min(first + _BLOCK, stop)]):
                yield from self._source.records(begin, end)

    def locate(self, row: int) -> Where:
        return self._source.locate(int(self.rows[self._row(row)]))

    def digest(self, start: int, stop: int) -> str:
        """Return the source's digest if records are neighbours, so that a slice of a file shares its shards."""
        self._range(start, stop)
        pieces = [self._source.digest(begin, end) for begin, end in runs(self.rows[start:stop])]
        return joined_digest(pieces) if pieces else self._source.digest(0, 0)

    def records_at(self, rows: Ints) -> list[Record]:
        mine = self.rows
        return records_at(
            self._source,
            mine[rows] if isinstance(mine, np.ndarray) else mine.start + mine.step * rows,
        )

    def unreadable(self) -> Unreadable:
        inner = super().unreadable()
        rows = np.asarray(self.rows, np.int64)
        if not inner.rows.size or not rows.size:
            return Unreadable(np.zeros(0, np.int64), ())
        places = np.searchsorted(inner.rows, rows).clip(max=inner.rows.size - 1)
        found = np.flatnonzero(inner.rows[places] == rows)
        return Unreadable(found, tuple(inner.reasons[place] for place in places[found].tolist()))

    def refuse_empty(self) -> None:
        if not len(self) and len(self._source):
            raise SourceError(
                f"{self!r} keeps none of {len(self._source):,} records; keep at least one record"
            )

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        return super().removed_nulls(sorted({int(self.rows[row]) for row in rows}))

    def _record(self, row: int) -> Record:
        return self._source[int(self.rows[row])]


class Slice(ChosenRows):
    """Records of a source in even steps."""

    rows: range = range(0)

    def __init__(self, source: Source, rows: range) -> None:
        super().__init__(source)
        self.rows = rows

    def _sliced(self, rows: slice) -> "Slice":
        """A slice of a slice is a slice of the source."""
        return Slice(self._source, self.rows[rows])

    def stamp(self) -> Stamp:
        return self._stamp("slice", self.rows.start, self.rows.stop, self.rows.step)

    def outline(self) -> Json:
        return self._outlined("slice", self.rows.start, self.rows.stop, self.rows.step)

    def snapshot(self, start: int, stop: int) -> "Slice | None":
        rows = self.rows[start:stop]
        held = (
            self._ours.snapshot(rows.start, rows.stop)
            if self._ours is not None and rows.step == 1
            else None
        )
        return None if held is None else Slice(held, self.rows)

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Return the source's cuts, in this view's numbers; ranges shrink with the step."""
        if not self.rows:
            return np.zeros(1, dtype=np.int64)
        borders = self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)
        first = self.rows.start
        step = self.rows.step
        # The first view row at or past border b: forwards ceil((b - first) / step), backwards the first row below b.
        inside = -((first - borders) // step) if step > 0 else (first - borders) // -step + 1
        return distinct(np.concatenate([[0], inside.clip(0, len(self)), [len(self)]])).astype(
            np.int64
        )

    def __repr__(self) -> str:
        # Backwards to the very first row the stop is -1, which in a slice would be the last row: leave it out.
        stop = "" if self.rows.stop < 0 else self.rows.stop
        step = "" if self.rows.step == 1 else f":{self.rows.step}"
        return f"{self._source!r}[{self.rows.start}:{stop}{step}]"


class Selection(ChosenRows):
    """Records by number, in any order; 8 bytes per record.  A subclass finds them when they are first needed."""

    def __init__(self, source: Source, rows: Ints | None = None) -> None:
        super().__init__(source)
        self._rows = rows
        self._lock = ProcessLock()

    @property
    def rows(self) -> Ints:
        if self._rows is None:
            with self._lock:
                if self._rows is None:  # another thread may have found them meanwhile
                    self._rows = np.array(self._find(), dtype=np.int64)
        return self._rows

    def _find(self) -> Ints:
        """Find the records by one pass over the source."""
        raise NotImplementedError

    def stamp(self) -> Stamp:
        return self._stamp("select", digest(self.rows.tobytes()))

    @property
    def is_counted(self) -> bool:
        return self._rows is not None

    def outline(self) -> Json:
        return self._outlined("select", digest(self.rows.tobytes()))

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Give each record its share of the source's range that holds it; a border follows when a range is full."""
        if not len(self):
            return np.zeros(1, dtype=np.int64)
        borders = self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)
        ranges = np.searchsorted(borders, self.rows, side="right") - 1
        weights = (1 / np.diff(borders))[ranges]
        filled = np.floor(
            np.cumsum(weights) - weights + 1e-9
        )  # ranges filled before each row; ⅓ + ⅓ + ⅓ is one
        return at_most(
            np.concatenate([[0], np.flatnonzero(np.diff(filled)) + 1, [len(self)]]), num_rows
        )

    def __getstate__(self) -> dict[str, Any]:
        rows = self._rows
        if (
            rows is None
            or not len(rows)
            or not (np.diff(rows) > 0).all()
            or rows[-1] >= 64 * len(rows)
        ):
            return self.__dict__
        mask = np.zeros(int(rows[-1]) + 1, dtype=np.bool_)
        mask[rows] = True
        return {
            **self.__dict__,
            "_rows": np.packbits(mask).tobytes(),
        }  # a bit per row of the source is less

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._rows, bytes):
            self._rows = np.flatnonzero(np.unpackbits(np.frombuffer(self._rows, dtype=np.uint8)))

    def __repr__(self) -> str:
        return f"{self._source!r}.select({plural(len(self.rows), 'record')})"


class Filtered(Selection):
    """Records that pass a function.  A record that cannot be read stays, and stays counted."""

    def __init__(
        self, source: Source, passing: "RecordFilter", fn: Callable[[Record], Any]
    ) -> None:
        super().__init__(source)
        self._filter = passing
        self._fn = fn

    def _find(self) -> Ints:
        rows = np.flatnonzero(self._filter.passing(self.below))
        left_out = self._left_out(rows.size)
        if left_out.num_dropped:
            _log.warning("%s: %s", self.name, left_out)
        return rows

    def _left_out(self, num_kept: int) -> "FilterCount":
        from penstock.sources.filter import FilterCount  # it needs this module

        num_records = len(self._source)
        return FilterCount(
            name=self._filter.name, num_dropped=num_records - num_kept, num_records=num_records
        )

    def left_out(self) -> "list[FilterCount]":
        return [*super().left_out(), self._left_out(len(self))]

    def walk(self, after: Place = None) -> Iterator[Walked]:
        """Call the function for one record after the other: no pass comes first."""
        row = row_of(after)
        inner: Place = None if after is None else after["inner"]
        for walked in self.below.walk(inner):
            if not isinstance(walked.record, BadRow):
                source_row = walked.place["row"] - 1
                if not is_kept(self._source, source_row, self._fn, walked.record):
                    continue
            row += 1
            yield walked._replace(place={"row": row, "inner": walked.place})

    def outline(self) -> Json:
        return self._outlined("filter", short_name(self._fn), self._filter.version)

    def __repr__(self) -> str:
        rows = "" if self._rows is None else f", {plural(len(self._rows), 'record')}"
        return f"{self._source!r}.filter({name_of(self._fn)}{rows})"


class Mapped(View):
    """Each record as a function returns it; a bad record stays what it is."""

    def __init__(self, source: Source, fn: Callable[[Record], Record]) -> None:
        super().__init__(source)
        self._fn = fn

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        for row, record in enumerate(self._source.records(start, stop), start):
            yield record if isinstance(record, BadRow) else self._apply(row, record)

    def digest(self, start: int, stop: int) -> str:
        return digest_of_made(self, start, stop, self._fn)

    def walk(self, after: Place = None) -> Iterator[Walked]:
        for walked in self.below.walk(after):
            if isinstance(walked.record, BadRow):
                yield walked
            else:
                row = walked.place["row"] - 1
                yield walked._replace(record=self._apply(row, walked.record))

    def number_columns(self) -> dict[str, str]:
        return {}  # the function may return anything

    def records_at(self, rows: Ints) -> list[Record]:
        read = records_at(self._source, rows)
        return [self._apply(row, record) for row, record in zip(rows.tolist(), read, strict=True)]

    def _record(self, row: int) -> Record:
        return self._apply(row, self._source[row])

    def outline(self) -> Json:
        return self._outlined("map", short_name(self._fn))

    def _apply(self, row: int, record: Record) -> Record:
        made = _call(self._source, row, "map", self._fn, record)
        if not isinstance(made, dict):
            fault = f"returned a {type(made).__name__}, expected a dict; to leave records out, use filter"
            raise _failed(self._source, row, "map", self._fn, fault)
        return made

    def __repr__(self) -> str:
        return f"{self._source!r}.map({name_of(self._fn)})"


class FanOut(Selection):
    """A record for each turn of a record, the turn's number under `key`.  A record without turns, or a bad record, comes once.

    A template that drops reasoning from earlier turns can train each of them only in a conversation that ends there.
    Counting the turns takes one pass over the source.
    """

    def __init__(self, source: Source, num_turns: Callable[[Record], int], *, key: str) -> None:
        super().__init__(source)
        self._num_turns = num_turns
        self._key = key

    def _find(self) -> Ints:
        records = self._source.records(0, len(self._source))
        counts = [self._count(row, record) for row, record in enumerate(records)]
        return np.repeat(np.arange(len(counts)), counts)

    def _count(self, row: int, record: Record | BadRow) -> int:
        if isinstance(record, BadRow):
            return 1
        if self._key in record:
            raise SourceError(
                f"{self._source.locate(row)}: the record has the key {self._key!r}, which fan-out needs"
            )
        return max(1, int(_call(self._source, row, "turns", self._num_turns, record)))

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        if start == stop:
            return
        rows = self.rows[start:stop]
        first = int(rows[0])
        counts = np.bincount(rows - rows[0])
        turn = self._turn(start)
        for record, count in zip(
            self._source.records(first, first + len(counts)), counts.tolist(), strict=True
        ):
            for number in range(turn, turn + count):
                yield record if isinstance(record, BadRow) else {**record, self._key: number}
            turn = 0

    def digest(self, start: int, stop: int) -> str:
        """Return the digest of the records, and which of their turns."""
        self._range(start, stop)
        content = Digest()
        if start < stop:
            rows = self.rows[start:stop]
            first = int(rows[0])
            counts = np.bincount(rows - rows[0])
            inner = self._source.digest(first, first + len(counts))
            content.update(f"{self._key} {self._turn(start)} {counts.tolist()} {inner}".encode())
        return content.hexdigest()

    def outline(self) -> Json:
        return self._outlined("fan_out", self._key, short_name(self._num_turns))

    def stamp(self) -> Stamp:
        return self._stamp("fan_out", self._key, digest(self.rows.tobytes()))

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Return the source's cuts: a record is read once, however many turns it has."""
        if not len(self):
            return np.zeros(1, dtype=np.int64)
        return at_most(
            np.searchsorted(self.rows, self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)),
            num_rows,
        )

    def records_at(self, rows: Ints) -> list[Record]:
        return RowAccess.records_at(self, rows)

    def _record(self, row: int) -> Record:
        return {**super()._record(row), self._key: self._turn(row)}

    def _turn(self, row: int) -> int:
        """Return which turn of its record a record is."""
        return row - int(np.searchsorted(self.rows, self.rows[row]))

    def __repr__(self) -> str:
        return f"{self._source!r} by {name_of(self._num_turns)}"


def records_at(source: Source, rows: Ints) -> list[Record]:
    """Return records of any source by number; a user's own class is read one by one."""
    return (
        source.records_at(rows)
        if isinstance(source, RowAccess)
        else [source[row] for row in rows.tolist()]
    )


def runs(rows: range | Ints) -> Iterator[tuple[int, int]]:
    """Yield neighbouring records together, as (first, last + 1)."""
    if isinstance(rows, range):
        if rows.step == 1 and rows:
            yield rows[0], rows[-1] + 1
        else:
            yield from ((row, row + 1) for row in rows)
    elif len(rows):
        edges = np.flatnonzero(np.diff(rows) != 1) + 1
        firsts = rows[np.concatenate([[0], edges])].tolist()
        lasts = rows[np.concatenate([edges, [len(rows)]]) - 1].tolist()
        yield from ((first, last + 1) for first, last in zip(firsts, lasts, strict=True))


def digest_of_made(view: RowAccess, start: int, stop: int, fn: Callable[..., Any]) -> str:
    """Return the digest of records that a function made: it has no name that identifies what it does."""
    content = Digest()
    for row, record in enumerate(view.records(start, stop), start):
        try:
            content.update(content_of(record))
        except (TypeError, ValueError, RecursionError) as error:
            where = view.locate(row)
            raise BadRecord(
                f"{where.file}:{where.line}: the record that {name_of(fn)} returned cannot be hashed: "
                f"{error}; return plain values, numpy arrays, bytes or dates (record {row}, counted from 0)"
            ) from error
    return content.hexdigest()


def joined_digest(digests: list[str]) -> str:
    """Return the digest of neighbouring ranges; of one range its own."""
    if len(digests) == 1:
        return digests[0]
    content = Digest()
    for each in digests:
        content.update(each.encode())
    return content.hexdigest()


def _call(source: Source, row: int, what: str, fn: Callable[[Record], Any], record: Record) -> Any:
    try:
        return answer(fn(record))
    except Exception as error:
        fault = f"raised {type(error).__name__}: {error}"
        raise _failed(source, row, what, fn, fault) from error


def is_kept(source: Source, row: int, fn: Callable[[Record], Any], record: Record) -> bool:
    """Return whether a filter function keeps a record."""
    try:
        return bool(
            answer(fn(record))
        )  # the truth of an answer may raise, too, such as of an array
    except Exception as error:
        fault = f"raised {type(error).__name__}: {error}"
        raise _failed(source, row, "filter", fn, fault) from error


def _failed(source: Source, row: int, what: str, fn: Callable[..., Any], fault: str) -> BadRecord:
    where = source.locate(row)
    return BadRecord(
        f"{where.file}:{where.line}: the {what} function {name_of(fn)} {fault} "
        f"(record {row}, counted from 0)"
    )


def name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def short_name(fn: Callable[..., Any]) -> str:
    """Return the name of a function without where it is defined; of an object that of its class."""
    name: str = getattr(fn, "__name__", None) or type(fn).__name__
    return name
