"""What contradicts itself is refused before anything is trained, with a word on what to change."""

import json

import pytest

from penstock.errors import PlanError
from penstock.extras.trainers.guards import expect_loader
from penstock.extras.trainers.parallelism import TrainerRanks, refuse_groups

from .conftest import make_folder, need, run_job

# Arguments that a Loader replaces, at a value that contradicts it, and what is said.
TRAINING = [
    (
        {"per_device_train_batch_size": 4},
        "per_device_train_batch_size=4, which would have no effect: batch_size= of the Loader (2)",
    ),
    (
        {"num_train_epochs": 5},
        "num_train_epochs=5, which would have no effect: epochs= of the Loader (2) decides",
    ),
    ({"auto_find_batch_size": True}, "cannot change the Loader's batch_size (2)"),
    ({"ignore_data_skip": True}, "continues at its saved state"),
    ({"data_seed": 7}, "seed= of the Loader (3)"),
    ({"dataloader_drop_last": True}, "set last_step='drop' there"),
    ({"dataloader_num_workers": 2}, "a thread of the Loader reads ahead"),
    (
        {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 4},
        "a thread of the Loader reads ahead",
    ),
    ({"dataloader_persistent_workers": True}, "the Loader has no workers"),
    ({"dataloader_multiprocessing_context": "spawn"}, "the Loader has no workers"),
    ({"dataloader_in_order": False}, "keeps the order of its plan"),
    ({"train_sampling_strategy": "group_by_length"}, "shuffle= and packing= of the Loader"),
    ({"train_sampling_strategy": "sequential"}, "shuffle= and packing= of the Loader"),
    ({"length_column_name": "size"}, "knows the lengths"),
    (
        {"accelerator_config": {"dispatch_batches": True}},
        "accelerator_config.dispatch_batches=True",
    ),
    ({"accelerator_config": {"split_batches": True}}, "accelerator_config.split_batches=True"),
]
SFT = [
    (
        {"max_length": 32},
        "SFTConfig has max_length=32, which would have no effect: max_length= of the Loader (64) decides",
    ),
    ({"truncation_mode": "keep_end"}, "on_overlong= of the Loader"),
    (
        {"packing": True},
        "SFTConfig has packing=True, which would have no effect: packing= of the Loader ('mixed_fit')",
    ),
    ({"packing_strategy": "wrapped"}, "packing= of the Loader"),
    ({"eval_packing": True}, "packing= of the evaluation Loader"),
    ({"padding_free": True}, "padding_free= of the Loader (False)"),
    ({"pad_to_multiple_of": 8}, "pad_to_multiple_of= of the Loader (1)"),
    ({"assistant_only_loss": True}, "train_on= of prepare"),
    ({"completion_only_loss": True}, "train_on= of prepare"),
    ({"completion_only_loss": False}, "train_on= of prepare"),
    ({"dataset_text_field": "body"}, "prepare has read the records"),
    ({"dataset_kwargs": {"add_special_tokens": False}}, "prepare has made the samples"),
    ({"dataset_num_proc": 2}, "num_proc= of prepare"),
    ({"chat_template_path": "x.jinja"}, "set its chat_template="),
]
# Arguments that say what the Loader does anyway, with its options.
AGREE = [
    ({"per_device_train_batch_size": 2}, {}),
    ({"num_train_epochs": 2}, {}),
    ({"num_train_epochs": 9, "max_steps": 3}, {}),
    ({"data_seed": 3}, {}),
    ({"dataloader_drop_last": True}, {"last_step": "drop"}),
    ({"dataloader_pin_memory": False}, {}),
    ({"train_sampling_strategy": "sequential"}, {"shuffle": False}),
    ({"remove_unused_columns": False}, {}),
]
SFT_AGREE = [
    ({"max_length": 64}, {}),
    ({"max_length": None}, {}),
    ({"shuffle_dataset": True}, {}),
    ({"pad_to_multiple_of": 8}, {"pad_to_multiple_of": 8}),
    ({"dataset_kwargs": {"skip_prepare_dataset": True}}, {}),
]

