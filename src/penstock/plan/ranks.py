"""Which rank gets which row of a step.  A step is a slice of the global order, a rank takes a slice of the step.

This module alone knows how rows are divided among ranks; `rank_of` and `row_of` are inverse to each other.
"""

from typing import TypeVar

import numpy as np

from penstock.errors import PlanError
from penstock.plan.block import Rows
from penstock.types import Ints, World

Number = TypeVar("Number", int, Ints)


def rank_of(row: Number, world_size: int) -> tuple[Number, Number]:
    """Return (rank, row in that rank's batch) of a row of a step."""
    return row % world_size, row // world_size


def row_of(rank: int, row: Number, world_size: int) -> Number:
    """Return the row of a step that is row `row` of this rank's batch."""
    return row * world_size + rank


def rank_rows(step: Rows, world: World) -> Rows:
    """Return the rows of a step that belong to this rank.  All ranks' rows together are the step."""
    if world.size == 1:
        return step
    if step.num_rows % world.size:
        raise PlanError(f"a step of {step.num_rows} rows does not divide among {world.size} ranks; choose a multiple")
    mine = row_of(world.rank, np.arange(step.num_rows // world.size), world.size)
    sizes = np.diff(step.starts)[mine]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    inside = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    return Rows(step.spans[np.repeat(step.starts[mine], sizes) + inside], starts)


def data_parallel(rank: int, world_size: int, *, replicas: int = 1) -> World:
    """Return the data-parallel world when `replicas` neighbouring ranks (tensor, context or pipeline parallel) share their rows."""
    if replicas < 1 or world_size % replicas:
        raise PlanError(f"{world_size} ranks do not divide into groups of {replicas} that share their rows")
    return World(rank=rank // replicas, size=world_size // replicas)
