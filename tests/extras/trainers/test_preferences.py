"""trl's DPO, KTO and Reward trainers on a Loader: batches and losses are those of trl's own data path, killed and resumed or not."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.policy import first_in_short_runs

from .preferences import DIE_AT, NAMES

ROOT = Path(__file__).parents[3]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ENVIRONMENT = {
    "PYTHONWARNINGS": "ignore",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TQDM_DISABLE": "1",
}


@pytest.fixture
def home(tmp_path: Path, tokenizer_path: Path) -> Path:
    """A folder with a tokenizer whose chat template is ChatML, and whose id 1 pads."""
    folder = tmp_path / "home"
    shutil.copytree(tokenizer_path, folder / "tokenizer")
    text = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())
    pad = next(token for token, number in text["model"]["vocab"].items() if number == 1)
    config = {
        "eos_token": "<|endoftext|>",
        "pad_token": pad,
        "chat_template": CHATML,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def run(code: list[str]) -> str:
    env = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, *code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", first_in_short_runs(NAMES))
def test_batches_and_losses_are_trls_and_survive_a_kill(name: str, home: Path) -> None:
    run(["-m", "tests.extras.trainers.preferences", name, str(home)])
    found = {part: lines(home / f"{part}.jsonl") for part in ("trl", "whole", "cut", "rest")}
    assert (
        len(found["trl"]) == 9
    )  # two epochs of four steps, the last of which is short, and an evaluation
    assert [
        len(line["arrays"]["input_ids"]) // (1 if name == "kto" else 2) for line in found["trl"][:4]
    ] == [
        4,
        4,
        4,
        2,
    ]
    assert found["whole"] == found["trl"]  # to the last bit
    assert found["cut"] == found["whole"][:DIE_AT]
    kept = len(found["whole"]) - len(found["rest"])
    assert 0 < kept < DIE_AT  # it went on from a checkpoint, not from the start
    assert found["rest"] == found["whole"][kept:]
    assert ("margin" in found["trl"][0]["arrays"]) == (name == "reward")


REFUSALS = """
import json, sys
from pathlib import Path
import torch
import penstock as ps
from penstock.errors import PlanError
from penstock.extras.trainers.hf_trainer import LoaderTrainer
from transformers import TrainingArguments
from tests.extras.trainers.preferences import arguments, make_model, make_rows, open_loader, open_tokenizer, parts

folder, said = Path(sys.argv[1]), {}

def refused(what, name, loader, **more):
    trainer, config = parts(name)[2], parts(name)[1]
    evaluated = {"eval_dataset": more.pop("eval_dataset")} if "eval_dataset" in more else {}
    try:
        trainer(model=make_model(name, folder / name), args=config(**arguments(folder, **more)), loader=loader,
                processing_class=open_tokenizer(folder), **evaluated)
    except PlanError as error:
        said[what] = str(error)

for name in ("dpo", "kto", "reward"):
    (folder / name).mkdir()
loaders = {name: open_loader(name, folder) for name in ("dpo", "kto")}
refused("answers for dpo", "dpo", loaders["kto"])
refused("pairs for kto", "kto", loaders["dpo"])
refused("evaluation on answers", "dpo", loaders["dpo"], eval_dataset=open_loader("kto", folder, epochs=1))
positional = parts("dpo")[2](make_model("dpo", folder / "dpo"), make_model("dpo", folder / "dpo"), parts("dpo")[1](**arguments(folder)),
                             loader=loaders["dpo"], processing_class=open_tokenizer(folder))
said["positional"] = positional.args.learning_rate
refused("padding", "reward", open_loader("reward", folder, pad_token_id=0))
refused("precomputed", "dpo", loaders["dpo"], precompute_ref_log_probs=True)
refused("length", "dpo", loaders["dpo"], max_length=2048)
refused("agrees", "dpo", open_loader("dpo", folder, max_length=256), max_length=256)
refused("agrees", "kto", open_loader("kto", folder, max_length=256), max_length=256)
refused("cuts", "dpo", loaders["dpo"], truncation_mode="keep_end")
steps = [{"prompt": "fox", "completions": ["runs"], "labels": [True]}] * 4
tokens = ps.Loader(ps.prepare([{"text": "fox runs"}] * 4, tokenizer=folder / "tokenizer", cache_dir=folder / "cache"), batch_size=2)
refused("tokens for dpo", "dpo", tokens)
prompts = ps.Loader(ps.prepare([{"prompt": "fox"}] * 4, tokenizer=folder / "tokenizer", cache_dir=folder / "cache"),
                    batch_size=2, packing="none")
