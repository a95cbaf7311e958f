"""Which rank this process is: from arguments or a mesh, else torch.distributed or jax if they run distributed, else the environment, else
0 of 1."""

import os
import sys
from dataclasses import dataclass
from typing import Any

from penstock.errors import PlanError
from penstock.plan.ranks import data_parallel
from penstock.plan.settings import whole_number
from penstock.types import World


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """This process among those that train together, and where that is known from."""

    world: World  # data-parallel: which rows it gets
    rank: int  # among all processes
    members: tuple[int, ...]  # the ranks that take part
    origin: str  # "arguments", "mesh", "distributed", "jax", "environment", or "alone"


def find_rank(
    rank: int | None, world_size: int | None, *, replicas: int = 1, mesh: Any = None
) -> RankInfo:
    """`replicas` neighbouring ranks share their rows; `mesh` is the data-parallel dimension of a device mesh."""
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank is {rank} and world_size is {world_size}; give both or neither")
    if mesh is not None:
        if rank is not None or replicas != 1:
            raise PlanError("the mesh sets the rank: leave out rank, world_size and replicas")
        return _from_mesh(mesh)
    origin = "arguments"
    if rank is None or world_size is None:
        known = (
            ("distributed", running()),
            ("jax", _jax()),
            ("environment", _environment()),
            ("alone", (0, 1)),
        )
        origin, (rank, world_size) = next(
            (name, found) for name, found in known if found is not None
        )
    rank = whole_number("rank", rank, least=0)
    world_size = whole_number("world_size", world_size, least=1)
    if rank >= world_size:
        raise PlanError(f"rank {rank} of world size {world_size}: expected 0 <= rank < world_size")
    world = data_parallel(rank, world_size, replicas=replicas)
    return RankInfo(world=world, rank=rank, members=tuple(range(world_size)), origin=origin)


def _from_mesh(mesh: Any) -> RankInfo:
    """Read torch's DeviceMesh, without importing torch: one dimension, whose ranks share the data among them."""
    if mesh.ndim != 1:
        raise PlanError(
            f"the mesh has {mesh.ndim} dimensions {list(mesh.mesh_dim_names or [])}; give the data-parallel one, as mesh['dp'], or a "
            f"flattened one"
        )
    world = World(rank=mesh.get_local_rank(), size=mesh.size())
    members = tuple(mesh.mesh.flatten().tolist())
    return RankInfo(world=world, rank=members[world.rank], members=members, origin="mesh")


def running() -> tuple[int, int] | None:
    """Return (rank, size) of torch.distributed if the program has imported and started it; torch is not imported here."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _jax() -> tuple[int, int] | None:
    """Return (process, number of processes) of jax if the program has called jax.distributed.initialize(); jax is not imported here."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return None
    return jax.process_index(), jax.process_count()


def _environment() -> tuple[int, int] | None:
    """Read what torchrun and most launchers set."""
    rank = os.environ.get("RANK")
    size = os.environ.get("WORLD_SIZE")
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        raise PlanError(
            f"environment says RANK={rank}, WORLD_SIZE={size}; set both, or every rank would load the same rows"
        )
    try:
        return int(rank), int(size)
    except ValueError:
        raise PlanError(
            f"environment says RANK={rank!r}, WORLD_SIZE={size!r}; expected whole numbers"
        ) from None
