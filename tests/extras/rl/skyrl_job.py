"""SkyRL's real fully asynchronous trainer on Prompts, killed at random steps and resumed: python skyrl_job.py FOLDER.

Its loop, its staleness control, its generation workers and its checkpoints are SkyRL's.  Generation sleeps, and the "weights" are the list
of all that was trained, which is saved as the policy's checkpoint.  A kill ends the event loop anywhere in a step; the next life has new
objects, and what a checkpoint holds.
"""

import asyncio
import json
import random
import sys
import typing
from pathlib import Path

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # pydantic refuses SkyRL's on Python 3.11

import datasets  # noqa: E402
from skyrl.train.config.config import SkyRLTrainConfig  # noqa: E402
from skyrl.train.dataset.dataset import _prompt_not_too_long  # noqa: E402

import penstock as ps  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from penstock.extras.rl.skyrl import PromptFilter, PromptsFullyAsyncTrainer  # noqa: E402

folder = Path(sys.argv[1])
rng = random.Random(5)
NUM_PROMPTS, MINI_BATCH, EPOCHS = 23, 4, 4


class Killed(BaseException):
    """The process is gone."""


class Generator:
    """Some rollouts take long; each group has equal rewards if its prompt says so."""

    async def generate(self, batch):
        for _ in range(rng.choice([1, 1, 1, 40])):
            await asyncio.sleep(0)
        size = len(batch["prompts"])
        rewards = [float(n % 2 and not batch["env_extras"][0]["easy"]) for n in range(size)]
        return {
            "response_ids": [[1]] * size,
            "rewards": rewards,
            "loss_masks": [[1]] * size,
            "prompt_token_ids": [[1]] * size,
        }


class Tokenizer:
    """A token for each character of a prompt."""

    def apply_chat_template(self, messages, **options):
        return [0] * sum(len(message["content"]) for message in messages)


class Policy:
    """The weights and their checkpoints."""

    def __init__(self):
        self.weights = []

    def save_checkpoint(self, _, path, tokenizer):
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "weights.json").write_text(json.dumps(self.weights))

    def load_checkpoint(self, _, path, **options):
        self.weights = json.loads((Path(path) / "weights.json").read_text())

    def finalize_pending_saves(self, _): ...  # versions after 0.3.0 call it

    async def save_weights_for_sampler(self):
        await asyncio.sleep(0)


class Quiet:
    """SkyRL's tracker."""

    def log(self, *args, **options): ...
    def finish(self): ...


class Trainer(PromptsFullyAsyncTrainer):
    """Trains by writing down; dies after some steps."""

    steps_to_live = -1

    def init_weight_sync_state(self): ...
    def _cleanup_old_checkpoints(self): ...

    def convert_generation_group_mini_batch_to_training_input(self, groups, dropped):
        return [int(group.uid) for group in groups]

    async def _run_training(self, ordinals):
        self.steps_to_live -= 1
        if not self.steps_to_live and rng.random() < 0.5:
            raise Killed
        self.dispatch.weights.append(ordinals)
        await asyncio.sleep(0)
        if not self.steps_to_live:
            raise Killed
        return {}


def open_prompts(**options):
    rows = [
        {"prompt": [{"role": "user", "content": str(n)}], "id": n, "easy": n % 5 == 0}
        for n in range(NUM_PROMPTS)
    ]
    return ps.Prompts(ps.open(rows), **{"repeats": 2, "seed": 3, **options})


def make(*, full: bool, prompts=None, mini_batch: int = MINI_BATCH) -> Trainer:
    config = SkyRLTrainConfig()
    trainer, generator = config.trainer, config.generator
    trainer.placement.colocate_all = False
    trainer.fully_async.enabled, trainer.fully_async.max_staleness_steps = True, 2
    trainer.fully_async.num_parallel_generation_workers = mini_batch + 6
    trainer.fully_async.sample_full_batch = trainer.algorithm.zero_variance_filter = full
    trainer.train_batch_size = trainer.policy_mini_batch_size = mini_batch
    trainer.epochs, trainer.ckpt_interval, trainer.hf_save_interval, trainer.eval_interval = (
        EPOCHS,
        2,
        -1,
        -1,
    )
    trainer.ckpt_path, trainer.resume_mode = str(folder / f"checkpoints-{full}"), "latest"
    trainer.algorithm.policy_loss_type = "rollout_is"
    trainer.critic.model.path = None
    generator.batched, generator.n_samples_per_prompt = False, 2
    generator.inference_engine.enable_ray_prometheus_stats = trainer.enable_ray_gpu_monitor = False
    made = Trainer(
        cfg=config,
        tracker=Quiet(),
        tokenizer=Tokenizer(),
        train_dataset=prompts or open_prompts(),
        inference_engine_client=None,
        generator=Generator(),
    )
    made.dispatch = Policy()
    return made


def live(*, full: bool) -> dict:
    """Train to the end over several lives; return what the weights have seen, and what was in flight when they were saved last."""
    lives, lost = 0, 0
    while True:
        trainer = make(full=full)
        trainer.steps_to_live = rng.randrange(2, 5) if lives < 10 else -1
        try:
            asyncio.run(trainer.train())
            break
        except Killed:
            lives, lost = lives + 1, lost + trainer.prompts.counts["leased"]
    counts, trained = trainer.prompts.counts, trainer.dispatch.weights
    ids = [each.record["id"] for each in open_prompts().take(counts["next"])]
    return {
        "trained": trained,
        "ids": [ids[ordinal] for step in trained for ordinal in step],
        "counts": counts,
        "in_flight_at_kills": lost,
        "kills": lives,
    }


def refused(do) -> str:
    try:
        do()
    except PenstockError as error:
        return str(error)
    return "accepted"


def refusals() -> dict:
    found = {
        "repeats": refused(lambda: make(full=False, prompts=open_prompts(repeats=8))),
        "small": refused(lambda: make(full=False, mini_batch=24)),
    }
    other = make(full=False, prompts=ps.Prompts(ps.open([{"id": n} for n in range(9)]), repeats=2))
    found["key"] = refused(
        lambda: asyncio.run(other.async_train_dataloader.get_next_non_consumed_data())
    )
    long = [{"prompt": [{"role": "user", "content": "x" * (500 + n)}]} for n in range(30)]
    overlong = make(full=False, prompts=ps.Prompts(ps.open(long), repeats=2, shuffle=False))

    async def take_all():
        while await overlong.async_train_dataloader.get_next_non_consumed_data():
            pass

    found["long"] = refused(lambda: asyncio.run(take_all()))
    keep = PromptFilter(Tokenizer(), SkyRLTrainConfig().trainer.max_prompt_length)
    found["kept"] = ps.Prompts(ps.open(long), repeats=2, filter=keep, num_proc=1).prompts_per_epoch
    found["kept by skyrl"] = len(
        datasets.Dataset.from_list(long).filter(
            _prompt_not_too_long,
            fn_kwargs={"tokenizer": Tokenizer(), "prompt_key": "prompt", "max_length": 512},
        )
    )
    for file in folder.glob("checkpoints-False/*/penstock_prompts.json"):
        file.unlink()
    found["file"] = refused(make(full=False).load_checkpoints)
    return found


print(json.dumps({"plain": live(full=False), "filtered": live(full=True), "refused": refusals()}))
