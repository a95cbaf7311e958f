"""Give a Loader the ranks of its trainer, before the first batch.

A trainer may split its ranks in more than one way: data-parallel ranks need different rows, and the ranks of a tensor, context, sequence
or pipeline parallel group need the same rows.  Each function `of_…` reads what one trainer says about that.  `take_ranks` gives it to a
Loader that was told nothing, and refuses a Loader that was told something else by `rank=`, `mesh=` or `model_parallel_size=`: the ranks of
a group would compute nonsense from different rows, without an error.

It imports no trainer: it reads the attributes of the objects that it is given.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import PlanError
from penstock.extras.trainers.batch_stage import cuts_rows
from penstock.extras.trainers.megatron_state import megatron_state
from penstock.loader.world import DeviceMesh, RankInfo, check_rank, world_of_mesh
from penstock.types import World

if TYPE_CHECKING:
    from penstock.loader.loader import Loader

TENSOR = "tensor"
CONTEXT = "context"
SEQUENCE = "sequence"
PIPELINE = "pipeline"
MODEL = "model"  # a trainer that says how many ranks get the same rows, but not why


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRanks:
    """This process as a trainer sees it."""

    trainer: str  # its name, for messages
    rank: int
    size: int
    data_rank: int  # among the ranks that get different rows
    data_size: int
    shared: dict[str, int] = field(default_factory=dict)  # kind of parallelism → ranks of a group
    takes_parts: bool = (
        False  # under context parallelism, rows that the Loader has cut; else it cuts them itself
    )

    @property
    def shared_words(self) -> str:
        return " and ".join(
            f"{kind} parallelism over {size} ranks" for kind, size in self.shared.items()
        )


def take_ranks(loader: "Loader", ranks: TrainerRanks) -> None:
    """Give a Loader that was told nothing the rows of the trainer's data-parallel rank; refuse one that was told something else."""
    info = loader.rank_info
    check_rank(info)
    _refuse_sequence_parallelism(ranks)
    if CONTEXT in ranks.shared and cuts_rows(loader):
        _refuse_second_cut(ranks)
    else:
        _refuse_packed_rows(loader, ranks)
    is_told = info.origin in ("arguments", "mesh") or info.model_parallel_size > 1
    if is_told:
        _refuse_other_ranks(info, ranks)
        return
    if (info.rank, len(info.members)) != (ranks.rank, ranks.size):
        raise PlanError(
            f"the Loader was made as rank {info.rank} of {len(info.members)}, and for {ranks.trainer} this process is rank {ranks.rank} of "
            f"{ranks.size}; make the Loader after the trainer's process group is initialised, in the process that trains",
            code="rank_differs",
        )
    if ranks.size % ranks.data_size:
        raise PlanError(
            f"{ranks.trainer} has {ranks.size} ranks and {ranks.shared_words or f'{ranks.data_size} data-parallel ranks'}, so which ranks "
            f"need the same rows cannot be told; pass mesh= the trainer's device mesh, or rank= and world_size= the data-parallel ones",
            code="rank_differs",
        )
    world = World(rank=ranks.data_rank, size=ranks.data_size)
    if world != info.world:
        loader.take_rank(replace(info, world=world, origin="trainer"))


def _refuse_other_ranks(info: RankInfo, ranks: TrainerRanks) -> None:
    """Refuse ranks that an argument gave, or another trainer, and that are not the trainer's."""
    if info.origin == "arguments" and info.world.size == 1:
        return  # rank=0, world_size=1: this process was to have all rows
    world = (info.world.rank, info.world.size)
    if world == (ranks.data_rank, ranks.data_size):
        return
    # Groups that the trainer does not know of, as of a model that does its own tensor parallelism: the user has said so.
    is_divided_further = info.world.size < ranks.data_size
    if not ranks.shared and is_divided_further and ranks.data_size % info.world.size == 0:
        return
    raise PlanError(
        f"the Loader gives this process the rows of rank {info.world.rank} of {info.world.size}, and for {ranks.trainer}"
        f"{f', which has {ranks.shared_words},' if ranks.shared else ''} it is data-parallel rank {ranks.data_rank} of "
        f"{ranks.data_size}; leave out rank, world_size, mesh and model_parallel_size: the Loader takes the trainer's",
        code="rank_differs",
    )


