"""Which rank this process is, and whether that is still true when the first batch is asked for.

The rank comes from arguments or a mesh, else from torch.distributed or jax if they run distributed, else from the environment, else it is
0 of 1.  A Loader may be made before the processes know each other: before the group is initialised, or in the parent of the processes
that train.  Then it believes that it is alone, and every rank would train the same rows.  So what was found when the Loader was made is
compared with what can be found when it is used, and a difference is refused.  What an argument says is never doubted.
"""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Protocol

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

# Names of the dimensions of a device mesh, as torch's documents and the trainers use them.
_DIFFERENT_ROWS = frozenset(
    {
        *("dp", "ddp", "data", "data_parallel", "batch"),
        *("dp_replicate", "replicate", "dp_shard", "shard", "fsdp", "hsdp"),
    }
)
_SAME_ROWS = frozenset(
    {
        *("tp", "tensor", "tensor_parallel", "mp", "model", "model_parallel"),
        *("cp", "context", "context_parallel", "ring", "sp", "sequence", "sequence_parallel"),
        *("ulysses", "pp", "pipe", "pipeline", "pipeline_parallel"),
    }
)
# Names of joined dimensions that hold ranks of both kinds: torchtitan's, and those that end with one of _SAME_ROWS, as dp_shard_cp.
_BOTH_ROWS = frozenset({"world", "loss", "loss_mesh", "efsdp"})


