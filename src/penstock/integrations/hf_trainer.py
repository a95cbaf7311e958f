"""Train and evaluate with the Hugging Face Trainer on Loaders.  It takes batches as they are: none is sharded, skipped or replayed again.

    trainer = LoaderTrainer(model=model, args=args, loader=loader, eval_dataset=eval_loader)   # or a dict of eval Loaders
    trainer.train(resume_from_checkpoint=True)

The loader's state is saved in the Trainer's own checkpoint folders.  For a Trainer of your own: `class Mine(FromLoader, Trainer)`.
An evaluation begins at its first batch, sees every sample once, and reports a loss per token.  The Trainer's own loss is a mean of
means: a short last batch counts as much as a full one, and a batch of padding alone is not a number.
"""

import json
import os
from collections.abc import Callable, Iterator
from copy import copy
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from penstock.errors import PlanError, PlanMismatch
from penstock.integrations.arguments import check_arguments, check_datasets
from penstock.integrations.isolation import check_isolation
from penstock.integrations.model_inputs import Inputs, inputs_for
from penstock.loader import Loader
from penstock.loader.collate import IGNORE
from penstock.loader.guards import EvalBatches, expect_loader, refuse_the_same
from penstock.loader.sequences import JUDGED, PAIRS, STEPS, TOKENS
from penstock.store.overlap import named, warn_of_overlap

STATE = "penstock.json"  # in every checkpoint folder; the same for all ranks
_TRAINER_STATE = (
    "trainer_state.json"  # written last by the Trainer: a folder without it is incomplete
)
_CLASSIFIES = "ForTokenClassification"  # loss_type of transformers' models that classify tokens
_TRAINERS = {  # what a Loader's samples are → what trains on them
    PAIRS: "LoaderDPOTrainer or LoaderRewardTrainer of penstock.integrations.trl",
    JUDGED: "LoaderKTOTrainer of penstock.integrations.trl",
    STEPS: "LoaderTrainer with a model that classifies tokens",
    TOKENS: "LoaderTrainer or LoaderSFTTrainer",
}

MakeInputs = Callable[[Any], Inputs]


