"""Samples that an objective has changed, in the form in which the collator reads those of a shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loader.columns import ShardSpans
from penstock.plan.rows import Rows
from penstock.types import Ints, Objective, Values


@dataclass(frozen=True, slots=True)
class _Counts:
    tokens: int
    trained: int


@dataclass(frozen=True, slots=True)
class ChangedTokens:
    """Changed samples, flat, as `ShardTokens` has those of a shard."""

    input_ids: npt.NDArray[Any]
    mask_bits: npt.NDArray[np.uint8]
    offsets: Ints
    counts: _Counts
    columns: dict[str, Values]


def changed_shards(objective: Objective, rows: Rows) -> Iterator[ShardSpans]:
    """Yield the changed samples of each source in these rows.  A sample of several spans is made once."""
    spans = rows.spans
    passes = np.zeros(len(spans), np.int64) if rows.passes is None else rows.passes
    for source in np.unique(spans["source"]).tolist():
        places = np.flatnonzero(spans["source"] == source)
        wanted = np.stack((spans["sample"][places], passes[places]))
        distinct, which = np.unique(wanted, axis=1, return_inverse=True)
        samples = objective.change(source, distinct[0].copy(), distinct[1].copy())
        tokens = ChangedTokens(
            input_ids=samples.input_ids,
            mask_bits=np.packbits(samples.loss_mask, bitorder="little"),
            offsets=samples.offsets,
            counts=_Counts(len(samples.input_ids), int(np.count_nonzero(samples.loss_mask))),
            columns=samples.columns,
        )
        yield tokens, places, which.reshape(-1)
