"""Which rank this process is, and whether that is still true when the first batch is asked for.

The rank comes from arguments or a mesh, else from torch.distributed or jax if they run distributed, else from the environment, else it is
0 of 1.  A Loader may be made before the processes know each other: before the group is initialised, or in the parent of the processes
that train.  Then it believes that it is alone, and every rank would train the same rows.  So what was found when the Loader was made is
compared with what can be found when it is used, and a difference is refused.  What an argument says is never doubted.
"""

import logging
import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from penstock.errors import PlanError
from penstock.plan.ranks import data_parallel
from penstock.settings import whole_number
from penstock.types import World

_log = logging.getLogger("penstock")

_FOUND_IN = {
    "distributed": "torch.distributed",
    "jax": "jax.distributed",
    "environment": "the environment (RANK, WORLD_SIZE)",
    "alone": "no process group and no RANK in the environment",
}

# Launchers that start several processes but do not say whether these train together: (number of this one, how many, launcher).
_TASKS = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"),
    ("PMI_RANK", "PMI_SIZE", "mpiexec"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """This process among those that train together, and where that is known from."""

    world: World  # data-parallel: which rows it gets
    rank: int  # among all processes
    members: tuple[int, ...]  # the ranks that take part
    origin: str  # "arguments", "mesh", "distributed", "jax", "environment", or "alone"
    model_parallel_size: int = 1  # neighbouring ranks that share their rows

    @property
    def is_explicit(self) -> bool:
        """Whether an argument said which rows this process gets."""
        return self.origin in ("arguments", "mesh")


def find_rank(
    rank: int | None, world_size: int | None, *, model_parallel_size: int = 1, mesh: Any = None
) -> RankInfo:
    """`model_parallel_size` neighbouring ranks share their rows; `mesh` is the data-parallel dimension of a device mesh."""
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank is {rank} and world_size is {world_size}; give both or neither")
    if mesh is not None:
        if rank is not None or model_parallel_size != 1:
            raise PlanError(
                "the mesh sets the rank: leave out rank, world_size and model_parallel_size"
            )
        return _from_mesh(mesh)
    origin = "arguments"
    if rank is None or world_size is None:
        origin, rank, world_size = _discover()
    rank = whole_number("rank", rank, least=0)
    world_size = whole_number("world_size", world_size, least=1)
    if rank >= world_size:
        raise PlanError(f"rank {rank} of world size {world_size}: expected 0 <= rank < world_size")
    return RankInfo(
        world=data_parallel(rank, world_size, model_parallel_size=model_parallel_size),
        rank=rank,
        members=tuple(range(world_size)),
        origin=origin,
        model_parallel_size=model_parallel_size,
    )


def check_rank(info: RankInfo) -> None:
    """Refuse a rank that was found before the processes that train knew each other; call it where batches begin.

    Also a Loader that was sent to another rank's process is refused, and one made under a process group that has been replaced.
    """
    if info.is_explicit:
        return
    try:
        origin, rank, size = _discover()
    except PlanError:  # an environment that is incomplete says nothing about the rank
        return
    if origin == "alone":
        if info.origin == "alone":
            _warn_of_tasks()
        return
    is_same = rank == info.rank and size == len(info.members)
    if not is_same:
        raise _rank_changed(info, origin, rank, size)


def _rank_changed(info: RankInfo, origin: str, rank: int, size: int) -> PlanError:
    """Return the error for a Loader that was made as another rank than this process has now."""
    made_size = len(info.members)
    consequence = "rows would be trained twice or not at all"
    if made_size == 1:
        consequence = "every rank would train the same rows"
    return PlanError(
        f"the Loader was made as rank {info.rank} of {made_size} (found: {_FOUND_IN[info.origin]}), and this process is now rank "
        f"{rank} of {size} ({_FOUND_IN[origin]}), so {consequence}; make the Loader after the process group is initialised, in the "
        f"process that trains, or pass rank={rank}, world_size={size}; to give each process all rows, pass rank=0, world_size=1",
        code="rank_changed",
    )


def _warn_of_tasks() -> None:
    """Several tasks of one launcher may train together or be runs of their own: nothing here can tell, so say what is assumed."""
    for number_name, count_name, launcher in _TASKS:
        number = os.environ.get(number_name)
        count = os.environ.get(count_name)
        if number is not None and count not in (None, "1"):
            warn_once(
                f"this is task {number} of {count} that {launcher} started, and the Loader has rank 0 of 1, so each task gets all rows; "
                f"if the tasks train together, initialise torch.distributed before you make the Loader, or pass rank=, world_size=; "
                f"if each is a run of its own, pass rank=0, world_size=1"
            )
            return


@cache
def warn_once(message: str) -> None:
    """Log a warning, once in this process."""
    _log.warning(message)


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


def _discover() -> tuple[str, int, int]:
    """Return where the rank of this process is known from, the rank, and the number of ranks.

    The environment is read last: a running group may have been given another rank, and some launchers set only a part of it.
    """
    group = running()
    if group is not None:
        return "distributed", *group
    processes = _jax()
    if processes is not None:
        return "jax", *processes
    ranks = _environment()
    if ranks is not None:
        return "environment", *ranks
    return "alone", 0, 1


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
    if rank is None and _node_rank() == "0":
        # Lightning's own launcher sets no RANK.  It numbers the ranks node by node, so on the first node both numbers are one.
        rank = os.environ.get("LOCAL_RANK")
    if rank is None or size is None:
        raise PlanError(
            f"environment says RANK={rank}, WORLD_SIZE={size}; set both, or every rank would load the same rows; or make the Loader "
            f"after the process group is initialised: with Lightning, give LoaderModule a function that makes it, as "
            f"LoaderModule(partial(ps.load, 'recipe.yaml'))",
            code="half_a_world",
        )
    try:
        return int(rank), int(size)
    except ValueError:
        raise PlanError(
            f"environment says RANK={rank!r}, WORLD_SIZE={size!r}; expected whole numbers"
        ) from None


def _node_rank() -> str | None:
    """Return the number of this machine as Lightning reads it; None if the environment does not have it."""
    return os.environ.get("NODE_RANK", os.environ.get("GROUP_RANK"))