class FromLoader:
    """Mixin for a Trainer whose training batches come from `loader`; eval_dataset may be a Loader, or a dict of them.

    isolation_check: before training, compare a packed row with the same samples alone, and refuse a model that mixes them up.
    """

    takes: tuple[str, ...] = (TOKENS, STEPS)  # what the samples of its Loaders may be
    positional: tuple[str, ...] = tuple(
        signature(Trainer).parameters
    )  # arguments of the trainer that may come without a name

    args: Any
    state: Any
    model: Any
    accelerator: Any
    eval_dataset: Any
    _steps: "_Steps"
    _loaded_from: str  # the checkpoint whose weights were loaded last
    _samples: int  # that this rank has trained in this call of train()
    _isolated: frozenset[Any] = (
        frozenset()
    )  # forms of batches for which the model has passed the isolation check
    _sums: torch.Tensor | None = (
        None  # (loss over all targets, targets) of this rank, while a Loader is evaluated
    )

    def __init__(
        self, *args: Any, loader: Loader, isolation_check: bool = True, **options: Any
    ) -> None:
        expect_loader(loader, call=type(self).__name__)
        if loader.form.output != "torch":
            raise PlanError("the Trainer needs tensors: set output='torch' in the Loader")
        if loader.form.labels != "unshifted":
            raise PlanError(
                "the Trainer's models shift labels themselves: set labels='unshifted' in the Loader"
            )
        if loader.per_epoch:
            raise PlanError(
                "the Loader counts its epochs itself here: leave out per_epoch, and set its epochs"
            )
        given = {**dict(zip(self.positional, args, strict=False)), **options}
        evaluated = loaders_in(given.get("eval_dataset"))
        for each in evaluated:
            refuse_the_same(loader, each)
        for each in (loader, *evaluated):
            self._check_samples(each)
        other = given.get("eval_dataset") is not None and not evaluated
        check_datasets(given, other_eval=other)
        if given.get("args") is not None:  # before the Trainer itself acts on them
            check_arguments(given["args"], loader, eval_loaders=evaluated, other_eval=other)
        super().__init__(*args, **options)
        if self.args.n_gpu > 1:
            raise PlanError(
                f"{self.args.n_gpu} GPUs in one process would cut packed batches apart; start with torchrun"
            )
        if loader.epochs is None and self.args.max_steps <= 0:
            raise PlanError(
                "an endless Loader (epochs=None) needs max_steps in the TrainingArguments"
            )
        self._check_model(loader)
        if loader.world.rank == 0:
            for each in evaluated:
                warn_of_overlap(named(each.stores), named(loader.stores))
        self.loader = loader
        self.isolation_check = isolation_check
        self.args = copy(self.args)  # the arguments may be used again, with another Loader
        self._max_steps_given = self.args.max_steps
        self.args.per_device_train_batch_size = self._train_batch_size = loader.batch_size
        self.add_callback(_Callback(self))  # type: ignore[attr-defined]

    def _check_samples(self, loader: Loader) -> None:
        """Refuse a Loader of other samples than this trainer takes, and weights that no loss would use."""
        name = type(self).__name__
        if loader.kind not in self.takes:
            other = _TRAINERS.get(loader.kind, "a loop of your own: prompts have nothing to train")
            raise PlanError(
                f"{name} trains on {' or '.join(self.takes)}, and the Loader has {loader.kind}; use {other}"
            )
        if loader.has_weights and not self._has_own_loss:
            raise PlanError(
                f"the Loader has weights of tokens, and the loss of {name} does not use them; subclass it with a compute_loss that "
                f"reads inputs.pop('weights'), or prepare without message_weights"
            )

    def _check_model(self, loader: Loader) -> None:
        """Refuse a language model for judged steps: it would take their labels, 0 and 1, for tokens to predict."""
        if (
            loader.kind == STEPS
            and not self._has_own_loss
            and getattr(self.model, "loss_type", None) != _CLASSIFIES
        ):
            raise PlanError(
                f"{type(self.model).__name__} is not a model that classifies tokens, and the labels of judged steps are classes, not the "
                f"ids of tokens; use AutoModelForTokenClassification with num_labels=2, or subclass with a compute_loss"
            )

    @property
    def _has_own_loss(self) -> bool:
        """Whether a user's subclass computes the loss."""
        owner = next(each for each in type(self).__mro__ if "compute_loss" in vars(each))
        return not owner.__module__.startswith("penstock.")

    def make_inputs(self, loader: Loader) -> MakeInputs:
        """Return what makes keyword arguments of a loader's batches."""
        return inputs_for(self.model, loader, weights=self._has_own_loss)

    def num_targets(self, inputs: Any) -> torch.Tensor:
        """Return over how much the loss of an evaluation's batch is the mean: its targets."""
        labels = inputs["labels"]
        labels = labels if self.loader.kind == STEPS else labels[:, 1:]  # as the model shifts them
        return (labels != IGNORE).sum()

    def get_train_dataloader(self) -> Any:
        return self._steps

    def _inner_training_loop(
        self, *args: Any, resume_from_checkpoint: str | None = None, **options: Any
    ) -> Any:
        done = 0  # optimizer steps
        if resume_from_checkpoint:
            done = self._resume(Path(resume_from_checkpoint))
        elif self.loader.finished:  # a second call of train()
            self.loader.restart()
        self._samples = 0
        accumulate = self.args.gradient_accumulation_steps
        given = self._max_steps_given
        self._steps = _Steps(self.loader, self.make_inputs(self.loader), before=done * accumulate)
        if self.loader.epochs is not None:
            all_steps = -(-len(self._steps) // accumulate)
            if given > all_steps:
                raise PlanError(
                    f"max_steps is {given}, the Loader has {all_steps} steps; give it more epochs"
                )
            self.args.max_steps = given if given > 0 else all_steps
        options["resume_from_checkpoint"] = resume_from_checkpoint
        return super()._inner_training_loop(*args, **options)  # type: ignore[misc]

    def _resume(self, folder: Path) -> int:
        """Load the loader's state from a checkpoint; return the optimizer steps done until then."""
        state, steps = load_state(folder, "a Loader")
        self.loader.load_state_dict(state)
        return steps

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self._loaded_from = resume_from_checkpoint
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_best_model(self) -> None:
        self._loaded_from = self.state.best_model_checkpoint
        super()._load_best_model()  # type: ignore[misc]

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Load weights that have other names in a checkpoint; the Trainer would leave them as they are, and warn."""
        if load_result.missing_keys and load_result.unexpected_keys:
            load_renamed(self.model, self._loaded_from)
        else:
            super()._issue_warnings_after_load(load_result)  # type: ignore[misc]

    def _run_epoch(self, **options: Any) -> Any:
        """Run the Trainer's one pass.  After a resume it is over what is left, and there is nothing to skip."""
        accumulate = self.args.gradient_accumulation_steps
        left = self._steps.left
        if left is None:
            left = (self.args.max_steps - self.state.global_step) * accumulate
        steps = {"steps_in_epoch": left, "num_update_steps_per_epoch": -(-left // accumulate)}
        return super()._run_epoch(**{**options, **steps, "steps_trained_in_current_epoch": 0})  # type: ignore[misc]

    def get_batch_samples(self, *args: Any, **options: Any) -> Any:
        """Return the batches of the next optimizer step, and count their samples."""
        batches, num_items = super().get_batch_samples(*args, **options)  # type: ignore[misc]
        self._samples += sum(batch.samples for batch in batches)
        return batches, num_items

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """For include_num_input_tokens_seen: "non_padding" tokens are those of samples, whatever the mask and the padding id are."""
        if self.args.include_num_input_tokens_seen == "non_padding":
            self.state.num_input_tokens_seen += self._over_ranks(inputs.tokens)
        else:
            super()._track_num_input_tokens(inputs)  # type: ignore[misc]

    def _over_ranks(self, count: int) -> int:
        """Return the sum over all data-parallel ranks; ranks that share their rows count once."""
        counts = torch.tensor([count], device=self.args.device, dtype=torch.int64)
        total = int(self.accelerator.gather(counts).sum())
        return total * self.loader.world.size // int(self.accelerator.num_processes)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
        """Report samples per second of what was trained: the Trainer multiplies by the share of this call's steps in all steps."""
        steps = self.state.global_step - self._initial_global_step  # type: ignore[attr-defined]
        num_train_samples = (
            self._over_ranks(self._samples) * max(self.state.max_steps, 1) / max(steps, 1)
        )
        return super()._finalize_training(trial, num_train_samples, start_time)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        save_state(self, self.loader.state_dict(), trial)
        super()._save_checkpoint(model, trial)  # type: ignore[misc]

    def check_isolation(self, loader: Loader, model: Any) -> None:
        """Refuse a model that lets packed samples see each other; once for each form of batch."""
        key = (loader.form, loader.plan.settings.packing)
        if self.isolation_check and key not in self._isolated:
            check_isolation(model, loader, precision=self.accelerator.mixed_precision)
            self._isolated |= {key}

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        chosen = self.eval_dataset[chosen] if isinstance(chosen, str) else chosen
        if isinstance(chosen, Loader):
            return self._eval_steps(chosen)
        return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        if isinstance(test_dataset, Loader):
            return self._eval_steps(test_dataset)
        return super().get_test_dataloader(test_dataset)  # type: ignore[misc]

    def _eval_steps(self, loader: Loader) -> "_EvalSteps":
        self._check_samples(loader)
        self._check_model(loader)
        steps = _EvalSteps(loader, self.make_inputs(loader))
        self.check_isolation(loader, self.model)
        return steps

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **options: Any
    ) -> Any:
        device = self.accelerator.device
        kind = torch.float32 if device.type == "mps" else torch.float64
        self._sums = (
            torch.zeros(2, dtype=kind, device=device)
            if isinstance(dataloader, _EvalSteps)
            else None
        )
        try:
            output = super().evaluation_loop(  # type: ignore[misc]
                dataloader, *args, metric_key_prefix=metric_key_prefix, **options
            )
            if self._sums is not None:
                loss, targets = self.accelerator.reduce(self._sums, "sum").tolist()
                output.metrics[f"{metric_key_prefix}_loss"] = loss / targets if targets else 0.0
            return output
        finally:
            self._sums = None

    def compute_loss(self, *args: Any, num_items_in_batch: Any = None, **options: Any) -> Any:
        """In an evaluation, return the mean over this batch: `prediction_step` sums over all batches, not the Trainer."""
        num_items = None if self._sums is not None else num_items_in_batch
        return super().compute_loss(*args, num_items_in_batch=num_items, **options)  # type: ignore[misc]

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        loss, *rest = super().prediction_step(model, inputs, *args, **options)  # type: ignore[misc]
        if self._sums is not None and loss is not None:
            targets = self.num_targets(inputs).to(self._sums)
            loss = torch.where(
                targets > 0, loss, torch.zeros_like(loss)
            )  # a batch of padding alone has none
            self._sums += torch.stack([loss.to(self._sums) * targets, targets])
        return (loss, *rest)


def save_state(trainer: Any, state: dict[str, Any], trial: Any) -> None:
    """Write a state into the checkpoint folder of this step, on rank 0: before all else, so that a complete checkpoint has it."""
    if not trainer.args.should_save:
        return
    folder = Path(trainer._get_output_dir(trial=trial)) / f"checkpoint-{trainer.state.global_step}"
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{STATE}.tmp"
    with temporary.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / STATE)


def load_state(folder: Path, owner: str) -> tuple[Any, int]:
    """Return the state in a checkpoint folder, and the optimizer steps done until then."""
    if not (folder / _TRAINER_STATE).exists():
        raise PlanMismatch(
            f"{folder} is incomplete: no {_TRAINER_STATE} in it; resume from the one before it"
        )
    if not (folder / STATE).exists():
        raise PlanMismatch(
            f"{folder} has no {STATE}: it was saved by a trainer without {owner}; start a new run"
        )
    steps = json.loads((folder / _TRAINER_STATE).read_text())["global_step"]
    return json.loads((folder / STATE).read_text()), int(steps)


class LoaderTrainer(FromLoader, Trainer):  # type: ignore[misc]
    """transformers.Trainer, fed by a Loader."""


class _Steps:
    """The training Loader as the Trainer sees it: a length and an iteration; no sampler and no data set, so it shards nothing."""

    def __init__(self, loader: Loader, inputs: MakeInputs, *, before: int) -> None:
        self._loader = loader
        self._inputs = inputs
        self._before = before
        self.left = (
            loader.steps_left
        )  # batches from here on, without those that skip= names; None if there is no end

    def __len__(self) -> int:
        """Return what the Trainer counts: batches of its optimizer steps so far, and those that are left."""
        if self.left is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        return self._before + self.left

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._inputs, iter(self._loader))


