"""Lightning with a Loader: a data module, whose loader's state is part of Lightning's own checkpoints.

trainer = Trainer(max_epochs=1, ...)        # the Loader counts its epochs itself: one pass is the whole run
trainer.fit(model, datamodule=LoaderModule(loader, val_dataloaders=eval_loader), ckpt_path="last")

With several devices, Lightning starts the other processes inside `trainer.fit`, after the script has made its Loaders, which cannot know
their rank then.  So give functions that make them; they are called in each process once the process group is initialised:

LoaderModule(partial(ps.load, "train.yaml"), val_dataloaders=partial(ps.load, "eval.yaml"))
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.utilities import CombinedLoader

from penstock.errors import PlanError
from penstock.extras.trainers.data_log import DataLog
from penstock.extras.trainers.guards import (
    EvalBatches,
    expect_loader,
    guard_trainers,
    refuse_the_same,
)
from penstock.extras.trainers.isolation import check_at_first_step, transformers_models
from penstock.extras.trainers.model_checks import check_only_model
from penstock.extras.trainers.parallelism import of_lightning, take_ranks
from penstock.loader import Batch, Loader
from penstock.store.overlap import named, warn_of_overlap

_LATE = (
    "Lightning starts its processes in trainer.fit, so give LoaderModule a function that makes the Loader in each of them: "
    "LoaderModule(partial(ps.load, 'recipe.yaml'))"
)

_log = logging.getLogger("penstock")


class LoaderModule(LightningDataModule):  # type: ignore[misc]
    """Training batches from a Loader, whose state is loaded before Lightning asks how many batches there are.

    loader: the Loader, or a function that makes it, which is called in each process after the process group is initialised.
    val_dataloaders, test_dataloaders, predict_dataloaders: what Lightning takes there, or a function that returns it; every Loader among
    them begins at its first batch each time.  isolation_check: at the first step, refuse a transformers model that lets packed samples see
    each other.
    """

    def __init__(
        self,
        loader: Loader | Callable[[], Loader] | None = None,
        val_dataloaders: Any = None,
        *,
        test_dataloaders: Any = None,
        predict_dataloaders: Any = None,
        isolation_check: bool = True,
    ) -> None:
        super().__init__()
        guard_trainers()
        self._make_loader = loader if callable(loader) else None
        if loader is not None and self._make_loader is None:
            expect_loader(loader, call="LoaderModule")
        self.loader: Loader | None = None if callable(loader) else _for_training(loader)
        self._to_check = isolation_check
        sources = {
            "val": val_dataloaders,
            "test": test_dataloaders,
            "predict": predict_dataloaders,
        }
        for stage, source in sources.items():
            if source is not None:  # Lightning checks whether the method exists
                evaluated = _Evaluated(self, source, is_validation=stage == "val")
                setattr(self, f"{stage}_dataloader", partial(_Evaluated.batches, evaluated))

    def setup(self, stage: str) -> None:
        """Make the Loader, if a function was given: the process group runs now, and Lightning loads a checkpoint after this."""
        if stage == "fit" and self.loader is None and self._make_loader is not None:
            self.loader = _for_training(self._make_loader())

    def train_dataloader(self) -> "_Run":
        if self.loader is None:
            raise PlanError("LoaderModule has no Loader to train on: pass it as the first argument")
        self._take_ranks(self.loader)
        passes = self.trainer.current_epoch + 1  # a pass that max_steps ended counts as one
        if self.trainer.max_epochs != passes and not self.loader.finished:
            raise PlanError(
                f"Trainer has max_epochs={self.trainer.max_epochs}; the Loader counts its {self.loader.epochs} epochs itself, "
                f"and Lightning makes one pass more: pass max_epochs={passes}; validation goes by steps (val_check_interval)"
            )
        check_only_model(list(transformers_models(self.trainer.lightning_module)), self.loader)
        if self._to_check:
            check_at_first_step(self.trainer.lightning_module, self.loader)
        self._to_check = False
        if not any(isinstance(each, LogsData) for each in self.trainer.callbacks):
            self.trainer.callbacks.append(LogsData(self.loader))
        return _Run(self.loader)

    def _take_ranks(self, loader: Loader) -> None:
        try:
            take_ranks(loader, of_lightning(self.trainer))
        except PlanError as error:
            if self._make_loader is not None:
                raise
            raise PlanError(f"{error}; {_LATE}") from error

    def state_dict(self) -> dict[str, Any]:
        if self.loader is None:
            return {}
        self._warn_within_group()
        return self.loader.state_dict()

    def _warn_within_group(self) -> None:
        """Warn when a checkpoint is saved between two batches of one optimizer step: their gradients are not part of it."""
        trainer = self.trainer
        if trainer is None or not trainer.training or trainer.accumulate_grad_batches == 1:
            return
        batches = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        is_last = trainer.is_last_batch  # which ends with a step, whatever the group's size
        if batches % trainer.accumulate_grad_batches and not is_last:
            _log.warning(
                "a checkpoint is saved within a group of accumulate_grad_batches=%d batches: the gradients of this group are not saved, "
                "and the Loader counts its batches as delivered, so a resumed run does not train them; save every_n_train_steps, which "
                "counts optimizer steps",
                trainer.accumulate_grad_batches,
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.loader is not None:
            self.loader.load_state_dict(state)


def _for_training(loader: Loader | None) -> Loader | None:
    if loader is not None and (loader.settings.per_epoch or loader.run.is_endless):
        raise PlanError(
            "Lightning makes one pass over the whole run: set the Loader's epochs, leave out per_epoch"
        )
    return loader


class LogsData(Callback):  # type: ignore[misc]
    """Writes numbers about the data to all loggers of the Trainer, at the steps at which it logs itself.

    LoaderModule adds it.  For a Trainer that is given a Loader without LoaderModule: Trainer(callbacks=[LogsData(loader)]).
    """

    def __init__(self, loader: Loader) -> None:
        self._log = DataLog(loader)
        self._last_step = 0  # that was looked at: several batches may make one step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        step = trainer.global_step
        if step == self._last_step or step % trainer.log_every_n_steps or not trainer.loggers:
            return
        self._last_step = step

        def gather(own: list[float]) -> list[list[float]]:
            numbers = torch.tensor(own, device=trainer.strategy.root_device)
            of_processes: list[list[float]] = (
                trainer.strategy.all_gather(numbers).reshape(-1, len(own)).tolist()
            )
            return of_processes

        numbers = self._log.take(gather)
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=step - 1)  # as Lightning counts


class _Evaluated:
    """Evaluation data of a LoaderModule, which a function may make when Lightning first asks for it."""

    def __init__(self, module: LoaderModule, source: Any, *, is_validation: bool) -> None:
        self._module = module
        self._is_validation = is_validation
        self._make = source if callable(source) else None
        self._batches = None if callable(source) else self._wrapped(source)

    def _wrapped(self, source: Any) -> Any:
        return _for_evaluation(source, self._module.loader if self._is_validation else None)

    def batches(self) -> Any:
        if self._batches is None and self._make is not None:
            self._batches = self._wrapped(self._make())
        return self._batches


def _for_evaluation(given: Any, trained: Loader | None) -> Any:
    """Return the same collection, with every Loader in it made to begin at its first batch each time."""
    if isinstance(given, Loader):
        refuse_the_same(trained, given)
        if trained is not None and trained.world.rank == 0:
            warn_of_overlap(named(given.stores), named(trained.stores))
        return EvalBatches(given)
    if isinstance(given, CombinedLoader):
        given.flattened = [_for_evaluation(each, trained) for each in given.flattened]
        return given
    if isinstance(given, dict):
        return {name: _for_evaluation(each, trained) for name, each in given.items()}
    if isinstance(given, list | tuple):
        return type(given)(_for_evaluation(each, trained) for each in given)
    return given


class _Run:
    """The loader as Lightning sees it: a length, an iteration, and a state, so that Lightning can resume within a pass."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Return the batches of the pass, without those that skip_steps= names: Lightning must know which one is the last."""
        return self._loader.run.steps_to_deliver()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
