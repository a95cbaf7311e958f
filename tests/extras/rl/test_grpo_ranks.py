"""trl's real GRPOTrainer on Prompts with two ranks over gloo: killed and resumed, the ranks train every prompt once, each its own rows."""

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.extras.rl.test_grpo import make_folder, make_trainer, open_prompts

WORLD, STEPS, SAVED, PROMPTS = (
    2,
    8,
    4,
    4,
)  # PROMPTS: of a generation, which has 8 rows, 4 on each rank


def run(folder: Path, life: str, rank: int, die_at: int | None) -> None:
    """One rank.  It logs the rows that its reward function sees at each generation; rank 1 dies at one of them."""
    import torch.distributed as dist

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
    }
    os.environ |= {
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }  # they meet by a file
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet-{life}", rank=rank, world_size=WORLD
    )
    log, count = (folder / f"log-{life}-{rank}").open("a"), 0

    def reward(prompts: list[str], gold: list[int], **_: Any) -> list[float]:
        nonlocal count
        count += 1
        log.write(json.dumps(gold) + "\n")
        log.flush()
        if count == die_at and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return [float(n % 2) for n in range(len(prompts))]

    prompts = open_prompts(folder)
    if life == "astray" and rank == 1:
        prompts.take(1)  # a second user of the prompts, on one rank
    trainer = make_trainer(folder, "usual", prompts, reward, max_steps=STEPS, save_steps=SAVED)
    checkpoints = sorted((folder / "out").glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
    (folder / f"counts-{rank}.json").write_text(json.dumps(prompts.counts))


def start(folder: Path, life: str, die_at: int | None) -> list[int]:
    """Fork the ranks; return their exit codes.  If one dies, the others are ended: they would wait for it."""
    ranks = []
    for rank in range(WORLD):
        if not (child := os.fork()):
            code = 1
            try:
                run(folder, life, rank, die_at)
                code = 0
            except BaseException as error:
                (folder / f"said-{life}-{rank}").write_text(f"{type(error).__name__}: {error}")
                traceback.print_exc()
            finally:
                os._exit(code)
        ranks.append(child)
    codes: dict[int, int] = {}
    while len(codes) < WORLD:
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child] and life != "astray":  # there both give up by themselves
            for other in ranks:
                if other not in codes:
                    os.kill(other, signal.SIGKILL)
    return [codes[child] for child in ranks]


def run_all(folder: Path) -> None:
    """Import trl once, then fork the ranks of each life from here."""
    for module in ("penstock.extras.rl.grpo", "transformers.models.llama.modeling_llama"):
        importlib.import_module(module)
    assert start(folder, "first", SAVED + 2)[1] == -signal.SIGKILL
    assert start(folder, "second", None) == [0, 0]
    (folder / "out").rename(folder / "trained")
    assert 0 not in start(folder, "astray", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("grpo-ranks"), tokenizer_path)
    command = [sys.executable, "-m", "tests.extras.rl.test_grpo_ranks", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def rows(folder: Path, life: str, rank: int) -> list[list[int]]:
    return [json.loads(line) for line in (folder / f"log-{life}-{rank}").read_text().splitlines()]


def test_two_ranks_killed_and_resumed_train_every_prompt_once_each_rank_its_own_rows(
    trained: Path,
) -> None:
    expected = [each.record["gold"] for each in open_prompts(trained).take(STEPS * PROMPTS)]
    seen: list[list[int]] = []
    for rank in range(WORLD):
        first, second = rows(trained, "first", rank), rows(trained, "second", rank)
        assert (
            len(first) > SAVED and first[SAVED] == second[0]
        )  # in flight at the kill: generated again, not lost
        seen.append([gold for group in [*first[:SAVED], *second] for gold in group])
    half = PROMPTS // WORLD
    for rank in range(WORLD):
        mine = [
            gold
            for start in range(rank * half, len(expected), PROMPTS)
            for gold in expected[start : start + half]
        ]
        assert seen[rank] == [gold for gold in mine for _ in range(2)]
    assert Counter(seen[0] + seen[1]) == Counter([*expected, *expected])
    for rank in range(WORLD):
        counts = json.loads((trained / f"counts-{rank}.json").read_text())
        assert counts["done"] == counts["frontier"] == counts["next"] == len(expected)


def test_ranks_that_took_other_prompts_are_refused(trained: Path) -> None:
    for rank in range(WORLD):
        said = (trained / f"said-astray-{rank}").read_text()
        assert (
            "PlanError: rank 1: took prompts 1 to 4, and rank 0 took prompts 0 to 3; open the same Prompts"
            in said
        )


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
