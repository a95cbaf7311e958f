"""Columns that templates declare besides tokens: which ones the batches of a loader have, and their values.

All values are slices of memory-mapped shards, joined as bytes: a slice of a memoryview costs less than one of an array, and joining
bytes a third of `np.concatenate`.
"""

from collections.abc import Iterable, Sequence
from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.plan.settings import PlanSettings
from penstock.types import Column, Ints, Values, rule_of

_NO_VALUES = Values(np.empty(0, np.uint8))  # of a shard without the column

# A shard with samples of a batch: its tokens, which spans of the batch lie in it, and the sample of each span within the shard.
ShardSpans = tuple[Any, Ints, Ints]

_TAKEN = frozenset(
    (
        "input_ids",
        "labels",
        "position_ids",
        "seq_idx",
        "cu_seqlens",
        "max_seqlen",
        "attention_mask",
        "use_cache",
    )
)


def batch_columns(
    names: Sequence[str], stores: Sequence[Any], settings: PlanSettings
) -> tuple[Column, ...]:
    """Return the columns of all stores; refuse, by name, those that one batch cannot hold."""
    columns: dict[str, Column] = {}
    for column in (column for store in stores for column in store.columns):
        if (other := columns.setdefault(column.name, column)) != column:
            raise PlanError(
                f"column {column.name!r} is {other} in one store and {column} in another; prepare them with one template"
            )
    taken = {
        *_TAKEN,
        *(f"{column.name}_offsets" for column in columns.values() if column.per == "list"),
    }
    for column in columns.values():
        taken |= rule_of(column).reserved
    is_cut = settings.method.cuts or settings.on_overlong in ("split", "truncate")
    cuts = f"on_overlong={settings.on_overlong!r}"
    instead = "on_overlong='drop' or 'error'"
    if settings.method.cuts:
        cuts = f"packing={settings.packing!r}"
        instead = "another packing"
    for name, column in columns.items():
        without = [
            each for each, store in zip(names, stores, strict=True) if column not in store.columns
        ]
        rule = rule_of(column)
        problem = ""
        if without and column.per != "token" and not rule.is_optional:
            problem = f"store {without[0]!r} has no column {name!r}, and only a column per token can be filled, not one per {column.per}"
            problem += "; prepare the store with a template that declares it"
        elif without and rule.missing:
            problem = f"store {without[0]!r} {rule.missing}"
        elif name in taken:
            problem = (
                f"column {name!r} has the name of an array of the batch; rename it in the template"
            )
        elif column.per == "list" and is_cut:
            problem = f"{cuts} cuts samples, and column {name!r} is a list, which cannot be cut; choose {instead}"
        if problem:
            raise PlanError(problem)
    return tuple(columns.values())


def token_values(
    column: Column, shards: Sequence[ShardSpans], slices: tuple[Ints, Ints, Ints], padding: int
) -> npt.NDArray[Any]:
    """Return a column's values for slices (shard, start, stop) of tokens: shard 0 is padding, shard n is shards[n - 1].

    Slices of a shard without the column are filled like padding, of which at most `padding` tokens stand in one slice.
    """
    filled = view(np.full(padding, column.fill, column.dtype))
    found = [tokens.columns.get(column.name) for tokens, *_ in shards]
    views = [filled, *(filled if each is None else view(each.values) for each in found)]
    numbers, starts, stops = slices
    shift = np.where(np.array([each is filled for each in views])[numbers], starts, 0)
    return join(views, numbers, starts - shift, stops - shift, column.dtype)


def span_values(
    column: Column, shards: Sequence[ShardSpans], num_spans: int
) -> tuple[npt.NDArray[Any], Ints]:
    """Return a column's values for each span, flat, and where those of each span begin: (num_spans + 1,)."""
    numbers, starts, stops = np.zeros((3, num_spans), np.int64)
    views = []
    for number, (tokens, spans, samples) in enumerate(shards):
        column_values = tokens.columns.get(column.name, _NO_VALUES)
        views.append(view(column_values.values))
        if column_values is not _NO_VALUES:
            numbers[spans] = number
            starts[spans] = (
                samples if column_values.offsets is None else column_values.offsets[samples]
            )
            stops[spans] = (
                samples + 1 if column_values.offsets is None else column_values.offsets[samples + 1]
            )
    return join(views, numbers, starts, stops, column.dtype), np.concatenate(
        ([0], np.cumsum(stops - starts))
    )


def join(
    views: list[memoryview], chosen: Ints, starts: Ints, stops: Ints, dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Return views[choice][start:stop] for each of them, end to end, in new memory."""
    return np.frombuffer(bytearray().join(cut(views, chosen, starts, stops)), dtype)


def cut(views: list[memoryview], chosen: Ints, starts: Ints, stops: Ints) -> Iterable[Any]:
    """Return views[choice][start:stop] for each of them."""
    slices = map(slice, starts.tolist(), stops.tolist())
    return list(map(getitem, map(views.__getitem__, chosen.tolist()), slices))


def view(array: npt.NDArray[Any]) -> memoryview:
    return memoryview(array)  # type: ignore[arg-type]  # numpy's types do not say that arrays are buffers
