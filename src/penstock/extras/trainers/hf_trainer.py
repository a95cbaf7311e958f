"""Train and evaluate with the Hugging Face Trainer on Loaders.  It takes batches as they are: none is sharded, skipped or replayed again.

    trainer = LoaderTrainer(model=model, args=args, loader=loader, eval_dataset=eval_loader)   # or a dict of eval Loaders
    trainer.train(resume_from_checkpoint=True)

The loader's state is saved in the Trainer's own checkpoint folders.  For a Trainer of your own: `class Mine(FromLoader, Trainer)`.
An evaluation begins at its first batch, sees every sample once, and reports a loss per token.  The Trainer's own loss is a mean of
means: a short last batch counts as much as a full one, and a batch of padding alone is not a number.  Where the Trainer itself reports
no loss, because it finds no labels, none is reported here.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from transformers import Trainer, TrainerCallback
from transformers.trainer_pt_utils import find_batch_size

from penstock.errors import PlanError, PlanMismatch
from penstock.extras.losses.observer import LossBySource
from penstock.extras.trainers.arguments import check_arguments, check_datasets
from penstock.extras.trainers.batch_stage import cuts_rows
from penstock.extras.trainers.data_log import DataLog
from penstock.extras.trainers.future_labels import FUTURE_LABELS, FUTURE_WEIGHTS
from penstock.extras.trainers.guards import (
    EvalBatches,
    count_evaluation,
    expect_loader,
    refuse_the_same,
)
from penstock.extras.trainers.isolation import check_isolation
from penstock.extras.trainers.loss_hooks import RecordsLosses, check_losses
from penstock.extras.trainers.model_checks import check_model
from penstock.extras.trainers.model_inputs import Inputs, inputs_for
from penstock.extras.trainers.parallelism import of_accelerator, take_ranks
from penstock.extras.trainers.sequences import JUDGED, PAIRS, STEPS, TOKENS
from penstock.extras.trainers.weighted_loss import WeighsTokens
from penstock.extras.trainers.wrapped import bare_model
from penstock.loader import Loader
from penstock.loader.collate import IGNORE
from penstock.store.overlap import named, warn_of_overlap
from penstock.types import TARGETS, WEIGHTS, Column

_log = logging.getLogger("penstock")

STATE = "penstock.json"  # in every checkpoint folder; the same for all ranks
_TRAINER_STATE = (
    "trainer_state.json"  # written last by the Trainer: a folder without it is incomplete
)
_CLASSIFIES = "ForTokenClassification"  # loss_type of transformers' models that classify tokens
_TRAINERS = {  # what a Loader's samples are → what trains on them
    PAIRS: "LoaderDPOTrainer or LoaderRewardTrainer of penstock.trainers.trl",
    JUDGED: "LoaderKTOTrainer of penstock.trainers.trl",
    STEPS: "LoaderTrainer with a model that classifies tokens",
    TOKENS: "LoaderTrainer or LoaderSFTTrainer",
}

_COUNTED = ("_metrics", "_total_train_tokens", "_step")  # by trl, in each training step
_NOT_OWN = ("penstock", "transformers", "trl")  # packages whose losses are not the user's own

MakeInputs = Callable[[Any], Inputs]


class FromLoader(RecordsLosses, WeighsTokens):
    """Mixin for a Trainer whose training batches come from `loader`; eval_dataset may be a Loader, or a dict of them.

    isolation_check: before training, compare a packed row with the same samples alone, and refuse a model that mixes them up.
    losses: LossBySource(loader), which then records the losses of training by source and sample.
    worst_step_first: before training, run forward and backward of the steps that loader.worst_step() names, so that they run out of memory
    now if they ever do.  Weights, random state, loader and logs stay as they were.
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
    _steps: "_TrainerSteps"
    _loaded_from: str  # the checkpoint whose weights were loaded last
    _samples: int  # that this rank has trained in this call of train()
    label_names: list[str]
    # forms of batches for which the model has passed the isolation check
    _isolated: frozenset[Any] = frozenset()
    # stores that were compared with the model
    _compared: frozenset[str] = frozenset()
    # (loss over all targets, targets, batches with a loss) of this rank, while a Loader is evaluated
    _sums: torch.Tensor | None = None
    # steps of the evaluations that are under way, by the prefix of their metrics
    _eval_steps_done: dict[str, int]
    # the optimizer step whose batches were pulled last, and the Loader's state before them
    _pulled: tuple[int, dict[str, Any]] | None = None

    def __init__(
        self,
        *args: Any,
        loader: Loader,
        isolation_check: bool = True,
        losses: LossBySource | None = None,
        worst_step_first: bool = False,
        **options: Any,
    ) -> None:
        expect_loader(loader, call=type(self).__name__)
        check_losses(losses, loader)
        if loader.form.output != "torch":
            raise PlanError("the Trainer needs tensors: set output='torch' in the Loader")
        if cuts_rows(loader):
            raise PlanError(
                "the Loader has context_split, and the Trainer takes whole rows: it cuts them itself where its ParallelismConfig has a "
                "cp_size; leave context_split out, or train in a loop of your own"
            )
        if loader.form.labels != "unshifted":
            raise PlanError(
                "the Trainer's models shift labels themselves: set labels='unshifted' in the Loader"
            )
        if loader.settings.per_epoch:
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
        if given.get("args") is None:  # the trainer has made arguments of its own
            check_arguments(self.args, loader, eval_loaders=evaluated, other_eval=other)
        if self.args.n_gpu > 1:
            raise PlanError(
                f"{self.args.n_gpu} GPUs in one process would cut packed batches apart; start with torchrun"
            )
        if loader.run.is_endless and self.args.max_steps <= 0:
            raise PlanError(
                "an endless Loader (epochs=None) needs max_steps in the TrainingArguments"
            )
        for each in (loader, *evaluated):
            self._take_ranks(each)
            self._use_weights(each)
        self._check_model(loader)
        if loader.world.rank == 0:
            for each in evaluated:
                warn_of_overlap(named(each.stores), named(loader.stores))
        self.loader = loader
        self.losses = losses
        self._data_log = DataLog(loader)
        self.isolation_check = isolation_check
        self._worst_step_first = worst_step_first
        if worst_step_first and self.accelerator.distributed_type == "DEEPSPEED":
            raise PlanError(
                "worst_step_first: a backward of DeepSpeed also makes the optimizer's step, so it would change the weights; leave it out, "
                "and run loader.make_batch(step) of loader.worst_step().steps in a script of its own"
            )
        self._eval_steps_done = {}
        self.args = copy(self.args)  # the arguments may be used again, with another Loader
        self._max_steps_given = self.args.max_steps
        self.args.per_device_train_batch_size = self._train_batch_size = loader.batch_size
        self.add_callback(_Callback(self))  # type: ignore[attr-defined]

    def _check_samples(self, loader: Loader) -> None:
        """Refuse a Loader of other samples than this trainer takes."""
        name = type(self).__name__
        kind = _kind_of_batches(loader)
        if kind not in self.takes:
            other = _TRAINERS.get(kind, "a loop of your own: prompts have nothing to train")
            raise PlanError(
                f"{name} trains on {' or '.join(self.takes)}, and the Loader has {kind}; use {other}"
            )
        if TARGETS in loader.parts.columns and not self._has_own_loss:
            raise PlanError(
                f"the labels of the Loader's objective stand at their own tokens, and {name} would shift them by one; subclass it with "
                f"a compute_loss that reads inputs['labels'] and inputs['loss_weights'] as they are"
            )

    def _use_weights(self, loader: Loader) -> None:
        if WEIGHTS in loader.parts.columns and not self._has_own_loss:
            self.use_weights(loader)

    def _take_ranks(self, loader: Loader) -> None:
        """Give a Loader the trainer's data-parallel rank; refuse one that was told another."""
        ranks = of_accelerator(self.accelerator, [self.model], trainer=type(self).__name__)
        take_ranks(loader, ranks)

    def _check_model(self, loader: Loader) -> None:
        """Refuse a language model for judged steps: it would take their labels, 0 and 1, for tokens to predict."""
        if (
            loader.kind == STEPS
            and not self._has_own_loss
            and getattr(bare_model(self.model), "loss_type", None) != _CLASSIFIES
        ):
            name = type(bare_model(self.model)).__name__
            raise PlanError(
                f"{name} is not a model that classifies tokens, and the labels of judged steps are classes, not the "
                f"ids of tokens; use AutoModelForTokenClassification with num_labels=2, or subclass with a compute_loss"
            )

    @property
    def _has_own_loss(self) -> bool:
        """Whether a class of the user's computes the loss: one above FromLoader, or a Trainer below it."""
        owners = [each for each in type(self).__mro__ if "compute_loss" in vars(each)]
        return any(owner.__module__.partition(".")[0] not in _NOT_OWN for owner in owners)

    @property
    def _own_columns(self) -> tuple[Column, ...]:
        """Arrays that an objective gives for the loss, such as the weights of masked tokens."""
        objective = self.loader.plan.objective
        return () if objective is None else objective.columns

    @property
    def _arrays_of_loss(self) -> set[str]:
        """Names of arrays that the loss needs, whatever the model's forward takes."""
        names = set(self.label_names)
        if self._has_own_loss:
            names |= {"labels", WEIGHTS.name, *(column.name for column in self._own_columns)}
            names |= {FUTURE_LABELS, FUTURE_WEIGHTS}
        if self._weighted is not None:
            names.add(WEIGHTS.name)
        own_function = getattr(self, "compute_loss_func", None)
        smoother = getattr(self, "label_smoother", None)
        if own_function is not None or smoother is not None:  # the Trainer takes labels out
            names.add("labels")
        return names

    def make_inputs(self, loader: Loader) -> MakeInputs:
        """Return what makes keyword arguments of a loader's batches."""
        return inputs_for(self.model, loader, keep=self._arrays_of_loss)

    def num_targets(self, inputs: Any) -> torch.Tensor:
        """Return over how much the loss of an evaluation's batch is the mean: its labels, of any shape; without labels, its rows.

        With weights of tokens, over their sum.
        """
        weights = inputs.get(WEIGHTS.name)
        if self._weighted is not None and weights is not None:
            return weights[:, 1:].sum().cpu()
        named = [inputs[name] for name in self.label_names if inputs.get(name) is not None]
        if inputs.get("shift_labels") is not None:
            named = [inputs["shift_labels"]]
        elif self._shifts_labels:
            named = [_shifted(labels) for labels in named]
        counts = [(labels != IGNORE).sum() for labels in _tensors(named)]
        if counts:
            return torch.stack([count.cpu() for count in counts]).sum()
        return torch.tensor(find_batch_size(inputs) or 0)

    @property
    def _shifts_labels(self) -> bool:
        """Whether the model's loss compares each output with the next label, so that the first label of a row is not a target."""
        by_kind = _kind_of_batches(self.loader) == TOKENS  # what the labels are made for
        return bool(getattr(self, "_loss_shifts_labels", by_kind))

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
        self._pulled = None
        accumulate = self.args.gradient_accumulation_steps
        given = self._max_steps_given
        self._steps = _TrainerSteps(
            self.loader, self.make_inputs(self.loader), before=done * accumulate
        )
        if not self.loader.run.is_endless:
            all_steps = -(-len(self._steps) // accumulate)
            if given > all_steps:
                raise PlanError(
                    f"max_steps is {given}, the Loader has {all_steps} steps; give it more epochs{_or_budget(self.loader)}"
                )
            self.args.max_steps = given if given > 0 else all_steps
        options["resume_from_checkpoint"] = resume_from_checkpoint
        return super()._inner_training_loop(*args, **options)

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
        """Return the batches of the next optimizer step, and count their samples.

        The Trainer pulls them before it trains on them.  A checkpoint that is saved in between (enable_jit_checkpoint does) belongs to the
        Loader's state before them, so that they are trained after a resume.
        """
        self._pulled = (self.state.global_step, self.loader.state_dict())
        batches, num_items = super().get_batch_samples(*args, **options)  # type: ignore[misc]
        self._samples += sum(batch.samples for batch in batches)
        return batches, num_items

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """For include_num_input_tokens_seen: "non_padding" tokens are those of samples, whatever the mask and the padding id are."""
        if self.args.include_num_input_tokens_seen == "non_padding":
            self.state.num_input_tokens_seen += self._over_ranks(inputs.tokens)
        else:
            super()._track_num_input_tokens(inputs)  # type: ignore[misc]

    def _gather_numbers(self, own: list[float]) -> list[list[float]]:
        """Return the numbers of all processes."""
        kind = torch.float32 if self.args.device.type == "mps" else torch.float64
        numbers = torch.tensor([own], device=self.args.device, dtype=kind)
        of_processes: list[list[float]] = self.accelerator.gather(numbers).tolist()
        return of_processes

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
        state = self.loader.state_dict()
        if self._pulled is not None and self._pulled[0] == self.state.global_step:
            state = self._pulled[1]  # the optimizer has not made the step of these batches
        save_state(self, state, trial)
        super()._save_checkpoint(model, trial)

    def check_isolation(self, loader: Loader, model: Any) -> None:
        """Refuse a model that lets packed samples see each other; once for each form of batch."""
        key = (loader.form, loader.plan.settings.packing)
        if self.isolation_check and key not in self._isolated:
            check_isolation(model, loader, precision=self.accelerator.mixed_precision)
            self._isolated |= {key}

    def try_worst_steps(self, model: Any) -> None:
        """Run forward and backward of the steps that need the most memory, if that was asked for; leave no trace."""
        if not self._worst_step_first:
            return
        self._worst_step_first = False
        make_inputs = self.make_inputs(self.loader)
        # as the Trainer sets it before each step
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        for step in self.loader.worst_step().steps:
            inputs = make_inputs(self.loader.make_batch(step))
            _log.info("worst_step_first: step %d, %s", step, _shapes(inputs))
            with self._untouched(model):
                self.training_step(model, inputs)
                model.zero_grad(set_to_none=True)

    @contextmanager
    def _untouched(self, model: Any) -> Iterator[None]:
        """Leave random states, buffers and what is logged or recorded as they were."""
        kept = {name: deepcopy(vars(self)[name]) for name in _COUNTED if name in vars(self)}
        buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        losses = self.losses
        self.losses = None
        device = self.accelerator.device
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                yield
        finally:
            self.losses = losses
            vars(self).update(kept)
            for buffer, before in buffers:
                buffer.copy_(before)

    def check_model(self, loader: Loader, model: Any) -> None:
        """Compare the model with the loader's stores, once for each of them; refuse what cannot work, warn of what may not be meant."""
        keys = frozenset(store.fingerprint for store in loader.stores if loader.has_tokens)
        if keys - self._compared:
            check_model(model, loader)
            self._compared |= keys

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
        self._take_ranks(loader)
        self._check_samples(loader)
        self._use_weights(loader)
        self._check_model(loader)
        steps = _EvalSteps(loader, self.make_inputs(loader))
        self.check_model(loader, self.model)
        self.check_isolation(loader, self.model)
        return steps

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **options: Any
    ) -> Any:
        if not isinstance(dataloader, _EvalSteps):
            return super().evaluation_loop(  # type: ignore[misc]
                dataloader, *args, metric_key_prefix=metric_key_prefix, **options
            )
        device = self.accelerator.device
        kind = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.zeros(3, dtype=kind, device=device)
        self._eval_steps_done[metric_key_prefix] = len(dataloader)
        try:
            output = super().evaluation_loop(  # type: ignore[misc]
                dataloader, *args, metric_key_prefix=metric_key_prefix, **options
            )
            loss, targets, batches = self.accelerator.reduce(self._sums, "sum").tolist()
        finally:
            self._sums = None
        name = f"{metric_key_prefix}_loss"
        if batches:
            output.metrics[name] = self._mean_loss(loss, targets, name)
        elif name not in output.metrics:
            _log.warning(
                "the Trainer finds no labels in the batches of this evaluation, so %s cannot be computed: it looks for %s; name the "
                "labels in TrainingArguments(label_names=[…])",
                name,
                self.label_names or "nothing, because the model's forward names no labels",
            )
        for counted, number in dataloader.not_whole().items():
            output.metrics[f"{metric_key_prefix}_{counted}"] = number
        return output

    def _mean_loss(self, loss: float, targets: float, name: str) -> float:
        """Return the loss per target; NaN without targets, as the Trainer itself reports it."""
        if targets:
            return loss / targets
        _log.warning("no label of this evaluation is a target, so %s is not a number", name)
        return math.nan

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Add numbers about the data to the lines of training, and correct what the Trainer says about steps per second.

        It divides samples by the batch size, and a packed row holds several.
        """
        if "loss" in logs:
            logs |= self._data_log.take(self._gather_numbers)
        for prefix in list(self._eval_steps_done):
            if f"{prefix}_steps_per_second" in logs:
                correct_rate(logs, prefix, self._eval_steps_done.pop(prefix))
        super().log(logs, *args, **options)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
    ) -> Any:
        output = super().predict(test_dataset, ignore_keys, metric_key_prefix)  # type: ignore[misc]
        steps = self._eval_steps_done.pop(metric_key_prefix, None)
        if steps is not None:
            correct_rate(output.metrics, metric_key_prefix, steps)
        return output

    def compute_loss(self, *args: Any, num_items_in_batch: Any = None, **options: Any) -> Any:
        """In an evaluation, return the mean over this batch: `prediction_step` sums over all batches, not the Trainer."""
        num_items = None if self._sums is not None else num_items_in_batch
        return super().compute_loss(*args, num_items_in_batch=num_items, **options)

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        loss, *rest = super().prediction_step(model, inputs, *args, **options)  # type: ignore[misc]
        if self._sums is not None and loss is not None:
            targets = self.num_targets(inputs).to(self._sums)
            loss = torch.where(
                targets > 0, loss, torch.zeros_like(loss)
            )  # a batch of padding alone has none
            one_batch = torch.ones_like(targets)
            self._sums += torch.stack([loss.to(self._sums) * targets, targets, one_batch])
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


class _TrainerSteps:
    """The training Loader as the Trainer sees it: a length and an iteration; no sampler and no dataset, so it shards nothing."""

    def __init__(self, loader: Loader, inputs: MakeInputs, *, before: int) -> None:
        self._loader = loader
        self._inputs = inputs
        self._before = before
        self.left = (
            loader.steps_left
        )  # batches from here on, without those that skip_steps= names; None if the run is endless

    def __len__(self) -> int:
        """Return what the Trainer counts: batches of its optimizer steps so far, and those that are left."""
        if self.left is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        return self._before + self.left

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._inputs, iter(self._loader))


class _EvalSteps(EvalBatches, DataLoaderStateMixin):  # type: ignore[misc]
    """An evaluation Loader as the Trainer sees it; refuses one that does not give every sample once.

    It tells Accelerate which batch is the last: under batch_eval_metrics the Trainer asks for the result then.
    """

    def __init__(self, loader: Loader, inputs: MakeInputs | None = None) -> None:
        if loader.form.output != "torch" or loader.form.labels != "unshifted":
            raise PlanError(
                "the Trainer evaluates on tensors and shifts labels itself: leave output= and labels= out"
            )
        if loader.epochs != 1 or loader.settings.per_epoch:
            raise PlanError(
                f"an evaluation is one epoch: the Loader has epochs={loader.epochs}, expected 1"
            )
        if (last_step := loader.plan.settings.last_step) not in ("pad", "error"):
            raise PlanError(
                f"last_step={last_step!r} leaves samples out or repeats them; evaluate with last_step='pad', the default"
            )
        for name in ("max_steps", "max_tokens"):
            if getattr(loader.settings, name) is not None:
                raise PlanError(
                    f"{name}={getattr(loader.settings, name)} ends this Loader before all samples are seen; evaluate without it"
                )
        skipped = loader.run.loop.skipped
        if skipped:
            raise PlanError(
                f"skip_steps= leaves the samples of {len(skipped):,} steps out; evaluate without it, so that every sample is seen once"
            )
        super().__init__(loader)
        self._inputs = inputs
        self.gradient_state = GradientState()  # there is one in the whole process

    @property
    def dataset(self) -> range:
        """As long as there are samples in the batches: the Trainer asks how many it has evaluated."""
        counters = count_evaluation(self._loader)
        if counters is None:  # a store is still being made: all of its rows
            return range(sum(int(each.shard_sizes.sum()) for each in self._loader.plan.sources))
        return range(counters.samples_out)

    def not_whole(self) -> dict[str, int]:
        """Return the numbers of samples that are not evaluated as a whole, by what becomes of them; without those that are none."""
        counters = count_evaluation(self._loader)
        if counters is None:
            return {}
        numbers = {
            "samples_truncated": counters.samples_truncated,
            "samples_split": counters.samples_split,
            "samples_dropped": counters.samples - counters.samples_out,
        }
        return {name: number for name, number in numbers.items() if number}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert self._inputs is not None
        left = len(self)
        self.begin()
        try:
            for batch in super().__iter__():
                left -= 1
                self.end_of_dataloader = left == 0
                yield self._inputs(batch)
        finally:
            self.end()


def correct_rate(metrics: dict[str, float], prefix: str, steps: int) -> None:
    """Replace the steps per second of an evaluation by those that were made."""
    seconds = metrics.get(f"{prefix}_runtime")
    if seconds:
        metrics[f"{prefix}_steps_per_second"] = round(steps / seconds, 3)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in lists, tuples and dicts."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict):
        for inside in value.values():
            yield from _tensors(inside)
    elif isinstance(value, list | tuple):
        for inside in value:
            yield from _tensors(inside)


def _shifted(labels: Any) -> Any:
    """Return labels without the first one of each row; labels with one value per row stay as they are."""
    if torch.is_tensor(labels) and labels.ndim > 1:
        return labels[:, 1:]
    return labels


def loaders_in(eval_dataset: Any) -> list[Loader]:
    """Return the Loaders among the data to evaluate on, after checking each; refuse a dict that has other datasets too."""
    given = list(eval_dataset.values()) if isinstance(eval_dataset, dict) else [eval_dataset]
    found = [value for value in given if isinstance(value, Loader)]
    if found and len(found) < len(given):
        raise PlanError("eval_dataset has Loaders and other datasets; give one kind")
    for loader in found:
        _EvalSteps(loader)
    return found


def load_renamed(model: Any, folder: str) -> None:
    """Load weights that save_pretrained saved under older names, as it does for Qwen2.5-VL: from_pretrained knows both."""
    bare = bare_model(model)
    opened, info = type(bare).from_pretrained(folder, output_loading_info=True)
    weights = opened.state_dict()
    own = bare.state_dict()
    if info["missing_keys"] or weights.keys() != own.keys():
        absent = sorted({*info["missing_keys"], *(own.keys() - weights.keys())})
        raise PlanMismatch(
            f"{folder} does not hold the weights of this {type(bare).__name__}: {len(absent)} are missing, such as {absent[:3]}; resume "
            f"with the model that was trained"
        )
    bare.load_state_dict(weights)


class _Callback(TrainerCallback):  # type: ignore[misc]
    """Checks isolation once the model is where it trains, and tells the Trainer, which makes one pass, where an epoch ends."""

    def __init__(self, trainer: FromLoader) -> None:
        self._trainer = trainer
        self._loader = trainer.loader
        self._epoch = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        self._epoch = self._loader.state_dict()["epoch"]
        self._trainer.check_model(self._loader, model)
        self._trainer.check_isolation(self._loader, model)
        self._trainer.try_worst_steps(model)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = self._loader.state_dict()
        epochs = self._loader.epochs
        done = None
        if not self._loader.run.is_endless:
            done = (now["step"] - now["pass_step"]) / len(self._loader)
        state.epoch = self._loader.run.epochs_done(of_pass=epochs, share=done)
        if (
            now["epoch"] > self._epoch and done != 1
        ):  # the Trainer itself sees to the end of the last one
            control.should_log |= args.logging_strategy == "epoch"
            control.should_evaluate |= args.eval_strategy == "epoch"
            control.should_save |= args.save_strategy == "epoch"
        self._epoch = now["epoch"]


def _shapes(inputs: Any) -> str:
    """Return the shapes of the arrays of a batch, for the log."""
    shapes = {name: tuple(value.shape) for name, value in inputs.items() if torch.is_tensor(value)}
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _or_budget(loader: Loader) -> str:
    """Return what else ends a Loader, as a part of a sentence."""
    given = [
        name for name in ("max_steps", "max_tokens") if getattr(loader.settings, name) is not None
    ]
    return f", or a larger {' and '.join(given)}" if given else ""


def _kind_of_batches(loader: Loader) -> str:
    """Return what a batch holds.  A user's `collate` makes token rows of plain records; the model's inputs are checked later."""
    return loader.kind if loader.has_tokens else TOKENS
