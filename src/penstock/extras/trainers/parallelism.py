"""Compare the ranks of a trainer with those of a Loader, before the first batch.

A trainer may split its ranks in more than one way: data-parallel ranks need different rows, and the ranks of a tensor, context, sequence
or pipeline parallel group need the same rows.  A Loader knows of such groups only if `mesh=` or `model_parallel_size=` says so.  Without
them it
would give each rank of a group other rows, and the group would compute nonsense without an error.

It imports no trainer: it reads the attributes of the objects that it is given.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from penstock.errors import PlanError
from penstock.loader.world import RankInfo, check_rank

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

    @property
    def shared_words(self) -> str:
        return " and ".join(
            f"{kind} parallelism over {size} ranks" for kind, size in self.shared.items()
        )


def check_ranks(loader: "Loader", ranks: TrainerRanks) -> None:
    """Refuse a Loader whose rows do not fit the trainer's ranks; say what to pass."""
    info = loader.rank_info
    check_rank(info)
    _refuse_sequence_parallelism(ranks)
    _refuse_packed_rows(loader, ranks)
    if info.origin == "arguments" and info.world.size == 1:
        return  # rank=0, world_size=1: this process was to have all rows
    is_told = info.is_explicit or info.model_parallel_size > 1
    if ranks.shared and not is_told:
        group = ranks.size // ranks.data_size
        raise PlanError(
            f"{ranks.trainer} has {ranks.shared_words}, whose ranks need the same rows, and the Loader was not told of it: each rank would "
            f"get other rows; pass model_parallel_size={group} to the Loader if neighbouring ranks form a group, or "
            f"mesh= the data-parallel dimension "
            f"of the device mesh",
            code="ranks_need_the_same_rows",
        )
    if not _fits(info, ranks, is_told=is_told):
        raise PlanError(
            f"the Loader gives this process the rows of rank {info.world.rank} of {info.world.size}, and for {ranks.trainer} it is "
            f"data-parallel rank {ranks.data_rank} of {ranks.data_size}; make the Loader after the trainer's process group is "
            f"initialised, or pass rank={ranks.data_rank}, world_size={ranks.data_size}",
            code="rank_differs",
        )


def refuse_groups(ranks: TrainerRanks) -> None:
    """Refuse a trainer some of whose ranks need the same rows, where rows are divided among all ranks."""
    if ranks.shared:
        raise PlanError(
            f"{ranks.trainer} has {ranks.shared_words}, whose ranks need the same rows, and prompts are divided among all ranks; "
            f"train without it"
        )


def _fits(info: RankInfo, ranks: TrainerRanks, *, is_told: bool) -> bool:
    world = (info.world.rank, info.world.size)
    if world == (ranks.data_rank, ranks.data_size):
        return True
    if not is_told or ranks.shared:
        return False
    # Groups that the trainer does not know of, as of a model that does its own tensor parallelism: the user has said so.
    return ranks.data_size % info.world.size == 0


def _refuse_sequence_parallelism(ranks: TrainerRanks) -> None:
    if SEQUENCE in ranks.shared:
        raise PlanError(
            f"{ranks.trainer} has sequence parallelism over {ranks.shared[SEQUENCE]} ranks: DeepSpeed exchanges whole batches between "
            f"these ranks and cuts the rows itself, which is not supported with a Loader yet; train without it, or in a loop of your "
            f"own with model_parallel_size={ranks.shared[SEQUENCE]}"
        )


def _refuse_packed_rows(loader: "Loader", ranks: TrainerRanks) -> None:
    """Context parallelism cuts a row into parts, and its attention takes no mask and no borders of samples."""
    has_samples_in_a_row = loader.has_tokens and (
        loader.plan.settings.packing != "none" or loader.form.padding_free
    )
    if CONTEXT in ranks.shared and has_samples_in_a_row:
        packing = loader.plan.settings.packing
        found = f"packing={packing!r}" if packing != "none" else "padding_free=True"
        raise PlanError(
            f"{ranks.trainer} has context parallelism over {ranks.shared[CONTEXT]} ranks, whose attention does not keep the samples of "
            f"a packed row apart, and the Loader has {found}; set packing='none' and padding_free=False",
            code="context_parallel",
        )


# What trainers say about their ranks


def of_accelerator(
    accelerator: Any, models: Iterable[Any] = (), *, trainer: str = "the Accelerator"
) -> TrainerRanks:
    """Read Accelerate's Accelerator, which the Trainers of transformers and trl have, too.

    Its mesh has the data-parallel dimensions first, so neighbouring ranks form a group.  models: what is trained.
    """
    sizes = {CONTEXT: 1, SEQUENCE: 1, **of_models(models)}
    config = getattr(accelerator, "parallelism_config", None)
    if config is not None:
        sizes[TENSOR] = max(sizes[TENSOR], config.tp_size)
        sizes[CONTEXT] = config.cp_size
        sizes[SEQUENCE] = getattr(config, "sp_size", 1)
    if accelerator.distributed_type == "DEEPSPEED":
        settings = accelerator.state.deepspeed_plugin.deepspeed_config
        tensor_parallel = settings.get("tensor_parallel", {})
        sizes[TENSOR] = max(sizes[TENSOR], tensor_parallel.get("autotp_size", 1))
    if accelerator.distributed_type == "MEGATRON_LM":
        plugin = accelerator.state.megatron_lm_plugin
        sizes[TENSOR] = plugin.tp_degree
        sizes[PIPELINE] = plugin.pp_degree
    return _in_neighbouring_groups(
        trainer, accelerator.process_index, accelerator.num_processes, sizes
    )


def of_lightning(trainer: Any) -> TrainerRanks:
    """Read Lightning's Trainer after its strategy is set up: what it would tell a distributed sampler."""
    size = trainer.world_size
    sampler = getattr(trainer.strategy, "distributed_sampler_kwargs", None)
    data_size = size if sampler is None else sampler["num_replicas"]
    if data_size == size:
        sizes = of_models([trainer.lightning_module])
        sizes[SEQUENCE] = _deepspeed_sequence_size(trainer.strategy)
        return _in_neighbouring_groups("the Trainer of Lightning", trainer.global_rank, size, sizes)
    return TrainerRanks(
        trainer=f"Lightning's {type(trainer.strategy).__name__}",
        rank=trainer.global_rank,
        size=size,
        data_rank=trainer.global_rank if sampler is None else sampler["rank"],
        data_size=data_size,
        shared={MODEL: size // data_size},
    )


def of_megatron() -> TrainerRanks | None:
    """Read Megatron's parallel state, if the program has imported and initialised it."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
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