def refuse_groups(ranks: TrainerRanks) -> None:
    """Refuse a trainer some of whose ranks need the same rows, where rows are divided among all ranks."""
    if ranks.shared:
        raise PlanError(
            f"{ranks.trainer} has {ranks.shared_words}, whose ranks need the same rows, and prompts are divided among all ranks; "
            f"train without it"
        )


def _refuse_sequence_parallelism(ranks: TrainerRanks) -> None:
    if SEQUENCE in ranks.shared:
        raise PlanError(
            f"{ranks.trainer} has sequence parallelism over {ranks.shared[SEQUENCE]} ranks: DeepSpeed exchanges whole batches between "
            f"these ranks and cuts the rows itself, which is not supported with a Loader yet; train without it, or in a loop of your "
            f"own with model_parallel_size={ranks.shared[SEQUENCE]}"
        )


def _refuse_second_cut(ranks: TrainerRanks) -> None:
    if not ranks.takes_parts:
        raise PlanError(
            f"{ranks.trainer} has context parallelism over {ranks.shared[CONTEXT]} ranks and cuts the rows itself, and the Loader has "
            f"context_split, so rows would be cut twice; leave context_split out",
            code="context_parallel",
        )


def _refuse_packed_rows(loader: "Loader", ranks: TrainerRanks) -> None:
    """The trainer's context parallelism cuts a row into parts, and its attention takes no mask and no borders of samples."""
    if CONTEXT not in ranks.shared or not loader.has_tokens:
        return
    form = loader.form
    packing = loader.plan.settings.packing
    found = ""
    if packing != "none" and form.documents == "apart":
        found = f"packing={packing!r}"
    elif form.padding_free:
        found = "padding_free=True"
    if found:
        raise PlanError(
            f"{ranks.trainer} has context parallelism over {ranks.shared[CONTEXT]} ranks, whose attention does not keep the samples of "
            f"a packed row apart, and the Loader has {found}; set packing='none' and padding_free=False"
            f"{', or have the Loader cut rows: context_split=' if ranks.takes_parts else ''}",
            code="context_parallel",
        )
    if packing == "none" and form.pad_side == "left":
        raise PlanError(
            f"{ranks.trainer} has context parallelism over {ranks.shared[CONTEXT]} ranks, whose attention takes no mask, so tokens would "
            f"attend to the padding before them, and the Loader has pad_side='left'; set pad_side='right'",
            code="context_parallel",
        )


# What trainers say about their ranks.  The protocols are what is read of their objects.


class _ParallelismConfig(Protocol):
    """Accelerate's: how many ranks form a group of each kind."""

    tp_size: int
    cp_size: int
    sp_size: int


class _Accelerator(Protocol):
    """Accelerate's Accelerator."""

    process_index: int
    num_processes: int
    distributed_type: str
    parallelism_config: _ParallelismConfig | None
    torch_device_mesh: DeviceMesh | None
    state: Any  # its plugins


class _Strategy(Protocol):
    """Lightning's: ranks that share their rows count as one replica."""

    distributed_sampler_kwargs: Mapping[str, int]


class _LightningTrainer(Protocol):
    """Lightning's Trainer."""

    global_rank: int
    world_size: int
    strategy: _Strategy
    lightning_module: Any


