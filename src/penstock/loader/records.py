"""What a Loader reads: stores of tokens, or plain records as stores of samples of length one, under the same plan."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PlanError
from penstock.loader.batch import Whole
from penstock.loader.collate import Collator, Made
from penstock.plan.rows import Rows
from penstock.plan.settings import PlanSettings
from penstock.sources.base import in_groups
from penstock.sources.concat import as_rows
from penstock.store.records import RecordStore, read_stores
from penstock.types import BadRow, Ints, Record

_BYTES_AT_ONCE = 16 << 20  # of records that are read together


class Mixture(NamedTuple):
    """The stores of a Loader, with the collator that makes batches of them."""

    names: list[str]
    stores: list[Any]  # of Store or RecordStore
    weights: list[float] | None
    collator: "type[Collator] | type[RecordCollator]"


def read_mixture(given: Any) -> Mixture:
    """Read the first argument of a Loader: one store, a list of them, or a dict with or without weights; or sources of records."""
    found = read_stores(given, as_rows)
    return Mixture(
        found.names, found.stores, found.weights, RecordCollator if found.is_records else Collator
    )


class RecordCollator:
    """Rows → records → a batch.  Rows that pad a last step hold no record, so that batch is shorter.

    A rank without any record in a step never calls the user's function: there is nothing to make a batch of.  It gets a batch without
    entries; without such a function, it gets the entries that other ranks have, with no rows.
    """

    has_tokens = False

    def __init__(
        self,
        stores: Sequence[RecordStore],
        settings: Any,
        form: Any,
        users: Callable[..., Any] | None = None,
        columns: Any = (),
    ) -> None:
        self._sources = [store.source for store in stores]
        self._users = users
        self._numbers: list[dict[str, str]] | None = None  # of each source

    @staticmethod
    def steps_at_once(
        stores: Sequence[RecordStore], batch_size: int, max_length: int, users: Any, prefetch: int
    ) -> int:
        """Return how many steps' records are read together; without prefetch, one."""
        size = batch_size * max(store.bytes_per_record for store in stores)
        return _BYTES_AT_ONCE // size if prefetch else 1

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
        if self._numbers is None:
            self._numbers = [each.number_columns() for each in self._sources]
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
        first = next(source for source in self._sources if len(source))
        index = self._sources.index(first)
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
    """Stack arrays of one shape, and numbers beside them, by key; records without an array, or with other values, stay a list."""
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
