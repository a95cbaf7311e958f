"""Which rank is this process?  From arguments or a mesh, else torch.distributed when it runs, else the environment, else 0 of 1."""

import os
import sys
from dataclasses import dataclass
from typing import Any

from penstock.errors import PlanError
from penstock.plan.settings import whole_number
from penstock.plan.shard import data_parallel
from penstock.types import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process among those that train together, and who said so."""

    world: World  # data-parallel: which rows are ours
    rank: int  # among all processes
    members: tuple[int, ...]  # the ranks that take part
    told: str  # "arguments", "mesh", "distributed", "environment", or "alone"


def find_place(rank: int | None, world_size: int | None, *, replicas: int = 1, mesh: Any = None) -> Place:
    """`replicas` neighbouring ranks share their rows; `mesh` is the data-parallel dimension of a device mesh."""
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank is {rank} and world_size is {world_size}; give both or neither")
    if mesh is not None:
        if rank is not None or replicas != 1:
            raise PlanError("a mesh says which rank this is: leave out rank, world_size and replicas")
        return _from_mesh(mesh)
    told = "arguments"
    if rank is None or world_size is None:
        told, (rank, world_size) = next(
            (name, found)
            for name, found in (("distributed", running()), ("environment", _environment()), ("alone", (0, 1)))
            if found is not None
        )
    rank, world_size = whole_number("rank", rank, least=0), whole_number("world_size", world_size, least=1)
    if not 0 <= rank < world_size:
        raise PlanError(f"rank {rank} of world size {world_size}: expected 0 <= rank < world_size")
    world = data_parallel(rank, world_size, replicas=replicas)
    return Place(world=world, rank=rank, members=tuple(range(world_size)), told=told)


def _from_mesh(mesh: Any) -> Place:
    """Of torch's DeviceMesh, without importing it: one dimension, whose ranks share the data among them."""
    if mesh.ndim != 1:
        names = list(mesh.mesh_dim_names or [])
        raise PlanError(
            f"the mesh has {mesh.ndim} dimensions {names}; give the data-parallel one, as mesh['dp'], or a flattened one"
        )
    world = World(rank=mesh.get_local_rank(), size=mesh.size())
    members = tuple(mesh.mesh.flatten().tolist())
    return Place(world=world, rank=members[world.rank], members=members, told="mesh")


def running() -> tuple[int, int] | None:
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
