"""Several sources as one, and the description of a source."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from penstock.cache.checked import Json
from penstock.errors import BadRecord, SourceError
from penstock.sources.bad import BadRows, Unreadable
from penstock.sources.base import Joined, RowAccess, Stamp, distinct
from penstock.sources.iterate import Place, Walked, row_of
from penstock.sources.views import View, joined_digest
from penstock.types import BadRow, Ints, Record, RemovedNulls, Source, Where
from penstock.words import plural, size, spread

if TYPE_CHECKING:
    from penstock.sources.filter import FilterCount


class Concat(Joined):
    """Sources one after the other."""

    def __init__(self, sources: Iterable[Source], *, name: str) -> None:
        self.name = name
        self._sources = [
            source if isinstance(source, RowAccess) else View(source) for source in sources
        ]
        self.format = " + ".join(dict.fromkeys(source.format for source in self._sources))
        self.cache = self._sources[0].cache

    @cached_property
    def _first_rows(self) -> list[int]:  # type: ignore[override]
        """Counted when first needed: a stream is not read to its end to be walked."""
        return [0, *accumulate(len(source) for source in self._sources)]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for source in self._sources for file in source.files))

    @property
    def num_bytes(self) -> int | None:
        sizes = [source.num_bytes for source in self._sources]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        for index, first, last in self._pieces(start, stop):
            yield from self._sources[index].records(first, last)

    def walk(self, after: Place = None) -> Iterator[Walked]:
        row = row_of(after)
        first = 0 if after is None else int(after["source"])
        inner: Place = None if after is None else after["inner"]
        for index in range(first, len(self._sources)):
            for walked in self._sources[index].walk(inner):
                row += 1
                place = {"row": row, "source": index, "inner": walked.place}
                yield walked._replace(place=place)
            inner = None

    @property
    def has_unread_stream(self) -> bool:
        return any(source.has_unread_stream for source in self._sources)

    @property
    def is_counted(self) -> bool:
        return all(source.is_counted for source in self._sources)

    def outline(self) -> Json:
        return ["concat", *(source.outline() for source in self._sources)]

    def left_out(self) -> "list[FilterCount]":
        return [left_out for source in self._sources for left_out in source.left_out()]

    def number_columns(self) -> dict[str, str]:
        """Only where all sources agree."""
        first, *others = (source.number_columns() for source in self._sources)
        return {
            name: kind
            for name, kind in first.items()
            if all(other.get(name) == kind for other in others)
        }

    def locate(self, row: int) -> Where:
        index, local = self._locate(self._row(row))
        return self._sources[index].locate(local)

    def digest(self, start: int, stop: int) -> str:
        """A range inside one source has that source's digest, so that joining makes no new shards."""
        self._range(start, stop)
        pieces = self._pieces(start, stop)
        return joined_digest(
            [self._sources[index].digest(first, last) for index, first, last in pieces]
        )

    def snapshot(self, start: int, stop: int) -> "Concat | None":
        held = [
            (index, self._sources[index].snapshot(first, last))
            for index, first, last in self._pieces(start, stop)
        ]
        made = copy(self)
        made._sources = list(self._sources)
        for index, source in held:
            if source is None:
                return None
            made._sources[index] = source
        return made

    def stamp(self) -> Stamp:
        stamps = [source.stamp() for source in self._sources]
        return None if None in stamps else ["concat", *stamps]

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Each source's own cuts: no range crosses a border between sources."""
        inner = [source.cuts(num_bytes=num_bytes, num_rows=num_rows) for source in self._sources]
        shifted = [first + cuts for first, cuts in zip(self._first_rows, inner, strict=False)]
        return distinct(np.concatenate(shifted)).astype(np.int64)

    def unreadable(self) -> Unreadable:
        by_source = [source.unreadable() for source in self._sources]
        rows = [first + part.rows for first, part in zip(self._first_rows, by_source, strict=False)]
        return Unreadable(
            np.concatenate(rows), tuple(reason for part in by_source for reason in part.reasons)
        )

    def records_at(self, rows: Ints) -> list[Record]:
        return self._read_each(rows, lambda index, local: self._sources[index].records_at(local))

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        places = (self._locate(self._row(row)) for row in rows)
        return sum(
            (self._sources[index].removed_nulls([local]) for index, local in places),
            start=RemovedNulls(),
        )

    def _policies(self) -> list[BadRows]:
        return [policy for source in self._sources for policy in source._policies()]

    def _record(self, row: int) -> Record:
        index, local = self._locate(row)
        return self._sources[index][local]

    def __repr__(self) -> str:
        rows = f"{plural(len(self), 'record')}, " if self.is_counted else ""
        return f"Concat({self.name!r}, {rows}{plural(len(self._sources), 'source')})"


