"""trl's real GRPOTrainer on Prompts: killed anywhere and resumed, it trains every prompt once, in order."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PlanError

# steps_per_generation, gradient_accumulation_steps, num_iterations
SHAPES = {"usual": (1, 1, 1), "reuses": (2, 1, 2), "accumulates": (2, 4, 1)}


def open_prompts(folder: Path, **options: Any) -> ps.Prompts:
    return ps.Prompts(
        ps.open(folder / "math.jsonl", cache_dir=folder / "cache"),
        seed=3,
        **{"repeats": 2, **options},
    )


def make_trainer(folder: Path, shape: str, prompts: ps.Prompts, seen: Any, **options: Any) -> Any:
    import torch
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig

    from penstock.extras.rl.grpo import PromptsGRPOTrainer
    from tests.extras.trainers.models import llama

    torch.set_num_threads(1)
    steps, accumulate, iterations = SHAPES[shape]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"),
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    )
    arguments = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": accumulate,
        "steps_per_generation": steps,
        "num_iterations": iterations,
        "num_generations": 2,
        "max_completion_length": 4,
        "max_steps": 8,
        "save_steps": 4,
        "report_to": [],
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "activation_checkpointing": False,
        "logging_steps": 100,
        "learning_rate": 1e-3,
        "seed": 1,
    }
    return PromptsGRPOTrainer(
        model=llama(),
        args=GRPOConfig(**{**arguments, **options}),
        reward_funcs=seen,
        processing_class=tokenizer,
        prompts=prompts,
    )


def run(folder: Path, shape: str, die_at: int | None) -> None:
    """Train; log the records that reward functions see at each generation; die at one of them."""
    log, count = (folder / "log.jsonl").open("a"), 0

    def reward(prompts: list[str], gold: list[int], **_: Any) -> list[float]:
        nonlocal count
        count += 1
        log.write(json.dumps({"gold": gold, "pid": os.getpid()}) + "\n")
        log.flush()
        if count == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return [float(n % 2) for n in range(len(prompts))]

    prompts = open_prompts(folder)
    trainer = make_trainer(folder, shape, prompts, reward)
    checkpoints = sorted((folder / "out").glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
    (folder / "counts.json").write_text(json.dumps(prompts.counts))


def make_folder(folder: Path, tokenizer: Path) -> Path:
    rows = [{"prompt": f"what is {n}", "gold": n} for n in range(40)]
    (folder / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tokenizer").symlink_to(tokenizer)
    return folder


def generations(shape: str, steps: int) -> int:
    per_generation, accumulate, iterations = SHAPES[shape]
    return steps * accumulate // (per_generation * iterations)


def run_all(folder: Path) -> None:
    """Import trl once, then train each shape in two children: one is killed after the checkpoint at step 4, one resumes."""
    for module in ("penstock.extras.rl.grpo", "transformers.models.llama.modeling_llama"):
        importlib.import_module(module)

    for shape in SHAPES:
        for die_at in (generations(shape, 4) + 1, None):
            child = os.fork()
            if not child:
                run(folder / shape, shape, die_at)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert os.waitstatus_to_exitcode(status) == (
                0 if die_at is None else -signal.SIGKILL
            ), shape


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path) -> Path:
    folder = tmp_path_factory.mktemp("grpo")
    for shape in SHAPES:
        (folder / shape).mkdir()
        make_folder(folder / shape, tokenizer_path)
    command = [sys.executable, "-m", "tests.extras.rl.test_grpo", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("shape", SHAPES)
def test_killed_in_a_generation_and_resumed_it_trains_every_prompt_once(
    trained: Path, shape: str
) -> None:
    folder, saved, total = trained / shape, generations(shape, 4), generations(shape, 8)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    first = [line["gold"] for line in lines if line["pid"] == lines[0]["pid"]]
    second = [line["gold"] for line in lines if line["pid"] != lines[0]["pid"]]
    assert (
        len(first) == saved + 1 and first[saved] == second[0]
    )  # in flight at the kill: generated again, not lost
    expected = [
        each.record["gold"] for each in open_prompts(folder).take(total * len(first[0]) // 2)
    ]
    assert [gold for group in [*first[:saved], *second] for gold in group] == [
        n for n in expected for _ in range(2)
    ]
    counts = json.loads((folder / "counts.json").read_text())
    assert counts["done"] == counts["frontier"] == counts["next"] == len(expected)


@pytest.mark.soak
def test_what_would_lose_prompts_or_train_them_twice_is_refused(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    folder = make_folder(tmp_path, tokenizer_path)

    def reward(prompts: list[str], **_: Any) -> list[float]:
        return [0.0] * len(prompts)

    with pytest.raises(
        PlanError,
        match=r"save_strategy='steps', save_steps=3: groups wait for 4 steps to be trained.*save every 4 steps",
    ):
        make_trainer(folder, "reuses", open_prompts(folder), reward, save_steps=3)
    with pytest.raises(
        PlanError, match="max_steps=6 ends between two generations, which are 4 steps apart"
    ):
        make_trainer(folder, "reuses", open_prompts(folder), reward, max_steps=6)
    with pytest.raises(PlanError, match=r"repeats=8 and the GRPOConfig has num_generations=2"):
        make_trainer(folder, "usual", open_prompts(folder, repeats=8), reward)
    with pytest.raises(PlanError, match=r"epochs=1 and max_steps=8: expected endless Prompts"):
        make_trainer(folder, "usual", open_prompts(folder, epochs=1), reward)
    (folder / "math.jsonl").write_text('{"question": "x"}\n')
    with pytest.raises(
        PlanError, match=r"math.jsonl:1: the record has \['question'\], expected the key 'prompt'"
    ):
        make_trainer(folder, "usual", open_prompts(folder), reward).train()


@pytest.mark.soak
@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)  # of trl
def test_leases_that_run_out_and_a_second_train_lose_nothing_and_train_nothing_twice(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    folder, seen = make_folder(tmp_path, tokenizer_path), []

    def reward(prompts: list[str], gold: list[int], **_: Any) -> list[float]:
        seen.extend(gold[::2])
        return [float(n % 2) for n in range(len(prompts))]

    prompts = open_prompts(
        folder, lease=1e-9
    )  # over before the next call: two generations make one step
    make_trainer(folder, "accumulates", prompts, reward, save_strategy="no", max_steps=4).train()
    assert len(set(seen)) == len(seen) == prompts.counts["done"] == 32

    seen.clear()
    prompts = open_prompts(folder)
    trainer = make_trainer(folder, "reuses", prompts, reward, save_strategy="no", max_steps=6)
    for _ in range(2):  # ends within a generation, whose prompts the second call takes again
        trainer.train()
    assert seen[4:8] == seen[8:12] and len(set(seen)) == prompts.counts["next"] == 12
    assert prompts.counts["done"] == 8 and prompts.counts["leased"] == 4


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