class _EvalSteps(EvalBatches):
    """An evaluation Loader as the Trainer sees it; refuses one that does not give every sample once."""

    def __init__(self, loader: Loader, inputs: MakeInputs | None = None) -> None:
        if loader.form.output != "torch" or loader.form.labels != "unshifted":
            raise PlanError(
                "the Trainer evaluates on tensors and shifts labels itself: leave output= and labels= out"
            )
        if loader.epochs != 1 or loader.per_epoch:
            raise PlanError(
                f"an evaluation is one epoch: the Loader has epochs={loader.epochs}, expected 1"
            )
        if (tail := loader.plan.settings.tail) not in ("pad", "error"):
            raise PlanError(
                f"tail={tail!r} leaves samples out or repeats them; evaluate with tail='pad', the default"
            )
        super().__init__(loader)
        self._inputs = inputs

    @property
    def dataset(self) -> range:
        """As long as there are samples: the Trainer asks how many it has evaluated."""
        return range(sum(int(source.shard_sizes.sum()) for source in self._loader.plan.sources))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert self._inputs is not None
        return map(self._inputs, super().__iter__())


def loaders_in(eval_dataset: Any) -> list[Loader]:
    """Return the Loaders among the data to evaluate on, after checking each; refuse a dict that has other data sets too."""
    given = list(eval_dataset.values()) if isinstance(eval_dataset, dict) else [eval_dataset]
    found = [value for value in given if isinstance(value, Loader)]
    if found and len(found) < len(given):
        raise PlanError("eval_dataset has Loaders and other data sets; give one kind")
    for loader in found:
        _EvalSteps(loader)
    return found