said_rows = [{"messages": [{"role": "user", "content": "fox"}, {"role": "assistant", "content": "dog", "weight": 0.5}]}] * 4
weighed = ps.Loader(ps.prepare(said_rows, tokenizer=folder / "tokenizer", cache_dir=folder / "cache", message_weights=True), batch_size=2,
                    epochs=1)
judged = ps.Loader(ps.prepare(steps, tokenizer=folder / "tokenizer", cache_dir=folder / "cache"), batch_size=2, packing="none",
                   epochs=1)
options = {"args": TrainingArguments(output_dir=str(folder / "out"), use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no")}
for what, loader in (("pairs", loaders["dpo"]), ("prompts", prompts), ("weights", weighed), ("steps for a language model", judged)):
    try:
        smoothed = TrainingArguments(output_dir=str(folder / "out"), use_cpu=True, report_to=[], label_smoothing_factor=0.1)
        LoaderTrainer(model=make_model("dpo", folder / "dpo"), loader=loader, args=smoothed)
    except PlanError as error:
        said[what] = str(error)

from penstock.extras.trainers.trl import LoaderSFTTrainer
try:
    LoaderSFTTrainer(model=make_model("dpo", folder / "dpo"), loader=judged)
except PlanError as error:
    said["steps for sft"] = str(error)

class Weighed(LoaderTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weights, labels = inputs.pop("weights"), inputs["labels"]
        assert ((weights > 0) == (labels != -100)).all() and set(weights.unique().tolist()) == {0.0, 0.5}
        logits = model(**inputs).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
        return (losses * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()

made = Weighed(model=make_model("dpo", folder / "dpo"), loader=weighed, **options)
made.train()
said["weighed steps"] = made.state.global_step

from transformers import LlamaForTokenClassification, LlamaConfig
from tests.extras.trainers.models import SMALL
store = ps.prepare(steps, tokenizer=folder / "tokenizer", cache_dir=folder / "cache")
model = LlamaForTokenClassification(LlamaConfig(**SMALL, num_labels=2))
loader = ps.Loader(store, batch_size=2, packing="none", epochs=1)
made = LoaderTrainer(model=model, loader=loader, eval_dataset=ps.Loader(store, batch_size=2, packing="none"), **options)
made.train()
model.eval()
batch = next(iter(ps.Loader(store, batch_size=4, packing="none")))
with torch.no_grad():
    logits = model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).logits
true = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
said["judged steps"] = [made.state.global_step, abs(made.evaluate()["eval_loss"] - float(true)) < 1e-5]
print(json.dumps(said))
"""


def test_what_a_trainer_cannot_train_on_is_refused_by_name(home: Path) -> None:
    said = json.loads(run(["-c", REFUSALS, str(home)]).splitlines()[-1])
    expected = {
        "answers for dpo": "LoaderDPOTrainer trains on pairs, and the Loader has judged answers; use LoaderKTOTrainer",
        "pairs for kto": "LoaderKTOTrainer trains on judged answers, and the Loader has pairs; use LoaderDPOTrainer or LoaderRewardTrainer",
        "evaluation on answers": "LoaderDPOTrainer trains on pairs, and the Loader has judged answers",
        "padding": "the Loader pads with pad_token_id=0, and the model finds the end of a sequence by its pad_token_id, "
        "1; pass pad_token_id=1",
        "precomputed": "DPOConfig has precompute_ref_log_probs=True, which would have no effect: batches of the Loader have no",
        "length": "max_length= of the Loader (1024) decides; set it there",
        "cuts": "DPOConfig has truncation_mode='keep_end'",
        "tokens for dpo": "LoaderDPOTrainer trains on pairs, and the Loader has tokens; use LoaderTrainer or LoaderSFTTrainer",
        "pairs": "LoaderTrainer trains on tokens or judged steps, and the Loader has pairs; use LoaderDPOTrainer",
        "prompts": "the Loader has prompts; use a loop of your own: prompts have nothing to train",
        "steps for a language model": "LlamaForCausalLM is not a model that classifies tokens, and the labels of judged steps are classes",
        "steps for sft": "LoaderSFTTrainer trains on tokens, and the Loader has judged steps; use LoaderTrainer with a model",
        "weights": "the Loader has weights of tokens, and the loss of LoaderTrainer does not use them: label_smoothing_factor=0.1 is "
        "not weighted",
    }
    for name, words in expected.items():
        assert words in said.pop(name), name
    assert said.pop("positional") == 1e-3  # ref_model comes before args
    assert said == {"weighed steps": 1, "judged steps": [2, True]}
