"""Real processes of every launcher, each with Loaders made before and after the process group.

python -m tests.extras.trainers.launchers LAUNCHER FOLDER; each rank writes what became of each of its Loaders to FOLDER/NAME-RANK.json:
the rows that it trained, or the refusal.
"""

import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import penstock as ps
from penstock.errors import PlanError

RANKS = 2
SAMPLES = 12


def make(folder: Path, **options: Any) -> ps.Loader:
    """A Loader to which no rank is given."""
    records = [{"input_ids": [number, number + 1, 3]} for number in range(SAMPLES)]
    store = ps.prepare(
        records,
        template="pretokenized",
        vocab_size=SAMPLES + 4,
        cache_dir=folder / "cache",
        num_proc=1,
        progress="none",
    )
    defaults = {
        "batch_size": 2,
        "max_length": 4,
        "packing": "none",
        "epochs": 1,
        "output": "torch",
    }
    return ps.Loader(store, **{**defaults, **options})


def first_tokens(batch: Any) -> list[int]:
    """Return the first token of each row, which is the number of its sample."""
    return [int(number) for number in batch["input_ids"][:, 0]]


def record(folder: Path, name: str, rank: int, work: Callable[[], list[int]]) -> None:
    """Write the rows that `work` trains on this rank, or the sentence with which it was refused."""
    try:
        outcome: dict[str, Any] = {"rows": work()}
    except PlanError as error:
        outcome = {"refused": str(error)}
    (folder / f"{name}-{rank}.json").write_text(json.dumps(outcome))


def loop(batches: Any) -> list[int]:
    return [number for batch in batches for number in first_tokens(batch)]


def start_group(folder: Path, rank: int, name: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/group-{name}", rank=rank, world_size=RANKS
    )


# torch.multiprocessing.spawn


def _spawned(rank: int, folder: Path, sent: ps.Loader, sent_data: Any) -> None:
    early = make(folder)
    early_stream = make(folder).stream()
    early_rows = make(folder).as_map_dataset()[1]
    early_data = make(folder).as_dataset()
    explicit = make(folder, rank=0, world_size=1)
    start_group(folder, rank, "spawn")
    late = make(folder)
    loops = {
        "sent": lambda: loop(sent),
        "sent as_dataset": lambda: loop_of(sent_data),
        "before": lambda: loop(early),
        "before, stream": lambda: loop(early_stream),
        "before, rows": lambda: [0 for _ in early_rows],
        "before, workers": lambda: loop_of(early_data, num_workers=1),
        "before, spawned workers": lambda: loop_of(
            early_data, num_workers=1, multiprocessing_context="spawn"
        ),
        "explicit": lambda: loop(explicit),
        "after": lambda: loop(late),
    }
    for name, work in loops.items():
        record(folder, f"spawn: {name}", rank, work)
    dist.destroy_process_group()


def loop_of(dataset: Any, **options: Any) -> list[int]:
    from torch.utils.data import DataLoader

    return loop(DataLoader(dataset, batch_size=None, **options))


def torch_spawn(folder: Path) -> None:
    import torch.multiprocessing as mp

    mp.spawn(_spawned, args=(folder, make(folder), make(folder).as_dataset()), nprocs=RANKS)


# torchrun


def torchrun_rank(folder: Path) -> None:
    early = make(folder)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    record(folder, "torchrun: before", rank, lambda: loop(early))
    late = make(folder)
    record(folder, "torchrun: after", rank, lambda: loop(late))
    dist.destroy_process_group()


# Slurm: srun starts the processes, and the program makes the group


def slurm_rank(folder: Path) -> None:
    rank = int(os.environ["SLURM_PROCID"])
    early = make(folder)
    start_group(folder, rank, "slurm")
    record(folder, "slurm: before", rank, lambda: loop(early))
    late = make(folder)
    record(folder, "slurm: after", rank, lambda: loop(late))
    dist.destroy_process_group()


def slurm_lightning_rank(when: str, folder: Path) -> None:
    """Lightning reads Slurm's variables itself, and starts no process."""
    lightning("ddp", when, folder, name=f"slurm, lightning: {when}")


# Accelerate's launchers for notebooks


def _in_notebook(folder: Path, name: str, sent: ps.Loader) -> None:
    from accelerate import Accelerator

    from penstock.extras.trainers.accelerate import attach

    early = make(folder)
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    attached = partial(attach, accelerator, isolation_check=False)
    record(folder, f"{name}: sent", rank, lambda: loop(attached(sent)))
    record(folder, f"{name}: sent, evaluated", rank, lambda: loop(attached(sent, evaluation=True)))
    record(folder, f"{name}: before", rank, lambda: loop(attached(early)))
    late = make(folder)
    record(folder, f"{name}: after", rank, lambda: loop(attached(late)))


def notebook(folder: Path) -> None:
    from accelerate import notebook_launcher

    os.environ["ACCELERATE_USE_CPU"] = "1"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = (folder, "notebook", make(folder))
    notebook_launcher(_in_notebook, arguments, num_processes=RANKS, use_port=str(port))


