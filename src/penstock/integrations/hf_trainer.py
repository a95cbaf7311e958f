"""How does the Hugging Face Trainer take a Loader?  As it is: batches are neither dealt out again, nor skipped, nor replayed.

    trainer = LoaderTrainer(model=model, args=args, loader=loader)
    trainer.train(resume_from_checkpoint=True)

The loader's state lies in the Trainer's own checkpoint folders.  For a Trainer of your own: `class Mine(FromLoader, Trainer)`.
"""

import json
import os
from collections.abc import Iterator
from copy import copy
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from penstock.errors import PlanError, PlanMismatch
from penstock.integrations.arguments import check_arguments, check_datasets
from penstock.integrations.evaluation import EvaluatesLoaders, loaders_in, refuse_the_same, steps_done
from penstock.integrations.model_inputs import ModelInputs
from penstock.loader import Loader

STATE = "penstock.json"  # in every checkpoint folder; the same for all ranks
_TRAINER_STATE = "trainer_state.json"  # written last by the Trainer: a folder without it is not whole
_POSITIONAL = list(signature(Trainer).parameters)


class FromLoader(EvaluatesLoaders):
    """A Trainer whose training batches come from `loader`, which also says how many there are; evaluation may have Loaders, too.

    isolation_check: before training, compare a packed row with the same samples alone, and refuse a model that mixes them up.
    """

    args: Any
    state: Any
    model: Any
    _steps: "_Steps"
    _samples: int  # that this rank has trained in this call of train()

    def __init__(self, *args: Any, loader: Loader, isolation_check: bool = True, **options: Any) -> None:
        if loader.form.output != "torch":
            raise PlanError("the Trainer needs tensors: leave output='torch' in the Loader")
        if loader.form.labels != "unshifted":
            raise PlanError("the Trainer's models shift labels themselves: leave labels='unshifted' in the Loader")
        if loader.per_epoch:
            raise PlanError("the Loader counts its epochs itself here: leave out per_epoch, and set its epochs")
        given = {**dict(zip(_POSITIONAL, args, strict=False)), **options}
        evaluated = loaders_in(given.get("eval_dataset"))
        for each in evaluated:
            refuse_the_same(loader, each)
        other = given.get("eval_dataset") is not None and not evaluated
        check_datasets(given, other_eval=other)
        if given.get("args") is not None:  # before the Trainer itself acts on them
            check_arguments(given["args"], loader, eval_loaders=evaluated, other_eval=other)
        super().__init__(*args, **options)
        self.loader, self.isolation_check = loader, isolation_check
        self._check_args()
        # A copy: the arguments may be used again, with another Loader.
        self.args = copy(self.args)
        self._max_steps_given = self.args.max_steps
        self.args.per_device_train_batch_size = self._train_batch_size = loader.batch_size
        self.add_callback(_Epochs(loader))  # type: ignore[attr-defined]
        self.add_callback(_Isolation(self))  # type: ignore[attr-defined]

    def _check_args(self) -> None:
        if self.args.n_gpu > 1:
            raise PlanError(
                f"{self.args.n_gpu} GPUs in one process would cut packed batches apart; start with torchrun"
            )
        if self.loader.epochs is None and self.args.max_steps <= 0:
            raise PlanError("an endless Loader (epochs=None) needs max_steps in the TrainingArguments")

    def get_train_dataloader(self) -> Any:
        return self._steps

    def _inner_training_loop(self, *args: Any, resume_from_checkpoint: str | None = None, **options: Any) -> Any:
        done = self._resume(Path(resume_from_checkpoint)) if resume_from_checkpoint else self._start()
        self._samples = 0
        accumulate, given = self.args.gradient_accumulation_steps, self._max_steps_given
        self._steps = _Steps(self.loader, ModelInputs(self.model), before=done * accumulate)
        if self.loader.epochs is not None:
            all_steps = -(-len(self._steps) // accumulate)
            if given > all_steps:
                raise PlanError(f"max_steps is {given}, the Loader has {all_steps} steps; give it more epochs")
            self.args.max_steps = given if given > 0 else all_steps
        options["resume_from_checkpoint"] = resume_from_checkpoint
        return super()._inner_training_loop(*args, **options)  # type: ignore[misc]

    def _start(self) -> int:
        """A second call of train() begins at the first batch again; optimizer steps done before: none."""
        if self.loader.epochs is not None and steps_done(self.loader) >= len(self.loader):
            self.loader.seek(self.loader.first_step)
        return 0

    def _resume(self, folder: Path) -> int:
        """Bring the loader to where the checkpoint was taken; optimizer steps done until then."""
        if not (folder / _TRAINER_STATE).exists():
            raise PlanMismatch(f"{folder} is not whole: no {_TRAINER_STATE} in it; resume from the one before it")
        if not (folder / STATE).exists():
            raise PlanMismatch(f"{folder} has no {STATE}: it was saved by a trainer without a Loader; start a new run")
        self.loader.load_state_dict(json.loads((folder / STATE).read_text()))
        return int(json.loads((folder / _TRAINER_STATE).read_text())["global_step"])

    def _run_epoch(self, **options: Any) -> Any:
        """The Trainer's one pass.  After a resume it is over what is left, and there is nothing to skip."""
        accumulate = self.args.gradient_accumulation_steps
        left = self._steps.left
        if left is None:
            left = (self.args.max_steps - self.state.global_step) * accumulate
        steps = {"steps_in_epoch": left, "num_update_steps_per_epoch": -(-left // accumulate)}
        return super()._run_epoch(**{**options, **steps, "steps_trained_in_current_epoch": 0})  # type: ignore[misc]

    def get_batch_samples(self, *args: Any, **options: Any) -> Any:
        """The batches of the next optimizer step."""
        batches, num_items = super().get_batch_samples(*args, **options)  # type: ignore[misc]
        self._samples += sum(batch.samples for batch in batches)
        return batches, num_items

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Of include_num_input_tokens_seen: "non_padding" tokens are those of samples, whatever the mask and the padding id are."""
        if self.args.include_num_input_tokens_seen == "non_padding":
            self.state.num_input_tokens_seen += self._over_ranks(inputs.tokens)
        else:
            super()._track_num_input_tokens(inputs)  # type: ignore[misc]

    def _over_ranks(self, count: int) -> int:
        """The sum over all data-parallel ranks; ranks that share their rows count once."""
        counts = torch.tensor([count], device=self.args.device, dtype=torch.int64)
        total = int(self.accelerator.gather(counts).sum())
        return total * self.loader.world.size // int(self.accelerator.num_processes)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
        """Samples per second of what was trained.  The Trainer takes the share of this call's steps in all steps of what it is given."""
        steps = self.state.global_step - self._initial_global_step  # type: ignore[attr-defined]
        num_train_samples = self._over_ranks(self._samples) * max(self.state.max_steps, 1) / max(steps, 1)
        return super()._finalize_training(trial, num_train_samples, start_time)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:  # rank 0; before all else, so that a whole checkpoint has it
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"  # type: ignore[attr-defined]
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{STATE}.tmp"
            with temporary.open("w") as file:
                json.dump(self.loader.state_dict(), file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(folder / STATE)
        super()._save_checkpoint(model, trial)  # type: ignore[misc]


class LoaderTrainer(FromLoader, Trainer):  # type: ignore[misc]
    """transformers.Trainer, fed by a Loader."""


class _Steps:
    """What the Trainer sees of the loader: a length, and an iteration.  No sampler, no data set, nothing to deal out anew."""

    def __init__(self, loader: Loader, inputs: ModelInputs, *, before: int) -> None:
        self._loader, self._inputs, self._before = loader, inputs, before
        self.left = (
            loader.steps_left
        )  # batches from here on, without those that skip= passes over; None where there is no end

    def __len__(self) -> int:
        """As the Trainer counts: batches behind its optimizer steps so far, and those that are left."""
        if self.left is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        return self._before + self.left

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._inputs, iter(self._loader))


class _Isolation(TrainerCallback):  # type: ignore[misc]
    """The check for isolation, once the model is where it trains."""

    def __init__(self, trainer: FromLoader) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        self._trainer.check_isolation(self._trainer.loader, model)


class _Epochs(TrainerCallback):  # type: ignore[misc]
    """The Trainer makes one pass over all epochs; this tells it which one it is in, and where one ends."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._epoch = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._epoch = self._loader.state_dict()["epoch"]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        epoch, epochs = self._loader.state_dict()["epoch"], self._loader.epochs
        done = None if epochs is None else steps_done(self._loader) / len(self._loader)
        state.epoch = float(epoch) if epochs is None or done is None else epochs * done
        if epoch > self._epoch and done != 1:  # the Trainer itself sees to the end of the last one
            control.should_log |= args.logging_strategy == "epoch"
            control.should_evaluate |= args.eval_strategy == "epoch"
            control.should_save |= args.save_strategy == "epoch"
        self._epoch = epoch
