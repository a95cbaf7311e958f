"""Ids for categories and normalisation for real numbers: learnt once from a source, then a value.

What was learnt is remembered in the cache under the content of the source.  An encoding is a function of a record, so it is used with
`source.map(encoding)`; the records that it makes are what names a store.  Save it as JSON with the model, and read it where the model is.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cache.checked import Json
from penstock.cache.memo import CONTENT, memo
from penstock.errors import SourceError
from penstock.sources import RowAccess
from penstock.sources.column_views import expect_columns
from penstock.sources.parse import record_bytes
from penstock.types import Record

UNKNOWN = 0  # the id of a value that was not in the data that was learnt from
OTHER = 1  # for your own use: values that are put together
MASK = 2  # for your own use: values that a model has to guess
_FIRST_ID = 3
_VERSION = 1  # raise when the same data gives another encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Ids and normalisation by column.  A category that was not learnt gets the id 0."""

    ids: Mapping[str, Mapping[str, int]]  # column → value as JSON → id
    scales: Mapping[str, tuple[float, float]]  # column → mean, standard deviation

    def __call__(self, record: Record) -> Record:
        """Return a record with ids (int64) and normalised numbers (float32) in the columns that were learnt."""
        made = dict(record)
        for name, ids in self.ids.items():
            made[name] = _ids_of(record[name], ids)
        for name, (mean, deviation) in self.scales.items():
            numbers = _numbers(record, name)
            made[name] = ((numbers - mean) / (deviation or 1.0)).astype(np.float32)
        return made

    @property
    def num_ids(self) -> dict[str, int]:
        """How many ids each category has, with the three that stand for no value: the sizes of embeddings."""
        return {name: _FIRST_ID + len(ids) for name, ids in self.ids.items()}

    def decode(self, name: str, encoded: Any) -> list[Any]:
        """Return the values of a column that stand behind ids, None for those without one; or its numbers as they were."""
        if name in self.scales:
            mean, deviation = self.scales[name]
            numbers: list[Any] = (np.asarray(encoded) * (deviation or 1.0) + mean).tolist()
            return numbers
        values = {number: json.loads(text) for text, number in self.ids[name].items()}
        return [values.get(number) for number in np.asarray(encoded).tolist()]

    def to_json(self) -> str:
        """Return this encoding as text."""
        return json.dumps({"version": _VERSION, "ids": self.ids, "scales": self.scales}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Encoding":
        """Return the encoding that `to_json` wrote."""
        found = json.loads(text)
        if not isinstance(found, dict) or set(found) != {"version", "ids", "scales"}:
            raise SourceError("not an encoding: expected what Encoding.to_json returned")
        if found["version"] != _VERSION:
            raise SourceError(
                f"an encoding of version {found['version']!r}, this release reads {_VERSION}; learn it again"
            )
        return cls(
            ids=found["ids"],
            scales={name: (mean, deviation) for name, (mean, deviation) in found["scales"].items()},
        )


def learn_encoding(
    source: RowAccess, *, categories: Sequence[str] = (), reals: Sequence[str] = ()
) -> Encoding:
    """Learn ids of the values in `categories`, and mean and standard deviation of `reals`, from all records of a source.

    Learn from the training part only.  Ids are given in the order of the values, so the order of the rows does not matter.
    """
    categories = _names(categories)
    reals = _names(reals)
    both = sorted({*categories} & {*reals})
    if both or not (categories or reals):
        found = f"{both[0]!r} in both" if both else "neither"
        raise SourceError(
            f"found {found} of categories= and reals=, expected each column in one of them"
        )
    expect_columns(source, [*categories, *reals], "learn_encoding")

    def learn() -> dict[str, Any]:
        return {
            "ids": {name: _learn_ids(source, name) for name in categories},
            "scales": {name: _learn_scale(source, name) for name in reals},
        }

    about: Json = [_VERSION, list(categories), list(reals), source.digest(0, len(source))]
    learnt = memo("sequence-encoding", about, CONTENT, learn, source.cache)
    scales = {name: (mean, deviation) for name, (mean, deviation) in learnt["scales"].items()}
    return Encoding(ids=learnt["ids"], scales=scales)


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _learn_ids(source: RowAccess, name: str) -> dict[str, int]:
    found: dict[str, Any] = {}
    for row, record in enumerate(source):
        for value in _flat(_value(source, row, record, name)):
            found.setdefault(_key(value), value)
    ordered = sorted(found, key=lambda text: _order(found[text]))
    return {text: number for number, text in enumerate(ordered, _FIRST_ID)}


def _order(value: Any) -> tuple[int, Any]:
    """Return what categories are sorted by: no value first, then numbers, then text, then all others as JSON."""
    if value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, _key(value))


def _learn_scale(source: RowAccess, name: str) -> tuple[float, float]:
    """Return mean and standard deviation.  Sums are exact, so that the order of the rows does not matter."""

    def every() -> Iterable[float]:
        for row, record in enumerate(source):
            _value(source, row, record, name)
            numbers = _numbers(record, name).ravel()
            if not np.isfinite(numbers).all():
                raise SourceError(
                    f"{source.locate(row)}: {name!r} holds NaN or infinity; fill or leave out such values with map"
                )
            yield from numbers.tolist()

    count = sum(1 for _ in every())
    if count < 2:
        raise SourceError(
            f"{name!r} has {count} value, expected at least two to learn a deviation from"
        )
    total = math.fsum(every())
    mean = total / count
    squares = math.fsum((number - mean) ** 2 for number in every())
    return mean, math.sqrt(squares / (count - 1))


def _value(source: RowAccess, row: int, record: Record, name: str) -> Any:
    if name not in record:
        raise SourceError(
            f"{source.locate(row)}: the record has no {name!r}, which an encoding is learnt from"
        )
    return record[name]


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, np.ndarray):
        values: list[Any] = value.ravel().tolist()
        return values
    if not isinstance(value, list | tuple):
        return [value]
    return [inner for each in value for inner in _flat(each)]


def _key(value: Any) -> str:
    return record_bytes(value).decode()


def _ids_of(value: Any, ids: Mapping[str, int]) -> Any:
    """Return the ids of a value, or of a list or array of values."""
    if not isinstance(value, list | tuple | np.ndarray):
        return ids.get(_key(value), UNKNOWN)
    found = [ids.get(_key(each), UNKNOWN) for each in _flat(value)]
    return np.array(found, dtype=np.int64).reshape(np.shape(value))


def _numbers(record: Record, name: str) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(record[name], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{name!r} holds a value that is not a number: {error}") from error
