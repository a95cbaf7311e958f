"""Which rank is this process?  From arguments, else torch.distributed when it is running, else the environment, else 0 of 1."""

import os
import sys

from penstock.errors import PlanError
from penstock.plan.settings import whole_number
from penstock.plan.shard import data_parallel
from penstock.types import World


def find_world(rank: int | None, world_size: int | None, *, replicas: int = 1) -> World:
    """The data-parallel world of this process; `replicas` neighbouring ranks share their rows."""
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank is {rank} and world_size is {world_size}; give both or neither")
    if rank is None or world_size is None:
        rank, world_size = _running() or _environment() or (0, 1)
    rank, world_size = whole_number("rank", rank, least=0), whole_number("world_size", world_size, least=1)
    if not 0 <= rank < world_size:
        raise PlanError(f"rank {rank} of world size {world_size}: expected 0 <= rank < world_size")
    return data_parallel(rank, world_size, replicas=replicas)


def _running() -> tuple[int, int] | None:
    """torch.distributed, if the program has imported and started it; torch is never imported for the question."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _environment() -> tuple[int, int] | None:
    """What torchrun and most launchers set."""
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        raise PlanError(
            f"environment says RANK={rank}, WORLD_SIZE={size}; set both, or every rank would load the same rows"
        )
    try:
        return int(rank), int(size)
    except ValueError:
        raise PlanError(f"environment says RANK={rank!r}, WORLD_SIZE={size!r}; expected whole numbers") from None
