"""trl's GRPOTrainer with Prompts: a prompt is done when its group was trained, and a checkpoint holds which ones are.

    trainer = PromptsGRPOTrainer(model=model, args=GRPOConfig(max_steps=1000, ...), reward_funcs=reward, prompts=prompts)
    trainer.train(resume_from_checkpoint=True)

trl keeps generated groups in memory for several steps and does not save them.  So a checkpoint is only allowed between two generations:
anywhere else, prompts that were trained in part would be generated and trained again after a resume.

With several ranks, every rank opens the same prompts and takes all of them, in the same order; it generates its own share of the rows.
Each generation the ranks compare what they took.
"""

from collections.abc import Iterator
from math import lcm
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOTrainer

from penstock.errors import PlanError
from penstock.extras.rl.prompts import Prompt, Prompts
from penstock.extras.trainers.hf_trainer import load_state, save_state
from penstock.extras.trainers.parallelism import of_accelerator, refuse_groups

_FIRST_ROW = {"prompt": "-"}  # read to find the kind of the data; training never reads it
_WORKER = "trl"


class PromptsGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """trl.GRPOTrainer whose prompts are leased from `prompts`.  All keys of a record reach the reward functions."""

    def __init__(self, *args: Any, prompts: Prompts, **options: Any) -> None:
        if options.get("train_dataset") is not None:
            raise PlanError(
                "train_dataset and prompts are given; the trainer takes prompts only: leave train_dataset out"
            )
        super().__init__(*args, **{**options, "train_dataset": Dataset.from_list([_FIRST_ROW])})
        self.prompts = prompts
        self._trained: list[Prompt] = []  # whose groups are through, since the last optimizer step
        self._check()
        self.add_callback(_GrpoCallback(self))

    @property
    def steps_per_round(self) -> int:
        """Optimizer steps between two moments at which no generated group waits to be trained."""
        every: int = self.args.steps_per_generation * self.num_iterations
        accumulate: int = self.args.gradient_accumulation_steps
        return lcm(every, accumulate) // accumulate

    def _check(self) -> None:
        """Refuse settings under which prompts would be lost or trained twice."""
        args = self.args
        refuse_groups(of_accelerator(self.accelerator, trainer="PromptsGRPOTrainer"))
        if self.prompts.epochs is not None or args.max_steps <= 0:
            raise PlanError(
                f"Prompts with epochs={self.prompts.epochs} and max_steps={args.max_steps}: expected endless Prompts (epochs=None), and "
                f"max_steps in the GRPOConfig to say when training ends"
            )
        if self.prompts.repeats != self.num_generations:
            raise PlanError(
                f"Prompts have repeats={self.prompts.repeats} and the GRPOConfig has num_generations={self.num_generations}; set both "
                f"to one number"
            )
        if args.save_strategy != "no":
            self._check_saves()

    def _check_saves(self) -> None:
        """Refuse checkpoints, which the end of training is one of, at a step at which generated groups wait to be trained."""
        args = self.args
        steps = self.steps_per_round
        saves_every_steps = args.save_strategy == "steps"
        is_whole = args.save_steps == int(
            args.save_steps
        )  # a number below 1 is a share of all steps
        if not saves_every_steps or not is_whole or args.save_steps % steps:
            raise PlanError(
                f"save_strategy={args.save_strategy.value!r}, save_steps={args.save_steps}: groups wait for {steps} steps to be trained, "
                f"and trl does not save them; save every {steps} steps, or a multiple of it"
            )
        if args.max_steps % steps:
            raise PlanError(
                f"max_steps={args.max_steps} ends between two generations, which are {steps} steps apart; choose a multiple of {steps}"
            )

    def get_train_dataloader(self) -> "_Groups":
        return _Groups(self)

    def _inner_training_loop(
        self, *args: Any, resume_from_checkpoint: str | None = None, **options: Any
    ) -> Any:
        if resume_from_checkpoint:
            state, _ = load_state(Path(resume_from_checkpoint), "Prompts")
            self.prompts.load_state_dict(state)
        self.prompts.back_from(_WORKER)  # what an earlier call of train() took and did not train
        self._step = 0
        self._buffered_inputs = None
        self._trained = []
        return super()._inner_training_loop(
            *args, resume_from_checkpoint=resume_from_checkpoint, **options
        )

    def _run_epoch(self, **options: Any) -> Any:
        """Run the Trainer's one pass, over the steps that are left: nothing is skipped after a resume."""
        left = self.args.max_steps - self.state.global_step
        steps = {
            "steps_in_epoch": left * self.args.gradient_accumulation_steps,
            "num_update_steps_per_epoch": left,
            "steps_trained_in_current_epoch": 0,
        }
        return super()._run_epoch(**{**options, **steps})

    def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        found = super().training_step(model, inputs, *args, **options)
        if inputs.is_last:
            self._trained += inputs.prompts
        return found

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.state.global_step % self.steps_per_round:
            raise PlanError(
                f"a checkpoint at step {self.state.global_step} is between two generations, whose groups trl does not save; save at "
                f"multiples of {self.steps_per_round} steps"
            )
        save_state(self, self.prompts.state_dict(), trial)
        super()._save_checkpoint(model, trial)


