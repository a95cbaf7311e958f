"""Two and four real processes whose trainer says which of them share their rows.

python -m tests.extras.trainers.meshes TRAINER RANKS FOLDER; each rank writes to FOLDER/NAME-RANK.json the group that it is in, its rows,
and the state of its Loader after them; or the refusal.
"""

import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import penstock as ps
from penstock.errors import PlanError
from penstock.extras.trainers.context import gather
from penstock.extras.trainers.data_log import DataLog

from .launchers import first_tokens, make, parallelism, tokenizer_of

GROUP = 2  # ranks that share their rows


def write(folder: Path, name: str, group: int, work: Callable[[], ps.Loader]) -> None:
    """Write what a Loader delivers on this rank.  `work` makes the Loader and hands it to a trainer."""
    try:
        loader = work()
        rows = [number for batch in loader for number in first_tokens(batch)]
        outcome: dict[str, Any] = {"group": group, "rows": rows, "state": loader.state_dict()}
    except PlanError as error:
        outcome = {"refused": str(error)}
    (folder / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(outcome))
    dist.barrier()


def cut_rows(folder: Path, **options: Any) -> ps.Loader:
    """A Loader whose rows are cut for the ranks of a group."""
    return make(
        folder,
        max_length=8,
        packing="best_fit",
        labels="shifted",
        context_split="zigzag",
        **options,
    )


def write_parts(folder: Path, name: str, group: int, loader: ps.Loader) -> None:
    """Write the rows that the parts of this rank's group, put together, are; each rank of the group writes all of them."""
    rows = []
    for batch in loader:
        part = {each: batch[each] for each in ("input_ids", "row_places", "seq_idx")}
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (group, part))
        own = [each for number, each in parts if number == group]
        values = {each: [other[each].numpy() for other in own] for each in part}
        places = values["row_places"]
        ids = gather(values["input_ids"], places)
        documents = gather(values["seq_idx"], places)
        begins = np.diff(documents, axis=1, prepend=-1) != 0
        rows += ids[begins & (documents >= 0)].tolist()
    outcome = {"group": group, "rows": rows, "state": loader.state_dict()}
    (folder / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(outcome))
    dist.barrier()


def log_data(folder: Path, loader: ps.Loader) -> None:
    """Write what this rank's log says of the data, and how many of its own tokens are trained."""
    log = DataLog(loader)
    trained = sum(batch.trained for batch in loader)
    outcome = {"group": loader.world.rank, "line": log.take(), "trained": trained}
    (folder / f"logged-{dist.get_rank()}.json").write_text(json.dumps(outcome))
    dist.barrier()


