"""Which rows of a step belong to this rank?  A step is a slice of the global order, a rank a slice of the step."""

import numpy as np

from penstock.errors import PlanError
from penstock.plan.block import Rows
from penstock.types import World


def rank_rows(step: Rows, world: World) -> Rows:
    """Rows of one step that belong to this rank.  Law: the ranks' rows, interleaved, are the step."""
    if world.size == 1:
        return step
    if step.num_rows % world.size:
        raise PlanError(
            f"a step of {step.num_rows} rows does not divide among {world.size} ranks; rows per step must be a multiple"
        )
    mine = np.arange(world.rank, step.num_rows, world.size)
    sizes = np.diff(step.starts)[mine]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    inside = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    return Rows(step.spans[np.repeat(step.starts[mine], sizes) + inside], starts)


def data_parallel(rank: int, world_size: int, *, replicas: int = 1) -> World:
    """The data-parallel world when `replicas` neighbouring ranks (tensor, context or pipeline parallel) must see the same rows."""
    if replicas < 1 or world_size % replicas:
        raise PlanError(f"{world_size} ranks do not divide into groups of {replicas} that share their rows")
    return World(rank=rank // replicas, size=world_size // replicas)
