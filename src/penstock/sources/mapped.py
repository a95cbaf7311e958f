"""What does a function make of each record?  Asked again at every read; nothing is kept, so the function must not waver."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.errors import BadRecord
from penstock.fingerprint import Digest
from penstock.sources.canonical import record_bytes
from penstock.sources.chosen import failed, name_of
from penstock.sources.view import View, records_at
from penstock.types import BadRow, Ints, Record, Where

if TYPE_CHECKING:
    from penstock.types import Source


class Mapped(View):
    """Each record as a function gives it back; a bad row stays what it is."""

    def __init__(self, source: "Source", fn: Callable[[Record], Record]) -> None:
        super().__init__(source)
        self._fn = fn

    def __len__(self) -> int:
        return len(self._source)

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        for row, record in enumerate(self._source.records(start, stop), start):
            yield record if isinstance(record, BadRow) else self._apply(row, record)

    def where(self, row: int) -> Where:
        return self._source.where(row)

    def digest(self, start: int, stop: int) -> str:
        """Over the new records: neither the function nor the old record has a name that can be trusted."""
        content = Digest()
        for row, record in enumerate(self.records(start, stop), start):
            if isinstance(record, BadRow):
                content.update(f"bad row: {record.reason}".encode())
            else:
                content.update(self._bytes(row, record))
        return content.hexdigest()

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        return self._source.cuts(num_bytes=num_bytes, num_rows=num_rows)

    def records_at(self, rows: Ints) -> list[Record]:
        read = records_at(self._source, rows)
        return [self._apply(row, record) for row, record in zip(rows.tolist(), read, strict=True)]

    def _record(self, row: int) -> Record:
        return self._apply(row, self._source[row])

    def _apply(self, row: int, record: Record) -> Record:
        try:
            made = self._fn(record)
        except Exception as error:
            raise failed(self._source, row, "map", self._fn, error) from error
        if not isinstance(made, dict):
            fault = TypeError(f"gave a {type(made).__name__}, expected a dict; to leave records out, use filter")
            raise failed(self._source, row, "map", self._fn, fault)
        return made

    def _bytes(self, row: int, record: Record) -> bytes:
        try:
            return record_bytes(record)
        except (TypeError, ValueError, RecursionError) as error:
            where = self.where(row)
            raise BadRecord(
                f"{where.file}:{where.line}: what {name_of(self._fn)} made of the record has no name: "
                f"{error}; give back plain values, numpy arrays, bytes or dates (record {row}, counted from 0)"
            ) from error

    def __repr__(self) -> str:
        return f"{self._source!r}.map({name_of(self._fn)})"