def load_renamed(model: Any, folder: str) -> None:
    """Load weights that save_pretrained saved under older names, as it does for Qwen2.5-VL: from_pretrained knows both."""
    opened, info = type(model).from_pretrained(folder, output_loading_info=True)
    weights = opened.state_dict()
    own = model.state_dict()
    if info["missing_keys"] or weights.keys() != own.keys():
        absent = sorted({*info["missing_keys"], *(own.keys() - weights.keys())})
        raise PlanMismatch(
            f"{folder} does not hold the weights of this {type(model).__name__}: {len(absent)} are missing, such as {absent[:3]}; resume "
            f"with the model that was trained"
        )
    model.load_state_dict(weights)


class _Callback(TrainerCallback):  # type: ignore[misc]
    """Checks isolation once the model is where it trains, and tells the Trainer, which makes one pass, where an epoch ends."""

    def __init__(self, trainer: FromLoader) -> None:
        self._trainer = trainer
        self._loader = trainer.loader
        self._epoch = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        self._epoch = self._loader.state_dict()["epoch"]
        self._trainer.check_isolation(self._loader, model)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = self._loader.state_dict()
        epochs = self._loader.epochs
        done = None if epochs is None else (now["step"] - now["pass_step"]) / len(self._loader)
        state.epoch = float(now["epoch"]) if epochs is None or done is None else epochs * done
        if (
            now["epoch"] > self._epoch and done != 1
        ):  # the Trainer itself sees to the end of the last one
            control.should_log |= args.logging_strategy == "epoch"
            control.should_evaluate |= args.eval_strategy == "epoch"
            control.should_save |= args.save_strategy == "epoch"
        self._epoch = now["epoch"]
