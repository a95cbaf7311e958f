"""Which part of its rows this process gets: its rank in the context-parallel group."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import Any

from penstock.errors import PlanError
from penstock.extras.trainers.context import RowCut
from penstock.extras.trainers.megatron_state import megatron_state
from penstock.extras.trainers.settings import TrainerBatchSettings
from penstock.loader.consistency import find_board
from penstock.loader.world import RankInfo, find_rank, running

_NUMBERS = count()  # of this process's comparisons: all ranks make these in one order
_NAMES = (
    "cp",
    "context",
    "context_parallel",
    "ring",
    "ulysses",
    "sp",
    "sequence",
    "sequence_parallel",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRank:
    """This process among the ranks that share a row."""

    rank: int
    size: int


def find_part(settings: TrainerBatchSettings, of_loader: Mapping[str, Any]) -> ContextRank:
    """Return which part this process gets: of the settings, of the mesh, of Megatron, or of neighbouring ranks."""
    found = _of_mesh(of_loader["mesh"])
    if found is None:
        found = _of_megatron()
    if found is None:
        found = _of_neighbours(settings, of_loader)
    if found is None and settings.context_rank is not None and settings.context_size is not None:
        found = ContextRank(rank=settings.context_rank, size=settings.context_size)
    if found is None:
        raise PlanError(
            f"context_split={settings.context_split!r} needs the rank of this process in its context-parallel group, and neither mesh= nor "
            f"Megatron's parallel state says it; pass a mesh with a dimension named cp, or context_size= and context_rank=",
            code="context_rank",
        )
    for name, value in (
        ("context_size", settings.context_size),
        ("context_rank", settings.context_rank),
    ):
        known = found.size if name == "context_size" else found.rank
        if value not in (None, known):
            raise PlanError(
                f"{name} is {value}, and by the mesh or the trainer it is {known}; leave {name} out",
                code="context_rank",
            )
    if found.rank >= found.size:
        raise PlanError(
            f"context_rank is {found.rank} of context_size {found.size}; expected 0 <= rank < size",
            code="context_rank",
        )
    return found


def _of_mesh(mesh: Any) -> ContextRank | None:
    """Read the context-parallel dimension of a mesh with names."""
    if mesh is None:
        return None
    names = list(mesh.mesh_dim_names or [])
    dimensions = [number for number, name in enumerate(names) if name in _NAMES]
    if not dimensions:
        return None
    if len(dimensions) > 1:
        chosen = [names[number] for number in dimensions]
        raise PlanError(
            f"mesh= has {len(dimensions)} dimensions that cut rows, {chosen}; cut along one of them: flatten them into one named cp",
            code="context_rank",
        )
    coordinate = mesh.get_coordinate()
    return ContextRank(rank=coordinate[dimensions[0]], size=mesh.size(dimensions[0]))


def _of_megatron() -> ContextRank | None:
    """Read Megatron's parallel state, if it is initialised."""
    state = megatron_state()
    if state is None:
        return None
    return ContextRank(
        rank=state.get_context_parallel_rank(), size=state.get_context_parallel_world_size()
    )


def _of_neighbours(
    settings: TrainerBatchSettings, of_loader: Mapping[str, Any]
) -> ContextRank | None:
    """Take neighbouring ranks that share their rows for the group, if nothing says that they share them for another reason."""
    size = of_loader["model_parallel_size"]
    if size == 1 or settings.context_size not in (None, size):
        return None
    info = find_rank(of_loader["rank"], of_loader["world_size"], model_parallel_size=size)
    return ContextRank(rank=info.rank % size, size=size)


def refuse_unshared_rows(cut: RowCut, info: RankInfo) -> None:
    """Refuse to cut rows that no other rank has: the rest of each row would be lost."""
    group = running()
    ranks = len(info.members)
    if group is not None:
        ranks = group[1]
    elif info.origin in ("arguments", "mesh"):
        return  # how many processes share these rows is not known here
    if info.world.size * cut.size > ranks:
        raise PlanError(
            f"context_split={cut.split!r} cuts each row for {cut.size} ranks, and the Loader gives each of {info.world.size} ranks of "
            f"{ranks} rows of its own, so the other parts would be lost; pass mesh= with dimensions dp and cp, or "
            f"model_parallel_size={cut.size}; to look at a part in one process, pass rank=0, world_size=1",
            code="context_rank",
        )


def refuse_missing_parts(cut: RowCut, info: RankInfo) -> None:
    """Compare the parts of all processes: one context_rank for all of them, as in a recipe, would lose the rest of every row."""
    group = running()
    if group is None or group[1] == 1:
        return
    rank, size = group
    # of all processes, wherever the data-parallel rank is known from
    board: Any = find_board(replace(info, origin="trainer"), f"parts-{next(_NUMBERS)}")
    board.set(str(rank), f"{info.world.rank}/{cut.rank}")
    others = [str(other) for other in range(size)]
    patience = timedelta(seconds=float(os.environ.get("PENSTOCK_PATIENCE", "600")))
    try:
        board.wait(others, patience)
    except RuntimeError as error:
        raise PlanError(
            f"rank {rank} has waited {patience.seconds} s for all {size} ranks to say which part of a row they get, and some have not; "
            f"begin the loop on all ranks",
            code="context_rank",
        ) from error
    there = {board.get(other).decode() for other in others}
    for data_rank in range(info.world.size):
        for part in range(cut.size):
            if f"{data_rank}/{part}" not in there:
                raise PlanError(
                    f"no rank gets part {part} of {cut.size} of the rows of data-parallel rank {data_rank}, so its tokens would be lost: "
                    f"context_rank must differ within a group, and this rank has context_rank={cut.rank}; pass mesh= with dimensions dp "
                    f"and cp instead",
                    code="context_rank",
                )