def own_loop(folder: Path, ranks: int) -> None:
    """Meshes with names: neighbours share rows, or distant ranks do."""
    rank = dist.get_rank()
    groups = ranks // GROUP
    inner = init_device_mesh("cpu", (groups, GROUP), mesh_dim_names=("dp", "tp"))
    write(folder, "inner", rank // GROUP, partial(make, folder, mesh=inner))
    outer = init_device_mesh("cpu", (GROUP, groups), mesh_dim_names=("pp", "dp_shard"))
    write(folder, "outer", rank % groups, partial(make, folder, mesh=outer))
    three = init_device_mesh(
        "cpu", (groups, 1, GROUP), mesh_dim_names=("dp_replicate", "dp_shard", "cp")
    )
    write(folder, "three", rank // GROUP, partial(make, folder, mesh=three))
    data = three["dp_replicate", "dp_shard"]
    write(folder, "part", rank // GROUP, partial(make, folder, mesh=data))
    write(folder, "flat", rank // GROUP, partial(make, folder, mesh=data._flatten("dp")))
    own_names = init_device_mesh("cpu", (groups, GROUP), mesh_dim_names=("mine", "yours"))
    write(folder, "own name", rank // GROUP, partial(make, folder, mesh=own_names["mine"]))
    size_one = init_device_mesh("cpu", (groups, GROUP, 1), mesh_dim_names=("dp", "tp", "ep"))
    write(folder, "size one", rank // GROUP, partial(make, folder, mesh=size_one))

    log_data(folder, make(folder, mesh=inner, packing="best_fit", max_length=8))

    context = init_device_mesh("cpu", (groups, GROUP), mesh_dim_names=("dp", "cp"))
    write_parts(folder, "parts", rank // GROUP, cut_rows(folder, mesh=context))
    write_parts(folder, "neighbours", rank // GROUP, cut_rows(folder, model_parallel_size=GROUP))
    dp = rank // GROUP
    explicit = {"rank": dp, "world_size": groups, "context_size": GROUP}
    write_parts(folder, "told", dp, cut_rows(folder, **explicit, context_rank=rank % GROUP))
    write(folder, "one part", 0, partial(cut_rows, folder, **explicit, context_rank=0))
    write(folder, "lost parts", 0, partial(cut_rows, folder, context_size=2, context_rank=0))

    experts = init_device_mesh("cpu", (groups, GROUP), mesh_dim_names=("dp", "ep"))
    write(folder, "experts", 0, partial(make, folder, mesh=experts))
    unnamed = init_device_mesh("cpu", (groups, GROUP))
    write(folder, "unnamed", 0, partial(make, folder, mesh=unnamed))
    write(folder, "only tp", 0, partial(make, folder, mesh=inner["tp"]))
    joined = three["dp_shard", "cp"]._flatten("dp_shard_cp")
    write(folder, "joined", 0, partial(make, folder, mesh=joined))
    replicated = init_device_mesh(
        "cpu", (groups, GROUP), mesh_dim_names=("dp_replicate", "dp_shard")
    )
    write(folder, "half", 0, partial(make, folder, mesh=replicated["dp_replicate"]))
    renamed = three["dp_replicate", "cp"]._flatten("rows")
    write(folder, "renamed", 0, partial(make, folder, mesh=renamed))
    outside = DeviceMesh("cpu", torch.arange(1, ranks), mesh_dim_names=("dp",))
    if rank == 0:
        write(folder, "outside", 0, partial(make, folder, mesh=outside))
    else:
        dist.barrier()


def sharded_models(folder: Path, ranks: int) -> None:
    """A model whose weights FSDP2 has divided is checked at its first step, on all ranks at once, and trains on."""
    from torch.distributed.fsdp import fully_shard

    from penstock.extras.trainers.isolation import check_at_first_step

    from .models import bloom, llama

    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))

    def trained(make_model: Callable[[], Any]) -> ps.Loader:
        model = make_model().train()
        blocks = model.model.layers if hasattr(model, "model") else model.transformer.h
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        loader = make(folder, mesh=mesh, packing="best_fit", max_length=8)
        check_at_first_step(model, loader)
        for batch in loader:
            inputs = {"input_ids": batch["input_ids"], "labels": batch["labels"]}
            if make_model is llama:
                inputs["position_ids"] = batch["position_ids"]
            model(**inputs, use_cache=False).loss.backward()
        loader.restart()
        return loader

    write(folder, "llama", dist.get_rank(), partial(trained, llama))
    write(folder, "bloom", dist.get_rank(), partial(trained, bloom))


def torchtitan(folder: Path, ranks: int) -> None:
    """The mesh that torchtitan reads its data-parallel rank from, and those that hold other ranks, too."""
    from torchtitan.distributed import parallel_dims

    from penstock.extras.trainers.torchtitan import PenstockDataLoader

    def served(batch_mesh: DeviceMesh) -> ps.Loader:
        config = PenstockDataLoader.Config(load=partial(make, folder))
        batches = PenstockDataLoader(
            config,
            dp_world_size=batch_mesh.size(),
            dp_rank=batch_mesh.get_local_rank(),
            seq_len=4,
            local_batch_size=2,
        )
        return batches.loader

    parallel_dims.device_type = "cpu"  # torchtitan takes cuda where there is no device at all
    for kind in ("tp", "cp", "pp"):
        sizes = {"tp": 1, "cp": 1, "pp": 1} | {kind: GROUP}
        dimensions = parallel_dims.ParallelDims(
            dp_replicate=1, dp_shard=ranks // GROUP, ep=1, world_size=ranks, **sizes
        )
        whole = dimensions.build_mesh()
        batch_mesh = dimensions.get_optional_mesh("batch", include_singleton_axes=True)
        rank = batch_mesh.get_local_rank()
        write(folder, f"titan {kind}", rank, partial(served, batch_mesh))
        write(folder, f"titan mesh {kind}", rank, partial(make, folder, mesh=batch_mesh))
        if kind == "cp":
            write(folder, "world", 0, partial(make, folder, mesh=whole))
            loss = dimensions.get_mesh("loss")
            write(folder, "loss", 0, partial(make, folder, mesh=loss))


def accelerate(folder: Path, ranks: int) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from penstock.extras.trainers.accelerate import attach

    def attached(sizes: dict[str, int]) -> ps.Loader:
        AcceleratorState._reset_state()
        loader = make(folder)  # before the Accelerator has a mesh
        accelerator = Accelerator(cpu=True, parallelism_config=parallelism(**sizes))
        attach(accelerator, loader, isolation_check=False)
        return loader

    for kind in ("tp", "cp"):
        sizes = {"dp_shard_size": ranks // GROUP, f"{kind}_size": GROUP}
        write(folder, kind, dist.get_rank() // GROUP, partial(attached, sizes))

    def attached_as_rank_0() -> ps.Loader:
        AcceleratorState._reset_state()
        loader = make(folder, rank=0, world_size=ranks)
        attach(Accelerator(cpu=True), loader, isolation_check=False)
        return loader

    if dist.get_rank() == 0:
        dist.barrier()
    else:
        write(folder, "another rank", 0, attached_as_rank_0)


def trainers(folder: Path, ranks: int) -> None:
    from transformers import TrainingArguments
    from trl import SFTConfig

    from penstock.extras.trainers.hf_trainer import LoaderTrainer
    from penstock.extras.trainers.trl import LoaderSFTTrainer

    from .runs import make_model

    common: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
    }

    def hugging_face(**sizes: int) -> ps.Loader:
        arguments = TrainingArguments(**common, parallelism_config=parallelism(**sizes))
        loader = make(folder)
        LoaderTrainer(model=make_model(), args=arguments, loader=loader)
        return loader

    def trl(**sizes: int) -> ps.Loader:
        arguments = SFTConfig(
            **common,
            bf16=False,
            gradient_checkpointing=False,
            parallelism_config=parallelism(**sizes),
        )
        loader = make(folder)
        LoaderSFTTrainer(
            model=make_model(), args=arguments, processing_class=tokenizer_of(folder), loader=loader
        )
        return loader

    sizes = {"dp_shard_size": ranks // GROUP, "tp_size": GROUP}
    group = dist.get_rank() // GROUP
    write(folder, "hugging face", group, partial(hugging_face, **sizes))
    write(folder, "trl", group, partial(trl, **sizes))


def lightning(folder: Path, ranks: int) -> None:
    from lightning.pytorch.strategies import ModelParallelStrategy

    from penstock.extras.trainers.lightning import LoaderModule

    from .launched_model import fit

    made = []

    def load() -> ps.Loader:
        made.append(make(folder))
        return made[0]

    def fitted() -> ps.Loader:
        strategy = ModelParallelStrategy(
            data_parallel_size=ranks // GROUP, tensor_parallel_size=GROUP
        )
        fit(folder, "fit", strategy, LoaderModule(load, isolation_check=False), devices=ranks)
        return made[0]

    write(folder, "lightning", dist.get_rank() // GROUP, fitted)


def megatron(folder: Path, ranks: int) -> None:
    from megatron.core import parallel_state

    from penstock.extras.trainers.megatron import MegatronBatches

    def served() -> ps.Loader:
        loader = make(folder, labels="shifted")
        MegatronBatches(loader)
        return loader

    kinds = {
        "tensor": "tensor_model_parallel_size",
        "pipeline": "pipeline_model_parallel_size",
        "context": "context_parallel_size",
    }
    for kind, option in kinds.items():
        parallel_state.initialize_model_parallel(**{option: GROUP})
        write(folder, kind, parallel_state.get_data_parallel_rank(), served)
        if kind == "context":
            write(folder, "cut twice", 0, partial(_compare_with_megatron, folder))
        parallel_state.destroy_model_parallel()


def _compare_with_megatron(folder: Path) -> ps.Loader:
    """Refuse a part that is not the one that Megatron cuts of the whole rows."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.utils import get_batch_on_this_cp_rank

    from penstock.extras.trainers.megatron import MegatronBatches

    same_rows = {"max_length": 8, "packing": "best_fit", "labels": "shifted"}
    uncut = make(folder, model_parallel_size=GROUP, **same_rows)
    for whole, batch in zip(uncut, MegatronBatches(cut_rows(folder)), strict=True):
        of_tokens = ("input_ids", "labels", "position_ids")
        found = get_batch_on_this_cp_rank({name: whole[name] for name in of_tokens})
        assert torch.equal(batch["tokens"], found["input_ids"])
        assert torch.equal(batch["position_ids"], found["position_ids"])
        assert torch.equal(batch["labels"], found["labels"].clamp(min=0))
        assert torch.equal(batch["loss_mask"].bool(), found["labels"] != -100)
        packed = batch["packed_seq_params"]
        assert isinstance(packed, PackedSeqParams)
        assert torch.equal(packed.cu_seqlens_q_padded, whole["cu_seqlens"])
        assert int(packed.cu_seqlens_kv[-1]) == batch["total_tokens"]
    raise PlanError("the parts are those of Megatron")


def _in_process(rank: int, trainer: str, ranks: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test")
    os.environ.update(GROUP_RANK="0", ACCELERATE_USE_CPU="1")
    dist.init_process_group("gloo")
    globals()[trainer](folder, ranks)
    dist.destroy_process_group()


def main(trainer: str, ranks: int, folder: Path) -> None:
    make(folder)  # prepares the store
    if trainer in ("accelerate", "trainers"):
        import accelerate  # noqa: F401  # imported once, before the processes are forked
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    mp.start_processes(
        _in_process, (trainer, ranks, port, folder), nprocs=ranks, start_method="fork"
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