class DeviceMesh(Protocol):
    """What is read of torch's DeviceMesh; torch is not imported here."""

    ndim: int
    mesh_dim_names: Sequence[str] | None
    mesh: Any  # a tensor of ranks

    def size(self, mesh_dim: int | None = None) -> int:
        """Return the ranks of the mesh, or of one dimension."""

    def get_rank(self) -> int:
        """Return the rank of this process among all processes."""

    def get_coordinate(self) -> Sequence[int] | None:
        """Return where this process is in the mesh, one number per dimension; None if it is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """This process among those that train together, and where that is known from."""

    world: World  # data-parallel: which rows it gets
    rank: int  # among all processes
    members: tuple[int, ...]  # the ranks that take part
    # "arguments", "mesh", "trainer", "distributed", "jax", "environment", or "alone"
    origin: str
    model_parallel_size: int = 1  # neighbouring ranks that share their rows

    @property
    def is_explicit(self) -> bool:
        """Whether an argument, or the trainer, said which rows this process gets."""
        return self.origin in ("arguments", "mesh", "trainer")


def find_rank(
    rank: int | None,
    world_size: int | None,
    *,
    model_parallel_size: int = 1,
    mesh: DeviceMesh | None = None,
) -> RankInfo:
    """`model_parallel_size` neighbouring ranks share their rows; `mesh` is a device mesh, or its data-parallel dimensions."""
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


def _from_mesh(mesh: DeviceMesh) -> RankInfo:
    world = world_of_mesh(mesh)
    members = tuple(mesh.mesh.flatten().tolist())
    group = running()
    whole_size = _whole_mesh(mesh).size()
    if group is not None and whole_size < group[1]:
        warn_once(
            f"mesh= has {whole_size} of the {group[1]} ranks that torch.distributed runs: its {world.size} data-parallel ranks get all "
            f"rows among them, so if the other ranks train, too, they repeat these rows; then give a mesh of all ranks"
        )
    return RankInfo(world=world, rank=mesh.get_rank(), members=members, origin="mesh")


def world_of_mesh(mesh: DeviceMesh) -> World:
    """Return the data-parallel rank that this process has in a device mesh.

    Its data-parallel dimensions multiply; ranks that differ only in the other dimensions share their rows.
    """
    if not hasattr(mesh, "get_coordinate"):
        raise PlanError(
            f"mesh is {mesh!r}, expected a device mesh, such as torch.distributed.device_mesh.init_device_mesh returns, or its "
            "data-parallel dimension, mesh['dp']"
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise PlanError(
            f"mesh= does not contain rank {mesh.get_rank()}, which this process is; give the mesh that it is part of"
        )
    dimensions = _data_dimensions(mesh)
    sizes = [mesh.size(dimension) for dimension in dimensions]
    rank = 0
    for dimension, size in zip(dimensions, sizes, strict=True):
        rank = rank * size + coordinate[dimension]
    world = World(rank=rank, size=prod(sizes))
    _refuse_part(mesh, world)
    return world


def _data_dimensions(mesh: DeviceMesh) -> list[int]:
    """Return the numbers of the dimensions whose ranks get different rows; refuse a mesh that does not say which these are."""
    names = list(mesh.mesh_dim_names or [])
    if mesh.ndim == 1 and not any(_shares_rows(name) for name in names):
        return [0]  # the dimension that was chosen, whatever its name is
    unknown = [
        name
        for number, name in enumerate(names)
        if name not in _DIFFERENT_ROWS | _SAME_ROWS and mesh.size(number) > 1
    ]
    if unknown or not names:
        dimensions = f"the dimension {names}" if len(names) == 1 else f"the dimensions {names}"
        what_it_has = dimensions if names else f"{mesh.ndim} dimensions without names"
        whose = (
            f"whether the ranks of {', '.join(map(repr, unknown))}" if unknown else "which of them"
        )
        raise PlanError(
            f"mesh= has {what_it_has}, and {whose} get different rows cannot be told; give the data-parallel ones, as mesh['dp'], or name "
            f"them as torch does: {', '.join(sorted(_DIFFERENT_ROWS))} get different rows, {', '.join(sorted(_SAME_ROWS))} the same",
            code="mesh_dimensions",
        )
    chosen = [number for number, name in enumerate(names) if name in _DIFFERENT_ROWS]
    group = running()
    if not chosen and group is not None and mesh.size() < group[1]:
        raise PlanError(
            f"mesh= has only {names}, whose ranks share their rows, and {mesh.size()} of {group[1]} ranks: the other groups would train "
            f"the same rows; give the whole mesh, or its data-parallel dimension, as mesh['dp']",
            code="mesh_dimensions",
        )
    return chosen


def _shares_rows(name: str) -> bool:
    """Whether some ranks of a dimension get the same rows, by its name: also a joined one, as dp_cp."""
    return name in _SAME_ROWS | _BOTH_ROWS or name.rpartition("_")[2] in _SAME_ROWS


def _refuse_part(mesh: DeviceMesh, world: World) -> None:
    """Refuse a part of a mesh that leaves out a data-parallel dimension, or joins one with another: rows would be repeated or parted."""
    whole = _whole_mesh(mesh)
    names = list(whole.mesh_dim_names or [])
    sizes = {name: whole.size(number) for number, name in enumerate(names)}
    of_data = {name: size for name, size in sizes.items() if name in _DIFFERENT_ROWS and size > 1}
    has_other_names = (
        not set(names) <= _DIFFERENT_ROWS | _SAME_ROWS
    )  # which the user has chosen from
    expected = prod(of_data.values())
    is_whole = world.size % expected == 0 if has_other_names else world.size == expected
    if whole is mesh or not names or is_whole:
        return
    dimensions = " × ".join(f"{name} {size}" for name, size in of_data.items()) or "none"
    raise PlanError(
        f"mesh= is a part, with {list(mesh.mesh_dim_names or [])} and {world.size} data-parallel ranks, of a mesh with {names} and "
        f"{expected} of them ({dimensions}), so rows would be repeated, or parted between ranks that need the same; give the whole "
        f"mesh, or all of its data-parallel dimensions, as mesh[{', '.join(map(repr, of_data)) or '...'}]",
        code="mesh_dimensions",
    )


def _whole_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh that this one is a part of; itself if it is whole, and where this version of torch does not say."""
    find_whole = getattr(mesh, "_get_root_mesh", None)
    return mesh if find_whole is None else find_whole()


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