class _Group(list[dict[str, Any]]):
    """The rows of one generation.  is_last: trl gets them for the last time."""

    prompts: list[Prompt]
    is_last: bool


class _Groups:
    """What the trainer iterates over: this rank's rows of each generation, as often as trl asks for them.

    trl asks ahead of its steps, so pulls are counted here.  It joins the rewards of all ranks in their order before it compares the rows
    of a prompt; so a rank has neighbouring rows, and a prompt may have some of its rows on the next rank.
    """

    def __init__(self, trainer: PromptsGRPOTrainer) -> None:
        self._trainer = trainer

    def __iter__(self) -> Iterator[_Group]:
        trainer = self._trainer
        count = trainer.args.generation_batch_size // trainer.num_generations
        times = trainer.num_generations
        every = trainer.args.steps_per_generation * trainer.num_iterations
        while True:
            taken: list[Prompt] = []
            while (
                len(taken) < count
            ):  # one call may give fewer, at the border of what is given again
                taken += trainer.prompts.take(count - len(taken), to=_WORKER)
            trainer.prompts.accept(
                taken
            )  # trl trains whatever it generates, so these leases must not run out
            self._compare(taken)
            rows = [row for row in map(_row, taken) for _ in range(times)]
            rank = trainer.accelerator.process_index
            share = len(rows) // trainer.accelerator.num_processes
            for turn in range(every):
                group = _Group(dict(row) for row in rows[rank * share : (rank + 1) * share])
                group.prompts = taken
                group.is_last = turn == every - 1
                yield group

    def _compare(self, taken: list[Prompt]) -> None:
        """Refuse ranks that have other prompts than rank 0: groups would be lost, or trained twice."""
        if self._trainer.accelerator.num_processes == 1:
            return
        mine = self._trainer.prompts.plan.fingerprint, [prompt.ordinal for prompt in taken]
        for rank, theirs in enumerate(found := gather_object([mine])):
            if theirs != found[0]:
                what = (
                    "other prompts are open"
                    if theirs[0] != found[0][0]
                    else f"took {_shown(theirs[1])}"
                )
                raise PlanError(
                    f"rank {rank}: {what}, and rank 0 took {_shown(found[0][1])}; open the same Prompts on every rank, and "
                    f"use them for nothing else"
                )


def _shown(ordinals: list[int]) -> str:
    return f"prompts {ordinals[0]} to {ordinals[-1]}"


def _row(prompt: Prompt) -> dict[str, Any]:
    if "prompt" not in prompt.record:
        raise PlanError(
            f"{prompt.where}: the record has {sorted(prompt.record)}, expected the key 'prompt' (text or messages), which trl reads; "
            f"rename it with source.map()"
        )
    return prompt.record


class _GrpoCallback(TrainerCallback):  # type: ignore[misc]
    """Acknowledges prompts after the optimizer step, and before a checkpoint of that step."""

    def __init__(self, trainer: PromptsGRPOTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trained = self._trainer._trained
        self._trainer._trained = []
        self._trainer.prompts.done(trained)
