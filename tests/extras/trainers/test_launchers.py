"""Every launcher, with real processes: each rank trains its own rows, or the Loader is refused by name."""

import json
import os
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests.policy import first_in_short_runs

from .launchers import RANKS, SAMPLES

pytest.importorskip("accelerate")
pytest.importorskip("lightning")

ROOT = Path(__file__).parents[3]
QUIET = {
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
    "PENSTOCK_PATIENCE": "60",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
ALONE = "the Loader was made as rank 0 of 1"

# What becomes of a Loader: the ranks share the rows, each rank has all rows, or it is refused.
SHARED = "each rank has its own rows, and together they have all"
SAME = "each rank has all rows"


def job(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.extras.trainers.launchers", *arguments]


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the folder, without what a launcher of this process has set."""
    launched = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE")
    inherited = {name: value for name, value in os.environ.items() if name not in launched}
    return subprocess.run(
        [*command, str(folder)],
        cwd=ROOT,
        env={**inherited, **QUIET, **environment},
        capture_output=True,
        text=True,
    )


def verdict(folder: Path, name: str) -> str:
    """Say what became of one Loader on all ranks; the refusal of the first rank that was refused."""
    outcomes = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-?.json"))]
    refusals = [outcome["refused"] for outcome in outcomes if "refused" in outcome]
    if refusals:
        trained = [outcome for outcome in outcomes if "rows" in outcome]
        assert trained == [], f"{name}: some ranks trained although others were refused"
        return str(refusals[0])
    assert len(outcomes) == RANKS, f"{name}: {len(outcomes)} ranks have written"
    rows = [sorted(outcome["rows"]) for outcome in outcomes]
    every_row = list(range(SAMPLES))
    if all(of_rank == every_row for of_rank in rows):
        return SAME
    return SHARED if sorted(chain.from_iterable(rows)) == every_row else f"rows {rows}"


def expect(folder: Path, expected: dict[str, str], output: str) -> None:
    found = {name: verdict(folder, name) for name in expected}
    wrong = {name: found[name] for name, text in expected.items() if text not in found[name]}
    assert wrong == {}, output


NOTEBOOK = {"sent": ALONE, "sent, evaluated": ALONE, "before": SHARED, "after": SHARED}
LAUNCHERS: dict[tuple[str, ...], dict[str, str]] = {
    ("torch_spawn",): {
        "spawn: sent": ALONE,
        "spawn: sent as_dataset": ALONE,
        "spawn: before": ALONE,
        "spawn: before, stream": ALONE,
        "spawn: before, rows": ALONE,
        "spawn: before, workers": ALONE,
        "spawn: before, spawned workers": ALONE,
        "spawn: explicit": SAME,
        "spawn: after": SHARED,
    },
    ("notebook",): {f"notebook: {name}": text for name, text in NOTEBOOK.items()},
    ("debug",): {f"debug: {name}": text for name, text in NOTEBOOK.items()},
    ("lightning_forks",): {
        "ddp_fork: before": ALONE,
        "ddp_fork: after": SHARED,
        "ddp_notebook: before": ALONE,
    },
    ("lightning", "ddp_spawn", "before"): {"ddp_spawn: before": ALONE},
    ("lightning", "ddp_spawn", "after"): {"ddp_spawn: after": SHARED},
}


@pytest.mark.parametrize("launcher", first_in_short_runs(LAUNCHERS), ids=" ".join)
def test_a_loader_made_before_the_group_is_refused_and_one_made_after_it_has_its_own_rows(
    launcher: tuple[str, ...], tmp_path: Path
) -> None:
    """T1: it believed that it was rank 0 of 1, and every rank trained the same rows."""
    result = run(job(*launcher), tmp_path)
    expect(tmp_path, LAUNCHERS[launcher], result.stdout + result.stderr)


@pytest.mark.soak
def test_a_checkpoint_of_lightning_holds_the_state_of_a_loader_that_a_function_made(
    tmp_path: Path,
) -> None:
    result = run(job("lightning_resume"), tmp_path)
    assert (tmp_path / "has-resumed").exists(), result.stdout + result.stderr


def test_torchrun_says_the_rank_before_the_group_runs(tmp_path: Path) -> None:
    """T1: RANK and WORLD_SIZE are in the environment, so both Loaders know their rank."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command = [sys.executable, *torchrun, "-m", "tests.extras.trainers.launchers", "torchrun_rank"]
    result = run(command, tmp_path)
    expected = {"torchrun: before": SHARED, "torchrun: after": SHARED}
    expect(tmp_path, expected, result.stdout + result.stderr)


SLURM: dict[tuple[str, ...], dict[str, str]] = {
    ("slurm_rank",): {"slurm: before": ALONE, "slurm: after": SHARED},
    ("slurm_lightning_rank", "before"): {"slurm, lightning: before": ALONE},
    ("slurm_lightning_rank", "after"): {"slurm, lightning: after": SHARED},
}


@pytest.mark.soak
@pytest.mark.parametrize("program", SLURM, ids=" ".join)
def test_tasks_of_srun_whose_program_makes_the_group(
    program: tuple[str, ...], tmp_path: Path
) -> None:
    """T1: srun says which task this is, and not that the tasks train together; the process group does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    running = []
    for task in range(RANKS):
        of_step = {
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task),
            "SLURM_NODEID": "0",
            "SLURM_NTASKS": str(RANKS),
            "SLURM_NTASKS_PER_NODE": str(RANKS),
            "SLURM_STEP_NUM_TASKS": str(RANKS),
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NAME": "train",
            "SLURM_NODELIST": "127.0.0.1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        running.append(
            subprocess.Popen(
                [*job(*program), str(tmp_path)],
                cwd=ROOT,
                env={**os.environ, **QUIET, **of_step},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    output = "".join(process.communicate()[0] for process in running)
    expect(tmp_path, SLURM[program], output)


@pytest.mark.soak
def test_lightning_starts_the_other_ranks_itself(tmp_path: Path) -> None:
    """T7: `devices=2, strategy="ddp"` under plain python sets WORLD_SIZE and no RANK; LoaderModule makes the Loader late."""
    result = run(job("lightning", "ddp", "after"), tmp_path)
    expect(tmp_path, {"ddp: after": SHARED}, result.stdout + result.stderr)
    result = run(job("lightning", "ddp", "before"), tmp_path)
    told = "give LoaderModule a function that makes the Loader"
    expect(tmp_path, {"ddp: before": told}, result.stdout + result.stderr)


@pytest.mark.soak
def test_the_trainers_of_transformers_and_trl_compare_their_ranks_with_the_loaders(
    tmp_path: Path,
) -> None:
    """T1, T4, T5: also for evaluation Loaders; packed rows are refused under context parallelism."""
    result = run(job("trainers"), tmp_path)
    expected = {
        "trainer: sent": ALONE,
        "trainer: sent, evaluated": ALONE,
        "trainer: after": SHARED,
        "trl: sent": ALONE,
        "trl: after": SHARED,
        "trainer, tp: untold": SAME,
        "trainer, cp: untold": SAME,
        "trainer, sp: untold": "LoaderTrainer has sequence parallelism over 2 ranks",
        "trl, tp: model_parallel_size, packed": SAME,
        "trl, cp: model_parallel_size, packed": "does not keep the samples of a packed row apart",
        "trl, sp: model_parallel_size, packed": "DeepSpeed exchanges whole batches",
        "tp_plan: untold": SAME,
        "tp_plan: model_parallel_size": SAME,
    }
    expect(tmp_path, expected, result.stdout + result.stderr)


@pytest.mark.soak
def test_ranks_that_need_the_same_rows_get_them(
    tmp_path: Path,
) -> None:
    """T4, T5, T12: tensor, context and sequence parallelism under Accelerate, Lightning and Megatron."""
    result = run(job("groups"), tmp_path)
    expected = {
        "tp: untold": SAME,
        "tp: another mesh": "which has tensor parallelism over 2 ranks, it is data-parallel rank 0 of 1",
        "tp: model_parallel_size": SAME,
        "tp: mesh": SAME,
        "tp: model_parallel_size, packed": SAME,
        "cp: untold": SAME,
        "cp: model_parallel_size": SAME,
        "cp: model_parallel_size, packed": "does not keep the samples of a packed row apart",
        "cp: left": "has pad_side='left'",
        "sp: untold": "sequence parallelism over 2 ranks",
        "sp: model_parallel_size": "DeepSpeed exchanges whole batches",
        "lightning: untold": SAME,
        "lightning: model_parallel_size": SAME,
        "lightning: sampler": "pass use_distributed_sampler=False",
        "prepared twice": "accelerator.prepare would divide the rows among the ranks",
        "prepared batches": "accelerator.prepare cannot prepare a DataLoader over loader.as_dataset()",
        "megatron: no state": "Megatron's parallel state is not initialised",
        "megatron, tensor: untold": SAME,
        "megatron, tensor: right": SAME,
        "megatron, tensor: packed": SAME,
        "megatron, context: untold": SAME,
        "megatron, context: right": SAME,
        "megatron, context: packed": "does not keep the samples of a packed row apart",
        "megatron, data: right": SHARED,
        "megatron, data: one": "and for Megatron it is data-parallel rank 0 of 2",
    }
    expect(tmp_path, expected, result.stdout + result.stderr)
