"""What do a `Dataset` and an `IterableDataset` in memory hold?  The user imported `datasets`; nothing here does."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import BadRecord, SourceError
from penstock.fingerprint import Digest
from penstock.sources.bad import BadRows
from penstock.sources.canonical import record_bytes
from penstock.sources.nulls import Pruner, check_nulls
from penstock.sources.values import ToRecords
from penstock.sources.view import RowAccess, at_most
from penstock.types import BadRow, Ints, Record, RemovedNulls, Where

_ROWS = 1000  # asked for at once
_DICTS = ("DatasetDict", "IterableDatasetDict")


def is_hf_dataset(place: Any) -> bool:
    """A Dataset, an IterableDataset, or a dict of either."""
    return bool(_kind(place))


def is_hf_iterable(place: Any) -> bool:
    return _kind(place) == "IterableDataset"


def pick_split(place: Any, split: str | None) -> Any:
    """One data set out of a DatasetDict; what is no dict is itself."""
    if _kind(place) not in _DICTS:
        if split is not None and str(place.split) != split:
            raise SourceError(f"split {split!r} asked for, but a {_kind(place)} is one split already; leave split out")
        return place
    if split is None and len(place) == 1:
        return next(iter(place.values()))
    if split not in place:
        asked = "none was chosen" if split is None else f"{split!r} is none of them"
        raise SourceError(f"a {_kind(place)} with the splits {', '.join(place)}, and {asked}; pass split=")
    return place[split]


def open_hf(
    place: Any, *, name: str | None = None, bad: BadRows | None = None, nulls: str = "deep"
) -> "HfDatasetSource":
    """A map-style Dataset as a source."""
    if _kind(place) != "Dataset":
        raise SourceError(f"a {type(place).__name__} has no rows by number, expected a Dataset")
    return HfDatasetSource(place, name=name or _name(place), bad=bad, nulls=nulls)


def hf_iterable(place: Any, *, nulls: str = "deep") -> Callable[[], Iterator[Record]]:
    """A function that iterates an IterableDataset from its start, as plain Python values."""
    return partial(_iterate, place, check_nulls(nulls))


class HfDatasetSource(RowAccess):
    """Rows as a Dataset itself finds them: its selections and shuffles, its renamed and formatted columns.

    Values are as in its folder (see `HfFolderSource`) whatever the format's type, but a function given to
    `set_transform` is applied.  Pickles as the Dataset does: its files by name, tables in memory whole.
    """

    shape = "datasets"

    OPTIONS = ("nulls",)

    def __init__(self, dataset: Any, *, name: str, bad: BadRows | None = None, nulls: str = "deep") -> None:
        self.name = name
        self.nulls = check_nulls(nulls)
        self.bad = bad or BadRows()
        self._by_hand = dataset.format["type"] == "custom"
        self._dataset = dataset
        if not self._by_hand:
            self._dataset = dataset.with_format("arrow", columns=dataset.format["columns"])
        # one row is enough to know the schema as this format shows it, and there may be none
        self._to_records: ToRecords | None = None

    def __len__(self) -> int:
        return len(self._dataset)

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        self._range(start, stop)
        for first in range(start, stop, _ROWS):
            for row, record in enumerate(self._read(first, min(first + _ROWS, stop)), first):
                if type(record) is BadRow:
                    placed = self._placed(row, record)
                    self.bad.met(row, placed, self.where(row), b"")
                    yield placed
                else:
                    yield record

    def where(self, row: int) -> Where:
        return Where(file=self.name, line=self._row(row) + 1)

    def digest(self, start: int, stop: int) -> str:
        """What the same rows give in files."""
        self._range(start, stop)
        content = Digest()
        for first in range(start, stop, _ROWS):
            for record in self._read(first, min(first + _ROWS, stop)):
                if isinstance(record, BadRow):
                    content.update(f"bad row: {record.reason}".encode())
                else:
                    content.update(record_bytes(record))
        return content.hexdigest()

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        table = self._dataset.data
        rows_per_cut = max(1, table.num_rows * num_bytes // max(table.nbytes, 1))
        return at_most(np.array([*range(0, len(self), rows_per_cut), len(self)], dtype=np.int64), num_rows)

    @property
    def files(self) -> list[str]:
        return [file["filename"] for file in self._dataset.cache_files]

    def _ledgers(self) -> list[BadRows]:
        return [self.bad]

    def _record(self, row: int) -> Record:
        record = next(iter(self._read(row, row + 1)))
        if isinstance(record, BadRow):
            raise BadRecord(self._placed(row, record).message)
        return record

    def _read(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        found = self._dataset[start:stop]
        if self._by_hand:
            yield from (dict(zip(found, cells, strict=True)) for cells in zip(*found.values(), strict=True))
            return
        to_records = self._converter(found)
        for batch in found.to_batches():
            yield from to_records(batch)

    def removed_nulls(self, rows: Iterable[int]) -> RemovedNulls:
        tables = (self._dataset[row : row + 1] for row in map(self._row, rows)) if not self._by_hand else ()
        batches = ((self._converter(table), batch) for table in tables for batch in table.to_batches())
        return sum((to_records.removed_nulls(batch) for to_records, batch in batches), start=RemovedNulls())

    def _converter(self, table: Any) -> ToRecords:
        if self._to_records is None:
            self._to_records = ToRecords(table.schema, parse_json=True, nulls=self.nulls)
        return self._to_records

    def _placed(self, row: int, found: BadRow) -> BadRow:
        return BadRow(
            reason=found.reason, message=f"{self.name}:{row + 1}: {found.message} (record {row}, counted from 0)"
        )

    def __repr__(self) -> str:
        return f"HfDatasetSource({self.name!r}, {len(self):_} rows)"


def _iterate(dataset: Any, nulls: str) -> Iterator[Record]:
    plain = dataset.with_format(None)
    prune = Pruner(dataset.features.arrow_schema if dataset.features is not None else (), nulls)
    if dataset.features is not None:
        raw = {name: _undecoded(feature) for name, feature in dataset.features.items()}
        if raw != dict(dataset.features):
            plain = plain.cast(type(dataset.features)(raw))
    for record in plain:
        values = dict(record)
        prune(values)
        yield values


def _undecoded(feature: Any) -> Any:
    """Images and sounds stay the bytes they are stored as; JSON is what it says."""
    if isinstance(feature, dict):
        return {name: _undecoded(inner) for name, inner in feature.items()}
    if hasattr(feature, "feature"):  # a list
        return replace(feature, feature=_undecoded(feature.feature))
    if getattr(feature, "decode", False) is True and type(feature).__name__ != "Json":
        return replace(feature, decode=False)
    return feature


def _kind(place: Any) -> str:
    """The class of `datasets` that this is or descends from, by name: importing it takes seconds."""
    for base in type(place).__mro__:
        if base.__module__.partition(".")[0] == "datasets" and base.__name__ in ("Dataset", "IterableDataset", *_DICTS):
            return base.__name__
    return ""


def _name(dataset: Any) -> str:
    parts = (dataset.info.dataset_name, dataset.split)
    return "-".join(str(part) for part in parts if part) or "dataset"