def of_accelerator(
    accelerator: _Accelerator, models: Iterable[Any] = (), *, trainer: str = "the Accelerator"
) -> TrainerRanks:
    """Read Accelerate's Accelerator, which the Trainers of transformers and trl have, too.

    Its mesh says which ranks form a group.  Without one, as for DeepSpeed, Megatron and models that are divided already, neighbouring
    ranks do.  models: what is trained.
    """
    sizes = {CONTEXT: 1, SEQUENCE: 1, **of_models(models)}
    config = accelerator.parallelism_config
    if config is not None:
        sizes[TENSOR] = max(sizes[TENSOR], config.tp_size)
        sizes[CONTEXT] = config.cp_size
        sizes[SEQUENCE] = config.sp_size
    if accelerator.distributed_type == "DEEPSPEED":
        settings = accelerator.state.deepspeed_plugin.deepspeed_config
        tensor_parallel = settings.get("tensor_parallel", {})
        sizes[TENSOR] = max(sizes[TENSOR], tensor_parallel.get("autotp_size", 1))
        sizes[SEQUENCE] = max(sizes[SEQUENCE], settings.get("sequence_parallel_size", 1))
    if accelerator.distributed_type == "MEGATRON_LM":
        plugin = accelerator.state.megatron_lm_plugin
        sizes[TENSOR] = plugin.tp_degree
        sizes[PIPELINE] = plugin.pp_degree
    ranks = _in_neighbouring_groups(
        trainer, accelerator.process_index, accelerator.num_processes, sizes
    )
    mesh = accelerator.torch_device_mesh
    if mesh is None:
        return ranks
    world = world_of_mesh(mesh)
    if world.size != ranks.data_size:  # the model is divided in another way than the mesh
        raise PlanError(
            f"{trainer} has {ranks.shared_words or 'no groups of ranks'}, and the device mesh of its ParallelismConfig has {world.size} "
            f"data-parallel ranks of {ranks.size}, so which ranks need the same rows cannot be told; give ParallelismConfig the sizes "
            f"with which the model is divided",
            code="rank_differs",
        )
    return replace(ranks, data_rank=world.rank)


def of_lightning(trainer: _LightningTrainer) -> TrainerRanks:
    """Read Lightning's Trainer after its strategy is set up: what it would tell a distributed sampler."""
    size = trainer.world_size
    sampler: Mapping[str, int] | None = getattr(
        trainer.strategy, "distributed_sampler_kwargs", None
    )
    data_size = size if sampler is None else sampler["num_replicas"]
    if sampler is None or data_size == size:
        sizes = of_models([trainer.lightning_module])
        sizes[SEQUENCE] = _deepspeed_sequence_size(trainer.strategy)
        return _in_neighbouring_groups("the Trainer of Lightning", trainer.global_rank, size, sizes)
    return TrainerRanks(
        trainer=f"Lightning's {type(trainer.strategy).__name__}",
        rank=trainer.global_rank,
        size=size,
        data_rank=sampler["rank"],
        data_size=data_size,
        shared={MODEL: size // data_size},
    )


def of_megatron() -> TrainerRanks | None:
    """Read Megatron's parallel state, if the program has imported and initialised it."""
    state = megatron_state()
    if state is None:
        return None
    sizes = {
        TENSOR: state.get_tensor_model_parallel_world_size(),
        PIPELINE: state.get_pipeline_model_parallel_world_size(),
        CONTEXT: state.get_context_parallel_world_size(),
    }
    distributed = sys.modules["torch.distributed"]
    return TrainerRanks(
        trainer="Megatron",
        rank=distributed.get_rank(),
        size=distributed.get_world_size(),
        data_rank=state.get_data_parallel_rank(),
        data_size=state.get_data_parallel_world_size(),
        shared={kind: size for kind, size in sizes.items() if size > 1},
        takes_parts=True,
    )


def of_models(models: Iterable[Any]) -> dict[str, int]:
    """Return over how many ranks transformers has divided a model itself, or a model inside it (tp_plan=, distributed_config=)."""
    sizes = {TENSOR: 1, PIPELINE: 1}
    for model in models:
        for module in model.modules():
            tensor_size = getattr(module, "_tp_size", None)
            if tensor_size is not None:  # set where transformers has divided the weights
                distributed = getattr(module.config, "distributed_config", None)
                pipeline_size = getattr(distributed, "pp_size", None) or 1
                sizes[TENSOR] = max(sizes[TENSOR], tensor_size)
                sizes[PIPELINE] = max(sizes[PIPELINE], pipeline_size)
    return sizes


def _in_neighbouring_groups(
    trainer: str, rank: int, size: int, sizes: dict[str, int]
) -> TrainerRanks:
    shared = {kind: group for kind, group in sizes.items() if group > 1}
    group_size = prod(shared.values())
    return TrainerRanks(
        trainer=trainer,
        rank=rank,
        size=size,
        data_rank=rank // group_size,
        data_size=max(1, size // group_size),
        shared=shared,
    )


def _deepspeed_sequence_size(strategy: Any) -> int:
    """Return the sequence parallel size in the configuration of Lightning's DeepSpeedStrategy."""
    config = getattr(strategy, "config", None)
    return int(config.get("sequence_parallel_size", 1)) if isinstance(config, dict) else 1
