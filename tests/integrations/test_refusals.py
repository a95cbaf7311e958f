"""What contradicts itself is refused before anything is trained, with a word on what to change."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# In a process of its own: the frameworks warn when imported, and set what cannot be set back.
SCRIPT = """
import json, sys
from pathlib import Path
import transformers
from transformers import TrainingArguments
from trl import SFTConfig
import torch
from lightning.pytorch import LightningModule, Trainer
from penstock.errors import PlanError
from penstock.integrations.hf_trainer import LoaderTrainer
from penstock.integrations.lightning import LoaderModule
from penstock.integrations.model_inputs import ModelInputs
from penstock.integrations.trl import LoaderSFTTrainer
from tests.integrations.runs import hf_arguments, make_model, open_loader

folder = Path(sys.argv[1])
model = make_model()
said = {}

def refused(name, make):
    try:
        make()
    except PlanError as error:
        said[name] = str(error)

def hugging_face(loader={}, resume=None, **arguments):
    arguments = TrainingArguments(**{**hf_arguments(folder), "save_strategy": "no", **arguments})
    trainer = LoaderTrainer(model=model, args=arguments, loader=open_loader(folder, **loader))
    trainer.train(resume_from_checkpoint=resume)
    return trainer

class Tiny(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, number):
        return (self.weight * batch["input_ids"].sum()).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)

def lightning(resume=None, **options):
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, **options)
    trainer.fit(Tiny(), datamodule=LoaderModule(open_loader(folder)), ckpt_path=resume)
    return trainer

refused("numpy", lambda: hugging_face({"output": "numpy"}))
refused("shifted", lambda: hugging_face({"labels": "shifted"}))
refused("per_epoch", lambda: hugging_face({"per_epoch": True}))
refused("num_train_epochs", lambda: hugging_face(num_train_epochs=5))
refused("max_steps", lambda: hugging_face(max_steps=999))
refused("endless", lambda: hugging_face({"epochs": None}))
refused("auto_find_batch_size", lambda: hugging_face(auto_find_batch_size=True))
for name in ("packing", "padding_free", "assistant_only_loss", "completion_only_loss"):
    config = SFTConfig(output_dir=str(folder), bf16=False, **{name: True})
    refused(name, lambda: LoaderSFTTrainer(model=model, args=config, loader=open_loader(folder)))
refused("train_dataset", lambda: LoaderSFTTrainer(model=model, loader=open_loader(folder), train_dataset=[1]))
refused("lightning endless", lambda: LoaderModule(open_loader(folder, epochs=None)))
refused("lightning epochs", lambda: lightning(max_epochs=3))
stopped = lightning(max_epochs=1, max_steps=4)
stopped.save_checkpoint(folder / "stopped.ckpt")  # Lightning takes that pass for a whole one, and would train nothing more
refused("lightning stopped", lambda: lightning(folder / "stopped.ckpt", max_epochs=1))
said["lightning steps"] = [lightning(folder / "stopped.ckpt", max_epochs=2).global_step, len(open_loader(folder))]

# What is allowed does what it says: an endless loader stops at max_steps, an epoch's end saves, a foreign checkpoint is refused.
said["endless steps"] = hugging_face({"epochs": None}, max_steps=4).state.global_step
trainer = hugging_face(save_strategy="epoch", gradient_accumulation_steps=1)
home = folder / "checkpoints"
said["saved at"] = sorted(int(path.name.partition("-")[2]) for path in home.iterdir())
said["epoch ends"] = [len(open_loader(folder, epochs=1)), len(open_loader(folder))]
last = home / f"checkpoint-{said['saved at'][-1]}"
(last / "penstock.json").unlink()
refused("foreign", lambda: hugging_face(resume=str(last)))
first = home / f"checkpoint-{said['saved at'][0]}"
more = hugging_face({"batch_size": 1}, resume=str(first), gradient_accumulation_steps=3)
left = len(open_loader(folder, batch_size=1)) - len(open_loader(folder, batch_size=1, epochs=1))
said["steps with another size"] = [more.state.global_step, said["saved at"][0] + -(-left // 3)]
class Plain:
    def forward(self, input_ids, labels=None): ...
batch = next(iter(open_loader(folder)))
said["plain"] = sorted(ModelInputs(Plain())(batch))
said["llama"] = sorted(ModelInputs(model)(batch))
(folder / "said.json").write_text(json.dumps(said))
"""

EXPECTED = {
    "numpy": "leave output='torch' in the Loader",
    "shifted": "leave labels='unshifted'",
    "per_epoch": "leave out per_epoch",
    "num_train_epochs": "num_train_epochs is 5, the Loader has epochs=2",
    "max_steps": "max_steps is 999, the Loader has 15 steps; give it more epochs",
    "endless": "needs max_steps",
    "auto_find_batch_size": "cannot change the Loader's batch_size",
    "packing": "SFTConfig has packing=True, which is for packing= of the Loader to say",
    "padding_free": "padding_free= of the Loader",
    "assistant_only_loss": "train_on= of prepare",
    "completion_only_loss": "train_on= of prepare",
    "train_dataset": "leave out train_dataset and formatting_func",
    "lightning endless": "set the Loader's epochs",
    "lightning epochs": "max_epochs=3; the Loader counts its 2 epochs itself, and Lightning makes one pass more: pass max_epochs=1",
    "lightning stopped": "pass max_epochs=2",
    "foreign": "has no penstock.json: it was saved by a trainer without a Loader",
}


def test_contradictions_are_refused_by_name(folder):
    for package in ("transformers", "trl", "lightning"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    env = {**os.environ, "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    job = [sys.executable, "-c", SCRIPT, folder]
    result = subprocess.run(job, cwd=ROOT, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    said = json.loads((folder / "said.json").read_text())
    assert {name: text for name, text in EXPECTED.items() if text not in said.get(name, "nothing")} == {}
    assert said["endless steps"] == 4
    assert said["lightning steps"][0] == said["lightning steps"][1]
    assert said["saved at"] == said["epoch ends"]  # the Trainer's one pass knows where epochs end
    assert said["steps with another size"][0] == said["steps with another size"][1]
    assert said["plain"] == ["input_ids", "labels"]
    assert {"position_ids", "cu_seq_lens_q", "max_length_k", "seq_idx"} < set(said["llama"])
