"""SkyRL's real SFT trainer, on its own data path and with a Loader, whole, killed and resumed: python skyrl_sft_job.py FOLDER.

Its loop, its collator, its evaluation and its checkpoints are SkyRL's.  A list of what was trained stands for the weights.
"""

import json
import random
import sys
import typing
from pathlib import Path

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # pydantic refuses SkyRL's on Python 3.11

from skyrl.train.config.sft_config import SFTConfig  # noqa: E402
from skyrl.train.sft_trainer import SFTTrainer, tokenize_chat_example  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

import penstock as ps  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from penstock.trainers.skyrl import LoaderSkyRLTrainer  # noqa: E402
from tests.extras.media import vlm  # noqa: E402

folder = Path(sys.argv[1])
BATCH, EPOCHS, RECORDS, DIE_AT = 4, 3, 18, 7
rng = random.Random(4)
TURN = [["user", "assistant"], ["user", "assistant", "user", "assistant"]]


def record() -> dict:
    roles = rng.choice(TURN)
    return {
        "messages": [
            {"role": role, "content": " ".join(rng.choices(vlm.WORDS, k=rng.randint(1, 12)))}
            for role in roles
        ]
    }


records = [record() for _ in range(RECORDS)]
vlm.processor_folder(folder / "model", "qwen2_5_vl")
for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
    (folder / "model" / name).unlink()
tokenizer = AutoTokenizer.from_pretrained(folder / "model", padding_side="left")


class Killed(BaseException):
    """The process is gone."""


class Metrics:
    metrics: typing.ClassVar = {"loss": 1.0}


class Policy:
    """The weights and their checkpoints."""

    def __init__(self, die_at: int) -> None:
        self.trained, self.evaluated, self.die_at = [], [], die_at

    def dp_size(self, _):
        return 2

    def forward_backward(self, _, batch, **options):
        self.trained.append(rows_of(batch))
        return Metrics

    def forward(self, _, batch, **options):
        self.evaluated += rows_of(batch)
        return Metrics

    def optim_step(self, _):
        if len(self.trained) == self.die_at:
            raise Killed
        return 0.0

    def save_checkpoint(self, _, path, tokenizer):
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "weights.json").write_text(json.dumps(self.trained))

    def load_checkpoint(self, _, path, **options):
        self.trained = json.loads((Path(path) / "weights.json").read_text())


class Quiet:
    def log(self, *args, **options): ...
    def finish(self): ...


def rows_of(batch) -> list:
    """Real rows without padding: ids, and which are trained."""
    found = []
    for ids, mask, loss in zip(
        batch["sequences"].tolist(),
        batch["attention_mask"].tolist(),
        batch["loss_mask"].tolist(),
        strict=True,
    ):
        size = sum(mask)
        trained = [weight > 0 for weight in loss]
        trained = [False] * (len(ids) - len(trained)) + trained
        if any(trained):
            found.append([ids[-size:], trained[-size:]])
    return found


def config(name: str, **options) -> SFTConfig:
    cfg = SFTConfig(strategy="fsdp")
    cfg.batch_size, cfg.micro_train_batch_size_per_gpu = BATCH, 1
    cfg.num_steps, cfg.num_epochs, cfg.max_length, cfg.seed = None, EPOCHS, 512, 7
    cfg.placement.num_nodes, cfg.placement.num_gpus_per_node = 1, 2
    cfg.ckpt_path, cfg.ckpt_interval, cfg.resume_from = str(folder / name), 2, "latest"
    cfg.hf_save_interval, cfg.eval_interval, cfg.dataloader_num_workers = -1, 5, 0
    cfg.enable_ray_gpu_monitor, cfg.eval_dataset_name = False, "the Loader's"
    for key, value in options.items():
        setattr(cfg, key, value)
    return cfg


def ready(trainer, die_at: int = -1):
    """What setup() does, without Ray and GPUs."""
    trainer.tokenizer = tokenizer
    trainer.collator = trainer._build_collator(tokenizer)
    trainer.tracker, trainer.dispatch = Quiet(), Policy(die_at)
    return trainer


store = ps.prepare(
    records,
    tokenizer=folder / "model",
    train_on="last",
    cache_dir=folder / "cache",
    num_proc=1,
    progress="none",
)


def open_loader(**options) -> ps.Loader:
    usual = {"batch_size": BATCH, "max_length": 512, "packing": "none", "rank": 0, "world_size": 1}
    return ps.Loader(store, **{**usual, "seed": 3, **options})


def run(name: str, lives: list[int]) -> dict:
    for die_at in lives:
        trainer = ready(
            LoaderSkyRLTrainer(
                config(name), loader=open_loader(), eval_loader=open_loader(shuffle=False)
            ),
            die_at,
        )
        try:
            trainer.train()
        except Killed:
            continue
    return {"trained": trainer.dispatch.trained, "evaluated": trainer.dispatch.evaluated}


class Own(SFTTrainer):
    """SkyRL's own data path, from the same records."""

    def load_dataset(self):
        found = [tokenize_chat_example(each, tokenizer, max_length=512) for each in records]
        return [each for each in found if each is not None]

    def load_eval_dataset(self):
        return None


def own() -> list:
    trainer = ready(Own(config("own")))
    trainer.train()
    return trainer.dispatch.trained


def refused(**options) -> str:
    cfg = options.pop("cfg", {})
    try:
        LoaderSkyRLTrainer(config("refused", **cfg), loader=open_loader(**options))
    except PenstockError as error:
        return str(error)
    return "accepted"


def without_state() -> str:
    for file in (folder / "killed").glob("*/penstock_loader.json"):
        file.unlink()
    trainer = ready(LoaderSkyRLTrainer(config("killed"), loader=open_loader()))
    try:
        trainer.train()
    except PenstockError as error:
        return str(error)
    return "accepted"


found = {
    "own": own(),
    "whole": run("whole", [-1]),
    "killed": run("killed", [DIE_AT, 11, -1]),
    "refused": {
        "batch": refused(batch_size=2),
        "epochs": refused(epochs=None),
        "packing": refused(packing="first_fit"),
        "world": refused(world_size=2),
        "labels": refused(labels="shifted"),
    },
}
found["refused"]["file"] = without_state()
print(json.dumps(found))
