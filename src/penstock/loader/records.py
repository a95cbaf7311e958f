"""What a Loader reads: stores of tokens, or plain records as stores of samples of length one, under the same plan."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.loader.batch import Whole
from penstock.loader.collate import Made
from penstock.loader.kind import BatchSettings
from penstock.loader.run import Run
from penstock.plan.rows import Rows
from penstock.plan.settings import PlanSettings
from penstock.sources.base import in_groups
from penstock.store.records import RecordStore
from penstock.types import BadRow, Column, Ints, Record

_log = logging.getLogger("penstock")

_BYTES_AT_ONCE = 16 << 20  # of records that are read together


class RecordMaker:
    """Rows → records → a batch.  Rows that pad a last step hold no record, so that batch is shorter.

    A rank without any record in a step never calls the user's function: there is nothing to make a batch of.  It gets a batch without
    entries; without such a function, it gets the entries that other ranks have, with no rows.
    """

    def __init__(self, stores: Sequence[RecordStore], users: Callable[..., Any] | None) -> None:
        self._sources = [store.source for store in stores]
        self._is_open = [isinstance(store, RecordStore) for store in stores]  # else removed
        self._users = users
        self._numbers: dict[int, dict[str, str]] = {}  # by number of the source

    def many(self, steps: Sequence[Rows]) -> Iterator[list[Made]]:
        """Yield the batches of several steps: records are read together, and each batch is made when its turn comes."""
        spans = Rows.join(list(steps)).spans
        samples = np.ascontiguousarray(spans["sample"])
        records = in_groups(
            np.ascontiguousarray(spans["source"]),
            lambda source, places: self._read(source, samples[places]),
        )
        records.reverse()
        for rows in steps:
            batch = self._collate([records.pop() for _ in range(len(rows.spans))])
            yield [(batch, 0)]  # trained tokens are not known

    def _read(self, source: int, samples: Ints) -> list[Record]:
        """Read records; without a function of the user, lists of numbers in columns of files become arrays."""
        records: list[Record] = self._sources[source].records_at(samples)
        if self._users is not None:
            return records
        if source not in self._numbers:  # not of all: one that a change removed is not open
            self._numbers[source] = self._sources[source].number_columns()
        columns = self._numbers[source]
        return [_with_arrays(record, columns) for record in records] if columns else records

    def _collate(self, records: list[Record]) -> dict[str, Any]:
        if self._users is None:
            return stack(records) if records else self._without_rows()
        if not records:
            return {}
        made = self._users(records)
        return made if isinstance(made, dict) else Whole(made)

    def _without_rows(self) -> dict[str, Any]:
        """Return a batch of no records, with the keys and types of the others."""
        index = next(
            index
            for index, source in enumerate(self._sources)
            if self._is_open[index] and len(source)
        )
        first = self._sources[index]
        row = next(
            row for row, record in enumerate(first.records(0, len(first))) if _is_good(record)
        )
        made = stack(self._read(index, np.array([row], np.int64)))
        return {key: value[:0] for key, value in made.items()}


def idle_ranks(
    stores: Sequence[RecordStore], settings: PlanSettings, *, per_step: int, world_size: int
) -> int:
    """Return how many ranks have no record in the last step of an epoch, where that is known without a plan: without weights."""
    if settings.last_step != "pad" or settings.weights is not None:
        return 0
    if any(store.source.is_stream and not store.source.has_ended for store in stores):
        return 0
    records = sum(int(store.shard_sizes.sum()) - store.dropped.total() for store in stores)
    left = records % per_step
    return max(world_size - left, 0) if left else 0


def _is_good(record: Any) -> bool:
    return not isinstance(record, BadRow)


def _with_arrays(record: Record, columns: dict[str, str]) -> Record:
    """Return a record with its lists of numbers as arrays.  A list that holds null, or lists of different lengths, stays a list."""
    changed = dict(record)
    for name, dtype in columns.items():
        value = record.get(name)
        if isinstance(value, list):
            with suppress(TypeError, ValueError):
                changed[name] = np.array(value, dtype)
    return changed


def stack(records: list[Record]) -> dict[str, Any]:
    """Stack arrays of one shape, and numbers next to them, by key; records without an array, or with other values, stay a list."""
    first = records[0] if records else {}
    has_array = any(isinstance(value, np.ndarray) for value in first.values())
    if not has_array or not all(map(_is_numeric, first.values())):
        return {"records": records}
    for key in first:
        shapes = {np.shape(record.get(key, ())) for record in records}
        if len(shapes) > 1 or any(record.keys() != first.keys() for record in records):
            raise PlanError(
                f"records of one batch differ in keys, or in the shape of {key!r}: {shapes}; pass collate="
            )
    return {key: np.stack([np.asarray(record[key]) for record in records]) for key in first}


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic | bool | int | float)


class Records:
    """The kind of samples that are plain records; the user's collate makes their batches."""

    name = "records"
    row_sequences = 1
    least_rows = 1
    has_tokens = False
    usual_settings: Mapping[str, Any] = MappingProxyType({"packing": "none"})

    def matches(self, columns: Sequence[Column]) -> bool:
        """Records have no columns of tokens."""
        return False

    def can_be_cut(self, columns: Sequence[Column]) -> bool:
        """A record has no length."""
        return True

    def check(self, settings: BatchSettings) -> None:
        """Settings of tokens have no effect."""

    def check_tail(self, run: Run, *, world_size: int) -> None:
        """Warn where the last step of an epoch has no record for some ranks; where the mixture changes, only its steps would say so."""
        if run.plan.has_changes:
            return
        idle = idle_ranks(
            run.stores, run.plan.settings, per_step=run.rows_per_step, world_size=world_size
        )
        if idle:
            _log.warning(
                "the last step of an epoch has records for %d of %d ranks: the others get an empty batch, so that all ranks take the "
                "same number of steps; test `if batch:` in your loop, or choose last_step='drop' or last_step='repeat'",
                world_size - idle,
                world_size,
            )

    def steps_at_once(self, stores: Sequence[Any], settings: BatchSettings) -> int:
        """Return how many steps' records are read together; without prefetch, one."""
        size = settings.batch_size * max(store.bytes_per_record for store in stores)
        return _BYTES_AT_ONCE // size if settings.prefetch else 1

    def maker(self, stores: Sequence[Any], settings: BatchSettings) -> RecordMaker:
        return RecordMaker(stores, settings.collate)


RECORDS = Records()