def debug(folder: Path) -> None:
    from accelerate import debug_launcher

    debug_launcher(_in_notebook, (folder, "debug", make(folder)), num_processes=RANKS)


# Lightning's launchers


def lightning(strategy: str, when: str, folder: Path, name: str = "") -> None:
    """Train as a script of a user does.  when: the Loader is made "before" trainer.fit or "after" Lightning has started the group."""
    from penstock.extras.trainers.lightning import LoaderModule

    from .launched_model import fit

    name = name or f"{strategy}: {when}"
    source: Any = make(folder) if when == "before" else partial(make, folder)
    evaluated = None if when == "before" else partial(make, folder)
    module = LoaderModule(source, val_dataloaders=evaluated)
    try:
        fit(folder, name, strategy, module)
    except Exception as error:  # of a child process, as text; or of this one
        rank = os.environ.get("SLURM_PROCID", os.environ.get("LOCAL_RANK", "0"))
        (folder / f"{name}-{rank}.json").write_text(json.dumps({"refused": str(error)}))


def lightning_forks(folder: Path) -> None:
    """Both launchers for notebooks, one after the other: Lightning is imported once."""
    for when in ("before", "after"):
        lightning("ddp_fork", when, folder)
    lightning("ddp_notebook", "before", folder)


def lightning_resume(folder: Path) -> None:
    """In this process: Lightning loads the state of a Loader that a function has made."""
    from penstock.extras.trainers.lightning import LoaderModule

    from .launched_model import SAVED_AT, fit

    def module() -> Any:
        return LoaderModule(partial(make, folder), isolation_check=False)

    _, whole = fit(folder, "cut", "auto", module(), devices=1)
    saved = folder / "cut.ckpt"
    _, rest = fit(folder, "resumed", "auto", module(), devices=1, ckpt_path=saved)
    assert rest.rows == whole.rows[SAVED_AT * make(folder).batch_size :]
    assert len(whole.rows) == SAMPLES
    (folder / "has-resumed").touch()


def parallelism(**sizes: int) -> Any:
    """Return Accelerate's own configuration; Accelerate allows it on GPUs only, which is not asked here."""
    from accelerate import ParallelismConfig

    class OnCPU(ParallelismConfig):
        def _validate_accelerator(self, accelerator: Any) -> None:
            pass

    return OnCPU(**sizes)


# The Trainers of transformers and trl, in the launcher for notebooks


def _in_trainers(folder: Path, sent: ps.Loader) -> None:
    from transformers import TrainingArguments
    from trl import SFTConfig

    from penstock.extras.trainers.hf_trainer import LoaderTrainer
    from penstock.extras.trainers.trl import LoaderSFTTrainer

    from .runs import make_model

    arguments = {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
    }
    tokenizer = tokenizer_of(folder)

    def hugging_face(loader: ps.Loader, evaluated: Any = None, **options: Any) -> list[int]:
        trainer = LoaderTrainer(
            model=make_model(),
            args=TrainingArguments(**arguments, **options),
            loader=loader,
            eval_dataset=evaluated,
        )
        return loop(trainer.loader)

    def trl(loader: ps.Loader, **options: Any) -> list[int]:
        config = SFTConfig(**arguments, bf16=False, gradient_checkpointing=False, **options)
        trainer = LoaderSFTTrainer(
            model=make_model(), args=config, processing_class=tokenizer, loader=loader
        )
        return loop(trainer.loader)

    rank = dist.get_rank()
    record(folder, "trainer: sent", rank, lambda: hugging_face(sent))
    record(folder, "trainer: sent, evaluated", rank, lambda: hugging_face(make(folder), sent))
    record(folder, "trainer: after", rank, lambda: hugging_face(make(folder)))
    record(folder, "trl: sent", rank, lambda: trl(sent))
    record(folder, "trl: after", rank, lambda: trl(make(folder)))
    for kind in ("tp", "cp", "sp"):
        sizes = {f"{kind}_size": RANKS}
        tell = partial(parallelism, **sizes)
        record(
            folder,
            f"trainer, {kind}: untold",
            rank,
            lambda tell=tell: hugging_face(make(folder), parallelism_config=tell()),
        )
        record(
            folder,
            f"trl, {kind}: model_parallel_size, packed",
            rank,
            lambda tell=tell: trl(
                make(folder, model_parallel_size=RANKS, packing="best_fit"),
                parallelism_config=tell(),
            ),
        )

    os.environ.update(LOCAL_RANK=str(rank), RANK=str(rank))  # transformers reads them
    for name, options in (("untold", {}), ("model_parallel_size", {"model_parallel_size": RANKS})):
        divided = partial(_train_divided_model, folder, **options)
        record(folder, f"tp_plan: {name}", rank, divided)


def _train_divided_model(folder: Path, **options: Any) -> list[int]:
    """A model that transformers has divided among the ranks, of which the Accelerator knows nothing."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from transformers import LlamaForCausalLM

    from penstock.extras.trainers.accelerate import attach

    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True)
    model = LlamaForCausalLM.from_pretrained(folder / "model", tp_plan="auto")
    accelerator._models.append(model)  # as prepare(model) does on GPUs
    return loop(attach(accelerator, make(folder, **options), isolation_check=False))


def tokenizer_of(folder: Path) -> Any:
    """Return a tokenizer with an end, which is all that trl asks of it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<end>": 0}, unk_token="<end>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")