# In a process of its own: the frameworks warn when imported, and set what cannot be set back.
SCRIPT = """
import json, sys
from dataclasses import fields
from pathlib import Path
from datasets import Dataset
import penstock as ps
import transformers
from transformers import TrainingArguments
from trl import DPOConfig, KTOConfig, RewardConfig, SFTConfig
import torch
from lightning.pytorch import LightningModule, Trainer
from penstock.errors import PlanError
from penstock.extras.trainers.arguments import REPLACED, USUAL
from penstock.extras.trainers.hf_trainer import LoaderTrainer
from penstock.extras.trainers.lightning import LoaderModule
from penstock.extras.trainers.model_inputs import ModelInputs
from penstock.extras.trainers.trl import LoaderSFTTrainer
from tests.extras.trainers.runs import hf_arguments, make_model, open_loader
from tests.extras.trainers.test_refusals import AGREE, SFT, SFT_AGREE, TRAINING

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
def made(loader={}, options={}, **arguments):
    arguments = TrainingArguments(**{**hf_arguments(folder), **arguments})
    return LoaderTrainer(model=model, args=arguments, loader=open_loader(folder, **loader), **options)

def sft(loader={}, options={}, **arguments):
    config = SFTConfig(output_dir=str(folder), bf16=False, use_cpu=True, **arguments)
    return LoaderSFTTrainer(model=model, args=config, loader=open_loader(folder, **loader), processing_class=tokenizer, **options)

def allowed(name, make):
    try:
        made = make()
        said["allowed"].append(name) if made.args.per_device_train_batch_size == 2 else None
    except Exception as error:
        said["not allowed"][name] = repr(error)

tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"), eos_token="<|endoftext|>", pad_token="<|endoftext|>"
)
said["allowed"], said["not allowed"] = [], {}
ordinary = Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[1, 2]]})
for number, (arguments, _) in enumerate(TRAINING):
    refused(f"training {number}", lambda: made(**arguments))
    refused(f"training {number} in SFTConfig", lambda: sft(**arguments))
for number, (arguments, _) in enumerate(SFT):
    refused(f"sft {number}", lambda: sft(**arguments))
for number, (arguments, loader) in enumerate(AGREE):
    allowed(f"training {number}", lambda: made(loader, **arguments))
    allowed(f"training {number} in SFTConfig", lambda: sft(loader, **arguments))
for number, (arguments, loader) in enumerate(SFT_AGREE):
    allowed(f"sft {number}", lambda: sft(loader, **arguments))
shared = TrainingArguments(**hf_arguments(folder))
for batch_size in (2, 4):  # the same arguments for two Loaders
    trainer = LoaderTrainer(model=model, args=shared, loader=open_loader(folder, batch_size=batch_size))
    said[f"shared {batch_size}"] = trainer.args.per_device_train_batch_size
said["shared"] = [shared.per_device_train_batch_size, shared.max_steps]
evaluated = {"eval_dataset": open_loader(folder, epochs=1)}
refused("eval batch size", lambda: made(options=evaluated, per_device_eval_batch_size=4))
allowed("eval batch size", lambda: made(options=evaluated, per_device_eval_batch_size=2))
for arguments in ({"dataloader_num_workers": 2}, {"dataloader_drop_last": True}, {"per_device_eval_batch_size": 4}):
    allowed(f"evaluation with {arguments}", lambda: made(options={"eval_dataset": ordinary}, **arguments))
allowed("evaluation with max_length", lambda: sft(options={"eval_dataset": ordinary}, max_length=16))
for name, value in (("train_dataset", ordinary), ("data_collator", print)):
    refused(f"{name} of LoaderTrainer", lambda: made(options={name: value}))
    refused(f"{name} of LoaderSFTTrainer", lambda: sft(options={name: value}))
refused("formatting_func", lambda: sft(options={"formatting_func": print}))
refused("both", lambda: sft(options={"formatting_func": print, "train_dataset": ordinary}))
def defaults(trainer, config, epochs, **options):
    loader = open_loader(folder, **epochs)
    if not epochs:
        loader = ps.Loader(loader.stores[0], batch_size=2, max_length=64)
    return trainer(model=model, args=config, loader=loader, **options)

own = {"use_cpu": True, "report_to": [], "output_dir": str(folder)}
refused("epochs of neither", lambda: defaults(LoaderTrainer, TrainingArguments(**own), {}))
refused("epochs of neither, without arguments", lambda: defaults(LoaderTrainer, None, {}))
refused("epochs of neither, in SFTConfig", lambda: defaults(
    LoaderSFTTrainer, SFTConfig(**own, bf16=False), {}, processing_class=tokenizer
))
allowed("epochs of the Loader", lambda: defaults(LoaderTrainer, TrainingArguments(**own), {"epochs": 1}))
allowed("steps", lambda: defaults(LoaderTrainer, TrainingArguments(**own, max_steps=3), {}))
refused("positional", lambda: LoaderTrainer(model, TrainingArguments(**hf_arguments(folder)), print, loader=open_loader(folder)))
refused("records", lambda: LoaderTrainer(
    model=model,
    args=TrainingArguments(**{**hf_arguments(folder), "save_strategy": "no"}),
    loader=ps.Loader(ps.open([{"question": "a"}] * 4), batch_size=2, epochs=1),
).train())
words = ("data", "batch", "epoch", "length", "pack", "group", "sampl", "shuffle", "pad", "trunc", "seed", "_only_loss", "template")
known = {argument.name for argument in REPLACED} | USUAL
configured = {field.name for config in (SFTConfig, DPOConfig, KTOConfig, RewardConfig) for field in fields(config)}
said["not in the table"] = sorted(name for name in configured - known if any(word in name for word in words))
said["gone"] = sorted(known - configured)
refused("lightning endless", lambda: LoaderModule(open_loader(folder, epochs=None)))
refused("lightning epochs", lambda: lightning(max_epochs=3))
one = open_loader(folder, epochs=1)
refused("trains and evaluates", lambda: LoaderTrainer(
    model=model, args=TrainingArguments(**hf_arguments(folder)), loader=one, eval_dataset={"same": one}
))
refused("lightning trains and evaluates", lambda: LoaderModule(one, val_dataloaders=[one]))
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
    "numpy": "set output='torch' in the Loader",
    "shifted": "set labels='unshifted'",
    "per_epoch": "leave out per_epoch",
    "num_train_epochs": "num_train_epochs=5, which would have no effect: epochs= of the Loader (2) decides",
    "max_steps": "max_steps is 999, the Loader has 15 steps; give it more epochs",
    "endless": "needs max_steps",
    "lightning endless": "set the Loader's epochs",
    "lightning epochs": "max_epochs=3; the Loader counts its 2 epochs itself, and Lightning makes one pass more: pass max_epochs=1",
    "lightning stopped": "pass max_epochs=2",
    "trains and evaluates": "one Loader cannot train and evaluate",
    "lightning trains and evaluates": "one Loader cannot train and evaluate",
    "foreign": "has no penstock.json: it was saved by a trainer without a Loader",
}


ARGUMENTS = {
    "eval batch size": "batch_size= of the evaluation Loader decides",
    "train_dataset of LoaderTrainer": "leave out train_dataset",
    "train_dataset of LoaderSFTTrainer": "leave out train_dataset",
    "data_collator of LoaderTrainer": "leave out data_collator (the Loader takes collate=)",
    "data_collator of LoaderSFTTrainer": "leave out data_collator",
    "epochs of neither": "TrainingArguments has num_train_epochs=3, and the Loader was given no epochs and would make 1",
    "epochs of neither, without arguments": "pass epochs=3 or epochs=1 to the Loader, or max_steps to TrainingArguments",
    "epochs of neither, in SFTConfig": "SFTConfig has num_train_epochs=3, and the Loader was given no epochs and would make 1",
    "positional": "leave out data_collator",
    "formatting_func": "leave out formatting_func",
    "both": "leave out train_dataset and formatting_func",
    "records": "this Loader serves plain records; give it a store that penstock.prepare made",
    **{f"training {number}": said for number, (_, said) in enumerate(TRAINING)},
    **{f"training {number} in SFTConfig": said for number, (_, said) in enumerate(TRAINING)},
    **{f"sft {number}": said for number, (_, said) in enumerate(SFT)},
}


@pytest.fixture(scope="module")
def said(tmp_path_factory, tokenizer_path):
    need("transformers", "trl", "lightning")
    folder = make_folder(tmp_path_factory.mktemp("refusals"), tokenizer_path)
    run_job("-c", SCRIPT, folder)
    return json.loads((folder / "said.json").read_text())


def test_contradictions_are_refused_by_name(said):
    assert {
        name: text for name, text in EXPECTED.items() if text not in said.get(name, "nothing")
    } == {}


def test_arguments_that_would_be_ignored_are_refused(said):
    assert {
        name: text for name, text in ARGUMENTS.items() if text not in said.get(name, "nothing")
    } == {}


def test_arguments_that_agree_with_the_loader_are_taken(said):
    assert said["not allowed"] == {} and len(said["allowed"]) == 2 * len(AGREE) + len(SFT_AGREE) + 7


def test_every_argument_about_data_is_in_the_table(said):
    """arguments.py says what becomes of it: the Loader replaces it, or it has its usual effect."""
    assert said["not in the table"] == said["gone"] == []


def test_arguments_can_be_used_for_two_loaders(said):
    assert (said["shared 2"], said["shared 4"], said["shared"]) == (2, 4, [8, -1])


def test_what_is_allowed_does_what_it_says(said):
    assert said["endless steps"] == 4
    assert said["lightning steps"][0] == said["lightning steps"][1]
    assert said["saved at"] == said["epoch ends"]  # the Trainer's one pass knows where epochs end
    assert said["steps with another size"][0] == said["steps with another size"][1]
    assert said["plain"] == ["input_ids", "labels"]
    assert {"position_ids", "cu_seq_lens_q", "max_length_k", "seq_idx", "use_cache"} < set(
        said["llama"]
    )


def test_a_path_instead_of_a_loader_says_what_to_pass() -> None:
    """N14: LoaderTrainer(loader="x.yaml") was an AttributeError."""
    with pytest.raises(
        PlanError, match=r"LoaderTrainer: loader is the path 'x.yaml'.*penstock.load\('x.yaml'\)"
    ):
        expect_loader("x.yaml", call="LoaderTrainer")
    with pytest.raises(PlanError, match="loader is a dict, expected a Loader"):
        expect_loader({}, call="attach")


def test_the_trainer_says_so_before_it_does_anything() -> None:
    hf_trainer = pytest.importorskip("penstock.extras.trainers.hf_trainer")
    with pytest.raises(PlanError, match=r"loader is the path 'x.yaml'"):
        hf_trainer.LoaderTrainer(model=None, loader="x.yaml")


def test_prompts_are_not_divided_among_ranks_that_need_the_same_rows():
    """T4: PromptsGRPOTrainer divides prompts among all ranks."""
    ranks = {"rank": 0, "size": 4, "data_rank": 0, "data_size": 2}
    refuse_groups(TrainerRanks(trainer="PromptsGRPOTrainer", **ranks))
    with pytest.raises(PlanError, match="PromptsGRPOTrainer has tensor parallelism over 2 ranks"):
        refuse_groups(TrainerRanks(trainer="PromptsGRPOTrainer", shared={"tensor": 2}, **ranks))