def is_source(place: object) -> bool:
    """Whether this has the methods of a source, ours or a user's."""
    return all(
        hasattr(place, method)
        for method in ("records", "where", "digest", "cuts", "__len__", "__getitem__")
    )


def concat(sources: Iterable[Source], *, name: str | None = None) -> RowAccess:
    """Sources as one, in this order.  For a mixture by weight, give them to the loader one by one."""
    flat: list[Source] = []
    for source in list(sources):
        if not is_source(source):
            raise SourceError(
                f"concat: found a {type(source).__name__}, expected sources; open it with penstock.open"
            )
        flat += source._sources if isinstance(source, Concat) else [source]
    if not flat:
        raise SourceError("concat: no sources given, expected at least one")
    return Concat(flat, name=joined_name(flat) if name is None else name)


def joined_name(sources: Sequence[Source]) -> str:
    """Return a name for several sources as one."""
    names = list(dict.fromkeys(source.name for source in sources))
    return "+".join(names) if len(names) <= 3 else f"{names[0]}+{len(names) - 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a source holds: counts, and the columns of a few records."""

    name: str
    format: str
    num_rows: int
    num_files: int
    num_bytes: int | None
    columns: dict[
        str, dict[str, int]
    ]  # key of the records → type of its values → rows, the most frequent first
    looked: int  # rows that were read
    bad: int  # of these, rows that cannot be read

    def __str__(self) -> str:
        facts = [self.format or "records", plural(self.num_rows, "record")]
        facts += [plural(self.num_files, "file")] if self.num_files else []
        facts += [size(self.num_bytes)] if self.num_bytes is not None else []
        lines = [f"{self.name}: {', '.join(facts)}"]
        for name, types in self.columns.items():
            missing = 1 - sum(types.values()) / (self.looked - self.bad)
            share = f" | missing {'under 1 %' if missing < 0.01 else f'{missing:.0%}'.replace('%', ' %')}"
            lines.append(
                f"{name}: {' | '.join(types)}{share if missing else ' (always)' if len(types) == 1 else ''}"
            )
        read = f"{plural(self.looked, 'record')} spread over the source"
        bad = f", of which {self.bad} cannot be read" if self.bad else ""
        lines.append(f"(seen in {'all records' if self.looked == self.num_rows else read}{bad})")
        return "\n  ".join(lines)


def describe(source: RowAccess, look: int) -> Description:
    """Read at most `look` records.  Bad ones are reported, and not counted by the source's policy."""
    rows = spread(len(source), look)
    bad = 0
    types: dict[str, Counter[str]] = {}
    for row in rows:
        try:
            record = source[row]
        except BadRecord:
            bad += 1
            continue
        for key, value in record.items():
            types.setdefault(str(key), Counter())[
                "None" if value is None else type(value).__name__
            ] += 1
    return Description(
        name=source.name,
        format=source.format,
        num_rows=len(source),
        num_files=len(source.files),
        num_bytes=source.num_bytes,
        columns={name: dict(found.most_common()) for name, found in types.items()},
        looked=len(rows),
        bad=bad,
    )


def as_rows(source: Source) -> RowAccess:
    """Return the source itself if it is one of this package; a user's own class as a view."""
    return source if isinstance(source, RowAccess) else View(source)