def trainers(folder: Path) -> None:
    import transformers
    from accelerate import debug_launcher

    import penstock.extras.trainers.trl

    from .runs import make_model

    assert transformers.LlamaForCausalLM and penstock.extras.trainers.trl  # imported once, here
    make_model().save_pretrained(folder / "model")
    debug_launcher(_in_trainers, (folder, make(folder)), num_processes=RANKS)


# Groups of ranks that need the same rows


def _in_groups(folder: Path) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from penstock.extras.trainers.accelerate import attach
    from penstock.extras.trainers.lightning import LoaderModule

    from .launched_model import fit

    def accelerate(sizes: dict[str, int], **options: Any) -> list[int]:
        AcceleratorState._reset_state()
        accelerator = Accelerator(cpu=True, parallelism_config=parallelism(**sizes))
        return loop(attach(accelerator, make(folder, **options), isolation_check=False))

    rank = dist.get_rank()
    for kind in ("tp", "cp", "sp"):
        record(folder, f"{kind}: untold", rank, partial(accelerate, {f"{kind}_size": RANKS}))
        shared = partial(accelerate, {f"{kind}_size": RANKS}, model_parallel_size=RANKS)
        record(folder, f"{kind}: model_parallel_size", rank, shared)
        packed = partial(shared, packing="best_fit")
        record(folder, f"{kind}: model_parallel_size, packed", rank, packed)
    left = partial(accelerate, {"cp_size": RANKS}, pad_side="left")
    record(folder, "cp: left", rank, left)
    mesh = dist.init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("dp", "tp"))
    record(folder, "tp: mesh", rank, partial(accelerate, {"tp_size": RANKS}, mesh=mesh["dp"]))
    other = dist.init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("dp", "tp"))
    record(folder, "tp: another mesh", rank, partial(accelerate, {"tp_size": RANKS}, mesh=other))
    AcceleratorState._reset_state()
    record(folder, "prepared twice", rank, partial(_prepare_rows, folder))
    record(folder, "prepared batches", rank, partial(_prepare_batches, folder))

    os.environ.update(LOCAL_RANK=str(rank), RANK=str(rank))
    from lightning.pytorch.strategies import ModelParallelStrategy

    for name, options in (("untold", {}), ("model_parallel_size", {"model_parallel_size": RANKS})):
        module = LoaderModule(partial(make, folder, **options), isolation_check=False)
        strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=RANKS)
        try:
            fit(folder, f"lightning: {name}", strategy, module)
        except PlanError as error:
            text = json.dumps({"refused": str(error)})
            (folder / f"lightning: {name}-{rank}.json").write_text(text)
    try:
        fit(folder, "lightning: sampler", "ddp", train_dataloaders=_rows_of(make(folder)))
    except PlanError as error:
        text = json.dumps({"refused": str(error)})
        (folder / f"lightning: sampler-{rank}.json").write_text(text)
    _megatron(folder, rank)


def _rows_of(loader: ps.Loader) -> Any:
    from torch.utils.data import DataLoader

    dataset, sampler = loader.as_map_dataset()
    return DataLoader(dataset, batch_size=loader.batch_size, sampler=sampler)


def _prepare_rows(folder: Path) -> list[int]:
    from accelerate import Accelerator

    return loop(Accelerator(cpu=True).prepare(_rows_of(make(folder, padding="max_length"))))


def _prepare_batches(folder: Path) -> list[int]:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    batches = DataLoader(make(folder).as_dataset(), batch_size=None)
    return loop(Accelerator(cpu=True).prepare(batches))


def _megatron(folder: Path, rank: int) -> None:
    from megatron.core import parallel_state

    from penstock.extras.trainers.megatron import MegatronBatches

    def train(**options: Any) -> list[int]:
        loader = make(folder, labels="shifted", **options)
        return [
            int(number) for batch in MegatronBatches(loader) for number in batch["tokens"][:, 0]
        ]

    record(folder, "megatron: no state", rank, train)
    for groups in ({"tensor_model_parallel_size": RANKS}, {"context_parallel_size": RANKS}, {}):
        name = next(iter(groups), "data").partition("_")[0]
        parallel_state.initialize_model_parallel(**groups)
        data_rank = parallel_state.get_data_parallel_rank()
        data_size = parallel_state.get_data_parallel_world_size()
        right = partial(train, rank=data_rank, world_size=data_size)
        record(folder, f"megatron, {name}: untold", rank, train)
        record(folder, f"megatron, {name}: right", rank, right)
        record(folder, f"megatron, {name}: packed", rank, partial(right, packing="best_fit"))
        record(folder, f"megatron, {name}: one", rank, partial(train, rank=0, world_size=1))
        parallel_state.destroy_model_parallel()


def groups(folder: Path) -> None:
    from accelerate import debug_launcher

    debug_launcher(_in_groups, (folder,), num_processes=RANKS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    *arguments, home = sys.argv[1:]
    name, *rest = arguments
    globals()[name](*rest, Path(home))
